//! What the server does for particular kinds: namespaces, pods, services, scales, events.

mod common;

use std::time::Duration;

use common::{Api, config_map, deployment, pod};
use http::Method;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

#[tokio::test]
async fn a_new_cluster_has_its_namespaces_and_the_kubernetes_service() {
    let api = Api::start().await;
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let namespace = api.get(&format!("/api/v1/namespaces/{name}")).await.expect(200);
        assert_eq!(namespace["status"]["phase"], "Active");
        assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], name);
    }
    let service = api.get(&format!("{SERVICES}/kubernetes")).await.expect(200);
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    let endpoints = api.get("/api/v1/namespaces/default/endpoints/kubernetes").await.expect(200);
    assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], "10.0.0.9");
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    assert_eq!(api.get(slice).await.expect(200)["endpoints"][0]["addresses"][0], "10.0.0.9");
    api.delete(slice, &json!({})).await.expect(200);
    for _ in 0..100 {
        if api.get(slice).await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the slice was not made again");
}

#[tokio::test]
async fn namespaces_end_through_finalize_and_take_nothing_new_meanwhile() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await.expect(201);
    let terminating = api.delete("/api/v1/namespaces/n", &json!({})).await.expect(200);
    assert_eq!(terminating["status"]["phase"], "Terminating");
    let refused = api.post("/api/v1/namespaces/n/configmaps", &config_map("a", "1")).await.expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut namespace = api.get("/api/v1/namespaces/n").await.expect(200);
    namespace["spec"]["finalizers"] = json!([]);
    api.put("/api/v1/namespaces/n/finalize", &namespace).await.expect(200);
    api.get("/api/v1/namespaces/n").await.expect(404);
    assert_eq!(api.delete("/api/v1/namespaces/default", &json!({})).await.expect(403)["reason"], "Forbidden");
}

#[tokio::test]
async fn pods_get_account_token_tolerations_and_priority() {
    let api = Api::start().await;
    let refused = api.post("/api/v1/namespaces/kube-public/pods", &pod("p")).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("serviceaccount \"default\" not found"), "{refused}");
    api.account("default", "default").await;
    let made = api.post(PODS, &pod("p")).await.expect(201);
    let spec = &made["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    let volume = &spec["volumes"][0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    let sources = &volume["projected"]["sources"];
    assert_eq!(sources[0]["serviceAccountToken"], json!({"expirationSeconds": 3607, "path": "token"}));
    assert_eq!(sources[1]["configMap"]["name"], "kube-root-ca.crt");
    assert_eq!(sources[2]["downwardAPI"]["items"][0]["path"], "namespace");
    assert_eq!(spec["containers"][0]["volumeMounts"][0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(0), &json!("PreemptLowerPriority")));
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["status"]["qosClass"], "BestEffort");
    let mut without = pod("q");
    without["spec"]["automountServiceAccountToken"] = json!(false);
    assert!(api.post(PODS, &without).await.expect(201)["spec"].get("volumes").is_none());
    let mut critical = pod("r");
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    assert_eq!(api.post(PODS, &critical).await.expect(201)["spec"]["priority"], 2_000_001_000);
    let mut unknown = pod("s");
    unknown["spec"]["priorityClassName"] = json!("none");
    api.post(PODS, &unknown).await.expect(403);
}

#[tokio::test]
async fn binding_grace_and_eviction() {
    let api = Api::start().await;
    api.account("default", "default").await;
    api.post(PODS, &pod("p")).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/p/binding"), &binding).await.expect(201);
    let bound = api.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    api.post(&format!("{PODS}/p/binding"), &binding).await.expect(409);
    let by_node = api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.expect(200);
    assert_eq!(by_node["items"].as_array().unwrap().len(), 1);
    let terminating = api.delete(&format!("{PODS}/p"), &json!({})).await.expect(200);
    assert_eq!(terminating["metadata"]["deletionGracePeriodSeconds"], 30);
    api.get(&format!("{PODS}/p")).await.expect(200);
    api.delete(&format!("{PODS}/p"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    api.get(&format!("{PODS}/p")).await.expect(404);
    api.post(PODS, &pod("unbound")).await.expect(201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "unbound"}});
    api.post(&format!("{PODS}/unbound/eviction"), &eviction).await.expect(201);
    api.get(&format!("{PODS}/unbound")).await.expect(404);
}

#[tokio::test]
async fn status_and_scale_are_written_apart() {
    let api = Api::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let mut body = deployment("d");
    body["status"] = json!({"replicas": 7});
    let made = api.post(path, &body).await.expect(201);
    assert!(made["status"]["replicas"].is_null());
    let status = json!({"status": {"replicas": 2, "readyReplicas": 1}, "spec": {"replicas": 50}});
    let patched = api.patch(&format!("{path}/d/status"), "merge-patch", &status).await.expect(200);
    assert_eq!((&patched["status"]["readyReplicas"], &patched["spec"]["replicas"]), (&json!(1), &json!(2)));
    assert_eq!(patched["metadata"]["generation"], 1);
    let scale = api.get(&format!("{path}/d/scale")).await.expect(200);
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    assert_eq!(scale["status"]["selector"], "app=d");
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = json!(5);
    assert_eq!(api.put(&format!("{path}/d/scale"), &wanted).await.expect(200)["spec"]["replicas"], 5);
    let scaled = api.get(&format!("{path}/d")).await.expect(200);
    assert_eq!((&scaled["spec"]["replicas"], &scaled["metadata"]["generation"]), (&json!(5), &json!(2)));
    api.put(&format!("{path}/d/scale"), &wanted).await.expect(409);
    let merge = json!({"spec": {"replicas": 1}});
    assert_eq!(api.patch(&format!("{path}/d/scale"), "merge-patch", &merge).await.expect(200)["spec"]["replicas"], 1);
    api.get(&format!("{path}/d/nothing")).await.expect(404);
}

fn service(name: &str, kind: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": kind, "selector": {"app": "a"}, "ports": [{"port": 80}]}})
}

#[tokio::test]
async fn services_get_addresses_and_ports_and_give_them_back() {
    let api = Api::start().await;
    let made = api.post(SERVICES, &service("a", "NodePort")).await.expect(201);
    let address = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let port = made["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!(address.starts_with("10.96.") && (30000..=32767).contains(&port));
    let mut same = service("b", "ClusterIP");
    same["spec"]["clusterIP"] = json!(address);
    let taken = api.post(SERVICES, &same).await.expect(422);
    assert!(taken["message"].as_str().unwrap().contains("provided IP is already allocated"), "{taken}");
    let mut port_taken = service("c", "NodePort");
    port_taken["spec"]["ports"][0]["nodePort"] = json!(port);
    let taken = api.post(SERVICES, &port_taken).await.expect(422);
    assert!(taken["message"].as_str().unwrap().contains("provided port is already allocated"), "{taken}");
    // A client that does not know its address keeps it.
    let updated = api.put(&format!("{SERVICES}/a"), &service("a", "NodePort")).await.expect(200);
    assert_eq!(updated["spec"]["clusterIP"], address.as_str());
    assert_eq!(updated["spec"]["ports"][0]["nodePort"], port);
    let to_cluster = api.patch(&format!("{SERVICES}/a"), "merge-patch", &json!({"spec": {"type": "ClusterIP"}})).await;
    assert!(to_cluster.expect(200)["spec"]["ports"][0].get("nodePort").is_none());
    api.post(SERVICES, &port_taken).await.expect(201);
    api.delete(&format!("{SERVICES}/a"), &json!({})).await.expect(200);
    api.post(SERVICES, &same).await.expect(201);
    let mut headless = service("h", "ClusterIP");
    headless["spec"]["clusterIP"] = json!("None");
    assert_eq!(api.post(SERVICES, &headless).await.expect(201)["spec"]["clusterIPs"], json!(["None"]));
    let api = api.restart().await;
    let mut again = same.clone();
    again["metadata"]["name"] = json!("d");
    api.post(SERVICES, &again).await.expect(422);
}

#[tokio::test]
async fn events_are_one_store_seen_through_two_groups() {
    let api = Api::start().await;
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "Started", "message": "went up",
        "type": "Normal", "source": {"component": "kubelet"}, "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1});
    api.post("/api/v1/namespaces/default/events", &event).await.expect(201);
    let seen = api.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!(seen["apiVersion"], "events.k8s.io/v1");
    assert_eq!((&seen["note"], &seen["regarding"]["name"]), (&json!("went up"), &json!("p")));
    let list = api.get("/apis/events.k8s.io/v1/events").await.expect(200);
    assert_eq!(list["items"][0]["note"], "went up");
    let by_object = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp";
    assert_eq!(api.get(by_object).await.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_cluster_scoped_kind_has_no_namespaced_url() {
    let api = Api::start().await;
    let url = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/clusterroles";
    api.send(Method::GET, url, "application/json", "").await.expect(404);
}

#[tokio::test]
async fn events_expire_unless_somebody_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = keelson_control_plane::run::open_store(folder.path()).unwrap();
    let config = keelson_control_plane::server::Config { event_ttl: Duration::from_secs(5), ..common::config() };
    let api = Api::over(store, config, folder).await;
    let events = "/api/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Tried", "message": "m", "type": "Normal"})
    };
    api.post(events, &event("left")).await.expect(201);
    api.post(events, &event("counted")).await.expect(201);
    let mut lines = api.watch(&format!("{events}?watch=true&fieldSelector=metadata.name%3Dleft")).await;
    assert_eq!(lines.next_name().await, ("ADDED".into(), "left".into()));
    let mut count = 0;
    while api.get(&format!("{events}/left")).await.status == 200 {
        count += 1;
        api.patch(&format!("{events}/counted"), "merge-patch", &json!({"count": count})).await.expect(200);
        assert!(count < 600, "it stays");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(lines.next_name().await, ("DELETED".into(), "left".into()));
    assert_eq!(api.get(&format!("{events}/counted")).await.expect(200)["count"], count);
    api.get_until(&format!("{events}/counted"), 404, 3000).await;
}
