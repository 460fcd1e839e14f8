//! Port-forward: connections to localhost inside the pod's network namespace.
//!
//! A socket belongs to the namespace it was made in, so a thread of its own enters, makes the sockets and ends; connecting and copying
//! happen outside. Nothing else ever runs in a foreign namespace.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::{BodyExt as _, Empty};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use keelson_streaming::portforward::{self, Dial};
use keelson_streaming::spdy::Limits;
use keelson_streaming::upgrade::{self, Wanted};
use keelson_streaming::websocket::{self, Tunnel, WebSocketRole};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

use super::{Context, refused};
use crate::server::routes::{Answer, text};
use crate::server::{PodNetwork, ViewError};

/// Streams of one client at once: 500 connections.
const MAX_STREAMS: usize = 1000;
/// Localhost answers at once, unless a rule drops what is sent to it.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Answers the request and leaves the rest to a task.
pub(super) async fn answer(context: Context, wanted: Wanted, query: &[(String, String)], upgrade: OnUpgrade) -> Answer {
    let (offered, spoken, default) = match &wanted {
        Wanted::Spdy(offered) => (offered, portforward::SPDY_PROTOCOLS, portforward::SPDY_PROTOCOLS[0]),
        Wanted::WebSocket(offer) => (&offer.protocols, portforward::WEBSOCKET_PROTOCOLS, ""),
    };
    let protocol = match upgrade::negotiate(offered, spoken, default) {
        Ok(protocol) => protocol,
        Err(error) => return refused(&error),
    };
    let channels = matches!(wanted, Wanted::WebSocket(_)) && protocol != portforward::TUNNEL_PROTOCOL;
    let ports = if channels {
        let values = query.iter().filter(|(key, _)| key == "port").map(|(_, value)| value.as_str());
        match portforward::ports(values) {
            Ok(ports) => ports,
            Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
        }
    } else {
        Vec::new()
    };
    let network = match context.view.pod_network(&context.pod).await {
        Ok(network) => network,
        Err(error @ ViewError::NotServed { .. }) => return text(StatusCode::NOT_IMPLEMENTED, error.to_string()),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let answer = upgrade::switch(&wanted, protocol);
    tokio::spawn(async move {
        let Context { idle, stop, place, .. } = context;
        let dialer = Dialer(Arc::new(network));
        let limits = Limits { streams: MAX_STREAMS, idle };
        let session = async {
            let Ok(upgraded) = upgrade.await else { return };
            let transport = TokioIo::new(upgraded);
            if let Wanted::Spdy(_) = wanted {
                return portforward::serve_spdy(transport, dialer, limits).await;
            }
            let socket = websocket::stream(transport, WebSocketRole::Server).await;
            if channels {
                portforward::serve_channels(socket, protocol, &ports, dialer, idle).await;
            } else {
                portforward::serve_spdy(Tunnel::new(socket), dialer, limits).await;
            }
        };
        tokio::select! {
            () = Box::pin(session) => {}
            () = stop.cancelled() => {}
        }
        drop(place);
    });
    answer.map(|()| Empty::new().map_err(|never| match never {}).boxed())
}

/// Dials in a pod.
#[derive(Debug, Clone)]
struct Dialer(Arc<PodNetwork>);

impl Dial for Dialer {
    type Connection = TcpStream;

    async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        let [first, second] = match &*self.0 {
            PodNetwork::Host => sockets().map_err(|error| format!("cannot make a socket: {error}"))?,
            PodNetwork::Namespace(path) => sockets_in(path.clone())
                .await
                .map_err(|error| format!("cannot enter the pod's network namespace {}: {error}", path.display()))?,
        };
        // A program may listen to one family only.
        let v4 = match connect(first, (Ipv4Addr::LOCALHOST, port).into()).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let v6 = match connect(second, (Ipv6Addr::LOCALHOST, port).into()).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        Err(format!("failed to connect to localhost:{port} inside the pod, IPv4: {v4}, IPv6: {v6}"))
    }
}

async fn connect(made: Option<OwnedFd>, to: SocketAddr) -> std::io::Result<TcpStream> {
    let made = made.ok_or(std::io::ErrorKind::Unsupported)?;
    let connecting = TcpSocket::from_std_stream(made.into()).connect(to);
    let connection =
        tokio::time::timeout(CONNECT_LIMIT, connecting).await.map_err(|_| std::io::ErrorKind::TimedOut)??;
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// A socket of each family; a kernel without IPv6 has one.
fn sockets() -> nix::Result<[Option<OwnedFd>; 2]> {
    let make = |family| socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None);
    Ok([Some(make(AddressFamily::Inet)?), make(AddressFamily::Inet6).ok()])
}

async fn sockets_in(path: PathBuf) -> std::io::Result<[Option<OwnedFd>; 2]> {
    fn enter(path: &Path) -> std::io::Result<[Option<OwnedFd>; 2]> {
        setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
        Ok(sockets()?)
    }
    let (made, waiting) = oneshot::channel();
    std::thread::Builder::new().name("pod-socket".to_owned()).spawn(move || {
        // Nobody waits any more: the sockets are closed.
        let _ = made.send(enter(&path));
    })?;
    waiting.await.unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()))
}
