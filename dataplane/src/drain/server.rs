//! The socket of the drain.
//!
//! Only root may ask. Lines, time and connections are bounded, so that a client that stalls, floods or talks nonsense costs its own connection
//! alone. The file stays when the dataplane ends, as the rules in the kernel do: by it the agent knows that the dataplane of this node is ours and
//! comes back. The next start puts its own in the place of one at which nobody listens.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::book::{LIFE, Request, asked};
use super::protocol::{self, Answer};

/// The socket, unless the configuration names another.
pub const DEFAULT_SOCKET: &str = "/run/keelson/dataplane.sock";
/// What fits into a socket's address (108 bytes with the final zero), less the ending `.new`.
const PATH_LIMIT: usize = 103;
/// Connections at once: several times the pods of a node, all of which may end together.
const CONNECTIONS: usize = 512;
/// How long a client may take to send its question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take to read an answer. The kernel's buffer takes all there ever are.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed accept (out of descriptors), so that it does not become a busy loop.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What is wrong with a path for the socket, if anything is.
#[must_use]
pub fn path_problem(path: &str) -> Option<String> {
    if !path.starts_with('/') || path.ends_with('/') {
        return Some(format!("{path:?} is not the absolute path of a file"));
    }
    let long = path.len() > PATH_LIMIT;
    long.then(|| format!("{path:?} is longer than the {PATH_LIMIT} bytes that fit into a socket's address"))
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("{}: another dataplane answers there; stop it first, or set keelson.drainSocket", .0.display())]
    Taken(PathBuf),
    /// Something else lies there.
    #[error("{}: there is something that is no socket; remove it, or set keelson.drainSocket", .0.display())]
    NoSocket(PathBuf),
    /// The kernel refused.
    #[error("cannot listen on {}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Whether a socket lies there at which nobody listens (true), or nothing does.
fn is_stale(path: &Path) -> Result<bool, SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        // Also when its queue is full: somebody is there.
        _ => Err(SocketError::Taken(path.to_owned())),
    }
}

/// Listens at `path`; the socket of a predecessor that is gone is replaced in one step.
///
/// # Errors
/// See [`SocketError`].
pub fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    is_stale(path)?;
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
    }
    // Nobody can ask before the file has its mode, and nobody ever finds it missing.
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&new).map_err(failed)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    Ok(listener)
}

/// Removes the socket of a dataplane that is gone for good; says whether there was one.
///
/// # Errors
/// See [`SocketError`]; a dataplane that runs keeps its socket.
pub fn remove_stale(path: &Path) -> Result<bool, SocketError> {
    if !is_stale(path)? {
        return Ok(false);
    }
    std::fs::remove_file(path).map_err(|source| SocketError::Io { path: path.to_owned(), source })?;
    Ok(true)
}

/// Serves until `stop`; questions go to the loop.
pub async fn serve(listener: UnixListener, requests: mpsc::Sender<Request>, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            let why = format!("{CONNECTIONS} others are asking; ask again later");
            // An empty buffer takes it without waiting.
            let _ = stream.try_write(&protocol::answer(&Answer::Refused { why }));
            continue;
        };
        let (requests, stop) = (requests.clone(), stop.clone());
        tokio::spawn(async move {
            let connection = async {
                let mut stream = BufReader::new(stream);
                match question(&mut stream).await {
                    Ok(uid) => follow(stream, uid, &requests).await,
                    Err(why) => drop(say(&mut stream, &Answer::Refused { why }).await),
                }
            };
            stop.run_until_cancelled(connection).await;
            drop(slot);
        });
    }
}

/// Reads the question; an error is what to say of it.
async fn question(stream: &mut BufReader<UnixStream>) -> Result<Box<str>, String> {
    // The mode of the file says so already; whoever inherited a descriptor is asked here.
    let own = std::fs::metadata("/proc/self").map_or(0, |own| own.uid());
    if stream.get_ref().peer_cred().ok().is_none_or(|peer| peer.uid() != 0 && peer.uid() != own) {
        return Err("only root may ask".to_owned());
    }
    let mut line = Vec::new();
    match tokio::time::timeout(QUESTION_TIMEOUT, protocol::read_line(stream, &mut line)).await {
        Ok(Ok(true)) => protocol::read_question(&line).map_err(|error| error.to_string()),
        Ok(Ok(false)) => Err("the question has no end: a line ends with a line feed".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no question within {} s", QUESTION_TIMEOUT.as_secs())),
    }
}

/// Tells what is known of the pod until nothing more is to be told.
async fn follow(mut stream: BufReader<UnixStream>, uid: Box<str>, requests: &mpsc::Sender<Request>) {
    let (answers, mut news) = watch::channel(asked());
    // A loop that is busy with a sync takes it afterwards.
    if requests.send(Request { uid, answers }).await.is_err() {
        return;
    }
    let telling = async {
        // Silence until something is known: whoever asks must not take a busy loop for an answer.
        loop {
            let mut rest = Vec::new();
            tokio::select! {
                changed = news.changed() => if changed.is_err() { return },
                // Whatever the client sends now says that it is gone, or has not understood.
                _ = protocol::read_line(&mut stream, &mut rest) => return,
            }
            let answer = news.borrow_and_update().clone();
            if say(&mut stream, &answer).await.is_err() || answer.is_final() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(LIFE, telling).await;
}

async fn say(stream: &mut BufReader<UnixStream>, answer: &Answer) -> std::io::Result<()> {
    let line = protocol::answer(answer);
    let written = tokio::time::timeout(WRITE_TIMEOUT, stream.get_mut().write_all(&line)).await;
    written.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}
