//! Connections to the etcd servers: one is used until it fails, then the next.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::wire::Client;
use super::{EtcdConfig, StoreError};

/// Longer and a server is taken to be away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a silent connection is tried; etcd takes more than one ping in 5 s for abuse.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long the answer to that may take.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request may take: a little more than etcd's own limit (5 s and two elections), so that it can say what it knows.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Least number of tries of a request that can be repeated; with the pauses a restart of etcd is bridged.
const TRIES: usize = 6;
/// Pause before another try, doubled each time.
const PAUSE: Duration = Duration::from_millis(50);
/// How much of an answer may be under way: lists are large.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// What etcd or the connection said.
    Status(Box<Status>),
    /// Nothing came within [`REQUEST_TIMEOUT`].
    Silent,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => {
                write!(f, "etcd: {}", status.message())?;
                // The layers between repeat each other; the last one knows why.
                let mut cause = std::error::Error::source(&**status);
                while let Some(deeper) = cause.and_then(std::error::Error::source) {
                    cause = Some(deeper);
                }
                cause.map_or(Ok(()), |cause| write!(f, ": {cause}"))
            }
            Self::Silent => write!(f, "etcd did not answer within {REQUEST_TIMEOUT:?}"),
        }
    }
}

impl Failure {
    fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            Self::Silent => None,
        }
    }

    fn says(&self, code: Code, words: &str) -> bool {
        self.status().is_some_and(|status| status.code() == code && status.message().contains(words))
    }

    pub(super) fn compacted(&self) -> bool {
        self.says(Code::OutOfRange, "has been compacted")
    }

    pub(super) fn future(&self) -> bool {
        self.says(Code::OutOfRange, "is a future revision")
    }

    pub(super) fn too_large(&self) -> bool {
        // The second is said by the layer below, of what is larger still.
        self.says(Code::InvalidArgument, "request is too large")
            || self.says(Code::ResourceExhausted, "larger than max")
    }

    pub(super) fn too_many(&self) -> bool {
        self.says(Code::InvalidArgument, "too many operations")
    }

    /// Whether it is certain that the request did nothing.
    pub(super) fn undone(&self) -> bool {
        let Some(status) = self.status() else { return false };
        match status.code() {
            Code::Unavailable => never_connected(status) || status.message().contains("no leader"),
            Code::InvalidArgument
            | Code::ResourceExhausted
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => true,
            _ => false,
        }
    }

    /// Whether another server, or this one later, may do better.
    fn transient(&self) -> bool {
        self.status().is_none_or(|status| {
            matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled)
        })
    }
}

fn never_connected(status: &Status) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

struct Server {
    url: String,
    client: Client,
}

/// All servers, and which one is used.
pub(super) struct Endpoints {
    servers: Vec<Server>,
    current: AtomicUsize,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.servers.iter().map(|server| &server.url)).finish()
    }
}

impl Endpoints {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let tls = tls(config)?;
        let mut servers = Vec::new();
        for url in &config.servers {
            let fail = |reason: String| StoreError::Endpoint { endpoint: url.clone(), reason };
            let channel = channel(url, tls.as_ref()).map_err(fail)?;
            servers.push(Server { url: url.clone(), client: Client::new(channel) });
        }
        if servers.is_empty() {
            let reason = "name at least one server, for instance http://127.0.0.1:2379".to_owned();
            return Err(StoreError::Endpoint { endpoint: "(none)".to_owned(), reason });
        }
        Ok(Self { servers, current: AtomicUsize::new(0) })
    }

    fn current(&self) -> (usize, &Server) {
        let at = self.current.load(Ordering::Relaxed) % self.servers.len();
        (at, &self.servers[at])
    }

    /// Turns away from a server; who comes second changes nothing.
    pub(super) fn failed(&self, at: usize) {
        let next = (at + 1) % self.servers.len();
        if next != at && self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(from = %self.servers[at].url, to = %self.servers[next].url, "another etcd server is used");
        }
    }

    /// The server in use, for what lasts; [`Endpoints::failed`] is to be told of its end.
    pub(super) fn client(&self) -> (usize, Client) {
        let (at, server) = self.current();
        (at, server.client.clone())
    }

    /// A request that may be repeated.
    pub(super) async fn read<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.attempt(call, Failure::transient).await
    }

    /// A request that must not happen twice: it is repeated only when it certainly did not happen.
    pub(super) async fn write<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.attempt(call, |failure| failure.transient() && failure.undone()).await
    }

    async fn attempt<T, F>(&self, call: impl Fn(Client) -> F, again: impl Fn(&Failure) -> bool) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut left = TRIES.max(2 * self.servers.len());
        let mut pause = PAUSE;
        loop {
            let (at, server) = self.current();
            let failure = match tokio::time::timeout(REQUEST_TIMEOUT, call(server.client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => Failure::Status(Box::new(status)),
                Err(_) => Failure::Silent,
            };
            if failure.transient() {
                self.failed(at);
            }
            left -= 1;
            if left == 0 || matches!(failure, Failure::Silent) || !again(&failure) {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

fn tls(config: &EtcdConfig) -> Result<Option<Arc<ClientConfig>>, StoreError> {
    let Some(first) = config.servers.iter().find(|url| url.starts_with("https://")) else { return Ok(None) };
    let fail = |reason: String| StoreError::Endpoint { endpoint: first.clone(), reason };
    let unreadable = |path: &Path, error: &dyn fmt::Display| fail(format!("{}: {error}", path.display()));
    let ca = config.ca_file.as_deref().ok_or_else(|| fail("https needs --etcd-cafile".to_owned()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|e| unreadable(ca, &e))? {
        roots.add(certificate.map_err(|e| unreadable(ca, &e))?).map_err(|e| unreadable(ca, &e))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| fail(e.to_string()))?
        .with_root_certificates(roots);
    let mut client = match (config.cert_file.as_deref(), config.key_file.as_deref()) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_file_iter(cert)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|e| unreadable(cert, &e))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, &e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| unreadable(cert, &e))?
        }
        _ => builder.with_no_client_auth(),
    };
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(Arc::new(client)))
}

fn channel(url: &str, tls: Option<&Arc<ClientConfig>>) -> Result<Channel, String> {
    let uri: Uri = url.parse().map_err(|e| format!("{e}"))?;
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host().map(str::to_owned)) else {
        return Err("expected http://HOST:PORT or https://HOST:PORT".to_owned());
    };
    let secure = match scheme {
        "http" => None,
        "https" => tls.cloned(),
        other => return Err(format!("the scheme {other} is not known; expected http or https")),
    };
    let port = uri.port_u16().unwrap_or(2379);
    let endpoint = Endpoint::from(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .keep_alive_while_idle(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let Some(config) = secure else {
        return Ok(endpoint.connect_lazy());
    };
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|e| e.to_string())?;
    let connector = TlsConnector::from(config);
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let (host, name, connector) = (host.clone(), name.clone(), connector.clone());
        async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            connector.connect(name, stream).await.map(TokioIo::new)
        }
    })))
}
