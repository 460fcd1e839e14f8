//! A very small crictl for trying a node's runtime by hand: `cri SOCKET CGROUP_PARENT IMAGE [COMMAND…]` runs one pod
//! with one container, prints its address, and removes it.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, ImageStatusRequest, LinuxPodSandboxConfig,
    PodSandboxConfig, PodSandboxMetadata, PodSandboxStatusRequest, RemovePodSandboxRequest, RunPodSandboxRequest,
    StartContainerRequest, StopPodSandboxRequest,
};
use keelson_tests::runtime::connect;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: cri SOCKET CGROUP_PARENT IMAGE [COMMAND…]";
    let socket = arguments.next().context(usage)?;
    let parent = arguments.next().context(usage)?;
    let image = arguments.next().context(usage)?;
    let command: Vec<String> = arguments.collect();
    let channel = connect(socket).await?;
    let mut runtime = RuntimeServiceClient::new(channel.clone());
    let mut images = ImageServiceClient::new(channel);
    let spec = ImageSpec { image, ..ImageSpec::default() };
    let status = images.image_status(ImageStatusRequest { image: Some(spec.clone()), verbose: false }).await?;
    let found = status.into_inner().image.context("the image is not on the node")?;
    println!("image {}", found.id);
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "try".to_owned(),
            uid: "try-1".to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        log_directory: "/var/log/pods/try".to_owned(),
        linux: Some(LinuxPodSandboxConfig { cgroup_parent: parent, ..LinuxPodSandboxConfig::default() }),
        ..PodSandboxConfig::default()
    };
    let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
    let sandbox = runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
    let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let status = runtime.pod_sandbox_status(request).await?.into_inner().status;
    let address = status.and_then(|status| status.network).map(|network| network.ip);
    println!("sandbox {sandbox} at {}", address.unwrap_or_default());
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "one".to_owned(), attempt: 0 }),
        image: Some(spec),
        command,
        log_path: "one.log".to_owned(),
        ..ContainerConfig::default()
    };
    let request = CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(container),
        sandbox_config: Some(config),
    };
    let id = runtime.create_container(request).await?.into_inner().container_id;
    runtime.start_container(StartContainerRequest { container_id: id.clone() }).await?;
    println!("container {id} started");
    tokio::time::sleep(Duration::from_secs(1)).await;
    runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await?;
    runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: sandbox }).await?;
    println!("removed");
    Ok(())
}
