//! The decision: what must be done to bring one pod from what is observed to what is wanted.
//!
//! [`actions`] is a pure function of (pod, record, memory, policy, now). Only a pod's worker carries its result
//! out. Invariants, checked by property tests in `model.rs`: no second live instance of a container is ever
//! asked for, nothing starts after deletion began, init containers keep their order, a main container starts
//! only after the last init container has succeeded (or started, if it is a sidecar), restart counts grow.
//! Upstream counterpart: `computePodActions` in `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.

pub mod backoff;
mod init;
#[cfg(test)]
mod model;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod::{self, RestartPolicy, Role};
use crate::runtime::identity::container_hash;
use crate::runtime::{ContainerRecord, ContainerState, PodRecord, SandboxState};
use backoff::{Backoff, Limits};

/// What the worker remembers about a pod besides the runtime's record.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Restart delays by container name.
    pub backoff: BTreeMap<String, Backoff>,
    /// Probe verdicts by container identifier.
    pub probes: BTreeMap<String, Verdict>,
}

/// What the probes say about one container instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The startup probe passed, or there is none and the container has started.
    pub started: Option<bool>,
    /// The liveness probe failed for good.
    pub liveness_failed: bool,
    /// The readiness probe's answer; `None` before the first one.
    pub ready: Option<bool>,
}

/// Node-wide settings that decisions depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// Restart delays.
    pub backoff: Limits,
}

/// Why a container must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Name or image changed.
    DefinitionChanged,
    /// The runtime lost track of it.
    Unknown,
}

/// One container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Runtime identifier.
    pub id: String,
    /// Container name.
    pub name: String,
    /// Why.
    pub reason: KillReason,
    /// The event's text.
    pub message: String,
}

/// One container to create and start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Container name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The new instance's restart count.
    pub restart_count: u32,
    /// The delay to remember once it is started, if this is a restart.
    pub backoff: Option<Backoff>,
}

/// A container that waits for its next restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingOff {
    /// Container name.
    pub name: String,
    /// The delay in force.
    pub delay: std::time::Duration,
    /// When it may start, nanoseconds since the epoch.
    pub until: i64,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Stop every container and the sandboxes.
    pub kill_pod: bool,
    /// Create a sandbox with this attempt number.
    pub create_sandbox: Option<u32>,
    /// Containers to stop.
    pub kill: Vec<Kill>,
    /// Containers to start, in this order.
    pub start: Vec<Start>,
    /// Containers that wait for a restart.
    pub backing_off: Vec<BackingOff>,
}

impl Actions {
    /// Whether nothing is to be done now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.kill_pod && self.create_sandbox.is_none() && self.kill.is_empty() && self.start.is_empty()
    }

    /// The earliest time at which the answer changes by itself.
    #[must_use]
    pub fn wake_at(&self) -> Option<i64> {
        self.backing_off.iter().map(|b| b.until).min()
    }
}

/// The inputs of a decision, passed together.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The wanted pod.
    pub pod: &'a Pod,
    /// What the runtime holds.
    pub record: &'a PodRecord,
    /// What the worker remembers.
    pub memory: &'a Memory,
    /// Settings.
    pub policy: Policy,
    /// Now, nanoseconds since the epoch.
    pub now: i64,
}

/// Decides what to do for a pod that shall run.
#[must_use]
pub fn actions(view: View<'_>) -> Actions {
    let mut out = Actions::default();
    if pod::is_deleted(view.pod) {
        out.kill_pod = view.record.any_live();
        return out;
    }
    match sandbox_change(view) {
        SandboxChange::Keep => {}
        SandboxChange::Replace { attempt } => {
            replace_sandbox(view, attempt, &mut out);
            return out;
        }
    }
    start_ephemeral(view, &mut out);
    if !init::plan(view, &mut out) || out.kill_pod {
        if out.kill_pod {
            out.start.clear();
            out.backing_off.clear();
        }
        return out;
    }
    let kept = plan_main(view, &mut out);
    let main_pending =
        out.start.iter().any(|s| s.role == Role::Main) || out.backing_off.iter().any(|b| is_main(view.pod, &b.name));
    if kept == 0 && !main_pending {
        out.kill_pod = view.record.any_live();
        // Sidecars must not keep a finished pod alive.
        out.start.clear();
        out.backing_off.clear();
    }
    out
}

fn is_main(pod: &Pod, name: &str) -> bool {
    pod::main_containers(pod).iter().any(|c| c.name == name)
}

enum SandboxChange {
    Keep,
    Replace { attempt: u32 },
}

fn sandbox_change(view: View<'_>) -> SandboxChange {
    let Some(newest) = view.record.sandboxes.first() else {
        return SandboxChange::Replace { attempt: 0 };
    };
    let next = view.record.sandboxes.iter().map(|s| s.attempt).max().unwrap_or(0).saturating_add(1);
    let ready = view.record.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    let host = pod::host_network(view.pod);
    if ready != 1
        || newest.state != SandboxState::Ready
        || newest.host_network != host
        || (!host && newest.ips.is_empty())
    {
        return SandboxChange::Replace { attempt: next };
    }
    SandboxChange::Keep
}

/// A lost sandbox takes everything with it: the pod begins again at its first init container.
fn replace_sandbox(view: View<'_>, attempt: u32, out: &mut Actions) {
    out.kill_pod = view.record.any_live();
    let policy = RestartPolicy::of(view.pod);
    let may_restart = policy != RestartPolicy::Never
        || pod::main_containers(view.pod).iter().any(|c| c.restart_policy.as_deref().is_some_and(|p| p != "Never"));
    if !may_restart && attempt != 0 && !view.record.containers.is_empty() {
        return;
    }
    let startable: Vec<&Container> = pod::main_containers(view.pod)
        .iter()
        .filter(|c| {
            !(pod::container_policy(view.pod, Role::Main, c) == RestartPolicy::OnFailure
                && view.record.latest(&c.name).is_some_and(succeeded))
        })
        .collect();
    if startable.is_empty() && init::all_done(view) {
        return;
    }
    out.create_sandbox = Some(attempt);
    let inits = pod::init_containers(view.pod);
    if let Some(first) = inits.first() {
        let role = if pod::is_sidecar(first) { Role::Sidecar } else { Role::Init };
        start(view, first, role, out);
        return;
    }
    for container in startable {
        start(view, container, Role::Main, out);
    }
}

fn start_ephemeral(view: View<'_>, out: &mut Actions) {
    for e in pod::ephemeral_containers(view.pod) {
        if view.record.latest(&e.name).is_none() {
            out.start.push(Start { name: e.name.clone(), role: Role::Ephemeral, restart_count: 0, backoff: None });
        }
    }
}

/// Plans the main containers; returns how many keep running.
fn plan_main(view: View<'_>, out: &mut Actions) -> usize {
    let mut kept = 0;
    for container in pod::main_containers(view.pod) {
        let latest = view.record.latest(&container.name);
        match latest {
            Some(record) if record.state == ContainerState::Running => {
                if let Some(kill) = must_kill(view, Role::Main, container, record) {
                    let restart = kill.reason == KillReason::DefinitionChanged
                        || pod::container_policy(view.pod, Role::Main, container) != RestartPolicy::Never;
                    out.kill.push(kill);
                    if restart {
                        start(view, container, Role::Main, out);
                    }
                } else {
                    kept += 1;
                }
            }
            _ => {
                if should_restart(view, Role::Main, container, latest) {
                    kill_if_unknown(latest, out);
                    start(view, container, Role::Main, out);
                }
            }
        }
    }
    kept
}

/// Whether a container that does not run has to be started (again).
fn should_restart(view: View<'_>, role: Role, container: &Container, latest: Option<&ContainerRecord>) -> bool {
    let Some(record) = latest else { return true };
    match record.state {
        ContainerState::Running => false,
        // Create and start are one step; whatever is left in between has failed.
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited => restart_after_exit(view.pod, role, container, record.exit_code),
    }
}

/// Applies `restartPolicyRules` (the first matching one decides), then the container's or pod's policy.
pub(crate) fn restart_after_exit(pod: &Pod, role: Role, container: &Container, exit_code: i32) -> bool {
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = rule.exit_codes.as_ref() else { continue };
        let listed = codes.values.as_ref().is_some_and(|v| v.contains(&exit_code));
        let matches = if codes.operator == "NotIn" { !listed } else { listed };
        if matches && rule.action == "Restart" {
            return true;
        }
    }
    match pod::container_policy(pod, role, container) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Whether a container's name or image is another than when the instance was made.
///
/// Upstream compares hashes alone, and kubelets before 1.31 hashed the whole definition: with the image as the pod named it, their containers
/// are known too.
pub(crate) fn definition_changed(container: &Container, record: &ContainerRecord) -> bool {
    let same_image = !record.user_image.is_empty() && Some(&record.user_image) == container.image.as_ref();
    !same_image && record.hash.is_some_and(|hash| hash != container_hash(container))
}

/// Whether a running container has to be stopped, and why.
fn must_kill(view: View<'_>, role: Role, container: &Container, record: &ContainerRecord) -> Option<Kill> {
    let name = &container.name;
    let (reason, text) = if definition_changed(container, record) {
        (KillReason::DefinitionChanged, format!("Container {name} definition changed"))
    } else {
        match view.memory.probes.get(&record.id) {
            Some(v) if v.liveness_failed => (KillReason::Liveness, format!("Container {name} failed liveness probe")),
            Some(v) if v.started == Some(false) && container.startup_probe.is_some() => {
                (KillReason::Startup, format!("Container {name} failed startup probe"))
            }
            _ => return None,
        }
    };
    let restarts = reason == KillReason::DefinitionChanged
        || pod::container_policy(view.pod, role, container) != RestartPolicy::Never;
    let message = if restarts { format!("{text}, will be restarted") } else { text };
    Some(Kill { id: record.id.clone(), name: name.clone(), reason, message })
}

fn kill_if_unknown(latest: Option<&ContainerRecord>, out: &mut Actions) {
    if let Some(record) = latest.filter(|r| r.state == ContainerState::Unknown) {
        out.kill.push(Kill {
            id: record.id.clone(),
            name: record.name.clone(),
            reason: KillReason::Unknown,
            message: format!("Container is in \"unknown\" state, try killing it before restart ({})", record.name),
        });
    }
}

/// An older instance that still runs, which should not be, may not run beside the new one.
fn kill_strays(view: View<'_>, name: &str, out: &mut Actions) {
    let live = |c: &&ContainerRecord| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
    for record in view.record.containers.iter().filter(|c| c.name == name).filter(live) {
        if !out.kill_pod && !out.kill.iter().any(|kill| kill.id == record.id) {
            out.kill.push(Kill {
                id: record.id.clone(),
                name: name.to_owned(),
                reason: KillReason::Unknown,
                message: format!("An older instance of container {name} still runs, it is stopped before the restart"),
            });
        }
    }
}

/// Plans a start, or notes that the container has to wait.
fn start(view: View<'_>, container: &Container, role: Role, out: &mut Actions) {
    let name = &container.name;
    let state = view.memory.backoff.get(name).copied();
    let ended = view
        .record
        .containers
        .iter()
        .find(|c| &c.name == name && c.state == ContainerState::Exited && c.finished_at > 0)
        .map(|c| c.finished_at);
    let mut following = None;
    if let Some(ended) = ended {
        if let Some(until) = backoff::ready_at(state, ended, view.now) {
            let delay = state.map(|s| s.delay).unwrap_or_default();
            out.backing_off.push(BackingOff { name: name.clone(), delay, until });
            return;
        }
        following = Some(backoff::next(state, ended, view.now, view.policy.backoff));
    }
    kill_strays(view, name, out);
    // One that was created and never started, because the agent was killed in between, is no restart.
    let next = |c: &ContainerRecord| c.restart_count.saturating_add(u32::from(c.state != ContainerState::Created));
    let restart_count = view.record.containers.iter().filter(|c| &c.name == name).map(next).max().unwrap_or(0);
    out.start.push(Start { name: name.clone(), role, restart_count, backoff: following });
}

fn succeeded(record: &ContainerRecord) -> bool {
    record.state == ContainerState::Exited && record.exit_code == 0
}

#[cfg(test)]
mod tests;
