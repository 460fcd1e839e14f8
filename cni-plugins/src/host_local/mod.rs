//! The `host-local` IPAM plugin: addresses of this host's ranges, one file per address.
//!
//! Upstream counterpart: `plugins/ipam/host-local`; same keys, same files, same order of addresses.
//!
//! Invariants:
//! - an address is handed out only after its file exists and is on disk, so neither a crash of this program nor of the machine
//!   makes it free again;
//! - all decisions are made under the folder's lock, which the kernel drops with the process;
//! - a failed ADD gives back what it had taken.

mod config;
mod range;
mod resolv;
mod store;

pub use config::Conf;
pub use range::{Range, RangeSet, RangeSpec};
pub use store::{Owner, Store, StoreError, Unlocked};

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::config::ConfigError;
use crate::error::{code, config_code};
use crate::skel::Request;
use crate::types::{AddResult, IpConfig};

/// Why addresses could not be managed.
#[derive(Debug, thiserror::Error)]
pub enum HostLocalError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder of addresses failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A range set has no address left. Retryable once something is deleted.
    #[error("failed to allocate for range {index}: no IP addresses available in range set: {set}")]
    Exhausted {
        /// Which set of the configuration.
        index: usize,
        /// The set.
        set: String,
    },
    /// The container has an address of the set already: an ADD without a DEL.
    #[error(
        "failed to allocate for range {index}: {address} has been allocated to {container}, duplicate allocation is not allowed"
    )]
    Duplicate {
        /// Which set of the configuration.
        index: usize,
        /// The address it has.
        address: IpAddr,
        /// The container.
        container: String,
    },
    /// A requested address belongs to the gateway.
    #[error("failed to allocate for range {index}: requested ip {address} is subnet's gateway")]
    Gateway {
        /// Which set of the configuration.
        index: usize,
        /// The address.
        address: IpAddr,
    },
    /// A requested address is somebody else's.
    #[error("failed to allocate for range {index}: requested IP address {address} is not available in range set {set}")]
    Taken {
        /// Which set of the configuration.
        index: usize,
        /// The address.
        address: IpAddr,
        /// The set.
        set: String,
    },
    /// Requested addresses are in no range set.
    #[error("failed to allocate all requested IPs: {}", list(.0))]
    Unfulfilled(Vec<IpAddr>),
    /// CHECK: the container has no address here.
    #[error("host-local: Failed to find address added by container {0}")]
    NotFound(String),
    /// The resolver's file could not be read.
    #[error("cannot read `ipam.resolvConf` {}: {source}", path.display())]
    ResolvConf {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl HostLocalError {
    /// The specification's code.
    pub fn code(&self) -> u32 {
        match self {
            Self::Config(error) => config_code(error),
            Self::Store(_) | Self::ResolvConf { .. } => code::IO,
            Self::Exhausted { .. } | Self::Duplicate { .. } | Self::Gateway { .. } => code::ADDRESS,
            Self::Taken { .. } | Self::Unfulfilled(_) => code::ADDRESS,
            Self::NotFound(_) => code::CHECK,
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Takes an address of every range set, and waits until that is on disk.
pub fn add(request: &Request) -> Result<AddResult, HostLocalError> {
    let (result, durable) = take(request)?;
    durable.wait()?;
    Ok(result)
}

/// Takes an address of every range set. The result must not be told to anybody before [`Durable::wait`] has returned; until then
/// there is time for other work.
pub fn take(request: &Request) -> Result<(AddResult, Durable), HostLocalError> {
    let conf = Conf::load(request)?;
    let dns = match &conf.resolv_conf {
        Some(path) => resolv::read(path)?,
        None => crate::types::Dns::default(),
    };
    let owner = Owner::new(&request.container_id, &request.ifname);
    let store = Store::open(&conf.data_dir, &request.network)?;
    let mut taken = Vec::new();
    let allocated = allocate(&store, &conf, &owner, &mut taken);
    if allocated.is_err() {
        for ip in &taken {
            store.remove(*ip)?;
        }
    }
    let ips = allocated?;
    // The files are there and seen by all: the wait for the disk needs no lock.
    let unlocked = store.unlock();
    let durable = Durable { unlocked, taken, data_dir: conf.data_dir, network: request.network.clone() };
    Ok((AddResult { ips, routes: conf.routes, dns, ..AddResult::default() }, durable))
}

/// Addresses that are reserved but perhaps not on disk yet.
#[derive(Debug)]
#[must_use = "an address may be told only after it is on disk"]
pub struct Durable {
    unlocked: Unlocked,
    taken: Vec<IpAddr>,
    data_dir: PathBuf,
    network: String,
}

impl Durable {
    /// Waits for the disk; gives the addresses back when it fails.
    pub fn wait(self) -> Result<(), HostLocalError> {
        let Err(error) = self.unlocked.sync(&self.taken) else { return Ok(()) };
        let store = Store::open(&self.data_dir, &self.network)?;
        for ip in self.taken {
            store.remove(ip)?;
        }
        Err(error.into())
    }
}

fn allocate(
    store: &Store,
    conf: &Conf,
    owner: &Owner,
    taken: &mut Vec<IpAddr>,
) -> Result<Vec<IpConfig>, HostLocalError> {
    let reserved = store.reservations()?;
    let in_use: BTreeSet<IpAddr> = reserved.iter().map(|(ip, _)| *ip).collect();
    let mine: Vec<IpAddr> = reserved.iter().filter(|(_, other)| other.same(owner)).map(|(ip, _)| *ip).collect();
    let mut requested = conf.requested.clone();
    let mut ips = Vec::new();
    for (index, set) in conf.ranges.iter().enumerate() {
        let wanted = requested.iter().position(|ip| set.range_of(*ip).is_some()).map(|at| requested.remove(at));
        let (ip, range) = match wanted {
            Some(ip) => take_requested(set, index, ip, &in_use)?,
            None => take_next(store, set, index, owner, &in_use, &mine)?,
        };
        store.reserve(ip, owner)?;
        taken.push(ip);
        store.set_last(index, ip)?;
        let address = IpNet::new(ip, range.prefix_len()).unwrap_or_else(|_| ip.into());
        ips.push(IpConfig { interface: None, address, gateway: Some(range.gateway) });
    }
    if requested.is_empty() { Ok(ips) } else { Err(HostLocalError::Unfulfilled(requested)) }
}

fn take_requested<'a>(
    set: &'a RangeSet,
    index: usize,
    address: IpAddr,
    in_use: &BTreeSet<IpAddr>,
) -> Result<(IpAddr, &'a Range), HostLocalError> {
    let taken = || HostLocalError::Taken { index, address, set: set.to_string() };
    let range = set.range_of(address).ok_or_else(taken)?;
    if address == range.gateway {
        return Err(HostLocalError::Gateway { index, address });
    }
    if in_use.contains(&address) { Err(taken()) } else { Ok((address, range)) }
}

fn take_next<'a>(
    store: &Store,
    set: &'a RangeSet,
    index: usize,
    owner: &Owner,
    in_use: &BTreeSet<IpAddr>,
    mine: &[IpAddr],
) -> Result<(IpAddr, &'a Range), HostLocalError> {
    if let Some(address) = mine.iter().find(|ip| set.range_of(**ip).is_some()) {
        return Err(HostLocalError::Duplicate { index, address: *address, container: owner.container.clone() });
    }
    let mut candidates = set.candidates(store.last(index));
    candidates
        .find(|(ip, _)| !in_use.contains(ip))
        .ok_or_else(|| HostLocalError::Exhausted { index, set: set.to_string() })
}

/// Gives back the container's addresses; none is fine.
pub fn del(request: &Request) -> Result<(), HostLocalError> {
    let conf = Conf::load(request)?;
    let owner = Owner::new(&request.container_id, &request.ifname);
    let store = Store::open(&conf.data_dir, &request.network)?;
    for (ip, other) in store.reservations()? {
        if other.same(&owner) {
            store.remove(ip)?;
        }
    }
    Ok(())
}

/// The container must have an address.
pub fn check(request: &Request) -> Result<(), HostLocalError> {
    let conf = Conf::load(request)?;
    let owner = Owner::new(&request.container_id, &request.ifname);
    let store = Store::open(&conf.data_dir, &request.network)?;
    let found = store.reservations()?.iter().any(|(_, other)| other.same(&owner));
    if found { Ok(()) } else { Err(HostLocalError::NotFound(request.container_id.clone())) }
}

/// Gives back every address whose owner is not among `cni.dev/valid-attachments`.
///
/// The key must be there: without it, "nothing is valid" would be a guess that frees every address of a running node.
pub fn gc(request: &Request) -> Result<(), HostLocalError> {
    let conf = Conf::load(request)?;
    let key = "cni.dev/valid-attachments";
    let valid = conf.valid_attachments.as_ref().ok_or_else(|| ConfigError::invalid(key, "GC needs this list"))?;
    let store = Store::open(&conf.data_dir, &request.network)?;
    for (ip, owner) in store.reservations()? {
        if !valid.iter().any(|attachment| owner.same(attachment)) {
            store.remove(ip)?;
        }
    }
    Ok(())
}

/// The configuration is right and the folder can be locked. Full ranges are no reason to call a whole node unready.
pub fn status(request: &Request) -> Result<(), HostLocalError> {
    let conf = Conf::load(request)?;
    Store::open(&conf.data_dir, &request.network)?;
    Ok(())
}
