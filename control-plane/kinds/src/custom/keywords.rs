//! What an OpenAPI v3 schema of a definition may say at all, before it is asked whether it is structural.
//!
//! Upstream counterpart: `ValidateCustomResourceDefinitionOpenAPISchema` in
//! `apiextensions-apiserver/pkg/apis/apiextensions/validation`.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::FieldError;
use crate::val;

/// Types of OpenAPI v3, in upstream's order.
const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
/// Reasons that a rule may give.
const META_FIELDS: &[&str] = &["metadata", "kind", "apiVersion"];

/// Where a schema stands.
#[derive(Clone, Default)]
struct Place {
    root: bool,
    inside_metadata: bool,
    /// Why defaults are forbidden, if they are.
    no_defaults: Option<String>,
}

/// Checks a whole schema that messages call `path`. Its depth must have been checked before.
pub(crate) fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, path, &Place { root: true, ..Place::default() }, &mut errors);
    errors
}

fn walk(schema: &Value, path: &str, place: &Place, errors: &mut Vec<FieldError>) {
    keywords(schema, path, place, errors);
    let (at_root, inner) = (place.root, Place { root: false, ..place.clone() });
    if val::flag(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(format!("{path}.uniqueItems"), detail));
    }
    let properties = val::map(schema, "properties").filter(|map| !map.is_empty());
    if let Some(additional) = schema.get("additionalProperties") {
        let at = format!("{path}.additionalProperties");
        if properties.is_some() && *additional != json!(true) {
            errors.push(FieldError::forbidden(at.as_str(), "additionalProperties and properties are mutual exclusive"));
        }
        if additional.is_object() {
            let mut place = inner.clone();
            if place.inside_metadata {
                place.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
            }
            walk(additional, &at, &place, errors);
        }
    }
    for (name, field) in properties.into_iter().flatten() {
        let mut place = inner.clone();
        let is_object = at_root || val::flag(schema, "x-kubernetes-embedded-resource");
        if is_object && META_FIELDS.contains(&name.as_str()) {
            place.inside_metadata = true;
            if at_root {
                place.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        walk(field, &format!("{path}.properties[{name}]"), &place, errors);
    }
    for key in ["not", "items"] {
        if let Some(value) = schema.get(key).filter(|value| value.is_object()) {
            walk(value, &format!("{path}.{key}"), &inner, errors);
        }
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        for (i, value) in val::list(schema, key).iter().enumerate() {
            walk(value, &format!("{path}.{key}[{i}]"), &inner, errors);
        }
    }
    extensions(schema, path, errors);
}

fn keywords(schema: &Value, path: &str, place: &Place, errors: &mut Vec<FieldError>) {
    let kind = val::text(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(format!("{path}.type"), kind, TYPES));
    }
    if let Some(why) = &place.no_defaults
        && schema.get("default").is_some_and(|value| !value.is_null())
    {
        errors.push(FieldError::forbidden(format!("{path}.default"), format!("must not be set {why}")));
    }
    let given = |key: &str| match schema.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(s)) => !s.is_empty() || key == "$ref",
        Some(Value::Object(map)) => key == "additionalItems" || !map.is_empty(),
        Some(_) => true,
    };
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if given(key) {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("{key} is not supported")));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(format!("{path}.type"), detail));
    }
    if schema.get("items").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        errors.push(FieldError::forbidden(format!("{path}.items"), "items must be a schema object and not an array"));
    }
    if place.inside_metadata && val::flag(schema, "x-kubernetes-embedded-resource") {
        let detail = "must not be used inside of resource meta";
        errors.push(FieldError::forbidden(format!("{path}.x-kubernetes-embedded-resource"), detail));
    }
}

fn extensions(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = val::text(schema, "type");
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        let at = format!("{path}.x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(at, false, "must be true or undefined"));
    }
    let mut must_be = |wanted: &str, extension: &str| {
        let detail = format!("must be {wanted} if {extension} is specified");
        let at = format!("{path}.type");
        errors.push(if kind.is_empty() {
            FieldError::required(at, detail)
        } else {
            FieldError::invalid(at, kind, detail)
        });
    };
    let (map_type, list_type) =
        (val::text(schema, "x-kubernetes-map-type"), val::text(schema, "x-kubernetes-list-type"));
    if !map_type.is_empty() && kind != "object" {
        must_be("object", "x-kubernetes-map-type");
    }
    if !list_type.is_empty() && kind != "array" {
        must_be("array", "x-kubernetes-list-type");
    } else if list_type == "set" {
        set_items(schema, path, errors);
    }
    for (name, given, valid) in [
        ("x-kubernetes-map-type", map_type, &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", list_type, &["atomic", "set", "map"][..]),
    ] {
        if !given.is_empty() && !valid.contains(&given) {
            errors.push(FieldError::not_supported(format!("{path}.{name}"), given, valid));
        }
    }
    if !val::list(schema, "x-kubernetes-list-map-keys").is_empty() && list_type != "map" {
        let (at, detail) =
            (format!("{path}.x-kubernetes-list-type"), "must be map if x-kubernetes-list-map-keys is non-empty");
        errors.push(if list_type.is_empty() {
            FieldError::required(at, detail)
        } else {
            FieldError::invalid(at, list_type, detail)
        });
    }
    if list_type == "map" {
        list_map(schema, path, errors);
    }
    if matches!(list_type, "set" | "map") {
        list_items(schema, list_type, path, errors);
    }
}

/// Items of a set are compared as a whole.
fn set_items(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(items) = schema.get("items").filter(|items| items.is_object()) else { return };
    let (name, given, wrong) = match val::text(items, "type") {
        "array" => {
            let given = val::text(items, "x-kubernetes-list-type");
            ("x-kubernetes-list-type", given, !matches!(given, "" | "atomic"))
        }
        "object" => {
            let given = val::text(items, "x-kubernetes-map-type");
            ("x-kubernetes-map-type", given, given != "atomic")
        }
        _ => return,
    };
    if wrong {
        let shown = if given.is_empty() { Value::Null } else { json!(given) };
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        errors.push(FieldError::invalid(format!("{path}.items.{name}"), shown, detail));
    }
}

fn list_map(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let keys = val::list(schema, "x-kubernetes-list-map-keys");
    if keys.is_empty() {
        let at = format!("{path}.x-kubernetes-list-map-keys");
        errors.push(FieldError::required(at, "must not be empty if x-kubernetes-list-type is map"));
    }
    let items = match schema.get("items") {
        None | Some(Value::Null) => {
            let detail = "must have a schema if x-kubernetes-list-type is map";
            errors.push(FieldError::required(format!("{path}.items"), detail));
            return;
        }
        Some(items @ Value::Object(_)) => items,
        Some(other) => {
            let detail = "must only have a single schema if x-kubernetes-list-type is map";
            errors.push(FieldError::invalid(format!("{path}.items"), other.clone(), detail));
            return;
        }
    };
    let kind = val::text(items, "type");
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(format!("{path}.items.type"), kind, detail));
        return;
    }
    let mut seen = HashSet::new();
    for key in keys.iter().filter_map(Value::as_str) {
        let mut refuse = |detail: &str| {
            let at = format!("{path}.x-kubernetes-list-map-keys");
            errors.push(FieldError::invalid(at, keys.to_vec(), detail));
        };
        let field = val::map(items, "properties").and_then(|map| map.get(key));
        if field.is_none() {
            refuse("entries must all be names of item properties");
        }
        if !seen.insert(key) {
            refuse("must not contain duplicate entries");
        }
        if field.is_some_and(|field| matches!(val::text(field, "type"), "array" | "object")) {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.push(FieldError::invalid(format!("{path}.items.properties[{key}].type"), kind, detail));
        }
    }
}

/// Items of sets and maps are always there, and the keys of maps have values.
fn list_items(schema: &Value, list_type: &str, path: &str, errors: &mut Vec<FieldError>) {
    let Some(items) = schema.get("items").filter(|items| items.is_object()) else { return };
    if val::flag(items, "nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(format!("{path}.items.nullable"), detail));
    }
    if list_type != "map" {
        return;
    }
    for key in val::list(schema, "x-kubernetes-list-map-keys").iter().filter_map(Value::as_str) {
        let Some(field) = val::map(items, "properties").and_then(|map| map.get(key)) else { continue };
        let at = format!("{path}.items.properties[{key}]");
        let required = val::list(items, "required").iter().any(|name| name == key);
        if !required && field.get("default").is_none_or(Value::is_null) {
            errors.push(FieldError::required(
                format!("{at}.default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ));
        }
        if val::flag(field, "nullable") {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(format!("{at}.nullable"), detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(schema: &Value) -> Vec<String> {
        check(schema, "s").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keywords_of_other_drafts_are_forbidden() {
        assert_eq!(
            errors(
                &json!({"type": "null", "$ref": "#/definitions/a", "id": "x", "definitions": {"a": {}}, "dependencies": {"a": ["b"]},
                "patternProperties": {"a": {}}, "additionalItems": true, "items": [{}], "uniqueItems": true})
            ),
            [
                "s.type: Unsupported value: \"null\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
                "s.id: Forbidden: id is not supported",
                "s.additionalItems: Forbidden: additionalItems is not supported",
                "s.patternProperties: Forbidden: patternProperties is not supported",
                "s.definitions: Forbidden: definitions is not supported",
                "s.dependencies: Forbidden: dependencies is not supported",
                "s.$ref: Forbidden: $ref is not supported",
                "s.type: Forbidden: type cannot be set to null, use nullable as an alternative",
                "s.items: Forbidden: items must be a schema object and not an array",
                "s.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ]
        );
    }

    #[test]
    fn fields_are_named_or_free() {
        let with = |additional: Value| errors(&json!({"properties": {"a": {}}, "additionalProperties": additional}));
        assert!(with(json!(true)).is_empty());
        for additional in [json!(false), json!({})] {
            assert_eq!(
                with(additional),
                ["s.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"]
            );
        }
    }

    #[test]
    fn metadata_has_no_defaults() {
        assert_eq!(
            errors(
                &json!({"properties": {"metadata": {"default": {}}, "kind": {"default": "x"}, "a": {"default": 1}}})
            ),
            [
                "s.properties[kind].default: Forbidden: must not be set in top-level kind",
                "s.properties[metadata].default: Forbidden: must not be set in top-level metadata",
            ]
        );
    }

    #[test]
    fn lists_and_maps_have_types() {
        assert_eq!(
            errors(&json!({"x-kubernetes-map-type": "x", "x-kubernetes-list-map-keys": ["a"]})),
            [
                "s.type: Required value: must be object if x-kubernetes-map-type is specified",
                "s.x-kubernetes-map-type: Unsupported value: \"x\": supported values: \"atomic\", \"granular\"",
                "s.x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
            ]
        );
        assert_eq!(
            errors(
                &json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object", "nullable": true}})
            ),
            [
                "s.items.x-kubernetes-map-type: Invalid value: \"null\": must be atomic as item of a list with \
                 x-kubernetes-list-type=set",
                "s.items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
            ]
        );
        let map = |keys: Value, items: Value| {
            errors(
                &json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items}),
            )
        };
        let items = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string"}, "b": {"type": "string", "default": "x"}, "c": {"type": "object", "nullable": true}}});
        assert!(map(json!(["a", "b"]), items.clone()).is_empty());
        assert_eq!(
            map(json!(["a", "a", "c", "d"]), items),
            [
                "s.x-kubernetes-list-map-keys: Invalid value: [\"a\",\"a\",\"c\",\"d\"]: must not contain duplicate entries",
                "s.items.properties[c].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is \
                 map",
                "s.x-kubernetes-list-map-keys: Invalid value: [\"a\",\"a\",\"c\",\"d\"]: entries must all be names of item properties",
                "s.items.properties[c].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default \
                 or be a required property",
                "s.items.properties[c].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ]
        );
        assert_eq!(
            map(json!([]), json!({"type": "string"})),
            [
                "s.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
                "s.items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
            ]
        );
    }
}
