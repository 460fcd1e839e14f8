//! What is refused for its fields, and watches and namespaces where they are more than reading and writing.

use anyhow::{Result, ensure};
use http::Method;
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use keelson_tests::objects::{holds, idle, name_of, pod};
use serde_json::{Value, json};

use super::custom::{Defined, anything, defined, definition, version};

tests![
    valid_object,
    unknown_without_schema,
    unknown_with_schema,
    unknown_metadata,
    watches_agree,
    namespace_status,
    pods_first,
];

/// What a schedule's spec is made of.
fn spec() -> Value {
    let port = json!({ "type": "object", "required": ["containerPort", "protocol"], "properties": {
        "containerPort": { "type": "integer", "format": "int32" }, "hostPort": { "type": "integer", "format": "int32" },
        "hostIP": { "type": "string" }, "name": { "type": "string" }, "protocol": { "type": "string" } } });
    let ports = json!({ "type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["containerPort", "protocol"], "items": port });
    json!({ "type": "object", "properties": { "foo": { "type": "string" }, "ports": ports,
        "cronSpec": { "type": "string", "pattern": "^(\\d+|\\*)(/\\d+)?(\\s+(\\d+|\\*)(/\\d+)?){4}$" } } })
}

fn schema(spec: &Value) -> Value {
    json!({ "type": "object", "properties": { "spec": spec } })
}

/// A kind of two versions with this schema.
fn custom<'a>(lab: &'a Lab, group: &str, schema: &Value) -> Result<Defined<'a>> {
    let versions = [version("v1beta1", true, schema), version("v1beta2", false, schema)];
    defined(lab, &definition(group, "Noxu", "Cluster", &versions))
}

/// Applies a manifest strictly: the status and what was said. `more` are lines of the whole, of metadata and of the spec.
fn apply(lab: &Lab, one: &Defined<'_>, [root, meta, spec]: [&str; 3]) -> Result<(u16, String)> {
    let text = format!(
        "apiVersion: {}\nkind: Noxu\nmetadata:\n  name: mytest\n{meta}{root}spec:\n{spec}  cronSpec: \"* * * * */5\"\n  \
         ports:\n  - name: x\n    containerPort: 80\n    protocol: TCP\n",
        one.api(0)
    );
    let url = format!("{}/mytest?fieldManager=field_validation_mgr&fieldValidation=Strict", one.objects(0, None));
    let types = ["application/apply-patch+yaml", "application/json"];
    let (status, said) = lab.api()?.ask_as(&Method::PATCH, &url, types, text.into_bytes())?;
    Ok((status.as_u16(), said))
}

// [sig-api-machinery] FieldValidation should create/apply a valid CR for CRD with validation schema [Conformance]
fn valid_object(lab: &Lab) -> Result<()> {
    let one = custom(lab, "fields-valid", &schema(&spec()))?;
    for wanted in [201, 200] {
        let (status, said) = apply(lab, &one, ["", "", "  foo: foo1\n"])?;
        ensure!(status == wanted, "{status} {said}");
    }
    ensure!(lab.api()?.get(&format!("{}/mytest", one.objects(0, None)))?["spec"]["foo"] == "foo1");
    Ok(())
}

// [sig-api-machinery] FieldValidation should create/apply a CR with unknown fields for CRD with no validation schema [Conformance]
fn unknown_without_schema(lab: &Lab) -> Result<()> {
    let one = custom(lab, "fields-without-schema", &anything())?;
    let (status, said) = apply(lab, &one, ["", "", "  unknown: uk1\n"])?;
    ensure!(status == 201, "{status} {said}");
    ensure!(lab.api()?.get(&format!("{}/mytest", one.objects(0, None)))?["spec"]["unknown"] == "uk1");
    Ok(())
}

fn refused(lab: &Lab, one: &Defined<'_>, more: [&str; 3], wanted: &str) -> Result<()> {
    let (status, said) = apply(lab, one, more)?;
    ensure!(status >= 400 && said.contains(wanted), "{status} {said}");
    lab.api()?.absent(&format!("{}/mytest", one.objects(0, None)))
}

// [sig-api-machinery] FieldValidation should create/apply an invalid CR with extra properties for CRD with validation schema [Conformance]
fn unknown_with_schema(lab: &Lab) -> Result<()> {
    let one = custom(lab, "fields-extra", &schema(&spec()))?;
    let more = ["unknownField: unknown\n", "", "  foo: foo1\n"];
    refused(lab, &one, more, ".unknownField: field not declared in schema")
}

// [sig-api-machinery] FieldValidation should detect unknown metadata fields in both the root and embedded object of a CR [Conformance]
fn unknown_metadata(lab: &Lab) -> Result<()> {
    let mut spec = spec();
    spec["x-kubernetes-preserve-unknown-fields"] = json!(true);
    let metadata = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    spec["properties"]["template"] = json!({ "type": "object", "x-kubernetes-embedded-resource": true,
        "properties": { "metadata": metadata, "spec": { "type": "object" } } });
    let one = custom(lab, "fields-metadata", &schema(&spec))?;
    let template = "  foo: foo1\n  template:\n    apiVersion: foo/v1\n    kind: Sub\n    metadata:\n      name: sub\n";
    let inner = format!("{template}      unknownSubMeta: unknown\n");
    refused(
        lab,
        &one,
        ["", "  unknownMeta: unknown\n", template],
        ".metadata.unknownMeta: field not declared in schema",
    )?;
    refused(lab, &one, ["", "", &inner], ".spec.template.metadata.unknownSubMeta: field not declared in schema")
}

// [sig-api-machinery] Watchers should receive events on concurrent watches in same order [Conformance]
fn watches_agree(lab: &Lab) -> Result<()> {
    const EVENTS: usize = 24;
    let space = lab.quarter("watches-agree")?;
    let all = space.url("configmaps?labelSelector=written=often");
    let list = lab.api()?.get(&all)?;
    let first = lab.api()?.watch(&all, list["metadata"]["resourceVersion"].as_str().unwrap_or_default())?;
    std::thread::scope(|scope| {
        // Makes, changes and deletes maps while watches are opened.
        let writer = scope.spawn(|| {
            for at in 0..EVENTS {
                let name = format!("map-{}", at % 4);
                let object = json!({ "metadata": { "name": name, "labels": { "written": "often" } } });
                let path = format!("configmaps/{name}");
                match (at / 4) % 3 {
                    0 => space.make("configmaps", &object)?,
                    1 => space.merge(&path, &json!({ "data": { "at": at.to_string() } }))?,
                    _ => space.remove(&path)?,
                };
            }
            anyhow::Ok(())
        });
        let version =
            |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let (mut seen, mut watches) = (Vec::new(), Vec::new());
        for at in 0..EVENTS {
            let event = first.next(20)?;
            seen.push(version(&event));
            // Each begins where the first has come to, and sees from there on what it sees.
            watches.push((at + 1, lab.api()?.watch(&all, &version(&event))?));
        }
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        for (from, watch) in &watches {
            for (at, wanted) in seen.iter().enumerate().skip(*from) {
                let event = watch.next(20)?;
                ensure!(version(&event) == *wanted, "watch {from}: event {at} is {event} instead of {wanted}");
            }
        }
        Ok(())
    })
}

// [sig-api-machinery] Namespaces [Serial] should apply changes to a namespace status [Conformance]
fn namespace_status(lab: &Lab) -> Result<()> {
    let space = lab.quarter("namespace-status")?;
    let url = format!("/api/v1/namespaces/{}/status", space.name);
    let read = lab.api()?.get(&url)?;
    ensure!(read["status"]["phase"] == "Active", "{read}");
    let condition = |kind: &str| {
        json!({ "type": kind, "status": "True", "reason": "E2E", "message": "Set by a test",
            "lastTransitionTime": "2024-01-01T00:00:00Z" })
    };
    let patch = json!({ "metadata": { "annotations": { "e2e-patched-ns-status": "patched" } },
        "status": { "conditions": [condition("StatusPatch")] } });
    let patched = lab.api()?.patch(&url, Patch::Merge, &patch)?;
    ensure!(patched["metadata"]["annotations"]["e2e-patched-ns-status"] == "patched", "{patched}");
    ensure!(holds(&patched, "StatusPatch"), "{patched}");
    let updated = lab.wait("the status is replaced", 20, || {
        let mut read = lab.api()?.get(&url)?;
        let conditions = read["status"]["conditions"].as_array().cloned().unwrap_or_default();
        read["status"]["conditions"] = json!([conditions, vec![condition("StatusUpdate")]].concat());
        lab.api()?.replace(&url, &read).map(Some)
    })?;
    ensure!(holds(&updated, "StatusUpdate") && holds(&updated, "StatusPatch"), "{updated}");
    ensure!(updated["status"]["phase"] == "Active", "{updated}");
    Ok(())
}

// [sig-api-machinery] OrderedNamespaceDeletion namespace deletion should delete pod first [Conformance]
fn pods_first(lab: &Lab) -> Result<()> {
    let space = lab.quarter("namespace-order")?;
    let mut held = pod("held", idle());
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    space.started(&held)?;
    space.make("configmaps", &json!({ "metadata": { "name": "later" }, "data": { "key": "value" } }))?;
    let namespace = format!("/api/v1/namespaces/{}", space.name);
    lab.api()?.delete(&namespace)?;
    lab.until("the pod is to go", 40, || {
        let told = lab.api()?.get(&namespace)?;
        ensure!(holds(&told, "NamespaceContentRemaining"), "{}", told["status"]);
        Ok(space.read("pods/held")?["metadata"]["deletionTimestamp"].is_string())
    })?;
    // While the pod is there, nothing else goes.
    let map = space.read("configmaps/later")?;
    ensure!(name_of(&map) == "later" && map["metadata"].get("deletionTimestamp").is_none(), "{map}");
    space.merge("pods/held", &json!({ "metadata": { "finalizers": [] } }))?;
    lab.until("the namespace is gone", 40, || lab.api()?.absent(&namespace).map(|()| true))
}
