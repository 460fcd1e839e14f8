//! Metadata of objects inside of custom objects (`x-kubernetes-embedded-resource`).
//!
//! Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema/objectmeta`.

use serde_json::{Map, Value};

use super::structural::Structural;
use crate::error::FieldError;
use crate::{decode, meta, names};

/// Checks the types of `apiVersion`, `kind` and `metadata` wherever an object is embedded, and returns the fields of such metadata that
/// were unknown and dropped. `path` is how messages call `value`; empty for a whole object, whose own metadata is not looked at.
///
/// # Errors
/// The first value that has a wrong type.
pub(crate) fn coerce(path: &str, value: &mut Value, schema: &Structural) -> Result<Vec<String>, FieldError> {
    let mut complaints = Vec::new();
    walk(path, value, schema, &mut complaints)?;
    Ok(complaints)
}

fn walk(path: &str, value: &mut Value, schema: &Structural, complaints: &mut Vec<String>) -> Result<(), FieldError> {
    match value {
        Value::Object(map) => {
            if schema.embedded {
                types(path, map, complaints)?;
            }
            for (key, value) in map.iter_mut() {
                if let Some(inner) = schema.field(key) {
                    walk(&child(path, key), value, inner, complaints)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = schema.items.as_deref() else { return Ok(()) };
            for (i, item) in items.iter_mut().enumerate() {
                walk(&format!("{path}[{i}]"), item, inner, complaints)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn types(path: &str, map: &mut Map<String, Value>, complaints: &mut Vec<String>) -> Result<(), FieldError> {
    for key in ["apiVersion", "kind"] {
        if let Some(value) = map.get(key).filter(|value| !value.is_string()) {
            return Err(FieldError::invalid(child(path, key), value.clone(), "must be a string"));
        }
    }
    let Some(metadata) = map.get_mut("metadata") else { return Ok(()) };
    let at = child(path, "metadata");
    match decode::metadata(&at, metadata) {
        Ok(unknown) => complaints.extend(unknown),
        Err(why) => return Err(FieldError::invalid(at, metadata.clone(), why)),
    }
    Ok(())
}

/// Validates `apiVersion`, `kind` and `metadata` wherever an object is embedded.
pub(crate) fn validate(path: &str, value: &Value, schema: &Structural) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(path, value, schema, &mut errors);
    errors
}

fn check(path: &str, value: &Value, schema: &Structural, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            if schema.embedded {
                object(path, map, errors);
            }
            for (key, value) in map {
                let at = if schema.properties.contains_key(key) { child(path, key) } else { format!("{path}[{key}]") };
                if let Some(inner) = schema.field(key) {
                    check(&at, value, inner, errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = schema.items.as_deref() else { return };
            items.iter().enumerate().for_each(|(i, item)| check(&format!("{path}[{i}]"), item, inner, errors));
        }
        _ => {}
    }
}

fn object(path: &str, map: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    for key in ["apiVersion", "kind"] {
        let at = child(path, key);
        let text = match map.get(key) {
            None => "",
            Some(Value::String(text)) => text,
            Some(other) => {
                errors.push(FieldError::invalid(at, other.clone(), "must be a string"));
                continue;
            }
        };
        if text.is_empty() {
            errors.push(FieldError::required(at, ""));
        } else if key == "apiVersion" && text.matches('/').count() > 1 {
            errors.push(FieldError::invalid(at, text, format!("unexpected GroupVersion string: {text}")));
        } else if key == "kind" {
            let found = names::dns1035_label(&text.to_lowercase());
            if !found.is_empty() {
                let detail = format!("may have mixed case, but should otherwise match: {}", found.join(","));
                errors.push(FieldError::invalid(at, text, detail));
            }
        }
    }
    if let Some(metadata) = map.get("metadata") {
        errors.extend(meta::embedded(metadata, &child(path, "metadata")));
    }
}

/// The path of a field.
pub(crate) fn child(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::super::structural::parsed;
    use super::*;
    use serde_json::json;

    fn schema() -> Structural {
        parsed(&json!({"type": "object", "properties": {"templates": {"type": "array", "items": {"type": "object",
            "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}}))
    }

    #[test]
    fn types_are_checked_and_unknown_fields_told() {
        let mut value = json!({"templates": [{"metadata": {"name": "a", "x": 1, "creationTimestamp": null}}]});
        assert_eq!(coerce("", &mut value, &schema()).expect("fits"), ["unknown field \"templates[0].metadata.x\""]);
        assert_eq!(value, json!({"templates": [{"metadata": {"name": "a"}}]}));
        let refusal = |value: Value| coerce("", &mut value.clone(), &schema()).expect_err("refused").to_string();
        assert_eq!(
            refusal(json!({"templates": [{"kind": 1}]})),
            "templates[0].kind: Invalid value: 1: must be a string"
        );
        assert!(
            refusal(json!({"templates": [{"metadata": {"labels": {"a": 1}}}]}))
                .starts_with("templates[0].metadata: Invalid value: ")
        );
    }

    #[test]
    fn embedded_objects_have_kinds_and_valid_metadata() {
        let found =
            |value: Value| -> Vec<String> { validate("", &value, &schema()).iter().map(ToString::to_string).collect() };
        assert_eq!(
            found(json!({"templates": [{}, {"apiVersion": "a/b/c", "kind": "K-"}]})),
            [
                "templates[0].apiVersion: Required value",
                "templates[0].kind: Required value",
                "templates[1].apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "templates[1].kind: Invalid value: \"K-\": may have mixed case, but should otherwise match: a DNS-1035 label must consist \
                 of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character \
                 (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
            ]
        );
        assert_eq!(
            found(json!({"templates": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}}]})),
            ["templates[0].metadata.name: Invalid value: \"a/b\": may not contain '/'"]
        );
        assert!(found(json!({"templates": [{"apiVersion": "v1", "kind": "Pod", "metadata": {}}]})).is_empty());
    }
}
