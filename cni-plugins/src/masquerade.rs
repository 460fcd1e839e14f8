//! `ipMasq`: what a container sends out of its subnet leaves with an address of the host.
//!
//! One nftables table per family, `keelson-cni`, with constant rules; containers are elements:
//!
//! ```text
//! map sources { 10.1.0.7 : goto net_10_1_0_0_24 }
//! set direct_10_1_0_0_24 { 10.1.0.0/24, 224.0.0.0/4 }
//! chain postrouting { type nat hook postrouting priority 100; ip saddr vmap @sources }
//! chain net_10_1_0_0_24 { ip daddr @direct_10_1_0_0_24 return; masquerade fully-random }
//! ```
//!
//! Invariants: a transaction makes whatever is missing, so a flushed rule set heals with the next ADD; adding twice and deleting
//! what is not there change nothing. Upstream counterpart: `pkg/ip/ipmasq_nftables_linux.go`.

use std::net::IpAddr;

use ipnet::IpNet;
use keelson_netfilter::nft::{
    Base, BaseChain, Batch, ElementData, Expr, Family, Field, Hook, KernelNft, Maps, Nft, NftError, Reg, SetDecl,
    Verdict,
};

const TABLE: &str = "keelson-cni";
const SOURCES: &str = "sources";
const POSTROUTING: &str = "postrouting";
/// `srcnat`, where masquerading is done by convention.
const PRIORITY_SRCNAT: i32 = 100;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

/// Masquerades a container's addresses.
pub fn add(addresses: &[IpNet]) -> Result<(), NftError> {
    let mut nft = KernelNft::open()?;
    for address in addresses {
        let family = family(address.addr());
        let mut batch = Batch::new(family, TABLE);
        let chain = prepare(&mut batch, address);
        nft.commit(&mut batch)?;
        add_source(&mut nft, address.addr(), &chain)?;
    }
    Ok(())
}

/// No longer masquerades addresses; those that are not masqueraded are fine.
pub fn remove(addresses: &[IpAddr]) -> Result<(), NftError> {
    let mut nft = KernelNft::open()?;
    for address in addresses {
        let mut batch = Batch::new(family(*address), TABLE);
        batch.delete_element(SOURCES, &bytes(*address), false);
        match nft.commit(&mut batch) {
            Err(error) if error.errno() == Some(ENOENT) => {}
            other => other?,
        }
    }
    Ok(())
}

/// The rules of a subnet; returns the name of its chain.
fn prepare(batch: &mut Batch, address: &IpNet) -> String {
    let subnet = address.trunc();
    let v4 = subnet.addr().is_ipv4();
    let field = if v4 { Field::Ipv4 } else { Field::Ipv6 };
    let word: String =
        subnet.to_string().chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    let (chain, direct) = (format!("net_{word}"), format!("direct_{word}"));
    batch.add_table();
    batch.add_set(&SetDecl::map(SOURCES, &[field], Maps::Verdicts));
    batch.add_set(&SetDecl::set(&direct, &[field]).intervals());
    let multicast = if v4 {
        IpNet::new_assert([224, 0, 0, 0].into(), 4)
    } else {
        IpNet::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8)
    };
    for net in [subnet, multicast] {
        batch.add_element(&direct, &bytes(net.network()), ElementData::None);
        if let Some(end) = after(net.broadcast()) {
            batch.add_element(&direct, &bytes(end), ElementData::IntervalEnd);
        }
    }
    batch.add_chain(&chain, None);
    batch.flush_chain(&chain);
    let lookup = Expr::Lookup { set: direct, key: Reg(0), invert: false };
    batch.add_rule(&chain, &[header(v4, false), lookup, Expr::Verdict(Verdict::Return)]);
    batch.add_rule(&chain, &[Expr::Masquerade]);
    let base = BaseChain { kind: "nat", hook: Hook::Postrouting, priority: PRIORITY_SRCNAT };
    batch.add_chain(POSTROUTING, Some(base));
    batch.flush_chain(POSTROUTING);
    batch.add_rule(POSTROUTING, &[header(v4, true), Expr::LookupVerdict { set: SOURCES.to_owned(), key: Reg(0) }]);
    chain
}

fn add_source(nft: &mut KernelNft, address: IpAddr, chain: &str) -> Result<(), NftError> {
    let mut batch = Batch::new(family(address), TABLE);
    batch.add_element(SOURCES, &bytes(address), ElementData::Goto(chain));
    match nft.commit(&mut batch) {
        // Left behind by another network that had the address.
        Err(error) if error.errno() == Some(EEXIST) => {
            let mut batch = Batch::new(family(address), TABLE);
            batch.delete_element(SOURCES, &bytes(address), false);
            batch.add_element(SOURCES, &bytes(address), ElementData::Goto(chain));
            nft.commit(&mut batch)
        }
        other => other,
    }
}

/// Loads the source or destination address.
fn header(v4: bool, source: bool) -> Expr {
    let (offset, len) = match (v4, source) {
        (true, true) => (12, 4),
        (true, false) => (16, 4),
        (false, true) => (8, 16),
        (false, false) => (24, 16),
    };
    Expr::Payload { base: Base::Network, offset, len, into: Reg(0) }
}

fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The next address; none after the last, where an interval simply does not end.
fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|next| IpAddr::V6(next.into())),
    }
}
