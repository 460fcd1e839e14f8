//! What several parts of Keelson share and upstream calls apimachinery and component-base.
//!
//! Kept small on purpose: something belongs here only when at least two crates need it and
//! it knows nothing of either.

pub mod backoff;
pub mod client;
pub mod config;
pub mod duration;
pub mod field;
pub mod logging;
pub mod names;
pub mod notify;
mod process;
pub mod quantity;
pub mod scheduling;
pub mod selector;
pub mod serve;
pub mod shutdown;
pub mod tasks;
pub mod tls;
pub mod yaml;
