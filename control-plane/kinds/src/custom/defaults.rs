//! Defaults of a schema must fit the schema.
//!
//! Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema/defaulting/validation.go`.

use super::structural::Structural;
use super::validate::{Target, validate};
use super::{embedded, prune};
use crate::error::FieldError;

/// Checks every default in a schema that messages call `path`.
pub(crate) fn check(schema: &Structural, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, path, &mut errors);
    errors
}

fn walk(schema: &Structural, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(default) = &schema.default {
        let at = format!("{path}.default");
        let mut fitted = default.clone();
        if !prune::prune(&mut fitted, schema, schema.embedded).is_empty() {
            errors.push(FieldError::invalid(at.as_str(), default.clone(), "must not have unknown fields"));
        }
        match embedded::coerce(&at, &mut fitted, schema) {
            Err(error) => errors.push(error),
            Ok(_) => {
                let found = embedded::validate(&at, &fitted, schema);
                if found.is_empty() {
                    errors.extend(validate(schema, &Target { value: default, old: None, prefix: &at }));
                } else {
                    errors.extend(found);
                }
            }
        }
    }
    if let Some(items) = &schema.items {
        walk(items, &format!("{path}.items"), errors);
    }
    for (name, field) in &schema.properties {
        walk(field, &format!("{path}.properties[{name}]"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::super::structural::parsed;
    use super::*;
    use serde_json::{Value, json};

    fn errors(field: Value) -> Vec<String> {
        let schema = parsed(&json!({"type": "object", "properties": {"a": field}}));
        check(&schema, "s").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_fit() {
        assert!(errors(json!({"type": "integer", "default": 1, "minimum": 1})).is_empty());
        assert_eq!(
            errors(json!({"type": "integer", "default": 0, "minimum": 1})),
            ["s.properties[a].default: Invalid value: 0:  in body should be greater than or equal to 1"]
        );
        assert_eq!(
            errors(json!({"type": "integer", "default": "x"})),
            ["s.properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\""]
        );
        assert_eq!(
            errors(json!({"type": "object", "default": {"b": 1, "c": 1}, "required": ["d"],
                "properties": {"c": {"type": "string"}, "d": {"type": "string"}}})),
            [
                "s.properties[a].default: Invalid value: {\"b\":1,\"c\":1}: must not have unknown fields",
                "s.properties[a].default.c: Invalid value: \"integer\": c in body must be of type string: \"integer\"",
                "s.properties[a].default.d: Required value",
            ]
        );
        assert_eq!(
            errors(
                json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
                "default": {"kind": "Pod"}})
            ),
            ["s.properties[a].default.apiVersion: Required value"]
        );
        assert_eq!(
            errors(json!({"type": "array", "items": {"type": "string", "default": 1}})),
            ["s.properties[a].items.default: Invalid value: \"integer\":  in body must be of type string: \"integer\""]
        );
    }
}
