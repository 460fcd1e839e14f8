//! The seam to what is prepared around a container: volumes, environment, hosts file, DNS, pull credentials.
//!
//! The worker asks for these through [`Materials`]; the node's real ones are put together in `node_materials`.
//! Retrying is the worker's business: every error says what a user is shown and nothing else happens.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_cri::v1::{AuthConfig, DnsConfig, Mount};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::watch;

/// Something a pod needs could not be prepared. Retryable: objects may appear, mounts may be freed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct MaterialError {
    /// Reason of the event (`FailedMount`, `Failed`, …).
    pub event: &'static str,
    /// What is wrong and what would help.
    pub message: String,
}

/// What a sandbox needs.
#[derive(Clone, Debug, Default)]
pub struct SandboxMaterials {
    /// Host name inside the pod.
    pub hostname: String,
    /// Resolver settings; none leaves the runtime's own.
    pub dns: Option<DnsConfig>,
}

/// What a container needs.
#[derive(Clone, Debug, Default)]
pub struct ContainerMaterials {
    /// Environment in order.
    pub env: Vec<(String, String)>,
    /// Command with variables expanded.
    pub command: Vec<String>,
    /// Arguments with variables expanded.
    pub args: Vec<String>,
    /// Mounts: volumes, hosts file.
    pub mounts: Vec<Mount>,
}

/// Prepares what pods need.
pub trait Materials: Send + Sync {
    /// Sets up every volume of a pod; quick when they are there already.
    fn volumes<'a>(&'a self, pod: &'a Arc<Pod>) -> BoxFuture<'a, Result<(), MaterialError>>;
    /// Host name and resolver of a pod.
    ///
    /// # Errors
    /// An unusable host name or resolver file.
    fn sandbox(&self, pod: &Pod) -> Result<SandboxMaterials, MaterialError>;
    /// The runtime's handler for the pod's RuntimeClass; empty text is the runtime's default.
    fn runtime_handler<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<String, MaterialError>>;
    /// Environment, command and mounts of one container.
    fn container<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        container: &'a Container,
        pod_ips: &'a [String],
    ) -> BoxFuture<'a, Result<ContainerMaterials, MaterialError>>;
    /// Credentials of the pod's pull secrets.
    fn credentials<'a>(&'a self, pod: &'a Pod, image: &'a str) -> BoxFuture<'a, Vec<AuthConfig>>;
    /// Takes the volumes of a pod down; with `whole` its folder goes too.
    fn teardown<'a>(&'a self, uid: &'a str, whole: bool) -> BoxFuture<'a, Result<(), MaterialError>>;
    /// Changes whenever an object that the pod refers to changed: what failed for want of it is tried again at once.
    fn changed(&self, uid: &str) -> watch::Receiver<u64>;
    /// Whether a Service's selector names the pod; true while Services are not known.
    fn is_selected(&self, pod: &Pod) -> bool;
    /// UIDs of the pods with a folder on disk.
    fn on_disk(&self) -> BoxFuture<'_, Vec<String>>;
}

/// Literal environment values and nothing else, and Services that select every pod with labels: for tests of workers.
#[derive(Debug, Default)]
pub struct Bare;

impl Materials for Bare {
    fn volumes<'a>(&'a self, _: &'a Arc<Pod>) -> BoxFuture<'a, Result<(), MaterialError>> {
        async { Ok(()) }.boxed()
    }

    fn sandbox(&self, pod: &Pod) -> Result<SandboxMaterials, MaterialError> {
        Ok(SandboxMaterials { hostname: crate::pod::name(pod).to_owned(), dns: None })
    }

    fn runtime_handler<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<String, MaterialError>> {
        async { Ok(String::new()) }.boxed()
    }

    fn container<'a>(
        &'a self,
        _: &'a Arc<Pod>,
        container: &'a Container,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<ContainerMaterials, MaterialError>> {
        let env = container.env.iter().flatten().map(|e| (e.name.clone(), e.value.clone().unwrap_or_default()));
        let out = ContainerMaterials {
            env: env.collect(),
            command: container.command.clone().unwrap_or_default(),
            args: container.args.clone().unwrap_or_default(),
            mounts: Vec::new(),
        };
        async { Ok(out) }.boxed()
    }

    fn credentials<'a>(&'a self, _: &'a Pod, _: &'a str) -> BoxFuture<'a, Vec<AuthConfig>> {
        async { Vec::new() }.boxed()
    }

    fn teardown<'a>(&'a self, _: &'a str, _: bool) -> BoxFuture<'a, Result<(), MaterialError>> {
        async { Ok(()) }.boxed()
    }

    fn changed(&self, _: &str) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn is_selected(&self, pod: &Pod) -> bool {
        pod.metadata.labels.is_some()
    }

    fn on_disk(&self) -> BoxFuture<'_, Vec<String>> {
        async { Vec::new() }.boxed()
    }
}
