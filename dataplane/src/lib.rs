//! The service proxy (what kube-proxy does): from watches of Services, EndpointSlices and the node
//! to nftables.
//!
//! Data flow: watches -> [`model`] (pure) -> [`planner`] (pure) -> [`nftables`] (desired minus
//! committed -> transactions).

pub mod config;
mod conntrack_fill;
pub mod diff;
pub mod drain;
pub mod engine;
pub mod foreign;
pub mod health;
mod interfaces;
pub mod metrics;
pub mod model;
pub mod nftables;
pub mod node_health;
pub mod planner;
pub mod run;
pub mod status;
pub mod sysctl;
pub mod trace;
pub mod wanted;
pub mod watch;

pub use config::Config;
pub use run::run;
