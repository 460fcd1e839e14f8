//! A pod's status as a pure function of its record in the runtime and of what its worker knows.
//!
//! Upstream counterpart: `generateAPIPodStatus` and `convertToAPIContainerStatuses`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::conditions::{self, Inputs};
use super::phase::{Phase, phase};
use crate::pod::{self, Role};
use crate::runtime::{ContainerRecord, ContainerState, PodRecord, SandboxState};
use crate::sync::{Memory, Verdict};

/// Why a container waits, as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// `CrashLoopBackOff`, `ErrImagePull`, …
    pub reason: String,
    /// Details.
    pub message: String,
}

/// Upstream's words in the condition of a pod that made room.
const PREEMPTED: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// An end that the node decided, with the status it leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEnd {
    /// `Evicted`, `Terminated`, …
    pub reason: String,
    /// Details.
    pub message: String,
}

/// What the status follows from besides the pod.
pub struct Facts<'a> {
    /// The runtime's record.
    pub record: &'a PodRecord,
    /// Probe verdicts and delays.
    pub memory: &'a Memory,
    /// Why containers wait, by name.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// The status as last known (sent or from the API).
    pub previous: &'a PodStatus,
    /// Addresses of the node.
    pub host_ips: &'a [String],
    /// The pod will not run again: everything has been stopped for good.
    pub terminal: bool,
    /// The node ended it.
    pub node_end: Option<&'a NodeEnd>,
    /// Now.
    pub now: Timestamp,
}

/// Computes the status.
#[must_use]
pub fn pod_status(pod: &Pod, facts: &Facts<'_>) -> PodStatus {
    let has_init = !pod::init_containers(pod).is_empty();
    let default_reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    let mut init: Vec<_> = pod::init_containers(pod)
        .iter()
        .map(|c| {
            let role = if pod::is_sidecar(c) { Role::Sidecar } else { Role::Init };
            container_status(pod, facts, c, role, default_reason)
        })
        .collect();
    let mut main: Vec<_> =
        pod::main_containers(pod).iter().map(|c| container_status(pod, facts, c, Role::Main, default_reason)).collect();
    let ephemeral: Vec<_> = pod::ephemeral_containers(pod)
        .iter()
        .map(|e| container_status(pod, facts, &pod::ephemeral_as_container(e), Role::Ephemeral, "ContainerCreating"))
        .collect();
    if facts.terminal {
        mark_lost(pod, &mut init, &mut main);
    }
    let now = Time(facts.now);
    let phase = final_phase(pod, facts, &init, &main);
    let sandbox_ready = facts.record.ready_sandbox().is_some_and(|s| pod::host_network(pod) || !s.ips.is_empty());
    let previous_conditions = facts.previous.conditions.as_deref().unwrap_or_default();
    let conditions = conditions::conditions(&Inputs {
        pod,
        phase,
        init: &init,
        main: &main,
        sandbox_ready,
        node_ends_it: facts.node_end.is_some(),
        disrupted: facts.node_end.filter(|end| end.reason == "Preempting").map(|_| PREEMPTED),
        previous: previous_conditions,
        now: &now,
    });
    let ips = pod_ips(pod, facts);
    PodStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions),
        reason: facts
            .node_end
            .map(|e| e.reason.clone())
            .or_else(|| keep(&facts.previous.reason, facts.previous, phase)),
        message: facts
            .node_end
            .map(|e| e.message.clone())
            .or_else(|| keep(&facts.previous.message, facts.previous, phase)),
        host_ip: facts.host_ips.first().cloned(),
        host_ips: some(facts.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: some(ips.into_iter().map(|ip| PodIP { ip }).collect()),
        start_time: Some(facts.previous.start_time.clone().unwrap_or(now)),
        qos_class: Some(facts.previous.qos_class.clone().unwrap_or_else(|| pod::Qos::of(pod).as_str().to_owned())),
        init_container_statuses: some(init),
        container_statuses: some(main),
        ephemeral_container_statuses: some(ephemeral),
        observed_generation: pod.metadata.generation,
        nominated_node_name: facts.previous.nominated_node_name.clone(),
        resource_claim_statuses: facts.previous.resource_claim_statuses.clone(),
        ..PodStatus::default()
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Reason and message of a terminal status stay.
fn keep(field: &Option<String>, previous: &PodStatus, phase: Phase) -> Option<String> {
    let was_terminal = previous.phase.as_deref().and_then(Phase::parse).is_some_and(Phase::is_terminal);
    field.clone().filter(|_| phase.is_terminal() && was_terminal)
}

/// The phase; a terminal one is never left, and an end by the node is a failure.
fn final_phase(pod: &Pod, facts: &Facts<'_>, init: &[ContainerStatus], main: &[ContainerStatus]) -> Phase {
    if let Some(old) = facts.previous.phase.as_deref().and_then(Phase::parse).filter(|p| p.is_terminal()) {
        return old;
    }
    if facts.node_end.is_some() {
        return Phase::Failed;
    }
    phase(pod, init, main, facts.terminal)
}

fn pod_ips(pod: &Pod, facts: &Facts<'_>) -> Vec<String> {
    if pod::host_network(pod) {
        return if facts.record.sandboxes.is_empty() { Vec::new() } else { facts.host_ips.to_vec() };
    }
    let newest = facts.record.sandboxes.iter().find(|s| s.state == SandboxState::Ready && !s.ips.is_empty());
    if let Some(sandbox) = newest {
        return sandbox.ips.clone();
    }
    // A pod that has ended keeps showing its last address.
    facts.previous.pod_ips.iter().flatten().map(|p| p.ip.clone()).collect()
}

fn time(nanos: i64) -> Option<Time> {
    (nanos > 0).then(|| Time(Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)))
}

fn container_id(id: &str) -> String {
    format!("containerd://{id}")
}

fn running_state(record: &ContainerRecord) -> ApiState {
    ApiState { running: Some(ContainerStateRunning { started_at: time(record.started_at) }), ..ApiState::default() }
}

fn terminated_state(record: &ContainerRecord) -> ApiState {
    let reason = match (record.reason.as_str(), record.exit_code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (given, _) => given,
    };
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code: record.exit_code,
            reason: Some(reason.to_owned()),
            message: Some(record.message.clone()).filter(|m| !m.is_empty()),
            started_at: time(record.started_at),
            finished_at: time(record.finished_at),
            container_id: Some(container_id(&record.id)),
            signal: None,
        }),
        ..ApiState::default()
    }
}

fn waiting_state(reason: &str, message: Option<&str>) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message: message.map(str::to_owned) }),
        ..ApiState::default()
    }
}

/// A container the runtime has no record of although the API knew one: its end is unknown.
fn lost_state(previous: &ContainerStatus) -> ApiState {
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".into()),
            message: Some("The container could not be located when the pod was terminated".into()),
            container_id: previous.container_id.clone(),
            ..ContainerStateTerminated::default()
        }),
        ..ApiState::default()
    }
}

fn container_status(
    pod: &Pod,
    facts: &Facts<'_>,
    container: &Container,
    role: Role,
    default_reason: &str,
) -> ContainerStatus {
    let name = &container.name;
    let old = previous_status(facts.previous, name);
    let mut status = ContainerStatus {
        name: name.clone(),
        image: container.image.clone().unwrap_or_default(),
        resources: container.resources.clone().filter(|r| r.limits.is_some() || r.requests.is_some()),
        ..ContainerStatus::default()
    };
    match facts.record.latest(name) {
        Some(record) => from_record(facts, record, &mut status),
        None => without_record(facts, old, default_reason, &mut status),
    }
    if let Some(waiting) = facts.waiting.get(name)
        && status.state.as_ref().is_none_or(|s| s.running.is_none())
        && !facts.terminal
        && !pod::is_deleted(pod)
    {
        if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting_state(&waiting.reason, Some(waiting.message.as_str()).filter(|m| !m.is_empty())));
    }
    set_ready(facts, container, role, &mut status);
    status
}

fn previous_status<'a>(previous: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    [&previous.container_statuses, &previous.init_container_statuses, &previous.ephemeral_container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .find(|s| s.name == name)
}

fn from_record(facts: &Facts<'_>, record: &ContainerRecord, status: &mut ContainerStatus) {
    status.state = Some(match record.state {
        ContainerState::Running => running_state(record),
        ContainerState::Exited => terminated_state(record),
        ContainerState::Created | ContainerState::Unknown => waiting_state("ContainerCreating", None),
    });
    status.restart_count = i32::try_from(record.restart_count).unwrap_or(i32::MAX);
    status.container_id = Some(container_id(&record.id));
    status.image_id.clone_from(&record.image_ref);
    if !record.image.is_empty() {
        status.image.clone_from(&record.image);
    }
    status.last_state = facts
        .record
        .previous(&record.name)
        .filter(|p| p.state == ContainerState::Exited)
        .map(terminated_state)
        .or_else(|| {
            // The dead instance has been collected; what the API was told about it still holds.
            let old = previous_status(facts.previous, &record.name)?;
            (record.restart_count > 0 && old.restart_count == status.restart_count).then(|| old.last_state.clone())?
        });
}

/// Of a pod that will not run again, containers whose end nobody knows count as failed. Those whose turn had not come are no such: main ones before
/// initialisation was over, init containers after the last one that was tried (upstream `TerminatePod`).
fn mark_lost(pod: &Pod, init: &mut [ContainerStatus], main: &mut [ContainerStatus]) {
    let ended = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.terminated.is_some());
    let waiting = |status: &ContainerStatus| status.state.as_ref().is_none_or(|state| state.waiting.is_some());
    let initialized = match (pod::init_containers(pod).last(), init.last()) {
        (Some(last), Some(status)) if pod::is_sidecar(last) => status.started == Some(true),
        (Some(_), Some(status)) => {
            let end = status.state.as_ref().and_then(|state| state.terminated.as_ref());
            end.is_some_and(|end| end.exit_code == 0)
        }
        _ => true,
    };
    let tried = init.iter().rposition(|status| !waiting(status)).map_or(1, |last| last + 1).min(init.len());
    let main = if initialized { main } else { &mut [] };
    for status in init[..tried].iter_mut().chain(main).filter(|status| !ended(status)) {
        status.state = Some(lost_state(status));
    }
}

fn without_record(
    facts: &Facts<'_>,
    old: Option<&ContainerStatus>,
    default_reason: &str,
    status: &mut ContainerStatus,
) {
    status.state = Some(waiting_state(default_reason, None));
    let Some(old) = old else { return };
    let state = old.state.as_ref();
    if state.is_some_and(|s| s.terminated.is_some()) {
        status.state.clone_from(&old.state);
        status.last_state.clone_from(&old.last_state);
    } else if state.is_some_and(|s| s.running.is_some()) {
        if facts.terminal {
            status.state = Some(lost_state(old));
        } else {
            status.last_state = Some(lost_state(old));
        }
    } else {
        status.last_state.clone_from(&old.last_state);
    }
    if old.container_id.is_some() {
        status.image.clone_from(&old.image);
    }
    status.restart_count = old.restart_count;
    status.container_id.clone_from(&old.container_id);
    status.image_id.clone_from(&old.image_id);
}

fn set_ready(facts: &Facts<'_>, container: &Container, role: Role, status: &mut ContainerStatus) {
    let state = status.state.as_ref();
    let running = state.is_some_and(|s| s.running.is_some());
    let verdict = facts
        .record
        .latest(&container.name)
        .and_then(|r| facts.memory.probes.get(&r.id))
        .copied()
        .unwrap_or(Verdict::default());
    let started = running && (container.startup_probe.is_none() || verdict.started == Some(true));
    status.started = Some(started);
    status.ready = match role {
        Role::Init => state.and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0),
        Role::Ephemeral => false,
        Role::Main | Role::Sidecar => started && (container.readiness_probe.is_none() || verdict.ready == Some(true)),
    };
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
