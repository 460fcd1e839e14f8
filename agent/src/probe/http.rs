//! One HTTP GET for probes and hooks: no keep-alive, no proxy, bounded body, redirects followed on the same host.
//!
//! Certificates are not checked, as upstream: a probe asks whether somebody answers, not who. Upstream counterpart:
//! `pkg/probe/http`.

use std::sync::Arc;

use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;

/// Most bytes of a body that are looked at.
const MAX_BODY: usize = 10 << 10;
/// Most redirects followed.
const MAX_REDIRECTS: u32 = 10;

/// The answer of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Status code and the body's beginning.
    Status(u16, String),
    /// A redirect to another host, which is not followed.
    OtherHost(String),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No address to ask.
    #[error("the pod has no address yet")]
    NoAddress,
    /// A port that names none of the container's.
    #[error("port {port:?} of container {container} is not known")]
    UnknownPort {
        /// The name.
        port: String,
        /// The container.
        container: String,
    },
    /// The URL cannot be formed.
    #[error("invalid URL {url:?}: {message}")]
    Url {
        /// The URL.
        url: String,
        /// Why.
        message: String,
    },
    /// The request failed.
    #[error("Get {url:?}: {message}")]
    Request {
        /// The URL.
        url: String,
        /// Why.
        message: String,
    },
    /// Too many redirects.
    #[error("Get {url:?}: stopped after {MAX_REDIRECTS} redirects")]
    Redirects {
        /// The URL.
        url: String,
    },
}

/// The number of a port given by number or by name.
///
/// # Errors
/// When the name is none of the container's ports.
pub fn port(container: &Container, port: &IntOrString) -> Result<u16, HttpError> {
    let unknown = |name: &str| HttpError::UnknownPort { port: name.to_owned(), container: container.name.clone() };
    match port {
        IntOrString::Int(n) => u16::try_from(*n).map_err(|_| unknown(&n.to_string())),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|p| p.name.as_ref() == Some(name))
            .and_then(|p| u16::try_from(p.container_port).ok())
            .or_else(|| name.parse().ok())
            .ok_or_else(|| unknown(name)),
    }
}

/// `host:port` with brackets around an IPv6 address.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Sends a GET as an `httpGet` action describes it. The caller sets the time limit.
///
/// # Errors
/// When there is no usable answer.
pub async fn get(
    action: &HTTPGetAction,
    container: &Container,
    pod_ip: Option<&str>,
    user_agent: &str,
) -> Result<Answer, HttpError> {
    let host = action.host.as_deref().filter(|h| !h.is_empty()).or(pod_ip).ok_or(HttpError::NoAddress)?;
    let number = port(container, &action.port)?;
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let path = action.path.as_deref().unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut url = format!("{scheme}://{}{slash}{}", authority(host, number), escape(path));
    for _ in 0..=MAX_REDIRECTS {
        let uri: Uri = url
            .parse()
            .map_err(|e: http::uri::InvalidUri| HttpError::Url { url: url.clone(), message: e.to_string() })?;
        let (status, location, body) = request(&uri, action, user_agent)
            .await
            .map_err(|message| HttpError::Request { url: url.clone(), message })?;
        let Some(location) = location.filter(|_| (301..=308).contains(&status) && status != 304) else {
            return Ok(Answer::Status(status, body));
        };
        let next = resolve(&uri, &location);
        let same = next.parse::<Uri>().ok().and_then(|u| u.host().map(str::to_owned)) == uri.host().map(str::to_owned);
        if !same {
            return Ok(Answer::OtherHost(location));
        }
        url = next;
    }
    Err(HttpError::Redirects { url })
}

/// Writes what a URL must not hold as `%XX`; what is escaped already stays.
fn escape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'!' | b'#'..=b';' | b'=' | b'?'..=b'Z' | b'[' | b']' | b'_' | b'a'..=b'z' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The address that a `Location` header means.
pub(crate) fn resolve(base: &Uri, location: &str) -> String {
    let root = format!("{}://{}", base.scheme_str().unwrap_or("http"), base.authority().map_or("", |a| a.as_str()));
    if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{}:{location}", base.scheme_str().unwrap_or("http"))
    } else if location.starts_with('/') {
        format!("{root}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(f, _)| f);
        format!("{root}{folder}/{location}")
    }
}

type Reply = (u16, Option<String>, String);

async fn request(uri: &Uri, action: &HTTPGetAction, user_agent: &str) -> Result<Reply, String> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let https = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
    let stream =
        TcpStream::connect((host, port)).await.map_err(|e| format!("dial tcp {}: {e}", authority(host, port)))?;
    let given = action.http_headers.as_deref().unwrap_or_default();
    let has = |name: &str| given.iter().any(|h| h.name.eq_ignore_ascii_case(name));
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut builder = Request::builder().method(Method::GET).uri(path).header(header::CONNECTION, "close");
    if !has("host") {
        builder = builder.header(header::HOST, uri.authority().map_or("", |a| a.as_str()));
    }
    if !has("user-agent") {
        builder = builder.header(header::USER_AGENT, user_agent);
    }
    if !has("accept") {
        builder = builder.header(header::ACCEPT, "*/*");
    }
    for h in given {
        builder = builder.header(h.name.as_str(), h.value.as_str());
    }
    let message = builder.body(Empty::<bytes::Bytes>::new()).map_err(|e| e.to_string())?;
    if https {
        let config = tls_config();
        let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        let tls = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.map_err(|e| e.to_string())?;
        exchange(tls, message).await
    } else {
        exchange(stream, message).await
    }
}

async fn exchange<S>(stream: S, message: Request<Empty<bytes::Bytes>>) -> Result<Reply, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let talk = async {
        let response = sender.send_request(message).await.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        let location = response.headers().get(header::LOCATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { break };
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(&data[..data.len().min(MAX_BODY - bytes.len())]);
            }
            if bytes.len() >= MAX_BODY {
                break;
            }
        }
        Ok((status, location, String::from_utf8_lossy(&bytes).into_owned()))
    };
    tokio::pin!(talk);
    tokio::select! {
        reply = &mut talk => reply,
        // The connection may end before the body has been read from its buffer.
        _ = connection => talk.await,
    }
}

fn tls_config() -> Arc<rustls::ClientConfig> {
    static CONFIG: std::sync::OnceLock<Arc<rustls::ClientConfig>> = std::sync::OnceLock::new();
    CONFIG
        .get_or_init(|| {
            kube_common::tls::install_ring();
            Arc::new(
                rustls::ClientConfig::builder()
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(AnyCertificate))
                    .with_no_client_auth(),
            )
        })
        .clone()
}

#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_once() {
        assert_eq!(escape("/?q={a b}&r=%20\u{e9}"), "/?q=%7Ba%20b%7D&r=%20%C3%A9");
        assert_eq!(escape("/healthz?x=1&y[0]=a/b~c-d_e.f"), "/healthz?x=1&y[0]=a/b~c-d_e.f");
        assert!(format!("http://h{}", escape("/\"<>`^|\\")).parse::<Uri>().is_ok());
    }

    #[test]
    fn redirects_resolve() {
        let base: Uri = "http://10.0.0.1:80/a/b".parse().unwrap();
        assert_eq!(resolve(&base, "c"), "http://10.0.0.1:80/a/c");
        assert_eq!(resolve(&base, "/c"), "http://10.0.0.1:80/c");
        assert_eq!(resolve(&base, "https://x/"), "https://x/");
        assert_eq!(authority("fd00::1", 80), "[fd00::1]:80");
    }
}
