//! Fills in the defaults of a schema.
//!
//! Nulls come first: where null is not allowed and there is no default, the field is dropped; where there is one, it replaces the
//! null. Invariant: defaulting twice is defaulting once. Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema/defaulting`.

use serde_json::Value;

use super::structural::Structural;

/// Drops nulls and fills in defaults.
pub(crate) fn default(value: &mut Value, schema: &Structural) {
    drop_nulls(value, Some(schema));
    fill(value, Some(schema));
    // A default may hold nulls itself.
    drop_nulls(value, Some(schema));
}

fn drop_nulls(value: &mut Value, schema: Option<&Structural>) {
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let inner = schema.and_then(|s| s.field(key));
            if value.is_null() && inner.is_some_and(|s| !s.nullable && s.default.is_none()) {
                return false;
            }
            drop_nulls(value, inner);
            true
        }),
        Value::Array(items) => {
            let inner = schema.and_then(|s| s.items.as_deref());
            items.iter_mut().for_each(|item| drop_nulls(item, inner));
        }
        _ => {}
    }
}

fn fill(value: &mut Value, schema: Option<&Structural>) {
    let Some(schema) = schema else { return };
    match value {
        Value::Object(map) => {
            for (name, field) in &schema.properties {
                let Some(default) = &field.default else { continue };
                if map.get(name).is_none_or(|value| value.is_null() && !field.nullable) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (key, value) in map.iter_mut() {
                let inner = schema.field(key);
                if !schema.properties.contains_key(key) {
                    replace_null(value, inner);
                }
                fill(value, inner);
            }
        }
        Value::Array(items) => {
            let inner = schema.items.as_deref();
            for item in items {
                replace_null(item, inner);
                fill(item, inner);
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, schema: Option<&Structural>) {
    if value.is_null()
        && let Some(default) = schema.filter(|s| !s.nullable).and_then(|s| s.default.as_ref())
    {
        *value = default.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::super::structural::parsed;
    use super::*;
    use serde_json::json;

    fn defaulted(schema: Value, mut value: Value) -> Value {
        default(&mut value, &parsed(&schema));
        value
    }

    #[test]
    fn defaults_are_nested() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
            "replicas": {"type": "integer", "default": 1},
            "ports": {"type": "array", "items": {"type": "object", "properties": {"protocol": {"type": "string", "default": "TCP"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "default": "x"}}}}}});
        assert_eq!(defaulted(schema.clone(), json!({})), json!({"spec": {"replicas": 1}}));
        assert_eq!(
            defaulted(
                schema,
                json!({"spec": {"replicas": 0, "ports": [{}, {"protocol": "UDP"}], "labels": {"a": null, "b": "c"}}})
            ),
            json!({"spec": {"replicas": 0, "ports": [{"protocol": "TCP"}, {"protocol": "UDP"}], "labels": {"a": "x", "b": "c"}}})
        );
    }

    #[test]
    fn nulls_are_kept_replaced_or_dropped() {
        let schema = json!({"type": "object", "properties": {
            "plain": {"type": "string"}, "with": {"type": "string", "default": "d"}, "free": {"type": "string", "nullable": true},
            "both": {"type": "string", "nullable": true, "default": "d"},
            "list": {"type": "array", "items": {"type": "string"}}, "filled": {"type": "array", "items": {"type": "string", "default": "i"}}}});
        assert_eq!(
            defaulted(
                schema,
                json!({"plain": null, "with": null, "free": null, "both": null, "list": [null], "filled": [null], "unknown": null})
            ),
            json!({"with": "d", "free": null, "both": null, "list": [null], "filled": ["i"], "unknown": null})
        );
    }
}
