//! A runtime that misbehaves: a gRPC proxy before a real one, which delays, refuses, holds or cuts off calls by name.
//!
//! It does not look into messages, so that every call passes that the runtime knows, and event streams too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// gRPC's status `UNAVAILABLE`.
const UNAVAILABLE: &str = "14";

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The answer comes this much later.
    Late(Duration),
    /// It is refused.
    Refused,
    /// No answer comes until the faults change; then it is refused.
    Held,
    /// Half of the answer comes, then the stream is reset; the runtime has done what was asked.
    Torn,
}

/// A fault of the calls with one name.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name of the call (`RunPodSandbox`); `*` for all.
    pub call: String,
    /// What its request must hold, such as an identifier; empty for all.
    pub with: String,
    /// The fault.
    pub fault: Fault,
    /// How often; the calls after that are well.
    pub times: usize,
}

struct Shared {
    upstream: PathBuf,
    rules: Mutex<Vec<Rule>>,
    changed: watch::Sender<u64>,
    cut: watch::Sender<u64>,
}

impl Shared {
    fn fault(&self, call: &str, request: &[u8]) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |with: &str| with.is_empty() || request.windows(with.len()).any(|part| part == with.as_bytes());
        let rule = rules
            .iter_mut()
            .find(|rule| (rule.call == "*" || rule.call == call) && rule.times > 0 && holds(&rule.with))?;
        rule.times -= 1;
        Some(rule.fault)
    }
}

/// The proxy; it ends with the handle.
pub struct Faulty {
    shared: Arc<Shared>,
    socket: PathBuf,
    _runtime: Runtime,
}

impl Faulty {
    /// Listens on a socket for a runtime that listens on another.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(socket: &Path, upstream: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            rules: Mutex::default(),
            changed: watch::Sender::new(0),
            cut: watch::Sender::new(0),
        });
        let _inside = runtime.enter();
        let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
        runtime.spawn(listen(listener, shared.clone()));
        Ok(Self { shared, socket: socket.to_owned(), _runtime: runtime })
    }

    /// Replaces all faults; calls that are held are refused.
    pub fn set(&self, rules: Vec<Rule>) {
        *self.shared.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
        self.shared.changed.send_modify(|number| *number += 1);
    }

    /// Resets every stream that is open, those of events among them.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|number| *number += 1);
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn listen(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, shared.clone()));
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

fn refused() -> Answer {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert("content-type", http::HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", http::HeaderValue::from_static(UNAVAILABLE));
    headers.insert("grpc-message", http::HeaderValue::from_static("injected by the test"));
    response
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> io::Result<Answer> {
    let call = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let (head, body) = request.into_parts();
    // Requests of the runtime's interface are single messages.
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut changed = shared.changed.subscribe();
    let fault = shared.fault(&call, &body);
    match fault {
        Some(Fault::Refused) => return Ok(refused()),
        Some(Fault::Held) => {
            let _ = changed.changed().await;
            return Ok(refused());
        }
        Some(Fault::Late(time)) => tokio::time::sleep(time).await,
        Some(Fault::Torn) | None => {}
    }
    let upstream = TokioIo::new(UnixStream::connect(&shared.upstream).await?);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), upstream).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    let response = sender.send_request(Request::from_parts(head, Full::new(body))).await.map_err(io::Error::other)?;
    let (head, body) = response.into_parts();
    // The sender holds the connection, so it lives as long as the answer.
    let frames = frames(body, shared.cut.subscribe(), sender);
    let body =
        if fault == Some(Fault::Torn) { torn(frames).boxed_unsync() } else { StreamBody::new(frames).boxed_unsync() };
    Ok(Response::from_parts(head, body))
}

/// The frames of an answer until it ends or is cut.
fn frames<K: Send>(
    body: Incoming,
    cut: watch::Receiver<u64>,
    kept: K,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send {
    stream::unfold(Some((body, cut, kept)), |state| async {
        let (mut body, mut cut, kept) = state?;
        tokio::select! {
            frame = body.frame() => match frame? {
                Ok(frame) => Some((Ok(frame), Some((body, cut, kept)))),
                Err(error) => Some((Err(io::Error::other(error)), None)),
            },
            _ = cut.changed() => Some((Err(io::Error::other("cut by the test")), None)),
        }
    })
}

/// The first half of an answer's first frame, and an error.
fn torn(
    frames: impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static,
) -> StreamBody<impl Stream<Item = io::Result<Frame<Bytes>>> + Send> {
    let halves = frames.take(1).map(|frame| frame.map(|frame| frame.map_data(|data| data.slice(..data.len() / 2))));
    StreamBody::new(halves.chain(stream::once(async { Err(io::Error::other("torn by the test")) })))
}
