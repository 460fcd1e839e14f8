//! The client's half, over SPDY: towards the streaming server of a container runtime.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{Options, SPDY_DEFAULT, SPDY_PROTOCOLS, Status};
use crate::mux::{Link, Receiver, Sender};
use crate::spdy::{Connection, Headers, Limits, OpenError, Role};
use crate::upgrade::{self, ClientError};

/// A status is read up to this.
const MAX_STATUS: usize = 64 << 10;
/// The runtime opens no streams.
const NO_STREAMS: usize = 0;

/// A command could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The upgrade failed.
    #[error(transparent)]
    Upgrade(#[from] ClientError),
    /// A stream was not accepted.
    #[error("the container runtime does not take the stream {kind}: {source}")]
    Stream {
        /// Its type.
        kind: &'static str,
        /// Why.
        source: OpenError,
    },
}

/// A command that runs, as its client sees it.
#[derive(Debug)]
pub struct Command {
    /// What it reads.
    pub stdin: Option<Sender>,
    /// Sizes of its terminal, in JSON.
    pub resize: Option<Sender>,
    /// What it writes.
    pub stdout: Option<Receiver>,
    /// What it writes, apart.
    pub stderr: Option<Receiver>,
    status: Receiver,
    /// Whether the status comes as JSON.
    json: bool,
    link: Link,
}

impl Command {
    /// Upgrades `url`, as a runtime gave it, and opens the streams.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn connect(url: &str, options: Options, idle: Duration) -> Result<Self, CommandError> {
        let (transport, protocol) = upgrade::spdy_client(url, SPDY_PROTOCOLS).await?;
        let protocol = if protocol.is_empty() { SPDY_DEFAULT } else { protocol.as_str() };
        Self::open(transport, protocol, options, idle).await
    }

    /// Opens the streams on a transport after its upgrade.
    ///
    /// # Errors
    /// [`CommandError::Stream`].
    pub async fn open<T>(transport: T, protocol: &str, options: Options, idle: Duration) -> Result<Self, CommandError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut connection = Connection::new(transport, Role::Client, Limits { streams: NO_STREAMS, idle });
        let resizes = options.tty && matches!(protocol, "v3.channel.k8s.io" | "v4.channel.k8s.io");
        // Upstream's order.
        let kinds = [
            ("error", true),
            ("stdin", options.stdin),
            ("stdout", options.stdout),
            ("stderr", options.stderr),
            ("resize", resizes),
        ];
        let mut streams = [const { None }; 5];
        for (place, (kind, _)) in streams.iter_mut().zip(kinds).filter(|(_, (_, wanted))| *wanted) {
            let opened = connection.open(Headers::new([("streamType", kind)])).await;
            *place = Some(opened.map_err(|source| CommandError::Stream { kind, source })?);
        }
        let [error, stdin, stdout, stderr, resize] = streams;
        let missing = CommandError::Stream { kind: "error", source: OpenError::NoReply };
        let error = error.ok_or(missing)?;
        // Upstream's client finishes its half of the status at once.
        error.sender.finish().await;
        Ok(Self {
            stdin: stdin.map(|stream| stream.sender),
            resize: resize.map(|stream| stream.sender),
            stdout: stdout.map(|stream| stream.receiver),
            stderr: stderr.map(|stream| stream.receiver),
            status: error.receiver,
            json: protocol == SPDY_PROTOCOLS[0],
            link: connection.into_link(),
        })
    }

    /// How the command ended, at its end.
    ///
    /// A status in JSON is complete when it parses. Its stream's end is not waited for: containerd's library (moby/spdystream) locks up
    /// before it says so when there is input that the command did not read.
    pub async fn outcome(&mut self) -> Status {
        let mut said = Vec::new();
        while let Some(bytes) = self.status.recv().await {
            said.extend_from_slice(&bytes[..bytes.len().min(MAX_STATUS - said.len())]);
            if self.json && Status::is_complete(&said) {
                break;
            }
        }
        if !said.is_empty() {
            return Status::from_json(&said);
        }
        // The older versions say nothing of a success.
        if self.json { Status::lost() } else { Status::success() }
    }

    /// Ends the connection in order.
    pub async fn close(self) {
        self.link.close().await;
    }
}
