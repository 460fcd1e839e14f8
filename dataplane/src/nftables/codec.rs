//! Keys and values of map elements as the kernel holds them: fields padded to four bytes,
//! addresses and ports in network order, the index in host order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::FrontendKey;
use crate::model::types::{Ep, Family, Protocol};

/// Room for the longest key: IPv6 address, protocol, port, IPv6 address.
const MAX: usize = 40;

/// A short byte string on the stack.
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    buf: [u8; MAX],
    len: usize,
}

impl Bytes {
    fn new() -> Self {
        Self { buf: [0; MAX], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len().next_multiple_of(4);
    }

    fn push_addr(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(v4) => self.push(&v4.octets()),
            IpAddr::V6(v6) => self.push(&v6.octets()),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

/// `[addr .] proto . port`.
#[must_use]
pub fn key(frontend: &FrontendKey) -> Bytes {
    let mut bytes = Bytes::new();
    if !frontend.is_node_port() {
        bytes.push_addr(frontend.addr);
    }
    bytes.push(&[frontend.protocol as u8]);
    bytes.push(&frontend.port.to_be_bytes());
    bytes
}

/// `[addr .] proto . port . index`.
#[must_use]
pub fn indexed(frontend: &FrontendKey, index: u16) -> Bytes {
    let mut bytes = key(frontend);
    bytes.push(&u32::from(index).to_ne_bytes());
    bytes
}

/// `addr . proto . port . source`.
#[must_use]
pub fn sourced(frontend: &FrontendKey, source: IpAddr) -> Bytes {
    let mut bytes = key(frontend);
    bytes.push_addr(source);
    bytes
}

/// `addr . port`.
#[must_use]
pub fn endpoint(ep: &Ep) -> Bytes {
    let mut bytes = Bytes::new();
    bytes.push_addr(ep.addr);
    bytes.push(&ep.port.to_be_bytes());
    bytes
}

/// `addr`.
#[must_use]
pub fn address(addr: IpAddr) -> Bytes {
    let mut bytes = Bytes::new();
    bytes.push_addr(addr);
    bytes
}

/// Source and destination of a pod that reaches itself.
#[must_use]
pub fn hairpin_key(addr: IpAddr) -> Vec<u8> {
    let one = address(addr);
    [one.get(), one.get()].concat()
}

fn read_addr(family: Family, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        Family::V4 => {
            let (addr, rest) = bytes.split_first_chunk::<4>()?;
            Some((Ipv4Addr::from(*addr).into(), rest))
        }
        Family::V6 => {
            let (addr, rest) = bytes.split_first_chunk::<16>()?;
            Some((Ipv6Addr::from(*addr).into(), rest))
        }
    }
}

/// Reads a key; what follows it is returned, too.
#[must_use]
pub fn read_key(family: Family, node_port: bool, bytes: &[u8]) -> Option<(FrontendKey, &[u8])> {
    let (addr, rest) = if node_port { (family.unspecified(), bytes) } else { read_addr(family, bytes)? };
    let (proto, rest) = rest.split_first_chunk::<4>()?;
    let (port, rest) = rest.split_first_chunk::<4>()?;
    let key =
        FrontendKey { addr, port: u16::from_be_bytes([port[0], port[1]]), protocol: Protocol::from_number(proto[0])? };
    Some((key, rest))
}

/// Reads an index.
#[must_use]
pub fn read_index(bytes: &[u8]) -> Option<u16> {
    u16::try_from(u32::from_ne_bytes(bytes.try_into().ok()?)).ok()
}

/// Reads an endpoint.
#[must_use]
pub fn read_endpoint(family: Family, bytes: &[u8]) -> Option<Ep> {
    let (addr, rest) = read_addr(family, bytes)?;
    let port = rest.first_chunk::<2>()?;
    Some(Ep { addr, port: u16::from_be_bytes(*port) })
}

/// Reads an address.
#[must_use]
pub fn read_address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    read_addr(family, bytes).map(|(addr, _)| addr)
}
