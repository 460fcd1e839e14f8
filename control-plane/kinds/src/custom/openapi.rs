//! Schemas of custom kinds in OpenAPI documents.
//!
//! Version 2 cannot say everything; what kubectl would misread is left out, as upstream does. Upstream counterparts:
//! `apiextensions-apiserver/pkg/controller/openapi/builder` and `openapi/v2`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::version::Version;
use crate::schema::{self, Root};
use crate::val;

/// What every custom kind refers to.
pub(super) const ROOT: Root = schema::root::<ObjectMeta>();

const OBJECT_META: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the \
     latest internal value, and may reject unrecognized values. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the \
     client submits requests to. Cannot be updated. In CamelCase. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// The definition's name: the group's parts from right to left, version and kind.
pub(super) fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// The schema of a version in a document of OpenAPI v3.
pub(crate) fn v3(version: &Version) -> Value {
    let mut schema = version.source().clone();
    complete(&mut schema, false);
    whole(&mut schema);
    schema
}

/// The schema in the form of OpenAPI v2, with references still as v3 writes them.
pub(crate) fn v2(version: &Version) -> Value {
    let mut schema = version.source().clone();
    if val::flag(&schema, "x-kubernetes-preserve-unknown-fields") {
        return json!({"type": "object"});
    }
    simplify(&mut schema);
    complete(&mut schema, true);
    whole(&mut schema);
    schema
}

fn property(schema: &mut Value, name: &str, value: Value) {
    val::set(val::child(schema, "properties"), name, value);
}

fn metadata() -> Value {
    json!({"description": METADATA, "allOf": [{"$ref": OBJECT_META}]})
}

/// Adds what every object has.
fn whole(schema: &mut Value) {
    val::default(schema, "type", "object");
    property(schema, "apiVersion", json!({"type": "string", "description": API_VERSION}));
    property(schema, "kind", json!({"type": "string", "description": KIND}));
    property(schema, "metadata", metadata());
}

/// Runs on every schema inside of a schema.
fn inner(schema: &mut Value, run: &mut dyn FnMut(&mut Value)) {
    for key in ["items", "additionalProperties"] {
        schema.get_mut(key).filter(|inner| inner.is_object()).into_iter().for_each(&mut *run);
    }
    schema
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(Map::values_mut)
        .for_each(&mut *run);
}

/// Says of embedded objects what they have, and of integers or strings that they are one of both.
fn complete(schema: &mut Value, v2: bool) {
    inner(schema, &mut |inner| complete(inner, v2));
    val::remove(schema, "example");
    val::remove(schema, "externalDocs");
    if val::flag(schema, "x-kubernetes-int-or-string") && !v2 && val::list(schema, "anyOf").is_empty() {
        val::set(schema, "anyOf", json!([{"type": "integer"}, {"type": "string"}]));
    }
    let free = v2 && val::flag(schema, "x-kubernetes-preserve-unknown-fields");
    if val::flag(schema, "x-kubernetes-embedded-resource") && !free {
        property(schema, "apiVersion", json!({"type": "string", "description": API_VERSION}));
        property(schema, "kind", json!({"type": "string", "description": KIND}));
        property(schema, "metadata", metadata());
        let mut required = val::list(schema, "required").to_vec();
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == name) {
                required.push(json!(name));
            }
        }
        val::set(schema, "required", required);
    }
}

/// Leaves out what v2 does not know or kubectl misreads.
fn simplify(schema: &mut Value) {
    let nullable = |value: &Value| val::flag(value, "nullable");
    let names: Vec<String> =
        val::entries(schema, "properties").filter(|(_, value)| nullable(value)).map(|(name, _)| name.clone()).collect();
    let any = schema.get("additionalProperties").is_some_and(nullable);
    let mut required = val::list(schema, "required").to_vec();
    required.retain(|name| !any && !names.iter().any(|nullable| name == nullable));
    if required.is_empty() {
        val::remove(schema, "required");
    } else {
        val::set(schema, "required", required);
    }
    for key in ["allOf", "anyOf", "oneOf", "not"] {
        val::remove(schema, key);
    }
    let mut dropped: Vec<&str> = Vec::new();
    if nullable(schema) {
        dropped.extend(["type", "nullable", "items", "properties"]);
    }
    if val::flag(schema, "x-kubernetes-preserve-unknown-fields") {
        dropped.extend(["items", "properties"]);
        if val::text(schema, "type") == "object" {
            dropped.push("type");
        }
    }
    for key in dropped {
        val::remove(schema, key);
    }
    if val::text(schema, "type") == "array" && schema.get("items").is_none() {
        val::remove(schema, "type");
    }
    inner(schema, &mut simplify);
}
