//! Ending containers and pods: hooks, signals, order, clean-up.
//!
//! Nothing here gives up: a step that fails is tried again with growing pauses until it succeeds or the agent
//! stops. Upstream counterpart: `killContainer`, `SyncTerminatingPod`, `SyncTerminatedPod`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{Desired, Outcome, Worker};
use crate::flight::line::Step;
use crate::hooks;
use crate::pod::{self, Role};
use crate::runtime::{ContainerRecord, ContainerState, PodRecord, identity};
use crate::sync::{Kill, KillReason};

/// Least time between the signal and the kill (upstream `minimumGracePeriodInSeconds`).
const MIN_GRACE: i64 = 2;
/// First pause after a failed step.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest pause after failed steps.
const RETRY_MAX: Duration = Duration::from_secs(10);

pub(super) fn seconds(s: i64) -> Duration {
    Duration::from_secs(u64::try_from(s).unwrap_or(0))
}

/// What is left of a time. A runtime takes whole seconds, so it is rounded down; one second is always left of a time that is given at all (upstream's
/// least grace is longer).
fn left(time: Duration, spent: Duration) -> Duration {
    if time.is_zero() || spent.is_zero() {
        return time;
    }
    seconds(1).max(Duration::from_secs(time.saturating_sub(spent).as_secs()))
}

impl Worker {
    /// Ends the pod: has Services let go of it, stops it, waits until nothing lives, cleans up.
    pub(super) async fn end(&mut self, desired: &mut watch::Receiver<Desired>, stop: &CancellationToken) -> Outcome {
        self.admission = None;
        self.node.ledger.ending(self.uid());
        let mut pause = RETRY_MIN;
        // A container that was just being made has to be known before everything can be stopped.
        if self.calls.idle().await {
            let _ = self.node.pleg.refresh(self.uid()).await;
        }
        // What the node itself ends is told first: slices follow the status.
        self.ending(desired);
        let spent = tokio::select! {
            () = stop.cancelled() => return Outcome::AgentStops,
            spent = self.let_go(desired) => spent,
        };
        loop {
            let mut record = self.ending(desired);
            let grace = self.grace();
            let stopped = tokio::select! {
                () = stop.cancelled() => return Outcome::AgentStops,
                // A shorter grace starts the stopping over; containers that got a signal just get it again.
                () = shorter(desired, grace) => continue,
                done = self.stop_everything(&record, seconds(grace), spent.of(grace)) => done,
            };
            if let Ok(fresh) = self.node.pleg.refresh(self.uid()).await {
                record = fresh;
            }
            if stopped && !record.any_live() {
                break;
            }
            debug!(pod = %pod::display(&self.pod), "not everything has stopped yet, trying again");
            tokio::select! {
                () = stop.cancelled() => return Outcome::AgentStops,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
        self.node.ledger.release(self.uid());
        self.probes.stop();
        self.waiting.clear();
        let record = self.record();
        self.publish(&record, true);
        self.log_end("pod has ended");
        self.clean_up(desired, stop).await
    }

    /// Takes the newest wish to end and tells the API; the record that it was told from.
    fn ending(&mut self, desired: &mut watch::Receiver<Desired>) -> Arc<PodRecord> {
        let want = desired.borrow_and_update().clone();
        self.pod = want.pod.clone();
        self.end = want.end.clone().or(self.end.take());
        let record = self.record();
        self.update_probes(&record);
        self.publish(&record, false);
        record
    }

    /// The grace of this end, in seconds.
    pub(super) fn grace(&self) -> i64 {
        Self::grace_of(&self.pod)
    }

    /// The grace that a pod ends with, in seconds.
    pub(super) fn grace_of(pod: &Pod) -> i64 {
        pod.metadata.deletion_grace_period_seconds.unwrap_or_else(|| pod::spec_grace(pod))
    }

    /// Stops main containers, then sidecars in reverse order, then the sandboxes; true when all calls succeeded. `spent` of the grace is over already.
    pub(super) async fn stop_everything(&self, record: &PodRecord, grace: Duration, spent: Duration) -> bool {
        // Upstream never shortens below two seconds, except when the API asked for an end at once.
        let at_once = self.pod.metadata.deletion_grace_period_seconds == Some(0);
        let least = if at_once { Duration::ZERO } else { seconds(MIN_GRACE) };
        // The least stays whole where the grace has room for it: from the deletion to the kill it is never longer than without a wait.
        let least = if grace >= least + spent { least } else { left(least, spent) };
        let grace = left(grace, spent);
        let deadline = Instant::now() + grace;
        let live = || {
            record.containers.iter().filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
        };
        let is_sidecar =
            |c: &ContainerRecord| matches!(pod::find_container(&self.pod, &c.name), Some((Role::Sidecar, _)));
        let mains = live().filter(|c| !is_sidecar(c)).map(|c| self.stop_container(c, None, grace, least));
        let mut clean = futures::future::join_all(mains).await.into_iter().all(|ok| ok);
        for sidecar in pod::init_containers(&self.pod).iter().rev().filter(|c| pod::is_sidecar(c)) {
            for record in live().filter(|c| c.name == sidecar.name) {
                let left = deadline.saturating_duration_since(Instant::now());
                clean &= self.stop_container(record, None, left, least).await;
            }
        }
        for sandbox in &record.sandboxes {
            let doing = self.node.flight.begin(&self.pod, None, Step::StopSandbox);
            let Err(error) = self.node.runtime.stop_sandbox(&sandbox.id).await else {
                doing.done("");
                continue;
            };
            doing.failed(error.to_string());
            if !error.is_not_found() {
                let text = format!("error killing pod: failed to \"KillPodSandbox\" for {:?}: {error}", self.uid());
                self.node.recorder.pod(&self.pod, "Warning", "FailedKillPod", &text);
                warn!(pod = %pod::display(&self.pod), "cannot stop the sandbox: {error}");
                clean = false;
            }
        }
        clean
    }

    /// Stops one container that a decision names.
    pub(super) async fn kill_one(&self, kill: &Kill, record: &PodRecord) -> bool {
        let Some(target) = record.containers.iter().find(|c| c.id == kill.id) else { return true };
        let mut grace = pod::spec_grace(&self.pod);
        if let Some((_, container)) = pod::find_container(&self.pod, &kill.name) {
            let probe = match kill.reason {
                KillReason::Liveness => container.liveness_probe.as_ref(),
                KillReason::Startup => container.startup_probe.as_ref(),
                KillReason::DefinitionChanged | KillReason::Unknown => None,
            };
            grace = probe.and_then(|p| p.termination_grace_period_seconds).unwrap_or(grace);
        }
        self.stop_container(target, Some(&kill.message), seconds(grace), seconds(MIN_GRACE)).await
    }

    /// preStop, then the signal, then the kill; true when the container does not run any more.
    async fn stop_container(
        &self,
        record: &ContainerRecord,
        message: Option<&str>,
        grace: Duration,
        least: Duration,
    ) -> bool {
        let node = &self.node;
        let found = pod::find_container(&self.pod, &record.name).map(|(_, c)| c.into_owned());
        let container = found.unwrap_or_else(|| Container { name: record.name.clone(), ..Container::default() });
        let default = format!("Stopping container {}", record.name);
        node.recorder.container(&self.pod, &container, "Normal", "Killing", message.unwrap_or(&default));
        let began = Instant::now();
        let hook = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
        if let Some(handler) = hook.filter(|_| !grace.is_zero() && record.state == ContainerState::Running) {
            let doing = node.flight.begin(&self.pod, Some(&record.name), Step::PreStop);
            let ips = self.record().ready_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
            if let Err(error) = hooks::run(node.runtime.as_ref(), &record.id, handler, &container, &ips, grace).await {
                let text = format!("PreStopHook failed: {error}");
                node.recorder.container(&self.pod, &container, "Warning", "FailedPreStopHook", &text);
                doing.failed(error.to_string());
            } else {
                doing.done("");
            }
        }
        let left = grace.saturating_sub(began.elapsed());
        let doing = node.flight.begin(&self.pod, Some(&record.name), Step::Stop);
        match node.runtime.stop_container(&record.id, left.max(least)).await {
            Ok(()) => {
                doing.done("");
                true
            }
            Err(error) if error.is_not_found() => {
                doing.done("it was gone already");
                true
            }
            Err(error) => {
                doing.failed(error.to_string());
                warn!(pod = %pod::display(&self.pod), container = record.name, "cannot stop: {error}");
                false
            }
        }
    }

    /// Takes down what the pod used; keeps its dead containers until no source names it, then removes them too.
    async fn clean_up(&mut self, desired: &mut watch::Receiver<Desired>, stop: &CancellationToken) -> Outcome {
        let doing = self.node.flight.begin(&self.pod, None, Step::CleanUp);
        let mut pause = RETRY_MIN;
        let mut reported = false;
        while let Err(message) = self.release().await {
            if !std::mem::replace(&mut reported, true) {
                warn!(pod = %pod::display(&self.pod), "cannot clean up yet: {message}");
            }
            tokio::select! {
                () = stop.cancelled() => return Outcome::AgentStops,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
        doing.done("");
        loop {
            let want = desired.borrow_and_update().clone();
            self.pod = want.pod.clone();
            if want.removed || pod::is_deleted(&self.pod) {
                break;
            }
            tokio::select! {
                () = stop.cancelled() => return Outcome::AgentStops,
                changed = desired.changed() => if changed.is_err() { return Outcome::AgentStops },
            }
        }
        let mut pause = RETRY_MIN;
        while !self.remove_records().await {
            tokio::select! {
                () = stop.cancelled() => return Outcome::AgentStops,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
        let record = self.record();
        self.publish(&record, true);
        self.node.images.forget(self.uid());
        self.node.statuses.finish(self.uid());
        self.node.flight.gone(&self.pod);
        self.log_end("pod is gone");
        Outcome::Gone
    }

    /// Volumes and cgroup.
    async fn release(&self) -> Result<(), String> {
        self.node.materials.teardown(self.uid(), false).await.map_err(|e| e.message)?;
        let (cgroups, uid) = (self.node.cgroups.clone(), self.uid().to_owned());
        let removed = tokio::task::spawn_blocking(move || cgroups.remove(&uid)).await;
        match removed {
            Ok(Err(error)) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Containers, sandboxes and logs; false when something is left.
    async fn remove_records(&self) -> bool {
        let Ok(record) = self.node.pleg.refresh(self.uid()).await else { return false };
        if !remove_pod(&self.node, &record, true).await {
            return false;
        }
        let folder = self.node.materials.teardown(self.uid(), true).await;
        folder.inspect_err(|e| warn!(pod = %pod::display(&self.pod), "cannot remove the pod's folder: {e}")).is_ok()
    }
}

/// Removes everything the runtime holds of a pod, and its logs; false when something is left.
pub async fn remove_pod(node: &Arc<super::NodeContext>, record: &PodRecord, logs: bool) -> bool {
    let mut clean = true;
    for container in &record.containers {
        clean &= remove_container(node, record, container).await;
    }
    for sandbox in &record.sandboxes {
        match node.runtime.remove_sandbox(&sandbox.id).await {
            Err(error) if !error.is_not_found() => {
                warn!(sandbox = sandbox.id, "cannot remove a sandbox: {error}");
                clean = false;
            }
            _ => {}
        }
    }
    if clean && logs && !record.name.is_empty() {
        let dir = identity::pod_log_dir(&node.settings.logs_root, &record.namespace, &record.name, &record.uid);
        let _ = std::fs::remove_dir_all(dir);
    }
    match node.pleg.refresh(&record.uid).await {
        Ok(left) => clean && left.is_empty(),
        Err(_) => false,
    }
}

/// Removes one dead container with its log and the link to it.
pub async fn remove_container(node: &Arc<super::NodeContext>, pod: &PodRecord, container: &ContainerRecord) -> bool {
    if let Err(error) = node.runtime.remove_container(&container.id).await
        && !error.is_not_found()
    {
        warn!(container = container.id, "cannot remove a container: {error}");
        return false;
    }
    let link =
        identity::log_symlink(&node.settings.links_root, &pod.name, &pod.namespace, &container.name, &container.id);
    let _ = std::fs::remove_file(link);
    if !container.log_path.is_empty() {
        let _ = std::fs::remove_file(&container.log_path);
    }
    true
}

/// Resolves when a shorter grace is wanted.
async fn shorter(desired: &watch::Receiver<Desired>, grace: i64) {
    let mut desired = desired.clone();
    let wanted =
        desired.wait_for(|d| d.pod.metadata.deletion_grace_period_seconds.is_some_and(|g| g < grace)).await.is_ok();
    if !wanted {
        std::future::pending::<()>().await;
    }
}
