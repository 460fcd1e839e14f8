//! The drain: what the model makes of it, what is answered when, and a socket that survives its clients.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use keelson_dataplane::drain::book::{Book, LIFE, Request, asked};
use keelson_dataplane::drain::client::{self, AskError};
use keelson_dataplane::drain::protocol::{self, Answer};
use keelson_dataplane::drain::server::{self, SocketError};
use keelson_dataplane::model::decode;
use keelson_dataplane::model::drain::Standing;
use keelson_dataplane::model::types::{EndpointRecord, Name, Protocol};
use keelson_dataplane::model::{Model, ServicePlan, Target};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{port, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

fn name(text: &str) -> Name {
    text.into()
}

/// An endpoint as the API writes it: address, UID, node, state.
fn endpoint(addr: &str, uid: &str, node: &str, state: &str) -> Value {
    let (ready, serving, terminating) = match state {
        "ready" => (true, true, false),
        "unready" => (false, false, false),
        "going" => (false, true, true),
        "gone" => (false, false, true),
        other => panic!("{other}"),
    };
    json!({"addresses": [addr], "nodeName": node, "targetRef": {"kind": "Pod", "uid": uid},
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
}

/// Gives the model a slice of a Service, as the loop does.
fn set(model: &mut Model, slice_name: &str, of: &str, endpoints: &[Value]) {
    let object: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": slice_name, "namespace": "ns", "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints,
    }))
    .unwrap();
    let record = decode::slice(&object, "here", &mut model.interner).unwrap();
    let uids = decode::local_uids(&object, &record);
    model.set_slice(&name(slice_name), Some(record));
    model.set_local_uids(&name(slice_name), uids);
}

/// A model with a Service of cluster address 10.96.0.1 and a node port of the local policy.
fn model(endpoints: &[Value]) -> Model {
    let mut model = Model::new("here");
    let mut record = service("10.96.0.1", vec![port(80, 30080, Protocol::Tcp)]);
    record.external_local = true;
    model.set_service(&name("ns/web"), Some(record));
    set(&mut model, "web-1", "web", endpoints);
    model.take_dirty();
    model
}

/// Addresses of the cluster address's list, and of the node port's lists (all, local).
fn lists(plan: &ServicePlan) -> (Vec<String>, Vec<String>, Vec<String>) {
    let text = |list: &[keelson_dataplane::model::types::Ep]| list.iter().map(|ep| ep.addr.to_string()).collect();
    let (mut out, mut seen) = ((vec![], vec![], vec![]), 0);
    for frontend in &plan.frontends {
        match &frontend.target {
            Target::Cluster(list) => out.0 = text(list),
            Target::ExternalLocal { all, local } => (out.1, out.2) = (text(all), text(local)),
            other => panic!("{other:?}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
    out
}

#[test]
fn a_drained_pod_counts_as_terminating() {
    struct Case {
        what: &'static str,
        endpoints: Vec<Value>,
        cluster: &'static [&'static str],
        local: &'static [&'static str],
    }
    let cases = [
        Case {
            what: "others take over",
            endpoints: vec![
                endpoint("10.0.0.1", "u1", "here", "ready"),
                endpoint("10.0.0.2", "u2", "here", "ready"),
                endpoint("10.0.0.3", "u3", "there", "ready"),
            ],
            cluster: &["10.0.0.2", "10.0.0.3"],
            local: &["10.0.0.2"],
        },
        Case {
            what: "the last one that serves keeps receiving",
            endpoints: vec![endpoint("10.0.0.1", "u1", "here", "ready")],
            cluster: &["10.0.0.1"],
            local: &["10.0.0.1"],
        },
        Case {
            what: "the last one on this node keeps what only this node may serve",
            endpoints: vec![endpoint("10.0.0.1", "u1", "here", "ready"), endpoint("10.0.0.3", "u3", "there", "ready")],
            cluster: &["10.0.0.3"],
            local: &["10.0.0.1"],
        },
        Case {
            what: "with others that are going, when none is ready",
            endpoints: vec![
                endpoint("10.0.0.1", "u1", "here", "ready"),
                endpoint("10.0.0.2", "u2", "here", "going"),
                endpoint("10.0.0.3", "u3", "there", "gone"),
            ],
            cluster: &["10.0.0.1", "10.0.0.2"],
            local: &["10.0.0.1", "10.0.0.2"],
        },
        Case {
            what: "another pod of the same address in the same slice is not meant",
            endpoints: vec![
                endpoint("10.0.0.1", "u0", "here", "ready"),
                endpoint("10.0.0.1", "u1", "here", "ready"),
                endpoint("10.0.0.2", "u2", "there", "ready"),
            ],
            cluster: &["10.0.0.1", "10.0.0.2"],
            local: &["10.0.0.1"],
        },
        Case {
            what: "addresses that are left out do not shift whose UID it is",
            endpoints: vec![
                endpoint("127.0.0.1", "u1", "here", "ready"),
                endpoint("fd00::1", "u1", "here", "ready"),
                endpoint("10.0.0.2", "u2", "here", "ready"),
                endpoint("10.0.0.1", "u1", "here", "ready"),
            ],
            cluster: &["10.0.0.2"],
            local: &["10.0.0.2"],
        },
    ];
    for case in cases {
        let mut model = model(&case.endpoints);
        assert!(matches!(model.drain("u1"), Standing::Ready(_)), "{}", case.what);
        assert_eq!(model.take_dirty().into_iter().collect::<Vec<_>>(), [name("ns/web")], "{}", case.what);
        let (cluster, all, local) = lists(&model.plan(&name("ns/web")));
        assert_eq!(
            (cluster.as_slice(), local.as_slice()),
            (&strings(case.cluster)[..], &strings(case.local)[..]),
            "{}",
            case.what
        );
        assert_eq!(all, cluster, "{}", case.what);
        // Once is enough.
        model.drain("u1");
        assert!(model.take_dirty().is_empty(), "{}", case.what);
    }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn health_checks_of_load_balancers_do_not_count_it() {
    let mut model = model(&[endpoint("10.0.0.1", "u1", "here", "ready"), endpoint("10.0.0.2", "u2", "here", "ready")]);
    assert_eq!(model.local_endpoints(&name("ns/web")), 2);
    model.drain("u1");
    assert_eq!(model.local_endpoints(&name("ns/web")), 1);
}

#[test]
fn what_is_no_endpoint_here_is_unknown_and_leaves_nothing_behind() {
    let mut model = model(&[endpoint("10.0.0.1", "u1", "here", "ready"), endpoint("10.0.0.3", "u3", "there", "ready")]);
    // A slice whose Service is not ours to serve.
    set(&mut model, "other-1", "other", &[endpoint("10.0.0.9", "u9", "here", "ready")]);
    model.take_dirty();
    for uid in ["u3", "u9", "u", ""] {
        assert_eq!(model.drain(uid), Standing::Unknown, "{uid}");
    }
    assert!(model.take_dirty().is_empty());
    // One that comes later under such a UID is not drained: nobody asked for it then.
    set(&mut model, "web-2", "web", &[endpoint("10.0.0.4", "u3", "here", "ready")]);
    assert!(lists(&model.plan(&name("ns/web"))).0.contains(&"10.0.0.4".to_owned()));
}

#[test]
fn all_slices_have_to_agree_and_then_the_end_changes_nothing() {
    let (pod, other) = (|state| endpoint("10.0.0.1", "u1", "here", state), endpoint("10.0.0.2", "u2", "here", "ready"));
    let mut model = model(&[pod("ready"), other.clone()]);
    model.set_service(&name("ns/too"), Some(service("10.96.0.2", vec![port(80, 0, Protocol::Tcp)])));
    set(&mut model, "too-1", "too", &[pod("ready"), other.clone()]);
    model.take_dirty();
    assert_eq!(model.drain("u1"), Standing::Ready(vec![name("too-1"), name("web-1")]));
    assert_eq!(model.take_dirty().len(), 2);
    set(&mut model, "web-1", "web", &[pod("going"), other.clone()]);
    assert_eq!(model.standing("u1"), Standing::Ready(vec![name("too-1")]));
    set(&mut model, "too-1", "too", &[pod("unready"), other.clone()]);
    assert_eq!(model.standing("u1"), Standing::Unready);
    set(&mut model, "too-1", "too", &[pod("going"), other.clone()]);
    assert_eq!(model.standing("u1"), Standing::Terminating);
    model.take_dirty();
    let before = model.plan(&name("ns/too"));
    model.end_drain("u1");
    assert!(model.take_dirty().is_empty());
    assert_eq!(model.plan(&name("ns/too")), before);
    set(&mut model, "too-1", "too", std::slice::from_ref(&other));
    set(&mut model, "web-1", "web", &[other]);
    assert_eq!(model.standing("u1"), Standing::Unknown);
}

#[test]
fn whoever_has_the_address_next_is_not_meant() {
    let mut model = model(&[endpoint("10.0.0.1", "u1", "here", "ready"), endpoint("10.0.0.2", "u2", "here", "ready")]);
    model.drain("u1");
    model.take_dirty();
    // The record is the same one but for the UID, which is not in it: the Service is planned anew all the same.
    set(
        &mut model,
        "web-1",
        "web",
        &[endpoint("10.0.0.1", "u5", "here", "ready"), endpoint("10.0.0.2", "u2", "here", "ready")],
    );
    assert_eq!(model.take_dirty().len(), 1);
    assert_eq!(lists(&model.plan(&name("ns/web"))).0, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(model.standing("u1"), Standing::Unknown);
    model.set_slice(&name("web-1"), None);
    assert_eq!(model.standing("u5"), Standing::Unknown);
}

#[test]
fn records_stay_small() {
    assert!(size_of::<EndpointRecord>() <= 32, "{}", size_of::<EndpointRecord>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The override is no rule of its own: it does what a slice that says so would do.
    #[test]
    fn it_is_as_if_the_slice_had_said_so(
        states in prop::collection::vec((prop::sample::select(vec!["ready", "unready", "going", "gone"]), any::<bool>()), 1..6),
        drained in prop::collection::vec(any::<bool>(), 6),
    ) {
        let make = |said: bool| -> Vec<Value> {
            states.iter().zip(&drained).enumerate().map(|(n, ((state, here), drained))| {
                let state = match *state {
                    "ready" if said && *drained && *here => "going",
                    "unready" if said && *drained && *here => "gone",
                    other => other,
                };
                endpoint(&format!("10.0.0.{n}"), &format!("u{n}"), if *here { "here" } else { "there" }, state)
            }).collect()
        };
        let (mut asked, said) = (model(&make(false)), model(&make(true)));
        for (n, drained) in drained.iter().enumerate() {
            if *drained {
                asked.drain(&format!("u{n}"));
            }
        }
        prop_assert_eq!(asked.plan(&name("ns/web")), said.plan(&name("ns/web")));
        prop_assert_eq!(asked.local_endpoints(&name("ns/web")), said.local_endpoints(&name("ns/web")));
    }
}

fn question(uid: &str) -> (Request, watch::Receiver<Answer>) {
    let (answers, news) = watch::channel(asked());
    (Request { uid: uid.into(), answers }, news)
}

fn is_waiting(answer: &Answer, programmed: bool, agreed: bool, words: &str) -> bool {
    matches!(answer, Answer::Waiting { programmed: p, agreed: a, on }
        if (*p, *a) == (programmed, agreed) && on.contains(words))
}

#[test]
fn answers_follow_the_kernel_and_the_slices() {
    let (pod, other) = (|state| endpoint("10.0.0.1", "u1", "here", state), endpoint("10.0.0.2", "u2", "here", "ready"));
    let now = Instant::now();
    let (mut model, mut book) = (model(&[pod("ready"), other.clone()]), Book::default());
    let (request, news) = question("u7");
    assert!(!book.take(request, &mut model, true, now));
    assert_eq!(*news.borrow(), Answer::Unknown);
    let (request, news) = question("u1");
    assert!(book.take(request, &mut model, true, now));
    assert!(is_waiting(&news.borrow(), false, false, "kernel"), "{:?}", news.borrow());
    book.failed(&model, "out of sorts");
    assert!(is_waiting(&news.borrow(), false, false, "out of sorts"), "{:?}", news.borrow());
    assert!(!book.synced(&mut model, now));
    assert!(is_waiting(&news.borrow(), true, false, "web-1"), "{:?}", news.borrow());
    // A second asker is told the same; it makes no work.
    let (request, second) = question("u1");
    assert!(!book.take(request, &mut model, true, now));
    assert!(is_waiting(&second.borrow(), true, false, "web-1"), "{:?}", second.borrow());
    // Whoever goes away ends nothing.
    drop(second);
    set(&mut model, "web-1", "web", &[pod("going"), other]);
    book.synced(&mut model, now);
    assert_eq!(*news.borrow(), Answer::Done);
    assert!(book.is_empty());
}

#[test]
fn a_slice_that_agrees_already_is_answered_once_it_is_programmed() {
    let now = Instant::now();
    let (mut model, mut book) = (model(&[endpoint("10.0.0.1", "u1", "here", "going")]), Book::default());
    let (request, news) = question("u1");
    assert!(book.take(request, &mut model, true, now));
    assert!(is_waiting(&news.borrow(), false, true, "kernel"), "{:?}", news.borrow());
    book.synced(&mut model, now);
    assert_eq!(*news.borrow(), Answer::Done);
    assert!(book.is_empty());
}

#[test]
fn an_override_of_an_unready_pod_goes_on_after_its_answer() {
    let now = Instant::now();
    let (mut model, mut book) = (model(&[endpoint("10.0.0.1", "u1", "here", "unready")]), Book::default());
    let (request, news) = question("u1");
    assert!(book.take(request, &mut model, true, now));
    book.synced(&mut model, now);
    assert_eq!(*news.borrow(), Answer::Done);
    assert_eq!(book.len(), 1);
    // A slice that lags: its controller had seen the pod get ready, but not yet its deletion.
    let other = endpoint("10.0.0.2", "u2", "here", "ready");
    set(&mut model, "web-1", "web", &[endpoint("10.0.0.1", "u1", "here", "ready"), other]);
    assert_eq!(lists(&model.plan(&name("ns/web"))).0, ["10.0.0.2"]);
}

#[test]
fn nothing_is_answered_from_half_a_picture() {
    let now = Instant::now();
    let (mut model, mut book) = (Model::new("here"), Book::default());
    let ((first, news), (second, unknown)) = (question("u1"), question("u7"));
    assert!(!book.take(first, &mut model, false, now) && !book.take(second, &mut model, false, now));
    assert!(is_waiting(&news.borrow(), false, false, "has not read"), "{:?}", news.borrow());
    model.set_service(&name("ns/web"), Some(service("10.96.0.1", vec![port(80, 0, Protocol::Tcp)])));
    set(&mut model, "web-1", "web", &[endpoint("10.0.0.1", "u1", "here", "ready")]);
    // The first sync was made without them.
    assert!(book.synced(&mut model, now));
    assert_eq!(*unknown.borrow(), Answer::Unknown);
    assert!(is_waiting(&news.borrow(), false, false, "kernel"), "{:?}", news.borrow());
}

#[test]
fn an_override_does_not_live_for_ever() {
    let now = Instant::now();
    let pods = [endpoint("10.0.0.1", "u1", "here", "ready"), endpoint("10.0.0.2", "u2", "here", "ready")];
    let (mut model, mut book) = (model(&pods), Book::default());
    book.take(question("u1").0, &mut model, true, now);
    book.synced(&mut model, now);
    model.take_dirty();
    assert!(!book.expire(&mut model, now + LIFE - Duration::from_secs(1)));
    assert_eq!(lists(&model.plan(&name("ns/web"))).0, ["10.0.0.2"]);
    assert!(book.expire(&mut model, now + LIFE));
    assert_eq!(model.take_dirty().len(), 1);
    assert_eq!(lists(&model.plan(&name("ns/web"))).0, ["10.0.0.1", "10.0.0.2"]);
    assert!(book.is_empty());
}

/// A socket in a folder of its own, and the questions that come through it.
struct Listening {
    path: PathBuf,
    questions: mpsc::Receiver<Request>,
    stop: CancellationToken,
    _dir: tempfile::TempDir,
}

fn listening() -> Listening {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/plane.sock");
    let (sender, questions) = mpsc::channel(4);
    let stop = CancellationToken::new();
    tokio::spawn(server::serve(server::bind(&path).unwrap(), sender, stop.clone()));
    Listening { path, questions, stop, _dir: dir }
}

/// Everything that comes until the end; a server that has not read all it was sent ends with a reset.
async fn rest(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut bytes)).await.unwrap();
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    String::from_utf8(bytes).unwrap()
}

/// Sends bytes and gives everything that comes back until the end.
async fn sends(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let _ = stream.write_all(bytes).await;
    rest(&mut stream).await
}

#[tokio::test]
async fn a_question_and_its_answers() {
    let mut l = listening();
    let mode = std::fs::metadata(&l.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut asked = client::ask(&l.path, "u1").await.unwrap();
    let request = l.questions.recv().await.unwrap();
    assert_eq!(&*request.uid, "u1");
    // Nothing is told before anything is known: a busy loop is no answer.
    assert!(tokio::time::timeout(Duration::from_millis(200), asked.next()).await.is_err());
    let waiting = Answer::Waiting { programmed: true, agreed: false, on: "x".into() };
    request.answers.send_replace(waiting.clone());
    assert_eq!(asked.next().await.unwrap(), waiting);
    request.answers.send_replace(Answer::Done);
    assert_eq!(asked.next().await.unwrap(), Answer::Done);
    assert!(matches!(asked.next().await, Err(AskError::Gone)));
    // The dataplane ends in the middle of the next.
    let mut asked = client::ask(&l.path, "u2").await.unwrap();
    let request = l.questions.recv().await.unwrap();
    request.answers.send_replace(waiting);
    asked.next().await.unwrap();
    l.stop.cancel();
    assert!(matches!(asked.next().await, Err(AskError::Gone)));
    drop(request);
}

#[tokio::test]
async fn nonsense_gets_words_and_costs_nobody_else_anything() {
    let mut l = listening();
    // Clients that say nothing, half a line, or do not read.
    let silent = UnixStream::connect(&l.path).await.unwrap();
    let mut half = UnixStream::connect(&l.path).await.unwrap();
    half.write_all(b"{\"version\":1,").await.unwrap();
    let long = vec![b'x'; protocol::LINE_LIMIT * 20];
    for (bytes, words) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "no JSON"),
        (b"\n", "no JSON"),
        (b"{\"version\":9,\"drain\":\"u\"}\n", "version 9 is not known; this dataplane speaks version 1"),
        (b"{\"version\":1,\"drain\":\"\"}\n", "cannot be a pod's UID"),
        (b"\xff\xfe\n", "no JSON"),
        (&long, "longer than 4096 bytes"),
    ] {
        let answer = sends(&l.path, bytes).await;
        let value: Value = serde_json::from_str(answer.trim()).unwrap_or_else(|e| panic!("{answer:?}: {e}"));
        assert!(value["state"] == "refused" && value["version"] == 1, "{answer}");
        assert!(value["why"].as_str().unwrap().contains(words), "{answer}");
    }
    assert!(l.questions.try_recv().is_err());
    let mut asked = client::ask(&l.path, "u1").await.unwrap();
    l.questions.recv().await.unwrap().answers.send_replace(Answer::Unknown);
    assert_eq!(asked.next().await.unwrap(), Answer::Unknown);
    // Those that stalled are told so.
    let text = rest(&mut half).await;
    assert!(text.contains("no question within 2 s"), "{text}");
    drop(silent);
}

#[tokio::test]
async fn too_many_clients_are_told_so_and_room_is_found_again() {
    let Listening { path, mut questions, stop: _stop, _dir } = listening();
    // Everybody waits, for as long as they like.
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(request) = questions.recv().await {
            request.answers.send_replace(Answer::Waiting { programmed: true, agreed: false, on: "x".into() });
            held.push(request);
        }
    });
    let first_line = async || {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        // One that is refused need not be read.
        let _ = stream.write_all(&protocol::question("u1")).await;
        let (mut stream, mut line) = (tokio::io::BufReader::new(stream), Vec::new());
        protocol::read_line(&mut stream, &mut line).await.unwrap();
        (stream, protocol::read_answer(&line).unwrap())
    };
    let mut crowd = Vec::new();
    let why = loop {
        match first_line().await {
            (stream, Answer::Waiting { .. }) => crowd.push(stream),
            (_, Answer::Refused { why }) => break why,
            other => panic!("{other:?}"),
        }
        assert!(crowd.len() < 2000, "there is no bound");
    };
    assert!(crowd.len() >= 256 && why.contains("ask again later"), "{why} after {}", crowd.len());
    crowd.clear();
    for _ in 0..500 {
        if matches!(first_line().await.1, Answer::Waiting { .. }) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("those that are gone still take the room");
}

#[tokio::test]
async fn the_socket_of_a_dead_predecessor_is_replaced_and_that_of_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plane.sock");
    let first = server::bind(&path).unwrap();
    assert!(matches!(server::bind(&path), Err(SocketError::Taken(_))));
    assert!(matches!(server::remove_stale(&path), Err(SocketError::Taken(_))));
    // It still listens.
    UnixStream::connect(&path).await.unwrap();
    // Killed: the file stays.
    drop(first);
    assert!(path.exists());
    let second = server::bind(&path).unwrap();
    UnixStream::connect(&path).await.unwrap();
    drop(second);
    assert!(server::remove_stale(&path).unwrap());
    assert!(!server::remove_stale(&path).unwrap());
    std::fs::write(&path, "not ours").unwrap();
    let error = server::bind(&path).unwrap_err();
    assert!(matches!(error, SocketError::NoSocket(_)) && error.to_string().contains("remove it"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "not ours");
    assert!(
        matches!(client::ask(&dir.path().join("none"), "u").await, Err(AskError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound)
    );
}
