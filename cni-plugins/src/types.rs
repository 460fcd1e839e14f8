//! Results of an ADD, in every version's format. Pure.
//!
//! Inside the program a result has the shape of 1.1.0; older shapes are made, and read (from a delegate or a `prevResult`), here.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::{self, ConfigError};
use crate::version::Version;

/// What an ADD has made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AddResult {
    /// Interfaces, in the order that `ips` refers to.
    pub interfaces: Vec<Interface>,
    /// Addresses.
    pub ips: Vec<IpConfig>,
    /// Routes inside the container.
    pub routes: Vec<Route>,
    /// Resolver settings.
    pub dns: Dns,
}

/// An interface on the host or in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address, lower-case with colons.
    pub mac: String,
    /// Its MTU (told from 1.1.0 on).
    pub mtu: Option<u32>,
    /// Path of the namespace; empty for the host's.
    pub sandbox: String,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct IpConfig {
    /// Index into `interfaces`.
    #[serde(default)]
    pub interface: Option<usize>,
    /// Address and prefix length.
    #[serde(with = "text")]
    pub address: IpNet,
    /// The gateway of the subnet.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    #[serde(with = "text")]
    pub dst: IpNet,
    /// Next hop; without one, the gateway of the address' family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// MTU of the path (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Advertised maximal segment size (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Metric (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Routing table (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope (1.1.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A plain route.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

/// Resolver settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Name servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One address and its routes, as 0.1.0 and 0.2.0 have it.
#[derive(Deserialize)]
struct OldIp {
    #[serde(with = "text")]
    ip: IpNet,
    #[serde(default)]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OldResult {
    ip4: Option<OldIp>,
    ip6: Option<OldIp>,
    dns: Dns,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Versioned {
    cni_version: String,
}

impl AddResult {
    /// Reads a result of any version.
    pub fn parse(value: &Value) -> Result<Self, ConfigError> {
        let Versioned { cni_version } = config::decode(value)?;
        let version = Version::parse(&cni_version).ok_or_else(|| {
            ConfigError::invalid("cniVersion", format!("a result of the unknown version {cni_version:?}"))
        })?;
        if version > Version::V0_2_0 {
            return config::decode(value);
        }
        let old: OldResult = config::decode(value)?;
        let mut result = Self { dns: old.dns, ..Self::default() };
        for ip in [old.ip4, old.ip6].into_iter().flatten() {
            result.ips.push(IpConfig { interface: None, address: ip.ip, gateway: ip.gateway });
            result.routes.extend(ip.routes);
        }
        Ok(result)
    }

    /// The answer to an ADD in a version's format.
    pub fn to_json(&self, version: Version) -> String {
        let value = if version > Version::V0_2_0 { self.current(version) } else { self.old(version) };
        format!("{value:#}\n")
    }

    fn current(&self, version: Version) -> Value {
        let mut answer = Map::new();
        answer.insert("cniVersion".into(), version.as_str().into());
        if !self.interfaces.is_empty() {
            answer.insert("interfaces".into(), self.interfaces.iter().map(|one| one.to_value(version)).collect());
        }
        if !self.ips.is_empty() {
            answer.insert("ips".into(), self.ips.iter().map(|ip| ip.to_value(version)).collect());
        }
        if !self.routes.is_empty() {
            answer.insert("routes".into(), self.routes.iter().map(|route| route_value(route, version)).collect());
        }
        answer.insert("dns".into(), json!(self.dns));
        Value::Object(answer)
    }

    fn old(&self, version: Version) -> Value {
        let mut answer = Map::new();
        answer.insert("cniVersion".into(), version.as_str().into());
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            // One address per family is all that these versions know.
            let Some(ip) = self.ips.iter().find(|ip| is_v4(&ip.address) == v4) else { continue };
            let mut old = json!({ "ip": ip.address.to_string() });
            if let Some(gateway) = ip.gateway {
                old["gateway"] = gateway.to_string().into();
            }
            let routes: Vec<Value> = self
                .routes
                .iter()
                .filter(|route| is_v4(&route.dst) == v4)
                .map(|route| route_value(route, version))
                .collect();
            if !routes.is_empty() {
                old["routes"] = routes.into();
            }
            answer.insert(key.into(), old);
        }
        answer.insert("dns".into(), json!(self.dns));
        Value::Object(answer)
    }
}

impl Interface {
    fn to_value(&self, version: Version) -> Value {
        let mut value = json!({ "name": self.name });
        if !self.mac.is_empty() {
            value["mac"] = self.mac.clone().into();
        }
        if let (Some(mtu), Version::V1_1_0) = (self.mtu, version) {
            value["mtu"] = mtu.into();
        }
        if !self.sandbox.is_empty() {
            value["sandbox"] = self.sandbox.clone().into();
        }
        value
    }
}

impl IpConfig {
    fn to_value(&self, version: Version) -> Value {
        let mut value = json!({ "address": self.address.to_string() });
        if version < Version::V1_0_0 {
            value["version"] = if is_v4(&self.address) { "4" } else { "6" }.into();
        }
        if let Some(interface) = self.interface {
            value["interface"] = interface.into();
        }
        if let Some(gateway) = self.gateway {
            value["gateway"] = gateway.to_string().into();
        }
        value
    }
}

fn route_value(route: &Route, version: Version) -> Value {
    if version >= Version::V1_1_0 { json!(route) } else { json!(Route::new(route.dst, route.gw)) }
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// Values that are JSON strings and have a textual form.
pub mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the value as its text.
    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Reads the value from its text.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| D::Error::custom(format!("{error}: {text:?}")))
    }
}

#[cfg(test)]
#[path = "types_tests.rs"]
mod tests;
