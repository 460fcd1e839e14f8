//! The schema of `ObjectMeta`, which those of custom resources leave out.

use std::sync::OnceLock;

use serde_json::{Value, json};

/// `ObjectMeta` as a structural schema.
pub(super) fn object_meta() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let text = json!({"type": "string"});
        let time = json!({"type": "string", "format": "date-time"});
        let number = json!({"type": "integer"});
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        json!({
            "type": "object",
            "properties": {
                "annotations": texts,
                "creationTimestamp": time,
                "deletionGracePeriodSeconds": number,
                "deletionTimestamp": time,
                "finalizers": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
                "generateName": text,
                "generation": number,
                "labels": texts,
                "managedFields": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "atomic"},
                "name": text,
                "namespace": text,
                "ownerReferences": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "apiVersion": text,
                            "blockOwnerDeletion": {"type": "boolean"},
                            "controller": {"type": "boolean"},
                            "kind": text,
                            "name": text,
                            "uid": text,
                        },
                        "x-kubernetes-map-type": "atomic",
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["uid"],
                },
                "resourceVersion": text,
                "selfLink": text,
                "uid": text,
            },
        })
    })
}

/// `apiVersion` and `kind`.
pub(super) fn text() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| json!({"type": "string"}))
}
