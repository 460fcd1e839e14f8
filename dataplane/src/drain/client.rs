//! The asking side of the socket, for the node agent.

use std::path::Path;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::protocol::{self, Answer, LineError};

/// Why there is no answer. Asking anew may help, except after [`AskError::Line`].
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The socket fails, or nobody listens at it.
    #[error("asking the dataplane: {0}")]
    Io(#[from] std::io::Error),
    /// It ended in the middle.
    #[error("the dataplane went away before its last answer")]
    Gone,
    /// It says what is not understood here.
    #[error("the dataplane's answer is not understood: {0}")]
    Line(#[from] LineError),
}

/// A question that was sent.
#[derive(Debug)]
pub struct Asked {
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

/// Asks that a pod be treated as terminating.
///
/// # Errors
/// See [`AskError`]. [`std::io::ErrorKind::NotFound`] means that no dataplane of ours has run on this node since it booted.
pub async fn ask(socket: &Path, uid: &str) -> Result<Asked, AskError> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&protocol::question(uid)).await?;
    Ok(Asked { stream: BufReader::new(stream), line: Vec::new() })
}

impl Asked {
    /// The next answer. A future that is dropped loses nothing.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn next(&mut self) -> Result<Answer, AskError> {
        if !protocol::read_line(&mut self.stream, &mut self.line).await? {
            return Err(AskError::Gone);
        }
        Ok(protocol::read_answer(&std::mem::take(&mut self.line))?)
    }
}
