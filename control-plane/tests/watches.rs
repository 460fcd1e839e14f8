//! Watches over the in-process service.

mod common;

use std::time::Duration;

use common::{Api, config_map};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn a_watch_goes_on_where_a_list_ended() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("before", "1")).await.expect(201);
    let version = api.get(MAPS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    let mut lines = api.watch(&format!("{MAPS}?watch=true&resourceVersion={version}")).await;
    api.patch(&format!("{MAPS}/a"), "merge-patch", &json!({"data": {"k": "2"}})).await.expect(200);
    api.delete(&format!("{MAPS}/a"), &json!({})).await.expect(200);
    assert_eq!(lines.next_name().await, ("ADDED".into(), "a".into()));
    let modified = lines.next().await.unwrap();
    assert_eq!((&modified["type"], &modified["object"]["data"]["k"]), (&json!("MODIFIED"), &json!("2")));
    let deleted = lines.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["data"]["k"], "2");
    let version =
        |v: &serde_json::Value| v["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&deleted) > version(&modified));
}

#[tokio::test]
async fn a_selector_turns_changes_into_added_and_deleted() {
    let api = Api::start().await;
    let mut lines = api.watch(&format!("{MAPS}?watch=true&labelSelector=app%3Dgreen&resourceVersion=0")).await;
    api.post(MAPS, &config_map("a", "red")).await.expect(201);
    api.patch(&format!("{MAPS}/a"), "merge-patch", &json!({"metadata": {"labels": {"app": "green"}}}))
        .await
        .expect(200);
    api.patch(&format!("{MAPS}/a"), "merge-patch", &json!({"data": {"x": "y"}})).await.expect(200);
    api.patch(&format!("{MAPS}/a"), "merge-patch", &json!({"metadata": {"labels": {"app": "red"}}})).await.expect(200);
    api.delete(&format!("{MAPS}/a"), &json!({})).await.expect(200);
    api.post(MAPS, &config_map("b", "green")).await.expect(201);
    for wanted in [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")] {
        assert_eq!(lines.next_name().await, (wanted.0.into(), wanted.1.into()));
    }
}

#[tokio::test]
async fn send_initial_events_ends_with_a_marked_bookmark() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    api.post(MAPS, &config_map("b", "1")).await.expect(201);
    let options = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut lines = api.watch(&format!("{MAPS}?{options}")).await;
    assert_eq!(lines.next_name().await, ("ADDED".into(), "a".into()));
    assert_eq!(lines.next_name().await, ("ADDED".into(), "b".into()));
    let bookmark = lines.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    api.post(MAPS, &config_map("c", "1")).await.expect(201);
    assert_eq!(lines.next_name().await, ("ADDED".into(), "c".into()));
    api.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).await.expect(422);
}

#[tokio::test]
async fn a_too_old_revision_is_gone_and_a_future_one_is_waited_for() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    let api = api.restart().await;
    let mut lines = api.watch(&format!("{MAPS}?watch=true&resourceVersion=1")).await;
    let event = lines.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(lines.next().await.is_none());
    api.get(&format!("{MAPS}?watch=true&resourceVersion=99999999")).await.expect(504);
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout() {
    let api = Api::start().await;
    let mut lines = api.watch(&format!("{MAPS}?watch=true&timeoutSeconds=1&resourceVersion=0")).await;
    assert!(lines.next().await.is_none());
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_dropped() {
    let api = Api::start().await;
    let mut lines = api.watch(&format!("{MAPS}?watch=true&resourceVersion=0")).await;
    for _ in 0..3 {
        let writes = (0..500).map(|i| {
            let api = &api;
            async move {
                let body = json!({"metadata": {"generateName": format!("m{i}-")}});
                api.post(MAPS, &body).await.expect(201)
            }
        });
        futures::future::join_all(writes).await;
    }
    let mut seen = 0;
    while lines.next().await.is_some() {
        seen += 1;
    }
    assert!(seen < 1500, "the watch went on after {seen} events");
    assert_eq!(api.get(MAPS).await.expect(200)["items"].as_array().unwrap().len(), 1500);
}

#[tokio::test]
async fn kube_runtime_watcher_follows_with_streaming_lists() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(api.client(), "default");
    let config = watcher::Config::default().streaming_lists();
    let mut objects = Box::pin(watcher(maps, config).applied_objects());
    let first = objects.next().await.unwrap().unwrap();
    assert_eq!(first.metadata.name.as_deref(), Some("a"));
    api.post(MAPS, &config_map("b", "1")).await.expect(201);
    let second = tokio::time::timeout(Duration::from_secs(10), objects.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(second.metadata.name.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_thousand_watchers_all_see_an_event() {
    let api = Api::start().await;
    let mut watchers = Vec::new();
    for _ in 0..1000 {
        watchers.push(api.watch(&format!("{MAPS}?watch=true&resourceVersion=0")).await);
    }
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    for lines in &mut watchers {
        assert_eq!(lines.next_name().await, ("ADDED".into(), "a".into()));
    }
}

#[tokio::test]
async fn tables_can_be_watched() {
    let api = Api::start().await;
    api.post(MAPS, &config_map("a", "1")).await.expect(201);
    let service = keelson_control_plane::http::ApiService::internal(
        std::sync::Arc::clone(&api.server),
        keelson_control_plane::auth::User::internal("admin"),
    );
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let path = format!("{MAPS}?watch=true&timeoutSeconds=1&resourceVersion=0");
    let answer = api.answer(service, common::request(http::Method::GET, &path, &[("accept", accept)], "")).await;
    assert_eq!(answer.json["object"]["kind"], "Table", "{}", answer.json);
    assert_eq!(answer.json["object"]["rows"][0]["cells"][0], "a");
}
