//! The listener: TLS by rustls, client certificates optional, HTTP/1.1 and HTTP/2 by ALPN, connections drained at the end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ApiService;
use crate::pki::{self, Pki};
use crate::server::Server;

/// Connections that wait to be accepted: what Linux allows by default (`net.core.somaxconn`), as upstream's.
const BACKLOG: u32 = 4096;
/// A peer that has not finished its TLS handshake by then is cut off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that has not sent its first byte, or a request head of HTTP/1.1 after it, by then is cut off.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Streams of one HTTP/2 connection; upstream's limit, so that client-go's watches share one.
const MAX_STREAMS: u32 = 250;
/// Idle HTTP/2 connections are probed, so that dead peers do not hold watches for ever.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long requests under way may take after the order to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after `accept` failed, for instance without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the listener could not start. Not retryable without a change.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The port.
    #[error("cannot listen on {address}: {source}; is another control plane running, or another program on this port?")]
    Bind {
        /// Address and port.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate.
    #[error("the serving certificate is unusable: {0}; delete apiserver.crt and apiserver.key to have new ones made")]
    Certificate(String),
}

/// A bound listener.
pub struct Listener {
    socket: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener {
    /// Binds, before anything else is started: a busy port is said at once.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(address: SocketAddr, pki: &Pki) -> Result<Self, ListenError> {
        let socket = listen(address).map_err(|source| ListenError::Bind { address, source })?;
        Ok(Self { socket, acceptor: TlsAcceptor::from(Arc::new(tls_config(pki)?)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `shutdown`, then drains.
    pub async fn serve(self, server: Arc<Server>, shutdown: CancellationToken) {
        let tracker = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = shutdown.cancelled() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let connection =
                        serve_connection(stream, peer, self.acceptor.clone(), Arc::clone(&server), shutdown.clone());
                    tracker.spawn(connection);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.socket);
        tracker.close();
        let _ = tokio::time::timeout(DRAIN, tracker.wait()).await;
    }
}

/// Like `TcpListener::bind`, whose queue of 1024 somebody who opens many connections fills; what comes then waits a second and more.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn tls_config(pki: &Pki) -> Result<ServerConfig, ListenError> {
    let fail = |e: &dyn std::fmt::Display| ListenError::Certificate(e.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(pki.authority.cert_pem().as_bytes()).map_err(|e| fail(&e))?;
    roots.add(ca).map_err(|e| fail(&e))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|e| fail(&e))?;
    let (chain, key) = pki::rustls_pair(&pki.serving).map_err(|e| fail(&e))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| fail(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|e| fail(&e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    server: Arc<Server>,
    shutdown: CancellationToken,
) {
    // Watch events are small and must not wait for one another.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
    let certificates = stream.get_ref().1.peer_certificates();
    let subject = certificates.and_then(|chain| pki::subject(chain.first()?));
    let service = TowerToHyperService::new(ApiService::remote(server, subject).of_peer(peer));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let stream = FirstByte { stream, until: Some(Box::pin(tokio::time::sleep(HEADER_TIMEOUT))) };
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// A connection that ends if nothing comes at first: what finds out by the first bytes which protocol is spoken waits for ever.
struct FirstByte<S> {
    stream: S,
    /// None once something came.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstByte<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some(until) = &mut self.until else { return read };
        if read.is_ready() {
            self.until = None;
            return read;
        }
        until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstByte<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_at_first_is_cut_off_and_who_has_spoken_is_not() {
        let fresh = |stream| FirstByte { stream, until: Some(Box::pin(tokio::time::sleep(HEADER_TIMEOUT))) };
        let (ours, _theirs) = tokio::io::duplex(64);
        let error = fresh(ours).read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut ours = fresh(ours);
        theirs.write_u8(1).await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), 1);
        let later = tokio::time::timeout(HEADER_TIMEOUT * 2, ours.read_u8()).await;
        assert!(later.is_err(), "it is waited for");
    }
}
