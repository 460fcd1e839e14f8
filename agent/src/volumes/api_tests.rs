//! The reader against an API server that is a function: lists, a watch that stays open, tokens.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

type Events = tokio::sync::mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>;

#[derive(Default)]
struct Server {
    objects: HashMap<String, Value>,
    watches: Vec<(String, Events)>,
    requests: Vec<String>,
    forbidden: bool,
    version: u64,
}

type Shared = Arc<Mutex<Server>>;
type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": format!("{reason} here"),
        "reason": reason, "code": code, "metadata": {}})
}

fn json_answer(code: u16, value: &Value) -> Answer {
    let mut answer = Response::new(Full::new(serde_json::to_vec(value).unwrap().into()).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer
}

fn answer(server: &Shared, request: &Request<Body>) -> Answer {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let mut state = server.lock();
    state.requests.push(format!("{} {path}?{query}", request.method()));
    if state.forbidden {
        return json_answer(403, &status(403, "Forbidden"));
    }
    if *request.method() == Method::POST {
        let token = json!({"status": {"token": "tok", "expirationTimestamp": "2030-01-01T00:00:00Z"}, "spec": {"audiences": []}});
        return json_answer(201, &token);
    }
    let selected = query.split("metadata.name%3D").nth(1).map(|rest| rest.split('&').next().unwrap_or("").to_owned());
    let Some(name) = selected else {
        let name = path.rsplit('/').next().unwrap_or_default();
        return match state.objects.get(name) {
            Some(object) => json_answer(200, object),
            None => json_answer(404, &status(404, "NotFound")),
        };
    };
    if query.contains("watch=true") {
        let (events, stream) = tokio::sync::mpsc::unbounded_channel();
        state.watches.push((name, events));
        return Response::new(StreamBody::new(UnboundedReceiverStream::new(stream)).boxed_unsync());
    }
    let items: Vec<Value> = state.objects.get(&name).cloned().into_iter().collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()}, "items": items});
    json_answer(200, &list)
}

fn world() -> (Arc<ApiReader>, Shared, CancellationToken) {
    let server: Shared = Arc::default();
    let shared = Arc::clone(&server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(&shared, &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let stop = CancellationToken::new();
    (ApiReader::new(Client::new(service, "ns"), stop.clone()), server, stop)
}

fn put(server: &Shared, name: &str, value: &str, immutable: bool) {
    let mut state = server.lock();
    state.version += 1;
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": value}, "immutable": immutable,
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": state.version.to_string()}});
    let kind = if state.objects.insert(name.into(), object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
    tell(&state, name, kind, &object);
}

fn remove(server: &Shared, name: &str) {
    let mut state = server.lock();
    let object = state.objects.remove(name).unwrap();
    tell(&state, name, "DELETED", &object);
}

fn tell(state: &Server, name: &str, kind: &str, object: &Value) {
    let line = format!("{}\n", json!({"type": kind, "object": object}));
    for (_, watch) in state.watches.iter().filter(|(watched, _)| watched == name) {
        let _ = watch.send(Ok(Frame::data(line.clone().into())));
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: ObjectKind::ConfigMap, namespace: "ns".into(), name: name.into() }
}

async fn value(reader: &ApiReader, name: &str) -> Result<String, ReadError> {
    Ok(reader.config_map("ns", name).await?.data["k"].clone())
}

async fn watching(server: &Shared, count: usize) {
    for _ in 0..500 {
        if server.lock().watches.len() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no watch was opened: {:?}", server.lock().requests);
}

#[tokio::test]
async fn held_objects_are_watched_and_changes_told() {
    let (reader, server, _stop) = world();
    put(&server, "cm", "1", false);
    let mut changes = reader.changes();
    reader.hold("u1", BTreeSet::from([key("cm"), key("none")]));
    reader.hold("u2", BTreeSet::from([key("cm")]));
    assert_eq!(value(&reader, "cm").await.unwrap(), "1");
    let missing = value(&reader, "none").await.unwrap_err();
    assert_eq!(missing.to_string(), "configmap \"none\" not found");
    watching(&server, 2).await;
    assert_eq!(reader.held(), 2);
    put(&server, "cm", "2", false);
    assert_eq!(changes.recv().await.unwrap(), key("cm"));
    assert_eq!(value(&reader, "cm").await.unwrap(), "2");
    put(&server, "none", "now", false);
    assert_eq!(changes.recv().await.unwrap(), key("none"));
    remove(&server, "cm");
    assert_eq!(changes.recv().await.unwrap(), key("cm"));
    assert!(value(&reader, "cm").await.unwrap_err().is_not_found());
    let before = server.lock().requests.len();
    value(&reader, "none").await.unwrap();
    assert_eq!(server.lock().requests.len(), before, "answered from memory");

    reader.release("u1");
    assert_eq!(reader.held(), 1);
    reader.hold("u2", BTreeSet::new());
    assert_eq!(reader.held(), 0);
    for _ in 0..500 {
        if server.lock().watches.iter().all(|(_, watch)| watch.is_closed()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("watches stay open");
}

#[tokio::test]
async fn an_immutable_object_is_not_watched() {
    let (reader, server, _stop) = world();
    put(&server, "cm", "1", true);
    reader.hold("u1", BTreeSet::from([key("cm")]));
    assert_eq!(value(&reader, "cm").await.unwrap(), "1");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let open = server.lock().watches.iter().filter(|(_, watch)| !watch.is_closed()).count();
    assert_eq!(open, 0);
    assert_eq!(value(&reader, "cm").await.unwrap(), "1", "the answer stays");
}

#[tokio::test]
async fn objects_that_nobody_holds_are_read_once() {
    let (reader, server, _stop) = world();
    put(&server, "cm", "1", false);
    assert_eq!(value(&reader, "cm").await.unwrap(), "1");
    assert!(value(&reader, "none").await.unwrap_err().is_not_found());
    assert!(server.lock().watches.is_empty());
    server.lock().forbidden = true;
    let refused = value(&reader, "cm").await.unwrap_err();
    assert!(refused.is_unavailable() && refused.to_string().contains("Forbidden here"), "{refused}");
}

#[tokio::test]
async fn tokens_are_bound_to_the_pod() {
    let (reader, server, _stop) = world();
    let params = TokenParams {
        namespace: "ns".into(),
        service_account: "sa".into(),
        audience: None,
        expiration_seconds: 3600,
        pod_name: "p".into(),
        pod_uid: "u".into(),
    };
    let token = reader.token(&params).await.unwrap();
    assert_eq!(token.token, "tok");
    assert!(server.lock().requests[0].starts_with("POST /api/v1/namespaces/ns/serviceaccounts/sa/token"));
    server.lock().forbidden = true;
    let refused = reader.token(&params).await.unwrap_err();
    assert_eq!(refused.to_string(), "failed to fetch token: Forbidden here");
}
