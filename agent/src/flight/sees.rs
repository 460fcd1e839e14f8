//! What a worker sees and wants, in lines.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::pod;
use crate::runtime::{PodRecord, SandboxState};
use crate::sync::Actions;
use crate::sync::backoff::go_text;

/// Characters of an identifier that are shown.
const SHORT: usize = 13;

fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

/// Whether the pod is Ready by its status.
pub(super) fn is_ready(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Phase, sandboxes, containers, what keeps it from being Ready.
pub(super) fn text(record: &PodRecord, status: &PodStatus) -> String {
    let mut lines = vec![format!("phase {}", status.phase.as_deref().unwrap_or("Pending"))];
    if let Some(reason) = &status.reason {
        lines.push(format!("{reason}: {}", status.message.as_deref().unwrap_or_default()));
    }
    for sandbox in &record.sandboxes {
        let state = if sandbox.state == SandboxState::Ready { "ready" } else { "not ready" };
        let place = if sandbox.host_network { "host network".to_owned() } else { sandbox.ips.join(" ") };
        lines.push(
            format!("sandbox {} (attempt {}) {state} {place}", short(&sandbox.id), sandbox.attempt)
                .trim_end()
                .to_owned(),
        );
    }
    let lists = [
        ("init container", &status.init_container_statuses),
        ("container", &status.container_statuses),
        ("ephemeral container", &status.ephemeral_container_statuses),
    ];
    for (kind, list) in lists {
        lines.extend(list.iter().flatten().map(|c| format!("{kind} {}: {}", c.name, container(c))));
    }
    let failing = status.conditions.iter().flatten().find(|c| c.type_ == "Ready" && c.status == "False");
    if let Some(condition) = failing {
        let message = condition.message.as_deref().unwrap_or_default();
        lines.push(
            format!("not Ready: {} {message}", condition.reason.as_deref().unwrap_or_default()).trim_end().to_owned(),
        );
    }
    lines.join("\n")
}

fn container(status: &ContainerStatus) -> String {
    let restarts = match status.restart_count {
        0 => String::new(),
        n => format!(", restarts {n}"),
    };
    let Some(state) = &status.state else { return "unknown".into() };
    if let Some(running) = &state.running {
        let since = running.started_at.as_ref().map(|t| t.0.to_string()).unwrap_or_default();
        let ready = match (status.started, status.ready) {
            (Some(true), true) => "ready",
            (Some(true), false) => "not ready",
            _ => "its startup probe has not passed yet",
        };
        return format!("running since {since}, {ready}{restarts}");
    }
    if let Some(ended) = &state.terminated {
        let at = ended.finished_at.as_ref().map(|t| t.0.to_string()).unwrap_or_default();
        let reason = ended.reason.as_deref().unwrap_or_default();
        return format!("ended with {} ({reason}) at {at}{restarts}", ended.exit_code);
    }
    let waiting = state.waiting.clone().unwrap_or_default();
    let (reason, message) = (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default());
    let colon = if message.is_empty() { "" } else { ": " };
    format!("waiting, {reason}{colon}{message}{restarts}")
}

/// What a decision asks for.
pub(super) fn wanted(pod: &Pod, actions: &Actions) -> String {
    let mut lines = Vec::new();
    if pod::is_deleted(pod) {
        lines.push("end the pod: it is being deleted".to_owned());
    } else if actions.kill_pod {
        lines.push("stop all of its containers and its sandbox".to_owned());
    }
    if let Some(attempt) = actions.create_sandbox {
        lines.push(format!("create a sandbox (attempt {attempt})"));
    }
    lines.extend(actions.kill.iter().map(|kill| format!("stop container {}: {}", kill.name, kill.message)));
    lines.extend(actions.start.iter().map(|start| match start.restart_count {
        0 => format!("start container {}", start.name),
        n => format!("start container {} again (restart {n})", start.name),
    }));
    lines.extend(actions.backing_off.iter().map(|waiting| {
        let at = super::explain::time(waiting.until);
        format!("start container {} again at {at} (back-off {})", waiting.name, go_text(waiting.delay))
    }));
    if lines.is_empty() {
        lines.push("nothing to do: it is as it shall be".to_owned());
    }
    lines.join("\n")
}
