//! The HTTPS API of the node (port 10250).
//!
//! Every request is authenticated (client certificate, or token by TokenReview) and authorised
//! (SubjectAccessReview on `nodes/<subresource>`), `/healthz` too; without an explicit setting
//! nothing is open. Work is bounded: connections, requests, log streams, cached decisions. What the
//! node is doing comes through [`NodeView`].
//!
//! Upstream counterpart: `pkg/kubelet/server`.

pub mod authn;
pub mod authz;
mod cache;
mod connections;
mod container_logs;
mod routes;
mod streams;
#[cfg(test)]
mod tests;
pub mod tls;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::StatusCode;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use k8s_openapi::api::core::v1::Pod;
use keelson_streaming::remotecommand::Options as StreamOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use authn::{Authentication, User};
pub use authz::{Access, Authorization};
pub use tls::{TlsError, TlsFiles};

use authn::PeerCertificate;
use connections::{Connections, Limits, Place};
use routes::Router;

use crate::runtime::ExecOutput;

/// Requests at once, without log streams; more are answered with 429.
const MAX_REQUESTS: usize = 128;
/// Log requests at once; a follower holds its place until it ends.
const MAX_LOG_STREAMS: usize = 256;
/// A client that has not finished the TLS handshake by then is dropped.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// A client that has not sent its request's head by then is dropped.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// Streams of one HTTP/2 connection (rapid reset, CVE-2023-44487, is met by this and by `h2`'s own limits).
const MAX_H2_STREAMS: u32 = 100;
/// A request's head may be so big.
const MAX_HEAD: usize = 64 << 10;
/// Open connections are given this long at the end.
const DRAIN: Duration = Duration::from_secs(2);
/// After an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How the server is set up.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen, e.g. `0.0.0.0:10250`.
    pub address: SocketAddr,
    /// The node's name: what requests are authorised for.
    pub node_name: String,
    /// Certificate, key and client CA. Get a certificate with [`tls::ensure_serving_certificate`].
    pub tls: TlsFiles,
    /// Who may speak.
    pub authentication: Authentication,
    /// Who may do what.
    pub authorization: Authorization,
    /// A stream (exec, attach, port-forward) without any traffic for so long is ended.
    pub stream_idle: Duration,
}

/// What to put into a self-signed serving certificate.
#[derive(Debug, Clone)]
pub struct ServingNames {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses.
    pub addresses: Vec<IpAddr>,
    /// The folder for certificate and key (`/var/lib/kubelet/pki`).
    pub cert_dir: PathBuf,
}

/// A container's log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerLog {
    /// The file, as the runtime's `ContainerStatus.log_path` says.
    pub path: PathBuf,
    /// Whether the container still runs.
    pub running: bool,
}

/// The node could not answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ViewError {
    /// The runtime does not know the container.
    #[error("container {id:?} is not known to the runtime")]
    NoContainer {
        /// Its ID.
        id: String,
    },
    /// The runtime did not answer.
    #[error("the container runtime does not answer: {message}")]
    Runtime {
        /// Its error.
        message: String,
    },
    /// This agent does not have it.
    #[error("{what} is not served by this agent yet")]
    NotServed {
        /// What was asked for.
        what: &'static str,
    },
}

/// Where a pod's ports are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodNetwork {
    /// In the node's own network namespace.
    Host,
    /// In this one.
    Namespace(PathBuf),
}

/// What the server shows of the node. Implemented by the agent's core.
pub trait NodeView: Send + Sync + 'static {
    /// Every pod that the node wants, with the newest status.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// One of them, with the newest status (a mirror pod's name leads to its static pod).
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;

    /// The log of a container by its runtime ID.
    fn container_log<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerLog, ViewError>>;

    /// A future that is ready when the container has ended; `None` if the node cannot tell, then
    /// [`Self::container_log`] is asked once a second.
    fn container_ended(&self, container_id: &str) -> Option<BoxFuture<'static, ()>> {
        let _ = container_id;
        None
    }

    /// Where the runtime serves the streams of a new command in a container.
    fn exec_url<'a>(
        &'a self,
        container_id: &'a str,
        command: Vec<String>,
        options: StreamOptions,
    ) -> BoxFuture<'a, Result<String, ViewError>> {
        let _ = (container_id, command, options);
        Box::pin(async { Err(ViewError::NotServed { what: "/exec" }) })
    }

    /// Where the runtime serves the streams of a container's own process.
    fn attach_url<'a>(
        &'a self,
        container_id: &'a str,
        options: StreamOptions,
    ) -> BoxFuture<'a, Result<String, ViewError>> {
        let _ = (container_id, options);
        Box::pin(async { Err(ViewError::NotServed { what: "/attach" }) })
    }

    /// Runs a command in a container to its end.
    fn run<'a>(&'a self, container_id: &'a str, command: Vec<String>) -> BoxFuture<'a, Result<ExecOutput, ViewError>> {
        let _ = (container_id, command);
        Box::pin(async { Err(ViewError::NotServed { what: "/run" }) })
    }

    /// Where a pod's ports are.
    fn pod_network<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<PodNetwork, ViewError>> {
        let _ = pod;
        Box::pin(async { Err(ViewError::NotServed { what: "/portForward" }) })
    }

    /// Metrics in OpenMetrics text form.
    fn metrics(&self) -> String;

    /// The configuration in use, as upstream's `KubeletConfiguration`.
    fn config(&self) -> serde_json::Value;

    /// Whether the node is well; `Err` says what is not.
    ///
    /// # Errors
    /// What is wrong.
    fn healthz(&self) -> Result<(), String>;

    /// The pods that the runtime runs.
    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, ViewError>> {
        Box::pin(async { Err(ViewError::NotServed { what: "/runningpods" }) })
    }

    /// The `stats/summary` document.
    fn stats_summary(&self) -> BoxFuture<'_, Result<serde_json::Value, ViewError>> {
        Box::pin(async { Err(ViewError::NotServed { what: "/stats/summary" }) })
    }
}

/// A server that could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken or not this node's.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Certificate, key or client CA.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Webhook authentication or authorisation without an API server.
    #[error(
        "{what} needs an API server: set kubeconfig, or choose authorization.mode AlwaysAllow and authentication.webhook.enabled false explicitly"
    )]
    NoApi {
        /// The setting.
        what: &'static str,
    },
}

/// A bound server, not yet serving.
pub struct Server {
    listener: TcpListener,
    router: Arc<Router>,
    tls: tls::Reloading,
    limits: Limits,
}

impl Server {
    /// Checks certificates and binds the address. `client` is for the webhooks.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(
        config: ServerConfig,
        view: Arc<dyn NodeView>,
        client: Option<kube::Client>,
    ) -> Result<Self, ServerError> {
        let tls = tls::Reloading::load(config.tls.clone())?;
        let router = Router::new(&config, view, client)?;
        let address = config.address;
        let listener = TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })?;
        Ok(Self { listener, router: Arc::new(router), tls, limits: Limits::default() })
    }

    /// The bound address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop`.
    pub async fn serve(self, stop: CancellationToken) {
        let connections = Connections::new(self.limits);
        let tracker = TaskTracker::new();
        loop {
            let accepted = async {
                let (stream, from) = self.listener.accept().await?;
                Ok::<_, std::io::Error>((stream, connections.place(from.ip()).await))
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, place)) => {
                    let acceptor = tokio_rustls::TlsAcceptor::from(self.tls.config());
                    let (router, stop) = (Arc::clone(&self.router), stop.clone());
                    tracker.spawn(async move {
                        tokio::select! {
                            () = connection(stream, acceptor, router, stop, Arc::clone(&place)) => {}
                            () = place.lost() => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the node API");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        tracker.close();
        let _ = tokio::time::timeout(DRAIN, tracker.wait()).await;
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: tokio_rustls::TlsAcceptor,
    router: Arc<Router>,
    stop: CancellationToken,
    place: Arc<Place>,
) {
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream));
    let stream = match handshake.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed on the node API");
            return;
        }
        Err(_) => return,
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let peer = certificates.and_then(|chain| PeerCertificate::parse(chain.first()?));
    if peer.is_some() {
        // The handshake has verified it.
        place.known();
    }
    let peer = Arc::new(peer);
    let ended = stop.clone();
    let service = service_fn(move |request| {
        let (router, peer, stop) = (Arc::clone(&router), Arc::clone(&peer), stop.clone());
        let place = Arc::clone(&place);
        async move {
            let answer = router.handle(request, &peer, stop).await;
            // Neither of them says that there were good credentials.
            if ![StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS].contains(&answer.status()) {
                place.known();
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(MAX_HEAD as u32)
        .keep_alive_interval(HEAD_DEADLINE);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = ended.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection to the node API ended");
    }
}
