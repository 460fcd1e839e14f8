//! The netlink wire format: writing messages and nested attributes into one flat buffer, and
//! reading them back without copying.
//!
//! Invariants: every message and attribute is padded to four bytes; nested attributes carry
//! `NLA_F_NESTED`; lengths are patched when a nest or message is closed. The reader never panics
//! and never reads past its input: a truncated or lying length ends the iteration.
//!
//! Upstream counterpart: libmnl. The crate `netlink-packet-netfilter` 0.4 was judged first: it
//! builds a tree of enums with one `Vec` for each nesting level, which costs several allocations
//! for each set element (250,000 of them in one load here), and it lacks the expressions the
//! dataplane needs (`nat`, `masq`, `numgen`, `fib`, `ct`, `reject`, `dynset`, `counter`).

use crate::uapi::{NLA_F_NESTED, NLA_TYPE_MASK, NLMSG_HDR_LEN};

const ALIGN: usize = 4;
const ATTR_HDR_LEN: usize = 4;
const NFGENMSG_LEN: usize = 4;

const fn align(len: usize) -> usize {
    (len + ALIGN - 1) & !(ALIGN - 1)
}

/// A growing buffer of netlink messages.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    buf: Vec<u8>,
}

/// The place of an open message or nest, to be closed later.
#[derive(Debug, Clone, Copy)]
#[must_use = "an unclosed message has a wrong length"]
pub struct Open(usize);

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buf
    }

    /// Number of bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Whether nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Forgets all bytes, keeping the allocation.
    pub fn clear(&mut self) {
        self.buf.clear();
    }

    /// Starts a message with an nfnetlink header. `kind` holds the subsystem in its upper byte.
    pub fn begin(&mut self, kind: u16, flags: u16, seq: u32, family: u8, resource: u16) -> Open {
        let at = self.buf.len();
        self.buf.extend_from_slice(&0u32.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(&flags.to_ne_bytes());
        self.buf.extend_from_slice(&seq.to_ne_bytes());
        self.buf.extend_from_slice(&0u32.to_ne_bytes());
        self.buf.extend_from_slice(&[family, 0]);
        self.buf.extend_from_slice(&resource.to_be_bytes());
        Open(at)
    }

    /// Closes a message.
    pub fn end(&mut self, open: Open) {
        let len = u32::try_from(self.buf.len() - open.0).unwrap_or(u32::MAX);
        self.buf[open.0..open.0 + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Writes one attribute. Payloads are far below 64 KiB by construction.
    pub fn attr(&mut self, kind: u16, value: &[u8]) {
        let len = (ATTR_HDR_LEN + value.len()) as u16;
        self.buf.extend_from_slice(&len.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(value);
        self.pad();
    }

    /// Writes an attribute holding a NUL-terminated string.
    pub fn attr_str(&mut self, kind: u16, value: &str) {
        let len = (ATTR_HDR_LEN + value.len() + 1) as u16;
        self.buf.extend_from_slice(&len.to_ne_bytes());
        self.buf.extend_from_slice(&kind.to_ne_bytes());
        self.buf.extend_from_slice(value.as_bytes());
        self.buf.push(0);
        self.pad();
    }

    /// Writes a 32-bit number in network order, as nf_tables wants nearly all of them.
    pub fn attr_u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Writes a 64-bit number in network order.
    pub fn attr_u64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Opens a nested attribute.
    pub fn nest(&mut self, kind: u16) -> Open {
        let at = self.buf.len();
        self.buf.extend_from_slice(&0u16.to_ne_bytes());
        self.buf.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        Open(at)
    }

    /// Closes a nested attribute.
    pub fn end_nest(&mut self, open: Open) {
        let len = (self.buf.len() - open.0) as u16;
        self.buf[open.0..open.0 + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// Bytes written since `open`.
    #[must_use]
    pub fn since(&self, open: Open) -> usize {
        self.buf.len() - open.0
    }

    fn pad(&mut self) {
        let missing = align(self.buf.len()) - self.buf.len();
        self.buf.extend_from_slice(&[0u8; ALIGN][..missing]);
    }
}

/// One message as read from a socket or from a [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type with the subsystem in the upper byte.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Sequence number chosen by the sender of the request.
    pub seq: u32,
    /// Port of the process that caused the message, where the kernel says it.
    pub port: u32,
    /// Everything behind the netlink header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The address family of the nfnetlink header.
    #[must_use]
    pub fn family(&self) -> u8 {
        self.payload.first().copied().unwrap_or(0)
    }

    /// The attributes behind the nfnetlink header.
    #[must_use]
    pub fn attrs(&self) -> Attrs<'a> {
        Attrs(self.payload.get(NFGENMSG_LEN..).unwrap_or(&[]))
    }
}

/// Iterator over the messages of a buffer.
#[derive(Debug, Clone)]
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let buf = self.0;
        if buf.len() < NLMSG_HDR_LEN {
            return None;
        }
        let len = u32::from_ne_bytes(buf[0..4].try_into().ok()?) as usize;
        if len < NLMSG_HDR_LEN || len > buf.len() {
            return None;
        }
        self.0 = buf.get(align(len)..).unwrap_or(&[]);
        Some(Message {
            kind: u16::from_ne_bytes(buf[4..6].try_into().ok()?),
            flags: u16::from_ne_bytes(buf[6..8].try_into().ok()?),
            seq: u32::from_ne_bytes(buf[8..12].try_into().ok()?),
            port: u32::from_ne_bytes(buf[12..16].try_into().ok()?),
            payload: &buf[NLMSG_HDR_LEN..len],
        })
    }
}

/// Iterator over attributes, as (type without flags, payload).
#[derive(Debug, Clone, Copy)]
pub struct Attrs<'a>(pub &'a [u8]);

impl<'a> Attrs<'a> {
    /// The payload of the first attribute of a type.
    #[must_use]
    pub fn get(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    /// A string attribute without its terminating NUL.
    #[must_use]
    pub fn str(self, kind: u16) -> Option<&'a str> {
        self.get(kind).and_then(text)
    }

    /// A 32-bit number in network order.
    #[must_use]
    pub fn u32(self, kind: u16) -> Option<u32> {
        self.get(kind).and_then(|v| v.try_into().ok()).map(u32::from_be_bytes)
    }

    /// The attributes inside a nested one.
    #[must_use]
    pub fn nested(self, kind: u16) -> Attrs<'a> {
        Attrs(self.get(kind).unwrap_or(&[]))
    }
}

/// A string payload without its terminating NUL.
#[must_use]
pub fn text(value: &[u8]) -> Option<&str> {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).ok()
}

impl<'a> Iterator for Attrs<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let buf = self.0;
        if buf.len() < ATTR_HDR_LEN {
            return None;
        }
        let len = usize::from(u16::from_ne_bytes(buf[0..2].try_into().ok()?));
        let kind = u16::from_ne_bytes(buf[2..4].try_into().ok()?) & NLA_TYPE_MASK;
        if len < ATTR_HDR_LEN || len > buf.len() {
            return None;
        }
        self.0 = buf.get(align(len)..).unwrap_or(&[]);
        Some((kind, &buf[ATTR_HDR_LEN..len]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut w = Writer::new();
        let m = w.begin(0x0a0c, 1, 7, 2, 9);
        w.attr_str(1, "table");
        let n = w.nest(3);
        w.attr_u32(1, 42);
        w.attr(2, &[1, 2, 3]);
        w.end_nest(n);
        w.end(m);
        let message = Messages(w.as_bytes()).next().unwrap();
        assert_eq!((message.kind, message.seq, message.family()), (0x0a0c, 7, 2));
        assert_eq!(message.attrs().str(1), Some("table"));
        assert_eq!(message.attrs().nested(3).u32(1), Some(42));
        assert_eq!(message.attrs().nested(3).get(2), Some(&[1u8, 2, 3][..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for message in Messages(&bytes) {
                for (_, value) in message.attrs() {
                    let _ = Attrs(value).count();
                    let _ = text(value);
                }
            }
        }
    }
}
