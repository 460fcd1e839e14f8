//! What to make and delete so that each node has its pod. Pure.
//!
//! Upstream counterpart: `manage`, `podsShouldBeOnNode`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;

use super::backoff::Backoff;
use super::place::{Fit, Placement, target};
use super::update::max_surge;
use crate::engine::Key;
use crate::engine::events::Level;
use crate::meta::{created, labels, name_of, seconds, uid_of};
use crate::pods;
use crate::revisions::plan::REVISION_LABEL;

/// The pods of each node, by its name.
pub type ByNode = BTreeMap<String, Vec<Arc<Pod>>>;

/// What is known when a plan is made.
pub struct Input<'a> {
    /// The set.
    pub set: &'a DaemonSet,
    /// All nodes.
    pub nodes: &'a [Arc<Node>],
    /// The set's pods.
    pub pods: &'a ByNode,
    /// The hash of the set's current revision.
    pub hash: &'a str,
    /// Now.
    pub now: Timestamp,
}

/// What to do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Nodes that get a pod.
    pub create: Vec<String>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// What to tell people: (level, reason, message).
    pub events: Vec<(Level, &'static str, String)>,
    /// When to look again, if nothing happens before.
    pub again: Option<Duration>,
}

/// Sorts the set's pods by node. Those that have ended and were deleted count no more.
pub fn by_node(pods: impl IntoIterator<Item = Arc<Pod>>) -> ByNode {
    let mut map = ByNode::new();
    for pod in pods {
        if pods::is_terminal(&pod) && pods::is_terminating(&pod) {
            continue;
        }
        if let Some(node) = target(&pod) {
            map.entry(node.to_owned()).or_default().push(pod);
        }
    }
    for pods in map.values_mut() {
        pods.sort_by(|a, b| {
            let rank = |pod: &Pod| (pods::node_name(pod).is_none(), created(pod));
            rank(a).cmp(&rank(b)).then_with(|| name_of(a.as_ref()).cmp(name_of(b.as_ref())))
        });
    }
    map
}

/// The pod is of the set's current revision.
pub fn is_updated(pod: &Pod, hash: &str) -> bool {
    labels(pod).get(REVISION_LABEL).is_some_and(|have| have == hash)
}

/// The pod has been ready for as long as the set asks.
pub fn is_available(set: &DaemonSet, pod: &Pod, now: Timestamp) -> bool {
    pods::is_available(pod, seconds(set.spec.min_ready_seconds), now)
}

/// Compares nodes and pods. `clock` is the time since some fixed moment, for `backoff`.
pub fn plan(input: &Input, backoff: &mut Backoff, clock: Duration) -> Plan {
    let placement = Placement::of(input.set);
    let mut plan = Plan::default();
    let none = Vec::new();
    for node in input.nodes {
        let name = name_of(node.as_ref());
        let pods = input.pods.get(name).unwrap_or(&none);
        match placement.fit(node) {
            Fit { should_run: true, .. } if pods.is_empty() => plan.create.push(name.to_owned()),
            Fit { may_stay: true, should_run } => {
                let running = sift(input, name, pods, (backoff, clock), &mut plan);
                plan.settle(input, name, &running, should_run);
            }
            Fit { may_stay: false, .. } => {
                plan.delete.extend(pods.iter().filter(|p| !pods::is_terminating(p)).cloned());
            }
        }
    }
    plan.delete.extend(of_lost_nodes(input));
    plan
}

/// The running pods of a node; those that have ended are to be deleted, failed ones after a while.
fn sift(
    input: &Input,
    node: &str,
    pods: &[Arc<Pod>],
    (backoff, clock): (&mut Backoff, Duration),
    plan: &mut Plan,
) -> Vec<Arc<Pod>> {
    let mut running = Vec::new();
    for pod in pods.iter().filter(|p| !pods::is_terminating(p)) {
        let key = Key::of(pod.as_ref());
        match pods::phase(pod) {
            "Failed" => {
                if let Some(wait) = backoff.check(uid_of(input.set), node, clock) {
                    plan.again = Some(plan.again.map_or(wait, |known| known.min(wait)));
                    continue;
                }
                let message = format!("Found failed daemon pod {key} on node {node}, will try to kill it");
                plan.events.push((Level::Warning, "FailedDaemonPod", message));
                plan.delete.push(Arc::clone(pod));
            }
            "Succeeded" => {
                let message = format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
                plan.events.push((Level::Normal, "SucceededDaemonPod", message));
                plan.delete.push(Arc::clone(pod));
            }
            _ => running.push(Arc::clone(pod)),
        }
    }
    running
}

impl Plan {
    /// A node that may have a pod: at most one, while surging one of each revision.
    fn settle(&mut self, input: &Input, node: &str, running: &[Arc<Pod>], should_run: bool) {
        if max_surge(input.set, 1) == 0 {
            self.delete.extend(running.iter().skip(1).cloned());
            return;
        }
        if running.is_empty() && should_run {
            self.create.push(node.to_owned());
        }
        if running.len() < 2 {
            return;
        }
        let (new, old): (Vec<_>, Vec<_>) = running.iter().partition(|pod| is_updated(pod, input.hash));
        self.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)).map(|pod| Arc::clone(pod)));
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!pods::is_ready(old) || is_available(input.set, new, input.now))
        {
            self.delete.push(Arc::clone(old));
        }
    }
}

/// Pods that wait for nodes which no longer exist; nobody else would end them.
fn of_lost_nodes<'a>(input: &'a Input) -> impl Iterator<Item = Arc<Pod>> + 'a {
    let nodes: HashSet<&str> = input.nodes.iter().map(|n| name_of(n.as_ref())).collect();
    let lost = input.pods.iter().filter(move |(name, _)| !nodes.contains(name.as_str())).flat_map(|(_, pods)| pods);
    lost.filter(|pod| pods::node_name(pod).is_none() && !pods::is_terminating(pod)).cloned()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub fn set(edit: impl FnOnce(&mut Value)) -> DaemonSet {
        let mut set = json!({"metadata": {"name": "d", "namespace": "n", "uid": "u"}, "spec": {"selector": {},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": {"spec": {"containers": []}}}});
        edit(&mut set);
        serde_json::from_value(set).unwrap()
    }

    pub fn node(name: &str) -> Arc<Node> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}})).unwrap())
    }

    /// A ready pod; `spec` is `name@node:revision`.
    pub fn pod(spec: &str, edit: impl FnOnce(&mut Value)) -> Arc<Pod> {
        let (name, rest) = spec.split_once('@').unwrap();
        let (node, revision) = rest.split_once(':').unwrap();
        let mut pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": {REVISION_LABEL: revision},
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        edit(&mut pod);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    pub fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|p| name_of(p.as_ref())).collect()
    }

    fn planned(set: &DaemonSet, nodes: &[Arc<Node>], pods: Vec<Arc<Pod>>) -> Plan {
        let pods = by_node(pods);
        let input = Input { set, nodes, pods: &pods, hash: "new", now: Timestamp::now() };
        plan(&input, &mut Backoff::default(), Duration::ZERO)
    }

    #[test]
    fn each_node_gets_one_pod_and_keeps_the_oldest() {
        let younger = |p: &mut Value| p["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
        let nodes = [node("a"), node("b"), node("c")];
        let ending = |p: &mut Value| p["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        let pods = vec![pod("y@a:new", younger), pod("x@a:new", |_| {}), pod("z@c:new", ending)];
        let plan = planned(&set(|_| {}), &nodes, pods);
        assert_eq!(plan.create, ["b"]);
        assert_eq!(names(&plan.delete), ["y"]);
    }

    #[test]
    fn failed_pods_go_at_once_and_then_wait_and_both_are_said() {
        let failed = pod("x@a:new", |p| p["status"]["phase"] = json!("Failed"));
        let done = pod("y@b:new", |p| p["status"]["phase"] = json!("Succeeded"));
        let pods = by_node([failed, done]);
        let (set, nodes) = (set(|_| {}), [node("a"), node("b")]);
        let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: "new", now: Timestamp::now() };
        let mut backoff = Backoff::default();
        let first = plan(&input, &mut backoff, Duration::ZERO);
        assert_eq!(names(&first.delete), ["x", "y"]);
        assert_eq!(first.events[0].2, "Found failed daemon pod n/x on node a, will try to kill it");
        assert_eq!(first.events[1].1, "SucceededDaemonPod");
        let second = plan(&input, &mut backoff, Duration::ZERO);
        assert_eq!((names(&second.delete), second.again), (vec!["y"], Some(Duration::from_secs(1))));
    }

    #[test]
    fn pods_leave_nodes_that_are_not_theirs_and_pods_for_lost_nodes_go() {
        let picky = set(|s| s["spec"]["template"]["spec"]["nodeSelector"] = json!({"x": "y"}));
        assert_eq!(names(&planned(&picky, &[node("a")], vec![pod("p@a:new", |_| {})]).delete), ["p"]);
        let waiting = pod("w@:new", |p| {
            p["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}]}}});
        });
        let plan = planned(&set(|_| {}), &[], vec![waiting, pod("bound@gone:new", |_| {})]);
        assert_eq!(names(&plan.delete), ["w"]);
    }

    #[test]
    fn while_surging_a_node_has_one_pod_of_each_revision_until_the_new_one_is_available() {
        let surging =
            set(|s| s["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxSurge": 1, "maxUnavailable": 0}));
        let unready = |p: &mut Value| p["status"]["conditions"] = json!([]);
        let delete = |pods: Vec<Arc<Pod>>| {
            let plan = planned(&surging, &[node("a")], pods);
            names(&plan.delete).join(",")
        };
        assert_eq!(delete(vec![pod("o@a:old", |_| {}), pod("n@a:new", unready)]), "");
        assert_eq!(delete(vec![pod("o@a:old", |_| {}), pod("n@a:new", |_| {})]), "o");
        assert_eq!(delete(vec![pod("o@a:old", unready), pod("n@a:new", unready)]), "o");
        assert_eq!(delete(vec![pod("n1@a:new", unready), pod("n2@a:new", unready)]), "n2");
        let failed = |p: &mut Value| p["status"]["phase"] = json!("Failed");
        assert_eq!(planned(&surging, &[node("a")], vec![pod("f@a:new", failed)]).create, ["a"]);
    }
}
