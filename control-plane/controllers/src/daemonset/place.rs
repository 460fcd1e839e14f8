//! Which nodes a daemon pod belongs on, and what it looks like there. Pure.
//!
//! Upstream counterpart: `NodeShouldRunDaemonPod`, `AddOrUpdateDaemonPodTolerations`,
//! `ReplaceDaemonSetPodNodeNameNodeAffinity`, `GetTargetNodeName`.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};

use crate::meta::{annotation, labels, name_of};
use crate::pod_control::generated_pod;
use crate::pods;
use crate::revisions::plan::REVISION_LABEL;
use crate::scheduler::filter::untolerated;
use kube_common::scheduling::affinity::{NAME_FIELD, is_wanted};

/// Counts changes of the template; kept by the API server, shown on pods.
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

/// Taints that no daemon pod minds: (key, effect).
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// One more on the host's network: such pods often bring the network up.
const TOLERATED_ON_HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Whether a node gets a pod, and may keep one that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// A new pod belongs there.
    pub should_run: bool,
    /// A running pod may stay.
    pub may_stay: bool,
}

/// The part of a template that decides about nodes.
#[derive(Debug)]
pub struct Placement {
    node_name: Option<String>,
    node_selector: BTreeMap<String, String>,
    required: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

fn tolerate(tolerations: &mut Vec<Toleration>, key: &str, effect: &str) {
    let same = |t: &&mut Toleration| {
        t.key.as_deref() == Some(key)
            && t.effect.as_deref() == Some(effect)
            && t.operator.as_deref() == Some("Exists")
            && t.value.as_deref().unwrap_or("").is_empty()
    };
    match tolerations.iter_mut().find(same) {
        Some(known) => known.toleration_seconds = None,
        None => tolerations.push(Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        }),
    }
}

/// The template's tolerations with those that every daemon pod gets.
fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    for (key, effect) in TOLERATED {
        tolerate(&mut tolerations, key, effect);
    }
    if spec.host_network == Some(true) {
        tolerate(&mut tolerations, TOLERATED_ON_HOST_NETWORK.0, TOLERATED_ON_HOST_NETWORK.1);
    }
    tolerations
}

impl Placement {
    /// Reads a set's template.
    pub fn of(set: &DaemonSet) -> Self {
        let spec = set.spec.template.spec.clone().unwrap_or_default();
        let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            required: required.map(|r| r.node_selector_terms.clone()),
            tolerations: tolerations(&spec),
            node_name: spec.node_name.filter(|name| !name.is_empty()),
            node_selector: spec.node_selector.unwrap_or_default(),
        }
    }

    /// Judges a node.
    pub fn fit(&self, node: &Node) -> Fit {
        let name = name_of(node);
        let is_named = self.node_name.as_deref().is_none_or(|wanted| wanted == name);
        if !is_named || !is_wanted(&self.node_selector, self.required.as_deref(), name, labels(node)) {
            return Fit { should_run: false, may_stay: false };
        }
        let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let repelled = |effects: &[&str]| untolerated(taints, &self.tolerations, effects).next().is_some();
        Fit { should_run: !repelled(&["NoSchedule", "NoExecute"]), may_stay: !repelled(&["NoExecute"]) }
    }
}

/// The node that a daemon pod is on or meant for.
pub fn target(pod: &Pod) -> Option<&str> {
    pods::node_name(pod).or_else(|| {
        let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
        let fields = required.node_selector_terms.iter().flat_map(|term| term.match_fields.iter().flatten());
        let mut named = fields.filter(|f| f.key == NAME_FIELD && f.operator == "In");
        named.find_map(|field| match field.values.as_deref() {
            Some([only]) => Some(only.as_str()),
            _ => None,
        })
    })
}

/// The template's affinity with its required node terms replaced by the node's name.
fn pinned(affinity: Option<Affinity>, node: &str) -> Affinity {
    let mut affinity = affinity.unwrap_or_default();
    let requirement = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
    affinity.node_affinity.get_or_insert_default().required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
    affinity
}

/// The pod of a node, of the revision with this hash.
pub fn pod(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let mut pod = generated_pod(set, &set.spec.template);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(REVISION_LABEL.to_owned(), hash.to_owned());
    if let Some(generation) = annotation(set, GENERATION_ANNOTATION).filter(|g| g.parse::<i64>().is_ok()) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_owned());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations = Some(tolerations(spec));
    spec.affinity = Some(pinned(spec.affinity.take(), node));
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(edit: impl FnOnce(&mut Value)) -> DaemonSet {
        let mut set = json!({"metadata": {"name": "d", "namespace": "n", "uid": "u",
            "annotations": {GENERATION_ANNOTATION: "3"}},
            "spec": {"selector": {}, "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": []}}}});
        edit(&mut set["spec"]["template"]["spec"]);
        serde_json::from_value(set).unwrap()
    }

    fn node(name: &str, taints: &[(&str, &str)]) -> Node {
        let taints: Vec<Value> = taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect})).collect();
        serde_json::from_value(
            json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": {"taints": taints}}),
        )
        .unwrap()
    }

    fn fit(set: &DaemonSet, node: &Node) -> (bool, bool) {
        let fit = Placement::of(set).fit(node);
        (fit.should_run, fit.may_stay)
    }

    #[test]
    fn taints_keep_new_pods_away_and_only_no_execute_drives_running_ones_out() {
        let plain = set(|_| {});
        assert_eq!(fit(&plain, &node("a", &[])), (true, true));
        assert_eq!(fit(&plain, &node("a", &[("k", "NoSchedule")])), (false, true));
        assert_eq!(fit(&plain, &node("a", &[("k", "NoExecute")])), (false, false));
        assert_eq!(fit(&plain, &node("a", &[("k", "PreferNoSchedule")])), (true, true));
        let troubled = node(
            "a",
            &[("node.kubernetes.io/unreachable", "NoExecute"), ("node.kubernetes.io/unschedulable", "NoSchedule")],
        );
        assert_eq!(fit(&plain, &troubled), (true, true));
        // Not even daemon pods are made on a node that is not ready, as upstream: only NoExecute is tolerated.
        assert_eq!(fit(&plain, &node("a", &[("node.kubernetes.io/not-ready", "NoSchedule")])), (false, true));
        let offline = node("a", &[("node.kubernetes.io/network-unavailable", "NoSchedule")]);
        assert_eq!(fit(&plain, &offline), (false, true));
        assert_eq!(fit(&set(|s| s["hostNetwork"] = json!(true)), &offline), (true, true));
    }

    #[test]
    fn selectors_affinity_and_names_decide() {
        let (a, b) = (node("a", &[]), node("b", &[]));
        let selecting = set(|s| s["nodeSelector"] = json!({"disk": "a"}));
        assert_eq!((fit(&selecting, &a), fit(&selecting, &b)), ((true, true), (false, false)));
        let named = set(|s| s["nodeName"] = json!("b"));
        assert_eq!((fit(&named, &a), fit(&named, &b)), ((false, false), (true, true)));
        let terms = json!([{"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["a"]}]}]);
        let near = set(|s| {
            s["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}});
        });
        assert_eq!((fit(&near, &a), fit(&near, &b)), ((false, false), (true, true)));
    }

    #[test]
    fn a_pod_is_pinned_labelled_and_tolerant() {
        let set = set(|s| {
            s["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 5}, {"key": "mine", "operator": "Exists"}]);
            s["affinity"] = json!({"podAffinity": {}, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": []}]}}});
        });
        let pod = pod(&set, "n1", "h");
        assert_eq!(target(&pod), Some("n1"));
        let labels = labels(&pod);
        assert_eq!((labels[REVISION_LABEL].as_str(), labels[GENERATION_LABEL].as_str()), ("h", "3"));
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("d-"));
        let spec = pod.spec.unwrap();
        assert!(spec.affinity.unwrap().pod_affinity.is_some());
        let tolerations = spec.tolerations.unwrap();
        assert_eq!(tolerations.len(), 7);
        assert_eq!(tolerations[0].toleration_seconds, None);
    }
}
