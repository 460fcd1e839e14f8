//! What the HTTPS server sees of the node, and the server's start.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use keelson_streaming::remotecommand::Options as StreamOptions;
use kube_common::tasks::Tasks;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::agent::Handles;
use crate::config::kubelet::AuthorizationMode;
use crate::pod;
use crate::runtime::{ContainerState, ExecOutput, RuntimeError};
use crate::server::Authentication;
use crate::server::Authorization;
use crate::server::tls::{TlsFiles, ensure_serving_certificate};
use crate::server::{ContainerLog, NodeView, PodNetwork, Server, ServerConfig, ServingNames, ViewError};

/// Pause before a port that is still taken (an agent that is just ending) is tried again.
const BIND_RETRY: Duration = Duration::from_secs(1);

/// [`NodeView`] over the agent's own state.
pub struct AgentView {
    handles: Handles,
}

impl AgentView {
    fn with_status(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.handles.statuses.get(pod::uid(pod)) {
            Some(status) => Arc::new(Pod { status: Some((*status).clone()), ..(**pod).clone() }),
            None => pod.clone(),
        }
    }
}

impl NodeView for AgentView {
    fn pods(&self) -> Vec<Arc<Pod>> {
        let pods = self.handles.view.borrow().pods.clone();
        pods.iter().map(|p| self.with_status(p)).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let view = self.handles.view.borrow();
        let mut found = view.pods.iter().filter(|p| pod::name(p) == name && pod::namespace(p) == namespace);
        // A successor of the same name is newer than the one that is ending.
        let newest =
            found.by_ref().max_by_key(|p| (!pod::is_deleted(p), p.metadata.creation_timestamp.clone()))?.clone();
        drop(view);
        Some(self.with_status(&newest))
    }

    fn container_log<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerLog, ViewError>> {
        let id = container_id.rsplit_once("://").map_or(container_id, |(_, id)| id);
        let found = self.handles.pleg.find_container(id);
        async move {
            let record = found.ok_or_else(|| ViewError::NoContainer { id: id.to_owned() })?;
            Ok(ContainerLog { path: PathBuf::from(record.log_path), running: record.state == ContainerState::Running })
        }
        .boxed()
    }

    fn container_ended(&self, container_id: &str) -> Option<BoxFuture<'static, ()>> {
        let id = container_id.rsplit_once("://").map_or(container_id, |(_, id)| id).to_owned();
        let uid = self.handles.pleg.owner_of(&id)?;
        let mut records = self.handles.pleg.subscribe(&uid);
        Some(
            async move {
                let ended =
                    records.wait_for(|r| r.containers.iter().all(|c| c.id != id || c.state != ContainerState::Running));
                let _ = ended.await;
            }
            .boxed(),
        )
    }

    fn exec_url<'a>(
        &'a self,
        container_id: &'a str,
        command: Vec<String>,
        options: StreamOptions,
    ) -> BoxFuture<'a, Result<String, ViewError>> {
        async move {
            let url = self.handles.runtime.exec_url(container_id, command, options).await;
            url.map_err(|error| runtime_error(container_id, &error))
        }
        .boxed()
    }

    fn attach_url<'a>(
        &'a self,
        container_id: &'a str,
        options: StreamOptions,
    ) -> BoxFuture<'a, Result<String, ViewError>> {
        async move {
            let url = self.handles.runtime.attach_url(container_id, options).await;
            url.map_err(|error| runtime_error(container_id, &error))
        }
        .boxed()
    }

    fn run<'a>(&'a self, container_id: &'a str, command: Vec<String>) -> BoxFuture<'a, Result<ExecOutput, ViewError>> {
        async move {
            let output = self.handles.runtime.exec(container_id, command, Duration::ZERO).await;
            output.map_err(|error| runtime_error(container_id, &error))
        }
        .boxed()
    }

    fn pod_network<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<PodNetwork, ViewError>> {
        async move {
            let record = self.handles.pleg.get(pod::uid(pod));
            let sandbox = record.as_ref().and_then(|record| record.ready_sandbox());
            let Some(sandbox) = sandbox else {
                return Err(ViewError::Runtime { message: format!("pod {} has no running sandbox", pod::name(pod)) });
            };
            if sandbox.host_network {
                return Ok(PodNetwork::Host);
            }
            let path = self.handles.runtime.network_namespace(&sandbox.id).await;
            path.map(PodNetwork::Namespace).map_err(|error| runtime_error(&sandbox.id, &error))
        }
        .boxed()
    }

    fn metrics(&self) -> String {
        self.handles.endpoints.metrics_text()
    }

    fn config(&self) -> serde_json::Value {
        serde_json::to_value(&self.handles.config.kubelet).unwrap_or_default()
    }

    fn healthz(&self) -> Result<(), String> {
        match self.handles.endpoints.answer("/healthz", None) {
            Some(page) if page.status.is_success() => Ok(()),
            Some(page) => Err(page.body),
            None => Ok(()),
        }
    }
}

fn runtime_error(id: &str, error: &RuntimeError) -> ViewError {
    if error.is_not_found() {
        return ViewError::NoContainer { id: id.to_owned() };
    }
    ViewError::Runtime { message: error.to_string() }
}

/// Starts the HTTPS server; what prevents it is said once and leaves the pods alone.
pub fn serve(handles: Handles, tasks: &Tasks, stop: CancellationToken) {
    if !handles.config.kubelet.enable_server || handles.config.kubelet.port == 0 {
        return;
    }
    tasks.spawn("node-api", async move {
        let Some(config) = server_config(&handles) else { return };
        let address = config.address;
        let mut told = false;
        loop {
            let view = Arc::new(AgentView { handles: handles.clone() });
            match Server::bind(config.clone(), view, handles.client.clone()).await {
                Ok(server) => {
                    info!(%address, "serving");
                    server.serve(stop.clone()).await;
                    return;
                }
                Err(error @ crate::server::ServerError::Listen { .. }) => {
                    if !std::mem::replace(&mut told, true) {
                        warn!("{error}; trying again");
                    }
                }
                Err(error) => {
                    warn!("the HTTPS server does not run: {error}");
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(BIND_RETRY) => {}
            }
        }
    });
}

fn server_config(handles: &Handles) -> Option<ServerConfig> {
    let kubelet = &handles.config.kubelet;
    let addresses: Vec<IpAddr> = handles.addresses.iter().filter_map(|a| a.parse().ok()).collect();
    let files = match (&kubelet.tls_cert_file, &kubelet.tls_private_key_file) {
        (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
        _ => {
            let names =
                ServingNames { node_name: handles.node_name.clone(), addresses, cert_dir: handles.config.cert_dir() };
            match ensure_serving_certificate(&names) {
                Ok(files) => files,
                Err(error) => {
                    warn!("the HTTPS server does not run: {error}");
                    return None;
                }
            }
        }
    };
    let webhook = &kubelet.authorization.webhook;
    Some(ServerConfig {
        address: SocketAddr::new(kubelet.address, kubelet.port),
        node_name: handles.node_name.clone(),
        tls: TlsFiles {
            certificate: files.0,
            key: files.1,
            client_ca: kubelet.authentication.x509.client_ca_file.clone(),
        },
        authentication: Authentication {
            anonymous: kubelet.authentication.anonymous.enabled,
            webhook: kubelet.authentication.webhook.enabled,
            token_ttl: kubelet.authentication.webhook.cache_ttl.0,
        },
        stream_idle: kubelet.streaming_connection_idle_timeout.0,
        authorization: match kubelet.authorization.mode {
            AuthorizationMode::AlwaysAllow => Authorization::AlwaysAllow,
            AuthorizationMode::Webhook => Authorization::Webhook {
                allow_ttl: webhook.cache_authorized_ttl.0,
                deny_ttl: webhook.cache_unauthorized_ttl.0,
            },
        },
    })
}
