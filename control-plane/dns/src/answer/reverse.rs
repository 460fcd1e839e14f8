//! Names below `in-addr.arpa` and `ip6.arpa`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// What a reverse name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reverse {
    /// One address.
    Address(IpAddr),
    /// The addresses whose names are below it.
    Part(IpNet),
}

impl Reverse {
    fn is_ipv4(&self) -> bool {
        match self {
            Self::Address(address) => address.is_ipv4(),
            Self::Part(net) => net.addr().is_ipv4(),
        }
    }

    /// The zone it is in.
    pub(super) fn apex(&self) -> Name {
        let labels: [&[u8]; 2] = if self.is_ipv4() { [b"in-addr", b"arpa"] } else { [b"ip6", b"arpa"] };
        Name::from_labels(labels).unwrap_or_default()
    }
}

/// Reads a reverse name in lower case; `None` for any other.
pub(super) fn parse(labels: &[&[u8]]) -> Option<Reverse> {
    match labels {
        [digits @ .., b"in-addr", b"arpa"] if digits.len() <= 4 => ipv4(digits),
        [digits @ .., b"ip6", b"arpa"] if digits.len() <= 32 => ipv6(digits),
        _ => None,
    }
}

fn ipv4(digits: &[&[u8]]) -> Option<Reverse> {
    let mut octets = [0_u8; 4];
    for (octet, label) in octets.iter_mut().zip(digits.iter().rev()) {
        let text = std::str::from_utf8(label).ok()?;
        *octet = text.parse().ok().filter(|octet: &u8| octet.to_string() == text)?;
    }
    let address = Ipv4Addr::from(octets);
    Some(match digits.len() {
        4 => Reverse::Address(IpAddr::V4(address)),
        count => Reverse::Part(Ipv4Net::new(address, u8::try_from(count * 8).ok()?).ok()?.into()),
    })
}

fn ipv6(digits: &[&[u8]]) -> Option<Reverse> {
    let mut bits = 0_u128;
    for label in digits.iter().rev() {
        let [digit] = **label else { return None };
        bits = bits << 4 | u128::from(char::from(digit).to_digit(16)?);
    }
    let length = u8::try_from(digits.len() * 4).ok()?;
    let address = Ipv6Addr::from(bits.checked_shl(u32::from(128 - length)).unwrap_or(0));
    Some(match length {
        128 => Reverse::Address(IpAddr::V6(address)),
        length => Reverse::Part(Ipv6Net::new(address, length).ok()?.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(name: &str) -> Option<Reverse> {
        let labels: Vec<&[u8]> = name.split('.').map(str::as_bytes).collect();
        parse(&labels)
    }

    #[test]
    fn parts_of_addresses_are_networks() {
        assert_eq!(read("0.96.10.in-addr.arpa"), Some(Reverse::Part("10.96.0.0/24".parse().unwrap())));
        assert_eq!(read("in-addr.arpa"), Some(Reverse::Part("0.0.0.0/0".parse().unwrap())));
        assert_eq!(read("d.f.ip6.arpa"), Some(Reverse::Part("fd00::/8".parse().unwrap())));
        assert_eq!(read("ip6.arpa"), Some(Reverse::Part("::/0".parse().unwrap())));
    }

    #[test]
    fn what_is_no_address_is_nothing() {
        for name in
            ["256.0.96.10.in-addr.arpa", "01.0.96.10.in-addr.arpa", "1.2.3.4.5.in-addr.arpa", "g.ip6.arpa", "arpa"]
        {
            assert_eq!(read(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_address_is_read_back(v4: u32, v6: u128) {
            let [a, b, c, d] = v4.to_be_bytes();
            prop_assert_eq!(
                read(&format!("{d}.{c}.{b}.{a}.in-addr.arpa")),
                Some(Reverse::Address(IpAddr::V4(v4.into())))
            );
            let digits: Vec<String> = format!("{v6:032x}").chars().rev().map(String::from).collect();
            prop_assert_eq!(
                read(&format!("{}.ip6.arpa", digits.join("."))),
                Some(Reverse::Address(IpAddr::V6(v6.into())))
            );
        }
    }
}
