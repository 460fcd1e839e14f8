//! Binds the sockets, then runs watches, server and publishing together.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hickory_server::Server;
use ipnet::IpNet;
use kube::Client;
use kube_common::serve::{Endpoints, HealthServer, ListenError};
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::RwLock;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::{DomainError, Zone};
use crate::forward::Forwarder;
use crate::forward::resolvers::Source;
use crate::handler::Handler;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::publish::{self, Published};
use crate::watch::{self, Shared};

/// A TCP client that says nothing for so long is cut off (CoreDNS: 10 s idle).
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Responses that may wait for a slow TCP client.
const TCP_BUFFER: usize = 32;
/// Room for datagrams that come in faster than they are answered; the kernel gives what its limit allows.
const RECEIVE_BUFFER: usize = 4 << 20;
/// How long requests under way may take after the end was asked for.
const DRAIN: Duration = Duration::from_secs(1);

/// What the server is to be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen, UDP and TCP.
    pub bind: SocketAddr,
    /// The cluster domain.
    pub domain: String,
    /// TTL of cluster names in seconds.
    pub ttl: u32,
    /// Whom to ask for other names.
    pub resolvers: Source,
    /// Ranges of addresses that only this cluster can have names for.
    pub ranges: Vec<IpNet>,
    /// How pods reach it; nothing is written to the API when `None`.
    pub published: Option<Published>,
    /// Where to serve `/metrics` beside the control plane's own page.
    pub metrics_bind: Option<SocketAddr>,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Not retryable.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// Retryable when another program still holds the port.
    #[error(
        "cannot listen on {address} ({transport}) for DNS: {source}; free the port, choose another address with --dns-bind-address, \
         or turn DNS off with --no-cluster-dns"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// UDP or TCP.
        transport: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Retryable when another program still holds the port.
    #[error(transparent)]
    Metrics(#[from] ListenError),
}

/// Why the server ended before it was told to. Start again: nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("the DNS server ended: {0}")]
pub struct RunError(#[from] hickory_server::net::NetError);

/// A server with its sockets, not yet answering.
pub struct Dns {
    config: Config,
    zone: Zone,
    udp: UdpSocket,
    tcp: TcpListener,
    metrics: Metrics,
    health: Option<HealthServer>,
}

/// Attempts to find a port that is free for both transports.
const BIND_ATTEMPTS: u32 = 20;

/// Sockets of both transports on one port; with port 0 any that is free for both.
async fn both(wanted: SocketAddr) -> Result<(UdpSocket, TcpListener), BindError> {
    let fail = |address, transport| move |source| BindError::Listen { address, transport, source };
    let mut attempt = 1;
    loop {
        let udp = UdpSocket::bind(wanted).await.map_err(fail(wanted, "UDP"))?;
        let address = udp.local_addr().map_err(fail(wanted, "UDP"))?;
        match TcpListener::bind(address).await {
            Ok(tcp) => return Ok((udp, tcp)),
            // UDP got a port that TCP has given away.
            Err(error) if wanted.port() == 0 && error.kind() == io::ErrorKind::AddrInUse && attempt < BIND_ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(fail(address, "TCP")(error)),
        }
    }
}

impl Dns {
    /// Binds the sockets and registers the metrics with `pages`.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(config: Config, pages: Option<&Endpoints>) -> Result<Self, BindError> {
        let addresses: Vec<IpAddr> = config.published.iter().map(|published| published.service_address).collect();
        let zone = Zone::new(&config.domain, config.ttl, addresses, config.ranges.clone())?;
        let (udp, tcp) = both(config.bind).await?;
        if let Err(error) = setsockopt(&udp, sockopt::RcvBuf, &RECEIVE_BUFFER) {
            tracing::debug!(%error, "the receive buffer of the DNS socket keeps its size");
        }
        let metrics = Metrics::default();
        if let Some(pages) = pages {
            metrics.register(pages);
        }
        let health = match config.metrics_bind {
            Some(address) => {
                let own = Endpoints::new();
                metrics.register(&own);
                Some(HealthServer::bind(address, own).await?)
            }
            None => None,
        };
        Ok(Self { config, zone, udp, tcp, metrics, health })
    }

    /// The address bound, for both transports.
    ///
    /// # Errors
    /// The system's answer when the socket has no address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Serves names of the cluster behind `client` until cancelled.
    ///
    /// # Errors
    /// [`RunError`] when a socket broke.
    pub async fn run(self, client: Client, shutdown: CancellationToken) -> Result<(), RunError> {
        // Seconds since 1970 at the start, as CoreDNS counts: it grows from one run to the next.
        let serial = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
        let model = Model::new(u32::try_from(serial).unwrap_or(1));
        let shared = Shared { model: Arc::new(RwLock::new(model)), attention: Arc::new(Notify::new()) };
        let tracker = TaskTracker::new();
        let stop = shutdown.child_token();
        let _guard = stop.clone().drop_guard();
        watch::start(&client, &shared, &tracker, &stop);
        if let Some(published) = self.config.published.clone() {
            tracker.spawn(publish::keep(client, published, shared.clone(), stop.clone()));
        }
        let result = self.serve(Arc::clone(&shared.model), stop.clone()).await;
        stop.cancel();
        tracker.close();
        if tokio::time::timeout(DRAIN, tracker.wait()).await.is_err() {
            tracing::debug!("requests of the DNS server to the API were cut off");
        }
        result
    }

    /// Serves what `model` says, without an API server, until cancelled.
    ///
    /// # Errors
    /// [`RunError`] when a socket broke.
    pub async fn serve(self, model: Arc<RwLock<Model>>, shutdown: CancellationToken) -> Result<(), RunError> {
        let mut own = vec![self.config.bind];
        own.extend(self.udp.local_addr().ok());
        own.extend(self.config.published.iter().map(|p| SocketAddr::new(p.service_address, 53)));
        let handler = Handler {
            zone: self.zone,
            model,
            forwarder: Forwarder::new(self.config.resolvers, own, self.metrics.clone()),
            metrics: self.metrics,
            spin: AtomicU32::new(0),
        };
        let mut server = Server::new(handler);
        server.register_socket(self.udp);
        server.register_listener(self.tcp, TCP_IDLE, TCP_BUFFER);
        let health = async {
            match self.health {
                Some(health) => health.run(shutdown.clone()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = health => {}
            result = server.block_until_done() => return result.map_err(RunError::from),
        }
        // Those who still wait for a resolver are not waited for.
        let _ = tokio::time::timeout(DRAIN, server.shutdown_gracefully()).await;
        Ok(())
    }
}
