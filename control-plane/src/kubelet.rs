//! The client for agents' HTTPS port: container logs are proxied from there.
//!
//! Only the address and port that a Node object reports are dialled, redirects are not followed. Like upstream's API server without
//! `--kubelet-certificate-authority` it does not verify whom the serving certificate names, because agents sign their own; the
//! TLS handshake signature itself is verified, and the server shows its own client certificate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::pki::{Pair, rustls_pair};

/// Time to reach an agent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until an agent answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why an agent did not answer. Retryable.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No connection.
    #[error("cannot reach the agent at {address}: {reason}")]
    Connect {
        /// Host and port.
        address: String,
        /// What failed.
        reason: String,
    },
    /// No answer.
    #[error("the agent at {address} did not answer: {reason}")]
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

/// Talks to agents.
#[derive(Clone)]
pub struct KubeletClient {
    connector: TlsConnector,
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
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(|e| ClientCertificateError(e.to_string()))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// GET of a path with its query.
    ///
    /// # Errors
    /// [`KubeletError`].
    pub async fn get(&self, host: &str, port: u16, path: &str) -> Result<Response<Incoming>, KubeletError> {
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let connect = |reason: String| KubeletError::Connect { address: address.clone(), reason };
        let answer = |reason: String| KubeletError::Answer { address: address.clone(), reason };
        let server_name = ServerName::try_from(host.to_owned()).map_err(|e| connect(e.to_string()))?;
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, async {
            let stream = TcpStream::connect(&address).await?;
            self.connector.connect(server_name, stream).await
        })
        .await
        .map_err(|_| connect("no connection in time".to_owned()))?
        .map_err(|e| connect(e.to_string()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| connect(e.to_string()))?;
        // Ends with the connection: when the answer's body is dropped or read to its end.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let request = Request::get(path)
            .header(http::header::HOST, &address)
            .body(Empty::<Bytes>::new())
            .map_err(|e| answer(e.to_string()))?;
        tokio::time::timeout(ANSWER_TIMEOUT, sender.send_request(request))
            .await
            .map_err(|_| answer("no answer in time".to_owned()))?
            .map_err(|e| answer(e.to_string()))
    }
}

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
