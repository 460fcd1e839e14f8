//! What a Deployment reports: counts, Available, Progressing, ReplicaFailure. Pure.
//!
//! Upstream counterpart: `calculateStatus` and `progress.go`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::sizes::{max_unavailable, total, wished};
use crate::meta::name_of;

/// Condition types.
pub const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Reasons of Progressing.
pub const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
/// Upstream's value for "no deadline".
const NO_DEADLINE: i32 = i32::MAX;

/// A condition that starts now.
pub fn condition(type_: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: Some(type_.to_owned()),
        status: Some(status.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// The condition of this type.
pub fn find<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.as_ref()?.iter().find(|c| c.type_.as_deref() == Some(type_))
}

fn remove(status: &mut DeploymentStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|c| c.type_.as_deref() != Some(type_));
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// Sets a condition unless it says the same already; the transition time only moves with the status.
pub fn set(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    if let Some(known) = find(status, new.type_.as_deref().unwrap_or_default()) {
        if known.status == new.status && known.reason == new.reason {
            return;
        }
        if known.status == new.status {
            new.last_transition_time.clone_from(&known.last_transition_time);
        }
    }
    remove(status, new.type_.as_deref().unwrap_or_default());
    status.conditions.get_or_insert_default().push(new);
}

/// The deadline for progress, if there is one.
pub fn deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.progress_deadline_seconds?;
    (seconds != NO_DEADLINE).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Counts and Available, with the other conditions as they were.
pub fn counts(
    deployment: &Deployment,
    new: Option<&ReplicaSet>,
    old: &[ReplicaSet],
    now: Timestamp,
) -> DeploymentStatus {
    let all = || new.into_iter().chain(old);
    let sum = |part: &dyn Fn(&ReplicaSet) -> i32| all().map(part).sum::<i32>();
    let reported = |set: &ReplicaSet| set.status.clone().unwrap_or_default();
    let available = sum(&|s| reported(s).available_replicas.unwrap_or(0));
    let before = deployment.status.clone().unwrap_or_default();
    let some = |n: i32| (n != 0).then_some(n);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(sum(&|s| reported(s).replicas)),
        updated_replicas: some(new.map_or(0, |s| reported(s).replicas)),
        ready_replicas: some(sum(&|s| reported(s).ready_replicas.unwrap_or(0))),
        available_replicas: some(available),
        unavailable_replicas: some((total(all()) - available).max(0)),
        terminating_replicas: Some(sum(&|s| reported(s).terminating_replicas.unwrap_or(0))),
        collision_count: before.collision_count,
        conditions: before.conditions,
    };
    let enough = available >= wished(deployment) - max_unavailable(deployment);
    let (value, reason, message) = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set(&mut status, condition(AVAILABLE, value, reason, message.to_owned(), now));
    status
}

/// All wished pods are of the newest template and available.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wished = wished(deployment);
    status.updated_replicas.unwrap_or(0) == wished
        && status.replicas.unwrap_or(0) == wished
        && status.available_replicas.unwrap_or(0) == wished
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old_pods = |s: &DeploymentStatus| s.replicas.unwrap_or(0) - s.updated_replicas.unwrap_or(0);
    after.updated_replicas.unwrap_or(0) > before.updated_replicas.unwrap_or(0)
        || old_pods(after) < old_pods(before)
        || after.ready_replicas.unwrap_or(0) > before.ready_replicas.unwrap_or(0)
        || after.available_replicas.unwrap_or(0) > before.available_replicas.unwrap_or(0)
}

/// Progressing and ReplicaFailure on top of [`counts`]. `before` is the status this pass began with (with conditions
/// set in this pass, such as a new set found).
pub fn progress(
    deployment: &Deployment,
    before: &DeploymentStatus,
    new: Option<&ReplicaSet>,
    old: &[ReplicaSet],
    now: Timestamp,
) -> DeploymentStatus {
    let mut status = counts(deployment, new, old, now);
    status.conditions = merged(before, status.conditions);
    let Some(deadline) = deadline(deployment) else {
        remove(&mut status, PROGRESSING);
        move_failure(&mut status, new, old);
        return status;
    };
    let current = find(before, PROGRESSING).cloned();
    let done_before = status.replicas == status.updated_replicas
        && current.as_ref().and_then(|c| c.reason.as_deref()) == Some(NEW_SET_AVAILABLE);
    if !done_before {
        let what = new.map_or_else(
            || format!("Deployment \"{}\"", name_of(deployment)),
            |set| format!("ReplicaSet \"{}\"", name_of(set)),
        );
        if is_complete(deployment, &status) {
            let message = format!("{what} has successfully progressed.");
            set(&mut status, condition(PROGRESSING, "True", NEW_SET_AVAILABLE, message, now));
        } else if has_progressed(before, &status) {
            let message = format!("{what} is progressing.");
            let mut next = condition(PROGRESSING, "True", "ReplicaSetUpdated", message, now);
            if let Some(current) = current.filter(|c| c.status.as_deref() == Some("True")) {
                next.last_transition_time = current.last_transition_time;
            }
            // Replaced even if it says the same: the update time is what the deadline counts from.
            remove(&mut status, PROGRESSING);
            set(&mut status, next);
        } else if timed_out(current.as_ref(), deadline, now) {
            let message = format!("{what} has timed out progressing.");
            set(&mut status, condition(PROGRESSING, "False", TIMED_OUT, message, now));
        }
    }
    move_failure(&mut status, new, old);
    status
}

/// Conditions of this pass win over those read, but for Available, which was just computed.
fn merged(before: &DeploymentStatus, computed: Option<Vec<DeploymentCondition>>) -> Option<Vec<DeploymentCondition>> {
    let available = computed.into_iter().flatten().filter(|c| c.type_.as_deref() == Some(AVAILABLE));
    let kept = before.conditions.iter().flatten().filter(|c| c.type_.as_deref() != Some(AVAILABLE)).cloned();
    Some(available.chain(kept).collect())
}

fn move_failure(status: &mut DeploymentStatus, new: Option<&ReplicaSet>, old: &[ReplicaSet]) {
    remove(status, REPLICA_FAILURE);
    let failure = new.into_iter().chain(old).find_map(|set| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.type_.as_deref() == Some(REPLICA_FAILURE))
    });
    if let Some(failure) = failure {
        status.conditions.get_or_insert_default().push(DeploymentCondition {
            type_: Some(REPLICA_FAILURE.to_owned()),
            status: failure.status.clone(),
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            last_transition_time: failure.last_transition_time.clone(),
            last_update_time: failure.last_transition_time.clone(),
        });
    }
}

fn waits_until(current: &DeploymentCondition, deadline: Duration) -> Option<Timestamp> {
    let from = current.last_update_time.as_ref()?.0;
    from.checked_add(deadline).ok()
}

fn timed_out(current: Option<&DeploymentCondition>, deadline: Duration, now: Timestamp) -> bool {
    match current.map(|c| (c, c.reason.as_deref())) {
        None | Some((_, Some(NEW_SET_AVAILABLE))) => false,
        Some((_, Some(TIMED_OUT))) => true,
        Some((current, _)) => waits_until(current, deadline).is_some_and(|at| at < now),
    }
}

/// When to look again so that a missed deadline is reported.
pub fn check_after(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> Option<Duration> {
    let deadline = deadline(deployment)?;
    let current = find(status, PROGRESSING)?;
    let reason = current.reason.as_deref()?;
    if matches!(reason, NEW_SET_AVAILABLE | TIMED_OUT | PAUSED) || is_complete(deployment, status) {
        return None;
    }
    let at = waits_until(current, deadline)?;
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    Some(wait + Duration::from_secs(1))
}

/// Notes that the deployment was paused or resumed, so that a pause does not count against the deadline.
pub fn note_pause(deployment: &Deployment, status: &mut DeploymentStatus, now: Timestamp) {
    if deadline(deployment).is_none() {
        return;
    }
    let reason = find(status, PROGRESSING).and_then(|c| c.reason.clone());
    if reason.as_deref() == Some(TIMED_OUT) {
        return;
    }
    let paused = deployment.spec.paused.unwrap_or(false);
    let was_paused = reason.as_deref() == Some(PAUSED);
    if paused && !was_paused {
        let message = "Deployment is paused".to_owned();
        set(status, condition(PROGRESSING, "Unknown", PAUSED, message, now));
    } else if !paused && was_paused {
        let message = "Deployment is resumed".to_owned();
        set(status, condition(PROGRESSING, "Unknown", "DeploymentResumed", message, now));
    }
}
