//! The DaemonSet controller: reads caches, asks the pure parts, acts.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::core::SelectorExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::place::pod;
use super::plan::{ByNode, Input, Plan, by_node, plan};
use super::status;
use super::update::{is_rolling, roll};
use crate::adopt::{self, Marks, child_changed, ignore_gone};
use crate::claim::claim;
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{is_deleting, labels, name_of, uid_of, workload_selector};
use crate::pod_control::PodControl;
use crate::revisions::plan::{REVISION_LABEL, superfluous};
use crate::revisions::shell::{Current, History};

const COMPONENT: &str = "daemonset-controller";
/// Most pods made or deleted in one pass (upstream's `BurstReplicas`).
const BURST: usize = 250;

/// The controller.
pub struct DaemonSets {
    caches: Arc<Caches>,
    sets: Kind<DaemonSet>,
    pods: PodControl,
    history: History,
    events: Events,
    backoff: Arc<Mutex<Backoff>>,
    start: Instant,
}

impl DaemonSets {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            sets: Kind::new(caches.client.clone(), Arc::clone(&caches.daemon_sets)),
            pods: PodControl::new(caches, events.clone(), COMPONENT),
            history: History::new(caches, REVISION_LABEL),
            caches: Arc::clone(caches),
            events,
            backoff: Arc::default(),
            start: Instant::now(),
        }
    }

    /// Makes changes of sets, their pods and revisions, and of nodes fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let (target, backoff) = (Arc::clone(queue), Arc::clone(&self.backoff));
        self.caches.daemon_sets.on_change(move |change| {
            let set = change.object().as_ref();
            if matches!(change, Change::Deleted(_)) {
                backoff.lock().forget(uid_of(set));
            }
            target.add(Key::of(set));
        });
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches
            .pods
            .on_change(move |change| child_changed(&caches.daemon_sets, |key| target.add(key), change, selector));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches
            .revisions
            .on_change(move |change| child_changed(&caches.daemon_sets, |key| target.add(key), change, selector));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.nodes.on_change(move |change| {
            if change.old().is_some_and(|old| !matters(old, change.object())) {
                return;
            }
            for set in caches.daemon_sets.all() {
                target.add(Key::of(set.as_ref()));
            }
        });
    }

    fn pods_by_node(&self, set: &DaemonSet, matches: impl Fn(&Pod) -> bool) -> ByNode {
        let pods = self.caches.pods.in_namespace(set.metadata.namespace.as_deref().unwrap_or(""));
        by_node(claim(uid_of(set), true, matches, pods).owned)
    }

    async fn act(&self, set: &DaemonSet, hash: &str, mut plan: Plan) -> Result<(), ReconcileError> {
        for (level, reason, message) in plan.events {
            self.events.about(set, COMPONENT, level, reason, message);
        }
        plan.create.truncate(BURST);
        plan.delete.truncate(BURST);
        let made = self.pods.create(set, plan.create.len(), |i| pod(set, &plan.create[i], hash)).await;
        self.pods.delete(set, &plan.delete).await.map_err(|failed| failed.1)?;
        made.map_err(|failed| failed.1)
    }

    /// Makes and deletes; tells when to look again.
    async fn manage(
        &self,
        set: &DaemonSet,
        hash: &str,
        matches: impl Fn(&Pod) -> bool,
    ) -> Result<Option<std::time::Duration>, ReconcileError> {
        let (nodes, pods) = (self.caches.nodes.all(), self.pods_by_node(set, &matches));
        let input = Input { set, nodes: &nodes, pods: &pods, hash, now: Timestamp::now() };
        let plan = plan(&input, &mut self.backoff.lock(), self.start.elapsed());
        let again = plan.again;
        self.act(set, hash, plan).await?;
        if is_rolling(set) {
            let pods = self.pods_by_node(set, &matches);
            let input = Input { set, nodes: &nodes, pods: &pods, hash, now: Timestamp::now() };
            self.act(set, hash, roll(&input)).await?;
        }
        Ok(again)
    }

    /// Deletes old revisions beyond the limit; those of living pods count, but stay.
    async fn clean_history(
        &self,
        set: &DaemonSet,
        revisions: &[Arc<ControllerRevision>],
        current: &Current,
        pods: &ByNode,
    ) -> Result<(), ReconcileError> {
        let Some(limit) = set.spec.revision_history_limit.and_then(|l| usize::try_from(l).ok()) else {
            return Ok(());
        };
        let is_live = |revision: &ControllerRevision| {
            let hash = labels(revision).get(REVISION_LABEL);
            hash.is_some() && pods.values().flatten().any(|pod| labels(pod.as_ref()).get(REVISION_LABEL) == hash)
        };
        let old = |r: &&Arc<ControllerRevision>| name_of(r.as_ref()) != name_of(current.revision.as_ref());
        let old: Vec<_> = revisions.iter().filter(old).cloned().collect();
        let live = old.iter().filter(|r| is_live(r)).count();
        self.history.delete(&superfluous(&old, is_live, limit.saturating_sub(live))).await
    }
}

fn selector(set: &DaemonSet) -> Option<kube::core::Selector> {
    workload_selector(&set.spec.selector)
}

/// The change of a node may change which sets have a pod there.
fn matters(old: &Node, new: &Node) -> bool {
    let taints = |node: &Node| node.spec.as_ref().and_then(|s| s.taints.clone());
    labels(old) != labels(new) || taints(old) != taints(new)
}

impl Reconcile for DaemonSets {
    type Key = Key;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(set) = self.caches.daemon_sets.by_key(key) else {
            return Ok(Outcome::Done);
        };
        let Some(selector) = selector(&set) else {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.".to_owned();
            self.events.about(set.as_ref(), COMPONENT, Level::Warning, "SelectingAll", message);
            return Ok(Outcome::Done);
        };
        if is_deleting(set.as_ref()) {
            return Ok(Outcome::Done);
        }
        let revisions = self.history.of(&self.sets, set.as_ref(), &selector).await?;
        let collisions = set.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        let current = match self.history.current(set.as_ref(), &set.spec.template, &revisions, collisions).await {
            Err(error) if error.is_namespace_terminating() => return Ok(Outcome::Done),
            other => other?,
        };
        let hash = labels(current.revision.as_ref()).get(REVISION_LABEL).cloned().unwrap_or_default();
        let matches = |pod: &Pod| selector.matches(labels(pod));
        adopt::take(&self.sets, self.pods.pods(), set.as_ref(), matches, Marks::NONE).await?;
        let managed = self.manage(&set, &hash, matches).await;
        let (nodes, pods) = (self.caches.nodes.all(), self.pods_by_node(&set, matches));
        if managed.is_ok() {
            self.clean_history(&set, &revisions, &current, &pods).await?;
        }
        let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: &hash, now: Timestamp::now() };
        let mut reported = set.as_ref().clone();
        reported.status = Some(status::status(&input, current.collisions));
        ignore_gone(self.sets.update_status(&set, &reported).await)?;
        let again = managed?;
        Ok(Outcome::after([again, status::next_available(&input)].into_iter().flatten().min()))
    }
}
