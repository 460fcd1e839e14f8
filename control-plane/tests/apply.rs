//! Server-side apply and managedFields over the API.

mod common;

use common::{Answer, Api, config_map, deployment};
use http::Method;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

async fn apply(api: &Api, path: &str, manager: &str, config: &Value) -> Answer {
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{separator}fieldManager={manager}");
    api.send(Method::PATCH, &path, "application/apply-patch+yaml", config.to_string()).await
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

fn managers(object: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    list.iter().map(|entry| (text(&entry["manager"]), text(&entry["operation"]), text(&entry["subresource"]))).collect()
}

fn one(manager: &str, operation: &str, subresource: &str) -> (String, String, String) {
    (manager.to_owned(), operation.to_owned(), subresource.to_owned())
}

#[tokio::test]
async fn an_apply_creates_changes_and_takes_away() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m");
    let made = apply(&api, &path, "a", &map(json!({"x": "1", "y": "2"}))).await.expect(201);
    assert_eq!(managers(&made), [one("a", "Apply", "")]);
    let fields = &made["metadata"]["managedFields"][0];
    assert_eq!(fields["fieldsV1"], json!({"f:data": {"f:x": {}, "f:y": {}}}));
    let same = apply(&api, &path, "a", &map(json!({"x": "1", "y": "2"}))).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"], "nothing changed");
    let less = apply(&api, &path, "a", &map(json!({"x": "1"}))).await.expect(200);
    assert_eq!(less["data"], json!({"x": "1"}));
    let other = apply(&api, &path, "b", &map(json!({"z": "3"}))).await.expect(200);
    assert_eq!(other["data"], json!({"x": "1", "z": "3"}));
    let gone = apply(&api, &path, "b", &map(Value::Null)).await.expect(200);
    assert_eq!(gone["data"], json!({"x": "1"}));
}

#[tokio::test]
async fn conflicts_name_who_has_what_and_force_takes_it() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    api.post(&format!("{DEPLOYMENTS}?fieldManager=kubectl-create"), &deployment("d")).await.expect(201);
    let config =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 5}});
    let refused = apply(&api, &path, "a", &config).await.expect(409);
    assert_eq!(refused["reason"], "Conflict");
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"kubectl-create\" using apps/v1: .spec.replicas"
    );
    let cause = json!({"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-create\" using apps/v1", "field": ".spec.replicas"});
    assert_eq!(refused["details"]["causes"], json!([cause]));
    let forced = apply(&api, &format!("{path}?force=true"), "a", &config).await.expect(200);
    assert_eq!(forced["spec"]["replicas"], 5);
    assert_eq!(managers(&forced), [one("a", "Apply", ""), one("kubectl-create", "Update", "")]);
    let dry = apply(
        &api,
        &format!("{path}?dryRun=All&force=true"),
        "b",
        &json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d"}, "spec": {"replicas": 9}}),
    )
    .await
    .expect(200);
    assert_eq!(dry["spec"]["replicas"], 9);
    assert_eq!(api.get(&path).await.expect(200)["spec"]["replicas"], 5);
}

#[tokio::test]
async fn lists_are_merged_by_their_keys() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    api.post(DEPLOYMENTS, &deployment("d")).await.expect(201);
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": {
        "containers": [{"name": "side", "image": "busybox", "ports": [{"containerPort": 80}]}]}}}});
    let both = apply(&api, &path, "a", &config).await.expect(200);
    let names = |object: &Value| -> Vec<String> {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
        containers.iter().map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&both), ["c", "side"]);
    let without = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": {}}}});
    assert_eq!(names(&apply(&api, &path, "a", &without).await.expect(200)), ["c"]);
}

#[tokio::test]
async fn every_write_is_noted_under_its_name() {
    let api = Api::start().await;
    let made = api.post(&format!("{DEPLOYMENTS}?fieldManager=maker"), &deployment("d")).await.expect(201);
    assert_eq!(managers(&made), [one("maker", "Update", "")]);
    let path = format!("{DEPLOYMENTS}/d");
    let status = json!({"status": {"replicas": 1}});
    let seen = api.patch(&format!("{path}/status?fieldManager=controller"), "merge-patch", &status).await.expect(200);
    // In order of time, then of name: both wrote in the same second, or in two.
    let mut both = managers(&seen);
    both.sort();
    assert_eq!(both, [one("controller", "Update", "status"), one("maker", "Update", "")]);
    api.patch(&format!("{path}/scale?fieldManager=scaler"), "merge-patch", &json!({"spec": {"replicas": 7}}))
        .await
        .expect(200);
    let seen = api.get(&path).await.expect(200);
    assert!(managers(&seen).contains(&one("scaler", "Update", "scale")), "{:?}", managers(&seen));
    let maker = &seen["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["manager"] == "maker")
        .unwrap()["fieldsV1"];
    assert!(maker["f:spec"]["f:replicas"].is_null(), "the scaler took it: {maker}");
    let reset = api.patch(&path, "merge-patch", &json!({"metadata": {"managedFields": [{}]}})).await.expect(200);
    assert!(reset["metadata"]["managedFields"].is_null(), "{reset}");
    let agent = api.post(MAPS, &config_map("n", "x")).await.expect(201);
    assert_eq!(managers(&agent)[0].1, "Update");
}

#[tokio::test]
async fn what_is_no_apply_is_told_so() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m");
    let type_ = "application/apply-patch+yaml";
    let refused = api.send(Method::PATCH, &path, type_, map(json!({})).to_string()).await.expect(422);
    assert_eq!(
        refused["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let refused = api.patch(&format!("{path}?force=true"), "merge-patch", &json!({})).await.expect(422);
    assert!(
        refused["message"].as_str().unwrap().contains("force: Forbidden: may not be specified for non-apply patch"),
        "{refused}"
    );
    let mut other = map(json!({}));
    other["apiVersion"] = json!("v2");
    let refused = apply(&api, &path, "a", &other).await.expect(400);
    assert_eq!(
        refused["message"],
        "Incorrect version specified in apply patch. Specified patch version: v2, expected: v1"
    );
    let mut managed = map(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    let refused = apply(&api, &path, "a", &managed).await.expect(400);
    assert_eq!(refused["message"], "metadata.managedFields must be nil");
    let unknown = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "nope": 1});
    let refused = apply(&api, &path, "a", &unknown).await;
    assert!(
        refused.json["message"].as_str().unwrap().contains(".nope: field not declared in schema"),
        "{}",
        refused.json
    );
    for bad in ["", "[]", "{", "a: b: c"] {
        let refused = api.send(Method::PATCH, &format!("{path}?fieldManager=a"), type_, bad).await;
        assert_eq!(refused.status, 400, "{bad}: {}", refused.json);
    }
}

#[tokio::test]
async fn two_who_apply_at_once_both_succeed() {
    let api = Api::start().await;
    let all = futures::future::join_all((0..16).map(|n| {
        let api = &api;
        async move {
            let mut data = serde_json::Map::new();
            data.insert(format!("k{n}"), json!("v"));
            apply(api, &format!("{MAPS}/m"), &format!("m{n}"), &map(Value::Object(data))).await.status.as_u16()
        }
    }))
    .await;
    assert!(all.iter().all(|status| matches!(status, 200 | 201)), "{all:?}");
    let object = api.get(&format!("{MAPS}/m")).await.expect(200);
    assert_eq!((object["data"].as_object().unwrap().len(), managers(&object).len()), (16, 16));
}
