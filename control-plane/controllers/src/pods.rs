//! What every controller asks of a Pod: is it active, ready, since when, available?
//!
//! Upstream counterpart: `k8s.io/kubernetes/pkg/api/v1/pod` and `controller_utils`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;

/// The pod's phase, `Pending` when not set yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// All containers have ended for good.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Someone deleted it, it waits for its end.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Counts as a replica: neither ended nor deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

/// The node it is bound to, if any.
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// The condition of this type.
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == type_)
}

/// Its Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// When it became ready, if it is.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|c| c.status == "True")?;
    ready.last_transition_time.as_ref().map(|t| t.0)
}

/// Ready for at least `min_ready`.
pub fn is_available(pod: &Pod, min_ready: Duration, now: Timestamp) -> bool {
    available_in(pod, min_ready, now).is_some_and(|wait| wait.is_zero())
}

/// How long until the pod counts as available if it stays ready; `None` if it is not ready.
pub fn available_in(pod: &Pod, min_ready: Duration, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    if min_ready.is_zero() {
        return Some(Duration::ZERO);
    }
    let since = ready_since(pod)?;
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some(min_ready.saturating_sub(age))
}

/// Restarts of all its containers, the highest count.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|c| c.restart_count).max().unwrap_or(0)
}
