//! The audit log of the built program: what a policy names is in the file before the client has its answer.

#[path = "common/program.rs"]
mod program;

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use http::{Method, Request};
use program::{Program, free_port};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
  - level: None
    nonResourceURLs: ["/version", "/readyz*"]
  - level: Metadata
    resources: [{ group: "", resources: ["secrets"] }]
    omitStages: ["RequestReceived"]
  - level: RequestResponse
    namespaces: ["default"]
    resources: [{ group: "", resources: ["configmaps"] }]
  - level: Metadata
    users: ["kubernetes-admin"]
    nonResourceURLs: ["/api"]
  - level: Metadata
    verbs: ["list"]
    resources: [{ group: "", resources: ["nodes", "nothings"] }]
"#;

async fn ask(client: &kube::Client, method: Method, path: &str, kind: &str, body: &Value) -> (u16, http::HeaderMap) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request =
        Request::builder().method(method).uri(path).header("content-type", kind).header("user-agent", "tests");
    let response = client.send(request.body(kube::client::Body::from(body)).unwrap()).await.unwrap();
    (response.status().as_u16(), response.headers().clone())
}

fn events(log: &Path) -> Vec<Value> {
    std::fs::read_to_string(log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of<'a>(all: &'a [Value], verb: &str, uri: &str) -> Vec<&'a Value> {
    all.iter().filter(|event| event["verb"] == verb && event["requestURI"].as_str().unwrap().starts_with(uri)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_policy_names_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    let flags = ["--audit-log-path", log.to_str().unwrap(), "--audit-policy-file", policy.to_str().unwrap()];
    let said = |flags: &[&str]| {
        let output = program::command(folder.path(), free_port(), flags).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(&flags).contains("policy.yaml: No such file"), "{}", said(&flags));
    assert!(said(&flags[..2]).contains("--audit-log-path needs --audit-policy-file"));
    std::fs::write(&policy, POLICY.replace("Metadata", "Everything")).unwrap();
    assert!(said(&flags).contains("Everything"), "{}", said(&flags));
    std::fs::write(&policy, POLICY).unwrap();
    let _program = Program::start(folder.path(), free_port(), &flags);
    let config = program::admin(folder.path()).await;
    let client = program::client(&config);
    let json = "application/json";
    let map = json!({"metadata": {"name": "one"}, "data": {"k": "v"}});
    let (status, headers) = ask(&client, Method::POST, MAPS, json, &map).await;
    assert_eq!(status, 201);
    let id = headers["audit-id"].to_str().unwrap().to_owned();
    let all = events(&log);
    let [received, complete] = of(&all, "create", MAPS)[..] else { panic!("{all:?}") };
    for event in [received, complete] {
        assert_eq!((&event["auditID"], &event["level"]), (&json!(id), &json!("RequestResponse")));
        assert_eq!(event["user"]["username"], "kubernetes-admin");
        assert_eq!(event["user"]["groups"][0], "system:masters");
        assert_eq!((&event["sourceIPs"], &event["userAgent"]), (&json!(["127.0.0.1"]), &json!("tests")));
        assert_eq!((&event["kind"], &event["apiVersion"]), (&json!("Event"), &json!("audit.k8s.io/v1")));
    }
    assert_eq!((&received["stage"], &received["requestObject"]), (&json!("RequestReceived"), &Value::Null));
    let object = json!({"resource": "configmaps", "namespace": "default", "name": "one", "apiVersion": "v1"});
    assert_eq!((&complete["stage"], &complete["objectRef"]), (&json!("ResponseComplete"), &object));
    assert_eq!(complete["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(complete["requestObject"], map);
    assert_eq!(complete["responseObject"]["data"], map["data"]);
    assert!(complete["responseObject"]["metadata"]["uid"].is_string());
    assert_eq!(complete["responseObject"]["metadata"]["managedFields"], Value::Null);
    assert_eq!(complete["annotations"]["authorization.k8s.io/decision"], "allow");
    // What fails tells why.
    assert_eq!(ask(&client, Method::POST, MAPS, json, &map).await.0, 409);
    let all = events(&log);
    let status = &of(&all, "create", MAPS)[3]["responseStatus"];
    assert_eq!(
        (&status["code"], &status["reason"], &status["status"]),
        (&json!(409), &json!("AlreadyExists"), &json!("Failure"))
    );
    // A patch, as it was sent.
    let patch = json!([{"op": "add", "path": "/data/l", "value": "w"}]);
    let one = format!("{MAPS}/one");
    assert_eq!(ask(&client, Method::PATCH, &one, "application/json-patch+json", &patch).await.0, 200);
    let all = events(&log);
    assert_eq!(of(&all, "patch", MAPS)[1]["requestObject"], patch);
    // Of a secret nobody learns what is in it.
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "swordfish"}});
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(ask(&client, Method::POST, secrets, json, &secret).await.0, 201);
    let all = events(&log);
    let [event] = of(&all, "create", secrets)[..] else { panic!("{all:?}") };
    assert_eq!((&event["level"], &event["objectRef"]["name"]), (&json!("Metadata"), &json!("s")));
    assert!(!std::fs::read_to_string(&log).unwrap().contains("swordfish"));
    // A watch has a beginning and an end.
    let request = Request::builder().uri(format!("{MAPS}?watch=true")).body(kube::client::Body::empty()).unwrap();
    let mut watch = http_body_util::BodyExt::into_data_stream(client.send(request).await.unwrap().into_body());
    watch.next().await.unwrap().unwrap();
    let stages = || {
        let all = events(&log);
        of(&all, "watch", MAPS).iter().map(|event| event["stage"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(stages(), ["RequestReceived", "ResponseStarted"]);
    drop(watch);
    for _ in 0..500 {
        if stages().len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(stages()[2], "ResponseComplete");
    // Who hangs up leaves a line all the same.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
    let webhook = json!({"metadata": {"name": "silent"}, "webhooks": [{"name": "silent.example.com", "rules": [rule],
        "clientConfig": {"url": url}, "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 30}]});
    let webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    assert_eq!(ask(&client, Method::POST, webhooks, json, &webhook).await.0, 201);
    let map = json!({"metadata": {"name": "two"}});
    let before = of(&events(&log), "create", MAPS).len();
    let answer = tokio::time::timeout(Duration::from_millis(500), ask(&client, Method::POST, MAPS, json, &map)).await;
    assert!(answer.is_err(), "there can be no answer yet");
    let mut left = Vec::new();
    for _ in 0..500 {
        left = of(&events(&log), "create", MAPS)[before..].iter().map(|event| (*event).clone()).collect();
        if left.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((&left[1]["stage"], &left[1]["responseStatus"]["code"]), (&json!("ResponseComplete"), &json!(499)));
    // What is not served is recorded with who asked for it.
    assert_eq!(ask(&client, Method::GET, "/api/v1/nothings", json, &Value::Null).await.0, 404);
    let all = events(&log);
    let nothings = of(&all, "list", "/api/v1/nothings");
    assert_eq!(
        (&nothings[1]["user"]["username"], &nothings[1]["responseStatus"]["code"]),
        (&json!("kubernetes-admin"), &json!(404))
    );
    // As somebody else, who may not.
    let request = Request::builder().uri("/api/v1/nodes").header("impersonate-user", "eve");
    let response = client.send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 403);
    // As nobody.
    let mut nobody = config.clone();
    nobody.auth_info = kube::config::AuthInfo { token: Some("garbage".to_owned().into()), ..Default::default() };
    assert_eq!(ask(&program::client(&nobody), Method::GET, "/api/v1/nodes", json, &Value::Null).await.0, 401);
    assert_eq!(ask(&client, Method::GET, "/api", json, &Value::Null).await.0, 200);
    let all = events(&log);
    let nodes = of(&all, "list", "/api/v1/nodes");
    let [_, refused, _, unknown] = nodes[..] else { panic!("{nodes:?}") };
    assert_eq!(
        (&refused["user"]["username"], &refused["impersonatedUser"]["username"]),
        (&json!("kubernetes-admin"), &json!("eve"))
    );
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!((&unknown["user"], &unknown["responseStatus"]["code"]), (&json!({}), &json!(401)));
    assert_eq!(of(&all, "get", "/api").len(), 2);
    assert_eq!(of(&all, "get", "/version").len(), 0);
}
