//! The bridge plugin's configuration. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::config::{self, ConfigError, IpamRef};
use crate::net::{self, PortOptions};
use crate::skel::{Request, check_interface_name};
use crate::types::Dns;

const DEFAULT_BRIDGE: &str = "cni0";
const LAST_VLAN: i64 = 4094;

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Conf {
    /// Name of the bridge.
    pub bridge: String,
    /// The bridge has the gateway's address.
    pub is_gateway: bool,
    /// … and is the container's default route.
    pub is_default_gateway: bool,
    /// Another address of the bridge is replaced.
    pub force_address: bool,
    /// What leaves the subnet is masqueraded.
    pub masquerade: bool,
    /// MTU of bridge and veth pair; 0 is the kernel's choice.
    pub mtu: u32,
    /// The bridge is promiscuous.
    pub promiscuous: bool,
    /// Options of the port.
    pub port: PortOptions,
    /// VLAN of an access port.
    pub vlan: Option<u16>,
    /// VLANs of a trunk port.
    pub trunk: Vec<u16>,
    /// The bridge looks at tags (also with an empty trunk).
    pub vlan_filtering: bool,
    /// The bridge's default VLAN stays on the port.
    pub preserve_default_vlan: bool,
    /// Duplicate address detection inside the container.
    pub dad: bool,
    /// The container's end stays down.
    pub leave_down: bool,
    /// Hardware address of the container's end.
    pub mac: Option<[u8; 6]>,
    /// IPAM plugin.
    pub ipam: Option<String>,
    /// Resolver settings that override those of the IPAM plugin.
    pub dns: Dns,
    /// The result of an earlier ADD.
    pub prev_result: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: String,
    mtu: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Option<Vec<Trunk>>,
    preserve_default_vlan: bool,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    ipam: IpamRef,
    dns: Dns,
    args: Args,
    runtime_config: MacConf,
    prev_result: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: MacConf,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MacConf {
    mac: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Trunk {
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
    id: Option<i64>,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            bridge: DEFAULT_BRIDGE.to_owned(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: String::new(),
            mtu: 0,
            hairpin_mode: false,
            promisc_mode: false,
            vlan: 0,
            vlan_trunk: None,
            // What the reference did before the key existed.
            preserve_default_vlan: true,
            macspoofchk: false,
            enabledad: false,
            disable_container_interface: false,
            port_isolation: false,
            ipam: IpamRef::default(),
            dns: Dns::default(),
            args: Args::default(),
            runtime_config: MacConf::default(),
            prev_result: None,
        }
    }
}

impl Conf {
    /// Reads and checks the configuration of a call.
    pub fn load(request: &Request) -> Result<Self, ConfigError> {
        let raw: Raw = config::decode(&request.config)?;
        check_interface_name(&raw.bridge).map_err(|reason| ConfigError::invalid("bridge", reason))?;
        refuse_unsupported(&raw)?;
        if raw.hairpin_mode && raw.promisc_mode {
            let reason = "cannot set hairpin mode and promiscuous mode at the same time";
            return Err(ConfigError::invalid("hairpinMode", reason));
        }
        if raw.disable_container_interface && !raw.ipam.plugin.is_empty() {
            let reason = "cannot use IPAM when DisableContainerInterface flag is set";
            return Err(ConfigError::invalid("disableContainerInterface", reason));
        }
        if !(0..=LAST_VLAN).contains(&raw.vlan) {
            let reason = format!("invalid VLAN ID {} (must be between 0 and 4094)", raw.vlan);
            return Err(ConfigError::invalid("vlan", reason));
        }
        let vlan = u16::try_from(raw.vlan).ok().filter(|vlan| *vlan != 0);
        let trunk = trunk_vlans(raw.vlan_trunk.as_deref().unwrap_or_default())?;
        if vlan.is_some() && !trunk.is_empty() {
            return Err(ConfigError::invalid("vlanTrunk", "cannot set vlan and vlanTrunk at the same time"));
        }
        Ok(Self {
            mac: mac(request, &raw)?,
            bridge: raw.bridge,
            is_gateway: raw.is_gateway || raw.is_default_gateway,
            is_default_gateway: raw.is_default_gateway,
            force_address: raw.force_address,
            masquerade: raw.ip_masq,
            mtu: raw.mtu,
            promiscuous: raw.promisc_mode,
            port: PortOptions { hairpin: raw.hairpin_mode, isolated: raw.port_isolation },
            vlan,
            trunk,
            vlan_filtering: vlan.is_some() || raw.vlan_trunk.is_some(),
            preserve_default_vlan: raw.preserve_default_vlan,
            dad: raw.enabledad,
            leave_down: raw.disable_container_interface,
            ipam: Some(raw.ipam.plugin).filter(|name| !name.is_empty()),
            dns: raw.dns,
            prev_result: raw.prev_result,
        })
    }
}

/// What cannot be done is refused rather than left out in silence. A DEL of such a configuration has nothing to undo.
fn refuse_unsupported(raw: &Raw) -> Result<(), ConfigError> {
    if raw.ip_masq && !["", "nftables"].contains(&raw.ip_masq_backend.as_str()) {
        let reason = "this bridge plugin masquerades by nftables only; leave the key out";
        return Err(ConfigError::Unsupported { key: "ipMasqBackend", value: raw.ip_masq_backend.clone(), reason });
    }
    if raw.macspoofchk {
        let reason = "this bridge plugin writes no filter rules yet; leave the key out";
        return Err(ConfigError::Unsupported { key: "macspoofchk", value: "true".to_owned(), reason });
    }
    Ok(())
}

/// The last of environment, arguments and capability wins.
fn mac(request: &Request, raw: &Raw) -> Result<Option<[u8; 6]>, ConfigError> {
    let places = [
        ("runtimeConfig.mac", raw.runtime_config.mac.as_str()),
        ("args.cni.mac", raw.args.cni.mac.as_str()),
        ("CNI_ARGS MAC", request.arg("MAC").unwrap_or_default()),
    ];
    let Some((key, text)) = places.into_iter().find(|(_, text)| !text.is_empty()) else { return Ok(None) };
    let parsed = net::parse_mac(text);
    parsed.map(Some).ok_or_else(|| ConfigError::invalid(key, format!("{text:?} is no hardware address")))
}

fn trunk_vlans(items: &[Trunk]) -> Result<Vec<u16>, ConfigError> {
    let mut vlans = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let invalid = |reason: &str| ConfigError::invalid(format!("vlanTrunk[{index}]"), reason);
        let vlan = |id: i64, key: &str| {
            u16::try_from(id)
                .ok()
                .filter(|_| (1..=LAST_VLAN).contains(&id))
                .ok_or_else(|| invalid(&format!("incorrect trunk {key} parameter: {id}")))
        };
        match (item.min_id, item.max_id) {
            (Some(min), Some(max)) => {
                let (min, max) = (vlan(min, "minID")?, vlan(max, "maxID")?);
                if min > max {
                    return Err(invalid("minID is greater than maxID in trunk parameter"));
                }
                vlans.extend(min..=max);
            }
            (None, None) => {}
            (None, Some(_)) => return Err(invalid("minID is missing: minID and maxID go together")),
            (Some(_), None) => return Err(invalid("maxID is missing: minID and maxID go together")),
        }
        if let Some(id) = item.id {
            vlans.insert(vlan(id, "id")?);
        }
    }
    Ok(vlans.into_iter().collect())
}

#[cfg(test)]
#[path = "conf_tests.rs"]
mod tests;
