//! Ephemeral containers: a container with less.
//!
//! Upstream counterpart: `validateEphemeralContainers`.

use serde_json::Value;

use super::container::one;
use crate::error::FieldError;
use crate::{names, val};

/// Fields of a container that an ephemeral one may not have.
const NOT_ALLOWED: [&str; 8] = [
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "startupProbe",
];
const WHY: &str = "cannot be set for an Ephemeral Container";

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Validates the list; `seen` are the names of the other containers.
pub(super) fn validate_all<'a>(
    spec: &'a Value,
    at: &str,
    volumes: &[&str],
    mut seen: Vec<&'a str>,
    errors: &mut Vec<FieldError>,
) {
    let others = seen.clone();
    for (i, container) in val::list(spec, "ephemeralContainers").iter().enumerate() {
        let at = format!("{at}.ephemeralContainers[{i}]");
        let name = val::text(container, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        } else {
            let wrong = names::dns1123_label(name).into_iter();
            errors.extend(wrong.map(|message| FieldError::invalid(format!("{at}.name"), name, message)));
        }
        seen.push(name);
        let target = val::text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(&target) {
            errors.push(FieldError::not_found(format!("{at}.targetContainerName"), target));
        }
        one(container, &at, volumes, errors);
        let present = NOT_ALLOWED.iter().filter(|field| container.get(**field).is_some_and(|value| !is_empty(value)));
        errors.extend(present.map(|field| FieldError::forbidden(format!("{at}.{field}"), WHY)));
        for (j, mount) in val::list(container, "volumeMounts").iter().enumerate() {
            let sub_paths = ["subPath", "subPathExpr"].iter().filter(|field| !val::text(mount, field).is_empty());
            errors.extend(sub_paths.map(|field| FieldError::forbidden(format!("{at}.volumeMounts[{j}].{field}"), WHY)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(container: Value) -> Vec<String> {
        let mut container = container;
        for (key, value) in [("image", "i"), ("terminationMessagePolicy", "File"), ("imagePullPolicy", "Always")] {
            container[key] = json!(value);
        }
        let spec = json!({"ephemeralContainers": [container]});
        let mut errors = Vec::new();
        validate_all(&spec, "spec", &["data"], vec!["main"], &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_plain_one_is_fine_and_others_are_told_why_not() {
        assert!(errors(json!({"name": "e", "targetContainerName": "main", "stdin": true, "resources": {}})).is_empty());
        assert_eq!(errors(json!({"name": "main"})), ["spec.ephemeralContainers[0].name: Duplicate value: \"main\""]);
        assert_eq!(
            errors(json!({"name": "e", "targetContainerName": "x", "ports": [{"containerPort": 80}]})),
            [
                "spec.ephemeralContainers[0].targetContainerName: Not found: \"x\"",
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            ]
        );
        let mounts = json!({"name": "e", "volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "s"}]});
        assert_eq!(
            errors(mounts),
            [
                "spec.ephemeralContainers[0].volumeMounts[0].subPath: Forbidden: cannot be set for an Ephemeral Container"
            ]
        );
    }
}
