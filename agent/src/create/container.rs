//! A container's configuration.

use std::collections::HashMap;
use std::path::Path;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{NodeSettings, security};
use crate::cgroup::resources;
use crate::materials::ContainerMaterials;
use crate::pod;
use crate::runtime::{ImageRecord, identity};

/// What one container instance is made from.
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// How often it has been started before.
    pub restart_count: u32,
    /// The image's identifier.
    pub image_reference: &'a str,
    /// The image.
    pub image: &'a ImageRecord,
    /// Environment, command and mounts.
    pub materials: ContainerMaterials,
    /// The file on the node where it may leave its last words.
    pub termination_log: Option<&'a Path>,
    /// The container whose process namespace an ephemeral one joins.
    pub target_id: Option<&'a str>,
    /// Node-wide settings.
    pub settings: &'a NodeSettings,
}

/// The configuration of a container.
#[must_use]
pub fn config(inputs: Inputs<'_>) -> cri::ContainerConfig {
    let Inputs {
        pod,
        container,
        restart_count,
        image_reference,
        image,
        materials,
        termination_log,
        target_id,
        settings,
    } = inputs;
    let mut mounts = materials.mounts;
    if let Some(path) = termination_log {
        mounts.push(cri::Mount {
            container_path: identity::termination_message_path(container).to_owned(),
            host_path: path.to_string_lossy().into_owned(),
            ..cri::Mount::default()
        });
    }
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt: restart_count }),
        image: Some(cri::ImageSpec {
            image: image_reference.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..cri::ImageSpec::default()
        }),
        command: materials.command,
        args: materials.args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: materials.env.into_iter().map(|(key, value)| cri::KeyValue { key, value }).collect(),
        mounts,
        devices: Vec::new(),
        labels: identity::container_labels(pod, container),
        annotations: identity::container_annotations(pod, container, restart_count),
        log_path: identity::container_log_path(&container.name, restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(linux_resources(pod, container, settings)),
            security_context: Some(security::of_container(pod, container, image, target_id, settings)),
        }),
        ..cri::ContainerConfig::default()
    }
}

fn linux_resources(pod: &Pod, container: &Container, settings: &NodeSettings) -> cri::LinuxContainerResources {
    let r = container.resources.as_ref();
    let cpu_limit = pod::limit_milli(r, "cpu").filter(|_| settings.cpu_quota);
    let mut unified = HashMap::new();
    if !settings.cgroup_v1 {
        // One process out of memory ends the whole container.
        unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    cri::LinuxContainerResources {
        cpu_shares: resources::shares(pod::request_milli(r, "cpu").unwrap_or(0)),
        cpu_period: cpu_limit.map_or(0, |_| i64::try_from(settings.cpu_period.as_micros()).unwrap_or(0)),
        cpu_quota: cpu_limit.map_or(0, |milli| resources::quota(milli, settings.cpu_period)),
        memory_limit_in_bytes: pod::limit_milli(r, "memory").map_or(0, |milli| milli / 1000),
        oom_score_adj: resources::oom_score(pod, r, settings.memory_capacity),
        unified,
        ..cri::LinuxContainerResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::sandbox;
    use crate::create::tests::settings;
    use crate::materials::SandboxMaterials;
    use serde_json::json;

    #[test]
    fn a_container_as_upstream_makes_it() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "x"}},
            "spec": {"containers": [{"name": "m", "image": "busybox:1.28",
                "ports": [{"containerPort": 80, "hostPort": 8080}],
                "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}, "runAsUser": 5}}]}}))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let c = config(Inputs {
            pod: &pod,
            container,
            restart_count: 1,
            image_reference: "sha256:1",
            image: &ImageRecord::default(),
            materials: ContainerMaterials::default(),
            termination_log: Some(Path::new("/t")),
            target_id: None,
            settings: &settings(),
        });
        assert_eq!(c.log_path, "m/1.log");
        assert_eq!(c.mounts[0].container_path, "/dev/termination-log");
        let linux = c.linux.unwrap();
        let r = linux.resources.unwrap();
        assert_eq!(
            (r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes, r.oom_score_adj),
            (512, 50_000, 64 << 20, -997)
        );
        let s = linux.security_context.unwrap();
        assert_eq!(s.run_as_user.unwrap().value, 5);
        assert_eq!(s.capabilities.unwrap().add_capabilities, ["NET_ADMIN"]);
        let b = sandbox::config(
            &pod,
            2,
            "/kubepods/podu",
            &SandboxMaterials { hostname: "p".into(), dns: None },
            &settings(),
        )
        .unwrap();
        assert_eq!(b.log_directory, "/var/log/pods/n_p_u");
        assert_eq!(b.labels["app"], "x");
        assert_eq!(b.port_mappings[0].host_port, 8080);
        assert_eq!(b.metadata.unwrap().attempt, 2);
    }
}
