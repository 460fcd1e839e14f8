//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`): upstream's field names, strict,
//! every mistake reported at once, and from it the [`Settings`].
//!
//! Fields that only steer what this program does otherwise are accepted and ignored, so that a
//! configuration made for upstream loads; modes that are not built yet are refused by name. Our own
//! extras stand under `keelson`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use kube_common::config::{Document, Mistake, Mistakes, decode_checked, load_file, mistakes};
use kube_common::duration::GoDuration;
use serde::Deserialize;

use crate::drain::server;
use crate::engine::{DetectLocal, NodePortAddresses, Settings};

/// The document's type.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The document's kind.
pub const KIND: &str = "KubeProxyConfiguration";

const DEFAULT_HEALTHZ: &str = "0.0.0.0:10256";
const DEFAULT_METRICS: &str = "127.0.0.1:10249";
const DEFAULT_HEALTHZ_PORT: u16 = 10256;
const DEFAULT_METRICS_PORT: u16 = 10249;
/// Upstream: mark bit 14.
const DEFAULT_MASQUERADE_BIT: i32 = 14;
/// Upstream's default for a node service.
const DEFAULT_OOM_SCORE_ADJ: i32 = -999;
const DEFAULT_SYNC_PERIOD: GoDuration = GoDuration::from_secs(30);

/// The file as written.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct KubeProxyConfiguration {
    pub feature_gates: std::collections::BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub logging: Option<serde_json::Value>,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: IptablesSection,
    pub ipvs: IpvsSection,
    pub nftables: NftablesSection,
    pub winkernel: Option<serde_json::Value>,
    pub detect_local_mode: String,
    pub detect_local: DetectLocalSection,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: Option<i32>,
    pub conntrack: ConntrackSection,
    pub config_sync_period: Option<GoDuration>,
    pub port_range: String,
    pub windows_run_as_service: bool,
    /// Our own extras.
    pub keelson: Extras,
}

/// How the API server is reached.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ClientConnection {
    pub kubeconfig: Option<PathBuf>,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: Option<f64>,
    pub burst: Option<i32>,
}

/// The iptables mode: not built, checked all the same.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct IptablesSection {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub sync_period: Option<GoDuration>,
    pub min_sync_period: Option<GoDuration>,
}

/// The ipvs mode: not built, checked all the same.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct IpvsSection {
    pub sync_period: Option<GoDuration>,
    pub min_sync_period: Option<GoDuration>,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Option<Vec<String>>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: Option<GoDuration>,
    pub tcp_fin_timeout: Option<GoDuration>,
    pub udp_timeout: Option<GoDuration>,
}

/// The nftables mode.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct NftablesSection {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub sync_period: Option<GoDuration>,
    pub min_sync_period: Option<GoDuration>,
}

/// Details of the local detection.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct DetectLocalSection {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

/// Conntrack limits.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ConntrackSection {
    pub max_per_core: Option<u32>,
    pub min: Option<u32>,
    pub tcp_established_timeout: Option<GoDuration>,
    pub tcp_close_wait_timeout: Option<GoDuration>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Option<GoDuration>,
    pub udp_stream_timeout: Option<GoDuration>,
}

/// What upstream does not have.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Extras {
    /// Ranges of cluster addresses; unallocated ones in them are dropped. ServiceCIDR objects, where
    /// the API has them, are used when this is empty.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<String>,
    /// The local socket at which the node agent asks for the drain of a pod; an empty text for none.
    pub drain_socket: Option<String>,
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the kubeconfig is; none inside a cluster.
    pub kubeconfig: Option<PathBuf>,
    /// `hostnameOverride`.
    pub hostname_override: Option<String>,
    /// Health server; none when switched off.
    pub healthz: Option<SocketAddr>,
    /// Metrics server; none when switched off.
    pub metrics: Option<SocketAddr>,
    /// A port that cannot be bound ends the program (otherwise it is only logged).
    pub bind_hard_fail: bool,
    /// What the engine needs.
    pub settings: Settings,
    /// After twice this without a finished sync, healthz fails.
    pub sync_period: std::time::Duration,
    /// Wanted OOM score adjustment.
    pub oom_score_adj: i32,
    /// Conntrack limits.
    pub conntrack: ConntrackSection,
    /// The drain's socket; none when switched off.
    pub drain_socket: Option<PathBuf>,
    /// The configuration as JSON, for `/configz`.
    pub as_json: String,
}

/// Why there is no configuration.
pub use kube_common::config::ConfigError;

/// Reads and checks a file.
///
/// # Errors
/// All mistakes with line, column and field.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let documents = load_file(path)?;
    from_documents(path, &documents).map_err(ConfigError::from)
}

/// Checks the documents of a file.
///
/// # Errors
/// All mistakes.
pub fn from_documents(path: &Path, documents: &[Document]) -> Result<Config, Mistakes> {
    let mut found = Vec::new();
    let mut config = None;
    for document in documents {
        if (document.api_version.as_str(), document.kind.as_str()) != (API_VERSION, KIND) {
            let message = format!(
                "unknown document {} {}: a proxy configuration is apiVersion {API_VERSION}, kind {KIND}",
                document.api_version, document.kind
            );
            found.push(document.mistake_at("kind", message));
        } else if config.is_some() {
            found.push(document.mistake_at("kind", format!("a second {KIND}; one file holds one")));
        } else {
            let mut checked = None;
            let outcome = decode_checked::<KubeProxyConfiguration>(document, |raw| {
                let mut mistakes = Vec::new();
                checked = Some(check(document, raw, &mut mistakes));
                mistakes
            });
            found.extend(outcome.err().into_iter().flatten());
            config = checked;
        }
    }
    match config {
        Some(config) if found.is_empty() => Ok(config),
        None if found.is_empty() => {
            let message = format!("the file holds no {KIND}; begin with apiVersion: {API_VERSION}, kind: {KIND}");
            let position = kube_common::yaml::Position { line: 1, column: 1 };
            Err(mistakes(path, vec![Mistake { position, field: String::new(), message }]))
        }
        _ => Err(mistakes(path, found)),
    }
}

/// The configuration of an empty document.
#[must_use]
pub fn default_config() -> Config {
    let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
    let path = Path::new("defaults");
    let documents = kube_common::config::load_documents(path, &text).unwrap_or_default();
    #[allow(clippy::expect_used)] // A constant text, covered by a test.
    from_documents(path, &documents).expect("the defaults are valid")
}

struct Checker<'a> {
    document: &'a Document,
    found: &'a mut Vec<Mistake>,
}

impl Checker<'_> {
    fn mistake(&mut self, field: &str, message: impl Into<String>) {
        self.found.push(self.document.mistake_at(field, message));
    }

    fn nets<'a>(&mut self, field: &str, texts: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
        let mut nets = Vec::new();
        for text in texts {
            match text.trim().parse::<IpNet>() {
                Ok(net) => nets.push(net),
                Err(_) => self.mistake(field, format!("{text:?} is not a CIDR such as 10.244.0.0/16")),
            }
        }
        nets
    }

    fn address(&mut self, field: &str, text: &str, default: &str, port: u16) -> Option<SocketAddr> {
        let text = if text.is_empty() { default } else { text };
        if let Ok(address) = text.parse::<SocketAddr>() {
            // Port 0 switches the server off, as upstream has it.
            return (address.port() != 0).then_some(address);
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(SocketAddr::new(ip, port));
        }
        self.mistake(field, format!("{text:?} is not an address such as {default}"));
        None
    }

    fn mode(&mut self, mode: &str) {
        match mode {
            "" | "nftables" => {}
            "iptables" | "ipvs" | "userspace" => {
                self.mistake("mode", format!("mode {mode:?} is not built yet; leave it out or write nftables"));
            }
            "kernelspace" => self.mistake("mode", "mode \"kernelspace\" is for Windows; write nftables"),
            other => self.mistake("mode", format!("{other:?} is no mode; write nftables")),
        }
    }

    /// Bits are checked in the sections of all modes, as upstream does.
    fn masquerade_bit(&mut self, field: &str, bit: Option<i32>) -> u32 {
        let bit = bit.unwrap_or(DEFAULT_MASQUERADE_BIT);
        if !(0..32).contains(&bit) {
            self.mistake(field, format!("{bit} is not a bit of a 32-bit mark: 0 to 31"));
        }
        u32::try_from(bit).ok().and_then(|bit| 1u32.checked_shl(bit)).unwrap_or(0)
    }

    fn sync_periods(&mut self, section: &NftablesSection) -> GoDuration {
        let period = given(section.sync_period).unwrap_or(DEFAULT_SYNC_PERIOD);
        if let Some(min) = given(section.min_sync_period).filter(|min| *min > period) {
            self.mistake("nftables.minSyncPeriod", format!("{min} is longer than nftables.syncPeriod ({period})"));
        }
        period
    }

    /// One range, or one of each family.
    fn cluster_cidrs(&mut self, text: &str) -> Vec<IpNet> {
        let texts: Vec<&str> = text.split(',').map(str::trim).filter(|t| !t.is_empty()).collect();
        let nets = self.nets("clusterCIDR", texts.iter().copied());
        let pair = matches!(&nets[..], [a, b] if a.addr().is_ipv4() != b.addr().is_ipv4());
        if texts.len() > 2 || (nets.len() == 2 && !pair) {
            let message = format!("{text:?}: write one CIDR, or an IPv4 and an IPv6 one with a comma between them");
            self.mistake("clusterCIDR", message);
        }
        nets
    }

    fn ip(&mut self, field: &str, text: &str) {
        if !text.is_empty() && text.parse::<IpAddr>().is_err() {
            self.mistake(field, format!("{text:?} is not an IP address"));
        }
    }

    fn drain_socket(&mut self, text: Option<&str>) -> Option<PathBuf> {
        let path = text.unwrap_or(server::DEFAULT_SOCKET);
        if let Some(message) = server::path_problem(path).filter(|_| !path.is_empty()) {
            self.mistake("keelson.drainSocket", message);
        }
        (!path.is_empty()).then(|| path.into())
    }

    fn port_range(&mut self, text: &str) {
        if parse_port_range(text).is_none() {
            self.mistake("portRange", format!("{text:?} is not a range of ports such as 300-2000 or 300+100"));
        }
    }

    fn detect_local(&mut self, raw: &KubeProxyConfiguration) -> DetectLocal {
        // Looked at in every mode: a range that is wrong is no less so for not being used yet.
        let nets = self.cluster_cidrs(&raw.cluster_cidr);
        let name = |text: &str| !text.is_empty() && text.len() < 16;
        let section = &raw.detect_local;
        match raw.detect_local_mode.as_str() {
            "" | "ClusterCIDR" if nets.is_empty() => DetectLocal::Off,
            "" | "ClusterCIDR" => DetectLocal::ClusterCidr(nets),
            "NodeCIDR" => DetectLocal::NodeCidr,
            "BridgeInterface" if name(&section.bridge_interface) => {
                DetectLocal::Bridge(section.bridge_interface.clone())
            }
            "BridgeInterface" => {
                self.mistake("detectLocal.bridgeInterface", "needed by BridgeInterface: a name of 1 to 15 letters");
                DetectLocal::Off
            }
            "InterfaceNamePrefix" if name(&section.interface_name_prefix) => {
                DetectLocal::InterfacePrefix(section.interface_name_prefix.clone())
            }
            "InterfaceNamePrefix" => {
                self.mistake("detectLocal.interfaceNamePrefix", "needed by InterfaceNamePrefix: 1 to 15 letters");
                DetectLocal::Off
            }
            other => {
                let known = "ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix";
                self.mistake("detectLocalMode", format!("{other:?} is none of {known}"));
                DetectLocal::Off
            }
        }
    }
}

/// A duration of zero stands for the default, as upstream has it.
fn given(duration: Option<GoDuration>) -> Option<GoDuration> {
    duration.filter(|d| !d.0.is_zero())
}

/// Upstream's `ParsePortRange`: nothing, `a`, `a-b` or `a+count`.
fn parse_port_range(text: &str) -> Option<(u16, u16)> {
    let text = text.trim();
    let port = |text: &str| text.trim().parse::<u16>().ok();
    if text.is_empty() {
        return Some((0, 0));
    }
    let (low, high) = if let Some((low, high)) = text.split_once('-') {
        (port(low)?, port(high)?)
    } else if let Some((low, count)) = text.split_once('+') {
        let low = port(low)?;
        (low, low.saturating_add(port(count)?))
    } else {
        (port(text)?, port(text)?)
    };
    (low <= high).then_some((low, high))
}

fn check(document: &Document, raw: &KubeProxyConfiguration, found: &mut Vec<Mistake>) -> Config {
    let mut checker = Checker { document, found };
    checker.mode(&raw.mode);
    let healthz =
        checker.address("healthzBindAddress", &raw.healthz_bind_address, DEFAULT_HEALTHZ, DEFAULT_HEALTHZ_PORT);
    let metrics =
        checker.address("metricsBindAddress", &raw.metrics_bind_address, DEFAULT_METRICS, DEFAULT_METRICS_PORT);
    let detect_local = checker.detect_local(raw);
    let primary = raw.node_port_addresses.iter().any(|a| a == "primary");
    if primary && raw.node_port_addresses.len() > 1 {
        checker.mistake("nodePortAddresses", "\"primary\" stands alone; leave the CIDRs out");
    }
    let ranges = checker
        .nets("nodePortAddresses", raw.node_port_addresses.iter().map(String::as_str).filter(|a| *a != "primary"));
    let masquerade_mark = checker.masquerade_bit("nftables.masqueradeBit", raw.nftables.masquerade_bit);
    checker.masquerade_bit("iptables.masqueradeBit", raw.iptables.masquerade_bit);
    let sync_period = checker.sync_periods(&raw.nftables);
    checker.nets("ipvs.excludeCIDRs", raw.ipvs.exclude_cidrs.iter().flatten().map(String::as_str));
    checker.ip("bindAddress", &raw.bind_address);
    checker.port_range(&raw.port_range);
    if let Some(burst) = raw.client_connection.burst.filter(|burst| *burst < 0) {
        checker.mistake("clientConnection.burst", format!("{burst} is negative"));
    }
    let oom_score_adj = raw.oom_score_adj.unwrap_or(DEFAULT_OOM_SCORE_ADJ);
    if !(-1000..=1000).contains(&oom_score_adj) {
        checker.mistake("oomScoreAdj", format!("{oom_score_adj} is not between -1000 and 1000"));
    }
    let service_cidrs = checker.nets("keelson.serviceCIDRs", raw.keelson.service_cidrs.iter().map(String::as_str));
    let drain_socket = checker.drain_socket(raw.keelson.drain_socket.as_deref());
    let node_port_addresses =
        if ranges.is_empty() { NodePortAddresses::Primary } else { NodePortAddresses::Ranges(ranges) };
    Config {
        kubeconfig: raw.client_connection.kubeconfig.clone().filter(|p| !p.as_os_str().is_empty()),
        hostname_override: Some(raw.hostname_override.trim().to_lowercase()).filter(|h| !h.is_empty()),
        healthz,
        metrics,
        bind_hard_fail: raw.bind_address_hard_fail,
        settings: Settings {
            detect_local,
            node_port_addresses,
            service_cidrs,
            masquerade_all: raw.nftables.masquerade_all,
            masquerade_mark,
        },
        sync_period: sync_period.0,
        oom_score_adj,
        conntrack: raw.conntrack.clone(),
        drain_socket,
        as_json: serde_json::json!({"kubeproxyconfig": document.node.to_json()}).to_string(),
    }
}
