//! The `portmap` plugin: ports of the host that lead into a container, with nftables.
//!
//! Upstream counterpart: `plugins/meta/portmap`; same keys (`backend: nftables`), same packets. Chained after a plugin that
//! gave the container its addresses.
//!
//! Invariants:
//! - only packets to an address of this host are ever redirected (CVE-2025-67499), and nothing reaches the host's 127.0.0.0/8
//!   from outside although `route_localnet` is on (CVE-2020-8558);
//! - what belongs to a container is one chain by its name, and the elements that lead to it: DEL and GC remove by that name and
//!   cannot hit a successor that has the same port or address;
//! - who changes the table holds the lock of the network namespace, because a DEL first has to look.

mod conditions;
mod conf;
mod lock;
mod rules;
mod stale;

use std::collections::BTreeSet;
use std::io;

use keelson_netfilter::conntrack::ConntrackError;
use keelson_netfilter::nft::{Family, KernelNft, Nft, NftError};
use serde::Deserialize;

use crate::config::{self, ConfigError};
use crate::error::{Error, code, config_code};
use crate::host_local::Owner;
use crate::net::{self, Net, sysctl};
use crate::skel::Request;
use crate::types::AddResult;
use conf::Conf;
use rules::{Table, Wanted};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Why ports could not be mapped, or are not as they were left.
#[derive(Debug, thiserror::Error)]
pub enum PortmapError {
    /// Called alone.
    #[error("must be called as chained plugin")]
    NotChained,
    /// CHECK needs the result of the ADD.
    #[error("Required prevResult missing")]
    NoPrevResult,
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rules could not be changed.
    #[error("portmap: {0}")]
    Nft(#[from] NftError),
    /// The namespace's lock could not be had.
    #[error("cannot lock the network namespace: {0}")]
    Lock(#[source] io::Error),
    /// CHECK found something missing.
    #[error("missing hostport rules for {what} ({family})")]
    Missing {
        /// What is missing.
        what: String,
        /// `ip` or `ip6`.
        family: &'static str,
    },
}

impl PortmapError {
    /// The specification's code.
    pub fn code(&self) -> u32 {
        match self {
            Self::NotChained | Self::NoPrevResult => code::INVALID_CONFIG,
            Self::Config(error) => config_code(error),
            Self::Nft(_) => code::NETLINK,
            Self::Lock(_) => code::IO,
            Self::Missing { .. } => code::CHECK,
        }
    }
}

fn name(request: &Request) -> String {
    rules::chain_name(&request.network, &request.container_id, &request.ifname)
}

fn wanted(conf: &Conf, v4: bool, address: ipnet::IpNet) -> Wanted<'_> {
    Wanted {
        mappings: conf.mappings.iter().filter(|mapping| mapping.is_for(v4)).collect(),
        conditions: conf.conditions(v4),
        address,
        snat: conf.snat,
        masquerade_all: conf.masquerade_all,
        mark_bit: conf.mark_bit,
    }
}

/// Opens the container's ports and passes the result on.
pub fn add(request: &Request) -> Result<AddResult, Error> {
    let conf = Conf::load(request).map_err(PortmapError::from)?;
    let Some(previous) = conf.previous.clone() else { return Err(PortmapError::NotChained.into()) };
    if conf.mappings.is_empty() {
        return Ok(previous);
    }
    let chain = name(request);
    {
        let _lock = lock::take().map_err(PortmapError::Lock)?;
        let mut nft = KernelNft::open().map_err(PortmapError::from)?;
        let mut done: Result<(), NftError> = Ok(());
        for address in &conf.addresses {
            let v4 = address.addr().is_ipv4();
            done = done.and_then(|()| Table::new(&mut nft, v4).put(&chain, &wanted(&conf, v4, *address)));
        }
        if let Err(error) = done {
            // A failed ADD leaves nothing behind.
            for family in [true, false] {
                let _ = Table::new(&mut nft, family).remove(&BTreeSet::from([chain.clone()]));
            }
            return Err(PortmapError::Nft(error).into());
        }
    }
    if conf.snat {
        allow_localhost(&conf)?;
    }
    for address in &conf.addresses {
        tell(stale::forget(&conf.mappings, address.addr(), stale::Flows::OfOthers));
    }
    Ok(previous)
}

/// Connections to 127.0.0.1 may be routed to the container.
fn allow_localhost(conf: &Conf) -> Result<(), Error> {
    for address in conf.addresses.iter().filter(|address| address.addr().is_ipv4()) {
        let link = net::runtime()?.block_on(async { Net::here()?.link_towards(address.addr()).await })?;
        if let Some(link) = link {
            sysctl::set(&format!("net/ipv4/conf/{link}/route_localnet"), "1")?;
        }
    }
    Ok(())
}

/// Old flows are a nuisance, and no reason to fail.
fn tell(outcome: Result<usize, ConntrackError>) {
    if let Err(error) = outcome {
        eprintln!("keelson-cni: old UDP flows to the ports could not be ended: {error}");
    }
}

/// Closes the container's ports. A configuration without ports had none.
pub fn del(request: &Request) -> Result<(), Error> {
    let (mappings, addresses) = Conf::load_leniently(request);
    if mappings.is_empty() {
        return Ok(());
    }
    remove(&BTreeSet::from([name(request)]))?;
    for address in addresses {
        tell(stale::forget(&mappings, address.addr(), stale::Flows::Own));
    }
    Ok(())
}

/// Both families, whatever the container had.
fn remove(chains: &BTreeSet<String>) -> Result<(), PortmapError> {
    let _lock = lock::take().map_err(PortmapError::Lock)?;
    let mut nft = KernelNft::open()?;
    for v4 in [true, false] {
        Table::new(&mut nft, v4).remove(chains)?;
    }
    Ok(())
}

/// Every port must lead to the container, by rules that packets meet.
pub fn check(request: &Request) -> Result<(), Error> {
    let conf = Conf::load(request).map_err(PortmapError::from)?;
    if conf.previous.is_none() {
        return Err(PortmapError::NoPrevResult.into());
    }
    if conf.mappings.is_empty() {
        return Ok(());
    }
    let chain = name(request);
    let _lock = lock::take().map_err(PortmapError::Lock)?;
    let mut nft = KernelNft::open().map_err(PortmapError::from)?;
    for address in &conf.addresses {
        let v4 = address.addr().is_ipv4();
        let missing =
            Table::new(&mut nft, v4).missing(&chain, &wanted(&conf, v4, *address)).map_err(PortmapError::from)?;
        if let Some(what) = missing {
            return Err(PortmapError::Missing { what, family: FAMILIES[usize::from(!v4)].name() }.into());
        }
    }
    Ok(())
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Valid {
    #[serde(rename = "cni.dev/valid-attachments")]
    attachments: Option<Vec<Attachment>>,
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(rename = "containerID")]
    container: String,
    ifname: String,
}

/// Closes the ports of every container of this network that is not among `cni.dev/valid-attachments`.
pub fn gc(request: &Request) -> Result<(), Error> {
    let key = "cni.dev/valid-attachments";
    let valid: Valid = config::decode(&request.config)?;
    let valid = valid.attachments.ok_or_else(|| ConfigError::invalid(key, "GC needs this list"))?;
    let keep: BTreeSet<String> = valid
        .iter()
        .map(|one| Owner::new(&one.container, &one.ifname))
        .map(|owner| rules::chain_name(&request.network, &owner.container, &owner.ifname))
        .collect();
    let _lock = lock::take().map_err(PortmapError::Lock)?;
    let mut nft = KernelNft::open().map_err(PortmapError::from)?;
    for v4 in [true, false] {
        let mut table = Table::new(&mut nft, v4);
        let chains = table.chains_of(&request.network).map_err(PortmapError::from)?;
        let dead: BTreeSet<String> = chains.difference(&keep).cloned().collect();
        if !dead.is_empty() {
            table.remove(&dead).map_err(PortmapError::from)?;
        }
    }
    Ok(())
}

/// The configuration is right, and the kernel has nf_tables.
pub fn status(request: &Request) -> Result<(), Error> {
    Conf::load(request).map_err(PortmapError::from)?;
    KernelNft::open().and_then(|mut nft| nft.generation()).map_err(PortmapError::from)?;
    Ok(())
}
