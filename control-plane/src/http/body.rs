//! Request and response bodies.

use std::collections::HashSet;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::Stream;
use futures::{FutureExt, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use keelson_kinds::ApiError;
use serde_json::Value;

use crate::cache::Object;

/// A body whose failure ends the connection.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
/// A request body of whatever origin.
pub type RequestBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Upstream's limit for write requests.
pub const MAX_REQUEST_BYTES: usize = 3 << 20;
/// What is read of a body that is not wanted.
const MAX_DISCARDED_BYTES: usize = 16 << 20;
/// How long it is read.
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// Size of the pieces a list is sent in.
const LIST_CHUNK: usize = 64 << 10;

/// A whole body.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is produced piece by piece.
pub fn streamed(stream: impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static) -> Body {
    BodyExt::boxed_unsync(StreamBody::new(stream.map(|item| item.map(Frame::data))))
}

/// Reads a request body up to [`MAX_REQUEST_BYTES`].
///
/// # Errors
/// 413 when it is larger, 400 when it breaks off.
pub async fn read(mut body: RequestBody) -> Result<Bytes, ApiError> {
    // Boxed, because the compiler cannot prove the unboxed future Send for every lifetime of the error type.
    let read: BoxFuture<'static, Result<Bytes, ApiError>> = async move {
        let mut out = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| ApiError::bad_request(format!("the request body broke off: {e}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if out.len() + data.len() > MAX_REQUEST_BYTES {
                discard(body).await;
                return Err(ApiError::new(
                    keelson_kinds::Reason::RequestEntityTooLarge,
                    format!("Request entity too large: limit is {MAX_REQUEST_BYTES}"),
                ));
            }
            out.extend_from_slice(&data);
        }
        Ok(out.freeze())
    }
    .boxed();
    read.await
}

/// Reads what is left of a body that nobody wants. Dropped unread, it would reset the stream of an HTTP/2 client, who then never sees
/// the answer. Bounded in bytes and time: who sends more than that is cut off.
pub async fn discard(mut body: RequestBody) {
    let read: BoxFuture<'static, _> = async move {
        let mut left = MAX_DISCARDED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    }
    .boxed();
    let _ = tokio::time::timeout(DISCARD_TIME, read).await;
}

/// Takes the content from the answer to a HEAD request and leaves its length: HTTP/2 allows no content there.
pub fn strip(response: &mut Response<Body>) {
    if let Some(length) = http_body::Body::size_hint(response.body()).exact().filter(|length| *length > 0) {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    *response.body_mut() = Body::default();
}

/// A JSON answer.
#[must_use]
pub fn json(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON answer of a value.
#[must_use]
pub fn json_value(status: StatusCode, value: &Value) -> Response<Body> {
    json(status, value.to_string())
}

/// A `Status` answer.
#[must_use]
pub fn error(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_value(status, &error.to_status());
    if error.retry_after_seconds > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(error.retry_after_seconds));
    }
    response
}

/// All warnings of an answer together (upstream truncates at the same length).
const WARNING_BYTES: usize = 4096;

/// Adds `Warning` headers (RFC 7234, code 299, agent `-`), as upstream does.
pub fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    let mut said = HashSet::new();
    let mut left = WARNING_BYTES;
    for warning in warnings.iter().filter(|warning| said.insert(warning.as_str())) {
        left = left.saturating_sub(warning.len());
        if left == 0 {
            return;
        }
        let text: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// A list answer, sent in pieces so that no second copy of all objects is made.
#[must_use]
pub fn list(head: String, objects: Vec<Arc<Object>>) -> Response<Body> {
    let total: usize = objects.iter().map(|o| o.json.len() + 1).sum();
    if total < LIST_CHUNK {
        let mut out = Vec::with_capacity(head.len() + total + 2);
        out.extend_from_slice(head.as_bytes());
        append(&mut out, objects.iter(), true);
        out.extend_from_slice(b"]}");
        return json(StatusCode::OK, out);
    }
    let state = (Some(head), VecDeque::from(objects), true, false);
    let stream = futures::stream::unfold(state, |(head, mut objects, mut first, done)| async move {
        if done {
            return None;
        }
        let mut out = Vec::with_capacity(LIST_CHUNK + (8 << 10));
        if let Some(head) = head {
            out.extend_from_slice(head.as_bytes());
        }
        while out.len() < LIST_CHUNK {
            let Some(object) = objects.pop_front() else { break };
            append(&mut out, std::iter::once(&object), first);
            first = false;
        }
        let done = objects.is_empty();
        if done {
            out.extend_from_slice(b"]}");
        }
        Some((Ok(Bytes::from(out)), (None, objects, first, done)))
    });
    let mut response = Response::new(streamed(stream));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn append<'a>(out: &mut Vec<u8>, objects: impl Iterator<Item = &'a Arc<Object>>, mut first: bool) {
    for object in objects {
        if !first {
            out.push(b',');
        }
        first = false;
        out.extend_from_slice(&object.json);
    }
}
