//! The configuration files of a node, rendered for a plan. No I/O.

use super::plan::{CLUSTER_CIDR, CLUSTER_DNS, CLUSTER_DOMAIN, Plan};

/// The sandbox image; the lab has it under this name.
pub const SANDBOX_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// Plugins of containerd that a node of the lab has no use for: they cost start time and memory, or complain.
const UNUSED_PLUGINS: &[&str] = &[
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.native",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.nri.v1.nri",
];

/// containerd's configuration: version 2, as 1.6 (Debian 12) and 1.7 (Debian 13) read it.
pub fn containerd(may_lower_oom_score: bool) -> String {
    let disabled: Vec<String> = UNUSED_PLUGINS.iter().map(|name| format!("  {name:?},\n")).collect();
    format!(
        r#"# Written by `lab up`.
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
{disabled}]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  # Without CAP_SYS_RESOURCE a sandbox cannot be given its low OOM score and would not start.
  restrict_oom_score_adj = {restrict}
  stream_server_address = "127.0.0.1"
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"
  max_conf_num = 1

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"#,
        disabled = disabled.concat(),
        restrict = !may_lower_oom_score,
    )
}

/// Where containerd asks for images, whatever registry they name: at the node's own, and nowhere else.
pub fn registries() -> String {
    let address = crate::images::registry::ADDRESS;
    format!(
        "# Written by `lab up`.\nserver = \"http://{address}\"\n\n[host.\"http://{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    )
}

/// The agent's configuration.
pub fn node(plan: &Plan, index: u8) -> String {
    let name = super::plan::node_name(index);
    format!(
        r#"# Written by `lab up`.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /{group}/{name}
clusterDNS: [{CLUSTER_DNS}]
clusterDomain: {CLUSTER_DOMAIN}
failSwapOn: false
authentication:
  anonymous:
    enabled: false
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
---
apiVersion: keelson.dev/v1alpha1
kind: NodeConfig
nodeName: {name}
nodeIP: {address}
kubeconfig: /etc/kubernetes/kubelet.kubeconfig
network:
  mode: managed
dataplane: none
"#,
        group = plan.group().display(),
        address = plan.node(index),
    )
}

/// The dataplane's configuration.
pub fn proxy(index: u8) -> String {
    format!(
        r#"# Written by `lab up`.
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/dataplane.kubeconfig
clusterCIDR: {CLUSTER_CIDR}
hostnameOverride: {name}
mode: nftables
conntrack:
  # The table's size cannot be set in a network namespace.
  maxPerCore: 0
"#,
        name = super::plan::node_name(index),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_capability_restricts_the_oom_score() {
        assert!(containerd(false).contains("restrict_oom_score_adj = true"));
        assert!(containerd(true).contains("restrict_oom_score_adj = false"));
    }

    #[test]
    fn the_agents_pods_stay_in_the_labs_cgroup() {
        let plan = Plan {
            name: "x".to_owned(),
            number: 3,
            folder: "/f".into(),
            images: "/i".into(),
            nodes: 1,
            control_plane_args: Vec::new(),
        };
        let text = node(&plan, 1);
        assert!(text.contains("cgroupRoot: /keelson-x-3/node-1\n"), "{text}");
        assert!(text.contains("nodeIP: 10.89.3.11\n"), "{text}");
    }
}
