//! `grpc.health.v1.Health/Check` over HTTP/2 without TLS. The service with the empty name follows `/readyz`, `alive` always serves, others are
//! not known.

use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Server;

/// Longest request that is read.
const MAX_REQUEST: usize = 4096;
/// Length of what comes before each message: compression, length.
const PREFIX: usize = 5;
/// gRPC's status codes.
const OK: &str = "0";
const NOT_FOUND: &str = "5";
const UNIMPLEMENTED: &str = "12";
/// `HealthCheckResponse.ServingStatus`.
const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;

/// Everything runs on one thread.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output = ()> + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

/// Answers on one connection until it or the server ends.
pub async fn serve(stream: TcpStream, server: Rc<Server>) {
    let closing = server.closing.clone();
    let answer = service_fn(move |request| answer(request, Rc::clone(&server)));
    let connection = hyper::server::conn::http2::Builder::new(Local).serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        _ = connection => {}
        () = closing.cancelled() => {}
    }
}

async fn answer(
    request: Request<Incoming>,
    server: Rc<Server>,
) -> Result<Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>, Infallible> {
    server.saw(format!("GRPC {}", request.uri().path()));
    let known = request.uri().path() == "/grpc.health.v1.Health/Check";
    let body = Limited::new(request.into_body(), MAX_REQUEST).collect().await.map(http_body_util::Collected::to_bytes);
    let service = service(body.as_deref().unwrap_or_default());
    let (status, message) = match service {
        _ if !known => (UNIMPLEMENTED, Vec::new()),
        "" if server.ready.get() => (OK, message(SERVING)),
        "" => (OK, message(NOT_SERVING)),
        "alive" => (OK, message(SERVING)),
        _ => (NOT_FOUND, Vec::new()),
    };
    server.served.set(server.served.get() + 1);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let body = Full::new(Bytes::from(message)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(BodyExt::boxed(body));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// `HealthCheckResponse { status }` with its prefix: field 1, a number.
fn message(status: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, 2, 0x08, status]
}

/// `HealthCheckRequest.service`: field 1, a text of less than 128 bytes; nothing when it is empty.
fn service(request: &[u8]) -> &str {
    let text = match request.get(PREFIX..) {
        Some([0x0a, length, rest @ ..]) => rest.get(..usize::from(*length)).unwrap_or_default(),
        _ => &[],
    };
    std::str::from_utf8(text).unwrap_or("?")
}
