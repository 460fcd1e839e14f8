//! Entry points for fuzzing: any bytes may come, nothing may panic or grow without bound.

use bytes::{Bytes, BytesMut};

use crate::spdy::Decoder;
use crate::websocket::ChannelCodec;

/// Decodes bytes as SPDY frames, in pieces whose size the first byte chooses.
pub fn spdy(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
    for piece in rest.chunks(usize::from(*first).max(1)) {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Decodes bytes as a message of each channel protocol; what decodes must encode to the same meaning.
///
/// # Panics
/// When it does not: that is what a fuzzer looks for.
pub fn channels(input: &[u8]) {
    for (base64, half_close) in [(false, false), (false, true), (true, false)] {
        let codec = ChannelCodec { base64, half_close };
        let Ok(item) = codec.decode(Bytes::copy_from_slice(input)) else { continue };
        if let crate::websocket::Item::Data(channel, bytes) = &item
            && (!half_close || *channel != u8::MAX)
        {
            assert_eq!(codec.decode(codec.encode(*channel, bytes)), Ok(item), "{input:?}");
        }
    }
}
