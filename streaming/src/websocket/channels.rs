//! The channel protocols: the first byte of a message says which stream its rest belongs to. A codec without I/O.
//!
//! Binary (`channel.k8s.io`): the byte is the number. Base64 (`base64.channel.k8s.io`): text messages, the number as a digit, the rest in
//! base64. Version 5 adds the message 255, n: no more bytes come on channel n. Upstream counterpart: `httpstream/wsstream`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use tokio_tungstenite::tungstenite::Message;

/// The first byte of version 5's message that closes a channel.
const CLOSE: u8 = 255;

/// A message that is none of the protocol. The connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// Base64 that is none.
    #[error("the message on channel {0} is not base64")]
    Base64(u8),
    /// A base64 message that begins with no digit.
    #[error("the message begins with byte {0:#x} instead of a channel's digit")]
    Digit(u8),
}

/// What a message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Bytes for a channel, perhaps none.
    Data(u8, Bytes),
    /// A channel ends.
    Close(u8),
    /// An empty message.
    Nothing,
}

/// Messages to items and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChannelCodec {
    /// In base64.
    pub base64: bool,
    /// Version 5: channels can be closed one by one.
    pub half_close: bool,
}

impl ChannelCodec {
    /// Reads the payload of a message.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn decode(self, mut payload: Bytes) -> Result<Item, ChannelError> {
        let Some(first) = payload.first().copied() else { return Ok(Item::Nothing) };
        if self.base64 {
            let channel = char::from(first).to_digit(10).ok_or(ChannelError::Digit(first))? as u8;
            let bytes = BASE64_STANDARD.decode(&payload[1..]).map_err(|_| ChannelError::Base64(channel))?;
            return Ok(Item::Data(channel, bytes.into()));
        }
        if self.half_close && first == CLOSE {
            return Ok(payload.get(1).map_or(Item::Nothing, |channel| Item::Close(*channel)));
        }
        Ok(Item::Data(first, payload.split_off(1)))
    }

    /// The payload of a message with bytes of a channel.
    #[must_use]
    pub fn encode(self, channel: u8, bytes: &[u8]) -> Bytes {
        if self.base64 {
            let mut text = String::with_capacity(2 + bytes.len() / 3 * 4 + 3);
            text.push(char::from(b'0' + channel));
            BASE64_STANDARD.encode_string(bytes, &mut text);
            return text.into();
        }
        let mut out = BytesMut::with_capacity(1 + bytes.len());
        out.put_u8(channel);
        out.put_slice(bytes);
        out.freeze()
    }

    /// The payload of the message that closes a channel, where the version has one.
    #[must_use]
    pub fn encode_close(self, channel: u8) -> Option<Bytes> {
        self.half_close.then(|| Bytes::copy_from_slice(&[CLOSE, channel]))
    }

    /// The message for a payload of [`Self::encode`].
    #[must_use]
    pub(super) fn message(self, payload: Bytes) -> Message {
        if self.base64 {
            // Base64 is ASCII.
            let text = String::from_utf8_lossy(&payload).into_owned();
            return Message::text(text);
        }
        Message::Binary(payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_of_each_protocol() {
        let (binary, v5) = (ChannelCodec::default(), ChannelCodec { half_close: true, base64: false });
        let base64 = ChannelCodec { base64: true, half_close: false };
        assert_eq!(binary.encode(1, b"hi"), &b"\x01hi"[..]);
        assert_eq!(base64.encode(1, b"hi"), "1aGk=");
        assert_eq!(base64.decode("0aGk=".into()), Ok(Item::Data(0, "hi".into())));
        assert_eq!(binary.decode(Bytes::from_static(&[4])), Ok(Item::Data(4, Bytes::new())));
        assert_eq!(v5.decode(Bytes::from_static(&[255, 0])), Ok(Item::Close(0)));
        assert_eq!(binary.decode(Bytes::from_static(&[255, 0])), Ok(Item::Data(255, Bytes::from_static(&[0]))));
        assert_eq!(v5.encode_close(0), Some(Bytes::from_static(&[255, 0])));
        assert_eq!(binary.encode_close(0), None);
        assert_eq!(base64.decode("xaGk=".into()), Err(ChannelError::Digit(b'x')));
        assert_eq!(base64.decode("0a".into()), Err(ChannelError::Base64(0)));
        assert_eq!(v5.decode(Bytes::new()), Ok(Item::Nothing));
    }

    proptest! {
        #[test]
        fn round_trips(channel in 0u8..10, bytes in proptest::collection::vec(any::<u8>(), 0..100), base64: bool, half_close: bool) {
            let codec = ChannelCodec { base64, half_close };
            prop_assert_eq!(codec.decode(codec.encode(channel, &bytes)), Ok(Item::Data(channel, bytes.into())));
        }
    }
}
