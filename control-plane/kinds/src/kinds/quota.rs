//! The `ResourceQuota` kind: its validation.
//!
//! Upstream counterparts: `ValidateResourceQuota`, `ValidateResourceQuotaUpdate`, `pkg/apis/core/helper`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::FieldError;
use crate::names::qualified_name;
use crate::{resource_names as names, val};

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
/// No object is in both.
const CONFLICTS: [(&str, &str); 2] = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];

/// What is wrong with a quota's spec, and with changing it from `old`; `metadata` is not looked at.
#[must_use]
pub fn validate(quota: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let spec = &quota["spec"];
    let mut errors = amounts(&spec["hard"], "spec.hard");
    errors.extend(scopes(spec));
    errors.extend(selector(spec));
    if let Some(old) = old {
        let set = |quota: &Value| -> BTreeSet<String> {
            val::list(quota, "spec.scopes").iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if set(quota) != set(old) {
            errors.push(FieldError::invalid("spec.scopes", spec["scopes"].clone(), "field is immutable"));
        }
    }
    errors
}

/// What is wrong with a quota's status.
#[must_use]
pub fn validate_status(quota: &Value) -> Vec<FieldError> {
    let status = &quota["status"];
    let mut errors = amounts(&status["hard"], "status.hard");
    errors.extend(amounts(&status["used"], "status.used"));
    errors
}

fn amounts(list: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, amount) in list.as_object().into_iter().flatten() {
        let path = format!("{path}[{name}]");
        errors.extend(resource_name(name, &path));
        let Some(parsed) = names::quantity(amount) else { continue };
        if parsed.is_negative() {
            errors.push(FieldError::invalid(&path, parsed.to_string(), "must be greater than or equal to 0"));
        }
        if names::whole(name) && !parsed.is_integer() {
            errors.push(FieldError::invalid(&path, parsed.to_string(), "must be an integer"));
        }
    }
    errors
}

fn resource_name(name: &str, path: &str) -> Vec<FieldError> {
    let invalid = |detail: &str| FieldError::invalid(path, name, detail);
    let mut errors: Vec<FieldError> = qualified_name(name).iter().map(|detail| invalid(detail)).collect();
    if !name.contains('/') {
        if errors.is_empty() && !names::standard(name) {
            errors.push(invalid("must be a standard resource type or fully qualified"));
        }
        if !names::of_quotas(name) {
            errors.push(invalid("must be a standard resource for quota"));
        }
    }
    errors
}

/// Whether objects in that scope can have that resource; of qualified names nobody knows.
fn fits(scope: &str, resource: &str) -> bool {
    let compute = matches!(
        resource,
        "cpu" | "memory" | "limits.cpu" | "limits.memory" | "requests.cpu" | "requests.memory" | "pods"
    );
    match scope {
        _ if !names::of_quotas(resource) => true,
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => compute,
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn unfit<'a>(spec: &'a Value, scope: &'a str) -> impl Iterator<Item = &'a str> {
    val::entries(spec, "hard").map(|(name, _)| name.as_str()).filter(move |name| !fits(scope, name))
}

fn conflicts<'a>(spec: &Value, named: &BTreeSet<&str>, path: &'a str) -> impl Iterator<Item = FieldError> + use<'a> {
    let count = CONFLICTS.iter().filter(|(one, other)| named.contains(one) && named.contains(other)).count();
    let scopes = spec["scopes"].clone();
    (0..count).map(move |_| FieldError::invalid(path, scopes.clone(), "conflicting scopes"))
}

fn scopes(spec: &Value) -> Vec<FieldError> {
    const PATH: &str = "spec.scopes";
    let invalid = |detail: &str| FieldError::invalid(PATH, spec["scopes"].clone(), detail);
    let mut errors = Vec::new();
    let named: Vec<&str> = val::list(spec, "scopes").iter().filter_map(Value::as_str).collect();
    for scope in &named {
        if !SCOPES.contains(scope) {
            errors.push(invalid("unsupported scope"));
        }
        errors.extend(unfit(spec, scope).map(|_| invalid("unsupported scope applied to resource")));
    }
    errors.extend(conflicts(spec, &named.into_iter().collect(), PATH));
    errors
}

fn selector(spec: &Value) -> Vec<FieldError> {
    const PATH: &str = "spec.scopeSelector.matchExpressions";
    let selector = &spec["scopeSelector"];
    let mut errors = Vec::new();
    let mut named = BTreeSet::new();
    for expression in val::list(selector, "matchExpressions") {
        let scope = val::text(expression, "scopeName");
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(format!("{PATH}.scopeName"), scope, "unsupported scope"));
        }
        let detail = "unsupported scope applied to resource";
        errors.extend(unfit(spec, scope).map(|_| FieldError::invalid(PATH, selector.clone(), detail)));
        errors.extend(operator(expression, scope, PATH));
        named.insert(scope);
    }
    errors.extend(conflicts(spec, &named, PATH));
    errors
}

fn operator(expression: &Value, scope: &str, path: &str) -> Vec<FieldError> {
    let operator = val::text(expression, "operator");
    let invalid = |detail: &str| FieldError::invalid(format!("{path}.operator"), operator, detail);
    let mut errors = Vec::new();
    let yes_or_no = SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
    if yes_or_no && operator != "Exists" {
        errors.push(invalid(
            "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
             ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
        ));
    }
    let values = &expression["values"];
    match (operator, values.as_array().map_or(&[][..], Vec::as_slice).is_empty()) {
        ("In" | "NotIn", true) => {
            let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.push(FieldError::required(format!("{path}.values"), detail));
        }
        ("Exists" | "DoesNotExist", false) => {
            let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
            errors.push(FieldError::invalid(format!("{path}.values"), values.clone(), detail));
        }
        ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
        _ => errors.push(invalid("not a valid selector operator")),
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quota_is_validated_with_paths() {
        let must_exist = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        let select =
            |expressions: Value| json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": expressions}});
        let path = "spec.scopeSelector.matchExpressions";
        for (spec, want) in [
            (
                json!({"hard": {"pods": "1", "limits.cpu": "100m", "requests.example.com/gpu": "1", "count/a.b": "1", "hugepages-2Mi": "1", "gold.storageclass.storage.k8s.io/requests.storage": "5Gi"}}),
                vec![],
            ),
            (
                json!({"hard": {"tea": "1"}}),
                vec![
                    r#"spec.hard[tea]: Invalid value: "tea": must be a standard resource type or fully qualified"#
                        .to_owned(),
                    r#"spec.hard[tea]: Invalid value: "tea": must be a standard resource for quota"#.to_owned(),
                ],
            ),
            (
                json!({"hard": {"storage": "1"}}),
                vec![
                    r#"spec.hard[storage]: Invalid value: "storage": must be a standard resource for quota"#.to_owned(),
                ],
            ),
            (
                json!({"hard": {"pods": "-1"}}),
                vec![r#"spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0"#.to_owned()],
            ),
            (
                json!({"hard": {"pods": "1500m", "count/a.b": "0.1"}}),
                vec![
                    r#"spec.hard[count/a.b]: Invalid value: "100m": must be an integer"#.to_owned(),
                    r#"spec.hard[pods]: Invalid value: "1500m": must be an integer"#.to_owned(),
                ],
            ),
            (
                json!({"scopes": ["Sometimes"]}),
                vec![r#"spec.scopes: Invalid value: ["Sometimes"]: unsupported scope"#.to_owned()],
            ),
            (
                json!({"hard": {"pods": "1", "cpu": "1"}, "scopes": ["BestEffort"]}),
                vec![r#"spec.scopes: Invalid value: ["BestEffort"]: unsupported scope applied to resource"#.to_owned()],
            ),
            (json!({"hard": {"pods": "1", "cpu": "1", "count/a.b": "1"}, "scopes": ["Terminating"]}), vec![]),
            (
                json!({"hard": {"requests.storage": "1", "persistentvolumeclaims": "1"}, "scopes": ["VolumeAttributesClass"]}),
                vec![],
            ),
            (
                json!({"hard": {"pods": "1"}, "scopes": ["VolumeAttributesClass"]}),
                vec![
                    r#"spec.scopes: Invalid value: ["VolumeAttributesClass"]: unsupported scope applied to resource"#
                        .to_owned(),
                ],
            ),
            (
                json!({"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]}),
                vec![r#"spec.scopes: Invalid value: ["Terminating","NotTerminating"]: conflicting scopes"#.to_owned()],
            ),
            (select(json!([{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}])), vec![]),
            (
                select(json!([{"scopeName": "PriorityClass", "operator": "In"}])),
                vec![format!(
                    "{path}.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                )],
            ),
            (
                select(json!([{"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]}])),
                vec![format!(
                    r#"{path}.values: Invalid value: ["a"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"#
                )],
            ),
            (
                select(json!([{"scopeName": "PriorityClass", "operator": "Near"}])),
                vec![format!(r#"{path}.operator: Invalid value: "Near": not a valid selector operator"#)],
            ),
            (
                select(json!([{"scopeName": "Terminating", "operator": "DoesNotExist"}])),
                vec![format!(r#"{path}.operator: Invalid value: "DoesNotExist": {must_exist}"#)],
            ),
            (
                select(json!([{"scopeName": "Other", "operator": "Exists"}])),
                vec![format!(r#"{path}.scopeName: Invalid value: "Other": unsupported scope"#)],
            ),
            (
                select(
                    json!([{"scopeName": "BestEffort", "operator": "Exists"}, {"scopeName": "NotBestEffort", "operator": "Exists"}]),
                ),
                vec![format!("{path}: Invalid value: \"null\": conflicting scopes")],
            ),
        ] {
            let found: Vec<String> = validate(&json!({"spec": spec}), None).iter().map(FieldError::to_string).collect();
            assert_eq!(found, want, "{spec}");
        }
    }

    #[test]
    fn scopes_stay_as_they_are_and_a_status_is_validated_too() {
        let of = |scopes: Value| json!({"spec": {"hard": {"pods": "1"}, "scopes": scopes}});
        let old = of(json!(["Terminating", "NotBestEffort"]));
        assert_eq!(validate(&of(json!(["NotBestEffort", "Terminating"])), Some(&old)), []);
        let found = validate(&of(json!(["Terminating"])), Some(&old));
        assert_eq!(found[0].to_string(), r#"spec.scopes: Invalid value: ["Terminating"]: field is immutable"#);
        let found = validate_status(&json!({"status": {"hard": {"pods": "1m"}, "used": {"pods": "-1"}}}));
        let found: Vec<String> = found.iter().map(FieldError::to_string).collect();
        assert_eq!(
            found,
            [
                r#"status.hard[pods]: Invalid value: "1m": must be an integer"#,
                r#"status.used[pods]: Invalid value: "-1": must be greater than or equal to 0"#,
            ]
        );
    }
}
