//! Lifecycle hooks: exec, httpGet, sleep (and the old tcpSocket, which upstream accepts and does nothing for).

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::probe::http;
use crate::runtime::{Runtime, RuntimeError};

/// Limit of a hook without a grace period: postStart has none upstream; one hour frees a forgotten worker.
pub const NO_LIMIT: Duration = Duration::from_secs(3600);
/// Most bytes of a failing command's output that are shown.
const MAX_OUTPUT: usize = 1024;

/// Why a hook failed. The caller decides what follows.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command could not be run.
    #[error("Exec lifecycle hook ({command:?}) failed: {source}")]
    Exec {
        /// The command.
        command: Vec<String>,
        /// Why.
        source: RuntimeError,
    },
    /// The command failed.
    #[error("Exec lifecycle hook ({command:?}) failed: command exited with {code}, message: {output:?}")]
    Exit {
        /// The command.
        command: Vec<String>,
        /// Its exit code.
        code: i32,
        /// What it said.
        output: String,
    },
    /// The request failed.
    #[error("HTTP lifecycle hook failed: {0}")]
    Http(#[from] http::HttpError),
    /// It took longer than the grace period.
    #[error("lifecycle hook did not end within {0:?}")]
    Deadline(Duration),
}

/// How long the runtime may take to start a hook's command and to tell its end.
const EXEC_MARGIN: Duration = Duration::from_secs(2);

/// Runs a hook in or against a container within `limit`.
///
/// # Errors
/// When it fails or takes too long.
pub async fn run(
    runtime: &dyn Runtime,
    id: &str,
    handler: &LifecycleHandler,
    container: &Container,
    ips: &[String],
    limit: Duration,
) -> Result<(), HookError> {
    let work = async {
        if let Some(exec) = &handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            // The runtime's own limit counts from the command's start, and ends what it started too; ours is the last resort.
            let result = runtime.exec(id, command.clone(), limit.max(Duration::from_secs(1))).await;
            let output = result.map_err(|source| HookError::Exec { command: command.clone(), source })?;
            if output.exit_code != 0 {
                let text = String::from_utf8_lossy(&output.output[..output.output.len().min(MAX_OUTPUT)]).into_owned();
                return Err(HookError::Exit { command, code: output.exit_code, output: text });
            }
        } else if let Some(get) = &handler.http_get {
            let ip = ips.first().map(String::as_str);
            match http::get(get, container, ip, "kube-lifecycle/1.37").await {
                Err(http::HttpError::Request { message, .. })
                    if get.scheme.as_deref() == Some("HTTPS") && message.contains("InvalidContentType") =>
                {
                    let plain =
                        k8s_openapi::api::core::v1::HTTPGetAction { scheme: Some("HTTP".into()), ..get.clone() };
                    http::get(&plain, container, ip, "kube-lifecycle/1.37").await?;
                }
                // Whatever it answers, it was told: upstream does not look at the status of a hook.
                other => {
                    other?;
                }
            }
        } else if let Some(sleep) = &handler.sleep {
            tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        }
        Ok(())
    };
    let last = if handler.exec.is_some() { limit.max(Duration::from_secs(1)) + EXEC_MARGIN } else { limit };
    tokio::time::timeout(last, work).await.unwrap_or(Err(HookError::Deadline(limit)))
}
