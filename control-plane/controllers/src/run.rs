//! Puts caches, queues and controllers together.

use std::sync::Arc;

use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::config::{Config, RunError};
use crate::deployment::shell::Deployments;
use crate::engine::{Caches, Events, Queue, Reconcile, queue};
use crate::replicaset::shell::ReplicaSets;

/// Keys that one controller works on at the same time (upstream's `--concurrent-…-syncs` are 5).
const WORKERS: usize = 5;

/// What to run over one set of caches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    /// The controllers.
    pub controllers: bool,
    /// The scheduler.
    pub scheduler: bool,
}

/// A started controller: registered with the caches, its workers wait for the first lists.
type Starter = Box<dyn FnOnce(&TaskTracker, &CancellationToken) + Send>;

fn starter<R: Reconcile>(reconciler: R, queue: Arc<Queue<R::Key>>, workers: usize) -> Starter {
    Box::new(move |tracker, shutdown| queue::run(tracker, &Arc::new(reconciler), &queue, workers, shutdown))
}

/// Runs until cancelled.
pub(crate) async fn run(
    client: Client,
    config: Config,
    parts: Parts,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    config.validate()?;
    let tracker = TaskTracker::new();
    // A child: leaving this function, however, ends all tasks.
    let stop = shutdown.child_token();
    let _guard = stop.clone().drop_guard();
    let caches = Caches::new(client.clone());
    let events = Events::start(client, &tracker, stop.clone());
    let mut starters = Vec::new();
    if parts.controllers {
        controllers(&caches, &events, &config, &mut starters);
    }
    caches.start(&tracker, &stop).await;
    if !stop.is_cancelled() {
        info!(controllers = starters.len(), "caches are filled, controllers start");
        for start in starters {
            start(&tracker, &stop);
        }
    }
    shutdown.cancelled().await;
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    Ok(())
}

fn controllers(caches: &Arc<Caches>, events: &Events, _config: &Config, starters: &mut Vec<Starter>) {
    let sets = ReplicaSets::new(caches, events.clone());
    let queue = Arc::new(Queue::default());
    sets.listen(&queue);
    starters.push(starter(sets, queue, WORKERS));
    let deployments = Deployments::new(caches, events.clone());
    let queue = Arc::new(Queue::default());
    deployments.listen(&queue);
    starters.push(starter(deployments, queue, WORKERS));
}
