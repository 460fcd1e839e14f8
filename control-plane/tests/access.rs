//! Who may do what: tokens, RBAC, the Node rule, reviews, anonymous requests.

mod common;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use common::{Api, pod};
use http::Method;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn token(api: &Api, body: Value) -> Value {
    api.post("/api/v1/namespaces/default/serviceaccounts/sa/token", &body).await.expect(201)
}

#[tokio::test]
async fn anonymous_sees_health_and_version_only() {
    let api = Api::start().await;
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        api.remote(Method::GET, path, None, &Value::Null).await.expect(200);
    }
    for path in ["/api", "/apis", "/metrics", "/api/v1/pods", "/openapi/v3"] {
        let refused = api.remote(Method::GET, path, None, &Value::Null).await.expect(401);
        assert_eq!(refused["reason"], "Unauthorized");
    }
    api.remote(Method::GET, "/version", Some("garbage"), &Value::Null).await.expect(401);
}

#[tokio::test]
async fn a_service_account_token_authenticates_until_its_account_is_gone() {
    let api = Api::start().await;
    let account = api.account("default", "sa").await;
    let made = token(&api, json!({"spec": {"expirationSeconds": 600}})).await;
    let bearer = made["status"]["token"].as_str().unwrap();
    assert!(made["status"]["expirationTimestamp"].is_string());
    api.remote(Method::GET, "/api", Some(bearer), &Value::Null).await.expect(200);
    let refused =
        api.remote(Method::GET, "/api/v1/namespaces/default/pods", Some(bearer), &Value::Null).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods is forbidden: User \"system:serviceaccount:default:sa\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "default"}]});
    api.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    api.remote(Method::GET, "/api/v1/namespaces/default/pods", Some(bearer), &Value::Null).await.expect(200);
    api.remote(Method::GET, "/api/v1/namespaces/kube-system/pods", Some(bearer), &Value::Null).await.expect(403);
    api.remote(Method::GET, "/api/v1/namespaces/default/secrets", Some(bearer), &Value::Null).await.expect(403);
    let review = json!({"spec": {"token": bearer}});
    let reviewed = api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect(201);
    assert_eq!(reviewed["status"]["authenticated"], true);
    assert_eq!(reviewed["status"]["user"]["uid"], account["metadata"]["uid"]);
    api.delete("/api/v1/namespaces/default/serviceaccounts/sa", &json!({})).await.expect(200);
    api.remote(Method::GET, "/api", Some(bearer), &Value::Null).await.expect(401);
    let reviewed = api.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect(201);
    assert_eq!(reviewed["status"]["authenticated"], false);
}

#[tokio::test]
async fn tokens_are_bound_to_pods_and_audiences() {
    let api = Api::start().await;
    api.account("default", "sa").await;
    let mut body = pod("p");
    body["spec"]["serviceAccountName"] = json!("sa");
    let made = api.post("/api/v1/namespaces/default/pods", &body).await.expect(201);
    let bound = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}}});
    let bearer = token(&api, bound).await["status"]["token"].as_str().unwrap().to_owned();
    let who = json!({});
    let seen = api
        .remote(Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews", Some(&bearer), &who)
        .await
        .expect(201);
    assert_eq!(seen["status"]["userInfo"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    api.delete("/api/v1/namespaces/default/pods/p", &json!({"gracePeriodSeconds": 0})).await.expect(200);
    api.remote(Method::GET, "/api", Some(&bearer), &Value::Null).await.expect(401);
    let other =
        token(&api, json!({"spec": {"audiences": ["vault"]}})).await["status"]["token"].as_str().unwrap().to_owned();
    api.remote(Method::GET, "/api", Some(&other), &Value::Null).await.expect(401);
    let path = "/api/v1/namespaces/default/serviceaccounts/sa/token";
    api.post(path, &json!({"spec": {"expirationSeconds": 10}})).await.expect(422);
    let missing = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "none"}}});
    api.post(path, &missing).await.expect(404);
}

#[tokio::test]
async fn reviews_answer_as_the_server_decides() {
    let api = Api::start().await;
    let own = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(api.post(path, &own).await.expect(201)["status"]["allowed"], true);
    let asked = api.as_user("jane", &[], Method::POST, path, &own).await.expect(201);
    assert_eq!(asked["status"]["allowed"], false);
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let about = json!({"spec": {"user": "kube-apiserver-kubelet-client", "groups": ["system:masters"],
        "resourceAttributes": {"verb": "get", "resource": "nodes", "subresource": "proxy", "name": "n"}}});
    assert_eq!(api.post(path, &about).await.expect(201)["status"]["allowed"], true);
    let url = json!({"spec": {"user": "jane", "groups": ["system:authenticated"], "nonResourceAttributes": {"verb": "get", "path": "/version"}}});
    assert_eq!(api.post(path, &url).await.expect(201)["status"]["allowed"], true);
    api.as_user("jane", &[], Method::POST, path, &about).await.expect(403);
}

#[tokio::test]
async fn a_node_does_its_work_and_no_more() {
    let api = Api::start().await;
    api.account("default", "default").await;
    api.account("default", "other").await;
    let groups = ["system:nodes"];
    let as_node = |method: Method, path: &'static str, body: Value| {
        let api = &api;
        async move { api.as_user("system:node:n1", &groups, method, path, &body).await.status.as_u16() }
    };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    assert_eq!(as_node(Method::POST, "/api/v1/nodes", node).await, 201);
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n2"}})).await.expect(201);
    let mut body = pod("p");
    body["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "mine"}}]);
    body["spec"]["nodeName"] = json!("n1");
    api.post("/api/v1/namespaces/default/pods", &body).await.expect(201);
    for name in ["mine", "foreign"] {
        api.post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": name}})).await.expect(201);
    }
    let get = |path: &'static str| as_node(Method::GET, path, Value::Null);
    assert_eq!(get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await, 200);
    assert_eq!(get("/api/v1/services").await, 200);
    assert_eq!(get("/apis/discovery.k8s.io/v1/endpointslices").await, 200);
    assert_eq!(get("/api/v1/namespaces/default/secrets/mine").await, 200);
    assert_eq!(get("/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dmine").await, 200);
    assert_eq!(get("/api/v1/namespaces/default/secrets/foreign").await, 403);
    assert_eq!(get("/api/v1/namespaces/default/secrets").await, 403);
    assert_eq!(get("/api/v1/secrets").await, 403);
    let token = |account: &str| format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
    let pod = api.get("/api/v1/namespaces/default/pods/p").await.expect(200);
    let bound = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}}});
    for (account, wanted) in [("default", 201), ("other", 403)] {
        let answer = api.as_user("system:node:n1", &groups, Method::POST, &token(account), &bound).await;
        assert_eq!(answer.status.as_u16(), wanted, "{account}: {}", answer.json);
    }
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    assert_eq!(
        as_node(Method::POST, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease).await,
        201
    );
    assert_eq!(as_node(Method::PUT, "/api/v1/nodes/n2", json!({"metadata": {"name": "n2"}})).await, 403);
    assert_eq!(as_node(Method::DELETE, "/api/v1/nodes/n1", Value::Null).await, 403);
    let review = json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "get", "resource": "nodes"}}});
    assert_eq!(as_node(Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await, 201);
}

#[tokio::test]
async fn impersonation_needs_the_right_to_it() {
    let api = Api::start().await;
    let service = |user| keelson_control_plane::http::ApiService::internal(std::sync::Arc::clone(&api.server), user);
    let headers = [("impersonate-user", "jane")];
    let ask = || common::request(Method::GET, "/api/v1/namespaces/default/pods", &headers, "");
    let refused = api.answer(service(keelson_control_plane::auth::User::internal("admin")), ask()).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("User \"jane\" cannot list"), "{refused}");
    let nobody = keelson_control_plane::auth::User { name: "joe".into(), ..Default::default() };
    let refused = api.answer(service(nobody), ask()).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("cannot impersonate"), "{refused}");
}

#[tokio::test]
async fn a_bootstrap_token_asks_for_a_certificate_and_nothing_else() {
    let api = Api::start().await;
    let bearer = "abcdef.0123456789abcdef";
    let mut secret = json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:nodes", "expiration": "2999-01-01T00:00:00Z"}});
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    api.remote(Method::GET, "/api", Some(bearer), &Value::Null).await.expect(401);
    api.post(secrets, &secret).await.expect(201);
    let binding = json!({"metadata": {"name": "bootstraps"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"kind": "Group", "name": "system:bootstrappers:nodes"}]});
    api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut asked = rcgen::CertificateParams::default();
    asked.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    asked.distinguished_name.push(rcgen::DnType::CommonName, "system:node:new");
    let pem = asked.serialize_request(&key).unwrap().pem().unwrap();
    let request = json!({"metadata": {"name": "new"}, "spec": {"request": BASE64_STANDARD.encode(pem),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["digital signature", "client auth"]}});
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let made = api.remote(Method::POST, requests, Some(bearer), &request).await.expect(201);
    assert_eq!(made["spec"]["username"], "system:bootstrap:abcdef");
    let groups = ["system:bootstrappers", "system:bootstrappers:nodes", "system:authenticated"];
    assert_eq!(made["spec"]["groups"], json!(groups));
    api.remote(Method::GET, secrets, Some(bearer), &Value::Null).await.expect(403);
    api.remote(Method::GET, "/api", Some("abcdef.0123456789abcdee"), &Value::Null).await.expect(401);
    let review = |audiences: Value| json!({"spec": {"token": bearer, "audiences": audiences}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    assert_eq!(api.post(reviews, &review(json!([]))).await.expect(201)["status"]["authenticated"], true);
    assert_eq!(api.post(reviews, &review(json!(["else"]))).await.expect(201)["status"]["authenticated"], false);
    secret["stringData"] = json!({"expiration": "2000-01-01T00:00:00Z"});
    api.patch(
        &format!("{secrets}/bootstrap-token-abcdef"),
        "merge-patch",
        &json!({"stringData": secret["stringData"]}),
    )
    .await
    .expect(200);
    api.remote(Method::GET, "/api", Some(bearer), &Value::Null).await.expect(401);
}
