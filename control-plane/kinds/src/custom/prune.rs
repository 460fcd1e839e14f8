//! Drops fields that a schema does not know, and says which.
//!
//! Invariant: pruning twice is pruning once. Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema/pruning`.

use serde_json::{Map, Value};

use super::structural::Structural;

/// Most unknown fields that are reported, as upstream.
const MAX_REPORTED: usize = 100;
/// Fields of every object, which no schema needs to name.
const META_FIELDS: &[&str] = &["apiVersion", "kind", "metadata"];

struct Pruner {
    path: String,
    unknown: Vec<String>,
}

/// Prunes `value`; `root` says that it is a whole object. Returns the paths of what was dropped.
pub(crate) fn prune(value: &mut Value, schema: &Structural, root: bool) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.value(value, Some(schema), root);
    pruner.unknown
}

impl Pruner {
    fn value(&mut self, value: &mut Value, schema: Option<&Structural>, root: bool) {
        if let Some(schema) = schema.filter(|s| s.preserve_unknown) {
            self.preserved(value, schema, root);
            return;
        }
        match value {
            Value::Object(map) => self.map(map, schema, root),
            Value::Array(items) => {
                let inner = schema.and_then(|s| s.items.as_deref());
                self.items(items, |pruner, item| pruner.value(item, inner, false));
            }
            _ => {}
        }
    }

    fn map(&mut self, map: &mut Map<String, Value>, schema: Option<&Structural>, root: bool) {
        let embedded = root || schema.is_some_and(|s| s.embedded);
        let mut dropped = Vec::new();
        for (key, value) in map.iter_mut() {
            if embedded && schema.is_some() && META_FIELDS.contains(&key.as_str()) {
                continue;
            }
            let known = schema.filter(|s| s.properties.contains_key(key) || s.additional.is_some());
            match known {
                Some(schema) => self.at(key, |pruner| pruner.value(value, schema.field(key), false)),
                None => dropped.push(key.clone()),
            }
        }
        for key in dropped {
            map.remove(&key);
            if self.unknown.len() < MAX_REPORTED {
                let dot = if self.path.is_empty() { "" } else { "." };
                self.unknown.push(format!("{}{dot}{key}", self.path));
            }
        }
    }

    /// Keeps unknown fields, and prunes inside of those that are known again.
    fn preserved(&mut self, value: &mut Value, schema: &Structural, root: bool) {
        match value {
            Value::Object(map) => {
                let embedded = root || schema.embedded;
                for (key, value) in map.iter_mut() {
                    if embedded && META_FIELDS.contains(&key.as_str()) {
                        continue;
                    }
                    if schema.properties.contains_key(key) || schema.additional.is_some() {
                        self.at(key, |pruner| pruner.value(value, schema.field(key), false));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(inner) = schema.items.as_deref() {
                    self.items(items, |pruner, item| pruner.preserved(item, inner, false));
                }
            }
            _ => {}
        }
    }

    fn items(&mut self, items: &mut [Value], inner: impl Fn(&mut Self, &mut Value)) {
        let len = self.path.len();
        for (i, item) in items.iter_mut().enumerate() {
            self.path.push_str(&format!("[{i}]"));
            inner(self, item);
            self.path.truncate(len);
        }
    }

    fn at(&mut self, key: &str, inner: impl FnOnce(&mut Self)) {
        let len = self.path.len();
        if len > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        inner(self);
        self.path.truncate(len);
    }
}

#[cfg(test)]
mod tests {
    use super::super::structural::parsed;
    use super::*;
    use serde_json::json;

    fn pruned(schema: Value, mut value: Value) -> (Value, Vec<String>) {
        let unknown = prune(&mut value, &parsed(&schema), true);
        (value, unknown)
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}}}}}});
        let (value, unknown) = pruned(
            schema,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "z": 1}, "top": 1,
                "spec": {"a": "b", "c": 1, "list": [{"x": 1}, {"x": 2, "y": 3}]}}),
        );
        assert_eq!(unknown, ["spec.list[1].y", "spec.c", "top"]);
        assert_eq!(
            value,
            json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "z": 1}, "spec": {"a": "b", "list": [{"x": 1}, {"x": 2}]}})
        );
    }

    #[test]
    fn preserved_fields_stay_but_known_ones_are_pruned_again() {
        let schema = json!({"type": "object", "properties": {"free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"strict": {"type": "object"}}}}});
        let (value, unknown) = pruned(schema, json!({"free": {"a": {"b": [{"c": 1}]}, "strict": {"d": 1}}}));
        assert_eq!(
            (value, unknown),
            (json!({"free": {"a": {"b": [{"c": 1}]}, "strict": {}}}), vec!["free.strict.d".to_owned()])
        );
    }

    #[test]
    fn maps_take_any_key_and_prune_their_values() {
        let schema = json!({"type": "object", "properties": {
            "typed": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "any": {"type": "object", "additionalProperties": true}}});
        let (value, unknown) =
            pruned(schema, json!({"typed": {"k": {"a": "x", "b": 1}}, "any": {"k": 1, "o": {"z": 1}}}));
        // As upstream: a map of anything keeps scalars, and objects without what is in them.
        assert_eq!(value, json!({"typed": {"k": {"a": "x"}}, "any": {"k": 1, "o": {}}}));
        assert_eq!(unknown, ["any.o.z", "typed.k.b"]);
    }

    #[test]
    fn embedded_resources_keep_their_metadata() {
        let schema = json!({"type": "object", "properties": {"t": {"type": "object", "x-kubernetes-embedded-resource": true,
            "properties": {"spec": {"type": "object"}}}}});
        let (value, unknown) =
            pruned(schema, json!({"t": {"kind": "K", "metadata": {"name": "n"}, "spec": {"a": 1}, "b": 1}}));
        assert_eq!(value, json!({"t": {"kind": "K", "metadata": {"name": "n"}, "spec": {}}}));
        assert_eq!(unknown, ["t.spec.a", "t.b"]);
    }
}
