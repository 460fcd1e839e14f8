//! What a ReplicaSet reports. Pure.
//!
//! Upstream counterpart: `replica_set_utils.go`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::owner::Replicated;
use crate::meta::{labels, nonzero, number};
use crate::pod_control::Failure;
use crate::pods;

/// The condition's type.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The status for these pods (active and terminating ones apart).
pub fn status<O: Replicated>(
    set: &O,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&Failure>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let wanted = set.template().and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.clone()).unwrap_or_default();
    let min_ready = set.min_ready();
    let count = |test: &dyn Fn(&Pod) -> bool| number(active.iter().filter(|p| test(p)).count());
    let old = set.status();
    ReplicaSetStatus {
        replicas: number(active.len()),
        fully_labeled_replicas: nonzero(count(&|p| wanted.iter().all(|(k, v)| labels(p).get(k) == Some(v)))),
        ready_replicas: nonzero(count(&pods::is_ready)),
        available_replicas: nonzero(count(&|p| pods::is_available(p, min_ready, now))),
        terminating_replicas: Some(number(terminating)),
        observed_generation: set.meta().generation,
        conditions: conditions(old.conditions, failure, now),
    }
}

fn conditions(
    old: Option<Vec<ReplicaSetCondition>>,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = old.unwrap_or_default();
    match failure {
        None => conditions.retain(|c| c.type_.as_deref() != Some(REPLICA_FAILURE)),
        Some(failure) => {
            let known = conditions.iter().any(|c| {
                c.type_.as_deref() == Some(REPLICA_FAILURE)
                    && c.status.as_deref() == Some("True")
                    && c.reason.as_deref() == Some(failure.reason)
            });
            if !known {
                conditions.retain(|c| c.type_.as_deref() != Some(REPLICA_FAILURE));
                conditions.push(ReplicaSetCondition {
                    type_: Some(REPLICA_FAILURE.to_owned()),
                    status: Some("True".to_owned()),
                    reason: Some(failure.reason.to_owned()),
                    message: Some(failure.message.clone()),
                    last_transition_time: Some(Time(now)),
                });
            }
        }
    }
    (!conditions.is_empty()).then_some(conditions)
}

/// When the next ready pod will have been ready for long enough.
pub fn next_available<O: Replicated>(set: &O, active: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let waits = active.iter().filter_map(|p| pods::available_in(p, set.min_ready(), now));
    waits.filter(|wait| !wait.is_zero()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
    use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
    use k8s_openapi::jiff::SignedDuration;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn ready_pod(since: i64) -> Arc<Pod> {
        Arc::new(Pod {
            status: Some(PodStatus {
                conditions: Some(vec![PodCondition {
                    type_: "Ready".to_owned(),
                    status: "True".to_owned(),
                    last_transition_time: Some(Time(at(since))),
                    ..PodCondition::default()
                }]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        })
    }

    #[test]
    fn available_means_ready_for_long_enough() {
        let set = ReplicaSet {
            spec: ReplicaSetSpec { min_ready_seconds: Some(10), ..ReplicaSetSpec::default() },
            ..ReplicaSet::default()
        };
        let active = [ready_pod(0), ready_pod(7), Arc::new(Pod::default())];
        let status = status(&set, &active, 2, None, at(12));
        assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (3, Some(2), Some(1)));
        assert_eq!(status.terminating_replicas, Some(2));
        assert_eq!(next_available(&set, &active, at(12)), Some(Duration::from_secs(5)));
    }

    #[test]
    fn a_failure_stays_until_a_pass_goes_well() {
        let failure = Failure { reason: "FailedCreate", message: "quota".to_owned() };
        let first = conditions(None, Some(&failure), at(1));
        let second = conditions(first.clone(), Some(&failure), at(9));
        assert_eq!(first, second);
        assert_eq!(conditions(second, None, at(10)), None);
    }
}
