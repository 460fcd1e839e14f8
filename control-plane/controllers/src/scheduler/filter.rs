//! Why a node cannot take a pod. Pure.
//!
//! Upstream counterpart: the Filter half of the plugins NodeUnschedulable, NodeName, TaintToleration, NodeAffinity,
//! NodePorts and NodeResourcesFit, asked in this order; the first that objects gives the reasons.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::model::{NodeInfo, PodInfo};
use kube_common::scheduling::affinity::{is_tolerated, is_wanted};

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// In upstream's words.
    pub reasons: Vec<String>,
    /// Evicting pods there could help (upstream's `Unschedulable`, not `UnschedulableAndUnresolvable`).
    pub eviction_could_help: bool,
}

fn never(reason: &str) -> Option<Rejection> {
    Some(Rejection { reasons: vec![reason.to_owned()], eviction_could_help: false })
}

/// Why the node cannot take the pod; `None` if it can.
pub fn reject(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    named(pod, node)
        .or_else(|| cordoned(pod, node))
        .or_else(|| tainted(pod, node))
        .or_else(|| unwanted(pod, node))
        .or_else(|| ports_taken(pod, node))
        .or_else(|| no_room(pod, node))
}

/// Upstream narrows the nodes down before any filter if the pod names them.
fn named(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    let names = pod.named_nodes.as_ref()?;
    if names.contains(&node.name) {
        return None;
    }
    never("node(s) didn't satisfy plugin(s) [NodeAffinity]")
}

fn cordoned(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if !node.unschedulable || is_tolerated(&pod.tolerations, &cordon) {
        return None;
    }
    never("node(s) were unschedulable")
}

/// The taints of this effect that nothing covers.
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &'a [Toleration],
    effects: &'a [&str],
) -> impl Iterator<Item = &'a Taint> {
    let relevant = taints.iter().filter(move |taint| effects.contains(&taint.effect.as_str()));
    relevant.filter(move |taint| !is_tolerated(tolerations, taint))
}

fn tainted(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    untolerated(&node.taints, &pod.tolerations, &["NoSchedule", "NoExecute"]).next()?;
    never("node(s) had untolerated taint(s)")
}

fn unwanted(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    if is_wanted(&pod.node_selector, pod.required.as_deref(), &node.name, &node.labels) {
        return None;
    }
    never("node(s) didn't match Pod's node affinity/selector")
}

fn ports_taken(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    if !pod.ports.iter().any(|port| node.holds_port(port)) {
        return None;
    }
    Some(Rejection {
        reasons: vec!["node(s) didn't have free ports for the requested pod ports".to_owned()],
        eviction_could_help: true,
    })
}

fn no_room(pod: &PodInfo, node: &NodeInfo) -> Option<Rejection> {
    let mut reasons = Vec::new();
    let mut eviction_could_help = true;
    let count = i64::try_from(node.pod_count()).unwrap_or(i64::MAX);
    if count + 1 > node.allocatable.pods {
        reasons.push("Too many pods".to_owned());
    }
    let mut check = |name: &str, wanted: i64, used: i64, total: i64| {
        if wanted > 0 && wanted > total - used {
            reasons.push(format!("Insufficient {name}"));
            eviction_could_help &= wanted <= total;
        }
    };
    let (want, used, total) = (&pod.requests, &node.requested, &node.allocatable);
    check("cpu", want.milli_cpu, used.milli_cpu, total.milli_cpu);
    check("memory", want.memory, used.memory, total.memory);
    check("ephemeral-storage", want.ephemeral, used.ephemeral, total.ephemeral);
    for (name, amount) in &want.other {
        let of = |list: &kube_common::scheduling::resources::Resources| list.other.get(name).copied().unwrap_or(0);
        check(name, *amount, of(used), of(total));
    }
    (!reasons.is_empty()).then_some(Rejection { reasons, eviction_could_help })
}
