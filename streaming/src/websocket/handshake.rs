//! The handshake of RFC 6455: pure functions over headers.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue};

/// What the key is hashed with (RFC 6455, section 1.3).
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A handshake that cannot be accepted. Not retryable as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Another version of the protocol.
    #[error("WebSocket version {0:?} is not supported, only 13")]
    Version(String),
    /// No usable key.
    #[error("the header Sec-WebSocket-Key is missing or not 16 bytes in base64")]
    Key,
}

/// Whether headers ask for an upgrade to `protocol` (compared without case).
#[must_use]
pub fn is_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    let has = |name, wanted: &str| list(headers, name).any(|token| token.eq_ignore_ascii_case(wanted));
    has(CONNECTION, "upgrade") && has(UPGRADE, protocol)
}

/// The comma-separated items of all headers of a name.
fn list(headers: &HeaderMap, name: http::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty())
}

/// What a client offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    accept: String,
    /// Subprotocols, in the client's order.
    pub protocols: Vec<String>,
}

impl Offer {
    /// Reads the headers of a request for which [`is_upgrade`] holds.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn parse(headers: &HeaderMap) -> Result<Self, HandshakeError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
        let version = text(SEC_WEBSOCKET_VERSION);
        if version != "13" {
            return Err(HandshakeError::Version(version.to_owned()));
        }
        let key = text(SEC_WEBSOCKET_KEY);
        if BASE64_STANDARD.decode(key).map_or(0, |bytes| bytes.len()) != 16 {
            return Err(HandshakeError::Key);
        }
        let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{MAGIC}").as_bytes());
        Ok(Self {
            accept: BASE64_STANDARD.encode(hash),
            protocols: list(headers, SEC_WEBSOCKET_PROTOCOL).map(str::to_owned).collect(),
        })
    }

    /// Sets the headers of the 101 answer.
    pub fn answer(&self, protocol: &str, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        // Base64 and our own protocol names are always header values.
        if let Ok(value) = HeaderValue::from_str(&self.accept) {
            headers.insert(SEC_WEBSOCKET_ACCEPT, value);
        }
        if !protocol.is_empty()
            && let Ok(value) = HeaderValue::from_str(protocol)
        {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn the_example_of_the_rfc() {
        let asked = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
        ]);
        assert!(is_upgrade(&asked, "websocket") && !is_upgrade(&asked, "SPDY/3.1"));
        let offer = Offer::parse(&asked).unwrap();
        assert_eq!(offer.protocols, ["v5.channel.k8s.io", "v4.channel.k8s.io"]);
        let mut answer = HeaderMap::new();
        offer.answer("v5.channel.k8s.io", &mut answer);
        assert_eq!(answer[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
    }

    #[test]
    fn bad_handshakes_are_refused() {
        let old = headers(&[("sec-websocket-version", "8"), ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]);
        assert_eq!(Offer::parse(&old), Err(HandshakeError::Version("8".into())));
        let short = headers(&[("sec-websocket-version", "13"), ("sec-websocket-key", "YQ==")]);
        assert_eq!(Offer::parse(&short), Err(HandshakeError::Key));
        assert!(!is_upgrade(&headers(&[("upgrade", "websocket")]), "websocket"));
    }
}
