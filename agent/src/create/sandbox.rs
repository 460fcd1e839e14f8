//! The sandbox's configuration.

use std::collections::HashMap;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{NodeSettings, security};
use crate::materials::{MaterialError, SandboxMaterials};
use crate::pod;
use crate::runtime::identity;

/// Why a pod gets no sandbox. Not retryable: the pod must change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The pod wants a user namespace of its own. To run it without one would give its root the node's.
    #[error(
        "the pod has hostUsers: false, and this node cannot give a pod a user namespace of its own yet; \
         leave hostUsers out or set it to true to run it with the node's users"
    )]
    UserNamespace,
    /// A name would lead out of the folder that it is to be a part of.
    #[error("{field} {value:?} cannot be part of a folder's name")]
    Name {
        /// Which one.
        field: &'static str,
        /// What it is.
        value: String,
    },
}

impl From<SandboxError> for MaterialError {
    fn from(error: SandboxError) -> Self {
        Self { event: "FailedCreatePodSandBox", message: format!("Failed to create pod sandbox: {error}") }
    }
}

/// The pod's identity becomes folder names here (logs) and in the runtime.
fn check(pod: &Pod) -> Result<(), SandboxError> {
    let identity = [
        ("metadata.namespace", pod::namespace(pod)),
        ("metadata.name", pod::name(pod)),
        ("metadata.uid", pod::uid(pod)),
    ];
    for (field, value) in identity {
        if value.is_empty() || value.starts_with('.') || value.contains(['/', '\0']) {
            return Err(SandboxError::Name { field, value: value.to_owned() });
        }
    }
    if pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false) {
        return Err(SandboxError::UserNamespace);
    }
    Ok(())
}

/// The configuration of a pod's sandbox.
///
/// # Errors
/// What this node cannot do, rather than doing something else.
pub fn config(
    pod: &Pod,
    attempt: u32,
    cgroup_parent: &str,
    materials: &SandboxMaterials,
    settings: &NodeSettings,
) -> Result<cri::PodSandboxConfig, SandboxError> {
    check(pod)?;
    let spec = pod::spec(pod);
    let log_dir = identity::pod_log_dir(&settings.logs_root, pod::namespace(pod), pod::name(pod), pod::uid(pod));
    let sysctls: HashMap<String, String> = spec
        .security_context
        .iter()
        .flat_map(|s| s.sysctls.iter().flatten())
        .map(|s| (s.name.clone(), s.value.clone()))
        .collect();
    Ok(cri::PodSandboxConfig {
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
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::tests::settings;
    use serde_json::json;

    fn make(pod: &serde_json::Value) -> Result<cri::PodSandboxConfig, SandboxError> {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        config(&pod, 0, "/kubepods/podu", &SandboxMaterials::default(), &settings())
    }

    #[test]
    fn a_user_namespace_that_cannot_be_had_is_refused() {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"hostUsers": false, "containers": [{"name": "m"}]}});
        let error = make(&pod).unwrap_err();
        assert_eq!(error, SandboxError::UserNamespace);
        let told = MaterialError::from(error);
        assert_eq!(told.event, "FailedCreatePodSandBox");
        assert!(told.message.starts_with("Failed to create pod sandbox: the pod has hostUsers: false"), "{told}");
        pod["spec"]["hostUsers"] = json!(true);
        make(&pod).unwrap();
    }

    #[test]
    fn no_name_leads_out_of_the_logs() {
        let good = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": []}});
        assert_eq!(make(&good).unwrap().log_directory, "/var/log/pods/n_p_u");
        for field in ["name", "namespace", "uid"] {
            for bad in ["../../x", "a/b", "..", "", "a\0b"] {
                let mut pod = good.clone();
                pod["metadata"][field] = json!(bad);
                let error = make(&pod).unwrap_err();
                assert!(matches!(error, SandboxError::Name { .. }), "{field} {bad:?}: {error}");
            }
        }
    }
}
