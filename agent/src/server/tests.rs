//! The server over real TLS on loopback, with a CA made by the test and an API server that is a
//! function.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    fn client(&self, user: &str, group: &str) -> (CertificateDer<'static>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, user);
        parameters.distinguished_name.push(DnType::OrganizationName, group);
        let made = parameters.signed_by(&key, &self.issuer).unwrap();
        (made.der().clone(), key.serialize_der())
    }
}

struct FakeNode {
    pods: Vec<Arc<Pod>>,
    log: Mutex<Option<ContainerLog>>,
}

impl NodeView for FakeNode {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.clone()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let is = |value: &Option<String>, wanted: &str| value.as_deref() == Some(wanted);
        let found = self.pods.iter().find(|p| is(&p.metadata.namespace, namespace) && is(&p.metadata.name, name));
        found.cloned()
    }

    fn container_log<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<ContainerLog, ViewError>> {
        let log = self.log.lock().clone();
        let none = ViewError::NoContainer { id: id.into() };
        Box::pin(async move { log.ok_or(none) })
    }

    fn metrics(&self) -> String {
        "# EOF\n".into()
    }

    fn config(&self) -> Value {
        json!({"maxPods": 110})
    }

    fn healthz(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Every review that the fake API server was asked for.
type Asked = Arc<Mutex<Vec<Value>>>;

/// Knows the token `good` (alice); alice may get nodes/metrics and create nodes/proxy, admin all.
fn api() -> (kube::Client, Asked) {
    let asked: Asked = Arc::default();
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            seen.lock().push(review.clone());
            let spec = &review["spec"];
            review["status"] = if spec.get("token").is_some() {
                let good = spec["token"] == "good";
                json!({"authenticated": good, "user": {"username": "alice", "groups": ["dev"]}})
            } else {
                let what = &spec["resourceAttributes"];
                let access = (what["verb"].as_str().unwrap(), what["subresource"].as_str().unwrap());
                let fine = spec["user"] == "admin" || [("get", "metrics"), ("create", "proxy")].contains(&access);
                json!({"allowed": fine && what["name"] == "n1" && what["resource"] == "nodes"})
            };
            let body = serde_json::to_vec(&review).unwrap();
            let answer = http::Response::new(kube::client::Body::from(body));
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    (kube::Client::new(service, "default"), asked)
}

struct World {
    ca: Ca,
    address: SocketAddr,
    asked: Asked,
    node: Arc<FakeNode>,
    dir: tempfile::TempDir,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

struct Reply {
    status: StatusCode,
    head: String,
    body: String,
}

impl World {
    async fn start(authorization: Authorization) -> Self {
        Self::limited(authorization, Limits::default()).await
    }

    async fn limited(authorization: Authorization, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        std::fs::write(dir.path().join("ca.crt"), &ca.pem).unwrap();
        let names = ServingNames {
            node_name: "n1".into(),
            addresses: vec!["127.0.0.1".parse().unwrap()],
            cert_dir: dir.path().join("pki"),
        };
        let (certificate, key) = tls::ensure_serving_certificate(&names).unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"containers": [{"name": "c"}, {"name": "new"}]},
            "status": {"containerStatuses": [
                {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "containerID": "containerd://abc", "state": {"running": {}}},
                {"name": "new", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"waiting": {"reason": "ContainerCreating"}}}]}
        }))
        .unwrap();
        let node = Arc::new(FakeNode { pods: vec![Arc::new(pod)], log: Mutex::new(None) });
        let config = ServerConfig {
            address: "127.0.0.1:0".parse().unwrap(),
            node_name: "n1".into(),
            tls: TlsFiles { certificate, key, client_ca: Some(dir.path().join("ca.crt")) },
            authentication: Authentication::default(),
            authorization,
            stream_idle: Duration::from_secs(60),
        };
        let (client, asked) = api();
        let view = Arc::clone(&node) as Arc<dyn NodeView>;
        let mut server = Server::bind(config, view, Some(client)).await.unwrap();
        server.limits = limits;
        let address = server.address().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.serve(stop.clone()));
        Self { ca, address, asked, node, dir, stop, task }
    }

    /// A connection after its handshake.
    async fn connect(
        &self,
        client: Option<(CertificateDer<'static>, Vec<u8>)>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        let pem = std::fs::read(self.dir.path().join("pki/kubelet.crt")).unwrap();
        use rustls::pki_types::pem::PemObject as _;
        roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivatePkcs8KeyDer::from(key).into();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("n1").unwrap();
        connector.connect(name, stream).await
    }

    async fn send(&self, client: Option<(CertificateDer<'static>, Vec<u8>)>, request: &str) -> std::io::Result<Reply> {
        let mut stream = self.connect(client).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        let Some(status) = status else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        let head = head.to_lowercase();
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Ok(Reply { status, head, body })
    }

    async fn admin(&self, path: &str) -> Reply {
        let client = self.ca.client("admin", "system:masters");
        self.send(Some(client), &get(path, "")).await.unwrap()
    }

    async fn token(&self, method: &str, path: &str, token: &str) -> Reply {
        let header = format!("Authorization: Bearer {token}\r\n");
        let request = get(path, &header).replacen("GET", method, 1);
        self.send(None, &request).await.unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    fn write_log(&self, text: &str, running: bool) -> PathBuf {
        let path = self.dir.path().join("0.log");
        std::fs::write(&path, text).unwrap();
        *self.node.log.lock() = Some(ContainerLog { path: path.clone(), running });
        path
    }
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n{headers}\r\n")
}

fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}

fn webhook() -> Authorization {
    Authorization::default()
}

#[tokio::test]
async fn nobody_is_let_in_without_credentials() {
    let world = World::start(Authorization::AlwaysAllow).await;
    for path in ["/healthz", "/pods", "/metrics", "/exec/a/b/c", "/nothing"] {
        let reply = world.send(None, &get(path, "")).await.unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (StatusCode::UNAUTHORIZED, "Unauthorized"), "{path}");
    }
    let reply = world.token("GET", "/healthz", "bad").await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
    let foreign = Ca::new().client("admin", "system:masters");
    assert!(world.send(Some(foreign), &get("/healthz", "")).await.is_err());
    world.end().await;
}

#[tokio::test]
async fn a_client_certificate_and_what_it_may_read() {
    let world = World::start(webhook()).await;
    let ok = world.admin("/healthz").await;
    assert_eq!((ok.status, ok.body.as_str()), (StatusCode::OK, "ok"));
    let pods = world.admin("/pods").await;
    let list: Value = serde_json::from_str(&pods.body).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("PodList"), &json!("web")));
    assert!(pods.head.contains("content-type: application/json"));
    let config: Value = serde_json::from_str(&world.admin("/configz").await.body).unwrap();
    assert_eq!(config["kubeletconfig"]["maxPods"], 110);
    assert_eq!(world.admin("/metrics").await.body, "# EOF\n");
    assert_eq!(world.admin("/nothing").await.status, StatusCode::NOT_FOUND);
    assert_eq!(world.admin("/stats/summary").await.status, StatusCode::NOT_IMPLEMENTED);
    let exec = world.admin("/exec/ns/web/c?command=sh").await;
    assert_eq!(
        (exec.status, exec.body.as_str()),
        (StatusCode::BAD_REQUEST, "unable to upgrade: missing upgrade headers in request")
    );
    let asked = world.asked.lock().clone();
    assert_eq!(asked[0]["spec"]["user"], "admin");
    assert_eq!(asked[0]["spec"]["groups"], json!(["system:masters", "system:authenticated"]));
    let last = &asked.last().unwrap()["spec"]["resourceAttributes"];
    assert_eq!((&last["verb"], &last["subresource"]), (&json!("create"), &json!("proxy")));
    world.end().await;
}

#[tokio::test]
async fn tokens_are_reviewed_and_answers_kept() {
    let world = World::start(webhook()).await;
    assert_eq!(world.token("GET", "/metrics", "good").await.status, StatusCode::OK);
    assert_eq!(world.asked.lock().len(), 2, "one review of the token, one of the access");
    assert_eq!(world.token("GET", "/metrics", "good").await.status, StatusCode::OK);
    assert_eq!(world.asked.lock().len(), 2);
    let denied = world.token("GET", "/pods", "good").await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    assert_eq!(denied.body, "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[pods proxy])");
    world.token("GET", "/pods", "good").await;
    assert_eq!(world.asked.lock().len(), 4);
    assert_eq!(world.token("POST", "/metrics", "good").await.status, StatusCode::FORBIDDEN);
    world.end().await;
}

#[tokio::test]
async fn errors_of_logs_read_as_upstream() {
    let world = World::start(webhook()).await;
    for (path, status, body) in [
        ("/containerLogs/ns/none/c", 404, "pod \"none\" does not exist\n"),
        ("/containerLogs/ns/web/zz", 404, "container \"zz\" not found in pod \"web\"\n"),
        ("/containerLogs/ns/web/", 400, "{\"message\": \"Missing container name.\"}"),
        ("/containerLogs/ns/web/c?tailLines=x", 400, "{\"message\": \"Unable to decode query.\"}"),
        ("/containerLogs/ns/web/c?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}"),
        ("/containerLogs/ns/web/new", 400, "container \"new\" in pod \"web\" is waiting to start: ContainerCreating"),
        ("/containerLogs/ns/web/c?previous=true", 400, "previous terminated container \"c\" in pod \"web\" not found"),
        (
            "/containerLogs/ns/web/c",
            400,
            "unable to retrieve container logs: container \"abc\" is not known to the runtime",
        ),
        ("/containerLogs/ns/web", 404, "404 page not found\n"),
    ] {
        let reply = world.admin(path).await;
        assert_eq!((reply.status.as_u16(), reply.body.as_str()), (status, body), "{path}");
    }
    *world.node.log.lock() = Some(ContainerLog { path: Path::new("/nowhere/0.log").into(), running: true });
    let gone = world.admin("/containerLogs/ns/web/c").await;
    assert_eq!(gone.status, StatusCode::INTERNAL_SERVER_ERROR);
    world.end().await;
}

#[tokio::test]
async fn logs_are_streamed_and_followed() {
    let world = World::start(webhook()).await;
    let line = |n: u32| format!("2026-01-02T03:04:05.{n}Z stdout F line {n}\n");
    let path = world.write_log(&(line(1) + &line(2)), true);
    let tail = world.admin("/containerLogs/ns/web/c?tailLines=1&timestamps=true").await;
    assert_eq!(tail.body, "2026-01-02T03:04:05.200000000Z line 2\n");
    assert!(tail.head.contains("content-type: text/plain"));
    let follow = world.admin("/containerLogs/ns/web/c?follow=true");
    let grow = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, line(3).as_bytes()).unwrap();
        *world.node.log.lock() = Some(ContainerLog { path: path.clone(), running: false });
    };
    let (follow, ()) = tokio::join!(follow, grow);
    assert_eq!(follow.body, "line 1\nline 2\nline 3\n");
    world.end().await;
}

#[tokio::test]
async fn the_end_of_the_server_ends_followers() {
    let world = World::start(webhook()).await;
    world.write_log("2026-01-02T03:04:05Z stdout F x\n", true);
    let stop = world.stop.clone();
    let follow = world.admin("/containerLogs/ns/web/c?follow=true");
    let end = async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.cancel();
    };
    let both = async { tokio::join!(follow, end) };
    let (follow, ()) = tokio::time::timeout(Duration::from_secs(5), both).await.unwrap();
    assert_eq!(follow.body, "x\n");
    world.end().await;
}

#[tokio::test]
async fn idle_strangers_do_not_keep_anybody_out() {
    let limits = Limits { all: 8, strangers_per_address: 100, first_request: Duration::from_secs(600) };
    let world = World::limited(webhook(), limits).await;
    let mut idle = Vec::new();
    for _ in 0..limits.all {
        idle.push(world.connect(None).await.unwrap());
    }
    for _ in 0..3 {
        let reply = tokio::time::timeout(Duration::from_secs(10), world.admin("/healthz")).await.unwrap();
        assert_eq!(reply.status, StatusCode::OK);
        let reply = tokio::time::timeout(Duration::from_secs(10), world.token("GET", "/metrics", "good")).await;
        assert_eq!(reply.unwrap().status, StatusCode::OK);
    }
    let end = idle[0].read(&mut [0]).await;
    assert!(matches!(end, Err(_) | Ok(0)), "the oldest has given way");
    world.end().await;
}

#[tokio::test]
async fn a_client_without_credentials_is_soon_dropped_and_one_with_them_stays() {
    let limits = Limits { first_request: Duration::from_secs(2), ..Limits::default() };
    let world = World::limited(webhook(), limits).await;
    let keep = |token: &str| format!("GET /metrics HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut good = world.connect(None).await.unwrap();
    let mut bad = world.connect(None).await.unwrap();
    let mut buffer = [0; 4096];
    for (stream, token, status) in [(&mut good, "good", "200"), (&mut bad, "bad", "401")] {
        stream.write_all(keep(token).as_bytes()).await.unwrap();
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(String::from_utf8_lossy(&buffer[..n]).starts_with(&format!("HTTP/1.1 {status}")));
    }
    let end = tokio::time::timeout(Duration::from_secs(10), async {
        while matches!(bad.read(&mut buffer).await, Ok(n) if n > 0) {}
    });
    end.await.expect("a refused client is dropped");
    good.write_all(keep("good").as_bytes()).await.unwrap();
    let n = tokio::time::timeout(Duration::from_secs(10), good.read(&mut buffer)).await.unwrap().unwrap();
    assert!(n > 0, "a known client is kept");
    world.end().await;
}

#[tokio::test]
async fn the_webhook_needs_an_api_server() {
    let dir = tempfile::tempdir().unwrap();
    let names = ServingNames { node_name: "n1".into(), addresses: Vec::new(), cert_dir: dir.path().into() };
    let (certificate, key) = tls::ensure_serving_certificate(&names).unwrap();
    let config = ServerConfig {
        address: "127.0.0.1:0".parse().unwrap(),
        node_name: "n1".into(),
        tls: TlsFiles { certificate, key, client_ca: None },
        authentication: Authentication::default(),
        authorization: webhook(),
        stream_idle: Duration::from_secs(60),
    };
    let node = Arc::new(FakeNode { pods: Vec::new(), log: Mutex::new(None) });
    let error = Server::bind(config, node, None).await.err().unwrap();
    assert!(error.to_string().contains("AlwaysAllow"), "{error}");
}
