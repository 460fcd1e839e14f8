//! Container logs, as the runtime writes them and as users read them.
//!
//! [`read`] streams one container's log with upstream's options; [`container_id`] decides whose log
//! a user means. A line that does not parse is skipped, never fatal. Following uses inotify and
//! goes on across rotation (rename and reopen) until the container has ended. Memory is bounded by
//! [`read::MAX_LINE`] and the sink's capacity, whatever the file holds.

pub mod line;
pub mod read;
mod start;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

pub use line::StreamFilter;
pub use read::{LogError, LogOptions, read};

/// Why a container has no log to show, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoLog {
    /// The pod's status does not mention the container (yet).
    #[error("container {container:?} in pod {pod:?} is not available")]
    NotAvailable {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// There was no run before this one.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// It ended without ever having run.
    #[error("container {container:?} in pod {pod:?} is terminated")]
    Terminated {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
    /// It has not started.
    #[error("container {container:?} in pod {pod:?} is waiting to start: {reason}")]
    Waiting {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
        /// The waiting reason, or words for the most common ones.
        reason: String,
    },
    /// Nothing is known.
    #[error("container {container:?} in pod {pod:?} is waiting to start - no logs yet")]
    Nothing {
        /// The container.
        container: String,
        /// The pod.
        pod: String,
    },
}

/// The runtime's ID of the container run whose log is meant: the last run that there was, or with
/// `previous` the one before.
///
/// # Errors
/// [`NoLog`].
pub fn container_id(pod: &Pod, container: &str, previous: bool) -> Result<String, NoLog> {
    let (container, pod_name) = (container.to_owned(), pod.metadata.name.clone().unwrap_or_default());
    let found = pod.status.as_ref().and_then(|status| find_status(status, &container));
    let Some(status) = found else {
        return Err(NoLog::NotAvailable { container, pod: pod_name });
    };
    let ended = |state: Option<&ContainerState>| {
        let terminated = state.and_then(|s| s.terminated.as_ref());
        terminated.map(|t| t.container_id.clone().unwrap_or_default())
    };
    let (now, last) = (ended(status.state.as_ref()), ended(status.last_state.as_ref()));
    let state = status.state.as_ref();
    let id = if previous {
        let id = last.filter(|id| !id.is_empty());
        id.ok_or(NoLog::NoPrevious { container, pod: pod_name })
    } else if state.is_some_and(|s| s.running.is_some()) {
        Ok(status.container_id.clone().unwrap_or_default())
    } else if now.is_some() || last.is_some() {
        let known = [now, last].into_iter().flatten().find(|id| !id.is_empty());
        known.ok_or(NoLog::Terminated { container, pod: pod_name })
    } else if let Some(waiting) = state.and_then(|s| s.waiting.as_ref()) {
        let reason = match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            other => other,
        };
        Err(NoLog::Waiting { reason: reason.to_owned(), container, pod: pod_name })
    } else {
        Err(NoLog::Nothing { container, pod: pod_name })
    }?;
    // "containerd://<id>"
    let bare = id.split_once("://").map(|(_, bare)| bare.to_owned());
    Ok(bare.unwrap_or(id))
}

fn find_status<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .find(|s| s.name == container)
}
