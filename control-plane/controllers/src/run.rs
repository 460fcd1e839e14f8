//! Puts caches, queues and controllers together.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;
use kube::Client;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::{Config, RunError};
use crate::cronjob::shell::CronJobs;
use crate::daemonset::shell::DaemonSets;
use crate::deployment::shell::Deployments;
use crate::disruption::shell::Disruptions;
use crate::endpoints::shell::{LegacyEndpoints, Slices};
use crate::engine::{Caches, Events, Queue, Reconcile, queue};
use crate::gc::shell::{Collector, Worker};
use crate::job::shell::Jobs;
use crate::namespace_defaults::{DefaultAccounts, RootCa};
use crate::namespaces::Namespaces;
use crate::node_ipam::NodeIpam;
use crate::node_lifecycle::shell::{NodeHealth, TaintEviction};
use crate::pod_gc::PodGc;
use crate::replicaset::shell::Replicas;
use crate::role_aggregation::RoleAggregation;
use crate::scheduler::shell::Scheduler;
use crate::statefulset::shell::StatefulSets;
use crate::ttl_after_finished::TtlAfterFinished;

/// Keys that one controller works on at the same time (upstream's `--concurrent-…-syncs` are 5).
const WORKERS: usize = 5;

/// How long requests under way may take after the end was asked for.
const DRAIN: Duration = Duration::from_secs(3);
/// Workers of the garbage collector (upstream's `--concurrent-gc-syncs`).
const COLLECTOR_WORKERS: usize = 20;

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
    if parts.scheduler {
        let scheduler = Scheduler::new(&caches, events.clone(), &config.scheduler_name);
        starters.push(Box::new(move |tracker: &TaskTracker, shutdown: &CancellationToken| {
            tracker.spawn(scheduler.run(tracker.clone(), shutdown.clone()));
        }));
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
    // A request to a server that hangs must not hold the whole program up: what is cut off is done again at the next start.
    if tokio::time::timeout(DRAIN, tracker.wait()).await.is_err() {
        warn!("some requests had no answer within {DRAIN:?} and were given up");
    }
    Ok(())
}

/// Registers a controller with the caches and notes how to start it.
macro_rules! add {
    ($starters:expr, $controller:expr, $workers:expr) => {{
        let controller = $controller;
        let queue = Arc::new(Queue::default());
        controller.listen(&queue);
        $starters.push(starter(controller, queue, $workers));
    }};
}

fn controllers(caches: &Arc<Caches>, events: &Events, config: &Config, starters: &mut Vec<Starter>) {
    add!(starters, Replicas::<ReplicaSet>::new(caches, events.clone()), WORKERS);
    add!(starters, Replicas::<ReplicationController>::new(caches, events.clone()), WORKERS);
    add!(starters, Deployments::new(caches, events.clone()), WORKERS);
    add!(starters, DaemonSets::new(caches, events.clone()), WORKERS);
    add!(starters, StatefulSets::new(caches, events.clone()), WORKERS);
    add!(starters, Jobs::new(caches, events.clone()), WORKERS);
    add!(starters, CronJobs::new(caches, events.clone()), WORKERS);
    add!(starters, TtlAfterFinished::new(caches), WORKERS);
    add!(starters, Disruptions::new(caches), 1);
    add!(starters, RoleAggregation::new(caches), 1);
    add!(starters, Slices::new(caches, events.clone()), WORKERS);
    add!(starters, LegacyEndpoints::new(caches), WORKERS);
    add!(starters, Namespaces::new(caches), WORKERS);
    add!(starters, DefaultAccounts::new(caches), 1);
    if !config.root_ca_pem.is_empty() {
        add!(starters, RootCa::new(caches, &config.root_ca_pem), 1);
    }
    if !config.cluster_cidrs.is_empty() {
        add!(starters, NodeIpam::new(caches, events.clone(), config), 1);
    }
    add!(starters, NodeHealth::new(caches, events.clone(), config), 1);
    add!(starters, TaintEviction::new(caches, events.clone()), WORKERS);
    add!(starters, PodGc::new(caches, config.terminated_pod_threshold), 1);
    starters.push(collector(caches, events));
}

/// The garbage collector's workers wait until all kinds are known, not only those of the shared caches.
fn collector(caches: &Arc<Caches>, events: &Events) -> Starter {
    let queue = Arc::new(Queue::default());
    let collector = Collector::new(caches, events.clone(), &queue);
    Box::new(move |tracker, shutdown| {
        let ready = Arc::new(Notify::new());
        tracker.spawn(Arc::clone(&collector).watch_others(tracker.clone(), Arc::clone(&ready), shutdown.clone()));
        let (tracker, shutdown, spawner) = (tracker.clone(), shutdown.clone(), tracker.clone());
        spawner.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = ready.notified() => queue::run(&tracker, &Arc::new(Worker(collector)), &queue, COLLECTOR_WORKERS, &shutdown),
            }
        });
    })
}
