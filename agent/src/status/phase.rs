//! The phase of a pod, from the states of its containers.
//!
//! Upstream counterpart: `getPhase` in `pkg/kubelet/kubelet_pods.go`.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

use crate::pod::{self, Role};
use crate::sync;

/// The phases a pod can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have started yet.
    Pending,
    /// At least one container runs or will run again.
    Running,
    /// All containers ended well and none will run again.
    Succeeded,
    /// All containers ended, at least one badly, and none will run again.
    Failed,
}

impl Phase {
    /// The name in `status.phase`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether it never changes again.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// Reads a phase's name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Pending" => Some(Self::Pending),
            "Running" => Some(Self::Running),
            "Succeeded" => Some(Self::Succeeded),
            "Failed" => Some(Self::Failed),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Tally {
    pending_init: usize,
    failed_init: usize,
    waiting: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
    restartable_stopped: usize,
    unknown: usize,
}

fn find<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|s| s.name == name)
}

fn terminated_code(state: Option<&k8s_openapi::api::core::v1::ContainerState>) -> Option<i32> {
    state?.terminated.as_ref().map(|t| t.exit_code)
}

/// The phase of `pod` with these container statuses; `main_started` says whether main containers ever ran.
#[must_use]
pub fn phase(pod: &Pod, init: &[ContainerStatus], main: &[ContainerStatus], terminal: bool) -> Phase {
    let mut t = Tally::default();
    for container in pod::init_containers(pod) {
        tally_init(pod, container, find(init, &container.name), &mut t);
    }
    for container in pod::main_containers(pod) {
        tally_main(pod, container, find(main, &container.name), &mut t);
    }
    if t.failed_init > 0 && t.running == 0 {
        return Phase::Failed;
    }
    if (t.pending_init > 0 || t.waiting > 0) && !terminal {
        return Phase::Pending;
    }
    if t.running > 0 && t.unknown == 0 {
        return Phase::Running;
    }
    if t.running == 0 && t.unknown == 0 && t.waiting == 0 && t.pending_init == 0 {
        if terminal {
            return if t.failed > 0 { Phase::Failed } else { Phase::Succeeded };
        }
        if t.restartable_stopped > 0 {
            return Phase::Running;
        }
        return if t.failed > 0 { Phase::Failed } else { Phase::Succeeded };
    }
    if terminal {
        return Phase::Failed;
    }
    Phase::Pending
}

fn tally_init(pod: &Pod, container: &Container, status: Option<&ContainerStatus>, t: &mut Tally) {
    let state = status.and_then(|s| s.state.as_ref());
    let last = status.and_then(|s| terminated_code(s.last_state.as_ref()));
    if pod::is_sidecar(container) {
        let started = status.and_then(|s| s.started) == Some(true);
        let running = state.is_some_and(|s| s.running.is_some());
        let ended = terminated_code(state).is_some() || last.is_some();
        let up = running && started;
        if !up && !ended {
            t.pending_init += 1;
        }
        return;
    }
    let never = |code: i32| !sync::restart_after_exit(pod, Role::Init, container, code);
    match (terminated_code(state), state.is_some_and(|s| s.running.is_some())) {
        (Some(0), _) => {}
        (Some(code), _) if never(code) => t.failed_init += 1,
        (None, false) if last == Some(0) => {}
        (None, false) if last.is_some_and(never) => t.failed_init += 1,
        _ => t.pending_init += 1,
    }
}

fn tally_main(pod: &Pod, container: &Container, status: Option<&ContainerStatus>, t: &mut Tally) {
    let Some(status) = status else {
        t.unknown += 1;
        return;
    };
    let state = status.state.as_ref();
    let mut ended = |code: i32| {
        if code == 0 {
            t.succeeded += 1;
        } else {
            t.failed += 1;
        }
        if sync::restart_after_exit(pod, Role::Main, container, code) {
            t.restartable_stopped += 1;
        }
    };
    if state.is_some_and(|s| s.running.is_some()) {
        t.running += 1;
    } else if let Some(code) = terminated_code(state) {
        ended(code);
    } else if state.is_some_and(|s| s.waiting.is_some()) {
        // Waiting for a restart is not waiting for the first start.
        match terminated_code(status.last_state.as_ref()) {
            Some(code) => ended(code),
            None => t.waiting += 1,
        }
    } else {
        t.unknown += 1;
    }
}
