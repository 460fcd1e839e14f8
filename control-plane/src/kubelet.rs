//! The client for what lies behind this server: agents' HTTPS port (logs, streams), and pods and services that are proxied to.
//!
//! Only addresses that stored objects report are dialled, redirects are not followed. Every request has a connection of its own, which ends
//! with its answer. Like upstream's API server without
//! `--kubelet-certificate-authority` it does not verify whom the serving certificate names, because agents sign their own; the
//! TLS handshake signature itself is verified, and the server shows its own client certificate.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::http::body::RequestBody;
use crate::pki::{Pair, rustls_pair};

/// Time to reach an agent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until an agent answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why an agent did not answer. Retryable.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No connection.
    #[error("cannot reach {address}: {reason}")]
    Connect {
        /// Host and port.
        address: String,
        /// What failed.
        reason: String,
    },
    /// No answer.
    #[error("{address} did not answer: {reason}")]
    Answer {
        /// Host and port.
        address: String,
        /// What failed.
        reason: String,
    },
}

/// Why the client could not be made. Not retryable.
#[derive(Debug, thiserror::Error)]
#[error("the client certificate for agents is unusable: {0}")]
pub struct ClientCertificateError(String);

/// How a back end is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// TLS with this server's client certificate. For agents only.
    Agent,
    /// Plain.
    Http,
    /// TLS without a client certificate.
    Https,
}

/// A back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How.
    pub scheme: Scheme,
    /// Its address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Target {
    /// `host:port`, as in URLs.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl Target {
    fn unreachable(&self, reason: &dyn std::fmt::Display) -> KubeletError {
        KubeletError::Connect { address: self.authority(), reason: reason.to_string() }
    }

    fn no_answer(&self, reason: &dyn std::fmt::Display) -> KubeletError {
        KubeletError::Answer { address: self.authority(), reason: reason.to_string() }
    }
}

/// Talks to agents and other back ends.
#[derive(Clone)]
pub struct KubeletClient {
    connector: TlsConnector,
    /// Without the client certificate.
    anonymous: TlsConnector,
}

impl std::fmt::Debug for KubeletClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeletClient").finish_non_exhaustive()
    }
}

impl KubeletClient {
    /// With the certificate it shows.
    ///
    /// # Errors
    /// [`ClientCertificateError`].
    pub fn new(pair: &Pair) -> Result<Self, ClientCertificateError> {
        let (chain, key) = rustls_pair(pair).map_err(|e| ClientCertificateError(e.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(AnyName(Arc::clone(&provider)));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| ClientCertificateError(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let anonymous = config.clone().with_no_client_auth();
        let config = config.with_client_auth_cert(chain, key).map_err(|e| ClientCertificateError(e.to_string()))?;
        let connector = |config| TlsConnector::from(Arc::new(config));
        Ok(Self { connector: connector(config), anonymous: connector(anonymous) })
    }

    /// GET of a path with its query.
    ///
    /// # Errors
    /// [`KubeletError`].
    pub async fn get(&self, host: &str, port: u16, path: &str) -> Result<Response<Incoming>, KubeletError> {
        let target = Target { scheme: Scheme::Agent, host: host.to_owned(), port };
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let request = Request::get(path).body(body).map_err(|e| target.no_answer(&e))?;
        self.upgrade(&target, request).await
    }

    /// Sends a request whose answer must begin soon. With an `Upgrade` header and an answer of 101, `hyper::upgrade::on` gives the
    /// connection.
    ///
    /// # Errors
    /// [`KubeletError`].
    pub async fn upgrade(
        &self,
        target: &Target,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, KubeletError> {
        tokio::time::timeout(ANSWER_TIMEOUT, self.send(target, request))
            .await
            .unwrap_or_else(|_| Err(target.no_answer(&"no answer in time")))
    }

    /// Sends a request that may take its time.
    ///
    /// # Errors
    /// [`KubeletError`].
    pub async fn send(
        &self,
        target: &Target,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, KubeletError> {
        let authority = HeaderValue::from_str(&target.authority()).map_err(|e| target.unreachable(&e))?;
        request.headers_mut().insert(http::header::HOST, authority);
        let connecting = self.dial(target);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| target.unreachable(&"no connection in time"))?
            .map_err(|e| target.unreachable(&e))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| target.unreachable(&e))?;
        // Ends with the connection: when the answer's body is dropped or read to its end, or when the upgraded stream ends.
        tokio::spawn(async move {
            let _ = connection.with_upgrades().await;
        });
        sender.send_request(request).await.map_err(|e| target.no_answer(&e))
    }

    async fn dial(&self, target: &Target) -> std::io::Result<Box<dyn Transport>> {
        let stream = TcpStream::connect(target.authority()).await?;
        stream.set_nodelay(true)?;
        let connector = match target.scheme {
            Scheme::Http => return Ok(Box::new(stream)),
            Scheme::Agent => &self.connector,
            Scheme::Https => &self.anonymous,
        };
        let name = ServerName::try_from(target.host.clone()).map_err(std::io::Error::other)?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }
}

/// A connection with or without TLS.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

#[derive(Debug)]
struct AnyName(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
