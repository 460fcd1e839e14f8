//! The cells of a pod in a table.
//!
//! Upstream counterpart: `printPod`.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::table::{AGE, Column, Columns, NAME, age_of, name_of, text, wide};
use crate::{time, val};

pub(super) static COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Ready"),
        text("Status"),
        Column { name: "Restarts", kind: "string", format: "", priority: 0 },
        AGE,
        wide("IP"),
        wide("Node"),
        wide("Nominated Node"),
        wide("Readiness Gates"),
    ],
    cells,
};

/// Deletion because a node does not answer: shown as Unknown.
const NODE_LOST: &str = "NodeLost";

fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts > 0 => {
            format!("{} ({} ago)", summary.restarts, time::human(time::between(at, now)))
        }
        _ => summary.restarts.to_string(),
    };
    let or_none = |path: &str| {
        let text = val::text(pod, path);
        json!(if text.is_empty() { "<none>" } else { text })
    };
    let ip = match val::list(pod, "status.podIPs").first() {
        Some(first) => json!(val::text(first, "ip")),
        None => or_none("status.podIP"),
    };
    vec![
        name_of(pod),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.reason),
        json!(restarts),
        age_of(pod, now),
        ip,
        or_none("spec.nodeName"),
        or_none("status.nominatedNodeName"),
        json!(readiness_gates(pod)),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = val::list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let met = gates.iter().filter(|gate| condition(pod, val::text(gate, "conditionType")) == Some("True")).count();
    format!("{met}/{}", gates.len())
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a str> {
    val::list(pod, "status.conditions").iter().find(|c| val::text(c, "type") == kind).map(|c| val::text(c, "status"))
}

struct Summary {
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
    reason: String,
}

/// Sidecars: init containers that keep running.
fn is_restartable_init(pod: &Value, name: &str) -> bool {
    val::list(pod, "spec.initContainers")
        .iter()
        .any(|c| val::text(c, "name") == name && val::text(c, "restartPolicy") == "Always")
}

fn finished_at(container: &Value) -> Option<Timestamp> {
    time::parse(val::text(container, "lastState.terminated.finishedAt"))
}

/// How a terminated container is shown: its reason, or its signal, or its exit code.
fn terminated(state: &Value) -> String {
    let reason = val::text(state, "reason");
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match val::int(state, "signal").unwrap_or(0) {
        0 => format!("ExitCode:{}", val::int(state, "exitCode").unwrap_or(0)),
        signal => format!("Signal:{signal}"),
    }
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let mut reason = val::text(pod, "status.phase").to_owned();
        let status_reason = val::text(pod, "status.reason");
        if !status_reason.is_empty() {
            reason = status_reason.to_owned();
        }
        // A gated pod says so.
        let gated = val::list(pod, "status.conditions")
            .iter()
            .any(|c| val::text(c, "type") == "PodScheduled" && val::text(c, "reason") == "SchedulingGated");
        if gated {
            "SchedulingGated".clone_into(&mut reason);
        }
        let mut out =
            Self { ready: 0, total: val::list(pod, "spec.containers").len(), restarts: 0, last_restart: None, reason };
        let mut sidecar_restarts = (0, None);
        let initializing = out.init_containers(pod, &mut sidecar_restarts);
        if !initializing || condition(pod, "Initialized") == Some("True") {
            out.restarts = sidecar_restarts.0;
            out.last_restart = sidecar_restarts.1;
            out.containers(pod);
        }
        out.deletion(pod, status_reason);
        out
    }

    /// Looks at the init containers; true while one of them holds the pod up.
    fn init_containers(&mut self, pod: &Value, sidecars: &mut (i64, Option<Timestamp>)) -> bool {
        let declared = val::list(pod, "spec.initContainers");
        self.total += declared.iter().filter(|c| val::text(c, "restartPolicy") == "Always").count();
        let statuses = val::list(pod, "status.initContainerStatuses");
        for (i, container) in statuses.iter().enumerate() {
            let restartable = is_restartable_init(pod, val::text(container, "name"));
            let restarts = val::int(container, "restartCount").unwrap_or(0);
            self.restarts += restarts;
            self.last_restart = self.last_restart.max(finished_at(container));
            if restartable {
                sidecars.0 += restarts;
                sidecars.1 = sidecars.1.max(finished_at(container));
            }
            let state = container.get("state").unwrap_or(&Value::Null);
            if let Some(ended) = val::at(state, "terminated") {
                if val::int(ended, "exitCode").unwrap_or(0) == 0 {
                    continue;
                }
                self.reason = format!("Init:{}", terminated(ended));
                return true;
            }
            if restartable && val::flag(container, "started") {
                if val::flag(container, "ready") {
                    self.ready += 1;
                }
                continue;
            }
            let waiting = val::text(state, "waiting.reason");
            self.reason = if waiting.is_empty() || waiting == "PodInitializing" {
                format!("Init:{i}/{}", declared.len())
            } else {
                format!("Init:{waiting}")
            };
            return true;
        }
        false
    }

    fn containers(&mut self, pod: &Value) {
        let mut has_running = false;
        // Backwards, so that the first container that has something to say wins.
        for container in val::list(pod, "status.containerStatuses").iter().rev() {
            self.restarts += val::int(container, "restartCount").unwrap_or(0);
            self.last_restart = self.last_restart.max(finished_at(container));
            let state = container.get("state").unwrap_or(&Value::Null);
            let waiting = val::text(state, "waiting.reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if let Some(ended) = val::at(state, "terminated") {
                self.reason = terminated(ended);
            } else if val::flag(container, "ready") && val::at(state, "running").is_some() {
                has_running = true;
                self.ready += 1;
            }
        }
        // Completed containers beside a running one: the pod is still what it was.
        if self.reason == "Completed" && has_running {
            let ready = condition(pod, "Ready") == Some("True");
            if ready { "Running" } else { "NotReady" }.clone_into(&mut self.reason);
        }
    }

    fn deletion(&mut self, pod: &Value, status_reason: &str) {
        if val::at(pod, "metadata.deletionTimestamp").is_none() {
            return;
        }
        if status_reason == NODE_LOST {
            "Unknown".clone_into(&mut self.reason);
        } else if !matches!(val::text(pod, "status.phase"), "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut self.reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pod: &Value) -> (String, String, String) {
        let now = "2026-01-02T03:04:05Z".parse().expect("time");
        let cells = cells(pod, now);
        let text = |i: usize| cells[i].as_str().unwrap_or("").to_owned();
        (text(1), text(2), text(3))
    }

    fn is(pod: &Value, ready: &str, status: &str, restarts: &str) {
        assert_eq!(shown(pod), (ready.to_owned(), status.to_owned(), restarts.to_owned()));
    }

    #[test]
    fn pending_and_running() {
        is(&json!({"spec": {"containers": [{}]}, "status": {"phase": "Pending"}}), "0/1", "Pending", "0");
        let running = json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "Running", "containerStatuses": [
            {"ready": true, "state": {"running": {}}, "restartCount": 2,
             "lastState": {"terminated": {"finishedAt": "2026-01-02T03:04:00Z"}}},
            {"ready": false, "state": {"running": {}}, "restartCount": 0},
        ]}});
        is(&running, "1/2", "Running", "2 (5s ago)");
    }

    #[test]
    fn crash_loops_and_terminated() {
        let crash = json!({"spec": {"containers": [{}]}, "status": {"phase": "Running", "containerStatuses": [
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}]}});
        is(&crash, "0/1", "CrashLoopBackOff", "3");
        let done = json!({"spec": {"containers": [{}]}, "status": {"phase": "Succeeded", "containerStatuses": [
            {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}, "restartCount": 0}]}});
        is(&done, "0/1", "Completed", "0");
        let killed = json!({"spec": {"containers": [{}]}, "status": {"phase": "Failed", "containerStatuses": [
            {"state": {"terminated": {"signal": 9, "exitCode": 137}}, "restartCount": 0}]}});
        is(&killed, "0/1", "Signal:9", "0");
        let mut leaving = crash;
        leaving["metadata"] = json!({"deletionTimestamp": "2026-01-02T03:04:05Z"});
        is(&leaving, "0/1", "Terminating", "3");
    }

    #[test]
    fn init_containers() {
        let mut pod = json!({
            "spec": {"initContainers": [{"name": "a"}, {"name": "b"}], "containers": [{}]},
            "status": {"phase": "Pending", "initContainerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": 0}}},
                {"name": "b", "state": {"running": {}}},
            ]},
        });
        is(&pod, "0/1", "Init:1/2", "0");
        pod["status"]["initContainerStatuses"][1]["state"] = json!({"waiting": {"reason": "ImagePullBackOff"}});
        is(&pod, "0/1", "Init:ImagePullBackOff", "0");
        pod["status"]["initContainerStatuses"][1]["state"] = json!({"terminated": {"exitCode": 2}});
        is(&pod, "0/1", "Init:ExitCode:2", "0");
        let sidecar = json!({
            "spec": {"initContainers": [{"name": "a", "restartPolicy": "Always"}], "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Initialized", "status": "True"}],
                "initContainerStatuses": [{"name": "a", "started": true, "ready": true, "state": {"running": {}}}],
                "containerStatuses": [{"ready": true, "state": {"running": {}}}]},
        });
        is(&sidecar, "2/2", "Running", "0");
    }

    #[test]
    fn gates() {
        let gated = json!({"spec": {"containers": [{}], "readinessGates": [{"conditionType": "x"}]}, "status": {
            "phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}});
        is(&gated, "0/1", "SchedulingGated", "0");
        assert_eq!(readiness_gates(&gated), "0/1");
    }
}
