//! Whether a pod may run on this node, as upstream's kubelet decides it for pods that a scheduler has not looked at, or whose node
//! has changed since. Pure.
//!
//! Upstream counterpart: `pkg/kubelet/lifecycle/predicate.go`, with its reasons and messages.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Taint};
use kube_common::scheduling::affinity::{is_tolerated, is_wanted};
use kube_common::scheduling::resources::{Resources, pod_requests};

use crate::pod;

/// A port of the node that a pod takes: address, protocol, number.
pub(super) type HostPort = (String, String, i32);

/// What one pod takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) requests: Resources,
    pub(super) ports: BTreeSet<HostPort>,
    pub(super) priority: i32,
    pub(super) critical: bool,
    /// It is being ended: what it takes will be free.
    pub(super) ending: bool,
}

impl Share {
    pub(super) fn of(pod: &Pod) -> Self {
        let spec = pod::spec(pod);
        let mut ports = BTreeSet::new();
        let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
        for port in pod::main_containers(pod).iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()) {
            if let Some(number) = port.host_port.filter(|number| *number > 0) {
                let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
                ports.insert((port.host_ip.clone().unwrap_or_default(), protocol, number));
            }
        }
        Self {
            requests: pod_requests(&spec),
            ports,
            priority: spec.priority.unwrap_or(0),
            critical: pod::is_critical(pod),
            ending: false,
        }
    }
}

/// What the node is.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// What pods may use in all.
    pub allocatable: Resources,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
}

/// Why a pod may not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `OutOfcpu`, `NodeAffinity`, …
    pub reason: String,
    /// Details.
    pub message: String,
}

/// A resource that is short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) resource: String,
    pub(super) requested: i64,
    pub(super) used: i64,
    pub(super) capacity: i64,
}

impl Lack {
    pub(super) fn refusal(&self) -> Refusal {
        let Self { resource, requested, used, capacity } = self;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Refusal { reason: format!("OutOf{resource}"), message }
    }
}

/// The first resource of which the node has not enough beside these pods. Extended resources that it does not have are nobody's here.
pub(super) fn lack<'a>(share: &Share, others: impl Iterator<Item = &'a Share>, facts: &NodeFacts) -> Option<Lack> {
    let (mut used, mut pods) = (Resources::default(), 0);
    for other in others {
        used.add(&other.requests);
        pods += 1;
    }
    let (want, have) = (&share.requests, &facts.allocatable);
    let short = |resource: &str, requested: i64, used: i64, capacity: i64| {
        let resource = resource.to_owned();
        (requested > 0 && requested > capacity - used).then_some(Lack { resource, requested, used, capacity })
    };
    short("pods", 1, pods, have.pods)
        .or_else(|| short("cpu", want.milli_cpu, used.milli_cpu, have.milli_cpu))
        .or_else(|| short("memory", want.memory, used.memory, have.memory))
        .or_else(|| short("ephemeral-storage", want.ephemeral, used.ephemeral, have.ephemeral))
        .or_else(|| {
            want.other.iter().find_map(|(name, amount)| {
                let capacity = have.other.get(name)?;
                short(name, *amount, used.other.get(name).copied().unwrap_or(0), *capacity)
            })
        })
}

/// What of the node itself does not suit the pod.
pub(super) fn unsuited<'a>(
    pod: &Pod,
    share: &Share,
    others: impl Iterator<Item = &'a Share>,
    facts: &NodeFacts,
) -> Option<Refusal> {
    let spec = pod::spec(pod);
    let refusal = |reason: &str, message: String| Some(Refusal { reason: reason.to_owned(), message });
    let predicate = |name: &str, why: &str| refusal(name, format!("Predicate {name} failed: {why}"));
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return refusal("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS".into());
    }
    let selector = spec.node_selector.clone().unwrap_or_default();
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let terms = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    if !is_wanted(&selector, terms.map(|t| t.node_selector_terms.as_slice()), &facts.name, &facts.labels) {
        return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    if spec.node_name.as_ref().is_some_and(|name| !name.is_empty() && *name != facts.name) {
        return predicate("NodeName", "node(s) didn't match the requested node name");
    }
    let any = |address: &str| address.is_empty() || address == "0.0.0.0";
    let clash = |a: &HostPort, b: &HostPort| a.1 == b.1 && a.2 == b.2 && (a.0 == b.0 || any(&a.0) || any(&b.0));
    if others.flat_map(|other| &other.ports).any(|taken| share.ports.iter().any(|port| clash(port, taken))) {
        return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let barred = facts.taints.iter().any(|taint| taint.effect == "NoExecute" && !is_tolerated(tolerations, taint));
    if barred && !pod::is_static(pod) {
        return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate");
    }
    None
}

/// Whether a pod may be ended for a critical one (upstream's `Preemptable`).
fn yields(other: &Share, critical: &Share) -> bool {
    let system = |share: &Share| share.priority >= pod::SYSTEM_CRITICAL_PRIORITY;
    !other.critical || (system(other) && system(critical) && other.priority < critical.priority)
}

/// Which pods must go so that a critical one fits: those that are not critical, and among the system's those of lower priority; of lowest priority first,
/// and no more than needed. `None` when all of them would not do.
pub(super) fn victims(share: &Share, others: &BTreeMap<String, Share>, facts: &NodeFacts) -> Option<Vec<String>> {
    let mut weaker: Vec<(&String, &Share)> = others.iter().filter(|(_, o)| !o.ending && yields(o, share)).collect();
    // Of equal ones the largest first: fewer go.
    weaker.sort_by_key(|(_, o)| {
        (o.priority, std::cmp::Reverse(o.requests.milli_cpu), std::cmp::Reverse(o.requests.memory))
    });
    let mut chosen: Vec<&String> = Vec::new();
    let short = |chosen: &[&String]| {
        let rest = others.iter().filter(|(uid, other)| !other.ending && !chosen.contains(uid)).map(|(_, other)| other);
        lack(share, rest, facts).is_some()
    };
    for (uid, _) in &weaker {
        if !short(&chosen) {
            break;
        }
        chosen.push(uid);
    }
    if short(&chosen) {
        return None;
    }
    // A late large one may have made early small ones needless.
    for uid in chosen.clone() {
        let without: Vec<&String> = chosen.iter().copied().filter(|other| *other != uid).collect();
        if !short(&without) {
            chosen = without;
        }
    }
    Some(chosen.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn asks(cpu: &str) -> Pod {
        pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}))
    }

    fn facts() -> NodeFacts {
        let list =
            serde_json::from_value(json!({"cpu": "2", "memory": "1Gi", "pods": "3", "example.com/x": "1"})).unwrap();
        let labels = [("zone".to_owned(), "a".to_owned())].into();
        let taints =
            serde_json::from_value(json!([{"key": "k", "effect": "NoExecute"}, {"key": "s", "effect": "NoSchedule"}]))
                .unwrap();
        NodeFacts { name: "n".into(), allocatable: Resources::read(Some(&list)), labels, taints }
    }

    #[test]
    fn what_is_short_is_named_with_its_amounts() {
        let others = [Share::of(&asks("500m")), Share::of(&asks("1"))];
        let lacks = |pod: &Pod| lack(&Share::of(pod), others.iter(), &facts()).map(|lack| lack.refusal());
        assert_eq!(lacks(&asks("500m")), None);
        let refusal = lacks(&asks("501m")).unwrap();
        assert_eq!(refusal.reason, "OutOfcpu");
        assert_eq!(
            refusal.message,
            "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"
        );
        let extended = |name: &str, amount: &str| {
            pod(json!({"containers": [{"name": "c", "resources": {"requests": {name: amount}}}]}))
        };
        assert_eq!(lacks(&extended("example.com/x", "2")).unwrap().reason, "OutOfexample.com/x");
        assert_eq!(lacks(&extended("example.com/unknown", "2")), None);
        let three = [Share::default(), Share::default(), Share::default()];
        assert_eq!(lack(&Share::default(), three.iter(), &facts()).unwrap().refusal().reason, "OutOfpods");
    }

    #[test]
    fn a_node_that_does_not_suit_is_named_by_its_predicate() {
        let tolerate = json!([{"key": "k", "operator": "Exists"}]);
        let taken =
            Share::of(&pod(json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]})));
        let port =
            |address: &str| json!([{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": address}]}]);
        for (spec, reason) in [
            (json!({"tolerations": tolerate}), None),
            (json!({}), Some("TaintToleration")),
            (json!({"tolerations": tolerate, "os": {"name": "windows"}}), Some("PodOSNotSupported")),
            (json!({"tolerations": tolerate, "nodeSelector": {"zone": "b"}}), Some("NodeAffinity")),
            (json!({"tolerations": tolerate, "nodeSelector": {"zone": "a"}, "nodeName": "n"}), None),
            (json!({"tolerations": tolerate, "nodeName": "m"}), Some("NodeName")),
            (json!({"tolerations": tolerate, "containers": port("10.0.0.1")}), Some("NodePorts")),
            (json!({"tolerations": tolerate, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}), None),
        ] {
            let mut spec = spec;
            let containers = spec.get("containers").cloned().unwrap_or_else(|| json!([]));
            spec["containers"] = containers;
            let pod = pod(spec.clone());
            let said = unsuited(&pod, &Share::of(&pod), [taken.clone()].iter(), &facts()).map(|refusal| refusal.reason);
            assert_eq!(said.as_deref(), reason, "{spec}");
        }
    }

    #[test]
    fn a_critical_pod_displaces_as_few_as_will_do() {
        let critical = Share { priority: 2_000_000_000, critical: true, ..Share::of(&asks("1500m")) };
        let mut others: BTreeMap<String, Share> = [("a", "200m"), ("b", "1"), ("c", "800m")]
            .map(|(name, cpu)| (name.to_owned(), Share::of(&asks(cpu))))
            .into();
        let facts = NodeFacts { allocatable: Resources { pods: 9, ..facts().allocatable }, ..facts() };
        // 200m, 1 and 800m fill both cores; 1500m need 1 and 800m to go, not the small one.
        assert_eq!(victims(&critical, &others, &facts).unwrap(), ["b", "c"]);
        others.get_mut("b").unwrap().priority = 5;
        others.get_mut("c").unwrap().critical = true;
        assert_eq!(victims(&critical, &others, &facts), None);
        let small = Share { requests: Share::of(&asks("100m")).requests, ..critical };
        assert_eq!(victims(&small, &others, &facts).unwrap(), ["a"]);
        // A static pod without a priority displaces others whatever theirs is; a node's part displaces a cluster's.
        others.get_mut("a").unwrap().priority = 1000;
        let fixed = Share { priority: 0, ..small };
        assert_eq!(victims(&fixed, &others, &facts).unwrap(), ["b"]);
        let cluster = Share { priority: 2_000_000_000, critical: true, ..Share::of(&asks("2")) };
        let node = Share { priority: 2_000_001_000, critical: true, ..Share::of(&asks("1")) };
        let only: BTreeMap<String, Share> = [("k".to_owned(), cluster.clone())].into();
        assert_eq!(victims(&node, &only, &facts).unwrap(), ["k"]);
        assert_eq!(victims(&cluster, &[("n".to_owned(), node)].into(), &facts), None);
    }
}
