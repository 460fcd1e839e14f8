//! What SPDY streams and WebSocket channels have in common: a connection that carries numbered byte streams.
//!
//! One task reads, one writes; both end with the [`Link`]. A queue that is full holds its writer up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::spdy::Headers;

/// Pieces that wait for the reader of one stream.
pub(crate) const STREAM_QUEUE: usize = 8;
/// Pieces that wait for the connection's writer.
const WRITE_QUEUE: usize = 16;
/// How long an orderly end may take: for the writer to send what it has, then for the peer to hang up. The connection is dropped then.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How long the peer is listened to after everything was sent. Closing with unread input would reset the connection and could take the
/// last words with it.
const LINGER: Duration = Duration::from_secs(2);
/// First and largest space made for a read: idle connections stay small.
pub(crate) const READ_SPACE: (usize, usize) = (4 << 10, 64 << 10);
/// Output is gathered up to this before it is written.
pub(crate) const GATHER: usize = 64 << 10;

/// The connection has ended. Not retryable on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream's connection has ended")]
pub struct Closed;

/// For the writer of a connection.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// A new stream of ours.
    Open(u32, Headers),
    /// Consent to a stream of the peer.
    Reply(u32),
    /// Bytes of a stream.
    Data(u32, Bytes),
    /// No more bytes of this stream.
    Fin(u32),
    /// A stream is refused or given up, with SPDY's reason.
    Reset(u32, u32),
    /// Answer to a ping.
    Pong(u32),
    /// The orderly end of the connection.
    Bye,
}

/// The sending half of a stream.
#[derive(Debug)]
pub struct Sender {
    id: u32,
    queue: mpsc::Sender<Outgoing>,
}

impl Sender {
    pub(crate) fn new(id: u32, queue: mpsc::Sender<Outgoing>) -> Self {
        Self { id, queue }
    }

    /// Sends bytes; waits while the connection is behind.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        self.queue.send(Outgoing::Data(self.id, bytes)).await.map_err(|_| Closed)
    }

    /// Says that nothing more comes.
    pub async fn finish(self) {
        // An ended connection has finished the stream already.
        let _ = self.queue.send(Outgoing::Fin(self.id)).await;
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub struct Receiver(mpsc::Receiver<Bytes>);

impl Receiver {
    pub(crate) fn new() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
        (sender, Self(receiver))
    }

    /// The next bytes; `None` at the end of the stream or of its connection.
    pub async fn recv(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }

    /// Everything up to the end, but not more than `limit` bytes of it.
    pub async fn read_to_end(&mut self, limit: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(bytes) = self.recv().await {
            let room = limit - all.len();
            all.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        all
    }
}

/// Copies a stream into another until either ends, then finishes the other.
pub async fn pump(mut from: Receiver, to: Sender) {
    while let Some(bytes) = from.recv().await {
        if to.send(bytes).await.is_err() {
            return;
        }
    }
    to.finish().await;
}

/// When something was last sent or received.
#[derive(Debug, Clone)]
pub(crate) struct Activity {
    begun: Instant,
    last: Arc<AtomicU64>,
    limit: Duration,
}

impl Activity {
    pub fn new(limit: Duration) -> Self {
        Self { begun: Instant::now(), last: Arc::default(), limit }
    }

    pub fn note(&self) {
        let elapsed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
    }

    /// Ready when nothing has happened for the limit.
    pub async fn idle(&self) {
        loop {
            let last = self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed));
            // A limit beyond what the clock can express is none.
            let Some(end) = last.checked_add(self.limit) else { return std::future::pending().await };
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// The life of a connection. Dropped, it cuts the connection off; [`Link::close`] ends it in order.
#[derive(Debug)]
pub struct Link {
    pub(crate) queue: mpsc::Sender<Outgoing>,
    /// Ends the tasks at once.
    pub(crate) cut: CancellationToken,
    /// Set by the reader when the peer has gone.
    pub(crate) gone: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Link {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Outgoing>) {
        let (queue, outgoing) = mpsc::channel(WRITE_QUEUE);
        let (cut, gone) = (CancellationToken::new(), CancellationToken::new());
        (Self { queue, cut, gone, tasks: TaskTracker::new() }, outgoing)
    }

    /// Ready when the peer has gone, was idle for too long or broke the protocol.
    pub fn gone(&self) -> WaitForCancellationFutureOwned {
        self.gone.clone().cancelled_owned()
    }

    /// Sends what is queued, says good-bye and waits for the peer to hang up; all of it bounded in time.
    pub async fn close(self) {
        self.tasks.close();
        let orderly = async {
            let _ = self.queue.send(Outgoing::Bye).await;
            self.tasks.wait().await;
        };
        let _ = tokio::time::timeout(CLOSE_LIMIT, orderly).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut.cancel();
    }
}

/// What ends the reader after the writer has said good-bye.
pub(crate) async fn lingered(said: &CancellationToken) {
    said.cancelled().await;
    tokio::time::sleep(LINGER).await;
}
