//! Admission webhooks over real TLS: who is asked, what they change, refuse and break.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use common::{Api, config_map, deployment, pod};
use http::{Method, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A webhook server; ends with the test's runtime.
struct Webhook {
    address: SocketAddr,
    bundle: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

/// What it answers to a path: the `response` of the review, or nothing at all.
fn respond(path: &str, request: &Value) -> Option<Value> {
    let uid = &request["uid"];
    let patched = |patch: Value| json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())});
    let add = |path: &str, value: &str| json!([{"op": "add", "path": path, "value": value}]);
    Some(match path {
        "/allow" => json!({"uid": uid, "allowed": true, "warnings": ["seen by allow"]}),
        "/deny" => {
            json!({"uid": uid, "allowed": false, "status": {"message": "not on my watch", "code": 403, "reason": "Forbidden"}})
        }
        "/first" => patched(add("/data/first", "yes")),
        "/second" if request["object"]["data"]["first"] == "yes" => patched(add("/data/second", "yes")),
        "/second" => json!({"uid": uid, "allowed": true}),
        "/init" => patched(
            json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "i", "image": "busybox"}]}]),
        ),
        "/port" => {
            patched(json!([{"op": "add", "path": "/spec/containers/0/ports", "value": [{"containerPort": 99_999}]}]))
        }
        "/side" => {
            patched(json!([{"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "busybox"}}]))
        }
        "/bomb" => {
            let copies = (0..40).map(|n| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/a{n}")}));
            patched(Value::Array(copies.collect()))
        }
        "/other-uid" => json!({"uid": "other", "allowed": true}),
        _ => return None,
    })
}

impl Webhook {
    async fn start() -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "hook.default.svc".to_owned()];
        let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()];
        let private = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(request, Arc::clone(&log)));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address, bundle: STANDARD.encode(certificate.pem()), asked }
    }

    fn url(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.address.port()), "caBundle": self.bundle})
    }

    /// One webhook for `operations` on `resources` of a group, at `path`.
    fn hook(&self, path: &str, group: &str, resources: &[&str], operations: &[&str]) -> Value {
        json!({"name": format!("{}.example.com", path.trim_start_matches('/')), "clientConfig": self.url(path), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
            "rules": [{"operations": operations, "apiGroups": [group], "apiVersions": ["*"], "resources": resources}]})
    }

    fn last(&self) -> Value {
        self.asked.lock().last().cloned().expect("it was asked")
    }
}

async fn answer(
    request: http::Request<hyper::body::Incoming>,
    log: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    log.lock().push(review["request"].clone());
    if path == "/slow" {
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    let Some(response) = respond(&path, &review["request"]) else {
        return Ok(Response::builder().status(500).body(Full::new(Bytes::from("broken"))).unwrap());
    };
    let answer = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    Ok(Response::new(Full::new(Bytes::from(answer.to_string()))))
}

async fn configure(api: &Api, kind: &str, name: &str, webhooks: Value) {
    let plural = format!("{}s", kind.to_lowercase());
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
    api.post(&format!("{GROUP}/{plural}"), &body).await.expect(201);
}

async fn validating(api: &Api, name: &str, webhooks: Value) {
    configure(api, "ValidatingWebhookConfiguration", name, webhooks).await;
}

async fn mutating(api: &Api, name: &str, webhooks: Value) {
    configure(api, "MutatingWebhookConfiguration", name, webhooks).await;
}

#[tokio::test]
async fn a_refusal_is_the_webhooks_own_status() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    validating(&api, "v", json!([hook.hook("/deny", "", &["configmaps"], &["CREATE", "UPDATE", "DELETE"])])).await;
    let refused = api.post(MAPS, &config_map("a", "x")).await.expect(403);
    assert_eq!(refused["message"], "admission webhook \"deny.example.com\" denied the request: not on my watch");
    assert_eq!(refused["reason"], "Forbidden");
    let asked = hook.last();
    assert_eq!(asked["operation"], "CREATE");
    assert_eq!((&asked["name"], &asked["namespace"]), (&json!("a"), &json!("default")));
    assert_eq!(asked["userInfo"]["username"], "admin");
    assert_eq!(asked["object"]["data"]["k"], "x");
    assert!(asked["object"]["metadata"]["uid"].is_string() && asked["oldObject"].is_null());
    assert_eq!(asked["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    api.post(PODS, &pod("p")).await;
    assert_eq!(hook.asked.lock().len(), 1, "pods are none of its business");
}

#[tokio::test]
async fn updates_and_deletes_show_what_was() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    api.post(MAPS, &config_map("a", "x")).await.expect(201);
    validating(&api, "v", json!([hook.hook("/deny", "", &["configmaps"], &["*"])])).await;
    let changed = json!({"data": {"k": "new"}});
    api.patch(&format!("{MAPS}/a"), "merge-patch", &changed).await.expect(403);
    let asked = hook.last();
    assert_eq!((&asked["object"]["data"]["k"], &asked["oldObject"]["data"]["k"]), (&json!("new"), &json!("x")));
    assert_eq!(asked["options"]["kind"], "PatchOptions");
    api.delete(&format!("{MAPS}/a"), &json!({})).await.expect(403);
    let asked = hook.last();
    assert!(asked["object"].is_null() && asked["oldObject"]["data"]["k"] == "x" && asked["operation"] == "DELETE");
    api.delete(MAPS, &json!({})).await.expect(403);
    assert_eq!(api.get(&format!("{MAPS}/a")).await.expect(200)["data"]["k"], "x");
}

#[tokio::test]
async fn mutating_webhooks_run_in_order_and_their_work_is_checked() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    let maps = |path: &str| hook.hook(path, "", &["configmaps"], &["CREATE"]);
    mutating(&api, "b", json!([maps("/second")])).await;
    mutating(&api, "a", json!([maps("/first")])).await;
    let made = api.post(MAPS, &config_map("a", "x")).await.expect(201);
    assert_eq!(made["data"], json!({"k": "x", "first": "yes", "second": "yes"}));
    api.account("default", "default").await;
    mutating(&api, "p", json!([hook.hook("/init", "", &["pods"], &["CREATE"])])).await;
    let made = api.post(PODS, &pod("p")).await.expect(201);
    let init = &made["spec"]["initContainers"][0];
    assert_eq!(init["terminationMessagePolicy"], "File", "defaults come after the webhook: {init}");
    mutating(&api, "q", json!([hook.hook("/port", "", &["pods"], &["CREATE"])])).await;
    let refused = api.post(PODS, &pod("q")).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.containers[0].ports[0].containerPort");
}

#[tokio::test]
async fn one_that_asks_for_it_is_asked_again_after_a_change() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    let mut second = hook.hook("/second", "", &["configmaps"], &["CREATE"]);
    second["reinvocationPolicy"] = json!("IfNeeded");
    mutating(&api, "a", json!([second, hook.hook("/first", "", &["configmaps"], &["CREATE"])])).await;
    let made = api.post(MAPS, &config_map("a", "x")).await.expect(201);
    assert_eq!(made["data"]["second"], "yes");
    assert_eq!(hook.asked.lock().len(), 3);
}

#[tokio::test]
async fn failures_refuse_or_are_passed_over() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    validating(&api, "v", json!([hook.hook("/broken", "", &["configmaps"], &["CREATE"])])).await;
    let refused = api.post(MAPS, &config_map("a", "x")).await.expect(500);
    let said = refused["message"].as_str().unwrap();
    assert!(said.contains("failed calling webhook \"broken.example.com\"") && said.contains("500"), "{said}");
    for (path, wanted) in [("/other-uid", "expected response.uid="), ("/slow", "context deadline exceeded")] {
        let mut webhook = hook.hook(path, "", &["configmaps"], &["CREATE"]);
        webhook["timeoutSeconds"] = json!(1);
        let patch = json!({"webhooks": [webhook]});
        api.patch(&format!("{GROUP}/validatingwebhookconfigurations/v"), "merge-patch", &patch).await.expect(200);
        let refused = api.post(MAPS, &config_map("a", "x")).await.expect(500);
        assert!(refused["message"].as_str().unwrap().contains(wanted), "{refused}");
        let ignore = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
        api.patch(&format!("{GROUP}/validatingwebhookconfigurations/v"), "json-patch", &ignore).await.expect(200);
        api.post(&format!("{MAPS}?dryRun=All"), &config_map("a", "x")).await.expect(201);
    }
    let mut stranger = hook.hook("/allow", "", &["configmaps"], &["CREATE"]);
    stranger["clientConfig"]["caBundle"] = json!(Webhook::start().await.bundle);
    api.patch(&format!("{GROUP}/validatingwebhookconfigurations/v"), "merge-patch", &json!({"webhooks": [stranger]}))
        .await
        .expect(200);
    let refused = api.post(MAPS, &config_map("a", "x")).await.expect(500);
    assert!(refused["message"].as_str().unwrap().contains("certificate"), "{refused}");
}

#[tokio::test]
async fn selectors_scopes_and_dry_runs() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    let mut webhook = hook.hook("/deny", "", &["*"], &["CREATE"]);
    webhook["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}});
    webhook["objectSelector"] = json!({"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]});
    webhook["rules"][0]["scope"] = json!("Namespaced");
    validating(&api, "v", json!([webhook])).await;
    api.post(MAPS, &config_map("a", "x")).await.expect(403);
    let mut skipped = config_map("b", "x");
    skipped["metadata"]["labels"]["skip"] = json!("me");
    api.post(MAPS, &skipped).await.expect(201);
    api.post("/api/v1/namespaces/kube-system/configmaps", &config_map("a", "x")).await.expect(201);
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "other"}})).await.expect(201);
    let effects = json!([hook.hook("/allow", "", &["secrets"], &["CREATE"])]);
    validating(&api, "w", effects).await;
    let made = api.post("/api/v1/namespaces/kube-system/secrets?dryRun=All", &json!({"metadata": {"name": "s"}})).await;
    assert_eq!(made.headers["warning"], "299 - \"seen by allow\"");
    made.expect(201);
    assert_eq!(hook.last()["dryRun"], true);
}

#[tokio::test]
async fn subresources_services_and_own_configurations() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    api.post("/apis/apps/v1/namespaces/default/deployments", &deployment("d")).await.expect(201);
    api.account("default", "default").await;
    api.post(PODS, &pod("p")).await.expect(201);
    validating(
        &api,
        "v",
        json!([hook.hook(
            "/deny",
            "*",
            &["pods/attach", "deployments/scale", "pods/binding", "validatingwebhookconfigurations"],
            &["*"]
        )]),
    )
    .await;
    let refused = api.get(&format!("{PODS}/p/attach?container=c&stdin=true&command=a&command=b")).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("denied the request"), "{refused}");
    let asked = hook.last();
    assert_eq!((&asked["operation"], &asked["subResource"]), (&json!("CONNECT"), &json!("attach")));
    assert_eq!((&asked["object"]["kind"], &asked["object"]["stdin"]), (&json!("PodAttachOptions"), &json!(true)));
    let scale = json!({"spec": {"replicas": 3}});
    api.patch("/apis/apps/v1/namespaces/default/deployments/d/scale", "merge-patch", &scale).await.expect(403);
    assert_eq!(hook.last()["object"]["spec"]["replicas"], 3);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    api.post(&format!("{PODS}/p/binding"), &binding).await.expect(403);
    api.delete(&format!("{GROUP}/validatingwebhookconfigurations/v"), &json!({})).await.expect(200);

    let port = hook.address.port();
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443, "targetPort": port}]}});
    api.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let mut webhook = hook.hook("/deny", "", &["configmaps"], &["CREATE"]);
    webhook["clientConfig"] =
        json!({"service": {"namespace": "default", "name": "hook", "path": "/deny"}, "caBundle": hook.bundle});
    validating(&api, "w", json!([webhook])).await;
    let refused = api.post(MAPS, &config_map("a", "x")).await.expect(500);
    assert!(refused["message"].as_str().unwrap().contains("no endpoints available for service \"hook\""), "{refused}");
}

#[tokio::test]
async fn events_are_seen_in_the_version_that_a_webhook_names() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    let mut webhook = hook.hook("/deny", "events.k8s.io", &["events"], &["CREATE"]);
    webhook["rules"][0]["apiVersions"] = json!(["v1"]);
    validating(&api, "v", json!([webhook])).await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"},
        "reason": "R", "message": "m", "type": "Normal"});
    let answer =
        api.send(Method::POST, "/api/v1/namespaces/default/events", "application/json", event.to_string()).await;
    answer.expect(403);
    let asked = hook.last();
    assert_eq!(asked["object"]["apiVersion"], "events.k8s.io/v1");
    assert_eq!((&asked["object"]["note"], &asked["requestResource"]["group"]), (&json!("m"), &json!("")));
}

#[tokio::test]
async fn what_a_webhook_adds_gets_what_the_server_adds() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    api.account("default", "default").await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}, "max": {"cpu": "2"}}]}});
    api.post("/api/v1/namespaces/default/limitranges", &range).await.expect(201);
    mutating(&api, "m", json!([hook.hook("/side", "", &["pods"], &["CREATE"])])).await;
    let made = api.post(PODS, &pod("p")).await.expect(201);
    let side = &made["spec"]["containers"][1];
    assert_eq!((&side["name"], &side["resources"]["limits"]["cpu"]), (&json!("side"), &json!("1")));
    assert_eq!(side["volumeMounts"][0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(made["spec"]["containers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_patch_that_grows_without_end_is_stopped() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    mutating(&api, "m", json!([hook.hook("/bomb", "", &["configmaps"], &["CREATE"])])).await;
    let refused = api.post(MAPS, &config_map("a", "x")).await.expect(500);
    assert!(refused["message"].as_str().unwrap().contains("the accumulated size increase of copy"), "{refused}");
}

#[tokio::test]
async fn an_object_selector_excludes_deletes_too() {
    let (api, hook) = (Api::start().await, Webhook::start().await);
    let mut body = config_map("a", "x");
    body["metadata"]["labels"]["skip"] = json!("me");
    api.post(MAPS, &body).await.expect(201);
    let mut webhook = hook.hook("/deny", "", &["configmaps"], &["DELETE"]);
    webhook["objectSelector"] = json!({"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]});
    validating(&api, "v", json!([webhook])).await;
    api.delete(&format!("{MAPS}/a"), &json!({})).await.expect(200);
}
