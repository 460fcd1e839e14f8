//! A byte stream in binary messages, for SPDY inside of WebSocket (`SPDY/3.1+portforward.k8s.io`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// Bytes over messages.
#[derive(Debug)]
pub struct Tunnel<T> {
    socket: WebSocketStream<T>,
    /// What is left of the last message.
    rest: Bytes,
}

impl<T> Tunnel<T> {
    /// Around a connection after its handshake.
    #[must_use]
    pub fn new(socket: WebSocketStream<T>) -> Self {
        Self { socket, rest: Bytes::new() }
    }
}

fn io_error(error: WsError) -> io::Error {
    match error {
        WsError::Io(error) => error,
        WsError::ConnectionClosed | WsError::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Text(_))) => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, "a text message in a tunnel of bytes");
                    return Poll::Ready(Err(error));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let now = self.rest.len().min(out.remaining());
        out.put_slice(&self.rest[..now]);
        self.rest.advance(now);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
        let message = Message::Binary(Bytes::copy_from_slice(bytes));
        Pin::new(&mut self.socket).start_send(message).map_err(io_error)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io_error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(io_error)
    }
}
