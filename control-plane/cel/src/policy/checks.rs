//! What is wrong with a ValidatingAdmissionPolicy or its binding.
//!
//! Upstream counterpart: `pkg/apis/admissionregistration/validation`. Metadata is checked by the caller, as for every kind.

use std::collections::BTreeSet;

use kube_common::selector::LabelSelector;
use serde_json::Value;

use super::{Scope, list, text};
use crate::expression::{CompileError, Expect, Expression};
use crate::match_conditions;
use crate::value::json::RESERVED;
use kube_common::field::FieldError;
use kube_common::names;

const MAX_AUDIT_ANNOTATIONS: usize = 20;
const MAX_VALUE_EXPRESSION_BYTES: usize = 5 * 1024;
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// What is wrong with the spec of a ValidatingAdmissionPolicy (defaults already set).
#[must_use]
pub fn validate(policy: &Value) -> Vec<FieldError> {
    let spec = &policy["spec"];
    let mut errors = Vec::new();
    common(spec, &mut errors);
    let mut scope = Scope::new(spec["paramKind"].is_object(), true, false);
    errors.extend(match_conditions::validate(&spec["matchConditions"], "spec.matchConditions", &scope.names));
    check_variables(&spec["variables"], &mut scope, &mut errors);
    let (validations, annotations) = (list(&spec["validations"]), list(&spec["auditAnnotations"]));
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required("spec.validations", detail));
        errors.push(FieldError::required("spec.auditAnnotations", detail));
    }
    for (at, validation) in validations.iter().enumerate() {
        check_validation(validation, &format!("spec.validations[{at}]"), &scope, &mut errors);
    }
    if annotations.len() > MAX_AUDIT_ANNOTATIONS {
        let detail = format!("must not have more than {MAX_AUDIT_ANNOTATIONS} auditAnnotations");
        errors.push(FieldError::invalid("spec.auditAnnotations", spec["auditAnnotations"].clone(), detail));
    }
    let mut keys = BTreeSet::new();
    for (at, annotation) in annotations.iter().enumerate() {
        let path = format!("spec.auditAnnotations[{at}]");
        check_annotation(annotation, text(&policy["metadata"], "name"), &path, &scope, &mut errors);
        if !keys.insert(text(annotation, "key")) {
            errors.push(FieldError::duplicate(format!("{path}.key"), text(annotation, "key")));
        }
    }
    errors
}

/// What is wrong with the spec of a ValidatingAdmissionPolicyBinding (defaults already set).
#[must_use]
pub fn validate_binding(binding: &Value) -> Vec<FieldError> {
    let spec = &binding["spec"];
    let mut errors = Vec::new();
    check_binding(spec, &mut errors);
    let actions = list(&spec["validationActions"]);
    let mut seen = BTreeSet::new();
    for (at, action) in actions.iter().enumerate() {
        let path = format!("spec.validationActions[{at}]");
        let action = action.as_str().unwrap_or_default();
        if !["Audit", "Deny", "Warn"].contains(&action) {
            errors.push(FieldError::not_supported(path.clone(), action, &["Audit", "Deny", "Warn"]));
        }
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(path, action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response \
                      and headers serves no purpose)";
        errors.push(FieldError::invalid("spec.validationActions", spec["validationActions"].clone(), detail));
    }
    if seen.is_empty() {
        errors.push(FieldError::required("spec.validationActions", "at least one validation action is required"));
    }
    errors
}

/// What validating and mutating policies have in common.
pub(super) fn common(spec: &Value, errors: &mut Vec<FieldError>) {
    one_of(&spec["failurePolicy"], "spec.failurePolicy", &["Fail", "Ignore"], errors);
    if spec["paramKind"].is_object() {
        check_param_kind(&spec["paramKind"], errors);
    }
    if spec["matchConstraints"].is_null() {
        errors.push(FieldError::required("spec.matchConstraints", ""));
    } else {
        check_match(&spec["matchConstraints"], "spec.matchConstraints", errors);
        if list(&spec["matchConstraints"]["resourceRules"]).is_empty() {
            errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
        }
    }
}

/// What bindings of validating and mutating policies have in common.
pub(super) fn check_binding(spec: &Value, errors: &mut Vec<FieldError>) {
    let policy = text(spec, "policyName");
    if policy.is_empty() {
        errors.push(FieldError::required("spec.policyName", ""));
    } else {
        let wrong = names::dns1123_subdomain(policy);
        errors.extend(wrong.into_iter().map(|message| FieldError::invalid("spec.policyName", policy, message)));
    }
    if spec["paramRef"].is_object() {
        check_param_ref(&spec["paramRef"], errors);
    }
    if spec["matchResources"].is_object() {
        // Upstream's path has this spelling.
        check_match(&spec["matchResources"], "spec.matchResouces", errors);
    }
}

pub(super) fn one_of(value: &Value, path: &str, valid: &[&str], errors: &mut Vec<FieldError>) {
    match value.as_str() {
        None => errors.push(FieldError::required(path, "")),
        Some(text) if !valid.contains(&text) => errors.push(FieldError::not_supported(path, text, valid)),
        Some(_) => {}
    }
}

fn check_param_kind(kind: &Value, errors: &mut Vec<FieldError>) {
    let path = "spec.paramKind.apiVersion";
    let version = text(kind, "apiVersion");
    let mut invalid = |path: &str, value: &str, wrong: Vec<String>, lead: &str| {
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(path, value, format!("{lead}{}", wrong.join(","))));
        }
    };
    if !version.is_empty() {
        match version.split('/').collect::<Vec<_>>().as_slice() {
            [own] => invalid(path, own, names::dns1035_label(own), ""),
            [group, own] => {
                if !group.is_empty() {
                    invalid(path, group, names::dns1123_subdomain(group), "");
                }
                if own.is_empty() {
                    invalid(path, version, vec!["version must be specified".to_owned()], "");
                } else {
                    invalid(path, own, names::dns1035_label(own), "");
                }
            }
            _ => invalid(path, version, vec![format!("unexpected GroupVersion string: {version}")], ""),
        }
    }
    let name = text(kind, "kind");
    if !name.is_empty() {
        let wrong = names::dns1035_label(&name.to_lowercase());
        invalid("spec.paramKind.kind", name, wrong, "may have mixed case, but should otherwise match: ");
    }
    for (field, value) in [("apiVersion", version), ("kind", name)] {
        if value.is_empty() {
            errors.push(FieldError::required(format!("spec.paramKind.{field}"), ""));
        }
    }
}

fn check_match(constraints: &Value, path: &str, errors: &mut Vec<FieldError>) {
    one_of(&constraints["matchPolicy"], &format!("{path}.matchPolicy"), &["Equivalent", "Exact"], errors);
    for field in ["namespaceSelector", "objectSelector"] {
        let own = format!("{path}.{field}");
        if constraints[field].is_null() {
            errors.push(FieldError::required(own, ""));
        } else {
            check_selector(&constraints[field], own, errors);
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (at, rule) in list(&constraints[field]).iter().enumerate() {
            check_rule(rule, &format!("{path}.{field}[{at}]"), errors);
        }
    }
}

fn check_selector(selector: &Value, path: String, errors: &mut Vec<FieldError>) {
    if let Err(error) = LabelSelector::from_json(Some(selector)) {
        errors.push(FieldError::invalid(path, selector.clone(), error.to_string()));
    }
}

fn check_rule(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (at, name) in list(&rule["resourceNames"]).iter().filter_map(Value::as_str).enumerate() {
        let own = format!("{path}.resourceNames[{at}]");
        errors.extend(
            names::path_segment(name).into_iter().map(|message| FieldError::invalid(own.clone(), name, message)),
        );
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(own, name));
        }
    }
    let others = [
        ("operations", "if '*' is present, must not specify other operations"),
        ("apiGroups", "if '*' is present, must not specify other API groups"),
        ("apiVersions", "if '*' is present, must not specify other API versions"),
    ];
    for (field, detail) in others {
        let values = list(&rule[field]);
        let own = format!("{path}.{field}");
        if values.is_empty() {
            errors.push(FieldError::required(own.clone(), ""));
        }
        if values.len() > 1 && values.iter().any(|value| value == "*") {
            errors.push(FieldError::invalid(own.clone(), rule[field].clone(), detail));
        }
        for (at, value) in values.iter().filter_map(Value::as_str).enumerate() {
            if field == "operations" && !OPERATIONS.contains(&value) {
                errors.push(FieldError::not_supported(format!("{own}[{at}]"), value, &OPERATIONS));
            }
            if field == "apiVersions" && value.is_empty() {
                errors.push(FieldError::required(format!("{own}[{at}]"), ""));
            }
        }
    }
    check_resources(&rule["resources"], &format!("{path}.resources"), errors);
    if let Some(scope) = rule["scope"].as_str().filter(|scope| !SCOPES.contains(scope)) {
        errors.push(FieldError::not_supported(format!("{path}.scope"), scope, &SCOPES));
    }
}

fn check_resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let texts: Vec<&str> = list(resources).iter().filter_map(Value::as_str).collect();
    if texts.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut wild_subs, mut wild_names, mut plain) = (BTreeSet::new(), BTreeSet::new(), false);
    for (at, resource) in texts.iter().enumerate() {
        let own = format!("{path}[{at}]");
        if resource.is_empty() {
            errors.push(FieldError::required(own, ""));
            continue;
        }
        let Some((name, sub)) = resource.split_once('/') else {
            plain = *resource != "*";
            continue;
        };
        if wild_subs.contains(name) {
            let detail = format!("if '{name}/*' is present, must not specify {resource}");
            errors.push(FieldError::invalid(own.clone(), *resource, detail));
        }
        if wild_names.contains(sub) {
            errors.push(FieldError::invalid(
                own,
                *resource,
                format!("if '*/{sub}' is present, must not specify {resource}"),
            ));
        }
        if sub == "*" {
            wild_subs.insert(name);
        }
        if name == "*" {
            wild_names.insert(sub);
        }
    }
    if texts.len() > 1 && texts.contains(&"*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(path, resources.clone(), detail));
    }
    if texts.contains(&"*") && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, resources.clone(), detail));
    }
}

fn check_param_ref(reference: &Value, errors: &mut Vec<FieldError>) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let name = text(reference, "name");
    let has_selector = !reference["selector"].is_null();
    if !name.is_empty() {
        let wrong = names::path_segment(name);
        errors.extend(wrong.into_iter().map(|message| FieldError::invalid("spec.paramRef.name", name, message)));
        if has_selector {
            errors.push(FieldError::forbidden("spec.paramRef.name", EXCLUSIVE));
        }
    }
    if has_selector {
        check_selector(&reference["selector"], "spec.paramRef.selector".to_owned(), errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden("spec.paramRef.selector", EXCLUSIVE));
        }
    }
    if name.is_empty() && !has_selector {
        errors.push(FieldError::required("spec.paramRef", "one of name or selector must be specified"));
    }
    let path = "spec.paramRef.parameterNotFoundAction";
    match text(reference, "parameterNotFoundAction") {
        "" => errors.push(FieldError::required(path, "")),
        "Allow" | "Deny" => {}
        other => errors.push(FieldError::not_supported(path, other, &["Deny", "Allow"])),
    }
}

/// Checks and declares the variables.
pub(super) fn check_variables(variables: &Value, scope: &mut Scope, errors: &mut Vec<FieldError>) {
    let composed = scope.compose(variables);
    for (at, (variable, composed)) in list(variables).iter().zip(composed).enumerate() {
        let path = format!("spec.variables[{at}]");
        let (name, expression) = (text(variable, "name"), text(variable, "expression"));
        let is_identifier = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
            && name.bytes().all(|c| c == b'_' || c.is_ascii_alphanumeric())
            && !RESERVED.contains(&name);
        if name.trim().is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), "name is not specified"));
        } else if !is_identifier {
            errors.push(FieldError::invalid(format!("{path}.name"), name, "name is not a valid CEL identifier"));
        }
        let path = format!("{path}.expression");
        if expression.trim().is_empty() {
            errors.push(FieldError::required(path, "expression is not specified"));
        } else if let Err(error) = composed.expression {
            errors.push(uncompiled(path, expression, &error));
        }
    }
}

fn uncompiled(path: String, expression: &str, error: &CompileError) -> FieldError {
    match error {
        CompileError::Internal(_) => FieldError::internal(path, error.to_string()),
        _ => FieldError::invalid(path, expression, error.to_string()),
    }
}

pub(super) fn check_expression(
    compiled: Result<Expression, CompileError>,
    expression: &str,
    path: String,
    errors: &mut Vec<FieldError>,
) {
    if let Err(error) = compiled {
        errors.push(uncompiled(path, expression, &error));
    }
}

fn check_validation(validation: &Value, path: &str, scope: &Scope, errors: &mut Vec<FieldError>) {
    let expression = text(validation, "expression");
    let own = format!("{path}.expression");
    if expression.trim().is_empty() {
        errors.push(FieldError::required(own, "expression is not specified"));
    } else {
        check_expression(scope.compile(expression, Expect::Bool), expression, own, errors);
    }
    let expression = text(validation, "messageExpression");
    let own = format!("{path}.messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        errors.push(FieldError::invalid(own, expression, "must be non-empty if specified"));
    } else if !expression.is_empty() {
        check_expression(scope.without_authorizer().compile(expression, Expect::String), expression, own, errors);
    }
    let message = text(validation, "message");
    if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(format!("{path}.message"), message, "message must be non-empty if specified"));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(format!("{path}.message"), message, "message must not contain line breaks"));
    }
    if let Some(reason) = validation["reason"].as_str().filter(|reason| !REASONS.contains(reason)) {
        errors.push(FieldError::not_supported(format!("{path}.reason"), reason, &REASONS));
    }
}

fn check_annotation(annotation: &Value, policy: &str, path: &str, scope: &Scope, errors: &mut Vec<FieldError>) {
    let key = text(annotation, "key");
    let own = format!("{path}.key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(own, key, "requires metadata.name be non-empty"));
    } else {
        let name = format!("{policy}/{key}");
        let wrong = names::qualified_name(&name);
        errors.extend(wrong.into_iter().map(|message| FieldError::invalid(own.clone(), name.as_str(), message)));
    }
    let expression = text(annotation, "valueExpression");
    let own = format!("{path}.valueExpression");
    if expression.trim().is_empty() {
        errors.push(FieldError::required(own, "valueExpression is not specified"));
    } else if expression.trim().len() > MAX_VALUE_EXPRESSION_BYTES {
        let detail = format!("must not exceed {MAX_VALUE_EXPRESSION_BYTES} bytes in length");
        errors.push(FieldError::required(own, detail));
    } else {
        check_expression(scope.compile(expression.trim(), Expect::StringOrNull), expression, own, errors);
    }
}
