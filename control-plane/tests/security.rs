//! What nobody may do, asked over the API: a node that wants more than its own, permissions given away, identities made up.

mod common;

use std::sync::Arc;

use base64::Engine;
use common::{Answer, Api, pod, request};
use http::Method;
use keelson_control_plane::auth::User;
use keelson_control_plane::http::ApiService;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

#[track_caller]
fn refused(answer: Answer, why: &str) {
    let body = answer.expect(403);
    assert!(body["message"].as_str().is_some_and(|m| m.contains(why)), "wanted {why:?}: {body}");
}

async fn as_node(api: &Api, method: Method, path: &str, body: Value) -> Answer {
    api.as_user("system:node:n1", &["system:nodes"], method, path, &body).await
}

/// A PATCH, with the type that makes it one.
async fn patch_as(api: &Api, user: &str, groups: &[&str], path: &str, body: &Value) -> Answer {
    let groups = groups.iter().map(|g| (*g).to_owned()).collect();
    let service = ApiService::internal(Arc::clone(&api.server), User { name: user.into(), groups, ..User::default() });
    let headers = [("content-type", "application/merge-patch+json")];
    api.answer(service, request(Method::PATCH, path, &headers, body.to_string())).await
}

async fn with_headers(
    api: &Api,
    user: &str,
    headers: &[(&str, &str)],
    method: Method,
    path: &str,
    body: &Value,
) -> Answer {
    let user = User { name: user.into(), groups: vec!["system:authenticated".into()], ..User::default() };
    let service = ApiService::internal(Arc::clone(&api.server), user);
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    api.answer(service, request(method, path, &all, body)).await
}

/// Two nodes, an account with a pod on each.
async fn cluster() -> (Api, String) {
    let api = Api::start().await;
    api.account("default", "default").await;
    api.account("default", "adminsa").await;
    let made = as_node(&api, Method::POST, "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.expect(201);
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n2"}})).await.expect(201);
    for node in ["n1", "n2"] {
        let mut body = pod(&format!("on-{node}"));
        body["spec"]["nodeName"] = json!(node);
        api.post(PODS, &body).await.expect(201);
    }
    (api, made["metadata"]["uid"].as_str().unwrap().to_owned())
}

fn mirror(name: &str, node_uid: &str) -> Value {
    let mut body = pod(name);
    body["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    body["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node_uid, "controller": true}]);
    body["spec"]["nodeName"] = json!("n1");
    body
}

#[tokio::test]
async fn a_node_makes_mirror_pods_of_its_own_and_no_others() {
    let (api, uid) = cluster().await;
    let mut stolen = pod("stolen");
    stolen["spec"]["nodeName"] = json!("n1");
    stolen["spec"]["serviceAccountName"] = json!("adminsa");
    refused(as_node(&api, Method::POST, PODS, stolen).await, "node \"n1\" can only create mirror pods");
    as_node(&api, Method::POST, PODS, mirror("m", &uid)).await.expect(201);

    let set = |path: &str, value: Value| {
        let mut body = mirror("bad", &uid);
        *body.pointer_mut(path).unwrap() = value;
        body
    };
    let spec = |field: &str, value: Value| {
        let mut body = mirror("bad", &uid);
        body["spec"][field] = value;
        body
    };
    let owner = |field: &str, value: Value| {
        let mut body = mirror("bad", &uid);
        body["metadata"]["ownerReferences"][0][field] = value;
        body
    };
    for (body, why) in [
        (set("/spec/nodeName", json!("n2")), "can only create pods with spec.nodeName set to itself"),
        (set("/metadata/ownerReferences", json!([])), "with an owner reference set to itself"),
        (owner("name", json!("n2")), "with an owner reference set to itself"),
        (owner("controller", json!(false)), "with a controller owner reference set to itself"),
        (owner("blockOwnerDeletion", json!(true)), "must not set blockOwnerDeletion"),
        (owner("uid", json!("other")), "node n1 UID mismatch"),
        (spec("serviceAccountName", json!("adminsa")), "can not create pods that reference a service account"),
        (spec("volumes", json!([{"name": "s", "secret": {"secretName": "x"}}])), "reference secrets"),
        (spec("imagePullSecrets", json!([{"name": "x"}])), "reference secrets"),
        (spec("volumes", json!([{"name": "s", "configMap": {"name": "x"}}])), "reference configmaps"),
        (
            spec("volumes", json!([{"name": "s", "persistentVolumeClaim": {"claimName": "x"}}])),
            "reference persistentvolumeclaims",
        ),
    ] {
        refused(as_node(&api, Method::POST, PODS, body).await, why);
    }
}

#[tokio::test]
async fn a_node_gets_tokens_for_its_pods_only() {
    let (api, _) = cluster().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    refused(
        as_node(&api, Method::POST, path, json!({"spec": {"expirationSeconds": 4_294_967_296_i64}})).await,
        "node requested token not bound to a pod",
    );
    let uid = |name: &'static str| {
        let api = &api;
        async move { api.get(&format!("{PODS}/{name}")).await.expect(200)["metadata"]["uid"].clone() }
    };
    let bound = |name: &str, uid: Value| json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}}});
    let (own, foreign) = (uid("on-n1").await, uid("on-n2").await);
    as_node(&api, Method::POST, path, bound("on-n1", own.clone())).await.expect(201);
    refused(as_node(&api, Method::POST, path, bound("on-n1", Value::Null)).await, "with a pod binding without a uid");
    refused(as_node(&api, Method::POST, path, bound("on-n2", foreign)).await, "scheduled on a different node");
    let mut other = bound("on-n1", own.clone());
    other["spec"]["audiences"] = json!(["vault"]);
    refused(as_node(&api, Method::POST, path, other).await, "audience \"vault\" not found in pod spec volume");
    let account = "/api/v1/namespaces/default/serviceaccounts/adminsa/token";
    refused(as_node(&api, Method::POST, account, bound("on-n1", own)).await, "cannot create resource");
}

#[tokio::test]
async fn a_node_changes_its_own_node_within_limits() {
    let (api, _) = cluster().await;
    let patch = |path: &'static str, body: Value| {
        let api = &api;
        async move { patch_as(api, "system:node:n1", &["system:nodes"], path, &body).await }
    };
    let own = "/api/v1/nodes/n1";
    patch(own, json!({"metadata": {"labels": {"app": "x", "topology.kubernetes.io/zone": "z"}}})).await.expect(200);
    patch("/api/v1/nodes/n1/status", json!({"status": {"conditions": []}})).await.expect(200);
    for (path, body, why) in [
        ("/api/v1/nodes/n2", json!({"metadata": {"labels": {"app": "x"}}}), "is not allowed to modify node \"n2\""),
        ("/api/v1/nodes/n2/status", json!({"status": {}}), "is not allowed to modify node \"n2\""),
        (
            own,
            json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            "modify labels: node-role",
        ),
        (own, json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}), "modify labels: node-restr"),
        (own, json!({"spec": {"taints": null}}), "is not allowed to modify taints"),
        (
            own,
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]}}),
            "is not allowed to modify ownerReferences",
        ),
    ] {
        refused(patch(path, body).await, why);
    }
    let other = json!({"metadata": {"name": "n3"}});
    refused(as_node(&api, Method::POST, "/api/v1/nodes", other).await, "is not allowed to modify node \"n3\"");
    as_node(&api, Method::DELETE, own, Value::Null).await.expect(403);
}

#[tokio::test]
async fn a_node_touches_its_own_pods_and_objects_only() {
    let (api, _) = cluster().await;
    let groups = &["system:nodes"][..];
    let status = |pod: &str| format!("{PODS}/{pod}/status");
    let running = json!({"status": {"phase": "Running"}});
    patch_as(&api, "system:node:n1", groups, &status("on-n1"), &running).await.expect(200);
    let foreign = patch_as(&api, "system:node:n1", groups, &status("on-n2"), &running).await;
    refused(foreign, "can only update pod status for pods with spec.nodeName set to itself");
    let labels = json!({"metadata": {"labels": {"app": "other"}}});
    let relabelled = patch_as(&api, "system:node:n1", groups, &status("on-n1"), &labels).await;
    refused(relabelled, "cannot update labels through pod status");
    refused(
        as_node(&api, Method::DELETE, &format!("{PODS}/on-n2"), Value::Null).await,
        "can only delete pods with spec.nodeName set to itself",
    );
    let eviction = json!({"metadata": {"name": "on-n2"}});
    refused(
        as_node(&api, Method::POST, &format!("{PODS}/on-n2/eviction"), eviction).await,
        "can only evict pods with spec.nodeName set to itself",
    );
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    refused(
        as_node(&api, Method::POST, leases, json!({"metadata": {"name": "n2"}})).await,
        "can only access node lease with the same name as the requesting node",
    );
    as_node(&api, Method::POST, leases, json!({"metadata": {"name": "n1"}})).await.expect(201);
    let csinodes = "/apis/storage.k8s.io/v1/csinodes";
    refused(
        as_node(&api, Method::POST, csinodes, json!({"metadata": {"name": "n2"}, "spec": {"drivers": []}})).await,
        "can only access CSINode with the same name as the requesting node",
    );
    as_node(&api, Method::DELETE, &format!("{PODS}/on-n1"), json!({"gracePeriodSeconds": 0})).await.expect(200);
}

#[tokio::test]
async fn a_node_reads_its_own_pods_and_all_nodes_while_the_operator_lets_it() {
    let (api, _) = cluster().await;
    let get = |path: &'static str| {
        let api = &api;
        async move { as_node(api, Method::GET, path, Value::Null).await.status.as_u16() }
    };
    assert_eq!(get("/api/v1/pods").await, 403);
    assert_eq!(get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2").await, 403);
    assert_eq!(get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await, 200);
    assert_eq!(get("/api/v1/namespaces/default/pods/on-n1").await, 200);
    assert_eq!(get("/api/v1/namespaces/default/pods/on-n2").await, 403);
    assert_eq!(get("/api/v1/nodes").await, 200);
    api.delete(&format!("{RBAC}/clusterrolebindings/keelson:host-gw"), &json!({})).await.expect(200);
    let api = api.restart().await;
    let get = |path: &'static str| {
        let api = &api;
        async move { as_node(api, Method::GET, path, Value::Null).await.status.as_u16() }
    };
    assert_eq!(get("/api/v1/nodes").await, 403);
    assert_eq!(get("/api/v1/nodes/n2").await, 403);
    assert_eq!(get("/api/v1/nodes/n1").await, 200);
    assert_eq!(get("/api/v1/nodes?fieldSelector=metadata.name%3Dn1").await, 200);
}

/// Lets jane do everything with roles and bindings in the default namespace, and read pods.
async fn delegate(api: &Api, extra: Value) {
    let mut rules = vec![
        json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
            "verbs": ["get", "create", "update", "patch"]}),
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}),
    ];
    if !extra.is_null() {
        rules.push(extra);
    }
    api.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": "delegate"}, "rules": rules}))
        .await
        .expect(201);
    let binding = json!({"metadata": {"name": "delegate"}, "subjects": [{"kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "delegate"}});
    api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
}

fn role(name: &str, verbs: &[&str]) -> Value {
    json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]})
}

fn bind(name: &str, kind: &str, role: &str) -> Value {
    json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}})
}

#[tokio::test]
async fn nobody_grants_what_he_does_not_hold() {
    let api = Api::start().await;
    delegate(&api, Value::Null).await;
    let local = format!("{RBAC}/namespaces/default");
    let post = |path: String, body: Value| {
        let api = &api;
        async move { api.as_user("jane", &[], Method::POST, &path, &body).await }
    };
    post(format!("{local}/roles"), role("reader", &["get"])).await.expect(201);
    let body = post(format!("{local}/roles"), role("killer", &["get", "delete"])).await.expect(403);
    assert_eq!(
        body["message"],
        "roles.rbac.authorization.k8s.io \"killer\" is forbidden: user \"jane\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    let update = api.as_user("jane", &[], Method::PUT, &format!("{local}/roles/reader"), &role("reader", &["*"])).await;
    refused(update, "not currently held");
    let made = api.as_user("jane", &[], Method::PUT, &format!("{local}/roles/new"), &role("new", &["delete"])).await;
    refused(made, "not currently held");
    refused(post(format!("{RBAC}/clusterroles"), role("all", &["*"])).await, "not currently held");

    post(format!("{local}/rolebindings"), bind("fine", "Role", "reader")).await.expect(201);
    refused(post(format!("{local}/rolebindings"), bind("up", "ClusterRole", "admin")).await, "not currently held");
    let up = bind("up", "ClusterRole", "cluster-admin");
    refused(post(format!("{RBAC}/clusterrolebindings"), up.clone()).await, "not currently held");
    let missing = post(format!("{local}/rolebindings"), bind("none", "Role", "none")).await;
    missing.expect(404);
    api.post(&format!("{RBAC}/clusterrolebindings"), &up).await.expect(201);
}

#[tokio::test]
async fn escalate_and_bind_allow_it() {
    let api = Api::start().await;
    let extra = json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["admin"],
        "verbs": ["bind"]});
    delegate(&api, extra).await;
    let local = format!("{RBAC}/namespaces/default");
    let post = |path: String, body: Value| {
        let api = &api;
        async move { api.as_user("jane", &[], Method::POST, &path, &body).await }
    };
    post(format!("{local}/rolebindings"), bind("up", "ClusterRole", "admin")).await.expect(201);
    refused(
        post(format!("{local}/rolebindings"), bind("x", "ClusterRole", "cluster-admin")).await,
        "not currently held",
    );
    let escalate = json!({"metadata": {"name": "escalate"}, "rules": [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["escalate"]}]});
    api.post(&format!("{local}/roles"), &escalate).await.expect(201);
    api.post(&format!("{local}/rolebindings"), &bind("escalate", "Role", "escalate")).await.expect(201);
    post(format!("{local}/roles"), role("everything", &["*"])).await.expect(201);
}

#[tokio::test]
async fn an_update_that_creates_needs_the_right_to_create() {
    let api = Api::start().await;
    let only_update = json!({"metadata": {"name": "u"}, "rules": [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]}]});
    let local = format!("{RBAC}/namespaces/default");
    api.post(&format!("{local}/roles"), &only_update).await.expect(201);
    api.post(&format!("{local}/rolebindings"), &bind("u", "Role", "u")).await.expect(201);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}});
    let put = || async { api.as_user("jane", &[], Method::PUT, &format!("{leases}/l"), &lease).await };
    refused(put().await, "cannot create resource \"leases\"");
    // A role that names the object does not let it be made by a query that names it.
    let selected = format!("{leases}?fieldSelector=metadata.name%3Dl");
    let named = json!({"metadata": {"name": "n"}, "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "resourceNames": ["l"], "verbs": ["create"]}]});
    api.post(&format!("{local}/roles"), &named).await.expect(201);
    api.post(&format!("{local}/rolebindings"), &bind("n", "Role", "n")).await.expect(201);
    refused(api.as_user("jane", &[], Method::POST, &selected, &lease).await, "cannot create resource \"leases\"");
    put().await.expect(201);
}

fn signing_request(user: &str, groups: &[&str]) -> String {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, user);
    for group in groups {
        params.distinguished_name.push(rcgen::DnType::OrganizationName, *group);
    }
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

fn csr(name: &str, signer: &str, request: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"signerName": signer, "request": request, "usages": ["client auth"],
        "username": "system:admin", "uid": "made-up", "groups": ["system:masters"], "extra": {"a": ["b"]}},
        "status": {"certificate": "QQ==", "conditions": [{"type": "Approved", "status": "True"}]}})
}

#[tokio::test]
async fn a_signing_request_says_who_really_asks() {
    let api = Api::start().await;
    let rules = json!({"metadata": {"name": "csr"}, "rules": [
        {"apiGroups": ["certificates.k8s.io"], "resources": ["*"], "verbs": ["create", "get", "update", "patch"]}]});
    api.post(&format!("{RBAC}/clusterroles"), &rules).await.expect(201);
    api.post(&format!("{RBAC}/clusterrolebindings"), &bind("csr", "ClusterRole", "csr")).await.expect(201);
    let post = |body: Value| {
        let api = &api;
        async move { api.as_user("jane", &["dev"], Method::POST, CSRS, &body).await }
    };
    let client = "kubernetes.io/kube-apiserver-client";
    let good = csr("good", client, &signing_request("jane", &["dev"]));
    let made = post(good).await.expect(201);
    assert_eq!(made["spec"]["username"], "jane");
    assert_eq!(made["spec"]["groups"], json!(["dev", "system:authenticated"]));
    assert!(made["spec"].get("uid").is_none() && made["spec"].get("extra").is_none(), "{made}");
    assert!(made["status"].get("certificate").is_none() && made["status"].get("conditions").is_none(), "{made}");

    let text = base64::engine::general_purpose::STANDARD.encode("no request");
    let body = post(csr("bad", client, &text)).await.expect(422);
    assert!(body["message"].as_str().unwrap().contains("PEM block type must be CERTIFICATE REQUEST"), "{body}");
    let masters = csr("masters", client, &signing_request("jane", &["system:masters"]));
    refused(
        post(masters).await,
        "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
    );
    let mut unused = csr("usages", client, &signing_request("jane", &[]));
    unused["spec"]["usages"] = Value::Null;
    let body = post(unused).await.expect(422);
    assert_eq!(body["details"]["causes"][0]["field"], "spec.usages", "{body}");

    let mut approved = made.clone();
    approved["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "x"}]);
    let approve =
        || async { api.as_user("jane", &["dev"], Method::PUT, &format!("{CSRS}/good/approval"), &approved).await };
    refused(approve().await, "user not permitted to approve requests with signerName");
    let mut signed = made.clone();
    signed["status"]["certificate"] = json!("QQ==");
    let sign = api.as_user("jane", &["dev"], Method::PUT, &format!("{CSRS}/good/status"), &signed).await;
    refused(sign, "user not permitted to sign requests with signerName");
    let signer = json!({"metadata": {"name": "approver"}, "rules": [{"apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"], "resourceNames": ["kubernetes.io/*"], "verbs": ["approve"]}]});
    api.post(&format!("{RBAC}/clusterroles"), &signer).await.expect(201);
    api.post(&format!("{RBAC}/clusterrolebindings"), &bind("approver", "ClusterRole", "approver")).await.expect(201);
    approve().await.expect(200);
}

#[tokio::test]
async fn a_node_asks_for_certificates_of_its_own_name() {
    let (api, _) = cluster().await;
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    let ask = |name: &str, user: &str| csr(name, signer, &signing_request(user, &["system:nodes"]));
    refused(
        as_node(&api, Method::POST, CSRS, ask("a", "system:node:n2")).await,
        "can only create a node CSR with CN=system:node:n1",
    );
    as_node(&api, Method::POST, CSRS, ask("b", "system:node:n1")).await.expect(201);
}

#[tokio::test]
async fn every_part_of_an_impersonated_user_must_be_allowed() {
    let api = Api::start().await;
    let rules = json!({"metadata": {"name": "imp"}, "rules": [
        {"apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"], "verbs": ["impersonate"]}]});
    api.post(&format!("{RBAC}/clusterroles"), &rules).await.expect(201);
    api.post(&format!("{RBAC}/clusterrolebindings"), &bind("imp", "ClusterRole", "imp")).await.expect(201);
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ask = |headers: Vec<(&'static str, &'static str)>| {
        let api = &api;
        async move { with_headers(api, "jane", &headers, Method::POST, path, &json!({})).await }
    };
    for header in ["impersonate-uid", "impersonate-extra-scopes", "impersonate-group"] {
        let body = ask(vec![(header, "x")]).await.expect(400);
        assert!(body["message"].as_str().unwrap().contains("without impersonating a user"), "{body}");
    }
    let bob = ("impersonate-user", "bob");
    ask(vec![bob]).await.expect(201);
    let uid = ("impersonate-uid", "7");
    refused(ask(vec![bob, uid]).await, "cannot impersonate resource \"uids\"");
    let scope = ("impersonate-extra-scopes", "all");
    refused(ask(vec![bob, scope]).await, "cannot impersonate resource \"userextras/scopes\"");
    let more = json!({"metadata": {"name": "more"}, "rules": [{"apiGroups": ["authentication.k8s.io"],
        "resources": ["uids", "userextras/scopes"], "verbs": ["impersonate"]}]});
    api.post(&format!("{RBAC}/clusterroles"), &more).await.expect(201);
    api.post(&format!("{RBAC}/clusterrolebindings"), &bind("more", "ClusterRole", "more")).await.expect(201);
    let seen = ask(vec![bob, uid, scope]).await.expect(201);
    let info = &seen["status"]["userInfo"];
    assert_eq!(
        (&info["username"], &info["uid"], &info["extra"]),
        (&json!("bob"), &json!("7"), &json!({"scopes": ["all"]}))
    );
    // Other URLs as well: jane may not act as someone else to read them.
    let eve = with_headers(&api, "jane", &[("impersonate-user", "eve")], Method::GET, "/api", &Value::Null).await;
    refused(eve, "cannot impersonate resource \"users\"");
}

#[tokio::test]
async fn a_token_bound_to_a_node_ends_with_it() {
    let api = Api::start().await;
    api.account("default", "sa").await;
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await.expect(201);
    let wanted = json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}});
    let made = api.post("/api/v1/namespaces/default/serviceaccounts/sa/token", &wanted).await.expect(201);
    let token = made["status"]["token"].as_str().unwrap();
    api.remote(Method::GET, "/api", Some(token), &Value::Null).await.expect(200);
    api.delete("/api/v1/nodes/n1", &json!({})).await.expect(200);
    api.remote(Method::GET, "/api", Some(token), &Value::Null).await.expect(401);
    api.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await.expect(201);
    api.remote(Method::GET, "/api", Some(token), &Value::Null).await.expect(401);
}

#[tokio::test]
async fn external_addresses_are_denied() {
    let api = Api::start().await;
    let services = "/api/v1/namespaces/default/services";
    let mut service =
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": ["203.0.113.1"]}});
    let why = "Use of external IPs is denied by admission control";
    refused(api.post(services, &service).await, why);
    service["spec"].as_object_mut().unwrap().remove("externalIPs");
    api.post(services, &service).await.expect(201);
    let add = json!({"spec": {"externalIPs": ["203.0.113.1"]}});
    refused(api.patch(&format!("{services}/s"), "merge-patch", &add).await, why);
    api.patch(&format!("{services}/s"), "merge-patch", &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
}
