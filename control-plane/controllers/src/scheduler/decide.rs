//! Picks the node for a pod, or says in upstream's words why there is none. Pure.
//!
//! Upstream counterpart: `schedulePod`, `selectHost`, `FitError`.

use std::collections::BTreeMap;

use super::filter::{Rejection, reject};
use super::model::{Cluster, NodeInfo, PodInfo};
use super::score::{combine, raw};

/// Below this number all nodes are judged (upstream's `minFeasibleNodesToFind`).
const FEW_NODES: usize = 100;
/// At least this share of many nodes is looked for (upstream's `minFeasibleNodesPercentageToFind`).
const LEAST_PERCENT: usize = 5;

/// What to do with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Bind it there.
    Node(String),
    /// It fits nowhere, for this reason (the message of condition and event).
    Nowhere(String),
}

/// How many nodes that fit are enough.
pub fn enough(nodes: usize) -> usize {
    if nodes < FEW_NODES {
        return nodes;
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(LEAST_PERCENT);
    (nodes * percent / 100).max(FEW_NODES)
}

/// Where the search starts and how ties are broken; changes with each pod so that the load is spread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turn {
    /// The first node to look at.
    pub start: usize,
    /// Which of the best nodes to take.
    pub tie: usize,
}

/// Decides for one pod. Returns the decision and how many nodes were looked at.
pub fn schedule(pod: &PodInfo, cluster: &Cluster, turn: Turn) -> (Decision, usize) {
    let count = cluster.len();
    if count == 0 {
        return (Decision::Nowhere("no nodes available to schedule pods".to_owned()), 0);
    }
    if pod.named_nodes.as_ref().is_some_and(Vec::is_empty) {
        return (Decision::Nowhere(format!("0/{count} nodes are available: pod affinity terms conflict.")), 0);
    }
    let wanted = enough(count);
    let mut fitting: Vec<&NodeInfo> = Vec::new();
    let mut rejections: Vec<Rejection> = Vec::new();
    let mut looked_at = 0;
    for step in 0..count {
        if fitting.len() >= wanted {
            break;
        }
        looked_at += 1;
        let Some(node) = cluster.at((turn.start + step) % count) else {
            continue;
        };
        match reject(pod, node) {
            None => fitting.push(node),
            Some(rejection) => rejections.push(rejection),
        }
    }
    if fitting.is_empty() {
        return (Decision::Nowhere(explain(count, &rejections)), looked_at);
    }
    let raws: Vec<_> = fitting.iter().map(|node| raw(pod, node, cluster)).collect();
    let scores = combine(&raws);
    let top = scores.iter().max().copied().unwrap_or(0);
    let best: Vec<&NodeInfo> = fitting.iter().zip(&scores).filter(|(_, s)| **s == top).map(|(n, _)| *n).collect();
    (Decision::Node(best[turn.tie % best.len()].name.clone()), looked_at)
}

fn histogram<'a>(nodes: usize, reasons: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    format!("0/{nodes} nodes are available: {}.", parts.join(", "))
}

fn explain(nodes: usize, rejections: &[Rejection]) -> String {
    let reasons = histogram(nodes, rejections.iter().flat_map(|r| &r.reasons).map(String::as_str));
    // Upstream adds what its plugins for dynamic resources and preemption found.
    let preemption = histogram(
        nodes,
        rejections.iter().map(|r| {
            if r.eviction_could_help {
                "No preemption victims found for incoming pod"
            } else {
                "Preemption is not helpful for scheduling"
            }
        }),
    );
    format!("{reasons} no new claims to deallocate, preemption: {preemption}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn node(name: &str, edit: impl FnOnce(&mut Value)) -> Node {
        let mut node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
        edit(&mut node);
        serde_json::from_value(node).unwrap()
    }

    fn pod(name: &str, edit: impl FnOnce(&mut Value)) -> PodInfo {
        let mut pod = json!({"metadata": {"namespace": "d", "name": name, "uid": name},
            "spec": {"containers": [{"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]}});
        edit(&mut pod);
        PodInfo::read(&serde_json::from_value::<Pod>(pod).unwrap())
    }

    fn cluster(nodes: &[Node]) -> Cluster {
        let mut cluster = Cluster::default();
        nodes.iter().for_each(|node| cluster.set_node(node));
        cluster
    }

    fn decide(pod: &PodInfo, cluster: &Cluster) -> Decision {
        schedule(pod, cluster, Turn::default()).0
    }

    fn plain(_: &mut Value) {}

    #[test]
    fn no_nodes() {
        let want = Decision::Nowhere("no nodes available to schedule pods".to_owned());
        assert_eq!(decide(&pod("p", plain), &Cluster::default()), want);
    }

    #[test]
    fn the_reasons_are_upstreams() {
        let taint = |n: &mut Value| n["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
        let cluster = cluster(&[
            node("a", taint),
            node("b", |n| n["spec"]["unschedulable"] = json!(true)),
            node("c", |n| n["status"]["allocatable"]["cpu"] = json!("100m")),
            node("d", |n| n["status"]["allocatable"]["pods"] = json!("0")),
        ]);
        let Decision::Nowhere(text) = decide(&pod("p", plain), &cluster) else { panic!() };
        assert_eq!(
            text,
            "0/4 nodes are available: 1 Insufficient cpu, 1 Too many pods, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. \
             no new claims to deallocate, preemption: 0/4 nodes are available: 1 No preemption victims found for incoming pod, 3 Preemption is not helpful for scheduling."
        );
    }

    #[test]
    fn selectors_ports_and_names() {
        let mut cluster = cluster(&[node("a", plain), node("b", |n| n["metadata"]["labels"]["disk"] = json!("ssd"))]);
        let on_ssd = pod("p", |p| p["spec"]["nodeSelector"] = json!({"disk": "ssd"}));
        assert_eq!(decide(&on_ssd, &cluster), Decision::Node("b".to_owned()));
        let with_port = |name: &str, ip: &str| {
            pod(name, |p| {
                p["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80, "hostIP": ip}]);
            })
        };
        cluster.place(&with_port("x", ""), "b");
        let Decision::Nowhere(text) = decide(
            &pod("q", |p| {
                p["spec"]["nodeSelector"] = json!({"disk": "ssd"});
                p["spec"]["containers"][0]["ports"] =
                    json!([{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}]);
            }),
            &cluster,
        ) else {
            panic!()
        };
        assert!(text.starts_with("0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 1 node(s) didn't match Pod's node affinity/selector."));
        let daemon = pod("d", |p| {
            p["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}}});
        });
        assert_eq!(decide(&daemon, &cluster), Decision::Node("a".to_owned()));
    }

    #[test]
    fn preferences_spread_and_images() {
        let mut two = cluster(&[node("a", plain), node("b", plain)]);
        two.place(&pod("x", plain), "a");
        assert_eq!(decide(&pod("p", plain), &two), Decision::Node("b".to_owned()));
        let likes_a = pod("p", |p| {
            p["spec"]["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference":
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}}]}});
        });
        assert_eq!(decide(&likes_a, &two), Decision::Node("a".to_owned()));
        let soft = |n: &mut Value| n["spec"]["taints"] = json!([{"key": "k", "effect": "PreferNoSchedule"}]);
        let tainted = cluster(&[node("a", soft), node("b", plain)]);
        assert_eq!(decide(&pod("p", plain), &tainted), Decision::Node("b".to_owned()));
        let has_image =
            |n: &mut Value| n["status"]["images"] = json!([{"names": ["nginx:latest"], "sizeBytes": 900_000_000}]);
        let imaged = cluster(&[node("a", plain), node("b", has_image)]);
        assert_eq!(decide(&pod("p", plain), &imaged), Decision::Node("b".to_owned()));
    }

    #[test]
    fn large_clusters_are_sampled() {
        assert_eq!((enough(50), enough(100), enough(500), enough(5000), enough(20_000)), (50, 100, 230, 500, 1000));
    }

    proptest! {
        /// Whatever the order, no node takes more than it has, and a pod is refused only if it fits nowhere.
        #[test]
        fn nodes_are_never_overcommitted(pods in proptest::collection::vec((1i64..3000, 0usize..97, 0usize..7), 1..60), nodes in 1usize..6) {
            let list: Vec<Node> = (0..nodes).map(|i| node(&format!("n{i}"), plain)).collect();
            let mut cluster = cluster(&list);
            for (i, (cpu, start, tie)) in pods.into_iter().enumerate() {
                let info = pod(&i.to_string(), |p| p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(format!("{cpu}m")));
                match schedule(&info, &cluster, Turn { start, tie }).0 {
                    Decision::Node(name) => cluster.place(&info, &name),
                    Decision::Nowhere(_) => {
                        prop_assert!((0..cluster.len()).all(|n| reject(&info, cluster.at(n).unwrap()).is_some()));
                    }
                }
            }
            for n in 0..cluster.len() {
                let node = cluster.at(n).unwrap();
                prop_assert!(node.requested.milli_cpu <= node.allocatable.milli_cpu);
                prop_assert!(node.requested.memory <= node.allocatable.memory);
            }
        }
    }
}
