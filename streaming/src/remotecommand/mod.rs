//! Exec and attach: standard streams, a status, the size of a terminal.
//!
//! The server's half is a [`Session`], made from a SPDY connection or a WebSocket; the client's half (towards a container runtime) is a
//! [`Command`]. [`bridge`] joins the two. Upstream counterparts: `k8s.io/kubelet/pkg/cri/streaming/remotecommand`, and client-go's
//! `tools/remotecommand`.

mod client;
mod server;
mod status;

use std::time::Duration;

use futures::future::{Either, select};

pub use self::client::{Command, CommandError};
pub use self::server::{AcceptError, Session};
pub use self::status::Status;
use crate::mux::{Receiver, Sender, pump};

/// SPDY protocols of a server, newest first.
pub const SPDY_PROTOCOLS: &[&str] = &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
/// WebSocket protocols of a server. An empty one is what a client gets that names none.
pub const WEBSOCKET_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];
/// The SPDY protocol of clients that name none.
pub const SPDY_DEFAULT: &str = "channel.k8s.io";
/// After a command's end its last output may take so long (upstream waits without a bound, which a child that keeps the pipe open abuses).
const OUTPUT_GRACE: Duration = Duration::from_secs(10);

/// Which streams are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; never with a terminal.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// No stream is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("you must specify at least 1 of stdin, stdout, stderr")]
pub struct NoStreams;

impl Options {
    /// Reads the kubelet's query parameters (`input`, `output`, `error`, `tty`); only `1` is yes, as upstream.
    ///
    /// # Errors
    /// [`NoStreams`].
    pub fn from_query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, NoStreams> {
        let mut options = Self::default();
        let mut seen = Vec::new();
        for (key, value) in pairs {
            let field = match key {
                "input" => &mut options.stdin,
                "output" => &mut options.stdout,
                "error" => &mut options.stderr,
                "tty" => &mut options.tty,
                _ => continue,
            };
            // The first value counts.
            if !seen.contains(&key) {
                *field = value == "1";
                seen.push(key);
            }
        }
        // A terminal has one output.
        options.stderr &= !options.tty;
        if !(options.stdin || options.stdout || options.stderr) {
            return Err(NoStreams);
        }
        Ok(options)
    }
}

async fn joined(from: Option<Receiver>, to: Option<Sender>) {
    match (from, to) {
        (Some(from), Some(to)) => pump(from, to).await,
        (Some(mut from), None) => while from.recv().await.is_some() {},
        (None, _) => {}
    }
}

/// Joins a client's session with a running command until the command ends or the client goes. Gives whether the client heard the end.
///
/// When the client goes, the command's connection is dropped, by which the runtime closes the command's standard input.
pub async fn bridge(mut client: Session, mut command: Command) -> bool {
    let input = joined(client.stdin.take(), command.stdin.take());
    let sizes = joined(client.resize.take(), command.resize.take());
    let output = joined(command.stdout.take(), client.stdout.take());
    let errors = joined(command.stderr.take(), client.stderr.take());
    let outputs = async { tokio::join!(output, errors) };
    let work = async {
        let (mut outputs, mut status) = (std::pin::pin!(outputs), std::pin::pin!(command.outcome()));
        match select(outputs.as_mut(), status.as_mut()).await {
            Either::Left(_) => status.await,
            Either::Right((status, _)) => {
                let _ = tokio::time::timeout(OUTPUT_GRACE, outputs).await;
                status
            }
        }
    };
    let inputs = async {
        tokio::join!(input, sizes);
        std::future::pending::<()>().await;
    };
    let gone = client.gone();
    let status = tokio::select! {
        status = work => status,
        () = gone => return false,
        () = inputs => return false,
    };
    client.finish(&status).await;
    command.close().await;
    true
}
