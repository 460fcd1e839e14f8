//! Frames: a codec over buffers, without I/O.
//!
//! Control frames are decoded whole and may not be large; data frames are handed on in whatever pieces arrive, so that a frame of
//! 16 MiB needs no buffer of its own. Unknown control frames are skipped, as SPDY demands.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::headers::{Deflater, HeaderError, Headers, Inflater};

/// SPDY's version on the wire.
const VERSION: u16 = 3;
/// First bytes of every frame.
const HEAD: usize = 8;
/// Largest control frame. Ours and upstream's are below 1 KiB.
const MAX_CONTROL: usize = 64 << 10;
/// Largest data frame.
const MAX_DATA: usize = (1 << 24) - 1;
/// Stream numbers have 31 bits.
const ID: u32 = 0x7fff_ffff;
/// The stream or frame is the last of its direction.
const FLAG_FIN: u8 = 1;
/// Status of a RST_STREAM: too many streams, or none wanted.
pub const REFUSED_STREAM: u32 = 3;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// A frame that cannot be decoded: the connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Another SPDY, or no SPDY at all.
    #[error("a frame of SPDY version {0} instead of {VERSION}")]
    Version(u16),
    /// Larger than [`MAX_CONTROL`].
    #[error("a control frame of {0} bytes; {MAX_CONTROL} are allowed")]
    TooLarge(usize),
    /// Shorter than its type needs.
    #[error("a control frame of type {kind} with only {length} bytes")]
    TooShort {
        /// Its type.
        kind: u16,
        /// Its length.
        length: usize,
    },
    /// Stream 0.
    #[error("a frame for stream 0")]
    StreamZero,
    /// Its headers.
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

/// A decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The peer opens a stream.
    SynStream {
        /// Its number.
        id: u32,
        /// Its headers.
        headers: Headers,
        /// No bytes will come.
        fin: bool,
    },
    /// The peer accepts our stream.
    SynReply {
        /// Its number.
        id: u32,
        /// No bytes will come.
        fin: bool,
    },
    /// A stream is given up.
    RstStream {
        /// Its number.
        id: u32,
        /// Why.
        status: u32,
    },
    /// Bytes of a stream, perhaps not all of a frame.
    Data {
        /// Its number.
        id: u32,
        /// The bytes.
        bytes: Bytes,
        /// No more will come.
        fin: bool,
    },
    /// To be answered if it is not an answer itself.
    Ping(u32),
    /// The peer opens and accepts no more streams.
    GoAway,
    /// More headers for a stream.
    Headers {
        /// Its number.
        id: u32,
        /// No bytes will come.
        fin: bool,
    },
    /// SETTINGS, WINDOW_UPDATE and types unknown to us, which ask for nothing.
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    id: u32,
    left: usize,
    fin: bool,
}

/// Bytes to frames.
#[derive(Debug, Default)]
pub struct Decoder {
    inflater: Option<Inflater>,
    /// The data frame whose bytes are arriving.
    rest: Option<Rest>,
}

impl Decoder {
    /// Takes the next frame out of `buffer`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// [`DecodeError`]; the decoder is of no use afterwards.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, DecodeError> {
        if let Some(rest) = self.rest.take() {
            return Ok(self.data(rest, buffer));
        }
        let Some(head) = buffer.first_chunk::<HEAD>().copied() else { return Ok(None) };
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        let flags = head[4];
        if first & !ID == 0 {
            if first == 0 {
                return Err(DecodeError::StreamZero);
            }
            buffer.advance(HEAD);
            let rest = Rest { id: first, left: length, fin: flags & FLAG_FIN != 0 };
            return Ok(self.data(rest, buffer));
        }
        let version = (first >> 16) as u16 & 0x7fff;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        if length > MAX_CONTROL {
            return Err(DecodeError::TooLarge(length));
        }
        if buffer.len() < HEAD + length {
            return Ok(None);
        }
        buffer.advance(HEAD);
        let body = buffer.split_to(length);
        self.control(first as u16, flags, &body).map(Some)
    }

    fn data(&mut self, rest: Rest, buffer: &mut BytesMut) -> Option<Frame> {
        let now = rest.left.min(buffer.len());
        if now == 0 && rest.left > 0 {
            self.rest = Some(rest);
            return None;
        }
        let bytes = buffer.split_to(now).freeze();
        let left = rest.left - now;
        if left > 0 {
            self.rest = Some(Rest { left, ..rest });
        }
        Some(Frame::Data { id: rest.id, bytes, fin: rest.fin && left == 0 })
    }

    fn control(&mut self, kind: u16, flags: u8, body: &[u8]) -> Result<Frame, DecodeError> {
        let word = |at: usize| -> Result<u32, DecodeError> {
            let bytes = body.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(DecodeError::TooShort { kind, length: body.len() })
        };
        let stream = || match word(0)? & ID {
            0 => Err(DecodeError::StreamZero),
            id => Ok(id),
        };
        let fin = flags & FLAG_FIN != 0;
        let mut block = |from: usize| -> Result<Headers, DecodeError> {
            let block = body.get(from..).ok_or(DecodeError::TooShort { kind, length: body.len() })?;
            Ok(self.inflater.get_or_insert_default().read(block)?)
        };
        Ok(match kind {
            // Number, associated stream, priority and slot, headers.
            SYN_STREAM => {
                let id = stream()?;
                Frame::SynStream { id, headers: block(10)?, fin }
            }
            SYN_REPLY => {
                let id = stream()?;
                block(4)?;
                Frame::SynReply { id, fin }
            }
            HEADERS => {
                let id = stream()?;
                block(4)?;
                Frame::Headers { id, fin }
            }
            RST_STREAM => Frame::RstStream { id: stream()?, status: word(4)? },
            PING => Frame::Ping(word(0)?),
            GOAWAY => Frame::GoAway,
            // SETTINGS (4) and WINDOW_UPDATE (9) among them.
            _ => Frame::Other,
        })
    }
}

/// Frames to bytes.
#[derive(Debug, Default)]
pub struct Encoder {
    deflater: Deflater,
}

fn control(kind: u16, flags: u8, length: usize, out: &mut BytesMut) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32((u32::from(flags) << 24) | length as u32);
}

impl Encoder {
    fn with_headers(&mut self, kind: u16, flags: u8, before: &[u8], headers: &Headers, out: &mut BytesMut) {
        let begin = out.len();
        control(kind, flags, 0, out);
        out.put_slice(before);
        self.deflater.write(headers, out);
        let length = (out.len() - begin - HEAD) as u32;
        out[begin + 5..begin + HEAD].copy_from_slice(&length.to_be_bytes()[1..]);
    }

    /// Opens a stream.
    pub fn syn_stream(&mut self, id: u32, headers: &Headers, fin: bool, out: &mut BytesMut) {
        let mut before = [0; 10];
        before[..4].copy_from_slice(&id.to_be_bytes());
        let flags = if fin { FLAG_FIN } else { 0 };
        self.with_headers(SYN_STREAM, flags, &before, headers, out);
    }

    /// Accepts a stream.
    pub fn syn_reply(&mut self, id: u32, headers: &Headers, out: &mut BytesMut) {
        self.with_headers(SYN_REPLY, 0, &id.to_be_bytes(), headers, out);
    }

    /// The head of a data frame; its bytes follow.
    pub fn data_head(id: u32, length: usize, fin: bool, out: &mut BytesMut) {
        debug_assert!(length <= MAX_DATA);
        out.put_u32(id & ID);
        out.put_u32((u32::from(fin) << 24) | length as u32);
    }

    /// Bytes of a stream, in as many frames as they need.
    pub fn data(id: u32, bytes: &[u8], out: &mut BytesMut) {
        for piece in bytes.chunks(MAX_DATA) {
            Self::data_head(id, piece.len(), false, out);
            out.put_slice(piece);
        }
    }

    /// The end of our half of a stream.
    pub fn fin(id: u32, out: &mut BytesMut) {
        Self::data_head(id, 0, true, out);
    }

    /// Gives a stream up.
    pub fn rst_stream(id: u32, status: u32, out: &mut BytesMut) {
        control(RST_STREAM, 0, 8, out);
        out.put_u32(id & ID);
        out.put_u32(status);
    }

    /// A ping or the answer to one.
    pub fn ping(id: u32, out: &mut BytesMut) {
        control(PING, 0, 4, out);
        out.put_u32(id);
    }

    /// No more streams; `last` is the last one accepted.
    pub fn go_away(last: u32, out: &mut BytesMut) {
        control(GOAWAY, 0, 8, out);
        out.put_u32(last & ID);
        out.put_u32(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(wire: &[u8], step: usize) -> Result<Vec<Frame>, DecodeError> {
        let (mut decoder, mut buffer, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
        for piece in wire.chunks(step) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut buffer)? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    /// Joins the pieces of data frames.
    fn joined(frames: Vec<Frame>) -> Vec<Frame> {
        let mut out: Vec<Frame> = Vec::new();
        for frame in frames {
            match (out.last_mut(), frame) {
                (Some(Frame::Data { id, bytes, fin: last @ false }), Frame::Data { id: same, bytes: more, fin })
                    if *id == same && !more.is_empty() =>
                {
                    *bytes = [&bytes[..], &more[..]].concat().into();
                    *last = fin;
                }
                (_, frame) => out.push(frame),
            }
        }
        out
    }

    #[test]
    fn frames_as_on_the_wire() {
        let mut out = BytesMut::new();
        Encoder::ping(7, &mut out);
        Encoder::rst_stream(5, REFUSED_STREAM, &mut out);
        Encoder::data(3, b"hi", &mut out);
        Encoder::fin(3, &mut out);
        Encoder::go_away(9, &mut out);
        let expected: &[&[u8]] = &[
            &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 7],
            &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 3],
            &[0, 0, 0, 3, 0, 0, 0, 2, b'h', b'i'],
            &[0, 0, 0, 3, 1, 0, 0, 0],
            &[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0],
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn bad_frames_are_refused() {
        assert_eq!(all(&[0x80, 2, 0, 6, 0, 0, 0, 0], 99), Err(DecodeError::Version(2)));
        assert_eq!(all(&[0; 8], 99), Err(DecodeError::StreamZero));
        assert_eq!(all(&[0x80, 3, 0, 1, 0, 0xff, 0, 0], 99), Err(DecodeError::TooLarge(0xff_0000)));
        assert_eq!(all(&[0x80, 3, 0, 6, 0, 0, 0, 0], 99), Err(DecodeError::TooShort { kind: 6, length: 0 }));
        assert_eq!(all(&[0x80, 3, 0x12, 0x34, 0, 0, 0, 1, 9], 99), Ok(vec![Frame::Other]), "unknown types are skipped");
    }

    proptest! {
        #[test]
        fn frames_round_trip_however_they_are_cut(step in 1usize..40, bodies in
            proptest::collection::vec((1u32..1000, proptest::collection::vec(any::<u8>(), 1..100), any::<bool>()), 0..8)) {
            let (mut encoder, mut wire, mut expected) = (Encoder::default(), BytesMut::new(), Vec::new());
            for (id, bytes, fin) in bodies {
                let headers = Headers::new([("streamtype", "data"), ("port", "80")]);
                encoder.syn_stream(id, &headers, false, &mut wire);
                expected.push(Frame::SynStream { id, headers, fin: false });
                Encoder::data_head(id, bytes.len(), fin, &mut wire);
                wire.extend_from_slice(&bytes);
                expected.push(Frame::Data { id, bytes: bytes.into(), fin });
                encoder.syn_reply(id, &Headers::default(), &mut wire);
                expected.push(Frame::SynReply { id, fin: false });
            }
            prop_assert_eq!(joined(all(&wire, step).unwrap()), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1usize..50) {
            let _ = all(&bytes, step);
        }
    }
}
