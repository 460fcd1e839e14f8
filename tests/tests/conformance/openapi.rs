//! What the schemas of custom kinds become in the published documents, and what kubectl makes of them.

use anyhow::{Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use serde_json::{Value, json};

use super::custom::{Defined, anything, defined, definition, version};

tests![
    with_schema,
    without_schema,
    preserving_at_the_root,
    preserving_in_an_embedded_object,
    different_groups,
    different_versions,
    different_kinds,
    renamed_version,
    version_not_served,
];

const SOON: u64 = 30;

fn described(kind: &str, description: &str, more: Value) -> Value {
    let mut schema = more;
    schema["type"] = json!(kind);
    schema["description"] = json!(description);
    schema
}

/// Objects, lists and texts, each with a description.
fn foo() -> Value {
    let text = |description: &str| described("string", description, json!({}));
    let bar = json!({ "type": "object", "required": ["name"], "properties": {
        "name": text("Name of Bar."), "age": text("Age of Bar."), "feeling": text("Feeling of Bar."),
        "bazs": described("array", "List of Bazs.", json!({ "items": { "type": "string" } })) } });
    let bars = |description: &str| described("array", description, json!({ "items": bar }));
    let spec = described(
        "object",
        "Specification of Foo",
        json!({ "properties": { "bars": bars("List of Bars and their specs.") } }),
    );
    let status = described(
        "object",
        "Status of Foo",
        json!({ "properties": { "bars": bars("List of Bars and their statuses.") } }),
    );
    described("object", "Foo CRD for Testing", json!({ "properties": { "spec": spec, "status": status } }))
}

/// The name of a version's definition in the documents: the group's parts turned round.
fn key(one: &Defined<'_>, version: &str) -> String {
    let group = one.made["spec"]["group"].as_str().unwrap_or_default();
    let reversed: Vec<&str> = group.split('.').rev().collect();
    let kind = one.made["spec"]["names"]["kind"].as_str().unwrap_or_default();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// Waits until a version is in both documents, or in none, and gives its definition in OpenAPI v2.
fn published(lab: &Lab, one: &Defined<'_>, version: &str, wanted: bool) -> Result<Value> {
    let key = key(one, version);
    let group = one.made["spec"]["group"].as_str().unwrap_or_default().to_owned();
    lab.wait(&format!("{key} is published: {wanted}"), SOON, || {
        let index = lab.api()?.get("/openapi/v3")?;
        let path = format!("apis/{group}/{version}");
        let listed = index["paths"].get(&path).is_some();
        let new = if listed { lab.api()?.get(&format!("/openapi/v3/{path}"))? } else { Value::Null };
        if new["components"]["schemas"].get(&key).is_some() != wanted {
            return Ok(None);
        }
        // The one document of everything is large: it is asked for when the other is right.
        let old = lab.api()?.get("/openapi/v2")?["definitions"][&key].take();
        Ok((old.is_null() != wanted).then_some(old))
    })
}

fn made<'a>(lab: &'a Lab, group: &str, versions: &[(&str, &Value)]) -> Result<Defined<'a>> {
    let versions: Vec<Value> =
        versions.iter().enumerate().map(|(at, (name, schema))| version(name, at == 0, schema)).collect();
    defined(lab, &definition(group, "Foo", "Namespaced", &versions))
}

/// The texts in this order, whatever is between them.
fn in_order(text: &str, wanted: &[&str]) -> Result<()> {
    let mut rest = text;
    for part in wanted {
        let Some(at) = rest.find(part) else { anyhow::bail!("no {part:?} in its place in: {text}") };
        rest = &rest[at + part.len()..];
    }
    Ok(())
}

/// Explains a field of the kind to a person.
fn explain(lab: &Lab, one: &Defined<'_>, field: &str) -> Result<String> {
    let spec = &one.made["spec"];
    let plural = spec["names"]["plural"].as_str().unwrap_or_default();
    let version = format!("--api-version={}", one.api(0));
    lab.kubectl(&["explain", &format!("{plural}{field}"), &version])
}

/// Manifests that kubectl must create and apply.
fn accepted(lab: &Lab, one: &Defined<'_>, namespace: &str, rest: &Value) -> Result<()> {
    let object = one.object(0, "test-cr", rest).to_string();
    lab.kubectl_with(&["-n", namespace, "create", "-f", "-"], &object)?;
    let url = format!("{}/test-cr", one.objects(0, Some(namespace)));
    lab.api()?.delete(&url)?;
    lab.kubectl_with(&["-n", namespace, "apply", "-f", "-"], &object)?;
    lab.api()?.delete(&url).map(drop)
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD with validation schema [Conformance]
fn with_schema(lab: &Lab) -> Result<()> {
    let space = lab.quarter("openapi-schema")?;
    let one = made(lab, "openapi-schema", &[("v1", &foo())])?;
    let document = published(lab, &one, "v1", true)?;
    ensure!(document["description"] == "Foo CRD for Testing", "{document}");
    ensure!(document["properties"]["spec"]["properties"]["bars"]["type"] == "array", "{document}");
    accepted(lab, &one, &space.name, &json!({ "spec": { "bars": [{ "name": "test-bar" }] } }))?;
    let wrong = [
        (json!({ "spec": { "bars": [{ "name": "test-bar" }], "foo": true } }), "unknown field \"spec.foo\""),
        (json!({ "spec": { "bars": [{ "age": "10" }] } }), "spec.bars[0].name: Required value"),
    ];
    for (rest, message) in wrong {
        let object = one.object(0, "test-cr", &rest).to_string();
        for order in ["create", "apply"] {
            let said = space.kubectl_fails(&[order, "-f", "-"], Some(&object))?;
            ensure!(said.contains(message), "{order}: {said}");
        }
    }
    let parts = [
        "DESCRIPTION:",
        "Foo CRD for Testing",
        "FIELDS:",
        "apiVersion",
        "<string>",
        "APIVersion defines",
        "spec",
        "<Object>",
        "Specification of Foo",
    ];
    in_order(&explain(lab, &one, "")?, &parts)?;
    let parts = ["creationTimestamp", "<string>", "CreationTimestamp is a timestamp"];
    in_order(&explain(lab, &one, ".metadata")?, &parts)?;
    in_order(&explain(lab, &one, ".spec")?, &["bars", "<[]Object>", "List of Bars and their specs"])?;
    let parts = ["bazs", "<[]string>", "List of Bazs", "name", "<string>", "Name of Bar"];
    in_order(&explain(lab, &one, ".spec.bars")?, &parts)?;
    ensure!(explain(lab, &one, ".spec.bars2").is_err(), "a field that is not there was explained");
    Ok(())
}

/// Properties that no schema names.
fn unknown() -> Value {
    json!({ "a": { "b": [{ "c": "d" }] } })
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD without validation schema [Conformance]
fn without_schema(lab: &Lab) -> Result<()> {
    let space = lab.quarter("openapi-empty")?;
    let one = made(lab, "openapi-empty", &[("v1", &anything())])?;
    published(lab, &one, "v1", true)?;
    accepted(lab, &one, &space.name, &unknown())?;
    in_order(&explain(lab, &one, "")?, &["DESCRIPTION:", "<empty>"])
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD preserving unknown fields at the schema root [Conformance]
fn preserving_at_the_root(lab: &Lab) -> Result<()> {
    let space = lab.quarter("openapi-root")?;
    let mut schema = foo();
    schema["x-kubernetes-preserve-unknown-fields"] = json!(true);
    let one = made(lab, "openapi-root", &[("v1", &schema)])?;
    published(lab, &one, "v1", true)?;
    accepted(lab, &one, &space.name, &unknown())?;
    in_order(&explain(lab, &one, "")?, &["KIND:", "Foo"])
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for CRD preserving unknown fields in an embedded object [Conformance]
fn preserving_in_an_embedded_object(lab: &Lab) -> Result<()> {
    const DESCRIPTION: &str = "preserve-unknown-properties in nested field for Testing";
    let space = lab.quarter("openapi-embedded")?;
    let part =
        |description: &str| described("object", description, json!({ "x-kubernetes-preserve-unknown-fields": true }));
    let properties = json!({ "spec": part("Specification of Waldo"), "status": part("Status of Waldo") });
    let schema = described("object", DESCRIPTION, json!({ "properties": properties }));
    let one = made(lab, "openapi-embedded", &[("v1", &schema)])?;
    published(lab, &one, "v1", true)?;
    accepted(lab, &one, &space.name, &json!({ "spec": unknown() }))?;
    in_order(&explain(lab, &one, "")?, &["DESCRIPTION:", DESCRIPTION])
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for multiple CRDs of different groups [Conformance]
fn different_groups(lab: &Lab) -> Result<()> {
    let (full, empty) = (foo(), anything());
    let one = made(lab, "openapi-groups-a", &[("v1", &full)])?;
    let two = made(lab, "openapi-groups-b", &[("v2", &empty)])?;
    ensure!(published(lab, &one, "v1", true)?["description"] == "Foo CRD for Testing");
    ensure!(published(lab, &two, "v2", true)?.get("description").is_none());
    Ok(())
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for multiple CRDs of same group but different versions [Conformance]
fn different_versions(lab: &Lab) -> Result<()> {
    let (full, empty) = (foo(), anything());
    // Versions of one kind, and kinds that have a version each.
    let one = made(lab, "openapi-versions", &[("v2", &full), ("v3", &empty)])?;
    ensure!(published(lab, &one, "v2", true)?["description"] == "Foo CRD for Testing");
    published(lab, &one, "v3", true)?;
    let two = definition("openapi-versions", "Waldo", "Namespaced", &[version("v4", true, &full)]);
    let two = defined(lab, &two)?;
    published(lab, &two, "v4", true)?;
    published(lab, &one, "v4", false).map(drop)
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] works for multiple CRDs of same group and version but different kinds [Conformance]
fn different_kinds(lab: &Lab) -> Result<()> {
    let (full, empty) = (foo(), anything());
    let one = made(lab, "openapi-kinds", &[("v6", &full)])?;
    let two = defined(lab, &definition("openapi-kinds", "Waldo", "Namespaced", &[version("v6", true, &empty)]))?;
    ensure!(published(lab, &one, "v6", true)?["description"] == "Foo CRD for Testing");
    ensure!(published(lab, &two, "v6", true)?.get("description").is_none());
    Ok(())
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] updates the published spec when one version gets renamed [Conformance]
fn renamed_version(lab: &Lab) -> Result<()> {
    let full = foo();
    let one = made(lab, "openapi-renamed", &[("v2", &full), ("v3", &full)])?;
    let before = published(lab, &one, "v2", true)?;
    published(lab, &one, "v3", true)?;
    let rename = json!([
        { "op": "test", "path": "/spec/versions/1/name", "value": "v3" },
        { "op": "replace", "path": "/spec/versions/1/name", "value": "v4" },
    ]);
    lab.api()?.patch(&one.url(), Patch::Json, &rename)?;
    published(lab, &one, "v4", true)?;
    published(lab, &one, "v3", false)?;
    ensure!(published(lab, &one, "v2", true)? == before, "the other version changed");
    Ok(())
}

// [sig-api-machinery] CustomResourcePublishOpenAPI [Privileged:ClusterAdmin] removes definition from spec when one version gets changed to not be served [Conformance]
fn version_not_served(lab: &Lab) -> Result<()> {
    let full = foo();
    let one = made(lab, "openapi-unserved", &[("v5", &full), ("v6alpha1", &full)])?;
    let before = published(lab, &one, "v5", true)?;
    published(lab, &one, "v6alpha1", true)?;
    lab.wait("the definition is replaced", SOON, || {
        let mut read = lab.api()?.get(&one.url())?;
        read["spec"]["versions"][1]["served"] = json!(false);
        lab.api()?.replace(&one.url(), &read).map(Some)
    })?;
    published(lab, &one, "v6alpha1", false)?;
    ensure!(published(lab, &one, "v5", true)? == before, "the other version changed");
    Ok(())
}
