//! Pods that nobody else will end: those of nodes that no longer exist or were declared out of service, those deleted
//! before they had a node, and the oldest of too many finished ones.
//!
//! Invariant: a pod is only called orphaned after its node was missing for a while and the server itself says so.
//!
//! Upstream counterpart: `pkg/controller/podgc`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use crate::engine::index::Change;
use crate::engine::{Caches, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::meta::created;
use crate::node_lifecycle::health::readiness;
use crate::pods;

/// A node must be missing for this long before its pods are orphans (upstream's `quarantineTime`).
const QUARANTINE: Duration = Duration::from_secs(40);
/// Changes of pods are looked at together after this time (upstream checks every 20 s).
const GATHER: Duration = Duration::from_secs(5);

/// Put on a node by people who made sure that it is off: its pods will never end by themselves.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The only key: one sweep is over all pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sweep;

impl std::fmt::Display for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sweep")
    }
}

/// The controller.
pub struct PodGc {
    caches: Arc<Caches>,
    pods: Kind<Pod>,
    nodes: Kind<Node>,
    threshold: usize,
    missing: Mutex<HashMap<String, Instant>>,
}

impl PodGc {
    /// The controller over these caches; `threshold` finished pods are kept (0: all).
    pub fn new(caches: &Arc<Caches>, threshold: usize) -> Self {
        Self {
            pods: Kind::new(caches.client.clone(), Arc::clone(&caches.pods)),
            nodes: Kind::new(caches.client.clone(), Arc::clone(&caches.nodes)),
            caches: Arc::clone(caches),
            threshold,
            missing: Mutex::default(),
        }
    }

    /// Makes changes that may leave pods behind fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Sweep>>) {
        queue.add(Sweep);
        let target = Arc::clone(queue);
        self.caches.nodes.on_change(move |change| {
            if matches!(change, Change::Deleted(_)) || is_out_of_service(change.object()) {
                target.add(Sweep);
            }
        });
        let (target, caches, threshold) = (Arc::clone(queue), Arc::clone(&self.caches), self.threshold);
        self.caches.pods.on_change(move |change| {
            let pod = change.object();
            let is_left = match pods::node_name(pod) {
                Some(node) => {
                    caches.nodes.get("", node).is_none_or(|n| pods::is_terminating(pod) && is_out_of_service(&n))
                }
                None => pods::is_terminating(pod),
            };
            let has_ended = threshold > 0 && pods::is_terminal(pod);
            if !matches!(change, Change::Deleted(_)) && (is_left || has_ended) {
                target.add_after(Sweep, GATHER);
            }
        });
    }

    /// Nodes that are missing for long enough and that the server does not have either; and when the next may be.
    async fn lost_nodes(&self, all: &[Arc<Pod>]) -> Result<(Vec<String>, Option<Duration>), ReconcileError> {
        let mut named: Vec<&str> = all.iter().filter_map(|p| pods::node_name(p)).collect();
        named.sort_unstable();
        named.dedup();
        named.retain(|name| self.caches.nodes.get("", name).is_none());
        let (due, next) = quarantine(&mut self.missing.lock(), &named, Instant::now());
        let mut lost = Vec::new();
        for name in due {
            if self.nodes.get_live(&Key::new("", name.as_str())).await?.is_none() {
                lost.push(name);
            }
        }
        Ok((lost, next))
    }

    /// Marks the pod as failed, so that whoever counts ended pods sees its end, and deletes it. `why` is for a pod that had
    /// a node.
    async fn fail_and_delete(&self, pod: &Pod, why: Option<&str>) -> Result<(), ReconcileError> {
        if !pods::is_terminal(pod) {
            let mut patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Failed"}});
            if let Some(why) = why {
                patch["status"]["conditions"] = json!([{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": why, "lastTransitionTime": Timestamp::now().to_string()}]);
            }
            match self.pods.patch(&Key::of(pod), Some("status"), &Patch::Strategic(patch)).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        self.delete(pod).await
    }

    async fn delete(&self, pod: &Pod) -> Result<(), ReconcileError> {
        info!(pod = %Key::of(pod), "deleting a pod that nobody else will end");
        self.pods.delete(pod, DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await
    }
}

/// Notes since when nodes are missing. Returns those whose time is over, and when the next one's is.
fn quarantine(missing: &mut HashMap<String, Instant>, named: &[&str], now: Instant) -> (Vec<String>, Option<Duration>) {
    missing.retain(|name, _| named.contains(&name.as_str()));
    for name in named {
        missing.entry((*name).to_owned()).or_insert(now);
    }
    let left = |since: &Instant| QUARANTINE.saturating_sub(now - *since);
    let due = missing.iter().filter(|(_, since)| left(since).is_zero()).map(|(name, _)| name.clone()).collect();
    let next = missing.values().map(left).filter(|l| !l.is_zero()).min();
    (due, next)
}

/// The node is not ready, and people say that it will not come back by itself.
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let is_declared = taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE);
    is_declared && readiness(node) != "True"
}

/// The oldest finished pods beyond the threshold.
fn surplus(all: &[Arc<Pod>], threshold: usize) -> Vec<Arc<Pod>> {
    if threshold == 0 {
        return Vec::new();
    }
    let mut finished: Vec<_> =
        all.iter().filter(|p| pods::is_terminal(p) && !pods::is_terminating(p)).cloned().collect();
    let count = finished.len().saturating_sub(threshold);
    finished.sort_by_key(|p| created(p.as_ref()));
    finished.truncate(count);
    finished
}

impl Reconcile for PodGc {
    type Key = Sweep;
    const NAME: &'static str = "pod-garbage-collector-controller";

    async fn reconcile(&self, _: &Sweep) -> Result<Outcome, ReconcileError> {
        let all = self.caches.pods.all();
        for pod in surplus(&all, self.threshold) {
            self.delete(&pod).await?;
        }
        for pod in all.iter().filter(|p| pods::is_terminating(p) && pods::node_name(p).is_none()) {
            self.fail_and_delete(pod, None).await?;
        }
        let given_up = |pod: &&Arc<Pod>| {
            let node = pods::node_name(pod).and_then(|name| self.caches.nodes.get("", name));
            pods::is_terminating(pod) && node.is_some_and(|node| is_out_of_service(&node))
        };
        for pod in all.iter().filter(given_up) {
            self.fail_and_delete(pod, None).await?;
        }
        let (lost, next) = self.lost_nodes(&all).await?;
        for pod in all.iter().filter(|p| pods::node_name(p).is_some_and(|node| lost.iter().any(|l| l == node))) {
            self.fail_and_delete(pod, Some("PodGC: node no longer exists")).await?;
        }
        Ok(Outcome::after(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_oldest_finished_pods_go() {
        let pod = |age: u32, phase: &str| -> Arc<Pod> {
            Arc::new(serde_json::from_value(json!({"metadata": {"name": age.to_string(), "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z")},
                "status": {"phase": phase}})).unwrap())
        };
        let all = [pod(3, "Failed"), pod(1, "Succeeded"), pod(2, "Failed"), pod(0, "Running")];
        let names: Vec<_> = surplus(&all, 1).iter().map(|p| p.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, ["1", "2"]);
        assert!(surplus(&all, 0).is_empty());
    }

    #[test]
    fn a_node_is_out_of_service_when_people_say_so_and_it_is_not_ready() {
        let node = |key: &str, ready: &str| -> Node {
            serde_json::from_value(json!({"spec": {"taints": [{"key": key, "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        assert!(is_out_of_service(&node(OUT_OF_SERVICE, "Unknown")));
        assert!(!is_out_of_service(&node(OUT_OF_SERVICE, "True")));
        assert!(!is_out_of_service(&node("other", "Unknown")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_must_be_missing_for_a_while() {
        let mut missing = HashMap::new();
        let start = Instant::now();
        assert_eq!(quarantine(&mut missing, &["n"], start), (vec![], Some(QUARANTINE)));
        assert_eq!(quarantine(&mut missing, &["n"], start + QUARANTINE), (vec!["n".to_owned()], None));
        assert_eq!(quarantine(&mut missing, &[], start + QUARANTINE), (vec![], None));
        assert_eq!(quarantine(&mut missing, &["n"], start + QUARANTINE * 2).0, Vec::<String>::new());
    }
}
