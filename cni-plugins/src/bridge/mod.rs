//! The `bridge` plugin: a veth pair between the container and a Linux bridge on the host.
//!
//! Upstream counterpart: `plugins/main/bridge`; same keys, same results, same state of the namespace.
//!
//! Invariants:
//! - the configuration is checked whole before the kernel is touched;
//! - a failed ADD leaves no interface and no address behind (the bridge stays: others may use it by now);
//! - a DEL goes on after an error, and works when the namespace is gone.

mod add;
mod check;
mod conf;
mod gateways;
mod teardown;

pub use add::add;
pub use check::check;
pub use teardown::{del, delegate};

use ipnet::IpNet;

use crate::error::code;

/// Why an interface could not be made, or is not as it was left.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The bridge's name is taken by something else.
    #[error("{0:?} already exists but is not a bridge")]
    NotABridge(String),
    /// The kernel was built without CONFIG_BRIDGE_VLAN_FILTERING.
    #[error(
        "cannot make bridge {0:?} with VLANs: this kernel has no bridge VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)"
    )]
    NoVlans(String),
    /// The container has an interface of that name.
    #[error("container veth name provided ({0}) already exists")]
    InterfaceExists(String),
    /// No random name was free; retryable.
    #[error("no free name for the host's end of the veth pair after {0} tries")]
    NoFreeName(u32),
    /// There is no source of random names.
    #[error("cannot read /dev/urandom: {0}")]
    Random(std::io::Error),
    /// An IPAM plugin without an address.
    #[error("IPAM plugin returned missing IP config")]
    NoAddress,
    /// The bridge has another address, and `forceAddress` is off.
    #[error("{bridge:?} already has an IP address different from {wanted}: {found} (set forceAddress to replace it)")]
    OtherAddress {
        /// The bridge.
        bridge: String,
        /// The gateway's address.
        wanted: IpNet,
        /// The one it has.
        found: IpNet,
    },
    /// The port did not come up; retryable.
    #[error("bridge port in error state: {0} did not come up")]
    PortDown(String),
    /// Duplicate address detection took too long; retryable.
    #[error("address of {0} is still tentative after {1} s")]
    Tentative(String, u64),
    /// CHECK found a difference.
    #[error("{0}")]
    Check(CheckFailure),
}

/// What CHECK found.
#[derive(Debug, thiserror::Error)]
pub enum CheckFailure {
    /// CHECK needs the result of the ADD.
    #[error("Required prevResult missing")]
    NoPrevResult,
    /// The result does not list an interface that an ADD makes.
    #[error("interface {0} is not in prevResult")]
    NotListed(String),
    /// An interface is gone.
    #[error("Interface name {0} not found")]
    Missing(String),
    /// An interface is something else.
    #[error("Interface {name} is not of type {kind}")]
    Kind {
        /// Its name.
        name: String,
        /// What it should be.
        kind: &'static str,
    },
    /// A hardware address changed.
    #[error("Interface {name} Mac {found} doesn't match {wanted}")]
    Mac {
        /// Its name.
        name: String,
        /// What it has.
        found: String,
        /// What it had.
        wanted: String,
    },
    /// The bridge is promiscuous and should not be, or the other way round.
    #[error("Bridge interface {name} configured Promisc Mode {wanted} doesn't match current state")]
    Promiscuous {
        /// The bridge.
        name: String,
        /// As configured.
        wanted: bool,
    },
    /// No host interface is the container's other end and a port of the bridge.
    #[error("CNI veth created for bridge {0} was not found")]
    Unplugged(String),
    /// An address is gone.
    #[error("address {address} is missing on {name}")]
    Address {
        /// The interface.
        name: String,
        /// The address.
        address: IpNet,
    },
    /// A route is gone.
    #[error("Expected Route {0} not found in routing table")]
    Route(IpNet),
}

impl BridgeError {
    /// The specification's code.
    pub fn code(&self) -> u32 {
        match self {
            Self::NoFreeName(_) | Self::PortDown(_) | Self::Tentative(..) => code::TRY_AGAIN,
            Self::Random(_) => code::IO,
            Self::NotABridge(_) | Self::InterfaceExists(_) | Self::OtherAddress { .. } => code::NETLINK,
            Self::NoVlans(_) => code::UNSUPPORTED_FIELD,
            Self::NoAddress => code::DELEGATE,
            Self::Check(CheckFailure::NoPrevResult) => code::INVALID_CONFIG,
            Self::Check(_) => code::CHECK,
        }
    }
}

impl From<CheckFailure> for BridgeError {
    fn from(failure: CheckFailure) -> Self {
        Self::Check(failure)
    }
}

impl From<CheckFailure> for crate::error::Error {
    fn from(failure: CheckFailure) -> Self {
        Self::Bridge(failure.into())
    }
}
