//! OpenAPI v3 documents, built on demand from the schemas of `k8s-openapi`.
//!
//! What clients read of them: kubectl's `explain` walks the schemas by `x-kubernetes-group-version-kind`; its validation asks whether
//! the patch operation of a kind has a `fieldValidation` parameter and then leaves validation to the server; its `apply` takes patch
//! strategies from `x-kubernetes-patch-*` when the patch operation accepts strategic merge patches. Nothing is kept: a document is a
//! few megabytes, is asked for rarely and is cached by clients under its hash.
//!
//! Everything here works on a table of resources: [`crate::resources`], or [`crate::custom::Registry::all`].
//!
//! Upstream counterpart: `kube-openapi/pkg/handler3`.

mod paths;
mod v2;

pub use v2::{v2_document, v2_hash};

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use crate::discovery::GIT_VERSION;
use crate::resource::Resource;
use crate::schema;
use crate::{custom, list_types, merge_keys};

/// Raised whenever the documents change in a way that the table of resources does not show.
const FORMAT: u32 = 3;

/// Paths of all documents, `api/v1`, `apis/apps/v1` …, with their resources.
fn documents(table: &[&'static Resource]) -> Vec<(String, Vec<&'static Resource>)> {
    let mut out: Vec<(String, Vec<&Resource>)> = Vec::new();
    for res in table.iter().copied() {
        let path = if res.group.is_empty() {
            format!("api/{}", res.version)
        } else {
            format!("apis/{}/{}", res.group, res.version)
        };
        match out.iter_mut().find(|(p, _)| *p == path) {
            Some((_, list)) => list.push(res),
            None => out.push((path, vec![res])),
        }
    }
    out
}

/// `/openapi/v3`: the index, path to relative URL with a content hash.
#[must_use]
pub fn index(table: &[&'static Resource]) -> Value {
    let mut paths = Map::new();
    for (path, list) in documents(table) {
        let url = format!("/openapi/v3/{path}?hash={}", hash(&path, &list));
        paths.insert(path, json!({ "serverRelativeURL": url }));
    }
    json!({ "paths": paths })
}

/// The documents follow from the types, which the release names, and from the table.
fn hash(path: &str, list: &[&Resource]) -> String {
    let resource = |res: &&Resource| {
        let subresources: Vec<_> = res.subresources.iter().map(|sub| (sub.name, sub.kind, sub.verbs.len())).collect();
        (res.plural, res.kind, res.verbs.len(), subresources, fingerprint(res))
    };
    hash_of(&(FORMAT, path, list.iter().map(resource).collect::<Vec<_>>()))
}

/// What a custom kind's schema is told by.
fn fingerprint(res: &Resource) -> u64 {
    res.strategy.custom().map_or(0, |version| version.fingerprint())
}

/// A hash of anything together with the release.
fn hash_of(content: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    (GIT_VERSION, env!("CARGO_PKG_VERSION"), content).hash(&mut hasher);
    format!("{:016X}", hasher.finish())
}

/// `/openapi/v3/PATH` (`api/v1`, `apis/apps/v1`): the document as JSON bytes, built anew each time; the caller may cache it for a
/// while, the `hash` parameter of the index makes it immutable.
#[must_use]
pub fn document(table: &[&'static Resource], path: &str) -> Option<Vec<u8>> {
    let (_, list) = documents(table).into_iter().find(|(p, _)| p == path)?;
    let mut generator = schema::generator();
    for res in &list {
        (res.root)(&mut generator);
        for sub in res.subresources {
            if let Some(root) = crate::kinds::extra_root(sub.kind) {
                root(&mut generator);
            }
        }
    }
    let mut schemas = generator.take_definitions(false);
    for (name, definition) in &mut schemas {
        finish(name, definition);
    }
    for res in &list {
        if let Some(version) = res.strategy.custom() {
            schemas.insert(res.schema.to_owned(), custom::openapi::v3(&version));
        }
        add_kind(&mut schemas, res);
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": GIT_VERSION},
        "paths": paths::of(&list),
        "components": {"schemas": schemas},
    });
    serde_json::to_vec(&document).ok()
}

/// Marks the definition of a kind and adds the one of its list.
fn add_kind(schemas: &mut Map<String, Value>, res: &Resource) {
    let gvk = |kind: &str| json!([{"group": res.group, "version": res.version, "kind": kind}]);
    if let Some(definition) = schemas.get_mut(res.schema) {
        definition["x-kubernetes-group-version-kind"] = gvk(res.kind);
    }
    if res.stored() {
        let list = json!({
            "description": format!("{} is a list of {}.", res.list_kind, res.kind),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "items": {"type": "array", "items": {"allOf": [{"$ref": reference(res.schema)}], "default": {}}},
            },
            "x-kubernetes-group-version-kind": gvk(res.list_kind),
        });
        schemas.insert(format!("{}List", res.schema), list);
    }
}

/// How documents refer to a definition.
fn reference(definition: &str) -> String {
    format!("#/components/schemas/{definition}")
}

/// Turns a generated definition into upstream's form.
fn finish(name: &str, definition: &mut Value) {
    untyped(name, definition);
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
            definition["oneOf"] = json!([{"type": "string"}, {"type": "number"}]);
        }
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
            definition["format"] = json!("int-or-string");
            definition["oneOf"] = json!([{"type": "integer"}, {"type": "string"}]);
        }
        _ => {}
    }
    if let Some(map) = definition.as_object_mut() {
        map.remove("x-kubernetes-int-or-string");
        // The crate of types says so of every kind, upstream of none.
        if let Some(Value::Array(required)) = map.get_mut("required") {
            required.retain(|field| field != "metadata");
        }
        if map.get("required").is_some_and(|required| required.as_array().is_some_and(Vec::is_empty)) {
            map.remove("required");
        }
    }
    if let Some(Value::Object(properties)) = definition.get_mut("properties") {
        properties.values_mut().for_each(references);
    }
    merge_marks(name, definition);
}

/// The parts of a schema that may be several things have no type, as upstream.
fn untyped(name: &str, definition: &mut Value) {
    if name == schema::ANY_JSON || name.starts_with(schema::SCHEMA_OR) {
        let map = definition.as_object_mut();
        map.into_iter().for_each(|map| map.retain(|key, _| key == "description"));
    }
}

/// Adds how a strategic merge and server-side apply treat each field.
fn merge_marks(name: &str, definition: &mut Value) {
    list_types::mark(name, definition, |field| merge_keys::of(name, field));
    let Some(Value::Object(properties)) = definition.get_mut("properties") else { return };
    for (field, schema) in properties {
        let merge = merge_keys::of(name, field);
        if let Some(key) = merge.key() {
            schema["x-kubernetes-patch-merge-key"] = json!(key);
        }
        if let Some(strategy) = merge.strategy() {
            schema["x-kubernetes-patch-strategy"] = json!(strategy);
        }
    }
}

/// A reference may have no siblings in OpenAPI 3.0: it moves into `allOf`.
fn references(schema: &mut Value) {
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key)
            && inner.is_object()
        {
            references(inner);
        }
    }
    if let Some(map) = schema.as_object_mut()
        && let Some(target) = map.remove("$ref")
    {
        map.insert("allOf".to_owned(), json!([{ "$ref": target }]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    fn read(path: &str) -> Value {
        serde_json::from_slice(&document(resources(), path).expect("document")).expect("json")
    }

    #[test]
    fn the_index_names_documents_that_exist() {
        let index = index(resources());
        for path in index["paths"].as_object().expect("paths").keys() {
            assert!(document(resources(), path).is_some(), "{path}");
        }
        assert!(document(resources(), "apis/nope/v1").is_none());
    }

    #[test]
    fn every_reference_resolves() {
        fn walk(v: &Value, schemas: &Map<String, Value>) {
            match v {
                Value::Object(map) => {
                    if let Some(Value::String(target)) = map.get("$ref") {
                        let name = target.strip_prefix("#/components/schemas/").expect("prefix");
                        assert!(schemas.contains_key(name), "{name}");
                        assert_eq!(map.len(), 1, "a reference with siblings: {target}");
                    }
                    map.values().for_each(|v| walk(v, schemas));
                }
                Value::Array(items) => items.iter().for_each(|v| walk(v, schemas)),
                _ => {}
            }
        }
        for (path, _) in documents(resources()) {
            let document = read(&path);
            walk(&document, document["components"]["schemas"].as_object().expect("schemas"));
        }
    }

    #[test]
    fn kubectl_finds_what_it_looks_for() {
        let document = read("apis/apps/v1");
        let path = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(path["x-kubernetes-group-version-kind"]["kind"], "Deployment");
        assert_eq!(path["x-kubernetes-action"], "patch");
        let parameters = path["parameters"].as_array().expect("parameters");
        assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"));
        assert!(path["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
        let spec = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(spec["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(spec["x-kubernetes-patch-strategy"], "merge");
        assert_eq!(
            (&spec["x-kubernetes-list-type"], &spec["x-kubernetes-list-map-keys"]),
            (&json!("map"), &json!(["name"]))
        );
        let schemas = &document["components"]["schemas"];
        assert_eq!(schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"]["default"], "TCP");
        assert_eq!(schemas["io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"]["x-kubernetes-map-type"], "atomic");
        let node_selector = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["nodeSelector"];
        assert_eq!(node_selector["x-kubernetes-map-type"], "atomic");
        let kind = &document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(kind["x-kubernetes-group-version-kind"][0]["kind"], "Deployment");
        let spec = &kind["properties"]["spec"];
        assert!(spec["description"].is_string() && spec["allOf"][0]["$ref"].is_string());
    }
}
