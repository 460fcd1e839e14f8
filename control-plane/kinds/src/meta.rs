//! Validation of `metadata`.
//!
//! Upstream counterpart: `apimachinery/pkg/api/validation/objectmeta.go`.

use serde_json::Value;

use crate::error::FieldError;
use crate::resource::Resource;
use crate::{names, val};

/// Limit for all annotations together, keys and values: 256 KiB.
pub const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Checks name, namespace, labels, annotations, owner references and finalizers.
pub(crate) fn validate(res: &Resource, obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let generate_name = val::text(obj, "metadata.generateName");
    if !generate_name.is_empty() {
        for msg in res.strategy.validate_name(&names::mask_trailing_dash(generate_name)) {
            errors.push(FieldError::invalid("metadata.generateName", generate_name, msg));
        }
    }
    let name = val::text(obj, "metadata.name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for msg in res.strategy.validate_name(name) {
            errors.push(FieldError::invalid("metadata.name", name, msg));
        }
    }
    let namespace = val::text(obj, "metadata.namespace");
    if res.namespaced() {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else {
            for msg in names::dns1123_label(namespace) {
                errors.push(FieldError::invalid("metadata.namespace", namespace, msg));
            }
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    errors.extend(labels(obj, "metadata.labels"));
    errors.extend(annotations(obj, "metadata.annotations"));
    errors.extend(owner_references(obj));
    errors.extend(finalizers(obj));
    errors
}

/// Checks the metadata of an object inside another, which messages call `path`: a name is not needed, and a namespace may be given.
pub(crate) fn embedded(metadata: &Value, path: &str) -> Vec<FieldError> {
    let obj = serde_json::json!({ "metadata": metadata });
    let mut errors = Vec::new();
    for key in ["generateName", "name"] {
        let name = val::text(metadata, key);
        for msg in names::path_segment(name) {
            errors.push(FieldError::invalid(format!("metadata.{key}"), name, msg));
        }
    }
    let namespace = val::text(metadata, "namespace");
    if !namespace.is_empty() {
        for msg in names::dns1123_label(namespace) {
            errors.push(FieldError::invalid("metadata.namespace", namespace, msg));
        }
    }
    errors.extend(labels(&obj, "metadata.labels"));
    errors.extend(annotations(&obj, "metadata.annotations"));
    errors.extend(owner_references(&obj));
    errors.extend(finalizers(&obj));
    for error in &mut errors {
        if let Some(rest) = error.field.strip_prefix("metadata") {
            error.field = format!("{path}{rest}");
        }
    }
    errors
}

/// Checks a map of labels at a dotted path; field paths carry the path as given.
pub(crate) fn labels(obj: &Value, path: &str) -> Vec<FieldError> {
    labels_at(val::map(obj, path), path)
}

/// Checks a map of labels that messages call `field`.
pub(crate) fn labels_at(map: Option<&serde_json::Map<String, Value>>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in map.into_iter().flatten() {
        for msg in names::qualified_name(key) {
            errors.push(FieldError::invalid(field, key.as_str(), msg));
        }
        let value = value.as_str().unwrap_or("");
        for msg in names::label_value(value) {
            errors.push(FieldError::invalid(field, value, msg));
        }
    }
    errors
}

fn annotations(obj: &Value, path: &str) -> Vec<FieldError> {
    annotations_at(val::map(obj, path), path)
}

/// Checks a map of annotations that messages call `path`.
pub(crate) fn annotations_at(map: Option<&serde_json::Map<String, Value>>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut total = 0;
    for (key, value) in map.into_iter().flatten() {
        // Upstream checks annotation keys in lower case.
        for msg in names::qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, key.as_str(), msg));
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

fn owner_references(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controller: Option<&str> = None;
    for (i, owner) in val::list(obj, "metadata.ownerReferences").iter().enumerate() {
        let field = |name: &str| format!("metadata.ownerReferences[{i}].{name}");
        let api_version = val::text(owner, "apiVersion");
        if api_version.is_empty() || api_version.ends_with('/') || api_version.matches('/').count() > 1 {
            errors.push(FieldError::invalid(field("apiVersion"), api_version, "version must not be empty"));
        }
        for (key, msg) in [("kind", "must not be empty"), ("name", "must not be empty"), ("uid", "must not be empty")] {
            let value = val::text(owner, key);
            if value.is_empty() {
                errors.push(FieldError::invalid(field(key), value, msg));
            }
        }
        if val::flag(owner, "controller") {
            let name = val::text(owner, "name");
            if let Some(first) = controller {
                errors.push(FieldError::invalid(
                    "metadata.ownerReferences",
                    Value::Array(val::list(obj, "metadata.ownerReferences").to_vec()),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    ),
                ));
            }
            controller = Some(name);
        }
    }
    errors
}

fn finalizers(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for finalizer in val::list(obj, "metadata.finalizers").iter().filter_map(Value::as_str) {
        for msg in names::qualified_name(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, msg));
        }
    }
    let has = |name: &str| val::list(obj, "metadata.finalizers").iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.push(FieldError::invalid(
            "metadata.finalizers",
            val::at(obj, "metadata.finalizers").cloned().unwrap_or(Value::Null),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
    errors
}

/// Checks what an update may not do to metadata.
pub(crate) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if val::at(old, "metadata.deletionTimestamp").is_some() {
        let before = val::list(old, "metadata.finalizers");
        let added: Vec<&str> = val::list(new, "metadata.finalizers")
            .iter()
            .filter(|f| !before.contains(f))
            .filter_map(Value::as_str)
            .collect();
        if !added.is_empty() {
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
                ),
            ));
        }
    }
    errors
}

/// Checks a label selector object that messages call `field`.
pub(crate) fn selector(selector: Option<&Value>, field: &str) -> Vec<FieldError> {
    let Some(selector) = selector else { return Vec::new() };
    let mut errors = labels_at(val::map(selector, "matchLabels"), &format!("{field}.matchLabels"));
    for (i, requirement) in val::list(selector, "matchExpressions").iter().enumerate() {
        let at = format!("{field}.matchExpressions[{i}]");
        let values = val::list(requirement, "values");
        match val::text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                format!("{at}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
                format!("{at}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(format!("{at}.operator"), other, "not a valid selector operator")),
        }
        let key = val::text(requirement, "key");
        for msg in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{at}.key"), key, msg));
        }
        for (j, value) in values.iter().filter_map(Value::as_str).enumerate() {
            for msg in names::label_value(value) {
                errors.push(FieldError::invalid(format!("{at}.values[{j}]"), value, msg));
            }
        }
    }
    errors
}

/// Whether the labels of a template fit a selector object; both may be absent.
pub(crate) fn selects(selector: &Value, labels: Option<&serde_json::Map<String, Value>>) -> bool {
    let value_of = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
    val::entries(selector, "matchLabels").all(|(key, value)| value_of(key) == value.as_str())
        && val::list(selector, "matchExpressions").iter().all(|requirement| {
            let found = value_of(val::text(requirement, "key"));
            let listed = || val::list(requirement, "values").iter().any(|v| v.as_str() == found);
            match val::text(requirement, "operator") {
                "In" => found.is_some() && listed(),
                "NotIn" => found.is_none() || !listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}
