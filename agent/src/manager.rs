//! From wanted pods to workers: who runs, who waits, who is an orphan.
//!
//! One task owns the map of workers. A static pod waits until a pod of the same full name has ended; a pod the
//! runtime holds and no source names is ended once every source has spoken, never before. Upstream counterpart:
//! the pod worker bookkeeping and `HandlePodCleanups`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_common::notify::Progress;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::cgroup::resources;
use crate::gc;
use crate::pod::{self, Qos};
use crate::runtime::PodRecord;
use crate::source::{self, Feed, PodSet};
use crate::worker::{self, Desired, NodeContext, Outcome};

/// Pause between collections of dead containers and leftovers (upstream `ContainerGCPeriod`).
const GC_PERIOD: Duration = Duration::from_secs(60);
/// Pause before the pod of a worker that panicked gets another one.
const BROKEN_PAUSE: Duration = Duration::from_secs(10);
/// Workers that have ended and wait to be noticed.
const DONE_QUEUE: usize = 64;

struct Handle {
    tx: watch::Sender<Desired>,
    full_name: String,
    is_static: bool,
}

/// What the rest of the agent may know of the node's pods.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The pods that shall run or are ending.
    pub pods: Vec<Arc<Pod>>,
    /// The static pods and the API's mirrors, once the API has spoken.
    pub statics: Vec<Arc<Pod>>,
    /// Mirrors by full name; `None` before the API has spoken.
    pub mirrors: Option<BTreeMap<String, Arc<Pod>>>,
}

/// The owner of all workers.
pub struct Manager {
    node: Arc<NodeContext>,
    /// Sources of static pods.
    statics: Vec<Feed>,
    api: Option<Feed>,
    workers: HashMap<String, Handle>,
    /// The UIDs of the workers, for the collection beside the loop.
    known: gc::Known,
    gone: BTreeSet<String>,
    tracker: TaskTracker,
    done: mpsc::Sender<(String, Outcome)>,
    view: watch::Sender<View>,
    progress: Progress,
}

impl Manager {
    /// A manager without workers, and the queue on which they report their end.
    #[must_use]
    pub fn new(
        node: Arc<NodeContext>,
        statics: Vec<Feed>,
        api: Option<Feed>,
    ) -> (Self, mpsc::Receiver<(String, Outcome)>) {
        let (done, ended) = mpsc::channel(DONE_QUEUE);
        let manager = Self {
            node,
            statics,
            api,
            workers: HashMap::new(),
            known: gc::Known::default(),
            gone: BTreeSet::new(),
            tracker: TaskTracker::new(),
            done,
            view: watch::Sender::new(View::default()),
            progress: Progress::default(),
        };
        (manager, ended)
    }

    /// The pods as others may see them.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// How the loop turns.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Runs until `stop`, then waits for the workers to let go.
    pub async fn run(mut self, mut ended: mpsc::Receiver<(String, Outcome)>, stop: CancellationToken) {
        let mut population = self.node.pleg.population();
        let mut gc = tokio::time::interval(GC_PERIOD);
        gc.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        gc.tick().await;
        // One collection at a time, beside the loop: a removal that hangs must not stop anything else.
        let mut collecting = None;
        let mut statics = self.statics.clone();
        let mut api = self.api.clone();
        loop {
            self.reconcile(&stop);
            self.progress.turn();
            tokio::select! {
                () = stop.cancelled() => break,
                () = any_changed(&mut statics) => {}
                () = any_changed(api.as_mut_slice()) => {}
                _ = population.changed() => {}
                end = ended.recv() => if let Some((uid, outcome)) = end { self.ended(&uid, outcome) },
                _ = gc.tick() => {
                    if collecting.as_ref().is_none_or(|running: &JoinHandle<()>| running.is_finished()) {
                        collecting = Some(self.collect(&stop));
                    }
                }
            }
        }
        self.tracker.close();
        // Nobody empties the queue any more; workers that report their end must not wait for it.
        ended.close();
        self.tracker.wait().await;
    }

    /// Static pods, the API's pods, and whether every source has spoken.
    fn sets(&self) -> (PodSet, PodSet, bool) {
        let (statics, complete) = source::statics(&self.statics);
        let api = self.api.as_ref().map(|feed| feed.borrow().clone());
        let ready = complete && !matches!(api, Some(None));
        (statics, api.flatten().unwrap_or_default(), ready)
    }

    fn reconcile(&mut self, stop: &CancellationToken) {
        let (statics, api, ready) = self.sets();
        let wanted = source::merge(&statics, &api);
        let mirrors = source::mirrors(&api);
        for (uid, pod) in &wanted {
            if let Some(handle) = self.workers.get(uid) {
                if pod::is_deleted(pod) {
                    // Before the worker itself sees it: a successor may ask first.
                    self.node.ledger.ending(uid);
                }
                handle.tx.send_if_modified(|d| {
                    let changed = !d.removed && !Arc::ptr_eq(&d.pod, pod) && !pod::same_wish(&d.pod, pod);
                    if changed {
                        d.pod = pod.clone();
                    }
                    changed
                });
            }
        }
        self.remove_missing(&wanted);
        self.end_predecessors(&wanted, stop);
        self.keep_places(&wanted);
        self.start_missing(&wanted, stop);
        for (uid, pod) in &wanted {
            if pod::is_static(pod) {
                if let Some(mirror) = mirrors.get(&pod::full_name(pod)) {
                    self.node.statuses.observe(uid, mirror);
                }
            } else {
                self.node.statuses.observe(uid, pod);
            }
        }
        self.gone.retain(|uid| wanted.contains_key(uid));
        if ready {
            self.adopt_orphans(&wanted, stop);
        }
        self.weigh(&wanted);
        let api_spoke = self.api.as_ref().is_some_and(|f| f.borrow().is_some());
        self.view.send_replace(View {
            pods: wanted.into_values().collect(),
            statics: statics.into_values().collect(),
            mirrors: api_spoke.then_some(mirrors),
        });
    }

    fn remove_missing(&mut self, wanted: &PodSet) {
        for (uid, handle) in &self.workers {
            if !wanted.contains_key(uid) {
                self.node.ledger.ending(uid);
                handle.tx.send_if_modified(|d| !std::mem::replace(&mut d.removed, true));
            }
        }
    }

    /// What the runtime holds, no source wants and no worker looks after.
    fn unwanted(&self, wanted: &PodSet) -> Vec<Arc<PodRecord>> {
        let mut records = self.node.pleg.all();
        records.retain(|record| !wanted.contains_key(&record.uid) && !self.workers.contains_key(&record.uid));
        records
    }

    /// Ends what another agent, or this one before it was started anew, runs under the full name of a static pod: the source that could want it
    /// has spoken, and its successor must not run beside it.
    fn end_predecessors(&mut self, wanted: &PodSet, stop: &CancellationToken) {
        let names: BTreeSet<String> =
            wanted.values().filter(|pod| pod::is_static(pod)).map(|pod| pod::full_name(pod)).collect();
        if names.is_empty() {
            return;
        }
        for record in self.unwanted(wanted) {
            if record.any_live() && names.contains(&pod::full_name_of(&record.name, &record.namespace)) {
                info!(pod = record.name, uid = record.uid, "its manifest has another pod now, ending it first");
                self.start(Arc::new(orphan(&record)), true, stop);
            }
        }
    }

    /// What runs already has its place before anything new asks for one.
    fn keep_places(&self, wanted: &PodSet) {
        for (uid, pod) in wanted.iter().filter(|(uid, _)| !self.workers.contains_key(*uid) && !self.gone.contains(*uid))
        {
            if self.node.pleg.get(uid).is_some_and(|record| !record.is_empty()) {
                self.node.ledger.hold(pod);
            }
        }
    }

    fn start_missing(&mut self, wanted: &PodSet, stop: &CancellationToken) {
        let mut missing: Vec<&Arc<Pod>> = wanted
            .iter()
            .filter(|(uid, _)| !self.workers.contains_key(*uid) && !self.gone.contains(*uid))
            .map(|(_, pod)| pod)
            .collect();
        missing.sort_by_key(|p| (!pod::is_static(p), p.metadata.creation_timestamp.clone()));
        for pod in missing {
            let full_name = pod::full_name(pod);
            let taken = pod::is_static(pod) && self.workers.values().any(|h| h.is_static && h.full_name == full_name);
            if !taken {
                self.start(pod.clone(), false, stop);
            }
        }
    }

    fn start(&mut self, pod: Arc<Pod>, removed: bool, stop: &CancellationToken) {
        let uid = pod::uid(&pod).to_owned();
        let handle_name = pod::full_name(&pod);
        let is_static = pod::is_static(&pod);
        let (tx, rx) = watch::channel(Desired { pod, removed, end: None });
        self.known.lock().insert(uid.clone());
        self.workers.insert(uid.clone(), Handle { tx, full_name: handle_name, is_static });
        let (node, done, stop) = (self.node.clone(), self.done.clone(), stop.clone());
        self.tracker.spawn(async move {
            let outcome = match AssertUnwindSafe(worker::run(node, rx, stop.clone())).catch_unwind().await {
                Ok(outcome) => outcome,
                Err(_) => {
                    error!(
                        uid,
                        "a pod's worker broke, which is a fault of the agent; it starts anew in {BROKEN_PAUSE:?}"
                    );
                    stop.run_until_cancelled(tokio::time::sleep(BROKEN_PAUSE)).await;
                    Outcome::Broken
                }
            };
            let _ = done.send((uid, outcome)).await;
        });
    }

    fn ended(&mut self, uid: &str, outcome: Outcome) {
        let Some(handle) = self.workers.remove(uid) else { return };
        self.known.lock().remove(uid);
        if matches!(outcome, Outcome::AgentStops | Outcome::Broken) {
            return;
        }
        let removed = handle.tx.borrow().removed;
        if removed {
            self.node.statuses.forget(uid);
        } else {
            // Deleted by the API: it must not start again while the object is still there.
            self.gone.insert(uid.to_owned());
        }
        drop(handle);
        self.node.pleg.forget(uid);
    }

    /// Ends what the runtime holds and nobody wants.
    fn adopt_orphans(&mut self, wanted: &PodSet, stop: &CancellationToken) {
        for record in self.unwanted(wanted) {
            info!(pod = record.name, uid = record.uid, "no source names this pod, ending it");
            self.start(Arc::new(orphan(&record)), true, stop);
        }
    }

    /// Gives the Burstable class the weight of its pods' requests.
    fn weigh(&self, wanted: &PodSet) {
        let sum = wanted.values().filter(|p| Qos::of(p) == Qos::Burstable).map(|p| resources::cpu_request(p)).sum();
        if let Err(error) = self.node.cgroups.set_classes(sum) {
            warn!("cannot weigh the pod classes: {error}");
        }
    }

    fn collect(&self, stop: &CancellationToken) -> JoinHandle<()> {
        let (_, _, ready) = self.sets();
        let (node, known, stop) = (self.node.clone(), self.known.clone(), stop.clone());
        let work = async move {
            gc::containers(&node, &known).await;
            if ready {
                gc::leftovers(&node, &known).await;
            }
        };
        self.tracker.spawn(async move {
            stop.run_until_cancelled(work).await;
        })
    }
}

/// Waits until one of the feeds changes; feeds whose source has ended never do.
async fn any_changed(feeds: &mut [Feed]) {
    let waits = feeds.iter_mut().map(|feed| {
        Box::pin(async move {
            if feed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    });
    let waits: Vec<_> = waits.collect();
    if waits.is_empty() {
        std::future::pending::<()>().await;
    }
    futures::future::select_all(waits).await;
}

/// A pod object for what only the runtime knows.
fn orphan(record: &PodRecord) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(record.name.clone()),
            namespace: Some(record.namespace.clone()),
            uid: Some(record.uid.clone()),
            // Not the API's: no status of it is sent.
            annotations: Some([(pod::CONFIG_SOURCE.to_owned(), "runtime".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    }
}
