//! One client's noise is not another's silence: nodes say that they live, whatever others do.

mod common;
#[path = "common/program.rs"]
mod program;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::Api;
use futures::StreamExt as _;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use keelson_control_plane::http::ApiService;
use keelson_control_plane::pki::Subject;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use program::{Program, free_port};
use serde_json::{Value, json};
use tower::Service as _;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// What a heartbeat may take, on a machine that other tests keep busy. Upstream's node gives it 10 s.
const SOON: Duration = Duration::from_secs(5);

fn subject(user: &str, groups: &[&str]) -> Subject {
    Subject { user: user.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect() }
}

/// Lets somebody write ConfigMaps.
async fn writer(api: &Api, user: &str) {
    let name = format!("writes-{user}");
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]);
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    api.post(&format!("{roles}/roles"), &json!({"metadata": {"name": name}, "rules": rules})).await.expect(201);
    let binding = json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": user}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}});
    api.post(&format!("{roles}/rolebindings"), &binding).await.expect(201);
}

/// Requests whose bodies never end hold their places for as long as they may.
#[tokio::test]
async fn who_sends_bodies_that_never_end_leaves_places_to_others() {
    let api = Api::start().await;
    writer(&api, "noisy").await;
    writer(&api, "quiet").await;
    let node = ("system:node:n", ["system:nodes"]);
    let lease = json!({"metadata": {"name": "n"}, "spec": {"holderIdentity": "n"}});
    api.as_user(node.0, &node.1, Method::POST, LEASES, &lease).await.expect(201);
    let endless = || {
        let frames = futures::stream::once(async { Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from("{"))) });
        http_body_util::StreamBody::new(frames.chain(futures::stream::pending()))
    };
    let mut held = Vec::new();
    for _ in 0..1000 {
        let mut service = ApiService::remote(Arc::clone(&api.server), Some(subject("noisy", &[])));
        let request = Request::builder().method(Method::POST).uri(MAPS).header("content-type", "application/json");
        held.push(tokio::spawn(service.call(request.body(endless()).unwrap())));
    }
    // Until the server has looked at all of them: what neither holds a place nor waits has been refused.
    let metric = |name: &str| {
        let text = api.server.metrics.endpoints.metrics_text();
        let start = format!("{name}{{request_kind=\"mutating\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok()).unwrap_or_default()
    };
    for _ in 0..3000 {
        if metric("apiserver_current_inqueue_requests") == 300 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(metric("apiserver_current_inqueue_requests"), 300);
    assert_eq!(metric("apiserver_current_inflight_requests"), 150, "three quarters of the places");
    // Refused ones end when their bodies were given some time.
    let (mut refused, patience) = (Vec::new(), Instant::now());
    while refused.len() < 550 && patience.elapsed() < Duration::from_secs(30) {
        refused.extend(held.extract_if(.., |one| one.is_finished()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(refused.len(), 550);
    for one in refused {
        let response = one.await.unwrap().unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    }
    let begun = Instant::now();
    for n in 0..20 {
        let map = json!({"metadata": {"name": format!("quiet-{n}")}});
        api.as_user("quiet", &[], Method::POST, MAPS, &map).await.expect(201);
        api.as_user("system:node:n", &node.1, Method::GET, &format!("{LEASES}/n"), &Value::Null).await.expect(200);
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for one in held {
        one.abort();
        let _ = one.await;
    }
    assert_eq!(metric("apiserver_current_inflight_requests"), 0);
    assert_eq!(metric("apiserver_current_inqueue_requests"), 0);
}

async fn ask(client: &kube::Client, method: Method, path: &str, body: &Value) -> http::Response<kube::client::Body> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    client.send(request.body(kube::client::Body::from(body)).unwrap()).await.unwrap()
}

/// Memory of a process in MiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() / 1024
}

/// Connections that say nothing, others that say it byte by byte, and watchers that never read: a node's lease is renewed in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_slow_and_deaf_clients_hurt_nobody() {
    const IDLE: usize = 10_000;
    const GREETED: usize = 300;
    const DEAF: usize = 1000;
    // Each connection is a file on both sides.
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if files < 2 * (IDLE as u64) {
        println!(
            "SKIPPED idle_slow_and_deaf_clients_hurt_nobody: it needs {} open files, {files} are allowed",
            2 * IDLE
        );
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, files, files).unwrap();
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let program = Program::start(folder.path(), port, &[]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let config = program::admin(folder.path()).await;
    let admin = program::client(&config);
    let node = program::client(&program::user(folder.path(), address, "system:node:n", "system:nodes").await);
    let lease = |n: usize| json!({"metadata": {"name": "n"}, "spec": {"holderIdentity": "n", "leaseTransitions": n}});
    assert_eq!(ask(&node, Method::POST, LEASES, &lease(0)).await.status(), 201);
    let begun = Instant::now();
    let connect = |_| TcpStream::connect(address).unwrap();
    let idle: Vec<_> = (0..IDLE).map(connect).collect();
    // Now, because a connection is cut off that says nothing for 10 s.
    let asked = Instant::now();
    assert_eq!(ask(&node, Method::PATCH, &format!("{LEASES}/n"), &lease(1)).await.status(), 200);
    let among_silent = asked.elapsed();
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let open = idle.iter().filter(|stream| is_open(stream)).count();
    println!("among {open} silent connections a renewal takes {among_silent:?}");
    // On a machine that takes more than 10 s to open them the first are cut off by now.
    assert!(open > 0 && among_silent < SOON, "{open} {among_silent:?}");
    let mut slow: Vec<_> = (0..100).map(connect).collect();
    let greeted: Vec<_> = (0..GREETED).map(|_| program::client(&config)).collect();
    for client in &greeted {
        assert_eq!(ask(client, Method::GET, "/version", &Value::Null).await.status(), 200);
    }
    println!("{IDLE} connections that say nothing, {GREETED} that are idle: {:?}", begun.elapsed());
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        let response = ask(&admin, Method::GET, &format!("{MAPS}?watch=true"), &Value::Null).await;
        assert_eq!(response.status(), 200);
        deaf.push(response.into_body());
    }
    println!("{DEAF} watchers: {:?}", begun.elapsed());
    // 8 MiB of events for each watcher.
    let filler = "x".repeat(400_000);
    let (mut slowest, begun) = (Duration::ZERO, Instant::now());
    for n in 0..20 {
        let map = json!({"metadata": {"name": format!("large-{n}")}, "data": {"k": filler}});
        assert_eq!(ask(&admin, Method::POST, MAPS, &map).await.status(), 201);
        // The beginning of a handshake that never ends.
        for stream in &mut slow {
            let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x02][n % 4..=n % 4]);
        }
        let asked = Instant::now();
        assert_eq!(ask(&node, Method::PATCH, &format!("{LEASES}/n"), &lease(n)).await.status(), 200);
        slowest = slowest.max(asked.elapsed());
    }
    println!(
        "slowest of 20 renewals: {slowest:?}, {:?} in all, server {} MiB",
        begun.elapsed(),
        memory(program.0.id())
    );
    assert!(slowest < SOON, "{slowest:?}");
    assert!(memory(program.0.id()) < 600, "{} MiB", memory(program.0.id()));
    // One that reads again gets everything, or its end. The others give the connection's window back.
    let mut events = deaf.pop().unwrap();
    drop(deaf);
    let everything = 20 * filler.len();
    let mut received = 0;
    let read = async {
        while received < everything {
            let Some(Ok(frame)) = events.frame().await else { break };
            received += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    tokio::time::timeout(SOON * 6, read).await.expect("everything, or the end");
    drop((idle, slow, greeted));
    assert_eq!(ask(&node, Method::PATCH, &format!("{LEASES}/n"), &lease(99)).await.status(), 200);
}
