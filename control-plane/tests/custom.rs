//! CustomResourceDefinitions and the objects that they define, over the API.

mod common;

use std::time::Duration;

use common::Api;
use http::Method;
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOOS: &str = "/apis/example.com/v1/namespaces/default/foos";

fn schema() -> Value {
    let item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "value": {"type": "string"}}});
    let items = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item});
    let spec = json!({"type": "object", "required": ["color"], "properties": {
        "color": {"type": "string", "enum": ["red", "blue"]},
        "size": {"type": "integer", "minimum": 1, "default": 3},
        "replicas": {"type": "integer"},
        "items": items}});
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    json!({"type": "object", "description": "A foo.", "properties": {"spec": spec, "status": status}})
}

fn definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo", "shortNames": ["fo"], "categories": ["all"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true,
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                    "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                    "schema": {"openAPIV3Schema": schema()}},
                {"name": "v2", "served": true, "storage": false,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

async fn established(api: &Api) {
    for _ in 0..500 {
        let crd = api.get(&format!("{CRDS}/foos.example.com")).await.expect(200);
        let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the definition is not established");
}

async fn api() -> Api {
    let api = Api::start().await;
    api.post(CRDS, &definition()).await.expect(201);
    established(&api).await;
    api
}

fn foo(name: &str, color: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name}, "spec": {"color": color}})
}

#[tokio::test]
async fn objects_are_validated_defaulted_pruned_and_split() {
    let api = api().await;
    let mut body = foo("a", "red");
    body["spec"]["nope"] = json!(1);
    body["status"] = json!({"replicas": 9});
    let answer = api.post(FOOS, &body).await;
    assert_eq!(answer.headers["warning"], "299 - \"unknown field \\\"spec.nope\\\"\"");
    let made = answer.expect(201);
    assert_eq!(made["spec"], json!({"color": "red", "size": 3}));
    assert!(made["status"].is_null() && made["metadata"]["generation"] == 1);
    let refused = api.post(&format!("{FOOS}?fieldValidation=Strict"), &body).await.expect(400);
    assert!(refused["message"].as_str().unwrap().contains("unknown field \"spec.nope\""), "{refused}");
    let refused = api.post(FOOS, &foo("b", "green")).await.expect(422);
    assert_eq!(
        refused["message"],
        "Foo.example.com \"b\" is invalid: spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\""
    );
    let size = json!({"spec": {"size": 0}});
    let refused = api.patch(&format!("{FOOS}/a"), "merge-patch", &size).await.expect(422);
    assert!(
        refused["message"].as_str().unwrap().contains("spec.size in body should be greater than or equal to 1"),
        "{refused}"
    );
    let changed = api
        .patch(&format!("{FOOS}/a"), "merge-patch", &json!({"spec": {"size": 5}, "status": {"replicas": 4}}))
        .await
        .expect(200);
    assert_eq!((&changed["metadata"]["generation"], &changed["status"]), (&json!(2), &Value::Null));
    let status = api
        .patch(&format!("{FOOS}/a/status"), "merge-patch", &json!({"spec": {"size": 9}, "status": {"replicas": 4}}))
        .await
        .expect(200);
    assert_eq!((&status["spec"]["size"], &status["status"]["replicas"]), (&json!(5), &json!(4)));
    api.patch(&format!("{FOOS}/a"), "strategic-merge-patch", &size).await.expect(415);
}

#[tokio::test]
async fn reads_watches_tables_and_selectors() {
    let api = api().await;
    let mut watch = api.watch(&format!("{FOOS}?watch=true")).await;
    for (name, color) in [("a", "red"), ("b", "blue")] {
        api.post(FOOS, &foo(name, color)).await.expect(201);
    }
    assert_eq!(watch.next_name().await, ("ADDED".into(), "a".into()));
    assert_eq!(watch.next_name().await, ("ADDED".into(), "b".into()));
    let list = api.get("/apis/example.com/v1/foos").await.expect(200);
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("FooList"), 2));
    let blue = api.get(&format!("{FOOS}?fieldSelector=spec.color%3Dblue")).await.expect(200);
    assert_eq!(blue["items"][0]["metadata"]["name"], "b");
    api.get(&format!("{FOOS}?fieldSelector=spec.size%3D3")).await.expect(400);
    let table = api.get_as(FOOS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.expect(200);
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Size"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3]));
    let other = api.get("/apis/example.com/v2/namespaces/default/foos/a").await.expect(200);
    assert_eq!((&other["apiVersion"], &other["spec"]["color"]), (&json!("example.com/v2"), &json!("red")));
    let scale =
        api.patch(&format!("{FOOS}/a/scale"), "merge-patch", &json!({"spec": {"replicas": 4}})).await.expect(200);
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(4)));
    assert_eq!(api.get(&format!("{FOOS}/a")).await.expect(200)["spec"]["replicas"], 4);
}

#[tokio::test]
async fn apply_knows_the_lists_of_the_schema() {
    let api = api().await;
    let apply = async |manager: &str, items: Value| {
        let mut body = foo("a", "red");
        body["spec"]["items"] = items;
        let path = format!("{FOOS}/a?fieldManager={manager}");
        api.send(Method::PATCH, &path, "application/apply-patch+yaml", body.to_string()).await
    };
    apply("one", json!([{"name": "x", "value": "1"}])).await.expect(201);
    let both = apply("two", json!([{"name": "y", "value": "2"}])).await.expect(200);
    assert_eq!(both["spec"]["items"], json!([{"name": "x", "value": "1"}, {"name": "y", "value": "2"}]));
    apply("two", json!([{"name": "x", "value": "9"}])).await.expect(409);
}

#[tokio::test]
async fn discovery_and_schemas_tell_of_it_and_forget_it() {
    let api = api().await;
    let list = api.get("/apis/example.com/v1").await.expect(200);
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["foos", "foos/status", "foos/scale"]);
    let groups = api.get("/apis").await.expect(200);
    let group = groups["groups"].as_array().unwrap().iter().find(|g| g["name"] == "example.com").cloned().unwrap();
    assert_eq!(group["preferredVersion"]["version"], "v2");
    let document = api.get("/openapi/v3/apis/example.com/v1").await.expect(200);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert!(
        schemas.values().any(|schema| schema["description"] == "A foo."),
        "{:?}",
        schemas.keys().collect::<Vec<_>>()
    );
    let v2 = api.get("/openapi/v2").await.expect(200);
    assert!(v2["definitions"].get("com.example.v1.Foo").is_some());
    api.post(FOOS, &foo("a", "red")).await.expect(201);
    let mut watch = api.watch(&format!("{FOOS}?watch=true&resourceVersion=1")).await;
    api.delete(&format!("{CRDS}/foos.example.com"), &json!({})).await.expect(200);
    api.get_until(&format!("{CRDS}/foos.example.com"), 404, 500).await;
    while watch.next().await.is_some() {}
    api.get_until(FOOS, 404, 100).await;
    api.get("/apis/example.com").await.expect(404);
    api.post(CRDS, &definition()).await.expect(201);
    established(&api).await;
    assert_eq!(api.get(FOOS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_changed_definition_is_felt_at_once_and_survives_a_restart() {
    let api = api().await;
    api.post(FOOS, &foo("old", "red")).await.expect(201);
    let versions = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let ops =
        json!([{"op": "add", "path": format!("{versions}/shape"), "value": {"type": "string", "default": "round"}}]);
    api.patch(&format!("{CRDS}/foos.example.com"), "json-patch", &ops).await.expect(200);
    let mut seen = Value::Null;
    for _ in 0..200 {
        seen = api.get(&format!("{FOOS}/old")).await.expect(200);
        if seen["spec"]["shape"] == "round" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(seen["spec"]["shape"], "round", "a default reaches what is stored");
    let api = api.restart().await;
    let seen = api.get(&format!("{FOOS}/old")).await.expect(200);
    assert_eq!((&seen["spec"]["shape"], &seen["spec"]["color"]), (&json!("round"), &json!("red")));
    let bad = json!([{"op": "add", "path": format!("{versions}/wrong"), "value": {"type": "nothing"}}]);
    let refused = api.patch(&format!("{CRDS}/foos.example.com"), "json-patch", &bad).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("Unsupported value: \"nothing\""), "{refused}");
}

#[tokio::test]
async fn names_are_first_come_first_served() {
    let api = api().await;
    let mut rival = definition();
    rival["metadata"]["name"] = json!("bars.example.com");
    rival["spec"]["names"] = json!({"plural": "bars", "kind": "Foo", "listKind": "BarList"});
    api.post(CRDS, &rival).await.expect(201);
    let mut conditions = Value::Null;
    for _ in 0..200 {
        conditions = api.get(&format!("{CRDS}/bars.example.com")).await.expect(200)["status"]["conditions"].clone();
        if conditions[0]["reason"] == "KindConflict" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        (&conditions[0]["reason"], &conditions[0]["message"]),
        (&json!("KindConflict"), &json!("\"Foo\" is already in use"))
    );
    api.get("/apis/example.com/v1/namespaces/default/bars").await.expect(404);
    api.delete(&format!("{CRDS}/foos.example.com"), &json!({})).await.expect(200);
    // The name became free, so it is taken.
    api.get_until("/apis/example.com/v1/namespaces/default/bars", 200, 300).await;
}

#[tokio::test]
async fn nobody_defines_a_kind_of_the_servers_own() {
    let api = api().await;
    let mut own = definition();
    own["metadata"] = json!({"name": "customresourcedefinitions.apiextensions.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}});
    own["spec"]["group"] = json!("apiextensions.k8s.io");
    own["spec"]["names"] = json!({"plural": "customresourcedefinitions", "kind": "Mine"});
    let refused = api.post(CRDS, &own).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("this is a kind of the server's own"), "{refused}");
}

#[tokio::test]
async fn objects_go_with_a_definition_that_serves_nothing() {
    let api = api().await;
    api.post(FOOS, &foo("a", "red")).await.expect(201);
    let ops = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}, {"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    api.patch(&format!("{CRDS}/foos.example.com"), "json-patch", &ops).await.expect(200);
    api.delete(&format!("{CRDS}/foos.example.com"), &json!({})).await.expect(200);
    api.get_until(&format!("{CRDS}/foos.example.com"), 404, 500).await;
    api.post(CRDS, &definition()).await.expect(201);
    established(&api).await;
    assert_eq!(api.get(FOOS).await.expect(200)["items"], json!([]), "the old object is gone for good");
}
