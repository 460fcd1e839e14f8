//! IP addresses and CIDRs.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/ip.go` and `cidr.go`, whose addresses are Go's `netip`: no leading zeros, no zones,
//! no IPv4-mapped IPv6.

use std::fmt;
use std::net::IpAddr;

use cel::ExecutionError;
use cel::common::types::STRING_TYPE;
use cel::common::value::CowVal;

use super::{Args, Registry, arg, failed, out_bool, out_int, out_text, text};
use crate::value::opaque::opaque;

/// An address and a prefix length; the bits after the prefix are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cidr {
    address: IpAddr,
    length: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Cidr {
    fn masked(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0);
                IpAddr::from((u32::from(address) & mask).to_be_bytes())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                IpAddr::from((u128::from(address) & mask).to_be_bytes())
            }
        };
        Self { address, length: self.length }
    }

    fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && Self { address, length: self.length }.masked() == self.masked()
    }
}

opaque!(
    /// An IP address.
    IpVal(IpAddr), IP, "net.IP"
);
opaque!(
    /// A network.
    CidrVal(Cidr), CIDR, "net.CIDR"
);

pub(super) fn register(registry: &mut Registry) {
    registry.named_type(&IP);
    registry.named_type(&CIDR);
    let ip: for<'b, 'v> fn(Args<'b, 'v>) -> super::Out<'b, 'v> =
        |args| Ok(CowVal::owned(IpVal(parse_ip(text(&args, 0)?)?)));
    registry.global("ip", &[&STRING_TYPE], ip);
    registry.global("isIP", &[&STRING_TYPE], |args| out_bool(parse_ip(text(&args, 0)?).is_ok()));
    registry.global("ip.isCanonical", &[&STRING_TYPE], |args| {
        let raw = text(&args, 0)?;
        out_bool(parse_ip(raw)?.to_string() == raw)
    });
    registry.global("string", &[&IP], |args| out_text(address(&args, 0)?.to_string()));
    registry.member("family", &IP, &[], |args| out_int(if address(&args, 0)?.is_ipv4() { 4 } else { 6 }));
    registry.member("isUnspecified", &IP, &[], |args| out_bool(address(&args, 0)?.is_unspecified()));
    registry.member("isLoopback", &IP, &[], |args| out_bool(address(&args, 0)?.is_loopback()));
    registry.member("isLinkLocalMulticast", &IP, &[], |args| out_bool(link_local_multicast(address(&args, 0)?)));
    registry.member("isLinkLocalUnicast", &IP, &[], |args| out_bool(link_local_unicast(address(&args, 0)?)));
    registry.member("isGlobalUnicast", &IP, &[], |args| out_bool(global_unicast(address(&args, 0)?)));
    register_cidr(registry);
}

fn register_cidr(registry: &mut Registry) {
    registry.global("cidr", &[&STRING_TYPE], |args| Ok(CowVal::owned(CidrVal(parse_cidr(text(&args, 0)?)?))));
    registry.global("isCIDR", &[&STRING_TYPE], |args| out_bool(parse_cidr(text(&args, 0)?).is_ok()));
    registry.global("string", &[&CIDR], |args| out_text(network(&args, 0)?.to_string()));
    registry.member("ip", &CIDR, &[], |args| Ok(CowVal::owned(IpVal(network(&args, 0)?.address))));
    registry.member("masked", &CIDR, &[], |args| Ok(CowVal::owned(CidrVal(network(&args, 0)?.masked()))));
    registry.member("prefixLength", &CIDR, &[], |args| out_int(i64::from(network(&args, 0)?.length)));
    registry.member("containsIP", &CIDR, &[&IP], |args| out_bool(network(&args, 0)?.contains(address(&args, 1)?)));
    registry.member("containsIP", &CIDR, &[&STRING_TYPE], |args| {
        out_bool(network(&args, 0)?.contains(parse_ip(text(&args, 1)?)?))
    });
    registry.member("containsCIDR", &CIDR, &[&CIDR], |args| out_bool(covers(network(&args, 0)?, network(&args, 1)?)));
    registry.member("containsCIDR", &CIDR, &[&STRING_TYPE], |args| {
        out_bool(covers(network(&args, 0)?, parse_cidr(text(&args, 1)?)?))
    });
}

/// Upstream compares the masked network with the other's address as it is, so an inner network with bits after the outer prefix is
/// judged by those bits; for networks in canonical form that is containment.
fn covers(outer: Cidr, inner: Cidr) -> bool {
    outer.length <= inner.length && outer.contains(inner.address)
}

fn address(args: &Args<'_, '_>, at: usize) -> Result<IpAddr, ExecutionError> {
    arg::<IpVal>(args, at).map(|value| value.0)
}

fn network(args: &Args<'_, '_>, at: usize) -> Result<Cidr, ExecutionError> {
    arg::<CidrVal>(args, at).map(|value| value.0)
}

fn parse_ip(raw: &str) -> Result<IpAddr, ExecutionError> {
    if raw.contains('%') {
        return Err(failed(format!("IP address {raw:?} with zone value is not allowed")));
    }
    let address: IpAddr = raw.parse().map_err(|_| {
        failed(format!(
            "IP Address {raw:?} parse error during conversion from string: ParseAddr({raw:?}): unable to parse IP"
        ))
    })?;
    if matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return Err(failed(format!("IPv4-mapped IPv6 address {raw:?} is not allowed")));
    }
    Ok(address)
}

fn parse_cidr(raw: &str) -> Result<Cidr, ExecutionError> {
    let refused = |why: &str| {
        failed(format!(
            "network address parse error during conversion from string: network address parse error during conversion from \
             string: netip.ParsePrefix({raw:?}): {why}"
        ))
    };
    let (address, length) = raw.split_once('/').ok_or_else(|| refused("no '/'"))?;
    let address = parse_ip(address).map_err(|_| refused("unable to parse IP"))?;
    let plain = length == "0" || (!length.starts_with('0') && length.bytes().all(|c| c.is_ascii_digit()));
    let length: u8 = if plain { length.parse().ok() } else { None }.ok_or_else(|| refused("bad bits after slash"))?;
    if length > if address.is_ipv4() { 32 } else { 128 } {
        return Err(refused("prefix length out of range"));
    }
    Ok(Cidr { address, length })
}

fn link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

fn global_unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || link_local_unicast(address))
}
