//! Which stream protocol a request asks for, the answer to it, and a client's own upgrade.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::websocket::{HandshakeError, Offer, is_upgrade};

/// SPDY's name in `Upgrade`.
const SPDY: &str = "SPDY/3.1";
/// Lists what a SPDY client speaks, and what was chosen.
const VERSIONS: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Lists what a server would have accepted.
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
/// A server has so long to accept a connection and to answer its upgrade.
const UPGRADE_LIMIT: Duration = Duration::from_secs(30);
/// An error body is read up to this.
const ERROR_BYTES: usize = 64 << 10;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// SPDY with one of these protocols, none for the oldest clients.
    Spdy(Vec<String>),
    /// WebSocket.
    WebSocket(Offer),
}

/// A request that cannot be upgraded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoUpgrade {
    /// It does not want to be.
    #[error("unable to upgrade: missing upgrade headers in request")]
    NotAsked,
    /// A broken handshake.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// No common protocol.
    #[error("unable to upgrade: unable to negotiate protocol: client supports {client:?}, server accepts {server:?}")]
    Protocol {
        /// What the client speaks.
        client: Vec<String>,
        /// What we speak.
        server: &'static [&'static str],
    },
}

impl NoUpgrade {
    /// The status to answer with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotAsked | Self::Handshake(_) => StatusCode::BAD_REQUEST,
            Self::Protocol { .. } => StatusCode::FORBIDDEN,
        }
    }

    /// Headers that help the client to do better.
    pub fn headers(&self, headers: &mut HeaderMap) {
        if let Self::Protocol { server, .. } = self {
            for protocol in *server {
                headers.append(ACCEPTED, HeaderValue::from_static(protocol));
            }
        }
    }
}

/// Reads the headers of a request.
///
/// # Errors
/// [`NoUpgrade`].
pub fn wanted(headers: &HeaderMap) -> Result<Wanted, NoUpgrade> {
    if is_upgrade(headers, "websocket") {
        return Ok(Wanted::WebSocket(Offer::parse(headers)?));
    }
    if !is_upgrade(headers, SPDY) {
        return Err(NoUpgrade::NotAsked);
    }
    let values = headers.get_all(VERSIONS).into_iter().filter_map(|value| value.to_str().ok());
    let items = values.flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty());
    Ok(Wanted::Spdy(items.map(str::to_owned).collect()))
}

/// Chooses the first protocol of the client that the server speaks; `default` for a client that names none.
///
/// # Errors
/// [`NoUpgrade::Protocol`].
pub fn negotiate(
    client: &[String],
    server: &'static [&'static str],
    default: &'static str,
) -> Result<&'static str, NoUpgrade> {
    if client.is_empty() {
        return Ok(default);
    }
    let common = client.iter().find_map(|wanted| server.iter().find(|known| *known == wanted));
    common.copied().ok_or_else(|| NoUpgrade::Protocol { client: client.to_vec(), server })
}

/// The answer that switches to the chosen protocol.
#[must_use]
pub fn switch(wanted: &Wanted, protocol: &str) -> Response<()> {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    match wanted {
        Wanted::WebSocket(offer) => offer.answer(protocol, headers),
        Wanted::Spdy(versions) => {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
            if !versions.is_empty()
                && let Ok(value) = HeaderValue::from_str(protocol)
            {
                headers.insert(VERSIONS, value);
            }
        }
    }
    answer
}

/// A server did not switch to SPDY. Retryable, except for a refusal.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not a URL that can be dialled.
    #[error("{url:?} is no http URL with a host")]
    Url {
        /// The URL.
        url: String,
    },
    /// No connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The HTTP exchange broke off.
    #[error("{address} did not answer the upgrade: {source}")]
    Exchange {
        /// Host and port.
        address: String,
        /// What went wrong.
        source: hyper::Error,
    },
    /// No answer.
    #[error("{address} did not answer the upgrade within {} s", UPGRADE_LIMIT.as_secs())]
    Deadline {
        /// Host and port.
        address: String,
    },
    /// Another status than 101.
    #[error("{address} answered the upgrade with {status}: {body}")]
    Refused {
        /// Host and port.
        address: String,
        /// Its status.
        status: StatusCode,
        /// What it says.
        body: String,
    },
}

/// Upgrades a POST to `url` to SPDY, offering `protocols`; gives the transport and the protocol that the server chose.
///
/// # Errors
/// [`ClientError`].
pub async fn spdy_client(url: &str, protocols: &[&str]) -> Result<(TokioIo<Upgraded>, String), ClientError> {
    let bad = || ClientError::Url { url: url.to_owned() };
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?;
    let address = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::post(path)
        .header(http::header::HOST, &address)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, SPDY)
        .body(Empty::<Bytes>::new())
        .map_err(|_| bad())?;
    for protocol in protocols {
        request.headers_mut().append(VERSIONS, HeaderValue::from_str(protocol).map_err(|_| bad())?);
    }
    let exchange = exchange(&address, request);
    tokio::time::timeout(UPGRADE_LIMIT, exchange)
        .await
        .map_err(|_| ClientError::Deadline { address: address.clone() })?
}

async fn exchange(address: &str, request: Request<Empty<Bytes>>) -> Result<(TokioIo<Upgraded>, String), ClientError> {
    let connect = |source| ClientError::Connect { address: address.to_owned(), source };
    let broken = |source| ClientError::Exchange { address: address.to_owned(), source };
    let stream = TcpStream::connect(address).await.map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Ends with the upgrade, or with the answer when there is none.
    tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(answer.into_body(), ERROR_BYTES).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let body = String::from_utf8_lossy(&body).trim().to_owned();
        return Err(ClientError::Refused { address: address.to_owned(), status, body });
    }
    let chosen = answer.headers().get(VERSIONS).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let upgraded = hyper::upgrade::on(answer).await.map_err(broken)?;
    Ok((TokioIo::new(upgraded), chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOKEN: &[&str] = &["v4.channel.k8s.io", "v3.channel.k8s.io"];

    #[test]
    fn the_clients_first_common_protocol_is_chosen() {
        let strings = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        assert_eq!(negotiate(&strings(&["v5.x", "v3.channel.k8s.io"]), SPOKEN, "old"), Ok("v3.channel.k8s.io"));
        assert_eq!(negotiate(&[], SPOKEN, "old"), Ok("old"));
        let refused = negotiate(&strings(&["v9"]), SPOKEN, "old").unwrap_err();
        let mut headers = HeaderMap::new();
        refused.headers(&mut headers);
        assert_eq!((refused.status(), headers.get_all(ACCEPTED).iter().count()), (StatusCode::FORBIDDEN, 2));
    }

    #[test]
    fn requests_and_answers() {
        let mut headers = HeaderMap::new();
        assert_eq!(wanted(&headers), Err(NoUpgrade::NotAsked));
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("spdy/3.1"));
        headers.append(VERSIONS, HeaderValue::from_static("v4.channel.k8s.io"));
        headers.append(VERSIONS, HeaderValue::from_static("v3.channel.k8s.io, v2.channel.k8s.io"));
        let asked = wanted(&headers).unwrap();
        let Wanted::Spdy(versions) = &asked else { panic!("{asked:?}") };
        assert_eq!(versions.len(), 3);
        let answer = switch(&asked, "v4.channel.k8s.io");
        assert_eq!((answer.status().as_u16(), &answer.headers()[UPGRADE]), (101, &HeaderValue::from_static(SPDY)));
        assert_eq!(answer.headers()[VERSIONS], "v4.channel.k8s.io");
    }
}
