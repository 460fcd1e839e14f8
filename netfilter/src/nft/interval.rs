//! Address ranges as the borders that an interval set is made of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::Family;

/// The borders of a set of ranges: start, and end (exclusive; none at the top of the address
/// space). Overlapping and adjacent ranges are merged, ranges of the other family left out.
#[must_use]
pub fn borders(nets: &[IpNet], family: Family) -> Vec<(Vec<u8>, bool)> {
    let v4 = family == Family::Ipv4;
    let merged = merged(nets, v4);
    let top = if v4 { u128::from(u32::MAX) } else { u128::MAX };
    let mut out = Vec::new();
    // nft closes the space below the first range, and expects it when it lists.
    if merged.first().is_some_and(|range| range.0 > 0) {
        out.push((bytes_of(0, v4), true));
    }
    for (start, end) in merged {
        out.push((bytes_of(start, v4), false));
        if end < top {
            out.push((bytes_of(end + 1, v4), true));
        }
    }
    out
}

/// A set of ranges of one family as (first, last) addresses: sorted, and as few as can be. Overlapping and
/// adjacent ranges are merged, ranges of the other family left out.
#[must_use]
pub fn ranges(nets: &[IpNet], family: Family) -> Vec<(IpAddr, IpAddr)> {
    let addr = |number: u128| -> IpAddr {
        if family == Family::Ipv4 { Ipv4Addr::from(number as u32).into() } else { Ipv6Addr::from(number).into() }
    };
    merged(nets, family == Family::Ipv4).into_iter().map(|(first, last)| (addr(first), addr(last))).collect()
}

fn merged(nets: &[IpNet], v4: bool) -> Vec<(u128, u128)> {
    let of_family = nets.iter().filter(|net| net.addr().is_ipv4() == v4);
    let mut ranges: Vec<(u128, u128)> = of_family.map(|net| (number(net.network()), number(net.broadcast()))).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1.saturating_add(1) => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn bytes_of(number: u128, v4: bool) -> Vec<u8> {
    if v4 { (number as u32).to_be_bytes().to_vec() } else { number.to_be_bytes().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn ranges_are_merged_and_closed() {
        let some = nets(&["10.0.1.0/24", "fd00::/64", "10.0.0.0/24", "10.0.1.7/32", "255.0.0.0/8"]);
        let v4: Vec<(Vec<u8>, bool)> = vec![
            (vec![0; 4], true),
            (vec![10, 0, 0, 0], false),
            (vec![10, 0, 2, 0], true),
            (vec![255, 0, 0, 0], false),
        ];
        assert_eq!(borders(&some, Family::Ipv4), v4);
        let v6 = borders(&some, Family::Ipv6);
        assert_eq!(v6.len(), 3);
        assert_eq!((v6[1].0[0], v6[1].1), (0xfd, false));
        assert_eq!(borders(&nets(&["0.0.0.0/0"]), Family::Ipv4), [(vec![0; 4], false)]);
        assert!(borders(&[], Family::Ipv4).is_empty());
        let pair = |a: &str, b: &str| (a.parse().unwrap(), b.parse().unwrap());
        assert_eq!(ranges(&some, Family::Ipv4), [pair("10.0.0.0", "10.0.1.255"), pair("255.0.0.0", "255.255.255.255")]);
        assert_eq!(ranges(&nets(&["::/0"]), Family::Ipv6), [pair("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]);
    }
}
