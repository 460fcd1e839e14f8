//! What a machine is made of: written by `lab up` as `spec.json`, read by the machine's PID 1.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One machine: a node, the control plane, or the switch that joins them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Host name inside; a node's name.
    pub hostname: String,
    /// The machine's folder on the host.
    pub folder: PathBuf,
    /// The cgroup that PID 1 and all services live in, without a leading slash.
    pub group: PathBuf,
    /// Whether it has a root, processes and services of its own; the switch has a network only.
    pub rooted: bool,
    /// Folders of the host on paths of the machine.
    #[serde(default)]
    pub binds: Vec<Bind>,
    /// Links made inside: name, target.
    #[serde(default)]
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Its services, in start order.
    #[serde(default)]
    pub services: Vec<ServiceSpec>,
}

/// A folder of the host seen in the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// On the host.
    pub from: PathBuf,
    /// In the machine.
    pub to: PathBuf,
    /// Whether the machine may not write there.
    #[serde(default)]
    pub read_only: bool,
}

/// A supervised program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// Its name for people: `agent`, `dataplane`, `containerd`, `control-plane`.
    pub name: String,
    /// Program and arguments, as seen in the machine.
    pub command: Vec<String>,
    /// Variables beside those of the machine.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

impl MachineSpec {
    /// Where PID 1 writes what became of the services.
    pub fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Where the output of each service goes, on the host.
    pub fn log(&self, service: &str) -> PathBuf {
        self.folder.join("log").join(format!("{service}.log"))
    }
}
