//! What an update of a pod may change.
//!
//! Upstream counterpart: `ValidatePodUpdate`, `ValidatePodStatusUpdate`, `ValidatePodEphemeralContainersUpdate`, `ValidatePodResize`.

use serde_json::{Value, json};

use crate::error::FieldError;
use crate::strategy::Part;
use crate::val;

/// Marks the API's view of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Validates `new` against `old` for one part.
pub(super) fn validate(new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
    match part {
        Part::Main => main(new, old),
        Part::Status => status(new, old),
        Part::Other("ephemeralcontainers") => ephemeral(new, old),
        Part::Other("resize") => resize(new, old),
        Part::Other(_) => Vec::new(),
    }
}

fn main(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in ["containers", "initContainers"] {
        if val::list(new, &format!("spec.{key}")).len() != val::list(old, &format!("spec.{key}")).len() {
            errors.push(FieldError::forbidden(format!("spec.{key}"), "pod updates may not add or remove containers"));
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    deadline(new, old, &mut errors);
    tolerations(new, old, &mut errors);
    gates(new, old, &mut errors);
    let mut munged = new.get("spec").cloned().unwrap_or_else(|| json!({}));
    let empty = json!({});
    let before = old.get("spec").unwrap_or(&empty);
    for key in ["containers", "initContainers"] {
        let images: Vec<Option<Value>> = val::list(before, key).iter().map(|c| c.get("image").cloned()).collect();
        for (container, image) in val::list_mut(&mut munged, key).zip(images) {
            match image {
                Some(image) => val::set(container, "image", image),
                None => {
                    val::remove(container, "image");
                }
            }
        }
    }
    val::carry(&mut munged, before, "activeDeadlineSeconds");
    val::carry(&mut munged, before, "tolerations");
    let negative = val::int(before, "terminationGracePeriodSeconds").is_some_and(|n| n < 0);
    if negative && val::int(&munged, "terminationGracePeriodSeconds") == Some(1) {
        val::carry(&mut munged, before, "terminationGracePeriodSeconds");
    }
    if !val::list(before, "schedulingGates").is_empty() {
        // While a pod is gated its gates may go, and its node selector and affinity may get narrower.
        for key in ["schedulingGates", "nodeSelector", "affinity"] {
            val::carry(&mut munged, before, key);
        }
    }
    if munged != *before {
        errors.push(FieldError::forbidden("spec", format!("{ONLY}\n{}", difference(&munged, before))));
    }
    errors
}

/// The fields of the spec that differ, for the message.
fn difference(new: &Value, old: &Value) -> String {
    let keys: std::collections::BTreeSet<&String> =
        [new, old].into_iter().filter_map(Value::as_object).flat_map(serde_json::Map::keys).collect();
    let changed: Vec<&str> =
        keys.into_iter().filter(|key| new.get(*key) != old.get(*key)).map(String::as_str).collect();
    format!("changed: {}", changed.join(", "))
}

fn deadline(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let (before, after) = (val::int(old, "spec.activeDeadlineSeconds"), val::int(new, "spec.activeDeadlineSeconds"));
    match (before, after) {
        (Some(before), Some(after)) if after > before => errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            after,
            "must be less than or equal to previous value",
        )),
        (Some(_), None) => errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            Value::Null,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
}

fn tolerations(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let after = val::list(new, "spec.tolerations");
    let stripped = |t: &Value| {
        let mut t = t.clone();
        val::remove(&mut t, "tolerationSeconds");
        t
    };
    let kept = val::list(old, "spec.tolerations").iter().all(|t| after.iter().any(|a| stripped(a) == stripped(t)));
    if !kept {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

fn gates(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let before = val::list(old, "spec.schedulingGates");
    for (i, gate) in val::list(new, "spec.schedulingGates").iter().enumerate() {
        if !before.contains(gate) {
            errors.push(FieldError::forbidden(
                format!("spec.schedulingGates[{i}]"),
                "only deletion is allowed, but found new scheduling gate",
            ));
        }
    }
}

fn status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let node = val::text(new, "status.nominatedNodeName");
    if !node.is_empty() {
        errors.extend(
            crate::names::dns1123_subdomain(node)
                .into_iter()
                .map(|m| FieldError::invalid("status.nominatedNodeName", node, m)),
        );
    }
    let (before, after) = (val::text(old, "spec.nodeName"), val::text(new, "spec.nodeName"));
    if before != after {
        errors.push(FieldError::forbidden("status.nodeName", "may not be changed directly"));
    }
    errors
}

fn ephemeral(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if val::at(old, "metadata.annotations").is_some_and(|all| all.get(MIRROR_ANNOTATION).is_some()) {
        errors.push(FieldError::forbidden("", "static pods do not support ephemeral containers"));
    }
    let after = val::list(new, "spec.ephemeralContainers");
    for (i, container) in val::list(old, "spec.ephemeralContainers").iter().enumerate() {
        let name = val::text(container, "name");
        match after.iter().find(|c| val::text(c, "name") == name) {
            None => errors.push(FieldError::forbidden(
                "spec.ephemeralContainers",
                format!("existing ephemeral containers \"{name}\" may not be removed\n"),
            )),
            Some(found) if found != container => errors.push(FieldError::forbidden(
                format!("spec.ephemeralContainers[{i}]"),
                format!("existing ephemeral containers \"{name}\" may not be changed\n"),
            )),
            Some(_) => {}
        }
    }
    errors
}

fn resize(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let strip = |v: &Value| {
        let mut spec = v.get("spec").cloned().unwrap_or_else(|| json!({}));
        for key in ["containers", "initContainers"] {
            for container in val::list_mut(&mut spec, key) {
                val::remove(container, "resources");
                val::remove(container, "resizePolicy");
            }
        }
        val::remove(&mut spec, "resources");
        spec
    };
    if strip(new) != strip(old) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable"));
    }
    if super::qos_class(new) != val::text(old, "status.qosClass") && !val::text(old, "status.qosClass").is_empty() {
        errors.push(FieldError::invalid(
            "spec",
            super::qos_class(new),
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    errors
}
