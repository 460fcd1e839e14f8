//! From a pod to the runtime's configurations of sandbox and containers. Pure but for what it is given.
//!
//! Upstream counterpart: `kuberuntime_sandbox.go`, `kuberuntime_container.go`, `security_context.go`.

pub mod container;
pub mod sandbox;
pub mod security;

use std::path::PathBuf;
use std::time::Duration;

/// Node-wide settings of creation.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Root of the pods' log directories.
    pub logs_root: PathBuf,
    /// Folder of flat log links.
    pub links_root: PathBuf,
    /// State directory.
    pub root_dir: PathBuf,
    /// Whether CPU limits are enforced.
    pub cpu_quota: bool,
    /// Period of CPU limits.
    pub cpu_period: Duration,
    /// Memory of the node in bytes.
    pub memory_capacity: i64,
    /// Whether RuntimeDefault is the seccomp default.
    pub seccomp_default: bool,
    /// Whether the host has cgroup v1.
    pub cgroup_v1: bool,
    /// Most processes of a pod.
    pub pids_limit: i64,
}

impl NodeSettings {
    /// The pod's folder in the state directory.
    #[must_use]
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }
}
