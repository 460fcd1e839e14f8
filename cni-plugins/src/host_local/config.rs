//! The `ipam` member, and the other places that addresses can be asked for in. Pure.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::range::{RangeSet, RangeSpec};
use super::store::Owner;
use crate::config::{self, ConfigError};
use crate::skel::Request;
use crate::types::Route;
use crate::version::Version;

/// Where addresses are kept unless `dataDir` says otherwise; the reference's default.
const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct Conf {
    /// Range sets: one address is taken from each.
    pub ranges: Vec<RangeSet>,
    /// Routes handed on to whoever configures the interface.
    pub routes: Vec<Route>,
    /// Folder of all networks.
    pub data_dir: PathBuf,
    /// A resolver file whose contents go into the result.
    pub resolv_conf: Option<PathBuf>,
    /// Addresses that the caller wants.
    pub requested: Vec<IpAddr>,
    /// Who may keep addresses in a GC.
    pub valid_attachments: Option<Vec<Owner>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetConf {
    ipam: Option<IpamConf>,
    args: Args,
    runtime_config: RuntimeConfig,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<Attachment>>,
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: CniArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    ips: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    ips: Vec<String>,
    ip_ranges: Vec<Vec<RangeSpec>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IpamConf {
    subnet: Option<String>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
    ranges: Vec<Vec<RangeSpec>>,
    routes: Vec<Route>,
    data_dir: String,
    resolv_conf: String,
}

impl Conf {
    /// Reads and checks the configuration of a call.
    pub fn load(request: &Request) -> Result<Self, ConfigError> {
        let net: NetConf = config::decode(&request.config)?;
        let ipam = net.ipam.ok_or_else(|| ConfigError::invalid("ipam", "IPAM config missing 'ipam' key"))?;
        let requested = requested(request, &net.args.cni.ips, &net.runtime_config.ips)?;
        let mut specs = net.runtime_config.ip_ranges;
        if let Some(subnet) = &ipam.subnet {
            let subnet = subnet.parse().map_err(|error| ConfigError::Type {
                key: "ipam.subnet".to_owned(),
                reason: format!("{error}: {subnet:?}"),
            })?;
            let (range_start, range_end) = (ipam.range_start, ipam.range_end);
            specs.push(vec![RangeSpec { subnet, range_start, range_end, gateway: ipam.gateway }]);
        }
        specs.extend(ipam.ranges);
        let ranges = range_sets(&specs)?;
        if request.version <= Version::V0_2_0 {
            check_old_format(&ranges, request.version)?;
        }
        let valid_attachments = net
            .valid_attachments
            .map(|list| list.iter().map(|one| Owner::new(&one.container_id, &one.ifname)).collect());
        Ok(Self {
            ranges,
            routes: ipam.routes,
            data_dir: some_path(ipam.data_dir).unwrap_or_else(|| DEFAULT_DATA_DIR.into()),
            resolv_conf: some_path(ipam.resolv_conf),
            requested,
            valid_attachments,
        })
    }
}

fn some_path(text: String) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

/// All addresses asked for: `IP` of `CNI_ARGS`, `args.cni.ips`, the capability `ips`; with or without a prefix length.
fn requested(request: &Request, args: &[String], capability: &[String]) -> Result<Vec<IpAddr>, ConfigError> {
    let mut found = Vec::new();
    let from_environment = request.arg("IP").map(|text| ("CNI_ARGS IP", text));
    let from_args = args.iter().map(|text| ("args.cni.ips", text.as_str()));
    let from_capability = capability.iter().map(|text| ("runtimeConfig.ips", text.as_str()));
    for (key, text) in from_environment.into_iter().chain(from_args).chain(from_capability) {
        let bare = text.split('/').next().unwrap_or_default();
        let ip: IpAddr = bare.parse().map_err(|error| ConfigError::invalid(key, format!("{error}: {text:?}")))?;
        let ip = ip.to_canonical();
        if !found.contains(&ip) {
            found.push(ip);
        }
    }
    Ok(found)
}

fn range_sets(specs: &[Vec<RangeSpec>]) -> Result<Vec<RangeSet>, ConfigError> {
    if specs.is_empty() {
        return Err(ConfigError::invalid("ipam.ranges", "no IP ranges specified"));
    }
    let mut sets: Vec<RangeSet> = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let set = RangeSet::new(spec)
            .map_err(|error| ConfigError::invalid("ipam.ranges", format!("invalid range set {index}: {error}")))?;
        if let Some(other) = sets.iter().position(|earlier| earlier.overlaps(&set)) {
            let reason = format!("range set {other} overlaps with {index}");
            return Err(ConfigError::invalid("ipam.ranges", reason));
        }
        sets.push(set);
    }
    Ok(sets)
}

fn check_old_format(sets: &[RangeSet], version: Version) -> Result<(), ConfigError> {
    for v4 in [true, false] {
        if sets.iter().filter(|set| set.is_v4() == v4).count() > 1 {
            let reason = format!("CNI version {version} does not support more than 1 address per family");
            return Err(ConfigError::invalid("ipam.ranges", reason));
        }
    }
    Ok(())
}
