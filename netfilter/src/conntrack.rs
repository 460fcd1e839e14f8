//! Conntrack entries over netlink: list those of one protocol, delete exact ones.
//!
//! A UDP flow has no end that the kernel could see: as long as a client keeps sending, its entry
//! keeps pointing at an endpoint that is gone. The dataplane deletes such entries one by one, by
//! their whole original tuple and kernel ID, never by a flush. Upstream counterpart:
//! `pkg/proxy/conntrack`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::nft::Family;
use crate::uapi::*;
use crate::wire::{Attrs, Messages, Writer};

const RECV_BYTES: usize = 64 * 1024;
const RECV_TIMEOUT: Duration = Duration::from_secs(20);

/// Why conntrack could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("conntrack: {phase}: {source}")]
pub struct ConntrackError {
    /// What was being done.
    pub phase: &'static str,
    /// The cause.
    pub source: io::Error,
}

/// One direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Layer 4 protocol number.
    pub proto: u8,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// An entry of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As the first packet came.
    pub orig: Tuple,
    /// As the answer comes; its source is the endpoint.
    pub reply: Tuple,
    /// The kernel's number for the entry, so that a successor is not hit.
    pub id: Option<u32>,
    /// Conntrack zone, 0 for the usual one.
    pub zone: u16,
}

/// What the dataplane needs of conntrack.
pub trait Conntrack: Send {
    /// Calls back for each entry of a family and protocol.
    ///
    /// # Errors
    /// [`ConntrackError`].
    fn list(&mut self, family: Family, proto: u8, each: &mut dyn FnMut(Entry)) -> Result<(), ConntrackError>;

    /// Deletes an entry; one that is gone is no error. Says whether it was there.
    ///
    /// # Errors
    /// [`ConntrackError`].
    fn delete(&mut self, entry: &Entry) -> Result<bool, ConntrackError>;
}

/// Conntrack of the network namespace in which this was opened.
pub struct KernelConntrack {
    socket: Socket,
    seq: u32,
    recv: Vec<u8>,
}

fn family_of(addr: IpAddr) -> Family {
    if addr.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
}

impl KernelConntrack {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ConntrackError`].
    pub fn open() -> Result<Self, ConntrackError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind_auto()?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(RECV_TIMEOUT.as_secs() as i64))?;
            Ok(socket)
        };
        let socket = open().map_err(|source| ConntrackError { phase: "opening a netlink socket", source })?;
        Ok(Self { socket, seq: 0, recv: Vec::with_capacity(RECV_BYTES) })
    }

    fn request(&mut self, kind: u16, flags: u16, family: Family, write: impl FnOnce(&mut Writer)) -> io::Result<u32> {
        self.seq += 1;
        let mut w = Writer::new();
        let kind = (NFNL_SUBSYS_CTNETLINK << 8) | kind;
        let m = w.begin(kind, NLM_F_REQUEST | flags, self.seq, family as u8, 0);
        write(&mut w);
        w.end(m);
        self.socket.send(w.as_bytes(), 0)?;
        Ok(self.seq)
    }

    /// Reads answers up to the end of a dump or an acknowledgement.
    fn answers(&mut self, seq: u32, each: &mut dyn FnMut(Attrs<'_>)) -> io::Result<()> {
        loop {
            self.recv.clear();
            match self.socket.recv(&mut self.recv, 0) {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => continue,
                other => other?,
            };
            for message in Messages(&self.recv).filter(|m| m.seq == seq) {
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code =
                            message.payload.get(..4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                        return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                    }
                    _ => each(message.attrs()),
                }
            }
        }
    }
}

fn addr(attrs: Attrs<'_>, v4: u16, v6: u16) -> Option<IpAddr> {
    if let Some(bytes) = attrs.get(v4) {
        return Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(attrs.get(v6)?).ok()?).into())
}

fn tuple(attrs: Attrs<'_>) -> Option<Tuple> {
    let ip = attrs.nested(CTA_TUPLE_IP);
    let proto = attrs.nested(CTA_TUPLE_PROTO);
    let port = |kind| proto.get(kind).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes);
    Some(Tuple {
        src: addr(ip, CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
        dst: addr(ip, CTA_IP_V4_DST, CTA_IP_V6_DST)?,
        proto: *proto.get(CTA_PROTO_NUM)?.first()?,
        src_port: port(CTA_PROTO_SRC_PORT),
        dst_port: port(CTA_PROTO_DST_PORT),
    })
}

fn entry(attrs: Attrs<'_>) -> Option<Entry> {
    Some(Entry {
        orig: tuple(attrs.nested(CTA_TUPLE_ORIG))?,
        reply: tuple(attrs.nested(CTA_TUPLE_REPLY))?,
        id: attrs.u32(CTA_ID),
        zone: attrs.get(CTA_ZONE).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes),
    })
}

fn write_tuple(w: &mut Writer, kind: u16, tuple: &Tuple) {
    let nest = w.nest(kind);
    let ip = w.nest(CTA_TUPLE_IP);
    match (tuple.src, tuple.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            w.attr(CTA_IP_V4_SRC, &src.octets());
            w.attr(CTA_IP_V4_DST, &dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            w.attr(CTA_IP_V6_SRC, &src.octets());
            w.attr(CTA_IP_V6_DST, &dst.octets());
        }
        _ => {}
    }
    w.end_nest(ip);
    let proto = w.nest(CTA_TUPLE_PROTO);
    w.attr(CTA_PROTO_NUM, &[tuple.proto]);
    w.attr(CTA_PROTO_SRC_PORT, &tuple.src_port.to_be_bytes());
    w.attr(CTA_PROTO_DST_PORT, &tuple.dst_port.to_be_bytes());
    w.end_nest(proto);
    w.end_nest(nest);
}

impl Conntrack for KernelConntrack {
    fn list(&mut self, family: Family, proto: u8, each: &mut dyn FnMut(Entry)) -> Result<(), ConntrackError> {
        let mut list = || -> io::Result<()> {
            let seq = self.request(IPCTNL_MSG_CT_GET, NLM_F_DUMP, family, |_| {})?;
            self.answers(seq, &mut |attrs| {
                if let Some(entry) = entry(attrs).filter(|e| e.orig.proto == proto) {
                    each(entry);
                }
            })
        };
        list().map_err(|source| ConntrackError { phase: "listing entries", source })
    }

    fn delete(&mut self, entry: &Entry) -> Result<bool, ConntrackError> {
        let mut delete = || -> io::Result<bool> {
            let seq = self.request(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, family_of(entry.orig.src), |w| {
                write_tuple(w, CTA_TUPLE_ORIG, &entry.orig);
                if let Some(id) = entry.id {
                    w.attr_u32(CTA_ID, id);
                }
                if entry.zone != 0 {
                    w.attr(CTA_ZONE, &entry.zone.to_be_bytes());
                }
            })?;
            match self.answers(seq, &mut |_| {}) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
                other => other.map(|()| true),
            }
        };
        delete().map_err(|source| ConntrackError { phase: "deleting an entry", source })
    }
}
