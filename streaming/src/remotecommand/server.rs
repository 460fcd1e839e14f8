//! The server's half: streams or channels to a [`Session`].

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Options, Status};
use crate::mux::{Link, Receiver, Sender};
use crate::spdy::{Connection, Limits, Role, Stream};
use crate::websocket::{ChannelCodec, Channels};

/// The client has so long to open its streams (upstream's `DefaultStreamCreationTimeout`).
const STREAMS_LIMIT: Duration = Duration::from_secs(30);
/// More streams than there are kinds are refused.
const MAX_STREAMS: usize = 8;

/// A client that did not do its part. Not retryable by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// Streams are missing.
    #[error("the client did not open its streams within {} s", STREAMS_LIMIT.as_secs())]
    Timeout,
    /// It went away.
    #[error("the client went away before it opened its streams")]
    Gone,
}

/// How the status is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// As JSON (versions 4 and 5).
    Json,
    /// As text, when the command failed.
    Text,
}

/// A client that waits for a command.
#[derive(Debug)]
pub struct Session {
    /// What it sends.
    pub stdin: Option<Receiver>,
    /// Sizes of its terminal, in JSON.
    pub resize: Option<Receiver>,
    /// What it reads.
    pub stdout: Option<Sender>,
    /// What it reads, apart.
    pub stderr: Option<Sender>,
    status: Sender,
    telling: Telling,
    link: Link,
}

/// The streams that arrived so far.
#[derive(Default)]
struct Arrived {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Arrived {
    /// Files a stream by its type; those that are not wanted are dropped.
    fn add(&mut self, stream: Stream) {
        let place = match stream.headers.get("streamType") {
            Some("error") => &mut self.error,
            Some("stdin") => &mut self.stdin,
            Some("stdout") => &mut self.stdout,
            Some("stderr") => &mut self.stderr,
            Some("resize") => &mut self.resize,
            other => {
                tracing::debug!(kind = other, "a stream of an unknown type was ignored");
                return;
            }
        };
        *place = Some(stream);
    }

    fn complete(&self, options: Options, resizes: bool) -> bool {
        let has = |wanted: bool, stream: &Option<Stream>| !wanted || stream.is_some();
        self.error.is_some()
            && has(options.stdin, &self.stdin)
            && has(options.stdout, &self.stdout)
            && has(options.stderr, &self.stderr)
            && has(resizes, &self.resize)
    }
}

impl Session {
    /// Waits for the streams of a SPDY client that speaks `protocol`.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub async fn spdy<T>(transport: T, protocol: &str, options: Options, idle: Duration) -> Result<Self, AcceptError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut connection = Connection::new(transport, Role::Server, Limits { streams: MAX_STREAMS, idle });
        let resizes = options.tty && matches!(protocol, "v3.channel.k8s.io" | "v4.channel.k8s.io");
        let telling = if protocol == "v4.channel.k8s.io" { Telling::Json } else { Telling::Text };
        let collect = async {
            let mut arrived = Arrived::default();
            while !arrived.complete(options, resizes) {
                arrived.add(connection.accept().await.ok_or(AcceptError::Gone)?);
            }
            Ok(arrived)
        };
        let arrived = tokio::time::timeout(STREAMS_LIMIT, collect).await.map_err(|_| AcceptError::Timeout)??;
        Ok(Self {
            stdin: arrived.stdin.map(|stream| stream.receiver).filter(|_| options.stdin),
            resize: arrived.resize.map(|stream| stream.receiver),
            stdout: arrived.stdout.map(|stream| stream.sender).filter(|_| options.stdout),
            stderr: arrived.stderr.map(|stream| stream.sender).filter(|_| options.stderr),
            status: arrived.error.ok_or(AcceptError::Gone)?.sender,
            telling,
            link: connection.into_link(),
        })
    }

    /// The channels of a WebSocket client that speaks `protocol`.
    pub async fn websocket<T>(socket: WebSocketStream<T>, protocol: &str, options: Options, idle: Duration) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let codec = ChannelCodec { base64: protocol.contains("base64."), half_close: protocol.starts_with("v5.") };
        let later = protocol.starts_with("v4.") || protocol.starts_with("v5.");
        let mut channels = Channels::new(socket, codec, &[STDIN, RESIZE], idle);
        let session = Self {
            stdin: channels.input(STDIN).filter(|_| options.stdin),
            resize: channels.input(RESIZE).filter(|_| options.tty),
            stdout: options.stdout.then(|| channels.output(STDOUT)),
            stderr: options.stderr.then(|| channels.output(STDERR)),
            status: channels.output(ERROR),
            telling: if later { Telling::Json } else { Telling::Text },
            link: channels.into_link(),
        };
        // An empty message on the lowest channel says that the connection stands, as upstream does.
        let first = session.stdout.as_ref().or(session.stderr.as_ref()).unwrap_or(&session.status);
        let _ = first.send(bytes::Bytes::new()).await;
        session
    }

    /// Ready when the client has gone.
    pub fn gone(&self) -> WaitForCancellationFutureOwned {
        self.link.gone()
    }

    /// Tells how the command ended, and ends the connection in order.
    pub async fn finish(self, status: &Status) {
        let words = match self.telling {
            Telling::Json => Some(status.to_json()),
            Telling::Text => status.to_text(),
        };
        if let Some(words) = words {
            // A client that has gone need not know.
            let _ = self.status.send(words).await;
        }
        self.status.finish().await;
        drop((self.stdin, self.resize, self.stdout, self.stderr));
        self.link.close().await;
    }
}

/// Numbers of the channels.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
