//! Init containers and sidecars: which one is next, and whether the main containers may start.
//!
//! Upstream counterpart: `computeInitContainerActions`.

use k8s_openapi::api::core::v1::Container;

use super::{Actions, View, kill_if_unknown, must_kill, restart_after_exit, start, succeeded};
use crate::pod::{self, Role};
use crate::runtime::{ContainerRecord, ContainerState};

/// Whether a main container has ever run in the present sandbox: then initialisation is over for good, even if
/// the init containers' records have been collected since.
fn main_has_run(view: View<'_>) -> bool {
    let sandbox = view.record.sandboxes.first().map(|s| s.id.as_str());
    pod::main_containers(view.pod).iter().any(|c| {
        view.record
            .containers
            .iter()
            .any(|r| r.name == c.name && Some(r.sandbox_id.as_str()) == sandbox && r.state != ContainerState::Created)
    })
}

/// Instances in the present sandbox only: a new sandbox begins again.
fn latest<'a>(view: View<'a>, name: &str) -> Option<&'a ContainerRecord> {
    let sandbox = view.record.sandboxes.first()?;
    view.record.containers.iter().find(|c| c.name == name && c.sandbox_id == sandbox.id)
}

/// Whether every init container has done its part (used when the sandbox is gone).
pub(super) fn all_done(view: View<'_>) -> bool {
    let mains_ran = pod::main_containers(view.pod).iter().any(|c| view.record.latest(&c.name).is_some());
    mains_ran
        || pod::init_containers(view.pod)
            .iter()
            .filter(|c| !pod::is_sidecar(c))
            .all(|c| view.record.latest(&c.name).is_some_and(succeeded))
}

/// Plans init containers; true when the main containers may run.
pub(super) fn plan(view: View<'_>, out: &mut Actions) -> bool {
    let inits = pod::init_containers(view.pod);
    if inits.is_empty() {
        return true;
    }
    if main_has_run(view) {
        for container in inits.iter().filter(|c| pod::is_sidecar(c)) {
            keep_sidecar(view, container, out);
        }
        return true;
    }
    for container in inits {
        let done = if pod::is_sidecar(container) {
            keep_sidecar(view, container, out)
        } else {
            run_once(view, container, out)
        };
        if !done {
            return false;
        }
    }
    true
}

/// An ordinary init container; true when it has succeeded.
fn run_once(view: View<'_>, container: &Container, out: &mut Actions) -> bool {
    let Some(record) = latest(view, &container.name) else {
        start(view, container, Role::Init, out);
        return false;
    };
    match record.state {
        ContainerState::Running => {
            if let Some(kill) = must_kill(view, Role::Init, container, record) {
                out.kill.push(kill);
                start(view, container, Role::Init, out);
            }
            false
        }
        ContainerState::Exited if record.exit_code == 0 => true,
        ContainerState::Exited => {
            if restart_after_exit(view.pod, Role::Init, container, record.exit_code) {
                start(view, container, Role::Init, out);
            } else {
                out.kill_pod = true;
            }
            false
        }
        ContainerState::Created | ContainerState::Unknown => {
            kill_if_unknown(Some(record), out);
            start(view, container, Role::Init, out);
            false
        }
    }
}

/// A sidecar; true when it has started, so that the next container may follow.
fn keep_sidecar(view: View<'_>, container: &Container, out: &mut Actions) -> bool {
    let Some(record) = latest(view, &container.name) else {
        start(view, container, Role::Sidecar, out);
        return false;
    };
    match record.state {
        ContainerState::Running => {
            if let Some(kill) = must_kill(view, Role::Sidecar, container, record) {
                out.kill.push(kill);
                start(view, container, Role::Sidecar, out);
                return false;
            }
            container.startup_probe.is_none()
                || view.memory.probes.get(&record.id).is_some_and(|v| v.started == Some(true))
        }
        ContainerState::Exited => {
            start(view, container, Role::Sidecar, out);
            false
        }
        ContainerState::Created | ContainerState::Unknown => {
            kill_if_unknown(Some(record), out);
            start(view, container, Role::Sidecar, out);
            false
        }
    }
}
