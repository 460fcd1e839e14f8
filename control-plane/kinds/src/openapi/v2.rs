//! The OpenAPI v2 document (Swagger), made from the same schemas and paths as those of v3.
//!
//! Who reads it: kubectl before 1.27 (`explain`, validation before it sends), every kubectl and Helm for what v3 does not name (a
//! `kind: List`). Upstream counterpart: `kube-openapi/pkg/handler`.

use serde_json::{Map, Value, json};

use super::{FORMAT, add_kind, documents, fingerprint, merge_marks, paths, untyped};
use crate::discovery::GIT_VERSION;
use crate::resource::Resource;
use crate::{custom, schema};

const V3_PREFIX: &str = "#/components/schemas/";
const V2_PREFIX: &str = "#/definitions/";
const JSON: &str = "application/json";

/// Changes when the document does: it follows from the types, which the release names, and from the table of resources.
#[must_use]
pub fn v2_hash(table: &[&'static Resource]) -> String {
    let kinds: Vec<String> =
        table.iter().map(|res| format!("{}/{}.{} {:x}", res.group, res.version, res.kind, fingerprint(res))).collect();
    super::hash_of(&(FORMAT, "v2", kinds))
}

/// `/openapi/v2`: built anew each time; clients keep it under [`v2_hash`].
#[must_use]
pub fn v2_document(table: &[&'static Resource]) -> Value {
    let mut generator = schema::generator();
    for root in crate::kinds::roots() {
        root(&mut generator);
    }
    let mut definitions = generator.take_definitions(false);
    for (name, definition) in &mut definitions {
        untyped(name, definition);
        merge_marks(name, definition);
    }
    let mut all_paths = Map::new();
    for (_, list) in documents(table) {
        for res in &list {
            if let Some(version) = res.strategy.custom() {
                definitions.insert(res.schema.to_owned(), custom::openapi::v2(&version));
            }
            add_kind(&mut definitions, res);
        }
        if let Value::Object(some) = paths::of(&list) {
            all_paths.extend(some.into_iter().map(|(path, item)| (path, path_item(item))));
        }
    }
    definitions.values_mut().for_each(definition);
    for (name, format) in SPECIAL {
        if let Some(definition) = definitions.get_mut(*name).and_then(Value::as_object_mut) {
            definition.insert("type".into(), json!("string"));
            if let Some(format) = format {
                definition.insert("format".into(), json!(format));
            }
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": GIT_VERSION},
        "paths": all_paths,
        "definitions": definitions,
    })
}

/// Types that are more than a string, which v2 cannot say.
const SPECIAL: &[(&str, Option<&str>)] = &[
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", None),
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", Some("int-or-string")),
];

/// A schema of v3 becomes one of v2, in place: references point elsewhere, and `oneOf` is unknown.
fn definition(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            for key in ["oneOf", "anyOf", "nullable", "x-kubernetes-int-or-string"] {
                // A field of a type may be called like this; then it is an object in `properties`, not here.
                map.remove(key);
            }
            // v3 wraps references that have siblings.
            if let Some(Value::Array(parts)) = map.get("allOf")
                && let [Value::Object(only)] = &parts[..]
                && let Some(target) = only.get("$ref").cloned()
            {
                map.remove("allOf");
                map.insert("$ref".into(), target);
            }
            if let Some(Value::String(target)) = map.get_mut("$ref")
                && let Some(name) = target.strip_prefix(V3_PREFIX)
            {
                *target = format!("{V2_PREFIX}{name}");
            }
            for key in ["items", "additionalProperties"] {
                map.get_mut(key).into_iter().for_each(definition);
            }
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                properties.values_mut().for_each(definition);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(definition),
        _ => {}
    }
}

fn path_item(item: Value) -> Value {
    let Value::Object(map) = item else { return item };
    let convert = |(key, value): (String, Value)| {
        let value = if key == "parameters" { parameters(value) } else { operation(value) };
        (key, value)
    };
    Value::Object(map.into_iter().map(convert).collect())
}

/// v2 has a parameter's type beside its name.
fn parameters(list: Value) -> Value {
    let Value::Array(mut list) = list else { return list };
    for parameter in &mut list {
        let Some(map) = parameter.as_object_mut() else { continue };
        if let Some(Value::Object(schema)) = map.remove("schema") {
            map.extend(schema);
        }
    }
    Value::Array(list)
}

fn operation(operation: Value) -> Value {
    let Value::Object(mut map) = operation else { return operation };
    let mut list = parameters(map.remove("parameters").unwrap_or_else(|| json!([])));
    if let Some(body) = map.remove("requestBody")
        && let Some(content) = body["content"].as_object()
    {
        let schema = content.values().next().map(|media| media["schema"].clone()).unwrap_or_default();
        let mut body = json!({"name": "body", "in": "body", "required": true, "schema": schema});
        definition(&mut body["schema"]);
        list.as_array_mut().into_iter().for_each(|list| list.push(body.clone()));
        map.insert("consumes".into(), json!(content.keys().collect::<Vec<_>>()));
    }
    map.insert("parameters".into(), list);
    map.insert("produces".into(), json!([JSON]));
    for response in map.get_mut("responses").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        let mut schema = response["content"][JSON]["schema"].take();
        definition(&mut schema);
        *response = json!({"description": response["description"], "schema": schema});
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_resolves_and_nothing_of_v3_is_left() {
        fn walk(value: &Value, definitions: &Map<String, Value>) {
            match value {
                Value::Object(map) => {
                    assert!(!map.get("oneOf").is_some_and(Value::is_array), "v3 is left: {map:?}");
                    if let Some(Value::String(target)) = map.get("$ref") {
                        let name = target.strip_prefix(V2_PREFIX).unwrap_or_else(|| panic!("{target}"));
                        assert!(definitions.contains_key(name), "{name}");
                    }
                    map.values().for_each(|value| walk(value, definitions));
                }
                Value::Array(items) => items.iter().for_each(|value| walk(value, definitions)),
                _ => {}
            }
        }
        let document = v2_document(crate::resources());
        let text = document.to_string();
        assert!(!text.contains("components/schemas"), "v3 is left");
        walk(&document, document["definitions"].as_object().unwrap());
    }

    #[test]
    fn clients_find_what_they_look_for() {
        let document = v2_document(crate::resources());
        let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Deployment");
        let parameters = patch["parameters"].as_array().unwrap();
        assert!(
            parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query" && p["type"] == "string")
        );
        assert!(parameters.iter().any(|p| p["in"] == "body"));
        let pod = &document["definitions"]["io.k8s.api.core.v1.Pod"];
        assert_eq!(pod["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
        assert_eq!(pod["properties"]["spec"]["$ref"], "#/definitions/io.k8s.api.core.v1.PodSpec");
        assert!(pod["properties"]["spec"]["description"].is_string());
        let containers = &document["definitions"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        let quantity = &document["definitions"]["io.k8s.apimachinery.pkg.api.resource.Quantity"];
        assert_eq!(quantity["type"], "string");
    }
}
