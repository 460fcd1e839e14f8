//! A WebSocket connection of channels, server side.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use super::channels::{ChannelCodec, ChannelError, Item};
use crate::mux::{Activity, Link, Outgoing, Receiver, Sender, lingered};

/// The channels of a connection.
#[derive(Debug)]
pub struct Channels {
    link: Link,
    inputs: HashMap<u8, Receiver>,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Transport(#[from] WsError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

impl Channels {
    /// Begins to speak; bytes of channels other than `inputs` are dropped.
    pub fn new<T>(socket: WebSocketStream<T>, codec: ChannelCodec, inputs: &[u8], idle: Duration) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (link, outgoing) = Link::new();
        let (sink, source) = socket.split();
        let (senders, receivers): (HashMap<_, _>, HashMap<_, _>) = inputs
            .iter()
            .map(|channel| {
                let (sender, receiver) = Receiver::new();
                ((*channel, sender), (*channel, receiver))
            })
            .unzip();
        let activity = Activity::new(idle);
        let said = CancellationToken::new();
        let (cut, gone, bye, noted) = (link.cut.clone(), link.gone.clone(), said.clone(), activity.clone());
        link.tasks.spawn(async move {
            tokio::select! {
                result = read(source, codec, senders, noted.clone()) => if let Err(error) = result {
                    tracing::debug!(%error, "a WebSocket connection broke off");
                },
                () = noted.idle() => tracing::debug!("a WebSocket connection was idle for too long"),
                () = lingered(&bye) => {}
                () = cut.cancelled() => {}
            }
            gone.cancel();
        });
        let (cut, gone) = (link.cut.clone(), link.gone.clone());
        link.tasks.spawn(async move {
            tokio::select! {
                result = write(sink, codec, outgoing, activity) => if result.is_err() {
                    gone.cancel();
                },
                () = cut.cancelled() => {}
            }
            said.cancel();
        });
        Self { link, inputs: receivers }
    }

    /// What arrives on a channel; `None` if it is no input or was taken.
    pub fn input(&mut self, channel: u8) -> Option<Receiver> {
        self.inputs.remove(&channel)
    }

    /// The sending half of a channel.
    #[must_use]
    pub fn output(&self, channel: u8) -> Sender {
        Sender::new(u32::from(channel), self.link.queue.clone())
    }

    /// The connection's life, when no more channels are to be taken.
    #[must_use]
    pub fn into_link(self) -> Link {
        self.link
    }
}

async fn read<S>(
    mut source: S,
    codec: ChannelCodec,
    mut senders: HashMap<u8, mpsc::Sender<Bytes>>,
    activity: Activity,
) -> Result<(), ReadError>
where
    S: futures::Stream<Item = Result<Message, WsError>> + Unpin,
{
    while let Some(message) = source.next().await {
        activity.note();
        let payload = match message? {
            Message::Binary(payload) => payload,
            Message::Text(text) => Bytes::from(text),
            // Pings are answered by the library; the answer to a close ends the stream.
            _ => continue,
        };
        match codec.decode(payload)? {
            Item::Data(channel, bytes) => {
                if let Some(sender) = senders.get(&channel)
                    && !bytes.is_empty()
                {
                    // Nobody who listens any more: the bytes are dropped.
                    let _ = sender.send(bytes).await;
                }
            }
            Item::Close(channel) => drop(senders.remove(&channel)),
            Item::Nothing => {}
        }
    }
    Ok(())
}

async fn write<S>(
    mut sink: S,
    codec: ChannelCodec,
    mut outgoing: mpsc::Receiver<Outgoing>,
    activity: Activity,
) -> Result<(), WsError>
where
    S: futures::Sink<Message, Error = WsError> + Unpin,
{
    'all: while let Some(mut next) = outgoing.recv().await {
        loop {
            match next {
                Outgoing::Data(id, bytes) => {
                    let payload = codec.encode(id as u8, &bytes);
                    sink.feed(codec.message(payload)).await?;
                }
                Outgoing::Bye => break 'all,
                // Upstream's clients know no end of a single channel of the server's.
                _ => {}
            }
            match outgoing.try_recv() {
                Ok(more) => next = more,
                Err(_) => break,
            }
        }
        sink.flush().await?;
        activity.note();
    }
    // Clients take a close without a code for a failure.
    sink.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::from_static("") }))).await?;
    sink.close().await
}
