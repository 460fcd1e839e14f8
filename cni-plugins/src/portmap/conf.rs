//! The portmap plugin's configuration. Pure.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use keelson_netfilter::nft::Expr;
use serde::Deserialize;
use serde_json::Value;

use super::conditions;
use crate::config::{self, ConfigError};
use crate::skel::Request;
use crate::types::AddResult;

/// The reference's; Kubernetes uses 14 and 15, Calico 20 to 31.
const DEFAULT_MARK_BIT: i64 = 13;
const BACKEND: &str = "nftables";

/// Transport protocol of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// SCTP
    Sctp,
}

impl Protocol {
    /// IANA's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// One port of the host that leads into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Protocol.
    pub protocol: Protocol,
    /// Only at this address of the host; at all of them without one.
    pub host_ip: Option<IpAddr>,
    /// Port of the host.
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
}

impl Mapping {
    /// Whether the mapping concerns addresses of that family.
    pub fn is_for(&self, v4: bool) -> bool {
        self.host_ip.is_none_or(|ip| ip.is_ipv4() == v4)
    }
}

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Conf {
    /// Ports, without those whose host address is of a family that the container does not have.
    pub mappings: Vec<Mapping>,
    /// Connections that would not find back are masqueraded.
    pub snat: bool,
    /// … and so is everything else.
    pub masquerade_all: bool,
    /// The mark's bit.
    pub mark_bit: u8,
    /// What must hold for IPv4 packets.
    pub conditions_v4: Vec<Expr>,
    /// What must hold for IPv6 packets.
    pub conditions_v6: Vec<Expr>,
    /// The container's first address of each family, with the length of its network.
    pub addresses: Vec<IpNet>,
    /// The result of the plugins before this one.
    pub previous: Option<AddResult>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    backend: String,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Vec<String>,
    conditions_v6: Vec<String>,
    runtime_config: Runtime,
    prev_result: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Runtime {
    port_mappings: Vec<RawMapping>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMapping {
    // containerd writes the names of its Go structure, and Go reads names without regard to case.
    #[serde(alias = "HostPort")]
    host_port: i64,
    #[serde(alias = "ContainerPort")]
    container_port: i64,
    #[serde(alias = "Protocol")]
    protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP")]
    host_ip: String,
}

impl Conf {
    /// Reads and checks the configuration of a request.
    pub fn load(request: &Request) -> Result<Self, ConfigError> {
        let raw: Raw = config::decode(&request.config)?;
        check_backend(&raw)?;
        let mark_bit = raw.mark_masq_bit.unwrap_or(DEFAULT_MARK_BIT);
        let mark_bit = u8::try_from(mark_bit)
            .ok()
            .filter(|bit| *bit < 32)
            .ok_or_else(|| ConfigError::invalid("markMasqBit", "MasqMarkBit must be between 0 and 31"))?;
        let mappings = mappings(&raw.runtime_config.port_mappings)?;
        let previous = raw.prev_result.as_ref().map(AddResult::parse).transpose()?;
        Ok(Self {
            mappings,
            snat: raw.snat.unwrap_or(true),
            masquerade_all: raw.masq_all,
            mark_bit,
            conditions_v4: conditions::parse("conditionsV4", &raw.conditions_v4, true)?,
            conditions_v6: conditions::parse("conditionsV6", &raw.conditions_v6, false)?,
            addresses: previous.as_ref().map(|result| addresses(result, &request.ifname)).unwrap_or_default(),
            previous,
        })
    }

    /// What a DEL needs, whatever is wrong with the rest: the ports, and the container's addresses if the runtime told.
    pub fn load_leniently(request: &Request) -> (Vec<Mapping>, Vec<IpNet>) {
        let member = |path: &str| request.config.pointer(path);
        let ports = member("/runtimeConfig/portMappings").and_then(|value| config::decode(value).ok());
        let ports: Vec<RawMapping> = ports.unwrap_or_default();
        let previous = member("/prevResult").and_then(|value| AddResult::parse(value).ok());
        let addresses = previous.map(|result| addresses(&result, &request.ifname)).unwrap_or_default();
        (ports.iter().enumerate().filter_map(|(index, raw)| mapping(index, raw).ok()).collect(), addresses)
    }

    /// Conditions of a family.
    pub fn conditions(&self, v4: bool) -> &[Expr] {
        if v4 { &self.conditions_v4 } else { &self.conditions_v6 }
    }
}

fn check_backend(raw: &Raw) -> Result<(), ConfigError> {
    if raw.external_set_mark_chain.is_some() && raw.mark_masq_bit.is_some() {
        let reason = "Cannot specify externalSetMarkChain and markMasqBit";
        return Err(ConfigError::invalid("externalSetMarkChain", reason));
    }
    if let Some(chain) = &raw.external_set_mark_chain {
        return Err(ConfigError::Unsupported {
            key: "externalSetMarkChain",
            value: format!("{chain:?}"),
            reason: "an iptables chain cannot be called from nftables; leave it out and, where the mark matters, set markMasqBit",
        });
    }
    if raw.backend.is_empty() || raw.backend == BACKEND {
        return Ok(());
    }
    if raw.backend == "iptables" {
        return Err(ConfigError::Unsupported {
            key: "backend",
            value: "\"iptables\"".to_owned(),
            reason: "this program speaks nftables only; leave the key out, or use the reference plugin",
        });
    }
    Err(ConfigError::invalid("backend", format!("unknown backend {:?}: \"nftables\" is known", raw.backend)))
}

fn mappings(raw: &[RawMapping]) -> Result<Vec<Mapping>, ConfigError> {
    raw.iter().enumerate().map(|(index, raw)| mapping(index, raw)).collect()
}

fn mapping(index: usize, raw: &RawMapping) -> Result<Mapping, ConfigError> {
    let key = |name: &str| format!("runtimeConfig.portMappings[{index}].{name}");
    let port = |number: i64| u16::try_from(number).ok().filter(|port| *port != 0);
    let container_port = port(raw.container_port).ok_or_else(|| {
        ConfigError::invalid(key("containerPort"), format!("Invalid container port number: {}", raw.container_port))
    })?;
    let host_port = port(raw.host_port)
        .ok_or_else(|| ConfigError::invalid(key("hostPort"), format!("Invalid host port number: {}", raw.host_port)))?;
    let protocol = match raw.protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        other => {
            return Err(ConfigError::invalid(key("protocol"), format!("{other:?} is none of tcp, udp and sctp")));
        }
    };
    let host_ip = if raw.host_ip.is_empty() {
        None
    } else {
        let parsed = raw.host_ip.parse::<IpAddr>();
        Some(parsed.map_err(|_| ConfigError::invalid(key("hostIP"), format!("{:?} is no IP address", raw.host_ip)))?)
    };
    // The unspecified address means all of its family: kept as such until the rules are made.
    Ok(Mapping { protocol, host_ip, host_port, container_port })
}

/// The first address of each family on the container's interface; all count when the result lists no interfaces.
fn addresses(result: &AddResult, ifname: &str) -> Vec<IpNet> {
    let inside = |index: Option<usize>| {
        let Some(interface) = index.and_then(|index| result.interfaces.get(index)) else { return true };
        interface.name == ifname && !interface.sandbox.is_empty()
    };
    let mut found: Vec<IpNet> = Vec::new();
    for ip in result.ips.iter().filter(|ip| inside(ip.interface)) {
        if found.iter().all(|other| other.addr().is_ipv4() != ip.address.addr().is_ipv4()) {
            found.push(ip.address);
        }
    }
    found
}

#[cfg(test)]
#[path = "conf_tests.rs"]
mod tests;
