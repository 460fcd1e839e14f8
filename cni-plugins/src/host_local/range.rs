//! Ranges of addresses and the order in which they are handed out. Pure.
//!
//! Upstream counterpart: `plugins/ipam/host-local/backend/allocator`: round-robin from the last address handed out, through all
//! ranges of the set, never the gateway.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::types::text;

/// A range as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RangeSpec {
    /// The subnet; its host bits must be zero.
    #[serde(with = "text")]
    pub subnet: IpNet,
    /// First address, inclusive.
    #[serde(default)]
    pub range_start: Option<IpAddr>,
    /// Last address, inclusive.
    #[serde(default)]
    pub range_end: Option<IpAddr>,
    /// The gateway, never handed out.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
}

/// A complete range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    /// The gateway, never handed out.
    pub gateway: IpAddr,
}

/// What is wrong with a range or a set of ranges.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// A set without ranges.
    #[error("empty range set")]
    Empty,
    /// The subnet is an address in disguise.
    #[error("Network has host bits set. For a subnet mask of length {0} the network address is {1}")]
    HostBits(u8, IpAddr),
    /// No room for a gateway and an address.
    #[error("Network {0} too small to allocate from")]
    TooSmall(IpNet),
    /// An address of the range is not in its subnet, or of the other family.
    #[error("{0} {1} not in network {2}")]
    Outside(&'static str, IpAddr, IpNet),
    /// The range is the wrong way round.
    #[error("range start {0} is after range end {1}")]
    Reversed(IpAddr, IpAddr),
    /// One set is one address, so of one family.
    #[error("mixed address families")]
    Mixed,
    /// Two ranges of a set share addresses.
    #[error("ranges {0} and {1} overlap")]
    Overlap(String, String),
}

/// Ranges that together give one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl Range {
    /// Fills in what the configuration leaves out, and checks the rest.
    pub fn new(spec: &RangeSpec) -> Result<Self, RangeError> {
        let subnet = spec.subnet;
        let (prefix, bits) = (subnet.prefix_len(), subnet.max_prefix_len());
        if prefix > bits - 2 {
            return Err(RangeError::TooSmall(subnet));
        }
        if subnet.addr() != subnet.network() {
            return Err(RangeError::HostBits(prefix, subnet.network()));
        }
        let inside = |what, ip: IpAddr| {
            let ip = ip.to_canonical();
            if subnet.contains(&ip) { Ok(ip) } else { Err(RangeError::Outside(what, ip, subnet)) }
        };
        let first = offset(subnet.network(), 1);
        // IPv4 keeps its last address for broadcasts.
        let last = if subnet.network().is_ipv4() { before(subnet.broadcast()) } else { subnet.broadcast() };
        let start = spec.range_start.map_or(Ok(first), |ip| inside("range start", ip))?;
        let end = spec.range_end.map_or(Ok(last), |ip| inside("range end", ip))?;
        let gateway = spec.gateway.map_or(Ok(first), |ip| inside("gateway", ip))?;
        if start > end {
            return Err(RangeError::Reversed(start, end));
        }
        Ok(Self { subnet, start, end, gateway })
    }

    /// Length of the subnet's prefix.
    pub fn prefix_len(&self) -> u8 {
        self.subnet.prefix_len()
    }

    fn contains(&self, ip: IpAddr) -> bool {
        // Addresses of different families never compare equal in family, so this is false for them.
        self.start.is_ipv4() == ip.is_ipv4() && self.start <= ip && ip <= self.end
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.start) || self.contains(other.end) || other.contains(self.start)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.start, self.end)
    }
}

impl RangeSet {
    /// Checks the ranges of a set.
    pub fn new(specs: &[RangeSpec]) -> Result<Self, RangeError> {
        let ranges: Vec<Range> = specs.iter().map(Range::new).collect::<Result<_, _>>()?;
        let first = ranges.first().ok_or(RangeError::Empty)?;
        if ranges.iter().any(|range| range.start.is_ipv4() != first.start.is_ipv4()) {
            return Err(RangeError::Mixed);
        }
        for (index, one) in ranges.iter().enumerate() {
            if let Some(other) = ranges[index + 1..].iter().find(|other| one.overlaps(other)) {
                return Err(RangeError::Overlap(one.to_string(), other.to_string()));
            }
        }
        Ok(Self(ranges))
    }

    /// The range of the set that an address is in.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// The two sets share addresses.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|one| other.0.iter().any(|two| one.overlaps(two)))
    }

    /// The set's family.
    pub fn is_v4(&self) -> bool {
        self.0.iter().all(|range| range.start.is_ipv4())
    }

    /// Every address of the set once, in the order of handing out: from the one after `last` round to `last` itself.
    pub fn candidates(&self, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
        let after = last.and_then(|last| {
            let index = self.0.iter().position(|range| range.contains(last))?;
            Some((index, last))
        });
        let (first, from) = after.map_or((0, None), |(index, last)| (index, Some(last)));
        let count = self.0.len();
        let head = self.0.get(first).and_then(move |range| match from {
            None => Some(walk(range, range.start, range.end)),
            Some(last) if last < range.end => Some(walk(range, offset(last, 1), range.end)),
            Some(_) => None,
        });
        let others = (1..count).filter_map(move |step| {
            let range = self.0.get((first + step) % count)?;
            Some(walk(range, range.start, range.end))
        });
        let tail = from.and_then(|last| Some(walk(self.0.get(first)?, self.0.get(first)?.start, last)));
        head.into_iter().chain(others).chain(tail).flatten()
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        formatter.write_str(&ranges.join(","))
    }
}

/// The addresses from one to another, both included, without the gateway.
fn walk(range: &Range, from: IpAddr, to: IpAddr) -> impl Iterator<Item = (IpAddr, &Range)> {
    let count = number(to).checked_sub(number(from)).map_or(0, |distance| distance.saturating_add(1));
    (0..count).map(move |step| (offset(from, step), range)).filter(|(ip, range)| *ip != range.gateway)
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The address some steps further. Callers stay within a subnet; at the very end of a family it wraps round.
fn offset(ip: IpAddr, steps: u128) -> IpAddr {
    match ip {
        // The cut-off bits cannot be set: steps never leave a 32-bit subnet.
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_add(steps as u32).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_add(steps).into()),
    }
}

fn before(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_sub(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_sub(1).into()),
    }
}

#[cfg(test)]
#[path = "range_tests.rs"]
mod tests;
