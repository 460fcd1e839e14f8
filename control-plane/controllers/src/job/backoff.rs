//! How long the replacement of a failed pod waits: 10 s, doubled with each failure in a row, at most 10 min. Pure.
//!
//! Upstream counterpart: `backoff_utils.go`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::meta::created;
use crate::pods;

/// After the first failure (upstream's `DefaultJobPodFailureBackOff`).
const FIRST: Duration = Duration::from_secs(10);
/// The longest (upstream's `MaxJobPodFailureBackOff`).
const LONGEST: Duration = Duration::from_secs(600);

/// Failures of a job since its last success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// How many in a row.
    pub failures: u32,
    /// When the last one was.
    pub last: Option<Timestamp>,
}

impl Record {
    /// With the pods that ended since.
    pub fn after(self, succeeded: &[Arc<Pod>], failed: &[Arc<Pod>]) -> Self {
        let mut ends: Vec<Timestamp> = failed.iter().map(|pod| finished(pod)).collect();
        ends.sort_unstable();
        let (mut failures, mut last) = (self.failures, self.last);
        if let Some(success) = succeeded.iter().map(|pod| finished(pod)).max() {
            (failures, last) = (0, None);
            ends.retain(|end| *end > success);
        }
        Self {
            failures: failures.saturating_add(u32::try_from(ends.len()).unwrap_or(u32::MAX)),
            last: ends.last().copied().or(last),
        }
    }

    /// How long the next pod must still wait.
    pub fn remaining(self, now: Timestamp) -> Duration {
        let Some(last) = self.last.filter(|_| self.failures > 0) else {
            return Duration::ZERO;
        };
        let wait = crate::engine::queue::backoff(self.failures, FIRST, LONGEST);
        let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
        wait.saturating_sub(passed)
    }
}

/// When the pod ended: its last container, or the loss of readiness, or its deletion, or at worst its creation.
pub fn finished(pod: &Pod) -> Timestamp {
    let containers = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    let ends: Option<Vec<Timestamp>> =
        containers.iter().map(|c| Some(c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)).collect();
    if let Some(last) = ends.and_then(|ends| ends.into_iter().max()) {
        return last;
    }
    let unready = pods::condition(pod, "Ready").filter(|c| c.status == "False");
    if let Some(since) = unready.and_then(|c| c.last_transition_time.as_ref()) {
        return since.0;
    }
    if let Some(deadline) = &pod.metadata.deletion_timestamp {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        return deadline.0.checked_sub(SignedDuration::from_secs(grace)).unwrap_or(deadline.0);
    }
    created(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: u32) -> Timestamp {
        format!("2026-01-01T00:00:{second:02}Z").parse().unwrap()
    }

    fn ended(second: u32) -> Arc<Pod> {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": at(second).to_string()}}});
        Arc::new(serde_json::from_value(json!({"status": {"containerStatuses": [container]}})).unwrap())
    }

    #[test]
    fn failures_in_a_row_double_the_wait() {
        let one = Record::default().after(&[], &[ended(10)]);
        assert_eq!(one.remaining(at(12)), Duration::from_secs(8));
        let three = one.after(&[], &[ended(20), ended(15)]);
        assert_eq!((three.failures, three.remaining(at(20))), (3, Duration::from_secs(40)));
        assert_eq!(Record { failures: 40, last: Some(at(0)) }.remaining(at(0)), LONGEST);
        assert_eq!(three.after(&[], &[]), three);
    }

    #[test]
    fn a_success_forgives_what_was_before() {
        let bad = Record::default().after(&[], &[ended(10), ended(11)]);
        assert_eq!(bad.after(&[ended(20)], &[]), Record::default());
        let again = bad.after(&[ended(20)], &[ended(19), ended(21)]);
        assert_eq!(again, Record { failures: 1, last: Some(at(21)) });
        assert_eq!(again.remaining(at(40)), Duration::ZERO);
    }

    #[test]
    fn the_end_of_a_pod_without_container_states() {
        let pod = |value| finished(&serde_json::from_value(value).unwrap());
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:07Z"}]}});
        assert_eq!(pod(unready), at(7));
        let deleted =
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30}});
        assert_eq!(pod(deleted), at(10));
        assert_eq!(pod(json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:03Z"}})), at(3));
    }
}
