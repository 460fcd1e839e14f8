//! Header blocks: names and values, compressed by one zlib stream for each direction with SPDY's dictionary.
//!
//! We write blocks uncompressed ("stored"), which every inflater reads: headers are a few dozen bytes, and a compressor would cost a
//! quarter of a megabyte for each connection. Each block ends with the empty stored block of a sync flush, on which Go's inflater relies.

use bytes::{BufMut, BytesMut};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// Words of the dictionary, each preceded by its length.
const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];
/// The rest of the dictionary.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
/// Adler-32 of the dictionary, by which a zlib stream names it.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;
/// Deflate's window.
const WINDOW: usize = 32 << 10;
/// A block may inflate to so much.
const MAX_BLOCK: usize = 64 << 10;
/// Names in a block.
const MAX_HEADERS: usize = 128;
/// Largest stored block of deflate.
const MAX_STORED: usize = 0xffff;

fn dictionary() -> Vec<u8> {
    let mut out = Vec::with_capacity(1423);
    for word in WORDS {
        out.put_u32(word.len() as u32);
        out.extend_from_slice(word.as_bytes());
    }
    out.extend_from_slice(TAIL.as_bytes());
    out
}

/// A header block that cannot be read. Not retryable: the connection's zlib stream is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// No zlib stream.
    #[error("the header block does not begin with a zlib header")]
    NoZlib,
    /// Another dictionary than SPDY/3's.
    #[error("the header block was compressed with the dictionary {0:#x}, not SPDY/3's")]
    Dictionary(u32),
    /// Broken deflate data.
    #[error("the header block does not inflate")]
    Deflate,
    /// More than anyone needs.
    #[error("the header block is larger than {MAX_BLOCK} bytes or has more than {MAX_HEADERS} names")]
    TooLarge,
    /// The inner lengths do not fit.
    #[error("the header block ends before its last value")]
    Truncated,
    /// Not UTF-8.
    #[error("a header is not UTF-8")]
    NotText,
}

/// Names and values of a stream. Names compare without case; on the wire they are lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// From pairs.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect())
    }

    /// The first value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        // Several values of a name are joined by NUL.
        value.split('\0').next()
    }

    fn block(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(self.0.len() as u32);
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            out.put_u32(text.len() as u32);
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    fn parse(block: &[u8]) -> Result<Self, HeaderError> {
        let mut rest = block;
        let count = take_u32(&mut rest)? as usize;
        if count > MAX_HEADERS {
            return Err(HeaderError::TooLarge);
        }
        let mut pairs = Vec::with_capacity(count);
        for _ in 0..count {
            pairs.push((take_text(&mut rest)?, take_text(&mut rest)?));
        }
        Ok(Self(pairs))
    }
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, HeaderError> {
    let (head, tail) = rest.split_first_chunk::<4>().ok_or(HeaderError::Truncated)?;
    *rest = tail;
    Ok(u32::from_be_bytes(*head))
}

fn take_text(rest: &mut &[u8]) -> Result<String, HeaderError> {
    let length = take_u32(rest)? as usize;
    let (text, tail) = rest.split_at_checked(length).ok_or(HeaderError::Truncated)?;
    *rest = tail;
    String::from_utf8(text.to_vec()).map_err(|_| HeaderError::NotText)
}

/// Writes header blocks of one direction.
#[derive(Debug, Default)]
pub(super) struct Deflater {
    begun: bool,
}

impl Deflater {
    /// Appends the next block.
    pub fn write(&mut self, headers: &Headers, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.begun, true) {
            // Deflate with a 32 KiB window, a preset dictionary, the check bits that fit; then which dictionary.
            out.put_slice(&[0x78, 0x20]);
            out.put_u32(DICTIONARY_ID);
        }
        for piece in headers.block().chunks(MAX_STORED) {
            stored(piece, out);
        }
        stored(&[], out);
    }
}

fn stored(piece: &[u8], out: &mut BytesMut) {
    let length = piece.len() as u16;
    out.put_u8(0);
    out.put_u16_le(length);
    out.put_u16_le(!length);
    out.put_slice(piece);
}

/// Reads header blocks of one direction.
pub(super) struct Inflater {
    state: DecompressorOxide,
    window: Box<[u8]>,
    at: usize,
    begun: bool,
}

impl Default for Inflater {
    fn default() -> Self {
        Self { state: DecompressorOxide::new(), window: vec![0; WINDOW].into_boxed_slice(), at: 0, begun: false }
    }
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl Inflater {
    /// Reads the next block.
    pub fn read(&mut self, input: &[u8]) -> Result<Headers, HeaderError> {
        let mut input = if self.begun { input } else { self.begin(input)? };
        let mut block = Vec::new();
        loop {
            let (status, read, written) =
                decompress(&mut self.state, input, &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            block.extend_from_slice(&self.window[self.at..self.at + written]);
            self.at = (self.at + written) % WINDOW;
            input = &input[read..];
            match status {
                _ if block.len() > MAX_BLOCK => return Err(HeaderError::TooLarge),
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput if input.is_empty() => return Headers::parse(&block),
                _ => return Err(HeaderError::Deflate),
            }
        }
    }

    fn begin<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], HeaderError> {
        let (head, rest) = input.split_first_chunk::<2>().ok_or(HeaderError::NoZlib)?;
        if head[0] & 0x0f != 8 || u16::from_be_bytes(*head) % 31 != 0 {
            return Err(HeaderError::NoZlib);
        }
        self.begun = true;
        if head[1] & 0x20 == 0 {
            return Ok(rest);
        }
        let (id, rest) = rest.split_first_chunk::<4>().ok_or(HeaderError::NoZlib)?;
        let id = u32::from_be_bytes(*id);
        if id != DICTIONARY_ID {
            return Err(HeaderError::Dictionary(id));
        }
        let words = dictionary();
        self.window[..words.len()].copy_from_slice(&words);
        self.at = words.len();
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn adler32(bytes: &[u8]) -> u32 {
        let (mut a, mut b) = (1u32, 0u32);
        for byte in bytes {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        (b << 16) | a
    }

    #[test]
    fn the_dictionary_is_spdy_3s() {
        assert_eq!((dictionary().len(), adler32(&dictionary())), (1423, DICTIONARY_ID));
    }

    /// Two blocks as Python's zlib (level 9, the dictionary, sync flush) writes them: the second refers into the first.
    const COMPRESSED: [&str; 2] = [FIRST, SECOND];
    const FIRST: &str =
        "78f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45e01c6061606100a4398b20d198094ade8c0600000000ffff";
    const SECOND: &str = "c2aa19540e2512d60b000000ffff";

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn reads_what_a_real_compressor_wrote() {
        let mut inflater = Inflater::default();
        let read = COMPRESSED.map(|block| inflater.read(&unhex(block)).unwrap());
        assert_eq!(read[0].get("streamType"), Some("error"));
        assert_eq!((read[1].get("streamtype"), read[1].get("port")), (Some("data"), Some("8080")));
    }

    #[test]
    fn bad_blocks_are_refused() {
        let read = |bytes: &[u8]| Inflater::default().read(bytes);
        assert_eq!(read(b""), Err(HeaderError::NoZlib));
        assert_eq!(read(b"GET / "), Err(HeaderError::NoZlib));
        assert_eq!(read(&[0x78, 0x20, 0, 0, 0, 1]), Err(HeaderError::Dictionary(1)));
        assert_eq!(read(&[0x78, 0x9c, 0x07]), Err(HeaderError::Deflate));
        let mut bomb = BytesMut::new();
        Deflater::default().write(&Headers::new([("a", "b".repeat(MAX_BLOCK).as_str())]), &mut bomb);
        assert_eq!(read(&bomb), Err(HeaderError::TooLarge));
        let mut cut = BytesMut::from(&[0x78, 0x20][..]);
        cut.put_u32(DICTIONARY_ID);
        stored(&[0, 0, 0, 1, 0, 0, 0, 9, b'a'], &mut cut);
        stored(&[], &mut cut);
        assert_eq!(read(&cut), Err(HeaderError::Truncated));
    }

    proptest! {
        #[test]
        fn blocks_round_trip(blocks in proptest::collection::vec(
            proptest::collection::vec(("[a-z-]{0,20}", "[ -~]{0,200}"), 0..20), 1..5)) {
            let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
            for pairs in blocks {
                let headers = Headers::new(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())));
                let mut wire = BytesMut::new();
                deflater.write(&headers, &mut wire);
                prop_assert_eq!(inflater.read(&wire).unwrap(), headers);
            }
        }
    }
}
