//! The service dataplane inside the agent's process (`NodeConfig.dataplane: embedded`): one process less on a node,
//! one TLS session less to the API server.
//!
//! Invariants: a dataplane that fails never takes the agent along: it is tried again with a growing pause, and
//! `/readyz` says why it is not there. Its configuration is read before anything starts, so that a mistake in it is
//! reported like one in the agent's own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keelson_dataplane::config as dataplane_config;
use kube_common::tasks::Tasks;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::agent::Handles;
use crate::config::Config;
use crate::config::node::DataplaneMode;

/// First pause after a failure; it doubles.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest pause: a kernel that lacks a feature will not grow it soon.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The dataplane's configuration, if it shall run in this process; upstream's defaults when no file is named.
///
/// # Errors
/// Every mistake in the file that `dataplaneConfig` names.
pub fn configuration(config: &Config) -> Result<Option<keelson_dataplane::Config>, kube_common::config::ConfigError> {
    if config.node.dataplane == DataplaneMode::None {
        return Ok(None);
    }
    let load = |path: &Path| dataplane_config::load(path);
    let mut loaded =
        config.node.dataplane_config.as_deref().map_or_else(|| Ok(dataplane_config::default_config()), load)?;
    loaded.hostname_override.get_or_insert_with(|| config.node_name());
    // Agent and dataplane meet where the agent looks, whatever the file says.
    loaded.drain_socket = Some(config.node.drain.socket.clone());
    Ok(Some(loaded))
}

/// Runs the dataplane beside the agent until `stop`.
pub fn serve(config: keelson_dataplane::Config) -> impl FnOnce(Handles, &Tasks, CancellationToken) + Send + 'static {
    move |handles, tasks, stop| {
        let trouble = Arc::new(Mutex::new(Some("has not started yet".to_owned())));
        let seen = trouble.clone();
        handles.endpoints.add_ready_check("dataplane", move || seen.lock().clone().map_or(Ok(()), Err));
        let Some(client) = handles.client else {
            error!("dataplane: embedded needs an API server: set kubeconfig, or dataplane: none");
            *trouble.lock() = Some("there is no kubeconfig".to_owned());
            return;
        };
        tasks.spawn("dataplane", keep_running(config, client, trouble, stop));
    }
}

async fn keep_running(
    config: keelson_dataplane::Config,
    client: kube::Client,
    trouble: Arc<Mutex<Option<String>>>,
    stop: CancellationToken,
) {
    let mut pause = RETRY_FIRST;
    while !stop.is_cancelled() {
        info!("the embedded dataplane starts");
        *trouble.lock() = None;
        match Box::pin(keelson_dataplane::run(config.clone(), client.clone(), stop.clone())).await {
            Ok(()) => return,
            Err(reason) => {
                error!("the embedded dataplane ended: {reason}; next try in {} s", pause.as_secs());
                *trouble.lock() = Some(reason.to_string());
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}
