//! This node as the API sees it: registration, status, lease; and the readiness of runtime and network.
//!
//! Upstream counterpart: `pkg/kubelet/kubelet_node_status.go`, `pkg/kubelet/nodestatus`, `component-helpers/apimachinery/lease`.

pub mod facts;
pub mod lease;
pub mod report;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::runtime::{Health, Runtime};

/// Pause between looks at the runtime while everything is well (upstream 5 s; the event stream tells of a loss sooner).
const HEALTHY_PAUSE: Duration = Duration::from_secs(10);
/// Pause while something is missing, so that the first pod does not wait for a tick.
const UNHEALTHY_PAUSE: Duration = Duration::from_millis(500);

/// Readiness of runtime and network, each `None` when fine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The runtime.
    pub runtime: Option<String>,
    /// The pod network.
    pub network: Option<String>,
}

/// Asks the runtime how it is; while it does not answer the network stays as it was.
pub async fn ask(runtime: &dyn Runtime, before: &Readiness) -> Readiness {
    match runtime.health().await {
        Ok(Health { runtime, network }) => Readiness { runtime, network },
        Err(error) => {
            Readiness { runtime: Some(format!("container runtime is down: {error}")), network: before.network.clone() }
        }
    }
}

/// Asks the runtime how it is until `stop`; publishes changes only. `trouble` is what the managed network complains of.
pub async fn watch_health(
    runtime: Arc<dyn Runtime>,
    readiness: watch::Sender<Readiness>,
    network: watch::Sender<Option<String>>,
    trouble: watch::Receiver<Option<String>>,
    poke: Arc<tokio::sync::Notify>,
    stop: CancellationToken,
) {
    loop {
        let before = readiness.borrow().clone();
        let mut now = ask(runtime.as_ref(), &before).await;
        // What the managed network knows goes before what the runtime believes of its configuration.
        if let Some(why) = trouble.borrow().clone() {
            now.network = Some(why);
        }
        let fine = now == Readiness::default();
        network.send_if_modified(|old| {
            let changed = *old != now.network;
            old.clone_from(&now.network);
            changed
        });
        readiness.send_if_modified(|old| {
            if *old == now {
                return false;
            }
            match (&now.runtime, &now.network) {
                (None, None) => info!("runtime and pod network are ready"),
                (Some(why), _) | (None, Some(why)) => warn!("{why}"),
            }
            old.clone_from(&now);
            true
        });
        tokio::select! {
            () = stop.cancelled() => return,
            () = poke.notified() => {}
            () = tokio::time::sleep(if fine { HEALTHY_PAUSE } else { UNHEALTHY_PAUSE }) => {}
        }
    }
}
