//! From a pod to the runtime's configurations of sandbox and containers. Pure but for what it is given.
//!
//! Upstream counterpart: `kuberuntime_sandbox.go`, `kuberuntime_container.go`, `security_context.go`.

pub mod container;
pub mod sandbox;
pub mod security;
pub mod sysctl;

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
    /// Sysctls beyond the safe ones that pods may set here.
    pub allowed_unsafe_sysctls: Vec<String>,
}

impl NodeSettings {
    /// The pod's folder in the state directory.
    #[must_use]
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn settings() -> NodeSettings {
        NodeSettings {
            logs_root: "/var/log/pods".into(),
            links_root: "/var/log/containers".into(),
            root_dir: "/var/lib/kubelet".into(),
            cpu_quota: true,
            cpu_period: Duration::from_millis(100),
            memory_capacity: 4 << 30,
            seccomp_default: false,
            cgroup_v1: true,
            pids_limit: -1,
            allowed_unsafe_sysctls: Vec::new(),
        }
    }
}
