//! Ephemeral containers: a container with less.
//!
//! Upstream counterpart: `validateEphemeralContainers`.

use std::collections::HashSet;

use serde_json::Value;

use super::container::{Surroundings, common};
use crate::error::FieldError;
use crate::val;

/// Fields of a container that an ephemeral one may not have.
const NOT_ALLOWED: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];
const WHY: &str = "cannot be set for an Ephemeral Container";

/// Whether a field holds something; what defaulting leaves behind is nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Validates the list; `seen` are the names of the other containers.
pub(super) fn validate_all<'a>(
    around: &Surroundings<'a>,
    at: &str,
    others: HashSet<&'a str>,
    errors: &mut Vec<FieldError>,
) {
    let mut seen = others.clone();
    for (i, container) in val::list(around.spec, "ephemeralContainers").iter().enumerate() {
        let at = format!("{at}.ephemeralContainers[{i}]");
        common(container, &at, around, errors);
        let name = val::text(container, "name");
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        let target = val::text(container, "targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.push(FieldError::not_found(format!("{at}.targetContainerName"), target));
        }
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
        let around = Surroundings {
            spec: &spec,
            volumes: std::iter::once(("data", "emptyDir")).collect(),
            claims: std::collections::BTreeSet::new(),
            is_template: false,
        };
        let mut errors = Vec::new();
        validate_all(&around, "spec", std::iter::once("main").collect(), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_plain_one_is_fine_and_others_are_told_why_not() {
        assert!(errors(json!({"name": "e", "targetContainerName": "main", "stdin": true, "resources": {}})).is_empty());
        assert_eq!(errors(json!({"name": "main"})), ["spec.ephemeralContainers[0].name: Duplicate value: \"main\""]);
        assert_eq!(
            errors(
                json!({"name": "e", "targetContainerName": "x", "ports": [{"containerPort": 80, "protocol": "TCP"}]})
            ),
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
