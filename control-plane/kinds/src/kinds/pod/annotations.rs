//! Annotations that mean something to the API server: the mark of a mirror pod, what once were fields.
//!
//! Upstream counterparts: `ValidatePodSpecificAnnotations`, `ValidatePodSpecificAnnotationUpdates`, `validateSeccompAnnotationsAndFields`,
//! `validateAppArmorAnnotationsAndFieldsMatchOnCreate`.

use serde_json::Value;

use super::{check, scheduling};
use crate::error::{FieldError, go_quote};
use crate::val;

/// Marks the API's view of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// What a controller pays for deleting the pod, as a number of 32 bits.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";

fn mirror(pod: &Value) -> Option<&Value> {
    val::map(pod, "metadata.annotations")?.get(MIRROR)
}

fn field() -> String {
    format!("metadata.annotations[{MIRROR}]")
}

/// Validates the annotations, which messages call `at`, of a pod or a template.
pub(super) fn validate(pod: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(value) = mirror(pod)
        && val::text(pod, "spec.nodeName").is_empty()
    {
        // A mirror pod stands for one that runs already, on a node.
        let message = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(format!("{at}[{MIRROR}]"), value.clone(), message));
    }
    let names: Vec<&str> = match pod.get("spec") {
        Some(spec) => check::containers(spec, "").into_iter().map(|(_, c)| val::text(c, "name")).collect(),
        None => Vec::new(),
    };
    for (key, value) in val::entries(pod, "metadata.annotations") {
        let value = value.as_str().unwrap_or_default();
        let keyed = format!("{at}[{key}]");
        if key == DELETION_COST && !is_cost(value) {
            errors.push(FieldError::invalid(keyed.as_str(), value, "must be a 32bit integer"));
        }
        if key == TOLERATIONS && !value.is_empty() {
            match serde_json::from_str::<Value>(value) {
                Ok(Value::Array(items)) => scheduling::tolerations(&items, &format!("{at}.{key}"), &mut errors),
                Ok(_) => errors.push(FieldError::invalid(at, TOLERATIONS, "must be a list of tolerations in JSON")),
                Err(error) => errors.push(FieldError::invalid(at, TOLERATIONS, error.to_string())),
            }
        }
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &format!("{at}.{key}"), &mut errors);
        }
        if let Some(name) = key.strip_prefix(APP_ARMOR) {
            if !names.contains(&name) {
                errors.push(FieldError::invalid(keyed.as_str(), name, "container not found"));
            }
            if !matches!(value, "" | "runtime/default" | "unconfined") && !value.starts_with(LOCALHOST) {
                let message = format!("invalid AppArmor profile name: {}", go_quote(value));
                errors.push(FieldError::invalid(keyed, value, message));
            }
        }
    }
    errors
}

/// A number that is written as a person writes it: no plus sign, no zeros before it.
fn is_cost(value: &str) -> bool {
    let first = value.bytes().next();
    let is_plain = first != Some(b'+') && (first != Some(b'0') || value == "0");
    is_plain && value.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(path) = profile.strip_prefix(LOCALHOST) {
        check::local_path(path, at, errors);
    } else if !matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        errors.push(FieldError::invalid(at, profile, "must be a valid seccomp profile"));
    }
}

/// A profile that is given by annotation and by field is the same in both.
pub(super) fn validate_new(pod: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(spec) = pod.get("spec") else { return errors };
    let given = |key: String| val::map(pod, "metadata.annotations")?.get(&key)?.as_str();
    let mut compare = |profile: Option<&Value>, annotation: Option<&str>, at: String, what: &str| {
        let (Some(profile), Some(annotation)) = (profile, annotation) else { return };
        let is_same = match val::text(profile, "type") {
            "Unconfined" => annotation == "unconfined",
            "RuntimeDefault" => {
                annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
            }
            "Localhost" => match annotation.strip_prefix(LOCALHOST) {
                Some(path) if path == val::text(profile, "localhostProfile") => true,
                Some(_) => {
                    let message = format!("{what} profile in annotation and field must match");
                    errors.push(FieldError::forbidden(format!("{at}.localhostProfile"), message));
                    return;
                }
                None => false,
            },
            _ => true,
        };
        if !is_same {
            let message = format!("{what} type in annotation and field must match");
            errors.push(FieldError::forbidden(format!("{at}.type"), message));
        }
    };
    let pod_seccomp = val::at(spec, "securityContext.seccompProfile");
    compare(pod_seccomp, given(SECCOMP_POD.to_owned()), format!("{at}.securityContext.seccompProfile"), "seccomp");
    let is_windows = val::text(spec, "os.name") == "windows";
    let pod_app_armor = val::at(spec, "securityContext.appArmorProfile");
    for (at, container) in check::containers(spec, at) {
        let name = val::text(container, "name");
        let own = |key: &str| val::at(container, &format!("securityContext.{key}"));
        let annotation = given(format!("{SECCOMP_CONTAINER}{name}"));
        compare(own("seccompProfile"), annotation, format!("{at}.securityContext.seccompProfile"), "seccomp");
        if !is_windows {
            let annotation = given(format!("{APP_ARMOR}{name}"));
            let profile = own("appArmorProfile").or(pod_app_armor);
            compare(profile, annotation, format!("{at}.securityContext.appArmorProfile"), "apparmor");
        }
    }
    errors
}

/// Whether a pod is a mirror pod is settled when it is made: else anybody who may update pods could
/// take one out of the agent's hands, or make the agent delete it.
pub(super) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    match (mirror(old), mirror(new)) {
        (Some(before), after) if after != Some(before) => {
            vec![FieldError::forbidden(field(), "may not remove or update mirror pod annotation")]
        }
        (None, Some(_)) => vec![FieldError::forbidden(field(), "may not add mirror pod annotation")],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::strategy::Part;

    fn pod(mirror: Option<&str>, node: &str) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "d", "annotations": {"other": "x"}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        });
        if let Some(mirror) = mirror {
            pod["metadata"]["annotations"][MIRROR] = mirror.into();
        }
        pod
    }

    #[test]
    fn a_mirror_pod_needs_a_node() {
        let res = crate::lookup("", "v1", "pods").unwrap();
        let refused = |pod: &Value| res.strategy.validate(pod).iter().any(|e| e.field == field());
        assert!(refused(&pod(Some("h"), "")));
        assert!(refused(&pod(Some(""), "")));
        assert!(!refused(&pod(Some("h"), "n")));
        assert!(!refused(&pod(None, "")));
    }

    #[test]
    fn the_mark_never_changes_by_whatever_way() {
        let res = crate::lookup("", "v1", "pods").unwrap();
        let cases = [
            (None, Some("h"), "may not add"),
            (Some("h"), None, "may not remove or update"),
            (Some("h"), Some("g"), "may not remove or update"),
        ];
        for part in [Part::Main, Part::Status, Part::Other("ephemeralcontainers"), Part::Other("resize")] {
            for (old, new, message) in cases {
                let errors = res.strategy.validate_update(&pod(new, "n"), &pod(old, "n"), part);
                let found = errors.iter().any(|e| e.field == field() && e.detail.starts_with(message));
                assert!(found, "{part:?} {old:?} {new:?}: {errors:?}");
            }
            for same in [None, Some("h")] {
                let errors = res.strategy.validate_update(&pod(same, "n"), &pod(same, "n"), part);
                assert!(!errors.iter().any(|e| e.field == field()), "{part:?} {same:?}: {errors:?}");
            }
        }
    }
}
