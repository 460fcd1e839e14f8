//! `conditionsV4` and `conditionsV6`: what a packet must fulfil besides its port.
//!
//! The reference pastes these words into a rule of whichever program it calls. This program calls none, so it understands the
//! words that are of use in front of a host port, in both notations, and refuses others by name.

use std::net::IpAddr;

use ipnet::IpNet;
use keelson_netfilter::nft::{Base, Cmp, Expr, Meta, Reg};

use crate::config::ConfigError;

/// Bytes that an interface's name has in the kernel.
const IFNAMSIZ: usize = 16;
const KNOWN: &str = "known are `ip saddr|daddr [!=] CIDR`, `ip6 saddr|daddr [!=] CIDR`, `iifname [!=] NAME`, and of iptables \
                     `[!] -s|-d CIDR` and `[!] -i NAME`";

/// The expressions for a list of words (each may hold several).
pub fn parse(key: &str, words: &[String], v4: bool) -> Result<Vec<Expr>, ConfigError> {
    let tokens: Vec<&str> = words.iter().flat_map(|word| word.split_whitespace()).collect();
    let mut rest = tokens.as_slice();
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (exprs, used) = one(rest, v4).map_err(|reason| {
            ConfigError::invalid(key, format!("cannot understand {:?}: {reason}; {KNOWN}", rest.join(" ")))
        })?;
        all.extend(exprs);
        rest = &rest[used..];
    }
    Ok(all)
}

/// The condition that the words begin with, and how many of them it takes.
fn one(words: &[&str], v4: bool) -> Result<(Vec<Expr>, usize), String> {
    match words {
        ["ip" | "ip6", field @ ("saddr" | "daddr"), rest @ ..] => {
            if (words[0] == "ip") != v4 {
                return Err(format!("`{}` is of the other family", words[0]));
            }
            let (op, value, used) = operand(rest)?;
            Ok((address(*field == "saddr", op, value, v4)?, 2 + used))
        }
        ["iifname" | "iif", rest @ ..] => {
            let (op, value, used) = operand(rest)?;
            let value = value.trim_matches('"');
            let (name, prefix) = value.strip_suffix('*').map_or((value, false), |name| (name, true));
            Ok((interface(name, prefix, op)?, 1 + used))
        }
        ["!", option, value, ..] => Ok((classic(option, value, Cmp::Neq, v4)?, 3)),
        [option, value, ..] => Ok((classic(option, value, Cmp::Eq, v4)?, 2)),
        _ => Err("it is not complete".to_owned()),
    }
}

fn operand<'a>(words: &[&'a str]) -> Result<(Cmp, &'a str, usize), String> {
    match words {
        ["!=" | "=="] => Err("a value is missing".to_owned()),
        ["!=", value, ..] => Ok((Cmp::Neq, value, 2)),
        ["==", value, ..] => Ok((Cmp::Eq, value, 2)),
        [value, ..] => Ok((Cmp::Eq, value, 1)),
        [] => Err("a value is missing".to_owned()),
    }
}

fn classic(option: &str, value: &str, op: Cmp, v4: bool) -> Result<Vec<Expr>, String> {
    match option {
        "-s" | "--source" | "--src" => address(true, op, value, v4),
        "-d" | "--destination" | "--dst" => address(false, op, value, v4),
        "-i" | "--in-interface" => {
            let (name, prefix) = value.strip_suffix('+').map_or((value, false), |name| (name, true));
            interface(name, prefix, op)
        }
        other => Err(format!("{other:?} is not known")),
    }
}

fn interface(name: &str, prefix: bool, op: Cmp) -> Result<Vec<Expr>, String> {
    if name.is_empty() || name.len() >= IFNAMSIZ {
        return Err(format!("{name:?} is no name of an interface"));
    }
    let mut value = name.as_bytes().to_vec();
    if !prefix {
        value.resize(IFNAMSIZ, 0);
    }
    Ok(vec![Expr::Meta { key: Meta::IifName, into: Reg(0) }, Expr::Cmp { op, reg: Reg(0), value }])
}

fn address(source: bool, op: Cmp, value: &str, v4: bool) -> Result<Vec<Expr>, String> {
    let net = value.parse::<IpNet>().or_else(|_| value.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| format!("{value:?} is neither an address nor a network"))?;
    if net.addr().is_ipv4() != v4 {
        return Err(format!("{value:?} is of the other family"));
    }
    in_network(source, op, &net)
        .ok_or_else(|| format!("`!=` needs a length that is a multiple of 8, not /{}", net.prefix_len()))
}

/// Whether the source or destination is (not) in a network. `None`: cannot be said in one rule.
pub fn in_network(source: bool, op: Cmp, net: &IpNet) -> Option<Vec<Expr>> {
    let offset = match (net.addr().is_ipv4(), source) {
        (true, true) => 12,
        (true, false) => 16,
        (false, true) => 8,
        (false, false) => 24,
    };
    let octets = match net.network() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let whole = usize::from(net.prefix_len() / 8);
    let rest = net.prefix_len() % 8;
    let load = |from: usize, len: usize| Expr::Payload {
        base: Base::Network,
        offset: offset + u32::try_from(from).unwrap_or(0),
        len: u32::try_from(len).unwrap_or(0),
        into: Reg(0),
    };
    if net.prefix_len() == 0 {
        // Everything is in it; nothing is outside, which a rule that compares a byte with itself cannot say.
        return (op == Cmp::Eq).then(Vec::new);
    }
    if net.addr().is_ipv4() && rest != 0 {
        let IpAddr::V4(mask) = net.netmask() else { return None };
        let mask = u32::from_ne_bytes(mask.octets());
        return Some(vec![
            load(0, 4),
            Expr::Bitwise { reg: Reg(0), mask, xor: 0 },
            Expr::Cmp { op, reg: Reg(0), value: octets },
        ]);
    }
    if rest != 0 && op == Cmp::Neq {
        return None;
    }
    let mut exprs = Vec::new();
    if whole > 0 {
        exprs.extend([load(0, whole), Expr::Cmp { op, reg: Reg(0), value: octets[..whole].to_vec() }]);
    }
    if rest != 0 {
        let mask = u32::from_ne_bytes([0xff << (8 - rest), 0, 0, 0]);
        let value = vec![octets[whole], 0, 0, 0];
        exprs.extend([
            load(whole, 1),
            Expr::Bitwise { reg: Reg(0), mask, xor: 0 },
            Expr::Cmp { op, reg: Reg(0), value },
        ]);
    }
    Some(exprs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split('|').map(ToOwned::to_owned).collect()
    }

    fn texts(text: &str, v4: bool) -> Result<Vec<Expr>, String> {
        parse("conditionsV4", &words(text), v4).map_err(|error| error.to_string())
    }

    #[test]
    fn both_notations_mean_the_same() {
        for (nft, iptables, v4) in [
            ("ip saddr 10.0.0.0/8", "-s|10.0.0.0/8", true),
            ("ip|saddr|!=|10.1.0.0/12", "!|-s|10.1.0.0/12", true),
            ("ip daddr 192.0.2.1 iifname eth0", "-d|192.0.2.1|-i|eth0", true),
            ("ip6 daddr != fd00::/64", "! --dst fd00::/64", false),
            ("iifname != \"veth*\"", "! -i veth+", true),
        ] {
            let parsed = texts(nft, v4).unwrap();
            assert!(!parsed.is_empty());
            assert_eq!(parsed, texts(iptables, v4).unwrap(), "{nft}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, reason) in [
            ("-m|addrtype", "\"-m\" is not known"),
            ("ip6 saddr fd00::/8", "`ip6` is of the other family"),
            ("-s", "it is not complete"),
            ("ip saddr !=", "a value is missing"),
            ("-s x", "\"x\" is neither an address nor a network"),
            ("iifname a-name-that-is-too-long", "is no name of an interface"),
        ] {
            let error = texts(text, true).unwrap_err();
            assert!(error.contains("`conditionsV4`") && error.contains(reason), "{error}");
        }
        assert!(texts("ip6 saddr != fd00::/7", false).unwrap_err().contains("multiple of 8"));
    }

    /// Runs the comparison as the kernel does.
    fn holds(exprs: &[Expr], header: &[u8]) -> bool {
        let mut register: Vec<u8> = Vec::new();
        exprs.iter().all(|expr| match expr {
            Expr::Payload { offset, len, .. } => {
                let from = *offset as usize;
                register = header[from..from + *len as usize].to_vec();
                register.resize(register.len().max(4), 0);
                true
            }
            Expr::Bitwise { mask, xor, .. } => {
                let word = u32::from_ne_bytes(register[..4].try_into().unwrap());
                register = ((word & mask) ^ xor).to_ne_bytes().to_vec();
                true
            }
            Expr::Cmp { op, value, .. } => (register[..value.len()] == value[..]) == (*op == Cmp::Eq),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn networks_hold_what_they_hold() {
        for net in ["0.0.0.0/0", "10.0.0.0/8", "10.64.0.0/10", "10.244.1.0/24", "10.244.1.7/32", "10.244.1.6/31"] {
            let net: IpNet = net.parse().unwrap();
            for address in ["10.244.1.7", "10.244.1.6", "10.1.2.3", "11.0.0.1", "255.255.255.255"] {
                let address: std::net::Ipv4Addr = address.parse().unwrap();
                let mut header = [0; 20];
                header[12..16].copy_from_slice(&address.octets());
                let inside = net.contains(&IpAddr::from(address));
                assert_eq!(holds(&in_network(true, Cmp::Eq, &net).unwrap(), &header), inside, "{net} {address}");
                if let Some(outside) = in_network(true, Cmp::Neq, &net) {
                    assert_eq!(holds(&outside, &header), !inside, "{net} {address}");
                }
            }
        }
        for net in ["fd00::/8", "fd00::/7", "fd00:0:0:1::/64", "fd00::1/128", "fd00::/65"] {
            let net: IpNet = net.parse().unwrap();
            for address in ["fd00::1", "fd00:0:0:1::5", "fc00::1", "fd00::8000:0:0:1"] {
                let address: std::net::Ipv6Addr = address.parse().unwrap();
                let mut header = [0; 40];
                header[24..40].copy_from_slice(&address.octets());
                let inside = net.contains(&IpAddr::from(address));
                assert_eq!(holds(&in_network(false, Cmp::Eq, &net).unwrap(), &header), inside, "{net} {address}");
            }
        }
    }
}
