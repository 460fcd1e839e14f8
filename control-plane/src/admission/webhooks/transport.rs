//! HTTPS to webhooks, over connections that are kept.
//!
//! A webhook is a URL or a Service; a Service is reached at one of its ready endpoints, because no dataplane need run beside an API server,
//! with the Service's name in the handshake. The certificate is verified against `caBundle`, or the system's roots without one; redirects
//! are not followed. Upstream counterpart: `apiserver/pkg/util/webhook`.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::config::Hook;
use crate::api::connect::endpoint;
use crate::server::Server;

/// An answer may be as large as a request body.
const ANSWER_BYTES: usize = 3 << 20;
/// Idle connections to one webhook.
const IDLE: usize = 4;
/// How long one stays open unused.
const IDLE_TIME: Duration = Duration::from_secs(90);
/// Roots of the system, where Debian and its kin keep them.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Why a webhook gave no answer. Retryable.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("the webhook's clientConfig is unusable: {0}")]
    Config(String),
    #[error("Post {url:?}: {reason}")]
    Post { url: String, reason: String },
    #[error("the server responded with the status code {0}")]
    Status(u16),
}

/// How one webhook is reached.
pub(super) struct Client {
    url: Uri,
    service: Option<Arc<Service>>,
    tls: TlsConnector,
    /// Made with the first question, which brings the server.
    pool: Mutex<Option<Pool<Connector, Full<Bytes>>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A Service that stands for a webhook.
#[derive(Debug)]
struct Service {
    namespace: String,
    name: String,
    port: u16,
}

fn roots(bundle: &Value) -> Result<RootCertStore, String> {
    let pem = match bundle.as_str().filter(|text| !text.is_empty()) {
        Some(encoded) => STANDARD.decode(encoded).map_err(|error| format!("caBundle: {error}"))?,
        None => std::fs::read(SYSTEM_ROOTS).unwrap_or_default(),
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("caBundle: {error}"))?;
        roots.add(certificate).map_err(|error| format!("caBundle: {error}"))?;
    }
    Ok(roots)
}

impl Client {
    /// From a `clientConfig`.
    pub(super) fn read(config: &Value) -> Result<Self, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = config["service"].is_object().then(|| Service {
            namespace: text(&config["service"]["namespace"]),
            name: text(&config["service"]["name"]),
            port: config["service"]["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
        });
        let url = match &service {
            Some(of) => {
                let path = text(&config["service"]["path"]);
                let slash = if path.starts_with('/') { "" } else { "/" };
                format!("https://{}.{}.svc:{}{slash}{path}", of.name, of.namespace, of.port)
            }
            None => text(&config["url"]),
        };
        let url: Uri = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
        if url.scheme() != Some(&Scheme::HTTPS) || url.host().is_none() {
            return Err(format!("{url} is no https URL"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots(&config["caBundle"])?)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(tls));
        Ok(Self { url, service: service.map(Arc::new), tls, pool: Mutex::new(None) })
    }

    /// The URL without the time limit.
    pub(super) fn url(&self) -> String {
        self.url.to_string()
    }

    fn pool(&self, server: &Arc<Server>) -> Pool<Connector, Full<Bytes>> {
        let mut pool = self.pool.lock();
        let made = pool.get_or_insert_with(|| {
            let connector =
                Connector { server: Arc::downgrade(server), service: self.service.clone(), tls: self.tls.clone() };
            Pool::builder(TokioExecutor::new())
                .pool_max_idle_per_host(IDLE)
                .pool_idle_timeout(IDLE_TIME)
                .pool_timer(hyper_util::rt::TokioTimer::new())
                .build(connector)
        });
        made.clone()
    }
}

/// Posts a question and reads the answer.
pub(super) async fn post(server: &Arc<Server>, hook: &Hook, body: &[u8]) -> Result<Bytes, CallError> {
    let client = hook.client.as_ref().map_err(|reason| CallError::Config(reason.clone()))?;
    let url = hook.shown_url();
    let failed = |reason: String| CallError::Post { url: url.clone(), reason };
    let request = Request::post(&url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, */*")
        .header(header::USER_AGENT, "kube-apiserver-admission")
        .body(Full::new(Bytes::copy_from_slice(body)))
        .map_err(|error| failed(error.to_string()))?;
    let response = client.pool(server).request(request).await.map_err(|error| failed(causes(&error)))?;
    if !response.status().is_success() {
        return Err(CallError::Status(response.status().as_u16()));
    }
    let limited = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    limited.map(http_body_util::Collected::to_bytes).map_err(|error| failed(error.to_string()))
}

/// An error with what led to it; the outer ones say little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[derive(Clone)]
struct Connector {
    server: Weak<Server>,
    service: Option<Arc<Service>>,
    tls: TlsConnector,
}

impl Connector {
    async fn connect(self, url: Uri) -> std::io::Result<Tls> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
        let stream = match &self.service {
            Some(service) => {
                let server = self.server.upgrade().ok_or_else(|| std::io::Error::other("the server is stopping"))?;
                let port = service.port.to_string();
                let (host, port) = endpoint(&server, &service.namespace, &service.name, &port)
                    .map_err(|error| std::io::Error::other(error.message))?;
                TcpStream::connect((host, port)).await?
            }
            None => TcpStream::connect((host, url.port_u16().unwrap_or(443))).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Tls(TokioIo::new(self.tls.connect(name, stream).await?)))
    }
}

impl tower::Service<Uri> for Connector {
    type Response = Tls;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Tls>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        Box::pin(self.clone().connect(url))
    }
}

/// A TLS connection as the pool wants it.
struct Tls(TokioIo<TlsStream<TcpStream>>);

impl Connection for Tls {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Tls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Tls {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
