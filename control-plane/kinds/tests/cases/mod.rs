//! The tables of wrong and of odd but good pods, read the same way by every test that runs them: here through the API's rules, in the
//! agent as manifests, in the black-box suite against a running cluster.
//!
//! A case gives parts that are merged into the smallest pod: `meta`, `spec`, `container` (the only one, `c`), `init` (an init container
//! `i`) and `volume` (a volume `v`). `{a*N}` in a text stands for N times the letter a.

// Each of the tests that include this file uses a part of it.
#![allow(dead_code)]

use serde_json::{Value, json};

const WRONG: &str = include_str!("wrong.yaml");
const UNDECODABLE: &str = include_str!("undecodable.yaml");
const VALID: &str = include_str!("valid.yaml");

/// A pod and what is to be said of it.
pub struct Case {
    /// What the case gives, for messages of tests.
    pub shown: String,
    /// The pod.
    pub pod: Value,
    /// Upstream's errors, `field: message`, in any order.
    pub says: Vec<String>,
    /// The one field of an undecodable pod, as manifests' errors write it.
    pub field: String,
    /// Whether a node judges it alike as a manifest: it refers to nothing of the API, and to no other node.
    pub is_static: bool,
    /// Whether the API answers so: what admission refuses before is out.
    pub is_api: bool,
    /// Whether a template of a workload is judged alike.
    pub is_template: bool,
}

impl Case {
    /// The fields that the errors name.
    pub fn fields(&self) -> Vec<&str> {
        self.says.iter().map(|said| said.split(": ").next().unwrap_or_default()).collect()
    }
}

/// Pods that decode and are refused.
pub fn wrong() -> Vec<Case> {
    read(WRONG)
}

/// Pods with values of the wrong type; `says` is a part of the one message.
pub fn undecodable() -> Vec<Case> {
    read(UNDECODABLE)
}

/// Pods that look wrong and are not.
pub fn valid() -> Vec<Case> {
    read(VALID)
}

fn read(table: &str) -> Vec<Case> {
    let documents = kube_common::yaml::parse_documents(table).expect("the table is YAML");
    let cases = documents[0].to_json();
    cases.as_array().expect("a list").iter().map(case).collect()
}

fn case(case: &Value) -> Case {
    let give = &case["give"];
    let holds = |key: &str| case[key] != false;
    let says = case["says"].as_array().into_iter().flatten().filter_map(Value::as_str).map(expanded).collect();
    Case {
        shown: give.to_string(),
        pod: pod(&with_expanded(give)),
        says,
        field: case["field"].as_str().unwrap_or_default().to_owned(),
        is_static: holds("static"),
        is_api: holds("api"),
        is_template: holds("template"),
    }
}

fn pod(give: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    merge(&mut pod["metadata"], &give["meta"]);
    merge(&mut pod["spec"]["containers"][0], &give["container"]);
    if !give["init"].is_null() {
        pod["spec"]["initContainers"] = json!([{"name": "i", "image": "i"}]);
        merge(&mut pod["spec"]["initContainers"][0], &give["init"]);
    }
    if !give["volume"].is_null() {
        pod["spec"]["volumes"] = json!([{"name": "v"}]);
        merge(&mut pod["spec"]["volumes"][0], &give["volume"]);
    }
    merge(&mut pod["spec"], &give["spec"]);
    pod
}

fn merge(to: &mut Value, from: &Value) {
    for (key, value) in from.as_object().into_iter().flatten() {
        to[key] = value.clone();
    }
}

fn with_expanded(value: &Value) -> Value {
    match value {
        Value::String(text) => expanded(text).into(),
        Value::Array(items) => items.iter().map(with_expanded).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (expanded(key), with_expanded(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

fn expanded(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, (count, after))) =
        rest.split_once("{a*").and_then(|(before, tail)| Some((before, tail.split_once('}')?)))
    {
        out.push_str(before);
        out.push_str(&"a".repeat(count.parse().expect("a number of letters")));
        rest = after;
    }
    out + rest
}

/// Pods of unusual size, which are good.
pub fn huge() -> Vec<(&'static str, Value)> {
    let base = || pod(&Value::Null);
    let (mut containers, mut env, mut volumes) = (base(), base(), base());
    containers["spec"]["containers"] = (0..1000).map(|i| json!({"name": format!("c{i}"), "image": "i"})).collect();
    env["spec"]["containers"][0]["env"] =
        (0..10_000).map(|i| json!({"name": format!("E{i}"), "value": format!("$(E{})", (i + 1) % 10_000)})).collect();
    volumes["spec"]["volumes"] = (0..2000).map(|i| json!({"name": format!("v{i}"), "emptyDir": {}})).collect();
    volumes["spec"]["containers"][0]["volumeMounts"] =
        (0..2000).map(|i| json!({"name": format!("v{i}"), "mountPath": format!("/v{i}")})).collect();
    vec![("1,000 containers", containers), ("10,000 variables in a circle", env), ("2,000 volumes", volumes)]
}
