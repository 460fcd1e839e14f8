//! What a StatefulSet reports. Pure.
//!
//! Upstream counterpart: `updateStatus`, `completeRollingUpdate`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::identity::revision;
use super::plan::{is_available, is_rolling};
use crate::meta::{nonzero, number};
use crate::pods;

/// The names of the revisions that matter, and how many hashes were taken.
pub struct Revisions<'a> {
    /// The one that is being left, or the same.
    pub current: &'a str,
    /// The one that is wanted.
    pub update: &'a str,
    /// For `collisionCount`.
    pub collisions: i32,
}

/// The status for these pods.
pub fn status(set: &StatefulSet, pods: &[Arc<Pod>], revisions: &Revisions, now: Timestamp) -> StatefulSetStatus {
    let count = |test: &dyn Fn(&Pod) -> bool| number(pods.iter().filter(|p| test(p)).count());
    let of = |pod: &Pod, name: &str| !pods::is_terminating(pod) && revision(pod) == name;
    let (replicas, updated) = (count(&|_| true), count(&|p| of(p, revisions.update)));
    let ready = count(&|p| pods::phase(p) == "Running" && pods::is_ready(p));
    let mut current = (revisions.current, count(&|p| of(p, revisions.current)));
    if is_rolling(set) && updated == replicas && ready == replicas {
        current = (revisions.update, updated);
    }
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas,
        ready_replicas: nonzero(ready),
        available_replicas: Some(count(&|p| is_available(set, p, now))),
        current_replicas: nonzero(current.1),
        updated_replicas: nonzero(updated),
        current_revision: Some(current.0.to_owned()),
        update_revision: Some(revisions.update.to_owned()),
        collision_count: Some(revisions.collisions),
        conditions: set.status.as_ref().and_then(|s| s.conditions.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statefulset::plan::tests::{pod, set};

    fn report(pods: &[&str]) -> StatefulSetStatus {
        let pods: Vec<_> = pods.iter().map(|p| pod(p)).collect();
        let revisions = Revisions { current: "old", update: "new", collisions: 0 };
        status(&set(|_| {}), &pods, &revisions, Timestamp::now())
    }

    #[test]
    fn an_update_under_way_and_its_end() {
        let halfway = report(&["0:old:ready", "1:old:ending", "2:new:unready"]);
        assert_eq!((halfway.replicas, halfway.ready_replicas, halfway.available_replicas), (3, Some(2), Some(2)));
        assert_eq!((halfway.current_replicas, halfway.updated_replicas), (Some(1), Some(1)));
        assert_eq!(halfway.current_revision.as_deref(), Some("old"));
        let done = report(&["0:new:ready", "1:new:ready"]);
        assert_eq!((done.current_revision.as_deref(), done.current_replicas), (Some("new"), Some(2)));
        let empty = report(&[]);
        assert_eq!((empty.replicas, empty.ready_replicas, empty.available_replicas), (0, None, Some(0)));
    }
}
