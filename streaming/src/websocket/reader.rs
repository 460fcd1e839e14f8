//! A stream of bytes as the messages of a WebSocket, one way: what an API server does for `pods/log` with clients that can do nothing but
//! WebSocket (browsers).
//!
//! Upstream counterpart: `apimachinery/pkg/util/httpstream/wsstream.Reader`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::{SinkExt as _, Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

/// How bytes are put into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As they are, in binary messages.
    Binary,
    /// In base64, in text messages.
    Base64,
}

impl Format {
    /// Chooses among the subprotocols that a client offers: its name and what it means. A client that offers none gets binary messages,
    /// one that offers only others gets nothing.
    #[must_use]
    pub fn choose(offered: &[String]) -> Option<(&str, Self)> {
        if offered.is_empty() {
            return Some(("", Self::Binary));
        }
        offered.iter().find_map(|name| match name.as_str() {
            "binary.k8s.io" => Some((name.as_str(), Self::Binary)),
            "base64.binary.k8s.io" => Some((name.as_str(), Self::Base64)),
            _ => None,
        })
    }

    fn message(self, bytes: Bytes) -> Message {
        match self {
            Self::Binary => Message::Binary(bytes),
            Self::Base64 => Message::Text(BASE64_STANDARD.encode(bytes).into()),
        }
    }
}

/// Sends an empty message, by which the client knows that it is connected, every chunk as one message, and the close. Ends early when the
/// client closes; what it sends otherwise is ignored.
///
/// # Errors
/// What breaks the connection.
pub async fn send_all<T, S>(socket: WebSocketStream<T>, format: Format, chunks: S) -> Result<(), Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Stream<Item = Bytes>,
{
    let (mut sink, mut incoming) = socket.split();
    let sending = async {
        sink.send(format.message(Bytes::new())).await?;
        let mut chunks = std::pin::pin!(chunks);
        while let Some(chunk) = chunks.next().await {
            sink.send(format.message(chunk)).await?;
        }
        sink.send(Message::Close(None)).await
    };
    // Pings are answered by reading too.
    let listening = async {
        while let Some(message) = incoming.next().await {
            if matches!(message?, Message::Close(_)) {
                break;
            }
        }
        Ok(())
    };
    tokio::select! {
        sent = sending => sent,
        left = listening => left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::{WebSocketRole, stream};

    async fn received(format: Format) -> Vec<Message> {
        let (ours, theirs) = tokio::io::duplex(1024);
        let server = stream(ours, WebSocketRole::Server).await;
        let client = stream(theirs, WebSocketRole::Client).await;
        let chunks = futures::stream::iter([Bytes::from_static(b"one\n"), Bytes::from_static(b"two\n")]);
        let (sent, messages) = tokio::join!(send_all(server, format, chunks), client.collect::<Vec<_>>());
        sent.unwrap();
        messages.into_iter().filter_map(Result::ok).collect()
    }

    #[tokio::test]
    async fn chunks_are_messages_behind_an_empty_one() {
        let messages = received(Format::Binary).await;
        let texts: Vec<&[u8]> =
            messages.iter().filter(|m| m.is_binary()).map(|m| m.to_text().unwrap().as_bytes()).collect();
        assert_eq!(texts, [&b""[..], b"one\n", b"two\n"]);
        assert!(messages.last().is_some_and(Message::is_close), "{messages:?}");
        let messages = received(Format::Base64).await;
        let texts: Vec<&str> = messages.iter().filter(|m| m.is_text()).map(|m| m.to_text().unwrap()).collect();
        assert_eq!(texts, ["", "b25lCg==", "dHdvCg=="]);
    }

    #[tokio::test]
    async fn ends_when_the_client_closes() {
        let (ours, theirs) = tokio::io::duplex(1024);
        let server = stream(ours, WebSocketRole::Server).await;
        let mut client = stream(theirs, WebSocketRole::Client).await;
        let endless = futures::stream::pending::<Bytes>();
        let (sent, ()) = tokio::join!(send_all(server, Format::Binary, endless), async {
            client.close(None).await.unwrap();
        });
        sent.unwrap();
    }

    #[test]
    fn the_clients_first_known_protocol_is_taken() {
        let offer = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(Format::choose(&[]), Some(("", Format::Binary)));
        let both = offer(&["other", "base64.binary.k8s.io", "binary.k8s.io"]);
        assert_eq!(Format::choose(&both), Some(("base64.binary.k8s.io", Format::Base64)));
        assert_eq!(Format::choose(&offer(&["v5.channel.k8s.io"])), None);
    }
}
