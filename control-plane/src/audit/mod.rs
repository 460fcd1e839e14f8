//! The audit log: who asked for what, when, and what came of it. Upstream counterpart: `apiserver/pkg/audit`.
//!
//! [`Audit::begin`] judges a request by the policy and gives a [`Trail`], which the request's way through the server fills; each stage that
//! the policy does not leave out becomes a line of the file before the client has its answer.

pub mod policy;
pub mod sink;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use keelson_kinds::time;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};

use crate::api::review::user_info;
use crate::auth::{Attributes, User};
use crate::http::body::{self, Body};
use policy::{Level, Policy, Stage, Verdict};
use sink::Sink;

/// Ties the events of a request together; a client may choose it.
static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// For a request without an answer: nginx's code, and what others have taken over from it.
const CLIENT_GONE: u16 = 499;
/// Upstream's bound on an id of the client's.
const MAX_ID: usize = 64;

/// The log.
#[derive(Debug)]
pub struct Audit {
    policy: Policy,
    sink: Sink,
}

/// A request that is recorded.
#[derive(Debug)]
pub struct Trail {
    audit: Arc<Audit>,
    verdict: Verdict,
    event: Value,
    id: HeaderValue,
    /// Whether the answer may take for ever.
    long: bool,
    /// The server's own refusal.
    refusal: Option<Value>,
    /// What the last stage tells of a long answer that has begun.
    begun: Option<Value>,
    /// Whether the last stage is recorded.
    is_over: bool,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The request.
    pub parts: &'a Parts,
    /// The other end of the connection; none within this program.
    pub peer: Option<SocketAddr>,
}

fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl Origin<'_> {
    /// Proxies say for whom they ask; who is really at the other end comes last.
    fn addresses(&self) -> Vec<String> {
        let forwarded = text(&self.parts.headers, "x-forwarded-for").split(',').map(str::trim);
        let addresses = forwarded.filter(|address| address.parse::<std::net::IpAddr>().is_ok()).map(str::to_owned);
        let mut addresses: Vec<String> = addresses.collect();
        let peer = self.peer.map(|peer| peer.ip().to_canonical().to_string());
        addresses.extend(peer.filter(|peer| addresses.last() != Some(peer)));
        addresses
    }

    fn id(&self) -> HeaderValue {
        let given = self.parts.headers.get(&AUDIT_ID).filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        let fresh =
            || HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).unwrap_or(HeaderValue::from_static("-"));
        given.cloned().unwrap_or_else(fresh)
    }
}

fn now() -> String {
    time::micro(jiff::Timestamp::now())
}

impl Audit {
    /// A log of what the policy wants to a sink.
    #[must_use]
    pub fn new(policy: Policy, sink: Sink) -> Self {
        Self { policy, sink }
    }

    /// Waits until what was recorded is written.
    pub async fn flush(&self) {
        self.sink.flush().await;
    }

    /// Counts events that could not be written.
    #[must_use]
    pub fn lost(&self) -> Counter {
        self.sink.lost.clone()
    }

    /// Judges a request; nothing if it is not to be recorded. `user` is none for somebody who could not say who he is.
    pub async fn begin(
        self: &Arc<Self>,
        origin: Origin<'_>,
        user: Option<&User>,
        attributes: &Attributes,
        long: bool,
    ) -> Option<Trail> {
        let verdict = self.policy.judge(user, attributes);
        if verdict.level == Level::None {
            return None;
        }
        let (parts, id) = (origin.parts, origin.id());
        let uri = parts.uri.path_and_query().map_or("", |uri| uri.as_str());
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": verdict.level.as_str(),
            "auditID": id.to_str().unwrap_or_default(), "requestURI": uri, "verb": attributes.verb,
            "user": user.map_or(json!({}), user_info), "sourceIPs": origin.addresses(),
            "userAgent": text(&parts.headers, header::USER_AGENT), "requestReceivedTimestamp": now(),
        });
        if attributes.path.is_empty() && !attributes.resource.is_empty() {
            let mut object = json!({});
            for (key, value) in [
                ("resource", &attributes.resource),
                ("namespace", &attributes.namespace),
                ("name", &attributes.name),
                ("apiGroup", &attributes.group),
                ("apiVersion", &attributes.version),
                ("subresource", &attributes.subresource),
            ] {
                if !value.is_empty() {
                    object[key] = json!(value);
                }
            }
            event["objectRef"] = object;
        }
        let audit = Arc::clone(self);
        let trail = Trail { audit, verdict, event, id, long, refusal: None, begun: None, is_over: false };
        trail.record(Stage::RequestReceived, &Value::Null).await;
        Some(trail)
    }
}

impl Trail {
    /// As whom the request goes on.
    pub fn impersonated(&mut self, user: &User) {
        self.event["impersonatedUser"] = user_info(user);
    }

    /// What authorization said.
    pub fn decided(&mut self, allowed: bool) {
        let decision = if allowed { "allow" } else { "forbid" };
        self.event["annotations"]["authorization.k8s.io/decision"] = json!(decision);
    }

    /// Whether [`Self::request`] would make use of what the client sent.
    #[must_use]
    pub fn wants_the_request(&self) -> bool {
        self.verdict.level >= Level::Request || self.is_create()
    }

    fn is_create(&self) -> bool {
        self.event["verb"] == "create"
    }

    /// What the client sent. A new object tells what its URL does not: its name.
    pub fn request(&mut self, mut sent: Value) {
        let metadata = if self.is_create() { &sent["metadata"] } else { &Value::Null };
        for key in ["name", "namespace", "uid", "resourceVersion"] {
            if self.event["objectRef"][key].is_null()
                && let Some(value) = metadata[key].as_str().filter(|value| !value.is_empty())
            {
                self.event["objectRef"][key] = json!(value);
            }
        }
        if self.verdict.level >= Level::Request {
            self.strip(&mut sent);
            self.event["requestObject"] = sent;
        }
    }

    fn strip(&self, object: &mut Value) {
        if !self.verdict.omit_managed_fields {
            return;
        }
        let items = object.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
        let strip = |object: &mut Value| {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        };
        strip(object);
        if let Some(mut items) = items {
            items.iter_mut().for_each(strip);
            object["items"] = Value::Array(items);
        }
    }

    fn line(&self, stage: Stage, more: &Value) -> Option<String> {
        if self.verdict.omit_stages.contains(&stage) {
            return None;
        }
        let mut event = self.event.clone();
        event["stage"] = json!(stage.as_str());
        event["stageTimestamp"] = json!(now());
        for (key, value) in more.as_object().into_iter().flatten() {
            event[key] = value.clone();
        }
        Some(event.to_string())
    }

    async fn record(&self, stage: Stage, more: &Value) {
        if let Some(line) = self.line(stage, more) {
            self.audit.sink.write(line).await;
        }
    }

    /// The server refuses, for this reason (a `Status`).
    pub fn refused(&mut self, status: Value) {
        self.refusal = Some(status);
    }

    /// Records what came of the request, before the client sees it; of a long answer its beginning, and its end when it comes.
    pub async fn answered(mut self, response: Response<Body>) -> Response<Body> {
        let (mut head, mut content) = response.into_parts();
        head.headers.insert(AUDIT_ID.clone(), self.id.clone());
        let mut told = json!({ "responseStatus": { "metadata": {}, "code": head.status.as_u16() } });
        if let Some(status) = &self.refusal {
            for key in ["status", "message", "reason", "details"] {
                if let Some(value) = status.get(key) {
                    told["responseStatus"][key] = value.clone();
                }
            }
        }
        let is_own = self.refusal.is_some() || !self.long;
        if !is_own && head.status != StatusCode::SWITCHING_PROTOCOLS {
            self.record(Stage::ResponseStarted, &told).await;
            self.begun = Some(told);
            return Response::from_parts(head, Lasting { content, _trail: self }.boxed_unsync());
        }
        // What is not the server's own is not held back, whatever its length.
        if self.verdict.level == Level::RequestResponse && is_own {
            content = match content.collect().await {
                Ok(whole) => {
                    let bytes = whole.to_bytes();
                    if let Ok(mut object) = serde_json::from_slice::<Value>(&bytes) {
                        self.strip(&mut object);
                        told["responseObject"] = object;
                    }
                    body::full(bytes)
                }
                // It breaks off for the client as well.
                Err(error) => body::streamed(futures::stream::iter([Err(error)])),
            };
        }
        self.is_over = true;
        self.record(Stage::ResponseComplete, &told).await;
        Response::from_parts(head, content)
    }
}

/// The end of a long answer, or of a request without one: its client has hung up, or its handler died. What it did may be done all the
/// same.
impl Drop for Trail {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let without = |why: &str, code: u16| {
            let status = json!({ "metadata": {}, "status": "Failure", "message": why, "code": code });
            json!({ "responseStatus": status })
        };
        let (stage, told) = match self.begun.take() {
            Some(told) => (Stage::ResponseComplete, told),
            None if std::thread::panicking() => (Stage::Panic, without("the handler of the request died", 500)),
            None => (Stage::ResponseComplete, without("the client has gone before it was answered", CLIENT_GONE)),
        };
        if let Some(line) = self.line(stage, &told) {
            self.audit.sink.write_later(line);
        }
    }
}

/// A long answer; its end is that of its trail.
struct Lasting {
    content: Body,
    _trail: Trail,
}

impl http_body::Body for Lasting {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.content).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.content.size_hint()
    }
}
