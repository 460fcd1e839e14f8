//! The node lifecycle controller's shell: signs of life in; conditions, taints and evictions out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::eviction::{Leave, Since, leave};
use super::health::{Evictions, has_no_execute, has_reported, readiness, silenced, taints, wanted_no_execute};
use crate::config::Config;
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::{is_deleting, name_of};
use crate::pods;

const COMPONENT: &str = "node-controller";
const EVICTOR: &str = "taint-eviction-controller";

/// Conditions and taints of nodes.
pub struct NodeHealth {
    caches: Arc<Caches>,
    nodes: Kind<Node>,
    pods: Kind<Pod>,
    events: Events,
    grace: Duration,
    startup_grace: Duration,
    /// Last sign of life of each node, by our clock.
    alive: Arc<Mutex<HashMap<String, Instant>>>,
    /// When the next node may be told to evict.
    next_eviction: Mutex<Option<Instant>>,
}

impl NodeHealth {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events, config: &Config) -> Self {
        Self {
            nodes: Kind::new(caches.client.clone(), Arc::clone(&caches.nodes)),
            pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)),
            caches: Arc::clone(caches),
            events,
            grace: config.node_monitor_grace_period,
            startup_grace: config.node_startup_grace_period,
            alive: Arc::default(),
            next_eviction: Mutex::new(None),
        }
    }

    /// Makes changes of nodes fill `queue`, and notes signs of life.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let (target, alive, caches) = (Arc::clone(queue), Arc::clone(&self.alive), Arc::clone(&self.caches));
        let events = self.events.clone();
        self.caches.nodes.on_change(move |change| {
            let node = change.object().as_ref();
            let name = name_of(node);
            match change {
                Change::Deleted(_) => {
                    alive.lock().remove(name);
                    say(
                        &events,
                        node,
                        "RemovingNode",
                        format!("Node {name} event: Removing Node {name} from Controller"),
                    );
                }
                Change::Added(_) => {
                    alive.lock().insert(name.to_owned(), Instant::now());
                    say(
                        &events,
                        node,
                        "RegisteredNode",
                        format!("Node {name} event: Registered Node {name} in Controller"),
                    );
                }
                Change::Updated { old, .. } => {
                    if heartbeat(node).is_some_and(|beat| heartbeat(old) != Some(beat)) {
                        alive.lock().insert(name.to_owned(), Instant::now());
                    }
                }
            }
            target.add(Key::of(node));
            // How many nodes are ready decides for all whether pods may be evicted.
            if change.old().is_none_or(|old| readiness(old) != readiness(node)) {
                for other in caches.nodes.all() {
                    target.add(Key::of(other.as_ref()));
                }
            }
        });
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| {
            let pod = change.object();
            let node = pods::node_name(pod).filter(|_| !matches!(change, Change::Deleted(_)) && pods::is_ready(pod));
            // A pod that says it is ready on a node that says nothing: bound just now, or not marked because of an error.
            if let Some(node) = node.and_then(|name| caches.nodes.get("", name)).filter(|n| readiness(n) == "Unknown") {
                target.add(Key::of(node.as_ref()));
            }
        });
        let alive = Arc::clone(&self.alive);
        self.caches.node_leases.on_change(move |change| {
            let renewed = |lease: &k8s_openapi::api::coordination::v1::Lease| {
                lease.spec.as_ref().and_then(|s| s.renew_time.clone())
            };
            let lease = change.object().as_ref();
            let is_renewed = change.old().is_none_or(|old| renewed(old) != renewed(lease));
            if let Some(at) = alive.lock().get_mut(name_of(lease)).filter(|_| is_renewed) {
                *at = Instant::now();
            }
        });
    }

    /// Time until the node's silence is too long; `None` if it is.
    fn time_left(&self, node: &Node) -> Option<Duration> {
        let last = *self.alive.lock().entry(name_of(node).to_owned()).or_insert_with(Instant::now);
        let grace = if has_reported(node) { self.grace } else { self.startup_grace };
        let left = grace.saturating_sub(last.elapsed());
        (!left.is_zero()).then_some(left)
    }

    fn evictions(&self) -> Evictions {
        let nodes = self.caches.nodes.all();
        let ready = nodes.iter().filter(|n| readiness(n) == "True").count();
        Evictions::judge(ready, nodes.len() - ready)
    }

    /// The NoExecute taint that the node may have now, and when to ask again if it must wait for its turn.
    fn no_execute(&self, node: &Node) -> (Option<&'static str>, Option<Duration>) {
        let Some(key) = wanted_no_execute(node) else {
            return (None, None);
        };
        let Some(interval) = self.evictions().interval() else {
            return (None, None);
        };
        if has_no_execute(node, super::health::NOT_READY) || has_no_execute(node, super::health::UNREACHABLE) {
            return (Some(key), None);
        }
        let mut next = self.next_eviction.lock();
        let now = Instant::now();
        match *next {
            Some(at) if at > now => (None, Some(at - now)),
            _ => {
                *next = Some(now + interval);
                (Some(key), None)
            }
        }
    }

    /// Takes the node's pods out of service: nobody can say whether they still work.
    async fn mark_pods_unready(&self, node: &str) -> Result<(), ReconcileError> {
        let pods = self.caches.pods.all();
        let mut failed = None;
        for pod in pods.iter().filter(|p| pods::node_name(p) == Some(node) && pods::is_ready(p)) {
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": Timestamp::now().to_string()}]}});
            let result = self.pods.patch(&Key::of(pod.as_ref()), Some("status"), &Patch::Strategic(patch)).await;
            match result {
                Ok(_) => {
                    let message = "Node is not ready".to_owned();
                    self.events.about(pod.as_ref(), COMPONENT, Level::Warning, "NodeNotReady", message);
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

fn say(events: &Events, node: &Node, reason: &'static str, message: String) {
    events.about(node, COMPONENT, Level::Normal, reason, message);
}

/// When the node's agent last vouched for its readiness; what this controller writes does not count.
fn heartbeat(node: &Node) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status != "Unknown")?;
    ready.last_heartbeat_time.as_ref().map(|t| t.0)
}

impl Reconcile for NodeHealth {
    type Key = Key;
    const NAME: &'static str = "node-lifecycle-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(mut node) = self.caches.nodes.by_key(key) else {
            return Ok(Outcome::Done);
        };
        let left = self.time_left(&node);
        let silenced = if left.is_none() { silenced(&node, Timestamp::now()) } else { None };
        if let Some(conditions) = silenced {
            let was_ready = readiness(&node) == "True";
            let mut reported = node.as_ref().clone();
            reported.status.get_or_insert_default().conditions = Some(conditions);
            if let Some(updated) = self.nodes.update_status(&node, &reported).await? {
                node = Arc::new(updated);
            }
            if was_ready {
                let message = format!("Node {} status is now: NodeNotReady", key.name);
                self.events.about(node.as_ref(), COMPONENT, Level::Normal, "NodeNotReady", message);
            }
        }
        // Taints go on even if a pod could not be marked: the next try marks it.
        let marked = if readiness(&node) == "Unknown" && has_reported(&node) {
            self.mark_pods_unready(&key.name).await
        } else {
            Ok(())
        };
        let (no_execute, turn) = self.no_execute(&node);
        let mut wanted = node.as_ref().clone();
        let taints = taints(&node, no_execute, Timestamp::now());
        let known = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        if taints != known {
            wanted.spec.get_or_insert_default().taints = (!taints.is_empty()).then_some(taints);
            self.nodes.update(&node, &wanted).await?;
        }
        marked?;
        Ok(Outcome::after([left, turn].into_iter().flatten().min()))
    }
}

/// Deletes pods that do not tolerate their node's NoExecute taints.
pub struct TaintEviction {
    caches: Arc<Caches>,
    pods: Kind<Pod>,
    events: Events,
    since: Arc<Mutex<Since>>,
}

impl TaintEviction {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)),
            caches: Arc::clone(caches),
            events,
            since: Arc::default(),
        }
    }

    /// Makes pods on nodes with NoExecute taints fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.pods.on_change(move |change| {
            let pod = change.object();
            let node = pods::node_name(pod).and_then(|name| caches.nodes.get("", name));
            if !matches!(change, Change::Deleted(_)) && node.is_some_and(|n| !no_execute_taints(&n).is_empty()) {
                target.add(Key::of(pod.as_ref()));
            }
        });
        let (target, caches, since) = (Arc::clone(queue), Arc::clone(&self.caches), Arc::clone(&self.since));
        self.caches.nodes.on_change(move |change| {
            let node = change.object();
            let before = change.old().map(|old| no_execute_taints(old)).unwrap_or_default();
            let now = if matches!(change, Change::Deleted(_)) { Vec::new() } else { no_execute_taints(node) };
            since.lock().note(name_of(node.as_ref()), &now, Timestamp::now());
            if now.is_empty() || now == before {
                return;
            }
            for pod in caches.pods.all() {
                if pods::node_name(&pod) == Some(name_of(node.as_ref())) {
                    target.add(Key::of(pod.as_ref()));
                }
            }
        });
    }
}

fn no_execute_taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().filter(|t| t.effect == "NoExecute").cloned().collect()
}

impl Reconcile for TaintEviction {
    type Key = Key;
    const NAME: &'static str = EVICTOR;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(pod) = self.caches.pods.by_key(key).filter(|p| !is_deleting(p.as_ref())) else {
            return Ok(Outcome::Done);
        };
        let Some(node) = pods::node_name(&pod).and_then(|name| self.caches.nodes.get("", name)) else {
            return Ok(Outcome::Done);
        };
        let now = Timestamp::now();
        let taints = self.since.lock().dated(name_of(node.as_ref()), &no_execute_taints(&node), now);
        match leave(&pod, &taints, now) {
            Leave::Never => Ok(Outcome::Done),
            Leave::In(wait) if !wait.is_zero() => Ok(Outcome::After(wait)),
            Leave::In(_) => {
                let message = format!("Marking for deletion Pod {key}");
                self.events.about(pod.as_ref(), EVICTOR, Level::Normal, "TaintManagerEviction", message);
                let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
                    "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": Timestamp::now().to_string()}]}});
                match self.pods.patch(key, Some("status"), &Patch::Strategic(patch)).await {
                    Err(error) if error.is_not_found() => return Ok(Outcome::Done),
                    other => other.map(drop)?,
                }
                self.pods.delete(&pod, DeleteParams::default()).await?;
                Ok(Outcome::Done)
            }
        }
    }
}
