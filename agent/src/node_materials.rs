//! The node's real [`Materials`]: volumes, environment, hosts file and DNS put together.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_cri::v1::{AuthConfig, Mount};
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::RwLock;
use tokio::sync::watch;
use tracing::debug;

use crate::agent::MaterialsInputs;
use crate::dns::{self, DnsSettings};
use crate::env;
use crate::env::fields::NodeFacts;
use crate::env::services::{ServiceIndex, SharedServiceIndex, watch_services};
use crate::events::Recorder;
use crate::hosts;
use crate::keyring;
use crate::materials::{ContainerMaterials, MaterialError, Materials, SandboxMaterials};
use crate::pod;
use crate::runtime_class::RuntimeClasses;
use crate::volumes::VolumeManager;
use crate::volumes::api::ApiReader;
use crate::volumes::mounts::KernelMounter;
use crate::volumes::objects::{NoObjects, ObjectReader};
use crate::volumes::wants_etc_hosts;

/// The node's resolver file unless configured otherwise.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Longest wait for the first list of Services before a container is made.
const SERVICES_WAIT: Duration = Duration::from_secs(10);
/// Pause between looks while waiting for it.
const SERVICES_PAUSE: Duration = Duration::from_millis(20);

/// What pods of this node are made from.
pub struct NodeMaterials {
    volumes: Arc<VolumeManager>,
    services: SharedServiceIndex,
    has_api: bool,
    dns: DnsSettings,
    resolver_file: Option<PathBuf>,
    facts: NodeFacts,
    recorder: Arc<Recorder>,
    classes: RuntimeClasses,
    root_dir: PathBuf,
}

impl NodeMaterials {
    /// Starts the watches that volumes and environments need.
    #[must_use]
    pub fn start(inputs: &MaterialsInputs) -> Arc<Self> {
        let config = &inputs.config;
        let reader: Arc<dyn ObjectReader> = match &inputs.client {
            Some(client) => ApiReader::new(client.clone(), inputs.stop.clone()),
            None => Arc::new(NoObjects::new()),
        };
        let recorder = inputs.recorder.clone();
        let on_error = {
            let recorder = recorder.clone();
            Arc::new(move |pod: &Pod, error: &crate::volumes::error::VolumeError| {
                recorder.pod(pod, "Warning", "FailedMount", &error.to_string());
            })
        };
        let mounter = Arc::new(KernelMounter::new());
        let volumes = VolumeManager::new(config.node.root_dir.clone(), reader, mounter, on_error);
        tokio::spawn(volumes.clone().run(inputs.stop.clone()));
        let services: SharedServiceIndex = Arc::new(RwLock::new(ServiceIndex::new()));
        if let Some(client) = &inputs.client {
            tokio::spawn(watch_services(client.clone(), services.clone(), inputs.stop.clone()));
        }
        let resolver_file = match config.kubelet.resolv_conf.as_deref() {
            Some("") => None,
            Some(path) => Some(PathBuf::from(path)),
            None => Some(PathBuf::from(RESOLV_CONF)),
        };
        let node_ips: Vec<IpAddr> = inputs.addresses.iter().filter_map(|a| a.parse().ok()).collect();
        Arc::new(Self {
            volumes,
            services,
            has_api: inputs.client.is_some(),
            dns: DnsSettings {
                cluster_dns: config.kubelet.cluster_dns.clone(),
                cluster_domain: config.kubelet.cluster_domain.clone(),
                has_resolver_file: resolver_file.is_some(),
                node_ips,
            },
            resolver_file,
            facts: NodeFacts {
                pod_ips: Vec::new(),
                host_ips: inputs.addresses.clone(),
                allocatable: inputs.allocatable.clone(),
            },
            recorder,
            classes: RuntimeClasses::new(inputs.client.clone()),
            root_dir: config.node.root_dir.clone(),
        })
    }

    /// Waits for the first list of Services: without it a container would miss its variables.
    async fn service_variables(&self, pod: &Pod) -> Result<Vec<(String, String)>, MaterialError> {
        if !self.has_api {
            return Ok(Vec::new());
        }
        let until = Instant::now() + SERVICES_WAIT;
        while !self.services.read().synced() {
            // Static pods start without the API server.
            if pod::is_static(pod) {
                return Ok(Vec::new());
            }
            if Instant::now() >= until {
                let message = "services have not yet been read at least once, cannot construct envvars".to_owned();
                return Err(MaterialError { event: "Failed", message });
            }
            tokio::time::sleep(SERVICES_PAUSE).await;
        }
        let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
        Ok(self.services.read().variables(pod::namespace(pod), links))
    }

    fn hosts_mount(&self, pod: &Pod, ips: &[String]) -> Result<Option<Mount>, MaterialError> {
        let fail = |message: String| MaterialError { event: "Failed", message };
        let name = hosts::pod_hostname(pod, &self.dns.cluster_domain).map_err(|e| fail(e.to_string()))?;
        let Some(dir) = self.volumes.pod_dir(pod::uid(pod)) else { return Ok(None) };
        let path = hosts::ensure_file(pod, dir.path(), ips, &name).map_err(|e| fail(e.to_string()))?;
        Ok(path.map(|path| Mount {
            container_path: hosts::ETC_HOSTS.into(),
            host_path: path.to_string_lossy().into_owned(),
            ..Mount::default()
        }))
    }
}

impl Materials for NodeMaterials {
    fn volumes<'a>(&'a self, pod: &'a Arc<Pod>) -> BoxFuture<'a, Result<(), MaterialError>> {
        async move {
            self.volumes.set_up(pod, &self.facts).await.map_err(|errors| MaterialError {
                event: "FailedMount",
                message: errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            })
        }
        .boxed()
    }

    fn sandbox(&self, pod: &Pod) -> Result<SandboxMaterials, MaterialError> {
        let fail = |message: String| MaterialError { event: "FailedCreatePodSandBox", message };
        let name = hosts::pod_hostname(pod, &self.dns.cluster_domain).map_err(|e| fail(e.to_string()))?;
        let text = match &self.resolver_file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|e| fail(format!("cannot read the node's resolver file {}: {e}", path.display())))?,
            None => String::new(),
        };
        let dns = dns::pod_dns(pod, &self.dns, &text).map_err(|e| fail(e.to_string()))?;
        for warning in &dns.warnings {
            self.recorder.pod(pod, "Warning", warning.reason, &warning.message);
        }
        let fqdn = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn) == Some(true) && !name.domain.is_empty();
        let hostname = if fqdn { format!("{}.{}", name.hostname, name.domain) } else { name.hostname };
        Ok(SandboxMaterials { hostname, dns: Some(dns.to_cri()) })
    }

    fn runtime_handler<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<String, MaterialError>> {
        let name = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
        async move { self.classes.handler(name).await.map_err(MaterialError::from) }.boxed()
    }

    fn container<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        container: &'a Container,
        pod_ips: &'a [String],
    ) -> BoxFuture<'a, Result<ContainerMaterials, MaterialError>> {
        async move {
            let fail = |message: String| MaterialError { event: "Failed", message };
            let services = self.service_variables(pod).await?;
            let objects = env::load_objects(self.volumes.reader().as_ref(), pod::namespace(pod), container).await;
            let facts = NodeFacts { pod_ips: pod_ips.to_vec(), ..self.facts.clone() };
            let env = env::build(pod, container, &facts, &objects, &services).map_err(|e| fail(e.to_string()))?;
            let (command, args) = env::expand_command(container, &env);
            let mut mounts = self.volumes.container_mounts(pod, container, &env).await.map_err(|e| {
                debug!(pod = %pod::display(pod), container = container.name, detail = ?e.detail, "mounts refused");
                fail(e.message)
            })?;
            if wants_etc_hosts(container) {
                mounts.extend(self.hosts_mount(pod, pod_ips)?);
            }
            Ok(ContainerMaterials { env, command, args, mounts })
        }
        .boxed()
    }

    fn credentials<'a>(&'a self, pod: &'a Pod, image: &'a str) -> BoxFuture<'a, Vec<AuthConfig>> {
        async move {
            let mut out = Vec::new();
            let secrets = pod.spec.as_ref().and_then(|s| s.image_pull_secrets.as_deref()).unwrap_or_default();
            for reference in secrets.iter().filter(|r| !r.name.is_empty()) {
                match self.volumes.reader().secret(pod::namespace(pod), &reference.name).await {
                    Ok(secret) => {
                        let file = secret.data.get(".dockerconfigjson").or_else(|| secret.data.get(".dockercfg"));
                        out.extend(file.map(|bytes| keyring::lookup(bytes, image)).unwrap_or_default());
                    }
                    Err(error) => {
                        let text = format!(
                            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not \
                             succeed.",
                            reference.name
                        );
                        self.recorder.pod(pod, "Warning", "FailedToRetrieveImagePullSecret", &text);
                        debug!(secret = reference.name, "{error}");
                    }
                }
            }
            out.extend(keyring::of_node(&self.root_dir, image));
            out
        }
        .boxed()
    }

    fn teardown<'a>(&'a self, uid: &'a str, whole: bool) -> BoxFuture<'a, Result<(), MaterialError>> {
        async move {
            let result = if whole { self.volumes.remove_pod(uid).await } else { self.volumes.tear_down(uid).await };
            result.map_err(|e| MaterialError { event: "FailedUnmount", message: e.to_string() })
        }
        .boxed()
    }

    fn changed(&self, uid: &str) -> watch::Receiver<u64> {
        self.volumes.changed(uid)
    }

    fn is_selected(&self, pod: &Pod) -> bool {
        let services = self.services.read();
        self.has_api && (!services.synced() || services.selects(pod::namespace(pod), pod.metadata.labels.as_ref()))
    }

    fn on_disk(&self) -> BoxFuture<'_, Vec<String>> {
        async move { self.volumes.on_disk().await.into_iter().map(|p| p.uid).collect() }.boxed()
    }
}
