//! Environment and configuration of one call, checked before any plugin sees them. Pure: both are handed in.
//!
//! Upstream counterpart: `pkg/skel` of containernetworking/cni, including the order of the checks.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::config::{self, ConfigError};
use crate::version::{Version, supported};

/// The variable that says what to do.
pub const COMMAND: &str = "CNI_COMMAND";
/// Largest configuration that is read; real ones have a few kilobytes.
pub const CONFIG_LIMIT: u64 = 4 * 1024 * 1024;
/// IFNAMSIZ less the terminating zero.
const INTERFACE_NAME_LIMIT: usize = 15;

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Attach a container.
    Add,
    /// Detach it; twice is fine.
    Del,
    /// Is the attachment as it was left?
    Check,
    /// Drop what belongs to no listed attachment.
    Gc,
    /// Could an ADD work?
    Status,
    /// Which versions are known?
    Version,
}

impl Command {
    /// Reads `CNI_COMMAND`.
    pub fn from_environment(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, SkelError> {
        let name = environment(COMMAND).unwrap_or_default();
        Ok(match name.as_str() {
            "ADD" => Self::Add,
            "DEL" => Self::Del,
            "CHECK" => Self::Check,
            "GC" => Self::Gc,
            "STATUS" => Self::Status,
            "VERSION" => Self::Version,
            _ => return Err(SkelError::UnknownCommand(name)),
        })
    }

    /// As it is written in `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    fn required(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Self::Gc | Self::Status => &["CNI_PATH"],
            Self::Version => &[],
        }
    }

    /// The first version of the specification that has the command.
    fn since(self) -> Version {
        match self {
            Self::Add | Self::Del | Self::Version => Version::V0_1_0,
            Self::Check => Version::V0_4_0,
            Self::Gc | Self::Status => Version::V1_1_0,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What is wrong with the call itself. Never worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum SkelError {
    /// `CNI_COMMAND` is none of the specification's.
    #[error("unknown CNI_COMMAND: {0}")]
    UnknownCommand(String),
    /// Variables that the command needs are not set.
    #[error("required env variables [{}] missing", .0.join(","))]
    Missing(Vec<&'static str>),
    /// A variable has a value that the specification forbids.
    #[error("{variable} is invalid: {reason}: {value:?}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The configuration could not be read.
    #[error("cannot read the network configuration from standard input: {0}")]
    Stdin(io::Error),
    /// The configuration is longer than anything real.
    #[error("the network configuration is larger than {CONFIG_LIMIT} bytes")]
    TooLarge,
    /// The configuration is not what it should be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A version that this program does not know.
    #[error("incompatible CNI versions: config is {0:?}, plugin supports {supported:?}", supported = supported())]
    Version(String),
    /// The configuration's version does not have the command.
    #[error("config version {version} does not allow {command}: it exists since {}", command.since())]
    TooOld {
        /// The configuration's version.
        version: Version,
        /// The command.
        command: Command,
    },
}

/// One checked call.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// The container's ID; empty for GC and STATUS.
    pub container_id: String,
    /// Path of the network namespace; empty when a DEL comes without one.
    pub netns: String,
    /// Name of the interface inside.
    pub ifname: String,
    /// `CNI_ARGS` as pairs; unknown ones are for others.
    pub args: Vec<(String, String)>,
    /// Where plugins are looked for.
    pub path: Vec<PathBuf>,
    /// Format of the answer.
    pub version: Version,
    /// The network's name.
    pub network: String,
    /// The configuration, without members that are null.
    pub config: Value,
    /// The configuration as it came, for a delegate.
    pub stdin: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Common {
    cni_version: String,
    name: String,
}

impl Request {
    /// Checks variables, configuration and version, in the reference's order.
    pub fn new(
        command: Command,
        environment: &dyn Fn(&str) -> Option<String>,
        stdin: Vec<u8>,
    ) -> Result<Self, SkelError> {
        let missing: Vec<&str> =
            command.required().iter().filter(|name| environment(name).is_none()).copied().collect();
        if !missing.is_empty() {
            return Err(SkelError::Missing(missing));
        }
        let variable = |name: &str| environment(name).unwrap_or_default();
        if stdin.len() as u64 > CONFIG_LIMIT {
            return Err(SkelError::TooLarge);
        }
        let config = config::parse(&stdin)?;
        let common: Common = config::decode(&config)?;
        check_network_name(&common.name)?;
        let container_id = variable("CNI_CONTAINERID");
        if !container_id.is_empty() {
            check_container_id(&container_id)?;
        }
        let ifname = variable("CNI_IFNAME");
        if !ifname.is_empty() {
            check_interface_name(&ifname).map_err(|reason| SkelError::Invalid {
                variable: "CNI_IFNAME",
                value: ifname.clone(),
                reason,
            })?;
        }
        let version =
            Version::parse(&common.cni_version).ok_or_else(|| SkelError::Version(common.cni_version.clone()))?;
        if version < command.since() {
            return Err(SkelError::TooOld { version, command });
        }
        let path = std::env::split_paths(&variable("CNI_PATH")).collect();
        let args = parse_args(&variable("CNI_ARGS"))?;
        let netns = variable("CNI_NETNS");
        Ok(Self { command, container_id, netns, ifname, args, path, version, network: common.name, config, stdin })
    }

    /// The value of one of `CNI_ARGS`, which are case-sensitive.
    pub fn arg(&self, name: &str) -> Option<&str> {
        self.args.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The same call with another command, for a delegate.
    pub fn with_command(&self, command: Command) -> Self {
        Self { command, ..self.clone() }
    }
}

fn check_network_name(name: &str) -> Result<(), SkelError> {
    if name.is_empty() {
        return Err(ConfigError::invalid("name", "missing network name").into());
    }
    if is_identifier(name) {
        return Ok(());
    }
    Err(ConfigError::invalid("name", format!("invalid characters found in network name {name:?}")).into())
}

fn check_container_id(value: &str) -> Result<(), SkelError> {
    if is_identifier(value) {
        return Ok(());
    }
    let reason = "it must start with a letter or digit and go on with letters, digits, `_`, `.` or `-`";
    Err(SkelError::Invalid { variable: "CNI_CONTAINERID", value: value.to_owned(), reason })
}

/// Both names end up as path segments: no slash, no leading dot.
fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}

/// What the kernel, and paths under /proc/sys, accept as the name of an interface.
pub fn check_interface_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("an interface name cannot be empty")
    } else if name.len() > INTERFACE_NAME_LIMIT {
        Err("an interface name has at most 15 bytes")
    } else if name == "." || name == ".." {
        Err("an interface cannot be named . or ..")
    } else if name.chars().any(|letter| letter == '/' || letter == ':' || letter.is_whitespace() || letter.is_control())
    {
        Err("an interface name has no slash, colon, space or control character")
    } else {
        Ok(())
    }
}

fn parse_args(text: &str) -> Result<Vec<(String, String)>, SkelError> {
    let pairs = text.split(';').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(|| SkelError::Invalid {
                variable: "CNI_ARGS",
                value: pair.to_owned(),
                reason: "every part must be KEY=VALUE",
            })?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}
