//! Types from the structural OpenAPI v3 schemas of custom resources.
//!
//! Facts: a list is atomic unless `x-kubernetes-list-type` says otherwise; a map is granular unless `x-kubernetes-map-type` says
//! `atomic`; a schema without a type, and a value under `x-kubernetes-int-or-string`, may be anything;
//! `x-kubernetes-preserve-unknown-fields` holds for all below; a whole object and `x-kubernetes-embedded-resource` have `apiVersion`,
//! `kind` and `ObjectMeta` besides what they declare. A list of maps without keys is atomic here; upstream refuses such a schema.

use serde_json::Value;

use super::{Forms, Key, List, Relation, Scalar, Type, metadata};

/// A node of a structural schema.
#[derive(Clone, Copy, Debug)]
pub struct JsonSchema<'a> {
    /// `None`: nothing is known.
    schema: Option<&'a Value>,
    /// Fields that are not declared are kept.
    preserve: bool,
    /// The node is a whole object.
    object: bool,
}

impl<'a> JsonSchema<'a> {
    /// The type of whole objects: `spec.versions[].schema.openAPIV3Schema` of a definition.
    #[must_use]
    pub const fn object(schema: &'a Value) -> Self {
        Self { schema: Some(schema), preserve: false, object: true }
    }

    /// The type of whole objects of a definition with `spec.preserveUnknownFields` or without a schema.
    #[must_use]
    pub const fn untyped() -> Self {
        Self { schema: None, preserve: true, object: false }
    }

    /// The type of a part of an object.
    #[must_use]
    pub const fn node(schema: &'a Value) -> Self {
        Self { schema: Some(schema), preserve: false, object: false }
    }

    fn below(self, schema: &'a Value) -> Self {
        Self { schema: Some(schema), preserve: self.preserves(), object: false }
    }

    fn get(self, key: &str) -> Option<&'a Value> {
        self.schema?.get(key)
    }

    fn is(self, key: &str) -> bool {
        self.get(key) == Some(&Value::Bool(true))
    }

    fn text(self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    fn preserves(self) -> bool {
        self.preserve || self.is("x-kubernetes-preserve-unknown-fields")
    }

    fn properties(self) -> Option<&'a serde_json::Map<String, Value>> {
        self.get("properties").and_then(Value::as_object).filter(|map| !map.is_empty())
    }

    fn whole(self) -> bool {
        self.object || self.is("x-kubernetes-embedded-resource")
    }
}

impl<'a> Type<'a> for JsonSchema<'a> {
    fn forms(self) -> Forms {
        if self.is_deduced() {
            return Forms::ANY;
        }
        match self.text("type") {
            Some("array") => Forms::LIST,
            Some("integer" | "number") => Forms::scalar(Scalar::Numeric),
            Some("boolean") => Forms::scalar(Scalar::Boolean),
            Some("string") => match self.text("format") {
                None | Some("" | "byte") => Forms::scalar(Scalar::String),
                Some(_) => Forms::scalar(Scalar::Untyped),
            },
            _ => Forms::MAP,
        }
    }

    fn list(self) -> List<'a, Self> {
        let item = match self.get("items") {
            Some(items) => self.below(items),
            None => Self::untyped(),
        };
        let relation = match self.text("x-kubernetes-list-type") {
            Some("set") => Relation::Set,
            Some("map") => {
                let keys: Vec<_> = self
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(|name| Key {
                        name,
                        default: item.properties().and_then(|fields| fields.get(name)).and_then(|f| f.get("default")),
                    })
                    .collect();
                if keys.is_empty() { Relation::Atomic } else { Relation::Keyed(keys) }
            }
            _ => Relation::Atomic,
        };
        List { item, relation }
    }

    fn is_atomic_map(self) -> bool {
        self.text("x-kubernetes-map-type") == Some("atomic")
    }

    fn field(self, name: &str) -> Option<Self> {
        if self.whole() {
            match name {
                "metadata" => return Some(JsonSchema::node(metadata::object_meta())),
                "apiVersion" | "kind" => return Some(JsonSchema::node(metadata::text())),
                _ => {}
            }
        }
        self.properties()?.get(name).map(|schema| self.below(schema))
    }

    fn has_fields(self) -> bool {
        self.whole() || self.properties().is_some()
    }

    fn entry(self) -> Option<Self> {
        if self.is_deduced() {
            return Some(self);
        }
        match self.get("additionalProperties") {
            Some(schema @ Value::Object(_)) => Some(self.below(schema)),
            Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(Self::untyped()),
            _ if self.preserves() || self.properties().is_none() => Some(Self::untyped()),
            _ => None,
        }
    }

    fn is_deduced(self) -> bool {
        self.schema.is_none()
            || self.is("x-kubernetes-int-or-string")
            || (!self.whole() && self.text("type").is_none() && self.properties().is_none())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_objects_have_metadata() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
        let root = JsonSchema::object(&schema);
        let finalizers = root.field("metadata").and_then(|m| m.field("finalizers")).expect("finalizers");
        assert!(matches!(finalizers.list().relation, Relation::Set));
        assert!(root.child("other").is_none());
        let spec = root.field("spec").expect("spec");
        assert!(spec.child("metadata").is_none());
        assert_eq!(spec.field("n").expect("n").forms(), Forms::scalar(Scalar::Numeric));
    }

    #[test]
    fn lists_and_maps_follow_their_marks() {
        let schema = json!({"type": "object", "properties": {
            "plain": {"type": "array", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
            "keyless": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}},
        }});
        let root = JsonSchema::node(&schema);
        assert!(matches!(root.field("plain").expect("plain").list().relation, Relation::Atomic));
        assert!(matches!(root.field("keyless").expect("keyless").list().relation, Relation::Atomic));
        let Relation::Keyed(keys) = root.field("ports").expect("ports").list().relation else { panic!("keyed") };
        assert_eq!(keys.iter().map(|k| k.name).collect::<Vec<_>>(), ["port", "protocol"]);
        assert_eq!(keys[1].default, Some(&json!("TCP")));
        assert!(keys[0].default.is_none());
        assert!(root.field("whole").expect("whole").is_atomic_map());
    }

    #[test]
    fn what_is_not_declared_depends_on_the_marks() {
        let schema = json!({"type": "object", "properties": {
            "port": {"x-kubernetes-int-or-string": true},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"in": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true},
        }});
        let root = JsonSchema::node(&schema);
        assert_eq!(root.field("port").expect("port").forms(), Forms::ANY);
        let any = root.field("any").expect("any");
        assert!(any.child("x").expect("kept").is_deduced());
        assert!(any.field("in").expect("in").child("y").is_some(), "holds for all below");
        assert_eq!(root.field("labels").expect("labels").child("x").expect("x").forms(), Forms::scalar(Scalar::String));
        assert!(root.field("pod").and_then(|p| p.field("metadata")).and_then(|m| m.field("labels")).is_some());
        assert!(root.child("x").is_none());
    }
}
