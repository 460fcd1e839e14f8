//! What is wrong with the rules of a schema.
//!
//! Upstream counterpart: `apiextensions/validation/validation.go`.

use std::fmt::Write;

use serde_json::Value;

use super::compile;
use crate::expression::{CompileError, Expect};
use kube_common::field::FieldError;

const MAX_MESSAGE_CHARS: usize = 2048;
/// Characters of an overlong message that its error shows.
const SHOWN_MESSAGE_CHARS: usize = 10;
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

pub(super) fn rules(schema: &Value) -> &[Value] {
    schema["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What is wrong with the rules of a structural schema at `path`
/// (`spec.versions[0].schema.openAPIV3Schema`).
#[must_use]
pub fn validate(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, schema, path, None, &mut errors);
    errors
}

/// `uncorrelatable` is the path of the list above whose items correlate with nothing.
fn walk(validation: &Value, schema: &Value, path: &str, uncorrelatable: Option<&str>, errors: &mut Vec<FieldError>) {
    for (at, rule) in rules(validation).iter().enumerate() {
        check(rule, schema, &format!("{path}.x-kubernetes-validations[{at}]"), uncorrelatable, errors);
    }
    for (name, own) in validation["properties"].as_object().into_iter().flatten() {
        walk(own, &schema["properties"][name], &format!("{path}.properties[{name}]"), uncorrelatable, errors);
    }
    if let Some(own) = validation.get("additionalProperties").filter(|own| own.is_object()) {
        walk(own, &schema["additionalProperties"], &format!("{path}.additionalProperties"), uncorrelatable, errors);
    }
    if let Some(own) = validation.get("items") {
        let here = (schema["x-kubernetes-list-type"] != "map").then_some(path);
        walk(own, &schema["items"], &format!("{path}.items"), uncorrelatable.or(here), errors);
    }
    for (at, own) in validation["allOf"].as_array().into_iter().flatten().enumerate() {
        walk(own, schema, &format!("{path}.allOf[{at}]"), uncorrelatable, errors);
    }
}

fn check(rule: &Value, schema: &Value, path: &str, uncorrelatable: Option<&str>, errors: &mut Vec<FieldError>) {
    let text = |field: &str| rule[field].as_str().unwrap_or_default();
    let (source, message) = (text("rule"), text("message"));
    let has_breaks = |text: &str| text.trim().contains(['\n', '\r']);
    let own = format!("{path}.message");
    if source.trim().is_empty() {
        errors.push(FieldError::required(format!("{path}.rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(own, message, "message must be non-empty if specified"));
    } else if message.len() > MAX_MESSAGE_CHARS {
        let shown: String = message.chars().take(SHOWN_MESSAGE_CHARS).collect();
        let detail = format!("message must have a maximum length of {MAX_MESSAGE_CHARS} characters");
        errors.push(FieldError::invalid(own, format!("{shown}..."), detail));
    } else if has_breaks(message) {
        errors.push(FieldError::invalid(own, message, "message must not contain line breaks"));
    } else if has_breaks(source) && message.trim().is_empty() {
        errors.push(FieldError::required(own, "message must be specified if rule contains line breaks"));
    }
    if let Some(reason) = rule["reason"].as_str().filter(|reason| !REASONS.contains(reason)) {
        errors.push(FieldError::not_supported(format!("{path}.reason"), reason, &REASONS));
    }
    check_field_path(text("fieldPath"), schema, path, errors);
    check_expressions(rule, schema, path, uncorrelatable, errors);
}

fn check_field_path(field_path: &str, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let own = format!("{path}.fieldPath");
    if field_path.is_empty() {
        return;
    }
    if field_path.trim().is_empty() {
        errors.push(FieldError::invalid(own, field_path, "fieldPath must be non-empty if specified"));
    } else if field_path.contains(['\n', '\r']) {
        errors.push(FieldError::invalid(own, field_path, "fieldPath must not contain line breaks"));
    } else if let Err(error) = normal_path(field_path.trim(), schema) {
        errors.push(FieldError::invalid(own, field_path, format!("fieldPath must be a valid path: {error}")));
    }
}

fn check_expressions(
    rule: &Value,
    schema: &Value,
    path: &str,
    uncorrelatable: Option<&str>,
    errors: &mut Vec<FieldError>,
) {
    let source = rule["rule"].as_str().unwrap_or_default();
    let optional = rule["optionalOldSelf"] == true;
    let own = format!("{path}.rule");
    if !source.trim().is_empty() {
        match compile(source, schema, optional, Expect::Bool) {
            Ok(expression) => {
                if let Some(above) = uncorrelatable.filter(|_| expression.reads("oldSelf")) {
                    let detail =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {above}");
                    errors.push(FieldError::invalid(own, source, detail));
                }
            }
            Err(CompileError::WrongType { .. }) => {
                errors.push(FieldError::invalid(own, rule.clone(), "cel expression must evaluate to a bool"));
            }
            Err(error) => errors.push(FieldError::invalid(own, rule.clone(), error.to_string())),
        }
    }
    let source = rule["messageExpression"].as_str().unwrap_or_default();
    let own = format!("{path}.messageExpression");
    if !source.is_empty() && source.trim().is_empty() {
        errors.push(FieldError::required(own, "messageExpression must be non-empty if specified"));
    } else if !source.is_empty() {
        match compile(source, schema, false, Expect::String) {
            Ok(_) => {}
            Err(CompileError::WrongType { .. }) => {
                errors.push(FieldError::invalid(own, rule.clone(), "messageExpression must evaluate to a string"));
            }
            Err(error) => errors.push(FieldError::invalid(own, rule.clone(), format!("messageExpression {error}"))),
        }
    }
}

/// A rule's `fieldPath` as errors show it: `.a.b`, `.labels[x]`.
pub(super) fn normal_path(path: &str, schema: &Value) -> Result<String, String> {
    let mut out = String::new();
    let (mut rest, mut schema) = (path, schema);
    while !rest.is_empty() {
        let name = if let Some(after) = rest.strip_prefix("['") {
            let end = after.find("']").ok_or("unexpected end of JSON path")?;
            rest = &after[end + 2..];
            after[..end].to_owned()
        } else if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            rest = &after[end..];
            after[..end].to_owned()
        } else {
            return Err(format!("expected [ or . but got: {rest}"));
        };
        if let Some(properties) = schema.get("properties") {
            schema = properties.get(&name).ok_or("does not refer to a valid field")?;
            let _ = write!(out, ".{name}");
        } else if let Some(additional) = schema.get("additionalProperties").filter(|own| own.is_object()) {
            schema = additional;
            let _ = write!(out, "[{name}]");
        } else {
            return Err("does not refer to a valid field".to_owned());
        }
    }
    Ok(out)
}
