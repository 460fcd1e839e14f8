//! The small HTTP server beside every program: health checks and metrics.
//!
//! Paths: `/healthz`, `/livez`, `/readyz` (with `?verbose`, and one check as `/healthz/NAME`), `/metrics`, and
//! whatever fixed pages a program adds (`/configz`, `/proxyMode`); or one page for every path. No debug handler is served here
//! (CVE-2019-11248): the port may be reachable without authentication.
//!
//! Upstream counterpart: `k8s.io/apiserver/pkg/server/healthz` and component-base's metrics endpoint.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::process::ProcessCollector;

/// Connections served at once; a scraper needs one, a flood must not cost memory.
const MAX_CONNECTIONS: usize = 64;
/// A client that has not sent its request head by then is cut off (slow loris).
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a health check says: fine, or why not.
pub type CheckResult = Result<(), String>;
type Check = Arc<dyn Fn() -> CheckResult + Send + Sync>;
type Page = Arc<dyn Fn() -> PageAnswer + Send + Sync>;

/// What a page answers.
pub struct PageAnswer {
    /// HTTP status.
    pub status: StatusCode,
    /// Value of the `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
    /// Further headers, by names in lower case.
    pub headers: Vec<(&'static str, header::HeaderValue)>,
}

impl PageAnswer {
    /// A page of plain text with status 200.
    #[must_use]
    pub fn text(body: impl Into<String>) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self { status: StatusCode::OK, content_type, body: body.into(), headers: Vec::new() }
    }

    /// A page of JSON with the given status.
    #[must_use]
    pub fn json(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, content_type: "application/json", body: body.into(), headers: Vec::new() }
    }
}

/// Checks, metrics and pages of one program; cheap to clone, one content.
#[derive(Clone, Default)]
pub struct Endpoints {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    live: RwLock<BTreeMap<&'static str, Check>>,
    ready: RwLock<BTreeMap<&'static str, Check>>,
    pages: RwLock<BTreeMap<&'static str, Page>>,
    every_path: Option<Page>,
    registry: RwLock<Registry>,
}

impl Endpoints {
    /// Endpoints without a check: always healthy; no metric but those of the process itself.
    #[must_use]
    pub fn new() -> Self {
        let endpoints = Self::default();
        endpoints.register(|registry| registry.register_collector(Box::new(ProcessCollector)));
        endpoints
    }

    /// One page, whatever the path; nothing else.
    pub fn one_page(page: impl Fn() -> PageAnswer + Send + Sync + 'static) -> Self {
        Self { inner: Arc::new(Inner { every_path: Some(Arc::new(page)), ..Inner::default() }) }
    }

    /// Adds a check to `/healthz`, `/livez` and `/readyz`.
    pub fn add_live_check(&self, name: &'static str, check: impl Fn() -> CheckResult + Send + Sync + 'static) {
        self.inner.live.write().insert(name, Arc::new(check));
    }

    /// Adds a check to `/readyz` alone.
    pub fn add_ready_check(&self, name: &'static str, check: impl Fn() -> CheckResult + Send + Sync + 'static) {
        self.inner.ready.write().insert(name, Arc::new(check));
    }

    /// Adds a page; `path` begins with `/`.
    pub fn add_page(&self, path: &'static str, page: impl Fn() -> PageAnswer + Send + Sync + 'static) {
        self.inner.pages.write().insert(path, Arc::new(page));
    }

    /// Registers metrics: the closure gets the registry that `/metrics` prints.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.inner.registry.write())
    }

    /// All metrics in the text format.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.inner.registry.read()) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }

    /// The answer to one request path with its query; `None` when there is no such path.
    #[must_use]
    pub fn answer(&self, path: &str, query: Option<&str>) -> Option<PageAnswer> {
        if let Some(page) = &self.inner.every_path {
            return Some(page());
        }
        if let Some(page) = self.inner.pages.read().get(path).cloned() {
            return Some(page());
        }
        if path == "/metrics" {
            return Some(PageAnswer {
                status: StatusCode::OK,
                content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                body: self.metrics_text(),
                headers: Vec::new(),
            });
        }
        let (group, name) = match path.strip_prefix('/')?.split_once('/') {
            Some((group, name)) => (group, Some(name)),
            None => (path.strip_prefix('/')?, None),
        };
        let mut checks: Vec<(&'static str, Check)> = match group {
            "healthz" | "livez" | "readyz" => self.inner.live.read().iter().map(|(n, c)| (*n, c.clone())).collect(),
            _ => return None,
        };
        if group == "readyz" {
            checks.extend(self.inner.ready.read().iter().map(|(n, c)| (*n, c.clone())));
        }
        if let Some(name) = name {
            checks.retain(|(known, _)| *known == name);
            if checks.is_empty() {
                return None;
            }
        }
        let verbose = query.is_some_and(|query| query.split('&').any(|part| part.starts_with("verbose")));
        Some(run_checks(group, &checks, verbose))
    }
}

fn run_checks(group: &str, checks: &[(&'static str, Check)], verbose: bool) -> PageAnswer {
    let mut lines = String::new();
    let mut failed = false;
    for (name, check) in checks {
        match check() {
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(reason) => {
                failed = true;
                lines.push_str(&format!("[-]{name} failed: {reason}\n"));
            }
        }
    }
    match (failed, verbose) {
        (true, _) => PageAnswer {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            ..PageAnswer::text(format!("{lines}{group} check failed\n"))
        },
        (false, true) => PageAnswer::text(format!("{lines}{group} check passed\n")),
        (false, false) => PageAnswer::text("ok"),
    }
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for health and metrics: {source}; free the port or change the address in the configuration"
)]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's answer.
    pub source: std::io::Error,
}

/// A server bound to its port, not yet serving: binding first lets a program fail at start, not later.
pub struct HealthServer {
    listener: TcpListener,
    endpoints: Endpoints,
}

impl HealthServer {
    /// Binds the address.
    ///
    /// # Errors
    /// [`ListenError`]; retryable when another process still holds the port.
    pub async fn bind(address: SocketAddr, endpoints: Endpoints) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address).await.map_err(|source| ListenError { address, source })?;
        Ok(Self { listener, endpoints })
    }

    /// The address bound, with the port chosen when 0 was asked for.
    ///
    /// # Errors
    /// The system's answer when the socket has no address.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the token is cancelled.
    pub async fn run(self, shutdown: CancellationToken) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the health port");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (endpoints, shutdown) = (self.endpoints.clone(), shutdown.clone());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let answer = respond(&endpoints, &request);
                    async move { Ok::<_, std::convert::Infallible>(answer) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    result = connection => if let Err(error) = result {
                        tracing::debug!(%error, "health connection ended early");
                    },
                }
                drop(slot);
            });
        }
    }
}

fn respond<B>(endpoints: &Endpoints, request: &Request<B>) -> Response<Full<Bytes>> {
    let mut answer = if matches!(*request.method(), Method::GET | Method::HEAD) {
        endpoints
            .answer(request.uri().path(), request.uri().query())
            .unwrap_or_else(|| PageAnswer { status: StatusCode::NOT_FOUND, ..PageAnswer::text("404 page not found\n") })
    } else {
        PageAnswer { status: StatusCode::METHOD_NOT_ALLOWED, ..PageAnswer::text("only GET and HEAD are served here\n") }
    };
    let length = answer.body.len();
    if request.method() == Method::HEAD {
        answer.body.clear();
    }
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(answer.content_type));
    headers.insert("x-content-type-options", header::HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    for (name, value) in answer.headers {
        headers.insert(name, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn endpoints() -> (Endpoints, Arc<AtomicBool>) {
        let endpoints = Endpoints::new();
        let healthy = Arc::new(AtomicBool::new(true));
        let flag = healthy.clone();
        endpoints.add_live_check("loop", move || {
            if flag.load(Ordering::Relaxed) { Ok(()) } else { Err("has not turned for 6m0s".into()) }
        });
        endpoints.add_ready_check("sources", || Err("the API has not been listed yet".into()));
        (endpoints, healthy)
    }

    #[test]
    fn checks_decide_the_status() {
        let (endpoints, healthy) = endpoints();
        let status = |path: &str| endpoints.answer(path, None).map(|answer| answer.status.as_u16());
        assert_eq!((status("/healthz"), status("/readyz"), status("/healthz/loop")), (Some(200), Some(500), Some(200)));
        assert_eq!((status("/healthz/none"), status("/debug/pprof")), (None, None));
        healthy.store(false, Ordering::Relaxed);
        let answer = endpoints.answer("/livez", None).unwrap();
        assert_eq!(answer.status.as_u16(), 500);
        assert!(answer.body.contains("[-]loop failed: has not turned for 6m0s"), "{}", answer.body);
    }

    #[test]
    fn verbose_lists_the_checks() {
        let (endpoints, _) = endpoints();
        assert_eq!(endpoints.answer("/healthz", Some("verbose")).unwrap().body, "[+]loop ok\nhealthz check passed\n");
    }

    #[tokio::test]
    async fn serves_over_tcp_until_cancelled() {
        let (endpoints, _) = endpoints();
        let counter = prometheus_client::metrics::counter::Counter::<u64>::default();
        endpoints.register(|registry| registry.register("tries", "Tries so far", counter.clone()));
        counter.inc();
        let server = HealthServer::bind("127.0.0.1:0".parse().unwrap(), endpoints).await.unwrap();
        let address = server.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.run(shutdown.clone()));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("tries_total 1"), "{text}");
        shutdown.cancel();
        task.await.unwrap();
    }
}
