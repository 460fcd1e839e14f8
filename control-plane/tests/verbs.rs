//! Verbs of the API over the in-process service: what a client sees of create, get, list, update, patch and delete.

mod common;

use common::{Api, config_map, deployment, pod};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api as Kube, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn kube_client_creates_reads_updates_and_deletes() {
    let api = Api::start().await;
    let maps: Kube<ConfigMap> = Kube::namespaced(api.client(), "default");
    let map: ConfigMap = serde_json::from_value(config_map("a", "1")).unwrap();
    let made = maps.create(&PostParams::default(), &map).await.unwrap();
    assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
    let mut changed = made.clone();
    changed.data.get_or_insert_default().insert("k".into(), "2".into());
    let updated = maps.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(updated.metadata.resource_version, made.metadata.resource_version);
    let stale = maps.replace("a", &PostParams::default(), &changed).await.unwrap_err();
    assert!(stale.to_string().contains("the object has been modified"), "{stale}");
    let patch = json!({"data": {"k": "3"}});
    let patched = maps.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_eq!(patched.data.unwrap()["k"], "3");
    assert_eq!(maps.list(&ListParams::default().labels("app=1")).await.unwrap().items.len(), 1);
    assert_eq!(maps.list(&ListParams::default().labels("app!=1")).await.unwrap().items.len(), 0);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn errors_are_status_objects_with_reasons() {
    let api = Api::start().await;
    let missing = api.get(&format!("{MAPS}/x")).await.expect(404);
    assert_eq!(missing["kind"], "Status");
    assert_eq!(missing["reason"], "NotFound");
    assert_eq!(missing["message"], "configmaps \"x\" not found");
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    assert_eq!(api.post(MAPS, &config_map("a", "1")).await.expect(409)["reason"], "AlreadyExists");
    let nowhere = api.post("/api/v1/namespaces/nowhere/configmaps", &config_map("a", "1")).await.expect(404);
    assert_eq!(nowhere["message"], "namespaces \"nowhere\" not found");
    let other = json!({"metadata": {"name": "b", "namespace": "kube-system"}});
    assert_eq!(api.post(MAPS, &other).await.expect(400)["reason"], "BadRequest");
    api.get("/api/v1/unknown").await.expect(404);
    api.get("/api/v1/namespaces/default/nodes").await.expect(404);
    api.post("/api/v1/configmaps", &config_map("a", "1")).await.expect(405);
    api.send(Method::POST, MAPS, "application/vnd.kubernetes.protobuf", "k8s").await.expect(400);
    api.send(Method::POST, MAPS, "application/cbor", "x").await.expect(415);
    api.send(Method::POST, MAPS, "application/json", "{").await.expect(400);
    let large = config_map("big", &"x".repeat(4 << 20));
    assert_eq!(api.post(MAPS, &large).await.expect(413)["reason"], "RequestEntityTooLarge");
    let mismatch = api.put(&format!("{MAPS}/a"), &config_map("b", "1")).await.expect(400);
    assert!(mismatch["message"].as_str().unwrap().contains("does not match the name on the URL"));
}

#[tokio::test]
async fn bodies_may_be_yaml() {
    let api = Api::start().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\ndata:\n  k: v\n";
    let made = api.send(Method::POST, MAPS, "application/yaml", yaml).await.expect(201);
    assert_eq!(made["data"]["k"], "v");
}

fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[tokio::test]
async fn bodies_may_be_protobuf_as_typed_go_clients_send_them() {
    let api = Api::start().await;
    let kind = [message(1, b"v1"), message(2, b"Namespace")].concat();
    let metadata = [message(1, b"proto"), message(2, b""), message(8, b"")].concat();
    let object = [message(1, &metadata), message(2, b""), message(3, &message(1, b""))].concat();
    let body = [b"k8s\0".to_vec(), message(1, &kind), message(2, &object)].concat();
    let media = "application/vnd.kubernetes.protobuf";
    let made = api.send(Method::POST, "/api/v1/namespaces?fieldValidation=Strict", media, body).await.expect(201);
    assert_eq!((&made["metadata"]["name"], &made["status"]["phase"]), (&json!("proto"), &json!("Active")));
}

#[tokio::test]
async fn generate_name_appends_five_characters() {
    let api = Api::start().await;
    let body = json!({"metadata": {"generateName": "gen-"}});
    let first = api.post(MAPS, &body).await.expect(201);
    let second = api.post(MAPS, &body).await.expect(201);
    let name = |v: &Value| v["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(name(&first).len(), "gen-".len() + 5);
    assert_ne!(name(&first), name(&second));
}

#[tokio::test]
async fn dry_run_stores_nothing() {
    let api = Api::start().await;
    let made = api.post(&format!("{MAPS}?dryRun=All"), &config_map("dry", "1")).await.expect(201);
    assert_eq!(made["metadata"]["name"], "dry");
    api.get(&format!("{MAPS}/dry")).await.expect(404);
    api.post(MAPS, &config_map("real", "1")).await.expect(201);
    let patched = api.patch(&format!("{MAPS}/real?dryRun=All"), "merge-patch", &json!({"data": {"k": "2"}})).await;
    assert_eq!(patched.expect(200)["data"]["k"], "2");
    assert_eq!(api.get(&format!("{MAPS}/real")).await.expect(200)["data"]["k"], "1");
    api.delete(&format!("{MAPS}/real?dryRun=All"), &json!({})).await.expect(200);
    api.get(&format!("{MAPS}/real")).await.expect(200);
    api.post(&format!("{MAPS}?dryRun=Some"), &config_map("z", "1")).await.expect(422);
}

#[tokio::test]
async fn field_validation_refuses_warns_or_ignores() {
    let api = Api::start().await;
    let mut body = config_map("f", "1");
    body["surprise"] = json!(1);
    let strict = api.post(&format!("{MAPS}?fieldValidation=Strict"), &body).await.expect(400);
    assert!(strict["message"].as_str().unwrap().contains("surprise"), "{strict}");
    let warned = api.post(&format!("{MAPS}?fieldValidation=Warn"), &body).await;
    let header = warned.headers.get("warning").expect("a warning").to_str().unwrap().to_owned();
    assert!(header.starts_with("299 - ") && header.contains("surprise"), "{header}");
    assert!(warned.expect(201).get("surprise").is_none());
    body["metadata"]["name"] = json!("g");
    let ignored = api.post(&format!("{MAPS}?fieldValidation=Ignore"), &body).await;
    assert!(ignored.headers.get("warning").is_none());
    ignored.expect(201);
}

#[tokio::test]
async fn defaults_and_validation_are_upstreams() {
    let api = Api::start().await;
    api.account("default", "default").await;
    let made = api.post("/api/v1/namespaces/default/pods", &pod("p")).await.expect(201);
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    let mut bad = deployment("d");
    bad["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 70000}]);
    let refused = api.post("/apis/apps/v1/namespaces/default/deployments", &bad).await.expect(422);
    assert_eq!(refused["reason"], "Invalid");
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.template.spec.containers[0].ports[0].containerPort");
}

#[tokio::test]
async fn json_merge_and_strategic_patches_apply_and_others_are_refused() {
    let api = Api::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    api.post(path, &deployment("d")).await.expect(201);
    let one = format!("{path}/d");
    let ops = json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]);
    assert_eq!(api.patch(&one, "json-patch", &ops).await.expect(200)["spec"]["replicas"], 3);
    let merge = json!({"metadata": {"labels": {"x": "y"}}});
    assert_eq!(api.patch(&one, "merge-patch", &merge).await.expect(200)["metadata"]["labels"]["x"], "y");
    let strategic = json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "busybox"}]}}}});
    let patched = api.patch(&one, "strategic-merge-patch", &strategic).await.expect(200);
    assert_eq!(patched["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2);
    assert_eq!(patched["metadata"]["generation"], 3, "one each for replicas and template, none for a label");
    let apply = api.send(Method::PATCH, &one, "application/apply-patch+cbor", "{}").await.expect(415);
    assert_eq!(apply["reason"], "UnsupportedMediaType");
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 9}});
    assert_eq!(api.patch(&one, "merge-patch", &stale).await.expect(409)["reason"], "Conflict");
    let test = json!([{"op": "test", "path": "/spec/replicas", "value": 99}]);
    assert_eq!(api.patch(&one, "json-patch", &test).await.expect(422)["reason"], "Invalid");
}

#[tokio::test]
async fn concurrent_patches_are_all_applied() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("many", "1")).await.expect(201);
    let path = format!("{MAPS}/many");
    let patches = (0..20).map(|i| {
        let body = json!({"data": {format!("k{i}"): "v"}});
        let (api, path) = (&api, &path);
        async move { api.patch(path, "merge-patch", &body).await.expect(200) }
    });
    futures::future::join_all(patches).await;
    let data = api.get(&path).await.expect(200)["data"].clone();
    assert_eq!(data.as_object().unwrap().len(), 21);
}

#[tokio::test]
async fn an_update_without_a_change_keeps_the_resource_version() {
    let api = Api::start().await;
    let made = api.post(MAPS, &config_map("same", "1")).await.expect(201);
    let again = api.put(&format!("{MAPS}/same"), &made).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn finalizers_preconditions_and_propagation() {
    let api = Api::start().await;
    let mut body = config_map("held", "1");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = api.post(MAPS, &body).await.expect(201);
    let path = format!("{MAPS}/held");
    let wrong = json!({"preconditions": {"uid": "other"}});
    assert_eq!(api.delete(&path, &wrong).await.expect(409)["reason"], "Conflict");
    let right = json!({"preconditions": {"uid": made["metadata"]["uid"]}, "propagationPolicy": "Foreground"});
    let marked = api.delete(&path, &right).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let finalizers = marked["metadata"]["finalizers"].as_array().unwrap();
    assert!(finalizers.iter().any(|f| f == "foregroundDeletion"), "{finalizers:?}");
    let released = api.patch(&path, "merge-patch", &json!({"metadata": {"finalizers": null}})).await;
    released.expect(200);
    api.get(&path).await.expect(404);
    api.post(MAPS, &config_map("orphaning", "1")).await.expect(201);
    let orphan = api.delete(&format!("{MAPS}/orphaning"), &json!({"propagationPolicy": "Orphan"})).await.expect(200);
    assert_eq!(orphan["metadata"]["finalizers"], json!(["orphan"]));
    api.post(MAPS, &config_map("gone", "1")).await.expect(201);
    let gone = api.delete(&format!("{MAPS}/gone"), &json!({})).await.expect(200);
    assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
}

#[tokio::test]
async fn delete_collection_takes_what_the_selector_says() {
    let api = Api::start().await;
    for i in 0..30 {
        api.post(MAPS, &config_map(&format!("m{i}"), if i % 2 == 0 { "even" } else { "odd" })).await.expect(201);
    }
    let deleted = api.delete(&format!("{MAPS}?labelSelector=app%3Deven"), &json!({})).await.expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 15);
    assert_eq!(api.get(MAPS).await.expect(200)["items"].as_array().unwrap().len(), 15);
}

#[tokio::test]
async fn lists_page_over_one_snapshot() {
    let api = Api::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        api.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    let names = |list: &Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let first = api.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete(&format!("{MAPS}/d"), &json!({})).await.expect(200);
    api.post(MAPS, &config_map("f", "1")).await.expect(201);
    api.patch(&format!("{MAPS}/c"), "merge-patch", &json!({"data": {"k": "new"}})).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = api.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["c", "d"], "as it stood at the first page");
    assert_eq!(second["items"][0]["data"]["k"], "1");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = api.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&third), ["e"]);
    assert!(third["metadata"].get("continue").is_none());
    let at = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = api.get(&format!("{MAPS}?resourceVersion={at}&resourceVersionMatch=Exact")).await.expect(200);
    assert_eq!(names(&exact), ["a", "b", "c", "d", "e"]);
    api.get(&format!("{MAPS}?continue=garbage")).await.expect(400);
    let future = api.get(&format!("{MAPS}?resourceVersion=99999999")).await.expect(504);
    assert_eq!(future["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    api.get(&format!("{MAPS}?fieldSelector=data.k%3D1")).await.expect(400);
    let by_name = api.get(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).await.expect(200);
    assert_eq!(names(&by_name), ["a"]);
}

#[tokio::test]
async fn a_continue_token_of_a_compacted_revision_is_expired() {
    let names = |list: &Value| {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let api = Api::start().await;
    for name in ["a", "b", "c", "d"] {
        api.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    let first = api.get(&format!("{MAPS}?limit=1")).await.expect(200);
    api.delete(&format!("{MAPS}/b"), &json!({})).await.expect(200);
    let now = api.server.store.revision().await.unwrap();
    api.server.store.compact(now).await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let expired = api.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    // It brings a token for the rest as it is now.
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let rest = api.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(200);
    assert_eq!((names(&rest), &rest["metadata"]["remainingItemCount"]), (vec!["c".to_owned()], &json!(1)));
    // In etcd the compaction itself took a revision.
    let shown: u64 = rest["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(shown >= now, "{shown}, and {now} was before");
    let token = rest["metadata"]["continue"].as_str().unwrap();
    let last = api.get(&format!("{MAPS}?limit=1&continue={token}")).await.expect(200);
    assert_eq!(
        (names(&last), &last["metadata"]["resourceVersion"]),
        (vec!["d".to_owned()], &rest["metadata"]["resourceVersion"])
    );
    assert!(last["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn tables_and_metadata_only_objects() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let list = api.get_as(MAPS, table).await.expect(200);
    assert_eq!(list["kind"], "Table");
    assert_eq!(list["rows"][0]["cells"][0], "a");
    assert_eq!(list["columnDefinitions"][0]["name"], "Name");
    assert_eq!(list["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let one = api.get_as(&format!("{MAPS}/a"), table).await.expect(200);
    assert_eq!(one["rows"].as_array().unwrap().len(), 1);
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = api.get_as(MAPS, partial).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0].get("data").is_none());
    let protobuf = api.get_as(MAPS, "application/vnd.kubernetes.protobuf,application/json").await.expect(200);
    assert_eq!(protobuf["kind"], "ConfigMapList");
}

#[tokio::test]
async fn a_large_list_is_sent_whole() {
    let api = Api::start().await;
    for i in 0..40 {
        api.post(MAPS, &config_map(&format!("m{i:02}"), &format!("{i}{}", "x".repeat(50)))).await.expect(201);
        let big = json!({"data": {"big": "y".repeat(8000)}});
        api.patch(&format!("{MAPS}/m{i:02}"), "merge-patch", &big).await.expect(200);
    }
    let list = api.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 40);
}
