//! Port-forward: each connection is a pair of streams, one for bytes and one for an error.
//!
//! Over SPDY (plain, or tunnelled in WebSocket) the client opens both with the headers `port` and `requestID`. Over WebSocket channels
//! (the older form, used by the Python client) the ports are in the query, port n has channels 2n and 2n+1, and each begins with the port
//! in two bytes. Half-closed connections stay open in the other direction. Upstream counterpart:
//! `k8s.io/kubelet/pkg/cri/streaming/portforward`.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_util::task::TaskTracker;

use crate::mux::{Link, Receiver, Sender};
use crate::spdy::{Connection, Limits, Role, Stream};
use crate::websocket::{ChannelCodec, Channels};

/// The protocol over SPDY.
pub const SPDY_PROTOCOLS: &[&str] = &["portforward.k8s.io"];
/// The protocol of SPDY in WebSocket.
pub const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// Protocols over WebSocket, the tunnel first.
pub const WEBSOCKET_PROTOCOLS: &[&str] =
    &[TUNNEL_PROTOCOL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io", ""];
/// The second stream of a pair has so long to follow the first (upstream's `DefaultStreamCreationTimeout`).
const PAIR_LIMIT: Duration = Duration::from_secs(30);
/// Bytes read from a connection at once.
const PIECE: usize = 32 << 10;
/// Connections of one channel client: the ports in its query.
const MAX_PORTS: usize = 100;

/// A connection that a client wants.
#[derive(Debug)]
pub struct Pair {
    /// The port in the pod.
    pub port: u16,
    /// What the client sends.
    pub input: Receiver,
    /// What the client reads.
    pub output: Sender,
    /// Where an error is told.
    pub error: Sender,
}

/// Gives the two halves of a new connection to a port.
pub trait Dial: Clone + Send + Sync + 'static {
    /// The connection.
    type Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Connects to a port of the pod; the error is for the person at the client.
    fn dial(&self, port: u16) -> impl Future<Output = Result<Self::Connection, String>> + Send;
}

async fn read_all(from: &mut (impl AsyncRead + Unpin), to: &Sender) -> std::io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        if from.read_buf(&mut buffer).await? == 0 || to.send(buffer.split().freeze()).await.is_err() {
            return Ok(());
        }
    }
}

/// When a connection is over.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// When both directions have ended.
    Both,
    /// When the pod has closed its half: channels cannot tell a client so, only the end of all of them can.
    Back,
}

/// Serves one connection of a client to its end.
async fn forward<D: Dial>(pair: Pair, dialer: D, ending: Ending) {
    let Pair { port, mut input, output, error } = pair;
    let connection = match dialer.dial(port).await {
        Ok(connection) => connection,
        Err(message) => {
            let _ = error.send(message.into()).await;
            error.finish().await;
            output.finish().await;
            return;
        }
    };
    let (mut reading, mut writing) = tokio::io::split(connection);
    let there = async {
        while let Some(bytes) = input.recv().await {
            // A pod that reads no more may still write: the other direction says how it is.
            if writing.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = writing.shutdown().await;
    };
    let back = async {
        let result = read_all(&mut reading, &output).await;
        output.finish().await;
        // A reset is how programs end connections; only what a person should know is told.
        if let Err(problem) = result
            && problem.kind() != std::io::ErrorKind::ConnectionReset
        {
            let _ = error.send(format!("error forwarding port {port} to the pod: {problem}").into()).await;
        }
        // kubectl closes its local connection only after the end of both streams.
        error.finish().await;
    };
    match ending {
        // Each direction ends by itself.
        Ending::Both => {
            tokio::join!(there, back);
        }
        Ending::Back => {
            tokio::select! {
                () = back => {}
                () = async { there.await; std::future::pending().await } => {}
            }
        }
    }
}

/// The half of a pair that came first.
struct Half {
    stream: Stream,
    is_error: bool,
    since: Instant,
}

/// What makes a pair of two streams: the request's number or, with clients of Kubernetes 1.0, the number of the error stream.
fn pair_key(stream: &Stream, is_error: bool) -> String {
    match stream.headers.get("requestID") {
        Some(id) => id.to_owned(),
        None if is_error => format!("#{}", stream.id),
        None => format!("#{}", stream.id.saturating_sub(2)),
    }
}

/// Serves a SPDY client until it goes; `limits.streams` bounds its connections at once.
pub async fn serve_spdy<T, D>(transport: T, dialer: D, limits: Limits)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    D: Dial,
{
    let mut connection = Connection::new(transport, Role::Server, limits);
    let gone = connection.link().gone();
    let tasks = TaskTracker::new();
    let mut waiting: HashMap<String, Half> = HashMap::new();
    loop {
        let oldest = waiting.values().map(|half| half.since).min();
        let stream = tokio::select! {
            stream = connection.accept() => stream,
            () = expiry(oldest) => {
                waiting.retain(|_, half| half.since.elapsed() < PAIR_LIMIT);
                continue;
            }
        };
        let Some(stream) = stream else { break };
        let Some(pair) = matched(&mut waiting, stream).await else { continue };
        let (work, gone) = (forward(pair, dialer.clone(), Ending::Both), connection.link().gone());
        tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = gone => {}
            }
        });
    }
    gone.await;
    tasks.close();
    tasks.wait().await;
}

async fn expiry(oldest: Option<Instant>) {
    match oldest {
        Some(since) => tokio::time::sleep_until(since + PAIR_LIMIT).await,
        None => std::future::pending().await,
    }
}

/// Finds the other half of a pair, or keeps this one until it comes. A stream that makes no sense is told so and dropped.
async fn matched(waiting: &mut HashMap<String, Half>, stream: Stream) -> Option<Pair> {
    let refuse = async |stream: Stream, why: String| {
        tracing::debug!("{why}");
        let _ = stream.sender.send(why.into()).await;
        stream.sender.finish().await;
    };
    let is_error = match stream.headers.get("streamType") {
        Some("error") => true,
        Some("data") => false,
        other => {
            let why = format!("invalid stream type {other:?}");
            refuse(stream, why).await;
            return None;
        }
    };
    let port = stream.headers.get("port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port != 0);
    let Some(port) = port else {
        let why = format!("{:?} is no valid port", stream.headers.get("port"));
        refuse(stream, why).await;
        return None;
    };
    let key = pair_key(&stream, is_error);
    match waiting.remove(&key) {
        Some(other) if other.is_error != is_error => {
            let (error, data) = if is_error { (stream, other.stream) } else { (other.stream, stream) };
            Some(Pair { port, input: data.receiver, output: data.sender, error: error.sender })
        }
        _ => {
            waiting.insert(key, Half { stream, is_error, since: Instant::now() });
            None
        }
    }
}

/// The ports of a channel client's query that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    /// None.
    #[error("query parameter \"port\" is required")]
    Missing,
    /// No number.
    #[error("unable to parse {0:?} as a port")]
    Invalid(String),
    /// More than [`MAX_PORTS`].
    #[error("more than {MAX_PORTS} ports")]
    TooMany,
}

/// Reads the values of the query parameter `port`, each of which may hold several.
///
/// # Errors
/// [`PortsError`].
pub fn ports<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Vec<u16>, PortsError> {
    let parse = |text: &str| match text.parse::<u16>() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(PortsError::Invalid(text.to_owned())),
    };
    let all: Vec<u16> = values.into_iter().flat_map(|value| value.split(',')).map(parse).collect::<Result<_, _>>()?;
    match all.len() {
        0 => Err(PortsError::Missing),
        count if count > MAX_PORTS => Err(PortsError::TooMany),
        _ => Ok(all),
    }
}

/// Serves a channel client that speaks `protocol` until it goes: one connection for each of `ports`.
pub async fn serve_channels<T, D>(socket: WebSocketStream<T>, protocol: &str, ports: &[u16], dialer: D, idle: Duration)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    D: Dial,
{
    let codec = ChannelCodec { base64: protocol.contains("base64."), half_close: false };
    let inputs: Vec<u8> = (0..ports.len()).map(|at| 2 * at as u8).collect();
    let mut channels = Channels::new(socket, codec, &inputs, idle);
    let tasks = TaskTracker::new();
    for (port, channel) in ports.iter().zip(inputs) {
        let Some(input) = channels.input(channel) else { continue };
        let (output, error) = (channels.output(channel), channels.output(channel + 1));
        let first = Bytes::copy_from_slice(&port.to_le_bytes());
        // A client that has gone is noticed below.
        let _ = output.send(first.clone()).await;
        let _ = error.send(first).await;
        tasks.spawn(forward(Pair { port: *port, input, output, error }, dialer.clone(), Ending::Back));
    }
    let link: Link = channels.into_link();
    tasks.close();
    tokio::select! {
        () = tasks.wait() => {}
        () = link.gone() => {}
    }
    link.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_query() {
        assert_eq!(ports(["80,443", "8080"]), Ok(vec![80, 443, 8080]));
        assert_eq!(ports([]), Err(PortsError::Missing));
        assert_eq!(ports(["80,x"]), Err(PortsError::Invalid("x".into())));
        assert_eq!(ports(["0"]), Err(PortsError::Invalid("0".into())));
        let many = vec!["1"; 101].join(",");
        assert_eq!(ports([many.as_str()]), Err(PortsError::TooMany));
    }
}
