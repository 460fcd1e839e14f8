//! The one error that leaves a plugin, as the specification's JSON with its code.

use keelson_netfilter::nft::NftError;
use serde_json::json;

use crate::bridge::BridgeError;
use crate::config::ConfigError;
use crate::host_local::HostLocalError;
use crate::ipam::IpamError;
use crate::net::{NetError, NetNsError};
use crate::portmap::PortmapError;
use crate::skel::SkelError;
use crate::version::Version;

/// Codes of the specification (section "Error"), and ours from 100 on.
pub mod code {
    /// The configuration's version is not one of ours.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A key asks for something that does not exist here.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The environment is incomplete or wrong.
    pub const ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO: u32 = 5;
    /// Something does not decode: JSON, or a key's type.
    pub const DECODE: u32 = 6;
    /// The configuration makes no sense.
    pub const INVALID_CONFIG: u32 = 7;
    /// The namespace is not there, not one, or the host's own.
    pub const INVALID_NETNS: u32 = 8;
    /// Not now, but perhaps later.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: an ADD could not work.
    pub const NOT_AVAILABLE: u32 = 50;
    /// The kernel refused.
    pub const NETLINK: u32 = 100;
    /// Addresses: none left, or not the one that was asked for.
    pub const ADDRESS: u32 = 101;
    /// CHECK found a difference.
    pub const CHECK: u32 = 102;
    /// The IPAM plugin could not be run.
    pub const DELEGATE: u32 = 103;
}

/// Whatever can go wrong in a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call is wrong.
    #[error(transparent)]
    Skel(#[from] SkelError),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The namespace is wrong.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The kernel refused.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Address management failed.
    #[error(transparent)]
    HostLocal(#[from] HostLocalError),
    /// The IPAM plugin failed.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// The bridge plugin failed.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The portmap plugin failed.
    #[error(transparent)]
    Portmap(#[from] PortmapError),
    /// Masquerading could not be set up or taken away.
    #[error("ipMasq: {0}")]
    Masquerade(#[from] NftError),
    /// The interface inside is not as it was left.
    #[error("loopback interface is down")]
    LoopbackDown,
}

impl Error {
    /// The specification's code.
    pub fn code(&self) -> u32 {
        match self {
            Self::Skel(error) => skel_code(error),
            Self::Config(error) => config_code(error),
            Self::NetNs(_) => code::INVALID_NETNS,
            Self::Net(_) | Self::Masquerade(_) => code::NETLINK,
            Self::HostLocal(error) => error.code(),
            Self::Ipam(error) => error.code(),
            Self::Bridge(error) => error.code(),
            Self::Portmap(error) => error.code(),
            Self::LoopbackDown => code::CHECK,
        }
    }

    /// The answer on standard output, in the version that was asked for.
    pub fn to_json(&self, version: Version) -> String {
        let (message, details) = match self {
            Self::Ipam(IpamError::Refused { message, details, .. }) => (message.clone(), details.clone()),
            other => (other.to_string(), String::new()),
        };
        let mut answer = json!({ "cniVersion": version.as_str(), "code": self.code(), "msg": message });
        if !details.is_empty() {
            answer["details"] = details.into();
        }
        format!("{answer:#}\n")
    }
}

fn skel_code(error: &SkelError) -> u32 {
    match error {
        SkelError::UnknownCommand(_) | SkelError::Missing(_) | SkelError::Invalid { .. } => code::ENVIRONMENT,
        SkelError::Stdin(_) => code::IO,
        SkelError::TooLarge => code::INVALID_CONFIG,
        SkelError::Config(error) => config_code(error),
        SkelError::Version(_) | SkelError::TooOld { .. } => code::INCOMPATIBLE_VERSION,
    }
}

/// The code for a configuration error, wherever it was found.
pub fn config_code(error: &ConfigError) -> u32 {
    match error {
        ConfigError::Syntax(_) | ConfigError::Type { .. } => code::DECODE,
        ConfigError::Invalid { .. } => code::INVALID_CONFIG,
        ConfigError::Unsupported { .. } => code::UNSUPPORTED_FIELD,
    }
}
