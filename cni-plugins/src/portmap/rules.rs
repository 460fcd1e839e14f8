//! The table `keelson-hostports`, one for each family: constant rules, a map element for each port, a chain for each container.
//!
//! ```text
//! map hostip-ports { type ipv4_addr . inet_proto . inet_service : verdict }
//! map ports        { type inet_proto . inet_service : verdict; tcp . 8080 : goto hp-… }
//! chain dispatch   { ip daddr . meta l4proto . th dport vmap @hostip-ports; meta l4proto . th dport vmap @ports }
//! chain prerouting { type nat hook prerouting priority dstnat + 5; fib daddr type local jump dispatch }
//! chain output     { type nat hook output priority dstnat + 5; fib daddr type local jump dispatch }
//! chain hp-…       { meta l4proto tcp th dport 8080 ip saddr 10.1.0.0/24 meta mark set meta mark | 0x2000
//!                    meta l4proto tcp th dport 8080 dnat to 10.1.0.7:80 }
//! chain masquerade-bit-13 { type nat hook postrouting priority srcnat - 5; meta mark & 0x2000 == 0x2000 masquerade }
//! chain localhost  { type filter hook prerouting priority raw; iifname != "lo" ip daddr 127.0.0.0/8 drop }
//! ```
//!
//! After the service dataplane (priority dstnat) and before `ipMasq` (srcnat): a node port goes before a host port of the same
//! number, as with the iptables rules of kube-proxy and the reference. The first nat chain that decides ends the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use keelson_netfilter::nft::{
    Base, BaseChain, Batch, Cmp, ElementData, ElementRef, Expr, Family, Field, Hook, Maps, Meta, Nft, NftError, Reg,
    SetDecl, Verdict,
};

use super::conditions::in_network;
use super::conf::Mapping;

/// The table in each family.
pub const TABLE: &str = "keelson-hostports";
const PORTS: &str = "ports";
const HOST_IP_PORTS: &str = "hostip-ports";
const DISPATCH: &str = "dispatch";
const LOCALHOST: &str = "localhost";
const PRIORITY_DNAT: i32 = -95;
const PRIORITY_MASQUERADE: i32 = 95;
const PRIORITY_RAW: i32 = -300;
const RTN_LOCAL: u32 = 2;
/// How much of a container's ID is shown in its chain's name, for whoever reads the listing.
const SHOWN: usize = 13;

/// What a container shall have in one family.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Its ports.
    pub mappings: Vec<&'a Mapping>,
    /// What packets must fulfil.
    pub conditions: &'a [Expr],
    /// Its address, with the length of its network.
    pub address: IpNet,
    /// Whether connections that would not find back are masqueraded.
    pub snat: bool,
    /// … and all others.
    pub masquerade_all: bool,
    /// The mark's bit.
    pub mark_bit: u8,
}

/// FNV-1a, 64 bits: names, not secrets.
fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn network_prefix(network: &str) -> String {
    format!("hp-{:08x}-", hash(&[network]) & 0xffff_ffff)
}

/// The name of a container's chain: the network's part, the beginning of the ID, and a hash of everything.
pub fn chain_name(network: &str, container: &str, ifname: &str) -> String {
    let shown: String = container.chars().filter(char::is_ascii_alphanumeric).take(SHOWN).collect();
    format!("{}{shown}-{:016x}", network_prefix(network), hash(&[network, container, ifname]))
}

/// Where an element is: its map and key.
type Place = (&'static str, Vec<u8>);

fn place(mapping: &Mapping) -> Place {
    let mut key = Vec::new();
    let host = mapping.host_ip.filter(|ip| !ip.is_unspecified());
    match host {
        Some(IpAddr::V4(ip)) => key.extend(ip.octets()),
        Some(IpAddr::V6(ip)) => key.extend(ip.octets()),
        None => {}
    }
    key.extend([mapping.protocol.number(), 0, 0, 0]);
    key.extend(mapping.host_port.to_be_bytes());
    key.extend([0, 0]);
    (if host.is_some() { HOST_IP_PORTS } else { PORTS }, key)
}

fn describe(mapping: &Mapping) -> String {
    let host = mapping.host_ip.map(|ip| format!("{ip}:")).unwrap_or_default();
    format!("{host}{}/{}", mapping.host_port, mapping.protocol)
}

/// The table of one family, through whatever stands for the kernel.
pub struct Table<'a, N: Nft> {
    nft: &'a mut N,
    v4: bool,
}

impl<'a, N: Nft> Table<'a, N> {
    /// The table of a family.
    pub fn new(nft: &'a mut N, v4: bool) -> Self {
        Self { nft, v4 }
    }

    fn family(&self) -> Family {
        if self.v4 { Family::Ipv4 } else { Family::Ipv6 }
    }

    /// Gives a container its chain and its elements, in one transaction. Who had a port before loses it.
    pub fn put(&mut self, chain: &str, wanted: &Wanted<'_>) -> Result<(), NftError> {
        if wanted.mappings.is_empty() {
            return Ok(());
        }
        let there = self.elements()?;
        let mut batch = Batch::new(self.family(), TABLE);
        self.constant_part(&mut batch, wanted);
        batch.add_chain(chain, None);
        batch.flush_chain(chain);
        for rule in wanted.mappings.iter().flat_map(|mapping| rules(wanted, mapping)) {
            batch.add_rule(chain, &rule);
        }
        let places: BTreeSet<Place> = wanted.mappings.iter().map(|mapping| place(mapping)).collect();
        for (place, target) in &there {
            // Another's at the same place, or one of this chain from an ADD that was killed.
            if (places.contains(place) && target != chain) || (target == chain && !places.contains(place)) {
                batch.delete_element(place.0, &place.1, false);
            }
        }
        for place in places.iter().filter(|place| there.get(*place).is_none_or(|target| target != chain)) {
            batch.add_element(place.0, &place.1, ElementData::Goto(chain));
        }
        self.nft.commit(&mut batch)
    }

    /// Takes chains and everything that leads to them away; what is not there is no error.
    pub fn remove(&mut self, chains: &BTreeSet<String>) -> Result<(), NftError> {
        let Some(names) = self.nft.names(self.family(), TABLE)? else { return Ok(()) };
        let chains: Vec<&String> = chains.iter().filter(|chain| names.chains.contains_key(*chain)).collect();
        if chains.is_empty() {
            return Ok(());
        }
        let there = self.elements()?;
        let mut batch = Batch::new(self.family(), TABLE);
        for (place, _) in there.iter().filter(|(_, target)| chains.contains(target)) {
            batch.delete_element(place.0, &place.1, false);
        }
        for chain in &chains {
            batch.flush_chain(chain);
        }
        self.nft.commit(&mut batch)?;
        // Before Linux 6.2 a chain that has just lost its last reference cannot be deleted in the same transaction.
        for chain in &chains {
            batch.delete_chain(chain);
        }
        self.nft.commit(&mut batch)
    }

    /// The chains of a network's containers.
    pub fn chains_of(&mut self, network: &str) -> Result<BTreeSet<String>, NftError> {
        let prefix = network_prefix(network);
        let names = self.nft.names(self.family(), TABLE)?.unwrap_or_default();
        Ok(names.chains.into_keys().filter(|name| name.starts_with(&prefix)).collect())
    }

    /// What of a container's rules is not there, in words.
    pub fn missing(&mut self, chain: &str, wanted: &Wanted<'_>) -> Result<Option<String>, NftError> {
        if wanted.mappings.is_empty() {
            return Ok(None);
        }
        let names = self.nft.names(self.family(), TABLE)?.unwrap_or_default();
        let rule_count = wanted.mappings.iter().map(|mapping| rules(wanted, mapping).len()).sum();
        let mut needed = vec![("prerouting".to_owned(), 1), ("output".to_owned(), 1), (DISPATCH.to_owned(), 2)];
        needed.push((chain.to_owned(), rule_count));
        if wanted.snat {
            needed.push((masquerade_chain(wanted.mark_bit), 1));
        }
        let short = needed.iter().find(|(name, count)| names.chains.get(name).is_none_or(|there| there.len() < *count));
        if let Some((name, _)) = short {
            return Ok(Some(format!("chain {name}")));
        }
        let there = self.elements()?;
        let lost = wanted.mappings.iter().find(|mapping| there.get(&place(mapping)).is_none_or(|to| to != chain));
        Ok(lost.map(|mapping| describe(mapping)))
    }

    /// Every element: where it is, and the chain it leads to.
    fn elements(&mut self) -> Result<BTreeMap<Place, String>, NftError> {
        let mut found = BTreeMap::new();
        let family = self.family();
        for map in [PORTS, HOST_IP_PORTS] {
            let mut take = |element: ElementRef<'_>| {
                if let Some((_, Some(chain))) = element.verdict() {
                    found.insert((map, element.key.to_vec()), chain.to_owned());
                }
            };
            // What was seen of a part is true: the next listing adds to it.
            loop {
                match self.nft.elements(family, TABLE, map, &mut take) {
                    Err(NftError::Partial { .. }) => {}
                    Err(error) => return Err(error),
                    Ok(_) => break,
                }
            }
        }
        Ok(found)
    }

    /// Whatever is missing is made, so that a flushed rule set heals with the next ADD.
    fn constant_part(&self, batch: &mut Batch, wanted: &Wanted<'_>) {
        let address = if self.v4 { Field::Ipv4 } else { Field::Ipv6 };
        batch.add_table();
        batch.add_set(&SetDecl::map(PORTS, &[Field::Proto, Field::Port], Maps::Verdicts));
        batch.add_set(&SetDecl::map(HOST_IP_PORTS, &[address, Field::Proto, Field::Port], Maps::Verdicts));
        batch.add_chain(DISPATCH, None);
        batch.flush_chain(DISPATCH);
        let address_len = if self.v4 { 4 } else { 16 };
        let offset = if self.v4 { 16 } else { 24 };
        let mut by_address = vec![Expr::Payload { base: Base::Network, offset, len: address_len, into: Reg(0) }];
        let behind = Reg(0).after(address_len as usize);
        by_address.extend(protocol_and_port(behind));
        by_address.push(Expr::LookupVerdict { set: HOST_IP_PORTS.to_owned(), key: Reg(0) });
        batch.add_rule(DISPATCH, &by_address);
        let mut by_port = protocol_and_port(Reg(0));
        by_port.push(Expr::LookupVerdict { set: PORTS.to_owned(), key: Reg(0) });
        batch.add_rule(DISPATCH, &by_port);
        for (name, hook) in [("prerouting", Hook::Prerouting), ("output", Hook::Output)] {
            batch.add_chain(name, Some(BaseChain { kind: "nat", hook, priority: PRIORITY_DNAT }));
            batch.flush_chain(name);
            batch.add_rule(
                name,
                &[
                    Expr::FibType { source: false, into: Reg(0) },
                    Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: RTN_LOCAL.to_ne_bytes().to_vec() },
                    Expr::Verdict(Verdict::Jump(DISPATCH.to_owned())),
                ],
            );
        }
        if wanted.snat {
            masquerading(batch, wanted.mark_bit);
            if self.v4 {
                localhost(batch);
            }
        }
    }
}

fn protocol_and_port(at: Reg) -> Vec<Expr> {
    vec![
        Expr::Meta { key: Meta::L4Proto, into: at },
        Expr::Payload { base: Base::Transport, offset: 2, len: 2, into: at.after(4) },
    ]
}

fn masquerade_chain(bit: u8) -> String {
    format!("masquerade-bit-{bit}")
}

fn masquerading(batch: &mut Batch, bit: u8) {
    let (name, mask) = (masquerade_chain(bit), 1_u32 << bit);
    batch.add_chain(&name, Some(BaseChain { kind: "nat", hook: Hook::Postrouting, priority: PRIORITY_MASQUERADE }));
    batch.flush_chain(&name);
    batch.add_rule(
        &name,
        &[
            Expr::Meta { key: Meta::Mark, into: Reg(0) },
            Expr::Bitwise { reg: Reg(0), mask, xor: 0 },
            Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: mask.to_ne_bytes().to_vec() },
            Expr::Masquerade,
        ],
    );
}

/// With `route_localnet` the kernel would take packets for 127.0.0.0/8 from the network; answers of a container still carry
/// the host's address here, and get the old one back later.
fn localhost(batch: &mut Batch) {
    let mut lo = b"lo".to_vec();
    lo.resize(16, 0);
    batch.add_chain(LOCALHOST, Some(BaseChain { kind: "filter", hook: Hook::Prerouting, priority: PRIORITY_RAW }));
    batch.flush_chain(LOCALHOST);
    batch.add_rule(
        LOCALHOST,
        &[
            Expr::Meta { key: Meta::IifName, into: Reg(0) },
            Expr::Cmp { op: Cmp::Neq, reg: Reg(0), value: lo },
            Expr::Payload { base: Base::Network, offset: 16, len: 1, into: Reg(0) },
            Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: vec![127] },
            Expr::Verdict(Verdict::Drop),
        ],
    );
}

/// The rules of one mapping in its container's chain: marks first, then the redirection.
fn rules(wanted: &Wanted<'_>, mapping: &Mapping) -> Vec<Vec<Expr>> {
    let matching = || {
        let mut exprs = vec![
            Expr::Meta { key: Meta::L4Proto, into: Reg(0) },
            Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: vec![mapping.protocol.number()] },
            Expr::Payload { base: Base::Transport, offset: 2, len: 2, into: Reg(0) },
            Expr::Cmp { op: Cmp::Eq, reg: Reg(0), value: mapping.host_port.to_be_bytes().to_vec() },
        ];
        let host = mapping.host_ip.filter(|ip| !ip.is_unspecified()).map(IpNet::from);
        exprs.extend(host.and_then(|host| in_network(false, Cmp::Eq, &host)).into_iter().flatten());
        exprs.extend(wanted.conditions.iter().cloned());
        exprs
    };
    let mut rules = Vec::new();
    for source in masqueraded_sources(wanted) {
        let Some(from) = in_network(true, Cmp::Eq, &source) else { continue };
        let mut rule = matching();
        rule.extend(from);
        let bit = 1_u32 << wanted.mark_bit;
        rule.extend([
            Expr::Meta { key: Meta::Mark, into: Reg(0) },
            Expr::Bitwise { reg: Reg(0), mask: !bit, xor: bit },
            Expr::MetaSet { key: Meta::Mark, from: Reg(0) },
        ]);
        rules.push(rule);
    }
    let (family, address) = match wanted.address.addr() {
        IpAddr::V4(ip) => (Family::Ipv4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (Family::Ipv6, ip.octets().to_vec()),
    };
    let mut rule = matching();
    rule.extend([
        Expr::Immediate { into: Reg(0), value: address },
        Expr::Immediate { into: Reg(4), value: mapping.container_port.to_be_bytes().to_vec() },
        Expr::Dnat { family: family as u8, addr: Reg(0), port: Reg(4) },
    ]);
    rules.push(rule);
    rules
}

/// Whose connections would not find back: neighbours on the container's own network, and the host's 127.0.0.1.
fn masqueraded_sources(wanted: &Wanted<'_>) -> Vec<IpNet> {
    if !wanted.snat {
        return Vec::new();
    }
    let v4 = wanted.address.addr().is_ipv4();
    if wanted.masquerade_all {
        let all = if v4 { IpNet::new_assert([0; 4].into(), 0) } else { IpNet::new_assert([0; 16].into(), 0) };
        return vec![all];
    }
    let mut sources = vec![wanted.address.trunc()];
    if v4 {
        sources.push(IpNet::new_assert([127, 0, 0, 1].into(), 32));
    }
    sources
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
