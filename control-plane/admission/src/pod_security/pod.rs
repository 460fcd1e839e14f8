//! A pod as the checks see it, and the phrases that their texts share.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json::{items, text};

/// A pod, or the pod in a controller's template.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub annotations: &'a Value,
    pub spec: &'a Value,
}

impl<'a> Pod<'a> {
    pub fn new(metadata: &'a Value, spec: &'a Value) -> Self {
        Self { annotations: &metadata["annotations"], spec }
    }

    /// In upstream's order: init, regular, ephemeral.
    pub fn containers(self) -> impl Iterator<Item = &'a Value> {
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| items(&self.spec[list]))
    }

    /// The names of the containers that are so.
    pub fn named(self, mut so: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| so(container)).map(|container| text(&container["name"])).collect()
    }

    pub fn windows(self) -> bool {
        self.spec["os"]["name"] == "windows"
    }

    /// Root in its own user namespace is nobody on the node.
    pub fn user_namespace(self) -> bool {
        self.spec["hostUsers"] == false
    }
}

pub(super) fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `"a", "b"`, nothing escaped.
pub(super) fn quoted<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("\"{}\"", name.as_ref())).collect();
    quoted.join(", ")
}

/// `container "a"`, `containers "a", "b"`.
pub(super) fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// Who set something: `pod and container "a"`; nothing if nobody did.
pub(super) fn setters(pod: bool, names: &[&str]) -> Option<String> {
    match (pod, names) {
        (false, []) => None,
        (true, []) => Some("pod".to_owned()),
        (false, names) => Some(containers(names)),
        (true, names) => Some(format!("pod and {}", containers(names))),
    }
}

/// Where a setting may stand: the pod's security context and the containers' ones.
///
/// `bad` says of one security context whether it is at fault, and may remember why.
pub(super) fn at_fault<'a>(pod: Pod<'a>, mut bad: impl FnMut(&'a Value) -> bool) -> Option<String> {
    let in_pod = bad(&pod.spec["securityContext"]);
    let in_containers = pod.named(|container| bad(&container["securityContext"]));
    setters(in_pod, &in_containers)
}

/// A sorted set of texts, each once.
pub(super) type Texts = BTreeSet<String>;
