//! RuntimeClasses: a pod that names one is refused without it, and carries its overhead.

use anyhow::{Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::objects::{idle, pod};
use serde_json::{Value, json};

tests![unknown, deleted, with_overhead, without_overhead];

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

fn class(name: &str, more: Value) -> Value {
    let mut class = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": { "name": name }, "handler": "runc" });
    for (key, value) in more.as_object().into_iter().flatten() {
        class[key] = value.clone();
    }
    class
}

fn of_class(name: &str) -> Value {
    let mut pod = pod("classy", idle());
    pod["spec"]["runtimeClassName"] = json!(name);
    pod
}

fn refused(space: &keelson_tests::lab::Space<'_>, class: &str) -> Result<()> {
    let said = space.lab.api()?.refused(&http::Method::POST, &space.url("pods"), Some(&of_class(class)), 403)?;
    let message = said["message"].as_str().unwrap_or_default();
    let reason = format!("pod rejected: RuntimeClass \"{class}\" not found");
    ensure!(said["reason"] == "Forbidden" && message.contains(&reason), "{said}");
    Ok(())
}

// [sig-node] RuntimeClass should reject a Pod requesting a non-existent RuntimeClass [NodeConformance] [Conformance]
fn unknown(lab: &Lab) -> Result<()> {
    refused(&lab.quarter("class-unknown")?, "nonexistent")
}

// [sig-node] RuntimeClass should reject a Pod requesting a deleted RuntimeClass [NodeConformance] [Conformance]
fn deleted(lab: &Lab) -> Result<()> {
    let space = lab.quarter("class-deleted")?;
    lab.api()?.create(CLASSES, &class("short-lived", json!({})))?;
    lab.api()?.delete(&format!("{CLASSES}/short-lived"))?;
    lab.until("the class is gone", 30, || lab.api()?.absent(&format!("{CLASSES}/short-lived")).map(|()| true))?;
    refused(&space, "short-lived")
}

// [sig-node] RuntimeClass should schedule a Pod requesting a RuntimeClass without PodOverhead [NodeConformance] [Conformance]
fn without_overhead(lab: &Lab) -> Result<()> {
    let space = lab.quarter("class-plain")?;
    lab.api()?.create(CLASSES, &class("plain", json!({})))?;
    // More than the entry asks: it runs, because the lab's runtime has this handler.
    let pod = space.started(&of_class("plain"))?;
    ensure!(pod["spec"]["overhead"].is_null() && pod["spec"]["nodeName"] == "node-1", "{}", pod["spec"]);
    lab.api()?.delete(&format!("{CLASSES}/plain")).map(drop)
}

// [sig-node] RuntimeClass should schedule a Pod requesting a RuntimeClass and initialize its Overhead [NodeConformance] [Conformance]
fn with_overhead(lab: &Lab) -> Result<()> {
    let space = lab.quarter("class-overhead")?;
    let overhead = json!({ "cpu": "10m", "memory": "1Mi" });
    let scheduling = json!({ "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "key": "of-the-class", "operator": "Exists" }] });
    let more = json!({ "overhead": { "podFixed": overhead }, "scheduling": scheduling });
    lab.api()?.create(CLASSES, &class("heavy", more))?;
    let pod = space.make("pods", &of_class("heavy"))?;
    ensure!(pod["spec"]["overhead"] == overhead, "{}", pod["spec"]);
    ensure!(pod["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux", "{}", pod["spec"]);
    let tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    ensure!(tolerations.iter().any(|toleration| toleration["key"] == "of-the-class"), "{tolerations:?}");
    let pod = space.pod_until("classy", "is scheduled", |pod| pod["spec"]["nodeName"].is_string())?;
    ensure!(pod["spec"]["overhead"] == overhead, "{}", pod["spec"]);
    // An overhead that the class does not give is refused.
    let mut own = of_class("heavy");
    own["metadata"]["name"] = json!("own");
    own["spec"]["overhead"] = json!({ "cpu": "500m" });
    lab.api()?.refused(&http::Method::POST, &space.url("pods"), Some(&own), 403)?;
    lab.api()?.delete(&format!("{CLASSES}/heavy")).map(drop)
}
