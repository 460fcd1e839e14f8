//! The agent's configuration: a file of several documents, drop-ins, and the flags of a distribution's unit file.
//!
//! Precedence as upstream: file, then `--config-dir` (sorted, later wins), then flags. Unknown fields and wrong
//! values are errors with file, line and column, all at once; fields that upstream has and this agent does not use
//! yet are accepted with a warning.

pub mod access;
mod check;
pub mod kubelet;
pub mod node;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use k8s_openapi::api::core::v1::Taint;
use kube_common::config::{self, ConfigError, Document, Mistake};

use crate::command::Command;
pub use kubelet::KubeletConfiguration;
pub use node::{DataplaneMode, NetworkMode, NodeConfig};

const KUBELET_API: &str = "kubelet.config.k8s.io/v1beta1";
const NODE_API: &str = "keelson.dev/v1alpha1";

/// Runs the pods of one node: what kubelet does.
#[derive(Debug, Default, Parser)]
#[command(
    name = "agent",
    version,
    after_help = "Exit codes: 0 stopped by a signal; 1 failed while running; 2 wrong flags; 3 wrong configuration; \
                  4 the node's files or sockets cannot be set up; 130 second signal while stopping."
)]
pub struct Flags {
    /// File with KubeletConfiguration and NodeConfig documents
    #[arg(long, global = true)]
    pub config: Option<PathBuf>,
    /// Folder whose *.conf files override the file, sorted, later wins
    #[arg(long)]
    pub config_dir: Option<PathBuf>,
    /// Kubeconfig of the API server; without one only static pods run
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig to request a client certificate with (not used yet)
    #[arg(long)]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Name of this node
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// Address of this node
    #[arg(long)]
    pub node_ip: Option<String>,
    /// State directory
    #[arg(long, global = true)]
    pub root_dir: Option<PathBuf>,
    /// Directory of the agent's certificates
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Labels of the node: key=value,…
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Taints of the node at registration: key=value:effect,…
    #[arg(long, value_delimiter = ',')]
    pub register_with_taints: Vec<String>,
    /// Socket of the container runtime
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Folder of static pod manifests
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Log verbosity, 0 to 9
    #[arg(long = "v", short = 'v', default_value_t = 0)]
    pub verbosity: u8,
    /// A question about this node, instead of being its agent
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The whole configuration after merging.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Upstream's document.
    pub kubelet: KubeletConfiguration,
    /// Our document.
    pub node: NodeConfig,
    /// Fields set in a file that have no effect yet.
    pub unused: Vec<String>,
}

/// Why no configuration could be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is wrong.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// A drop-in folder cannot be read.
    #[error("cannot read the configuration folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A flag has a wrong value.
    #[error("--{flag}: {message}")]
    Flag {
        /// Its name.
        flag: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// Reads files and flags.
///
/// # Errors
/// Every mistake of the first file that has any, or a wrong flag.
pub fn load(flags: &Flags) -> Result<Config, LoadError> {
    let mut documents = Vec::new();
    if let Some(path) = &flags.config {
        documents.extend(config::load_file(path)?);
    }
    if let Some(folder) = &flags.config_dir {
        for path in drop_ins(folder)? {
            documents.extend(config::load_file(&path)?);
        }
    }
    // A flag takes the place of what the file says.
    let exists = |path: &Path| flags.kubeconfig.is_some() || path.exists();
    let mut out = merge(&documents, &exists)?;
    apply_flags(&mut out, flags)?;
    Ok(out)
}

/// The state directory that flags or configuration name.
///
/// # Errors
/// As [`load`], of a file that is given and needed.
pub fn root_dir(flags: &Flags) -> Result<PathBuf, LoadError> {
    match &flags.root_dir {
        Some(path) => Ok(path.clone()),
        None if flags.config.is_none() => Ok(NodeConfig::default().root_dir),
        None => Ok(load(flags)?.node.root_dir),
    }
}

fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let fail = |source| LoadError::Folder { path: folder.to_owned(), source };
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(fail)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "conf"))
        .collect();
    files.sort();
    Ok(files)
}

/// Decodes documents; later ones of the same kind override field by field.
///
/// # Errors
/// Every mistake of a file.
pub fn from_documents(documents: &[Document]) -> Result<Config, ConfigError> {
    merge(documents, &|_| true)
}

fn merge(documents: &[Document], exists: &dyn Fn(&Path) -> bool) -> Result<Config, ConfigError> {
    let mut merged: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
    let mut found: Vec<Mistake> = Vec::new();
    let mut out = Config::default();
    for document in documents {
        let result = match (document.api_version.as_str(), document.kind.as_str()) {
            (KUBELET_API, "KubeletConfiguration") => {
                config::decode_checked::<KubeletConfiguration>(document, |c| check_kubelet(document, c)).map(drop)
            }
            (NODE_API, "NodeConfig") => {
                config::decode_checked::<NodeConfig>(document, |c| c.check(document, exists)).map(drop)
            }
            (api, kind) => Err(vec![document.mistake_at(
                "kind",
                format!(
                    "{api:?} {kind:?} is not known here; use {KUBELET_API} KubeletConfiguration or {NODE_API} NodeConfig"
                ),
            )]),
        };
        found.extend(result.err().into_iter().flatten());
        if let Some(path) = documents.iter().map(|d| &d.path).find(|p| **p == document.path)
            && !found.is_empty()
        {
            let last_of_file = documents.iter().rposition(|d| &d.path == path);
            if last_of_file.is_some_and(|i| std::ptr::eq(&raw const documents[i], document)) {
                return Err(config::mistakes(path, found).into());
            }
        }
        let target = merged.entry(if document.kind == "NodeConfig" { "node" } else { "kubelet" }).or_default();
        overlay(target, document.node.to_json());
    }
    if let Some(json) = merged.remove("kubelet") {
        // Each document was decoded above, so their union decodes too.
        out.kubelet = serde_json::from_value(strip_type(json)).unwrap_or_default();
        out.unused = out.kubelet.unused();
    }
    if let Some(json) = merged.remove("node") {
        out.node = serde_json::from_value(strip_type(json)).unwrap_or_default();
    }
    Ok(out)
}

fn strip_type(mut json: serde_json::Value) -> serde_json::Value {
    if let Some(map) = json.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
    }
    json
}

fn overlay(base: &mut serde_json::Value, over: serde_json::Value) {
    match (base, over) {
        (serde_json::Value::Object(base), serde_json::Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

fn check_kubelet(document: &Document, config: &KubeletConfiguration) -> Vec<Mistake> {
    located(document, check::kubelet(config))
}

fn located(document: &Document, problems: Vec<check::Problem>) -> Vec<Mistake> {
    problems.into_iter().map(|p| document.mistake(&p.path, p.message)).collect()
}

fn apply_flags(config: &mut Config, flags: &Flags) -> Result<(), LoadError> {
    let node = &mut config.node;
    if let Some(path) = flags.kubeconfig.as_ref().filter(|p| !p.exists() && flags.bootstrap_kubeconfig.is_none()) {
        return Err(LoadError::Flag { flag: "kubeconfig", message: node::missing_kubeconfig(path) });
    }
    if let Some(message) = flags.hostname_override.as_deref().and_then(check::node_name_problem) {
        return Err(LoadError::Flag { flag: "hostname-override", message });
    }
    node.kubeconfig = flags.kubeconfig.clone().or(node.kubeconfig.take());
    node.bootstrap_kubeconfig = flags.bootstrap_kubeconfig.clone().or(node.bootstrap_kubeconfig.take());
    node.node_name = flags.hostname_override.clone().or(node.node_name.take());
    if let Some(text) = &flags.node_ip {
        let ip = text
            .parse()
            .map_err(|_| LoadError::Flag { flag: "node-ip", message: format!("{text:?} is no IP address") })?;
        node.node_ip = Some(ip);
    }
    if let Some(dir) = &flags.root_dir {
        node.root_dir.clone_from(dir);
    }
    node.cert_dir = flags.cert_dir.clone().or(node.cert_dir.take());
    for label in &flags.node_labels {
        let (key, value) = label.split_once('=').ok_or_else(|| LoadError::Flag {
            flag: "node-labels",
            message: format!("{label:?} is not of the form key=value"),
        })?;
        node.node_labels.insert(key.to_owned(), value.to_owned());
    }
    for text in &flags.register_with_taints {
        let taint =
            node::parse_taint(text).map_err(|message| LoadError::Flag { flag: "register-with-taints", message })?;
        node.register_with_taints.push(taint);
    }
    if let Some(endpoint) = &flags.container_runtime_endpoint {
        config.kubelet.container_runtime_endpoint.clone_from(endpoint);
    }
    if let Some(path) = &flags.pod_manifest_path {
        config.kubelet.static_pod_path = Some(path.clone());
    }
    Ok(())
}

impl Config {
    /// The node's name: configured, else the host name in lower case.
    #[must_use]
    pub fn node_name(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
        self.node.node_name.clone().unwrap_or_else(host).trim().to_lowercase()
    }

    /// Taints the node registers with, from both documents.
    #[must_use]
    pub fn taints(&self) -> Vec<Taint> {
        let mut taints = self.kubelet.register_with_taints.clone();
        taints.extend(self.node.register_with_taints.iter().cloned());
        taints
    }

    /// Directory of certificates.
    #[must_use]
    pub fn cert_dir(&self) -> PathBuf {
        self.node.cert_dir.clone().unwrap_or_else(|| self.node.root_dir.join("pki"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let documents = config::load_documents(Path::new("node.yaml"), text).map_err(|e| e.to_string())?;
        from_documents(&documents).map_err(|e| e.to_string())
    }

    #[test]
    fn both_documents() {
        let c = parse(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [10.96.0.10]\n\
             fileCheckFrequency: 5s\nmemorySwap: {}\n---\napiVersion: keelson.dev/v1alpha1\nkind: NodeConfig\n\
             nodeName: a\nnetwork: {mode: managed, mtu: 1400}\n",
        )
        .unwrap();
        assert_eq!(c.kubelet.file_check_frequency.0.as_secs(), 5);
        assert_eq!(c.node_name(), "a");
        assert_eq!(c.node.network.mtu, Some(1400));
        assert_eq!(c.unused, ["memorySwap"]);
    }

    #[test]
    fn all_mistakes_at_once() {
        let e = parse(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: many\nmaxPod: 3\n\
             ---\napiVersion: keelson.dev/v1alpha1\nkind: NodeConfig\nnodeIP: x\n",
        )
        .unwrap_err();
        assert!(e.contains("node.yaml:3:") && e.contains("node.yaml:4:") && e.contains("node.yaml:8:"), "{e}");
    }

    #[test]
    fn the_drain_has_its_bounds() {
        let node = "apiVersion: keelson.dev/v1alpha1\nkind: NodeConfig\ndrain:\n";
        let settings = parse(&format!("{node}  mode: always\n  allowance: 0s\n")).unwrap().node.drain.settings();
        assert_eq!((settings.mode, settings.allowance.as_millis()), (crate::drain::Mode::Always, 0));
        assert_eq!(settings.socket, Path::new("/run/keelson/dataplane.sock"));
        let error = parse(&format!("{node}  allowance: 3s\n  fixedWait: 2001ms\n  socket: here\n")).unwrap_err();
        for expected in [
            ":4:3: drain.allowance: 3s is longer than a drain may take (2 s)",
            ":5:3: drain.fixedWait: 2.001s is longer",
            ":6:3: drain.socket: \"here\" is not the absolute path of a file",
        ] {
            assert!(error.contains(expected), "{expected} is not in {error}");
        }
        let error = parse(&format!("{node}  mode: sometimes\n  limit: 1s\n")).unwrap_err();
        assert!(error.contains("auto") && error.contains("limit"), "{error}");
    }

    #[test]
    fn unknown_kinds_are_named() {
        let e = parse("apiVersion: v1\nkind: Pod\n").unwrap_err();
        assert!(e.contains("NodeConfig"), "{e}");
    }

    #[test]
    fn flags_win() {
        let flags = Flags {
            hostname_override: Some("N1".into()),
            node_labels: vec!["a=b".into()],
            register_with_taints: vec!["k=v:NoSchedule".into()],
            ..Flags::default()
        };
        let c = load(&flags).unwrap();
        assert_eq!(c.node_name(), "n1");
        assert_eq!(c.node.node_labels["a"], "b");
        assert_eq!(c.taints()[0].effect, "NoSchedule");
        assert!(load(&Flags { node_ip: Some("x".into()), ..Flags::default() }).is_err());
        for (flags, flag) in [
            (Flags { hostname_override: Some("Node_1!".into()), ..Flags::default() }, "hostname-override"),
            (Flags { kubeconfig: Some("/nowhere/k".into()), ..Flags::default() }, "kubeconfig"),
            (Flags { register_with_taints: vec!["a b=:NoExecute".into()], ..Flags::default() }, "register-with-taints"),
        ] {
            let error = load(&flags).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--{flag}: ")), "{error}");
        }
    }

    #[test]
    fn mistakes_of_the_node_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.yaml");
        let text = "apiVersion: keelson.dev/v1alpha1\nkind: NodeConfig\nnodeName: Node_1!\nkubeconfig: /nowhere/k\n\
                    registerWithTaints:\n- {key: a, effect: x}\nnodeLabels: {a b: c, d: 'e f'}\nrootDir: x\n";
        std::fs::write(&path, text).unwrap();
        let flags = Flags { config: Some(path.clone()), ..Flags::default() };
        let error = load(&flags).unwrap_err().to_string();
        for wanted in [
            ":3:1: nodeName: \"Node_1!\"",
            ":4:1: kubeconfig: /nowhere/k does not exist",
            ":6:12: registerWithTaints[0].effect: ",
            "nodeLabels.a b: ",
            "nodeLabels.d: ",
            ":8:1: rootDir: ",
        ] {
            assert!(error.contains(wanted), "{wanted} is not in {error}");
        }
        let good = "apiVersion: keelson.dev/v1alpha1\nkind: NodeConfig\nnodeName: N1.example\nkubeconfig: /nowhere/k\n";
        std::fs::write(&path, good).unwrap();
        assert!(load(&flags).is_err());
        // With a bootstrap kubeconfig the other one is yet to be made.
        std::fs::write(&path, format!("{good}bootstrapKubeconfig: /nowhere/b\n")).unwrap();
        load(&flags).unwrap();
    }
}
