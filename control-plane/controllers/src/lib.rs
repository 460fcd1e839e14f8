//! Scheduler and controllers, over any [`kube::Client`].
//!
//! What for: turn the wishes stored in the API (Deployments, Services, unscheduled Pods …) into the objects that
//! node agents and dataplanes act on. Works against Keelson's own API server and against an upstream one.
//!
//! Shape: one watch per kind feeds one shared cache; each controller has a queue of keys and one reconcile
//! shell; every decision is a pure function from state to plan, in a module without I/O.
//!
//! Upstream counterparts: `kube-controller-manager` and `kube-scheduler`.

mod adopt;
mod claim;
mod config;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
mod endpoints;
mod engine;
mod gc;
mod job;
mod leader;
mod meta;
mod namespace_defaults;
mod namespaces;
mod node_ipam;
mod node_lifecycle;
mod pod_control;
mod pod_gc;
mod pods;
mod replicaset;
mod revisions;
mod role_aggregation;
mod run;
mod scheduler;
mod statefulset;
mod template;
mod ttl_after_finished;

pub use config::{
    Config, ConfigError, DEFAULT_NODE_MONITOR_GRACE_PERIOD, DEFAULT_NODE_STARTUP_GRACE_PERIOD,
    DEFAULT_TERMINATED_POD_THRESHOLD, RunError,
};

pub use leader::{Election, LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD, lead};

use kube::Client;
use tokio_util::sync::CancellationToken;

/// Runs every controller until `shutdown` is cancelled.
///
/// # Errors
/// Returns when the configuration is unusable; an API server that is away is waited for.
pub async fn run_controllers(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let parts = run::Parts { controllers: true, scheduler: false };
    run::run(client, config, parts, shutdown).await
}

/// Runs the scheduler until `shutdown` is cancelled.
///
/// # Errors
/// Returns when the configuration is unusable; an API server that is away is waited for.
pub async fn run_scheduler(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let parts = run::Parts { controllers: false, scheduler: true };
    run::run(client, config, parts, shutdown).await
}

/// Runs the scheduler and every controller over the same caches: half the watches and memory of running them apart.
///
/// # Errors
/// Returns when the configuration is unusable; an API server that is away is waited for.
pub async fn run_all(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let parts = run::Parts { controllers: true, scheduler: true };
    run::run(client, config, parts, shutdown).await
}
