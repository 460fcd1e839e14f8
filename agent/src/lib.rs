//! The node agent: runs the pods of one node through CRI.
//!
//! Data flows from the sources (manifest folder, API server) through one worker per pod to the runtime; events
//! and relists of the runtime flow back through the [`pleg`] cache to the same workers and on to the pods' status.
//! Upstream counterpart: kubelet.

pub mod admission;
pub mod adopt;
pub mod agent;
pub mod cgroup;
pub mod clock;
pub mod command;
pub mod config;
pub mod create;
pub mod dns;
pub mod drain;
pub mod embedded;
pub mod env;
pub mod events;
pub mod flight;
pub mod fuzz;
pub mod gc;
pub mod hooks;
pub mod hosts;
pub mod images;
pub mod keyring;
pub mod logs;
pub mod manager;
pub mod materials;
pub mod metrics;
pub mod mirror;
pub mod network;
pub mod node;
pub mod node_materials;
pub mod orphans;
pub mod pleg;
pub mod pod;
pub mod probe;
pub mod pull_progress;
pub mod runtime;
pub mod runtime_class;
pub mod server;
pub mod source;
pub mod status;
pub mod sync;
pub mod view;
pub mod volumes;
pub mod worker;
