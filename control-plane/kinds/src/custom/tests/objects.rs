//! Custom objects: what is done to them, and how clients find and read them.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::decode::Format;
use crate::table::{self, IncludeObject};
use crate::{discovery, openapi, patch};

#[test]
fn objects_are_pruned_defaulted_and_validated() {
    let (_, res) = served();
    assert_eq!(
        (res.group, res.plural, res.list_kind, res.storage_prefix),
        ("company.com", "foos", "FooList", "/registry/company.com/foos/")
    );
    let obj = created(res, json!({"color": "red", "maybe": null, "port": null})).expect("accepted");
    assert_eq!(obj["spec"], json!({"color": "red", "replicas": 1, "maybe": null}));
    assert_eq!((&obj["metadata"]["generation"], &obj["metadata"]["namespace"]), (&json!(1), &json!("ns")));
    assert_eq!(
        created(res, json!({"nope": 1, "replicas": 2})).expect_err("strict"),
        "Foo in version \"v1\" cannot be handled as a Foo: strict decoding error: unknown field \"spec.nope\""
    );
    assert_eq!(
        created(res, json!({"replicas": -1})).expect_err("invalid"),
        "Foo.company.com \"a\" is invalid: [spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to \
         0, .spec.replicas: Invalid value: -1: should be a non-negative integer]"
    );
    assert_eq!(
        created(res, json!({"color": "blue", "tags": ["a", "a"]})).expect_err("invalid"),
        "Foo.company.com \"a\" is invalid: [spec.color: Unsupported value: \"blue\": supported values: \"red\", \"green\", spec.tags[1]: \
         Duplicate value: \"a\"]"
    );
    let text = br#"{"apiVersion":"company.com/v1","kind":"Foo","metadata":{"name":"a","zzz":1},"spec":{"color":"red","color":"green"}}"#;
    let decoded = decode::body(res, None, text, Format::Json, FieldValidation::Warn).expect("decodes");
    assert_eq!(decoded.warnings, ["duplicate field \"spec.color\"", "unknown field \"metadata.zzz\""]);
    assert_eq!(decoded.object["spec"]["color"], "green");
    let wrong = json!({"apiVersion": "company.com/v1", "kind": "Foo", "metadata": {"name": "a", "labels": {"a": 1}}});
    assert!(
        object(res, wrong)
            .expect_err("type")
            .contains("cannot unmarshal number into Go struct field ObjectMeta.metadata.labels")
    );
    assert!(object(res, json!({"apiVersion": "company.com/v2", "kind": "Foo"})).is_err());
}

#[test]
fn status_is_apart_only_where_it_is_a_subresource() {
    let (_, res) = served();
    let old = created(res, json!({"color": "red"})).expect("accepted");
    let update = |change: &dyn Fn(&mut Value), part| {
        let mut new = old.clone();
        change(&mut new);
        write::update(res, &mut new, &old, part, &context("ns")).map(|_| new).map_err(|e| e.message)
    };
    let new = update(&|o| o["status"] = json!({"replicas": 3}), Part::Main).expect("accepted");
    assert_eq!((new.get("status"), &new["metadata"]["generation"]), (None, &json!(1)));
    let new = update(&|o| o["spec"]["color"] = json!("green"), Part::Main).expect("accepted");
    assert_eq!(new["metadata"]["generation"], 2);
    let change = |o: &mut Value| {
        o["status"] = json!({"replicas": 3});
        o["spec"]["color"] = json!("green");
        o["metadata"]["labels"] = json!({"a": "b"});
    };
    let new = update(&change, Part::Status).expect("accepted");
    assert_eq!(
        (&new["status"], &new["spec"]["color"], &new["metadata"]["generation"]),
        (&json!({"replicas": 3}), &json!("red"), &json!(1))
    );
    assert_eq!(new["metadata"].get("labels"), None);
    assert_eq!(
        update(&|o| o["status"] = json!({"replicas": "x"}), Part::Status).expect_err("invalid"),
        "Foo.company.com \"a\" is invalid: [status.replicas: Invalid value: \"string\": replicas in body must be of type integer: \"string\", \
         .status.replicas: Invalid value: 0: .status.replicas accessor error: x is of the type string, expected int64]"
    );
    let mut crd = foo(schema());
    val::remove(&mut crd["spec"]["versions"][0], "subresources");
    let plain = Registry::new().register(&accepted(&crd)).expect("compiles")[0];
    assert!(!plain.strategy.has_status() && plain.subresources.is_empty());
    let mut new = old.clone();
    new["status"] = json!({"replicas": 3});
    write::update(plain, &mut new, &old, Part::Main, &context("ns")).expect("accepted");
    assert_eq!((&new["status"], &new["metadata"]["generation"]), (&json!({"replicas": 3}), &json!(2)));
}

#[test]
fn objects_from_before_a_rule_may_still_be_updated() {
    let (_, res) = served();
    let mut old = created(res, json!({"color": "red"})).expect("accepted");
    old["spec"]["color"] = json!("blue");
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["a.b/c"]);
    new["spec"]["replicas"] = json!(4);
    write::update(res, &mut new, &old, Part::Main, &context("ns")).expect("tolerated");
    new["spec"]["color"] = json!("yellow");
    assert!(write::update(res, &mut new, &old, Part::Main, &context("ns")).is_err());
}

#[test]
fn a_changed_definition_is_served_by_the_same_resource() {
    let (registry, res) = served();
    let mut changed = schema();
    changed["properties"]["spec"]["properties"]["replicas"]["maximum"] = json!(5);
    let again = registry.register(&accepted(&foo(changed))).expect("compiles");
    assert!(std::ptr::eq(again[0], res) && created(res, json!({"replicas": 6})).is_err());
    assert!(std::ptr::eq(registry.lookup("company.com", "v1", "foos").expect("found"), res));
    assert!(std::ptr::eq(registry.by_kind("company.com", "v1", "Foo").expect("found"), res));
    assert!(registry.lookup("", "v1", "pods").is_some() && registry.by_kind("apps", "v1", "Deployment").is_some());
    assert_eq!(registry.all().len(), crate::resources().len() + 1);
    let mut renamed = foo(schema());
    renamed["spec"]["names"]["shortNames"] = json!(["f"]);
    let other = registry.register(&accepted(&renamed)).expect("compiles")[0];
    assert!(!std::ptr::eq(other, res) && registry.resources().len() == 1);
    assert!(
        std::ptr::eq(registry.register(&accepted(&foo(schema()))).expect("compiles")[0], res),
        "known identities come back"
    );
    assert_eq!(registry.unregister("foos.company.com").len(), 1);
    assert!(registry.lookup("company.com", "v1", "foos").is_none() && registry.resources().is_empty());
}

#[test]
fn versions_differ_in_their_api_version() {
    let mut crd = foo(schema());
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["extra"] =
        json!({"type": "string", "default": "e"});
    crd["spec"]["versions"].as_array_mut().expect("list").push(second);
    let registry = Registry::new();
    registry.register(&accepted(&crd)).expect("compiles");
    let versions = discovery::versions(&registry.all(), "company.com");
    assert_eq!(versions, ["v2", "v1"], "the best version first");
    let (v1, v2) = (
        registry.lookup("company.com", "v1", "foos").expect("v1"),
        registry.lookup("company.com", "v2", "foos").expect("v2"),
    );
    let obj = created(v1, json!({"color": "red"})).expect("accepted");
    let mut stored = write::to_storage(v2, obj);
    assert_eq!(stored["apiVersion"], "company.com/v1");
    write::from_storage(v2, &mut stored, 7);
    assert_eq!((&stored["apiVersion"], &stored["spec"]["extra"]), (&json!("company.com/v2"), &json!("e")));
    assert_eq!(stored["metadata"]["resourceVersion"], "7");
    let mut back = write::to_storage(v2, stored);
    write::from_storage(v1, &mut back, 8);
    assert_eq!((&back["apiVersion"], back["spec"].get("extra")), (&json!("company.com/v1"), None));
}

#[test]
fn tables_scales_and_selectors_follow_the_definition() {
    let (_, res) = served();
    let mut obj = created(res, json!({"color": "red", "replicas": 3})).expect("accepted");
    obj["status"] = json!({"replicas": 2, "selector": "a=b"});
    let table = table::render(res, &[&obj], json!({}), IncludeObject::None, now(), true);
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().expect("list").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["Name", "Replicas", "Age"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3, "0s"]));
    let scale = crate::scale::from_object(res, &obj);
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]), (&json!(3), &json!({"replicas": 2, "selector": "a=b"})));
    let scaled = crate::scale::apply(res, &obj, &json!({"spec": {"replicas": 5}})).expect("scales");
    assert_eq!(scaled["spec"]["replicas"], 5);
    assert!(write::selectable(res, &obj).contains(&("spec.color".into(), "red".to_owned())));
    assert!(write::check_selectable(res, "spec.color").is_ok() && write::check_selectable(res, "spec.port").is_err());
}

#[test]
fn patches_have_no_merge_keys() {
    let (_, res) = served();
    let obj = created(res, json!({"color": "red", "tags": ["a", "b"]})).expect("accepted");
    let apply = |kind| patch::apply(res, None, kind, &obj, br#"{"spec":{"tags":["c"]}}"#);
    assert_eq!(apply(patch::PatchType::Merge).expect("applies")["spec"]["tags"], json!(["c"]));
    let refused = apply(patch::PatchType::Strategic).expect_err("strategic");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
             application/merge-patch+json, application/apply-patch+yaml"
        )
    );
}

#[test]
fn nothing_is_created_while_the_definition_goes() {
    let registry = Registry::new();
    let mut crd = accepted(&foo(schema()));
    let res = registry.register(&crd).expect("compiles")[0];
    assert!(created(res, json!({})).is_ok());
    begin_deletion(&mut crd, now());
    registry.register(&crd).expect("compiles");
    let mut obj = json!({"metadata": {"name": "a"}, "spec": {}});
    let refused = write::create(res, &mut obj, &context("ns")).expect_err("terminating");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (405, "create not allowed while custom resource definition is terminating")
    );
}

#[test]
fn finalizers_should_have_domains() {
    let (_, res) = served();
    let warnings = res.strategy.warnings(&json!({"metadata": {"finalizers": ["a.b/c", "foregroundDeletion", "x"]}}));
    assert_eq!(
        warnings,
        [
            "metadata.finalizers: \"x\": prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with \
          other finalizer writers"
        ]
    );
}

#[test]
fn deprecated_versions_warn() {
    let mut crd = foo(schema());
    crd["spec"]["versions"][0]["deprecated"] = json!(true);
    let res = Registry::new().register(&accepted(&crd)).expect("compiles")[0];
    assert_eq!(res.strategy.warnings(&json!({})), ["company.com/v1 Foo is deprecated"]);
}

#[test]
fn clients_discover_custom_kinds() {
    let (registry, _) = served();
    let table = registry.all();
    let list = discovery::api_resources(&table, "company.com", "v1").expect("group");
    assert_eq!(
        list["resources"],
        json!([
            {"name": "foos", "singularName": "foo", "namespaced": true, "kind": "Foo", "shortNames": ["fo"], "categories": ["all"],
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]},
            {"name": "foos/status", "singularName": "", "namespaced": true, "kind": "Foo", "verbs": ["get", "patch", "update"]},
            {"name": "foos/scale", "singularName": "", "namespaced": true, "kind": "Scale", "group": "autoscaling", "version": "v1",
                "verbs": ["get", "patch", "update"]},
        ])
    );
    assert!(discovery::aggregated(&table, false).to_string().contains("\"resource\":\"foos\""));
    assert!(discovery::api_groups(&table).to_string().contains("company.com/v1"));
    assert!(discovery::api_resources(crate::resources(), "company.com", "v1").is_none());
}

#[test]
fn clients_can_explain_custom_kinds() {
    let (registry, _) = served();
    let table = registry.all();
    let document = openapi::document(&table, "apis/company.com/v1").expect("document");
    let document: Value = serde_json::from_slice(&document).expect("json");
    let schema = &document["components"]["schemas"]["com.company.v1.Foo"];
    assert_eq!(
        schema["x-kubernetes-group-version-kind"],
        json!([{"group": "company.com", "version": "v1", "kind": "Foo"}])
    );
    let spec = &schema["properties"]["spec"]["properties"];
    assert_eq!(
        (&spec["color"]["description"], &spec["replicas"]["default"]),
        (&json!("Color of the thing."), &json!(1))
    );
    assert_eq!(spec["port"]["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
    let metadata = &schema["properties"]["metadata"]["allOf"][0]["$ref"];
    assert_eq!(metadata, "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    assert!(document["components"]["schemas"].get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").is_some());
    let patch = &document["paths"]["/apis/company.com/v1/namespaces/{namespace}/foos/{name}"]["patch"];
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    assert!(patch["requestBody"]["content"].get("application/merge-patch+json").is_some());
    let hash = |registry: &Registry| openapi::index(&registry.all())["paths"]["apis/company.com/v1"].to_string();
    let before = (hash(&registry), openapi::v2_hash(&registry.all()));
    let mut changed = self::schema();
    changed["description"] = json!("Another thing.");
    registry.register(&accepted(&foo(changed))).expect("compiles");
    assert!(
        before.0 != hash(&registry) && before.1 != openapi::v2_hash(&registry.all()),
        "a changed schema has another hash"
    );
}

#[test]
fn version_2_says_only_what_kubectl_understands() {
    let mut source = schema();
    let spec = &mut source["properties"]["spec"];
    spec["required"] = json!(["maybe", "color"]);
    spec["oneOf"] = json!([{"required": ["color"]}]);
    spec["properties"]["free"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
    let registry = Registry::new();
    registry.register(&accepted(&foo(source))).expect("compiles");
    let document = openapi::v2_document(&registry.all());
    let foo = &document["definitions"]["com.company.v1.Foo"];
    let spec = &foo["properties"]["spec"];
    assert_eq!((spec.get("oneOf"), &spec["required"]), (None, &json!(["color"])));
    assert_eq!((spec["properties"]["maybe"].get("type"), spec["properties"]["maybe"].get("nullable")), (None, None));
    assert_eq!((spec["properties"]["free"].get("type"), spec["properties"]["free"].get("properties")), (None, None));
    assert_eq!(foo["properties"]["metadata"]["$ref"], "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    let json = &document["definitions"]["io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON"];
    assert_eq!(json.get("type"), None, "a default may be anything");
}

/// The custom objects of upstream's tests of kubectl, through `KEELSON_SHARED` or beside the workspace.
#[test]
fn objects_of_the_corpus_are_served() {
    let shared = std::env::var_os("KEELSON_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let folder = shared.join("corpus/kubectl-cases");
    if !folder.is_dir() {
        println!("SKIPPED objects_of_the_corpus_are_served: no corpus; set KEELSON_SHARED to the folder that holds it");
        return;
    }
    let registry = Registry::new();
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (group, plural, kind, scope) in [
        ("company.com", "foos", "Foo", "Namespaced"),
        ("company.com", "bars", "Bar", "Namespaced"),
        ("test.com", "examples", "Example", "Namespaced"),
    ] {
        let mut crd = foo(free.clone());
        crd["metadata"]["name"] = json!(format!("{plural}.{group}"));
        crd["spec"] = json!({"group": group, "scope": scope, "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": free}}]});
        registry.register(&accepted(&crd)).expect("compiles");
    }
    let mut found = 0;
    for entry in std::fs::read_dir(folder).expect("folder").map(|e| e.expect("entry").path()) {
        if !entry.file_name().and_then(|n| n.to_str()).is_some_and(|name| name.starts_with("CRD_")) {
            continue;
        }
        let value = decode::parse(&std::fs::read(&entry).expect("file"), Format::Yaml).expect("yaml");
        let items = if val::text(&value, "kind") == "List" { val::list(&value, "items").to_vec() } else { vec![value] };
        for item in items {
            let (group, version) = val::text(&item, "apiVersion").split_once('/').expect("group");
            let Some(res) = registry.by_kind(group, version, val::text(&item, "kind")) else {
                panic!("{}: {item}", entry.display());
            };
            let namespace = if res.namespaced() { "default" } else { "" };
            let mut decoded =
                object(res, item.clone()).unwrap_or_else(|why| panic!("{}: {why}", entry.display())).object;
            write::create(res, &mut decoded, &context(namespace))
                .unwrap_or_else(|why| panic!("{}: {why}", entry.display()));
            for (key, value) in item.as_object().expect("map").iter().filter(|(key, _)| *key != "metadata") {
                assert_eq!(&decoded[key], value, "{}: {key}", entry.display());
            }
            found += 1;
        }
    }
    assert!(found >= 7, "{found}");
}
