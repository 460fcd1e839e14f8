//! `NodeConfig`: what upstream passes as flags, and the parts that are ours (managed network, embedded dataplane).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use keelson_dataplane::drain::server;
use keelson_kinds::names;
use kube_common::config::{Document, Mistake};
use kube_common::duration::GoDuration;
use serde::Deserialize;

use super::check::{self, Found};
use crate::drain::decide::LIMIT;
use crate::drain::{Mode, Settings};

/// State directory (upstream's default).
const DEFAULT_ROOT: &str = "/var/lib/kubelet";
/// CNI configuration folder, the one containerd reads by default.
const DEFAULT_CONF_DIR: &str = "/etc/cni/net.d";
/// Folder of CNI plugins, the one containerd uses by default.
const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
/// Bridge of the managed network.
const DEFAULT_BRIDGE: &str = "cni0";
/// Longest name of a network interface (`IFNAMSIZ` less the final zero).
const MAX_INTERFACE_NAME: usize = 15;
/// By then the dataplanes of other nodes have what ours has: slices reach all of them at once, and a sync takes milliseconds (with a stock kube-proxy up
/// to its minSyncPeriod of 1 s, where something else has just changed).
const DEFAULT_ALLOWANCE: GoDuration = GoDuration(Duration::from_millis(500));
/// A slice's way from the deletion to all nodes, with a stock kube-proxy's minSyncPeriod of 1 s.
const DEFAULT_FIXED_WAIT: GoDuration = GoDuration(Duration::from_millis(1500));
/// Smallest MTU that IPv6 allows.
const MIN_MTU: u32 = 1280;

/// The node's own settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct NodeConfig {
    /// Name of this node; the host name when missing.
    pub node_name: Option<String>,
    /// Kubeconfig of the API server; without one only static pods run.
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig to request a client certificate with.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Address of this node; that of the default route when missing.
    #[serde(rename = "nodeIP")]
    pub node_ip: Option<IpAddr>,
    /// Labels at registration.
    pub node_labels: BTreeMap<String, String>,
    /// Taints at registration.
    pub register_with_taints: Vec<Taint>,
    /// State directory.
    pub root_dir: PathBuf,
    /// Directory of certificates; `pki` in the state directory when missing.
    pub cert_dir: Option<PathBuf>,
    /// Whether the runtime's events are read. Without them everything is listed each second, as upstream does.
    pub runtime_events: bool,
    /// Pod network.
    pub network: NetworkConfig,
    /// Whether the service dataplane runs in this process.
    pub dataplane: DataplaneMode,
    /// Configuration file of the embedded dataplane (`KubeProxyConfiguration`).
    pub dataplane_config: Option<PathBuf>,
    /// How Services let go of pods that end.
    pub drain: DrainConfig,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            node_name: None,
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            node_ip: None,
            node_labels: BTreeMap::new(),
            register_with_taints: Vec::new(),
            root_dir: DEFAULT_ROOT.into(),
            cert_dir: None,
            runtime_events: true,
            network: NetworkConfig::default(),
            dataplane: DataplaneMode::None,
            dataplane_config: None,
            drain: DrainConfig::default(),
        }
    }
}

/// Who writes the CNI configuration.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Somebody else; the agent leaves the folder alone.
    #[default]
    External,
    /// The agent: a bridge with addresses from the node's pod range.
    Managed,
}

/// The pod network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct NetworkConfig {
    /// Who writes the CNI configuration.
    pub mode: NetworkMode,
    /// Folder of CNI configurations.
    pub conf_dir: PathBuf,
    /// Folder of CNI plugins; must be the runtime's.
    pub bin_dir: PathBuf,
    /// Bridge name.
    pub bridge: String,
    /// MTU of pod interfaces; that of the link with the node's address when missing.
    pub mtu: Option<u32>,
    /// Whether what pods send out of the cluster gets the node's address; without it whatever is outside needs routes to
    /// the pods.
    pub egress_masquerade: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            mode: NetworkMode::default(),
            conf_dir: DEFAULT_CONF_DIR.into(),
            bin_dir: DEFAULT_BIN_DIR.into(),
            bridge: DEFAULT_BRIDGE.into(),
            mtu: None,
            egress_masquerade: true,
        }
    }
}

/// How Services let go of pods that end, before these get their signal.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct DrainConfig {
    /// Where our dataplane runs (`auto`), everywhere (`always`), or never.
    pub mode: Mode,
    /// The dataplane's socket, its `keelson.drainSocket`. The embedded one listens here.
    pub socket: PathBuf,
    /// What other nodes get after the slices have agreed.
    pub allowance: GoDuration,
    /// The wait on a node without our dataplane, in mode `always`.
    pub fixed_wait: GoDuration,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            socket: server::DEFAULT_SOCKET.into(),
            allowance: DEFAULT_ALLOWANCE,
            fixed_wait: DEFAULT_FIXED_WAIT,
        }
    }
}

impl DrainConfig {
    /// As workers need it.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let (allowance, fixed_wait) = (self.allowance.0, self.fixed_wait.0);
        Settings { mode: self.mode, socket: self.socket.clone(), allowance, fixed_wait }
    }

    fn check(&self, document: &Document) -> Vec<Mistake> {
        let mut found = Vec::new();
        for (field, time) in [("drain.allowance", self.allowance), ("drain.fixedWait", self.fixed_wait)] {
            if time.0 > LIMIT {
                let message = format!("{time} is longer than a drain may take ({} s)", LIMIT.as_secs());
                found.push(document.mistake_at(field, message));
            }
        }
        let problem = server::path_problem(&self.socket.to_string_lossy());
        found.extend(problem.map(|message| document.mistake_at("drain.socket", message)));
        found
    }
}

/// Where the service dataplane runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DataplaneMode {
    /// Not here.
    #[default]
    None,
    /// In this process.
    Embedded,
}

impl NodeConfig {
    /// Checks that go beyond types. `exists` tells whether a file is there.
    pub(super) fn check(&self, document: &Document, exists: &dyn Fn(&Path) -> bool) -> Vec<Mistake> {
        let mut problems = Found::default();
        if let Some(message) = self.node_name.as_deref().and_then(check::node_name_problem) {
            problems.at("nodeName", message);
        }
        if let Some(path) = self.kubeconfig.as_ref().filter(|p| self.bootstrap_kubeconfig.is_none() && !exists(p)) {
            problems.at("kubeconfig", missing_kubeconfig(path));
        }
        problems.taints("registerWithTaints", &self.register_with_taints);
        for (key, value) in &self.node_labels {
            for message in names::qualified_name(key).into_iter().chain(names::label_value(value)) {
                problems.key("nodeLabels", key, message);
            }
        }
        let mut found = super::located(document, problems.0);
        let bridge = &self.network.bridge;
        if bridge.is_empty() || bridge.len() > MAX_INTERFACE_NAME || bridge.contains('/') {
            found.push(document.mistake_at(
                "network.bridge",
                format!("{bridge:?} is no interface name (1 to {MAX_INTERFACE_NAME} characters, no slash)"),
            ));
        }
        if self.network.mtu.is_some_and(|mtu| !(MIN_MTU..=65_536).contains(&mtu)) {
            found.push(document.mistake_at("network.mtu", format!("must be {MIN_MTU} to 65536")));
        }
        if !self.root_dir.is_absolute() {
            found.push(document.mistake_at("rootDir", "must be an absolute path"));
        }
        if self.dataplane == DataplaneMode::None && self.dataplane_config.is_some() {
            found.push(document.mistake_at("dataplaneConfig", "has no effect without `dataplane: embedded`"));
        }
        found.extend(self.drain.check(document));
        found
    }
}

/// What to say of a kubeconfig that is not there.
pub(super) fn missing_kubeconfig(path: &Path) -> String {
    format!("{} does not exist; without a kubeconfig only static pods run", path.display())
}

/// Reads `key=value:effect` or `key:effect`.
pub(super) fn parse_taint(text: &str) -> Result<Taint, String> {
    let bad = || {
        format!("{text:?} is not of the form key=value:effect with effect NoSchedule, PreferNoSchedule or NoExecute")
    };
    let (head, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(bad());
    }
    let (key, value) = head.split_once('=').map_or((head, None), |(k, v)| (k, Some(v.to_owned())));
    let taint = Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None };
    match check::taint_problems(&taint).into_iter().next() {
        Some((field, why)) => Err(format!("{text:?}: {field} {why}")),
        None => Ok(taint),
    }
}
