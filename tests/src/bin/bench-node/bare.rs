//! The same pod by bare calls to the node's container runtime: the part of a start that no agent can save.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, ImageStatusRequest, LinuxContainerConfig,
    LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, RemovePodSandboxRequest, RunPodSandboxRequest,
    StartContainerRequest, StopPodSandboxRequest,
};
use keelson_tests::lab::Lab;
use keelson_tests::runtime;
use tonic::transport::Channel;

use super::NODE;
use super::cluster::{COMMAND, IMAGE};

/// A connection to the runtime, and what all its pods have in common.
pub struct Runtime {
    calls: RuntimeServiceClient<Channel>,
    image: ImageSpec,
    cgroup_parent: String,
}

impl Runtime {
    /// Connects to the node's containerd.
    pub async fn connect(lab: &Lab) -> Result<Self> {
        let channel = runtime::containerd(lab, NODE).await?;
        let image = ImageSpec { image: IMAGE.to_owned(), ..ImageSpec::default() };
        let request = ImageStatusRequest { image: Some(image), verbose: false };
        let status = ImageServiceClient::new(channel.clone()).image_status(request).await?.into_inner();
        let found = status.image.with_context(|| format!("the image {IMAGE} is not on the node"))?;
        let number = lab.status()?["number"].as_i64().context("the lab has no number")?;
        // The runtime makes no parents of a log file.
        let logs = lab.folder()?.join(NODE).join("var/log/pods/bare");
        std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
        Ok(Self {
            calls: RuntimeServiceClient::new(channel),
            image: ImageSpec { image: found.id, ..ImageSpec::default() },
            // Inside the lab's group, so that it goes with the lab, beside the agent's pods.
            cgroup_parent: format!("/keelson-{}-{number}/{NODE}/bare", lab.name),
        })
    }

    /// Makes a pod with one container and removes it; the time of making.
    pub async fn round(&mut self, name: &str) -> Result<Duration> {
        let config = PodSandboxConfig {
            // Without the labels of Kubernetes: the agent leaves it alone.
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: name.to_owned(),
                namespace: "bare".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: "/var/log/pods/bare".to_owned(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        };
        let container = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
            image: Some(self.image.clone()),
            command: COMMAND.iter().map(ToString::to_string).collect(),
            log_path: format!("{name}.log"),
            linux: Some(LinuxContainerConfig::default()),
            ..ContainerConfig::default()
        };
        let start = Instant::now();
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let sandbox = self.calls.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
        let took = Box::pin(self.container(&sandbox, config, container)).await.map(|()| start.elapsed());
        // Removed also when the container could not be made.
        self.calls.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await?;
        self.calls.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: sandbox }).await?;
        took
    }

    async fn container(&mut self, sandbox: &str, pod: PodSandboxConfig, config: ContainerConfig) -> Result<()> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(pod),
        };
        let container_id = self.calls.create_container(request).await?.into_inner().container_id;
        self.calls.start_container(StartContainerRequest { container_id }).await?;
        Ok(())
    }
}
