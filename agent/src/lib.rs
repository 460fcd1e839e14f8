//! The node agent: runs the pods of one node through CRI.

pub mod dns;
pub mod env;
pub mod hosts;
pub mod logs;
pub mod server;
pub mod volumes;
