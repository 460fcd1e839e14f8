//! The sandbox's configuration.

use std::collections::HashMap;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{NodeSettings, security};
use crate::materials::SandboxMaterials;
use crate::pod;
use crate::runtime::identity;

/// The configuration of a pod's sandbox.
#[must_use]
pub fn config(
    pod: &Pod,
    attempt: u32,
    cgroup_parent: &str,
    materials: &SandboxMaterials,
    settings: &NodeSettings,
) -> cri::PodSandboxConfig {
    let spec = pod::spec(pod);
    let log_dir = identity::pod_log_dir(&settings.logs_root, pod::namespace(pod), pod::name(pod), pod::uid(pod));
    let sysctls: HashMap<String, String> = spec
        .security_context
        .iter()
        .flat_map(|s| s.sysctls.iter().flatten())
        .map(|s| (s.name.clone(), s.value.clone()))
        .collect();
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod::name(pod).to_owned(),
            uid: pod::uid(pod).to_owned(),
            namespace: pod::namespace(pod).to_owned(),
            attempt,
        }),
        // A pod in the node's network keeps the node's host name; CRI wants none then.
        hostname: if pod::host_network(pod) { String::new() } else { materials.hostname.clone() },
        log_directory: log_dir.to_string_lossy().into_owned(),
        dns_config: materials.dns.clone(),
        port_mappings: if pod::host_network(pod) { Vec::new() } else { port_mappings(pod) },
        labels: identity::sandbox_labels(pod),
        annotations: identity::sandbox_annotations(pod),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(security::of_sandbox(pod)),
            sysctls,
            overhead: None,
            resources: None,
        }),
        windows: None,
    }
}

/// The CRI protocol of a port.
fn protocol(name: Option<&str>) -> i32 {
    (match name {
        Some("UDP") => cri::Protocol::Udp,
        Some("SCTP") => cri::Protocol::Sctp,
        _ => cri::Protocol::Tcp,
    }) as i32
}

fn port_mappings(pod: &Pod) -> Vec<cri::PortMapping> {
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    let ports = |c: &Container| c.ports.clone().unwrap_or_default();
    sidecars
        .chain(pod::main_containers(pod))
        .flat_map(ports)
        .map(|p| cri::PortMapping {
            protocol: protocol(p.protocol.as_deref()),
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or(0),
            host_ip: p.host_ip.unwrap_or_default(),
        })
        .collect()
}
