//! Subresources that connect a client to something behind this server: `exec`, `attach`, `portforward` and `proxy`; and `log` for a client
//! that wants it as messages.
//!
//! Bytes are copied, not read: after the back end's 101 both connections are joined as they are. Anything but 101 is an ordinary answer,
//! after which the back end's connection is closed (CVE-2018-1002105); redirects are handed to the client, never followed
//! (CVE-2022-3172). Upstream counterparts: `apimachinery/pkg/util/proxy`, `pkg/registry/core/{pod,node,service}/rest`.

mod messages;
mod proxy;
mod remote;

pub(crate) use proxy::endpoint;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use keelson_kinds::ApiError;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::admission;
use crate::http::Call;
use crate::http::body::{self, Body, RequestBody};

/// An error body of a back end is read up to this, and for so long.
const ERROR_BYTES: usize = 64 << 10;
const ERROR_TIME: Duration = Duration::from_secs(10);

/// What a request carries besides its [`Call`].
pub struct Connect {
    /// Method.
    pub method: Method,
    /// The path up to the subresource, as the client sent it.
    pub prefix: String,
    /// What follows it, undecoded, with its slash; empty without one.
    pub tail: String,
    /// The query, undecoded.
    pub query: String,
    /// The body, not yet read.
    pub body: RequestBody,
    /// Set when the connection can be taken over.
    pub upgrade: Option<OnUpgrade>,
    /// Held as long as the connection.
    pub place: OwnedSemaphorePermit,
}

/// Whether a request for a subresource connects.
#[must_use]
pub fn connects(plural: &str, subresource: &str, headers: &HeaderMap) -> bool {
    match (plural, subresource) {
        ("pods", "exec" | "attach" | "portforward" | "proxy") | ("services" | "nodes", "proxy") => true,
        ("pods", "log") => keelson_streaming::websocket::is_upgrade(headers, "websocket"),
        _ => false,
    }
}

/// Whether a request needs the right to `create` besides that of its own verb: what it starts counts, not how it is asked for. Upstream
/// demands it for exec, attach and port-forward since 1.35; for `nodes/proxy` we demand it where a GET would run something.
#[must_use]
pub fn needs_create(plural: &str, subresource: &str, tail: &str, headers: &HeaderMap) -> bool {
    match (plural, subresource) {
        ("pods", "exec" | "attach" | "portforward") => true,
        ("nodes", "proxy") => headers.contains_key(header::UPGRADE) || proxy::runs_something(tail),
        _ => false,
    }
}

/// Splits the raw path behind the first `segments` non-empty segments.
#[must_use]
pub fn split_path(path: &str, segments: usize) -> (&str, &str) {
    let (mut seen, mut inside) = (0, false);
    for (at, byte) in path.bytes().enumerate() {
        if byte == b'/' {
            if inside && seen == segments {
                return path.split_at(at);
            }
            inside = false;
        } else if !inside {
            inside = true;
            seen += 1;
        }
    }
    (path, "")
}

/// Runs the handler.
///
/// # Errors
/// 400, 404, 503 and what keeps the back end from being reached.
pub async fn connect(call: &Call, connect: Connect) -> Result<Response<Body>, ApiError> {
    if call.subresource != "log" {
        admission::connect(call, &options(call, &connect.tail)).await?;
    }
    match (call.res.plural, call.subresource.as_str()) {
        ("pods", "exec" | "attach" | "portforward") => remote::connect(call, connect).await,
        ("pods", "log") => messages::connect(call, connect).await,
        _ => proxy::connect(call, connect).await,
    }
}

/// The object that a connection's query stands for, as webhooks see it: `PodExecOptions` and its like.
fn options(call: &Call, tail: &str) -> Value {
    let kind = call.res.subresource(&call.subresource).map_or("", |sub| sub.kind);
    let mut options = json!({"kind": kind, "apiVersion": "v1"});
    for (key, value) in call.query.pairs() {
        let typed = match key {
            "stdin" | "stdout" | "stderr" | "tty" => json!(value.parse().unwrap_or(false)),
            "container" => json!(value),
            "command" => json!(call.query.all("command").collect::<Vec<_>>()),
            "ports" => json!(call.query.all("ports").filter_map(|port| port.parse::<i32>().ok()).collect::<Vec<_>>()),
            _ => continue,
        };
        options[key] = typed;
    }
    if call.subresource == "proxy" {
        options["path"] = json!(tail);
    }
    options
}

/// Joins a client and a back end that has answered 101, until both have ended or the server stops.
fn join(client: OnUpgrade, back: OnUpgrade, stop: CancellationToken, place: OwnedSemaphorePermit) {
    tokio::spawn(async move {
        let copying = async {
            let (client, back) = tokio::try_join!(client, back)?;
            let (mut client, mut back) = (TokioIo::new(client), TokioIo::new(back));
            tokio::io::copy_bidirectional_with_sizes(&mut client, &mut back, COPY, COPY).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        tokio::select! {
            result = copying => if let Err(error) = result {
                tracing::debug!(%error, "a proxied stream broke off");
            },
            () = stop.cancelled() => {}
        }
        drop(place);
    });
}

/// Buffer of each direction.
const COPY: usize = 16 << 10;

/// The answer to an upgrade: 101 joins both ends, anything else is read and ends the back end's connection.
async fn upgraded(
    call: &Call,
    client: Option<OnUpgrade>,
    mut answer: Response<Incoming>,
    place: OwnedSemaphorePermit,
) -> Result<Response<Body>, ApiError> {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (parts, incoming) = answer.into_parts();
        let mut response = Response::new(body::full(read(incoming).await));
        *response.status_mut() = parts.status;
        if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
            response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
        }
        for (name, value) in &parts.headers {
            if name.as_str().starts_with("x-accepted-stream") {
                response.headers_mut().append(name, value.clone());
            }
        }
        return Ok(response);
    }
    let client = client.ok_or_else(|| ApiError::bad_request("this connection cannot be upgraded: use HTTP/1.1"))?;
    let back = hyper::upgrade::on(&mut answer);
    join(client, back, call.server.shutdown.clone(), place);
    let mut response = Response::new(body::full(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

async fn read(incoming: Incoming) -> Bytes {
    let collecting = Limited::new(incoming, ERROR_BYTES).collect();
    let collected = tokio::time::timeout(ERROR_TIME, collecting).await;
    collected.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_behind_the_subresource() {
        let path = "/api/v1/namespaces/d/pods/p:80/proxy/a//b%2Fc/";
        assert_eq!(split_path(path, 7), ("/api/v1/namespaces/d/pods/p:80/proxy", "/a//b%2Fc/"));
        assert_eq!(split_path("//api/v1/nodes//n/proxy", 5), ("//api/v1/nodes//n/proxy", ""));
        assert_eq!(split_path("/api/v1/nodes/n/proxy/", 5), ("/api/v1/nodes/n/proxy", "/"));
    }

    #[test]
    fn rights_follow_the_effect() {
        let plain = HeaderMap::new();
        let mut upgrading = HeaderMap::new();
        upgrading.insert(header::UPGRADE, "websocket".parse().unwrap());
        assert!(needs_create("pods", "exec", "", &plain));
        assert!(needs_create("nodes", "proxy", "/exec/d/p/c", &plain));
        assert!(needs_create("nodes", "proxy", "/metrics", &upgrading));
        assert!(!needs_create("nodes", "proxy", "/metrics", &plain));
        assert!(!needs_create("pods", "proxy", "/exec", &upgrading));
    }
}
