//! Sets and maps that are written as lists have unique items.
//!
//! Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema/listtype`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::embedded::child;
use super::structural::Structural;
use crate::error::FieldError;

/// Checks all lists in `value`.
pub(crate) fn validate(path: &str, value: &Value, schema: &Structural) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(path, value, schema, &mut errors);
    errors
}

fn walk(path: &str, value: &Value, schema: &Structural, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if let Some(inner) = schema.properties.get(key) {
                    walk(&child(path, key), value, inner, errors);
                } else if let Some(inner) = schema.additional_schema() {
                    walk(&format!("{path}[{key}]"), value, inner, errors);
                }
            }
        }
        Value::Array(items) => {
            match schema.list_type.as_deref() {
                Some("set") => errors.extend(
                    repeated(items)
                        .into_iter()
                        .map(|i| FieldError::duplicate(format!("{path}[{i}]"), items[i].clone())),
                ),
                Some("map") => list_map(path, items, schema, errors),
                _ => {}
            }
            if let Some(inner) = schema.items.as_deref() {
                items.iter().enumerate().for_each(|(i, item)| walk(&format!("{path}[{i}]"), item, inner, errors));
            }
        }
        _ => {}
    }
}

/// Indices of second occurrences.
fn repeated(items: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(items.len());
    let mut out = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let times = seen.entry(item.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            out.push(i);
        }
    }
    out
}

fn list_map(path: &str, items: &[Value], schema: &Structural, errors: &mut Vec<FieldError>) {
    if let Some((i, wrong)) = items.iter().enumerate().find(|(_, item)| !item.is_null() && !item.is_object()) {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(format!("{path}[{i}]"), wrong.clone(), detail));
        return;
    }
    let keys: Vec<Value> = items.iter().map(|item| key_of(item, schema)).collect();
    errors.extend(repeated(&keys).into_iter().map(|i| FieldError::duplicate(format!("{path}[{i}]"), keys[i].clone())));
}

/// The fields of an item that tell it from others.
pub(crate) fn key_of(item: &Value, schema: &Structural) -> Value {
    let field = |key: &String| item.get(key).map(|value| (key.clone(), value.clone()));
    Value::Object(schema.list_keys.iter().filter_map(field).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::super::structural::parsed;
    use super::*;
    use serde_json::json;

    fn found(value: Value) -> Vec<String> {
        let schema = parsed(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"], "items": {"type": "object"}},
            "maps": {"type": "object", "additionalProperties": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object"}}}}}));
        validate("", &value, &schema).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn items_are_unique() {
        assert!(
            found(
                json!({"set": ["a", "b"], "map": [{"a": 1}, {"a": 1, "b": 1}, {}], "maps": {"x": [{"n": 1}, {"n": 2}]}})
            )
            .is_empty()
        );
        assert_eq!(found(json!({"set": ["a", "b", "a", "a"]})), ["set[2]: Duplicate value: \"a\""]);
        assert_eq!(
            found(json!({"map": [{"a": 1, "c": 1}, {"a": 1, "c": 2}, null, {}]})),
            ["map[1]: Duplicate value: {\"a\":1}", "map[3]: Duplicate value: {}"]
        );
        assert_eq!(found(json!({"maps": {"x": [{"n": 1}, {"n": 1}]}})), ["maps[x][1]: Duplicate value: {\"n\":1}"]);
        assert_eq!(
            found(json!({"map": [{}, 3]})),
            ["map[1]: Invalid value: 3: must be an object for an array of list-type map"]
        );
    }
}
