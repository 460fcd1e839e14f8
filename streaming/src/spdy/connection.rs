//! A SPDY connection: streams over one transport.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::frame::{DecodeError, Decoder, Encoder, Frame, REFUSED_STREAM};
use super::headers::Headers;
use crate::mux::{Activity, Closed, GATHER, Link, Outgoing, READ_SPACE, Receiver, Sender, lingered};

/// The peer has so long to accept a stream (upstream's `createStreamResponseTimeout`).
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// Streams that wait to be accepted.
const ACCEPT_QUEUE: usize = 16;

/// Which end this is: it decides over the numbers of our streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens streams with odd numbers.
    Client,
    /// Even numbers.
    Server,
}

/// Bounds of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Streams at once; more are refused.
    pub streams: usize,
    /// Without any frame for so long, the connection ends.
    pub idle: Duration,
}

/// A stream could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The connection is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The peer does not want it.
    #[error("the peer refused the stream with status {0}")]
    Refused(u32),
    /// No answer.
    #[error("the peer did not accept the stream within {} s", REPLY_LIMIT.as_secs())]
    NoReply,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its number.
    pub id: u32,
    /// What its opener says of it.
    pub headers: Headers,
    /// Our half.
    pub sender: Sender,
    /// The peer's half.
    pub receiver: Receiver,
}

/// A stream of the table: only the peer's half is kept track of.
#[derive(Debug)]
struct Entry {
    bytes: mpsc::Sender<Bytes>,
    reply: Option<oneshot::Sender<Result<(), u32>>>,
}

type Table = Arc<Mutex<HashMap<u32, Entry>>>;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    table: Table,
    incoming: mpsc::Receiver<Stream>,
    next: u32,
}

impl Connection {
    /// Begins to speak SPDY on a transport.
    pub fn new<T>(transport: T, role: Role, limits: Limits) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (link, outgoing) = Link::new();
        let (reading, writing) = tokio::io::split(transport);
        let (arrived, incoming) = mpsc::channel(ACCEPT_QUEUE);
        let table = Table::default();
        let activity = Activity::new(limits.idle);
        let said = CancellationToken::new();
        let reader = Reader {
            transport: reading,
            table: Arc::clone(&table),
            arrived,
            // Weak, because the writer shall end with the last holder of a stream.
            queue: link.queue.downgrade(),
            limits,
            activity: activity.clone(),
            role,
            last: 0,
        };
        let (cut, gone, bye) = (link.cut.clone(), link.gone.clone(), said.clone());
        link.tasks.spawn(async move {
            let table = Arc::clone(&reader.table);
            let idle = reader.activity.clone();
            tokio::select! {
                result = reader.run() => if let Err(error) = result {
                    tracing::debug!(%error, "a SPDY connection broke off");
                },
                () = idle.idle() => tracing::debug!("a SPDY connection was idle for too long"),
                () = lingered(&bye) => {}
                () = cut.cancelled() => {}
            }
            // Every receiver sees the end.
            table.lock().clear();
            gone.cancel();
        });
        let (cut, gone) = (link.cut.clone(), link.gone.clone());
        link.tasks.spawn(async move {
            tokio::select! {
                result = write(writing, outgoing, activity) => if result.is_err() {
                    gone.cancel();
                },
                () = cut.cancelled() => {}
            }
            said.cancel();
        });
        Self { link, table, incoming, next: if role == Role::Client { 1 } else { 2 } }
    }

    /// Opens a stream and waits for the peer's consent: what is sent before, upstream's server drops.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(&mut self, headers: Headers) -> Result<Stream, OpenError> {
        let id = self.next;
        self.next += 2;
        let (bytes, receiver) = Receiver::new();
        let (reply, replied) = oneshot::channel();
        self.table.lock().insert(id, Entry { bytes, reply: Some(reply) });
        if self.link.gone.is_cancelled() {
            return Err(Closed.into());
        }
        self.link.queue.send(Outgoing::Open(id, headers.clone())).await.map_err(|_| Closed)?;
        match tokio::time::timeout(REPLY_LIMIT, replied).await {
            Ok(Ok(Ok(()))) => Ok(Stream { id, headers, sender: Sender::new(id, self.link.queue.clone()), receiver }),
            Ok(Ok(Err(status))) => Err(OpenError::Refused(status)),
            Ok(Err(_)) => Err(Closed.into()),
            Err(_) => Err(OpenError::NoReply),
        }
    }

    /// The next stream that the peer opens; `None` when the connection has ended.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }

    /// Streams that are not finished by the peer.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.table.lock().len()
    }

    /// The connection's life, when no more streams are to be opened or accepted.
    #[must_use]
    pub fn into_link(self) -> Link {
        self.link
    }

    /// The connection's life.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }
}

/// Why a reader stopped, other than by the end of its transport.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Transport(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] DecodeError),
}

struct Reader<T> {
    transport: ReadHalf<T>,
    table: Table,
    arrived: mpsc::Sender<Stream>,
    queue: mpsc::WeakSender<Outgoing>,
    limits: Limits,
    activity: Activity,
    role: Role,
    /// The newest stream of the peer; numbers only go up.
    last: u32,
}

impl<T: AsyncRead + AsyncWrite> Reader<T> {
    async fn run(mut self) -> Result<(), ReadError> {
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        let mut space = READ_SPACE.0;
        loop {
            while let Some(frame) = decoder.decode(&mut buffer)? {
                self.handle(frame).await;
            }
            buffer.reserve(space);
            let read = self.transport.read_buf(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            space = if read >= space { READ_SPACE.1 } else { READ_SPACE.0 };
            self.activity.note();
        }
    }

    async fn answer(&mut self, outgoing: Outgoing) {
        if let Some(queue) = self.queue.upgrade() {
            let _ = queue.send(outgoing).await;
        }
    }

    async fn handle(&mut self, frame: Frame) {
        match frame {
            Frame::SynStream { id, headers, fin } => self.opened(id, headers, fin).await,
            Frame::SynReply { id, fin } => {
                let reply = self.table.lock().get_mut(&id).and_then(|entry| entry.reply.take());
                if let Some(reply) = reply {
                    let _ = reply.send(Ok(()));
                }
                self.finished(id, fin);
            }
            Frame::RstStream { id, status } => {
                let entry = self.table.lock().remove(&id);
                if let Some(reply) = entry.and_then(|entry| entry.reply) {
                    let _ = reply.send(Err(status));
                }
            }
            Frame::Data { id, bytes, fin } => {
                let to = self.table.lock().get(&id).map(|entry| entry.bytes.clone());
                if let Some(to) = to
                    && !bytes.is_empty()
                {
                    // Nobody who listens any more: the bytes are dropped.
                    let _ = to.send(bytes).await;
                }
                self.finished(id, fin);
            }
            Frame::Headers { id, fin } => self.finished(id, fin),
            // The peer's numbers have its parity; the others answer pings of ours, of which there are none.
            Frame::Ping(id) if (id % 2 == 1) == (self.role == Role::Server) => self.answer(Outgoing::Pong(id)).await,
            Frame::Ping(_) | Frame::GoAway | Frame::Other => {}
        }
    }

    fn finished(&self, id: u32, fin: bool) {
        if fin {
            self.table.lock().remove(&id);
        }
    }

    async fn opened(&mut self, id: u32, headers: Headers, fin: bool) {
        let fitting = (id % 2 == 1) == (self.role == Role::Server) && id > self.last;
        let Some(queue) = self.queue.upgrade() else { return };
        if !fitting || self.table.lock().len() >= self.limits.streams {
            let _ = queue.send(Outgoing::Reset(id, REFUSED_STREAM)).await;
            return;
        }
        self.last = id;
        let (bytes, receiver) = Receiver::new();
        self.table.lock().insert(id, Entry { bytes, reply: None });
        let stream = Stream { id, headers, sender: Sender::new(id, queue.clone()), receiver };
        if self.arrived.send(stream).await.is_ok() {
            let _ = queue.send(Outgoing::Reply(id)).await;
        } else {
            self.table.lock().remove(&id);
            let _ = queue.send(Outgoing::Reset(id, REFUSED_STREAM)).await;
        }
        self.finished(id, fin);
    }
}

async fn write<T: AsyncRead + AsyncWrite>(
    mut transport: WriteHalf<T>,
    mut outgoing: mpsc::Receiver<Outgoing>,
    activity: Activity,
) -> std::io::Result<()> {
    let (mut encoder, mut out) = (Encoder::default(), BytesMut::new());
    let (mut bye, mut accepted) = (false, 0);
    while !bye {
        let Some(mut next) = outgoing.recv().await else { break };
        loop {
            match next {
                Outgoing::Open(id, headers) => encoder.syn_stream(id, &headers, false, &mut out),
                Outgoing::Reply(id) => {
                    accepted = id;
                    encoder.syn_reply(id, &Headers::default(), &mut out);
                }
                Outgoing::Data(id, bytes) => Encoder::data(id, &bytes, &mut out),
                Outgoing::Fin(id) => Encoder::fin(id, &mut out),
                Outgoing::Reset(id, status) => Encoder::rst_stream(id, status, &mut out),
                Outgoing::Pong(id) => Encoder::ping(id, &mut out),
                Outgoing::Bye => {
                    Encoder::go_away(accepted, &mut out);
                    bye = true;
                }
            }
            if bye || out.len() >= GATHER {
                break;
            }
            match outgoing.try_recv() {
                Ok(more) => next = more,
                Err(_) => break,
            }
        }
        transport.write_all(&out).await?;
        transport.flush().await?;
        out.clear();
        activity.note();
    }
    transport.shutdown().await
}
