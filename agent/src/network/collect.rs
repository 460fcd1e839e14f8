//! Collects what a crash left behind in the managed network: addresses and host ports of sandboxes that are no more.
//!
//! Once after the start and once after each return of the runtime: only a crash in the middle of an ADD or DEL leaks. The
//! sandboxes are containerd's containers, not CRI's list, which hides those that it could not load. With another runtime
//! than containerd nothing is collected.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::ListContainersRequest;
use containerd_client::services::v1::containers_client::ContainersClient;
use ipnet::IpNet;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, info, warn};

use super::conflist;
use super::plugins::{self, Attachment, PluginError};
use super::starting::Starting;
use crate::config::Config;
use crate::node::Readiness;
use crate::runtime::cri::{channel, in_namespace, socket_path};

/// A request of the agent before this one, which may have been killed, ends by itself within this time: the runtime
/// cancels what its client no longer waits for.
const SETTLE: Duration = Duration::from_secs(10);
/// The interface that CRI's containers get from the first network.
const INTERFACE: &str = "eth0";
/// Longest time for the list of containers.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// Why nothing was collected. Retryable.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// containerd did not list its containers.
    #[error("containerd does not list its containers: {0}")]
    List(#[from] Status),
    /// It took too long.
    #[error("containerd has not listed its containers within {LIST_LIMIT:?}")]
    Late,
    /// A plugin failed.
    #[error(transparent)]
    Plugin(#[from] PluginError),
}

/// Collects for one node.
pub struct Collector {
    /// Configuration.
    pub config: Arc<Config>,
    /// The node's pod ranges.
    pub ranges: watch::Receiver<Option<Vec<IpNet>>>,
    /// Readiness of the runtime.
    pub readiness: watch::Receiver<Readiness>,
    /// Sandboxes that are being made.
    pub starting: Arc<Starting>,
}

impl Collector {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.once() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                back = self.runtime_returns() => if !back { return },
            }
        }
    }

    /// Waits until the runtime was away and is back; false when nobody will tell.
    async fn runtime_returns(&mut self) -> bool {
        let lost = self.readiness.wait_for(|now| now.runtime.is_some()).await.is_ok();
        lost && self.readiness.wait_for(|now| now.runtime.is_none()).await.is_ok()
    }

    async fn once(&mut self) {
        let ranges = match self.ranges.wait_for(|ranges| ranges.as_ref().is_some_and(|r| !r.is_empty())).await {
            Ok(ranges) => ranges.clone().unwrap_or_default(),
            Err(_) => return,
        };
        tokio::time::sleep(SETTLE).await;
        let Some(_quiet) = self.starting.quiet().await else {
            info!("no moment without a sandbox under way was found; leaked addresses are collected another time");
            return;
        };
        match self.collect(&ranges).await {
            Ok(live) => debug!(live, "the managed network is collected"),
            Err(error) => warn!("cannot collect the managed network's leftovers: {error}"),
        }
    }

    async fn collect(&self, ranges: &[IpNet]) -> Result<usize, CollectError> {
        let socket = socket_path(&self.config.kubelet.container_runtime_endpoint);
        if !is_containerd(&socket) {
            return Ok(0);
        }
        let ids = tokio::time::timeout(LIST_LIMIT, containers(socket)).await.map_err(|_| CollectError::Late)??;
        let valid: Vec<Attachment> =
            ids.into_iter().map(|container| Attachment { container, interface: INTERFACE.to_owned() }).collect();
        let network = &self.config.node.network;
        let list = conflist::conflist(network, None, ranges);
        plugins::collect(&network.bin_dir, &list, &valid).await?;
        Ok(valid.len())
    }
}

/// Another runtime does not speak containerd's API; its socket is called otherwise.
fn is_containerd(socket: &Path) -> bool {
    socket.to_string_lossy().contains("containerd")
}

/// The IDs of all containers of CRI, sandboxes among them. Streamed: each comes with its whole OCI specification.
async fn containers(socket: PathBuf) -> Result<Vec<String>, Status> {
    let request = in_namespace(ListContainersRequest::default());
    let mut stream = ContainersClient::new(channel(&socket)).list_stream(request).await?.into_inner();
    let mut ids = Vec::new();
    while let Some(message) = stream.message().await? {
        ids.extend(message.container.map(|container| container.id));
    }
    Ok(ids)
}
