//! Validation of environment variables and of the fields that they show.
//!
//! Upstream counterpart: `ValidateEnv`, `ValidateEnvFrom`, `validateObjectFieldSelector`, `validateContainerResourceFieldSelector`.

use kube_common::quantity::Quantity;
use serde_json::Value;

use super::check;
use crate::error::FieldError;
use crate::{names, val};

/// Fields that an environment variable may show.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields that a file of a volume may show.
pub(super) const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Fields that the downward API knows at all.
const KNOWN_FIELDS: &[&str] = &["spec.restartPolicy", "spec.schedulerName", "status.phase"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
const ONE_SOURCE: &str = "may not have more than one field specified at a time";

/// Validates `env` and `envFrom` of a container.
pub(super) fn validate(c: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (i, var) in val::list(c, "env").iter().enumerate() {
        let at = format!("{at}.env[{i}]");
        check::required_text(val::text(var, "name"), &format!("{at}.name"), names::env_var_name, errors);
        if let Some(source) = val::at(var, "valueFrom") {
            value_from(var, source, &format!("{at}.valueFrom"), errors);
        }
    }
    let list = format!("{at}.envFrom");
    for (i, from) in val::list(c, "envFrom").iter().enumerate() {
        let at = format!("{list}[{i}]");
        check::optional(val::text(from, "prefix"), &format!("{at}.prefix"), names::env_var_name, errors);
        let mut sources = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(reference) = val::at(from, kind) else { continue };
            sources += 1;
            let (name, at) = (val::text(reference, "name"), format!("{at}.{kind}.name"));
            if name.is_empty() {
                errors.push(FieldError::required(at, ""));
            } else {
                // Upstream lets these end in a dash, as if they were prefixes.
                let wrong = names::dns1123_subdomain(&names::mask_trailing_dash(name)).into_iter();
                errors.extend(wrong.map(|message| FieldError::invalid(at.as_str(), name, message)));
            }
        }
        if sources == 0 {
            let message = "must specify one of: `configMapRef` or `secretRef`";
            errors.push(FieldError::invalid(list.as_str(), "", message));
        } else if sources > 1 {
            errors.push(FieldError::invalid(list.as_str(), "", ONE_SOURCE));
        }
    }
}

fn value_from(var: &Value, source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut sources = 0;
    let mut given = |kind: &str| {
        let found = val::at(source, kind);
        sources += usize::from(found.is_some());
        found.map(|v| (v, format!("{at}.{kind}")))
    };
    if let Some((field, at)) = given("fieldRef") {
        field_ref(field, &at, ENV_FIELDS, errors);
    }
    if let Some((field, at)) = given("resourceFieldRef") {
        resource_field_ref(field, &at, false, errors);
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if let Some((reference, at)) = given(kind) {
            check::text(val::text(reference, "name"), &format!("{at}.name"), names::dns1123_subdomain, errors);
            check::required_text(val::text(reference, "key"), &format!("{at}.key"), names::config_key, errors);
        }
    }
    if let Some((reference, at)) = given("fileKeyRef") {
        file_key_ref(reference, &at, errors);
    }
    if sources == 0 {
        let message =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.push(FieldError::invalid(at, "", message));
    } else if !val::text(var, "value").is_empty() {
        errors.push(FieldError::invalid(at, "", "may not be specified when `value` is not empty"));
    } else if sources > 1 {
        errors.push(FieldError::invalid(at, "", ONE_SOURCE));
    }
}

fn file_key_ref(reference: &Value, at: &str, errors: &mut Vec<FieldError>) {
    check::required_text(val::text(reference, "key"), &format!("{at}.key"), names::env_var_name, errors);
    let volume = val::text(reference, "volumeName");
    check::required_text(volume, &format!("{at}.volumeName"), names::dns1123_label, errors);
    let path = val::text(reference, "path");
    check::required(path, &format!("{at}.path"), errors);
    check::no_backsteps(path, &format!("{at}.path"), errors);
}

/// Files of environment variables come out of an emptyDir.
pub(super) fn file_volumes(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (at, container) in check::containers(spec, at) {
        for (i, var) in val::list(container, "env").iter().enumerate() {
            let Some(reference) = val::at(var, "valueFrom.fileKeyRef") else { continue };
            let name = val::text(reference, "volumeName");
            let at = format!("{at}.env[{i}].valueFrom.fileKeyRef.volumeName");
            match val::list(spec, "volumes").iter().rfind(|volume| val::text(volume, "name") == name) {
                None => errors.push(FieldError::not_found(at, name)),
                Some(volume) if val::at(volume, "emptyDir").is_none() => {
                    errors.push(FieldError::invalid(at, name, "referenced volume must be of type emptyDir"));
                }
                Some(_) => {}
            }
        }
    }
}

/// `metadata.labels['key']` in its two parts.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(path, _)| !path.is_empty())
}

/// A field of the pod.
pub(super) fn field_ref(field: &Value, at: &str, valid: &[&str], errors: &mut Vec<FieldError>) {
    let (version, path) = (val::text(field, "apiVersion"), val::text(field, "fieldPath"));
    let field = format!("{at}.fieldPath");
    if version.is_empty() {
        errors.push(FieldError::required(format!("{at}.apiVersion"), ""));
        return;
    }
    if path.is_empty() {
        errors.push(FieldError::required(field, ""));
        return;
    }
    let mut unknown = |why: String| {
        errors.push(FieldError::invalid(field.as_str(), path, format!("error converting fieldPath: {why}")));
    };
    if version != "v1" {
        unknown(format!("unsupported pod version: {version}"));
        return;
    }
    match subscripted(path) {
        Some(("metadata.annotations", key)) => {
            let lower = key.to_lowercase();
            check::text(&lower, at, names::qualified_name, errors);
        }
        Some(("metadata.labels", key)) => check::text(key, at, names::qualified_name, errors),
        Some(_) => unknown(format!("field label does not support subscript: {path}")),
        None => {
            // Old clients say so.
            let path = if path == "spec.host" { "spec.nodeName" } else { path };
            let is_known = [ENV_FIELDS, FILE_FIELDS, KNOWN_FIELDS].iter().any(|known| known.contains(&path));
            if !is_known {
                unknown(format!("field label not supported: {path}"));
            } else if !valid.contains(&path) {
                errors.push(FieldError::not_supported(field, path, valid));
            }
        }
    }
}

/// A resource of a container; a file has to say of which.
pub(super) fn resource_field_ref(field: &Value, at: &str, is_file: bool, errors: &mut Vec<FieldError>) {
    let resource = val::text(field, "resource");
    let is_huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if is_file && val::text(field, "containerName").is_empty() {
        errors.push(FieldError::required(format!("{at}.containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(format!("{at}.resource"), ""));
    } else if !is_huge {
        check::supported(resource, RESOURCES, &format!("{at}.resource"), errors);
    }
    let Ok(divisor) = Quantity::parse(val::text(field, "divisor")) else { return };
    if divisor.is_zero() {
        return;
    }
    let (valid, listed, what) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"][..], "1m and 1".to_owned(), "cpu"),
        "limits.memory" | "requests.memory" => (BYTE_DIVISORS, BYTE_DIVISORS.join(", "), "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (BYTE_DIVISORS, BYTE_DIVISORS.join(", "), "local ephemeral storage")
        }
        _ if is_huge => (BYTE_DIVISORS, BYTE_DIVISORS.join(", "), "hugepages"),
        _ => return,
    };
    if !valid.contains(&divisor.to_string().as_str()) {
        let message = format!("only divisor's values {listed} are supported with the {what} resource");
        errors.push(FieldError::invalid(format!("{at}.divisor"), resource, message));
    }
}
