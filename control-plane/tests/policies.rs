//! Limit ranges, quotas and pod security, as a client sees them.

mod common;

use std::time::Duration;

use common::{Api, deployment, pod};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

async fn api() -> Api {
    let api = Api::start().await;
    api.account("default", "default").await;
    api
}

async fn quota(api: &Api, hard: Value) {
    api.post(QUOTAS, &json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await.expect(201);
    used_is(api, &hard, None).await;
}

/// Waits until the quota has counted, and holds `used` if given.
async fn used_is(api: &Api, hard: &Value, used: Option<Value>) {
    let mut last = Value::Null;
    for _ in 0..500 {
        last = api.get(&format!("{QUOTAS}/q")).await.expect(200)["status"].clone();
        let same = used.as_ref().is_none_or(|used| last["used"] == *used);
        if last["hard"] == *hard && last["used"].is_object() && same {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the quota stayed at {last}, wanted {used:?}");
}

#[tokio::test]
async fn a_quota_counts_what_is_there_refuses_what_is_too_much_and_gives_back() {
    let api = api().await;
    api.post(PODS, &pod("before")).await.expect(201);
    let hard = json!({"pods": "2", "services": "1", "count/configmaps": "1"});
    quota(&api, hard.clone()).await;
    used_is(&api, &hard, Some(json!({"pods": "1", "services": "1", "count/configmaps": "0"}))).await;
    api.post(&format!("{PODS}?dryRun=All"), &pod("dry")).await.expect(201);
    api.post(PODS, &pod("second")).await.expect(201);
    let at_once = api.get(&format!("{QUOTAS}/q")).await.expect(200);
    assert_eq!(at_once["status"]["used"]["pods"], "2", "the charge came with the pod");
    let refused = api.post(PODS, &pod("third")).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"third\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    );
    api.delete(&format!("{PODS}/before"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    used_is(&api, &hard, Some(json!({"pods": "1", "services": "1", "count/configmaps": "0"}))).await;
    api.post(PODS, &pod("third")).await.expect(201);
    let map = |name: &str| json!({"metadata": {"name": name}});
    api.post("/api/v1/namespaces/default/configmaps", &map("a")).await.expect(201);
    api.post("/api/v1/namespaces/default/configmaps", &map("b")).await.expect(403);
    api.post("/api/v1/namespaces/kube-system/configmaps", &map("b")).await.expect(201);
}

#[tokio::test]
async fn many_at_once_never_pass_a_quota() {
    let api = api().await;
    let hard = json!({"count/configmaps": "20"});
    quota(&api, hard.clone()).await;
    let made = futures::future::join_all((0..60).map(|n| {
        let api = &api;
        async move {
            let body = json!({"metadata": {"name": format!("m{n}")}});
            api.post("/api/v1/namespaces/default/configmaps", &body).await.status.as_u16()
        }
    }))
    .await;
    assert_eq!(made.iter().filter(|status| **status == 201).count(), 20, "{made:?}");
    assert!(made.iter().all(|status| matches!(status, 201 | 403)), "{made:?}");
    used_is(&api, &hard, Some(json!({"count/configmaps": "20"}))).await;
    api.delete("/api/v1/namespaces/default/configmaps", &json!({})).await.expect(200);
    used_is(&api, &hard, Some(json!({"count/configmaps": "0"}))).await;
}

#[tokio::test]
async fn quotas_of_amounts_want_to_be_told_and_limit_ranges_tell() {
    let api = api().await;
    let hard = json!({"limits.cpu": "1", "requests.memory": "1Gi"});
    quota(&api, hard.clone()).await;
    let refused = api.post(PODS, &pod("p")).await.expect(403);
    let said = refused["message"].as_str().unwrap();
    assert!(said.contains("failed quota: q: must specify limits.cpu for: c; requests.memory for: c"), "{said}");
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container",
        "default": {"cpu": "500m"}, "defaultRequest": {"memory": "100Mi"}, "max": {"cpu": "600m"}}]}});
    let made = api.post("/api/v1/namespaces/default/limitranges", &range).await.expect(201);
    assert_eq!(made["spec"]["limits"][0]["defaultRequest"]["cpu"], "500m");
    let made = api.post(PODS, &pod("p")).await.expect(201);
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "500m", "memory": "100Mi"}})
    );
    let said = made["metadata"]["annotations"]["kubernetes.io/limit-ranger"].as_str().unwrap();
    assert!(said.starts_with("LimitRanger plugin set: "), "{said}");
    used_is(&api, &hard, Some(json!({"limits.cpu": "500m", "requests.memory": "100Mi"}))).await;
    let mut large = pod("large");
    large["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "700m"}});
    let refused = api.post(PODS, &large).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"large\" is forbidden: maximum cpu usage per Container is 600m, but limit is 700m"
    );
    let wrong = json!({"metadata": {"name": "w"}, "spec": {"limits": [{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}]}});
    let refused = api.post("/api/v1/namespaces/default/limitranges", &wrong).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.limits[0].min[cpu]");
}

#[tokio::test]
async fn a_service_costs_what_its_type_costs() {
    let api = api().await;
    // `default` has one already, `kubernetes`.
    let hard = json!({"services": "3", "services.nodeports": "1"});
    quota(&api, hard.clone()).await;
    let service = |name: &str, kind: &str| json!({"metadata": {"name": name}, "spec": {"type": kind, "selector": {"a": "b"}, "ports": [{"port": 80}]}});
    let services = "/api/v1/namespaces/default/services";
    api.post(services, &service("a", "ClusterIP")).await.expect(201);
    api.post(services, &service("b", "NodePort")).await.expect(201);
    used_is(&api, &hard, Some(json!({"services": "3", "services.nodeports": "1"}))).await;
    let more = json!({"spec": {"type": "NodePort"}});
    let refused = api.patch(&format!("{services}/a"), "merge-patch", &more).await.expect(403);
    assert!(
        refused["message"].as_str().unwrap().contains("exceeded quota: q, requested: services.nodeports=1"),
        "{refused}"
    );
    api.patch(&format!("{services}/b"), "merge-patch", &json!({"spec": {"type": "ClusterIP"}})).await.expect(200);
    used_is(&api, &hard, Some(json!({"services": "3", "services.nodeports": "0"}))).await;
    api.patch(&format!("{services}/a"), "merge-patch", &more).await.expect(200);
}

#[tokio::test]
async fn pod_security_follows_the_labels_of_the_namespace() {
    let api = api().await;
    api.post(PODS, &pod("old")).await.expect(201);
    let label = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level, "pod-security.kubernetes.io/warn": level}}});
    let namespace = "/api/v1/namespaces/default";
    api.patch(namespace, "merge-patch", &label("strict")).await.expect(422);
    let answer = api.patch(namespace, "merge-patch", &label("restricted")).await;
    let warned: Vec<&str> = answer.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
    assert!(
        warned[0].contains("existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level"),
        "{warned:?}"
    );
    assert!(warned[1].starts_with("299 - \"old: allowPrivilegeEscalation != false"), "{warned:?}");
    answer.expect(200);
    let refused = api.post(PODS, &pod("new")).await.expect(403);
    let said = refused["message"].as_str().unwrap();
    assert!(said.starts_with("pods \"new\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)"), "{said}");
    let made = api.post("/apis/apps/v1/namespaces/default/deployments", &deployment("d")).await;
    let warned = made.headers["warning"].to_str().unwrap();
    assert!(warned.contains("would violate PodSecurity \\\"restricted:latest\\\""), "{warned}");
    made.expect(201);
    let patch = json!({"metadata": {"labels": {"seen": "yes"}}});
    api.patch(&format!("{PODS}/old"), "merge-patch", &patch).await.expect(200);
    let ephemeral = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "busybox"}]}});
    api.patch(&format!("{PODS}/old/ephemeralcontainers"), "strategic-merge-patch", &ephemeral).await.expect(403);
}
