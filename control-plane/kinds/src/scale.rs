//! The `scale` subresource and bindings: objects that stand for a part of another.
//!
//! Upstream counterparts: `pkg/registry/apps/*/storage` and `BindingREST`.

use serde_json::{Value, json};

use crate::error::{ApiError, FieldError};
use crate::resource::Resource;
use crate::{lookup, time, val};

/// The `autoscaling/v1` Scale of a deployment, replica set, stateful set, replication controller or custom object.
#[must_use]
pub fn from_object(res: &Resource, obj: &Value) -> Value {
    let mut metadata = json!({});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = obj.get("metadata").and_then(|m| m.get(key)) {
            val::set(&mut metadata, key, value.clone());
        }
    }
    if let Some(version) = res.strategy.custom() {
        let (wanted, present, selector) = version.scale().map(|paths| paths.read(obj)).unwrap_or_default();
        return scale(metadata, wanted, present, selector);
    }
    let selector = match val::at(obj, "spec.selector") {
        Some(labels) if res.group.is_empty() => selector_query(&json!({"matchLabels": labels})),
        Some(selector) => selector_query(selector),
        None => String::new(),
    };
    let replicas = |path: &str| val::int(obj, path).unwrap_or(0);
    scale(metadata, replicas("spec.replicas"), replicas("status.replicas"), selector)
}

fn scale(metadata: Value, wanted: i64, present: i64, selector: String) -> Value {
    let mut status = json!({"replicas": present});
    if !selector.is_empty() {
        val::set(&mut status, "selector", selector);
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": wanted},
        "status": status,
    })
}

/// A label selector in the form of a query parameter.
fn selector_query(selector: &Value) -> String {
    let text = crate::table::selector_text(Some(selector));
    if text == "<none>" { String::new() } else { text }
}

/// The object with the replicas of `scale`.
///
/// # Errors
/// 400 when the name is another's, 409 when the resourceVersion or uid is, 422 for a negative number.
pub fn apply(res: &Resource, obj: &Value, scale: &Value) -> Result<Value, ApiError> {
    let name = val::text(obj, "metadata.name");
    let given = val::text(scale, "metadata.name");
    if !given.is_empty() && given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let version = val::text(scale, "metadata.resourceVersion");
    if !version.is_empty() && version != val::text(obj, "metadata.resourceVersion") {
        return Err(ApiError::modified(res, name));
    }
    let replicas = val::int(scale, "spec.replicas").unwrap_or(0);
    if replicas < 0 {
        let error = FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", name, &[error]));
    }
    let mut out = obj.clone();
    match res.strategy.custom() {
        Some(version) => version.scale().into_iter().for_each(|paths| paths.write(&mut out, replicas)),
        None => val::set(val::child(&mut out, "spec"), "replicas", replicas),
    }
    Ok(out)
}

/// The pod with the node of a `Binding` and the `PodScheduled` condition.
///
/// # Errors
/// 409 if the pod is assigned, gated or being deleted; 422 if the binding names no node.
pub fn bind(pod: &Value, binding: &Value, now: jiff::Timestamp) -> Result<Value, ApiError> {
    let name = val::text(pod, "metadata.name");
    let node = val::text(binding, "target.name");
    let kind = val::text(binding, "target.kind");
    let mut errors = Vec::new();
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
    }
    if node.is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid("", "Binding", name, &errors));
    }
    let refuse = |why: &str| {
        lookup("", "v1", "pods").map_or_else(|| ApiError::internal(why), |pods| pods_conflict(pods, name, why))
    };
    let uid = val::text(binding, "metadata.uid");
    if !uid.is_empty() && uid != val::text(pod, "metadata.uid") {
        let found = val::text(pod, "metadata.uid");
        return Err(refuse(&format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}")));
    }
    if val::at(pod, "metadata.deletionTimestamp").is_some() {
        return Err(refuse(&format!("pod {name} is being deleted, cannot be assigned to a host")));
    }
    let assigned = val::text(pod, "spec.nodeName");
    if !assigned.is_empty() {
        return Err(refuse(&format!("pod {name} is already assigned to node \"{assigned}\"")));
    }
    if !val::list(pod, "spec.schedulingGates").is_empty() {
        return Err(refuse(&format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    let mut out = pod.clone();
    val::set(val::child(&mut out, "spec"), "nodeName", node);
    for (key, value) in val::entries(binding, "metadata.annotations") {
        val::set(val::child(val::child(&mut out, "metadata"), "annotations"), key, value.clone());
    }
    let condition = json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": time::seconds(now),
    });
    set_condition(val::child(&mut out, "status"), condition);
    Ok(out)
}

fn pods_conflict(pods: &Resource, name: &str, why: &str) -> ApiError {
    ApiError::conflict(pods, name, why)
}

fn set_condition(status: &mut Value, condition: Value) {
    let mut conditions = val::list(status, "conditions").to_vec();
    conditions.retain(|c| c.get("type") != condition.get("type"));
    conditions.push(condition);
    val::set(status, "conditions", conditions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales() {
        let deployments = lookup("apps", "v1", "deployments").expect("deployments");
        let obj = json!({
            "metadata": {"name": "d", "namespace": "n", "resourceVersion": "7"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "2", "a": "1"}}},
            "status": {"replicas": 2},
        });
        let scale = from_object(deployments, &obj);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"], json!({"replicas": 2, "selector": "a=1,b=2"}));
        let mut wanted = scale;
        wanted["spec"]["replicas"] = json!(5);
        assert_eq!(apply(deployments, &obj, &wanted).expect("applies")["spec"]["replicas"], 5);
        wanted["metadata"]["resourceVersion"] = json!("6");
        assert_eq!(apply(deployments, &obj, &wanted).expect_err("stale").code, 409);
        let negative = apply(deployments, &obj, &json!({"spec": {"replicas": -1}})).expect_err("negative");
        assert_eq!(negative.code, 422);
    }

    #[test]
    fn bindings() {
        let now = "2026-01-02T03:04:05Z".parse().expect("time");
        let pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False"}]}});
        let binding = json!({"target": {"kind": "Node", "name": "n1"}});
        let bound = bind(&pod, &binding, now).expect("binds");
        assert_eq!(bound["spec"]["nodeName"], "n1");
        assert_eq!(bound["status"]["conditions"].as_array().expect("list").len(), 1);
        assert_eq!(bound["status"]["conditions"][0]["status"], "True");
        let again = bind(&bound, &binding, now).expect_err("assigned");
        assert_eq!(
            again.message,
            "Operation cannot be fulfilled on pods \"p\": pod p is already assigned to node \"n1\""
        );
        assert_eq!(bind(&pod, &json!({"target": {}}), now).expect_err("no node").code, 422);
    }
}
