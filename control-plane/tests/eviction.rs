//! Evictions and the budgets that grant them.

mod common;

use common::{Api, pod};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

async fn running(api: &Api, name: &str, ready: bool) {
    let mut body = pod(name);
    body["metadata"]["labels"] = json!({"app": "web"});
    body["spec"]["nodeName"] = json!("n");
    api.post(PODS, &body).await.expect(201);
    let ready = if ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
    api.patch(&format!("{PODS}/{name}/status"), "merge-patch", &status).await.expect(200);
}

async fn grant(api: &Api, spec: Value, status: Value) {
    let mut budget =
        json!({"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}});
    for (key, value) in spec.as_object().unwrap() {
        budget["spec"][key] = value.clone();
    }
    api.post(BUDGETS, &budget).await.expect(201);
    api.patch(&format!("{BUDGETS}/b/status"), "merge-patch", &json!({"status": status})).await.expect(200);
}

async fn evict(api: &Api, name: &str) -> common::Answer {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    api.post(&format!("{PODS}/{name}/eviction"), &eviction).await
}

#[tokio::test]
async fn what_is_granted_is_spent_once() {
    let api = Api::start().await;
    api.account("default", "default").await;
    running(&api, "a", true).await;
    running(&api, "b", true).await;
    let condition = json!([{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    grant(
        &api,
        json!({}),
        json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1,
        "expectedPods": 2, "conditions": condition}),
    )
    .await;
    evict(&api, "a").await.expect(201);
    let budget = api.get(&format!("{BUDGETS}/b")).await.expect(200);
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    assert!(budget["status"]["disruptedPods"]["a"].is_string());
    assert_eq!(budget["status"]["conditions"][0]["status"], "False");
    let refused = evict(&api, "b").await.expect(429);
    assert_eq!(refused["reason"], "TooManyRequests");
    assert_eq!(refused["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    let cause = &refused["details"]["causes"][0];
    assert_eq!(cause["reason"], "DisruptionBudget");
    assert_eq!(cause["message"], "The disruption budget b needs 1 healthy pods and has 2 currently");
}

#[tokio::test]
async fn a_budget_that_was_just_changed_makes_evictions_wait() {
    let api = Api::start().await;
    api.account("default", "default").await;
    running(&api, "a", true).await;
    grant(&api, json!({}), json!({"observedGeneration": 0, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2})).await;
    let refused = evict(&api, "a").await;
    assert_eq!(refused.headers["retry-after"], "10");
    let refused = refused.expect(429);
    let said = refused["details"]["causes"][0]["message"].as_str().unwrap();
    assert_eq!(said, "The disruption budget b is still being processed by the server.");
}

#[tokio::test]
async fn pods_that_serve_nobody_go_without_a_grant() {
    let none = json!({"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 2});
    let api = Api::start().await;
    api.account("default", "default").await;
    running(&api, "sick", false).await;
    running(&api, "well", true).await;
    grant(&api, json!({}), none.clone()).await;
    evict(&api, "well").await.expect(429);
    evict(&api, "sick").await.expect(201);

    let below = json!({"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 1, "expectedPods": 2});
    for (policy, wanted) in [("IfHealthyBudget", 429), ("AlwaysAllow", 201)] {
        let api = Api::start().await;
        api.account("default", "default").await;
        running(&api, "sick", false).await;
        grant(&api, json!({"unhealthyPodEvictionPolicy": policy}), below.clone()).await;
        evict(&api, "sick").await.expect(wanted);
    }
}
