//! Revisions, the annotations that carry them, and which old sets to drop. Pure.
//!
//! Upstream counterpart: `SetNewReplicaSetAnnotations`, `cleanupDeployment`.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::sizes::{max_surge, size, wished};
use crate::meta::{annotation, is_deleting};

/// Which rollout a set belongs to.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// Earlier revisions of the same set.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The deployment's wish when the set was last scaled.
pub const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The wish plus surge when the set was last scaled.
pub const MAX: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations of a deployment that its sets do not get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];

/// A set's revision, 0 without one.
pub fn revision(set: &ReplicaSet) -> i64 {
    annotation(set, REVISION).and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The revision that the newest set should have.
pub fn next_revision(old: &[ReplicaSet]) -> i64 {
    old.iter().map(revision).max().unwrap_or(0) + 1
}

/// Gives the newest set its revision and the deployment's annotations.
pub fn annotate_new(deployment: &Deployment, set: &mut ReplicaSet, next: i64) {
    let known = revision(set);
    let had_one = annotation(set, REVISION).map(str::to_owned);
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    if known >= next {
        return;
    }
    annotations.insert(REVISION.to_owned(), next.to_string());
    // A rollback: the set had a revision before, which is remembered.
    if let Some(before) = had_one {
        let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
        if !history.is_empty() {
            history.push(',');
        }
        history.push_str(&before);
    }
}

/// Notes the wish with which the set was scaled.
pub fn annotate_scale(deployment: &Deployment, set: &mut ReplicaSet) {
    let (desired, max) = (wished(deployment), wished(deployment) + max_surge(deployment));
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), desired.to_string());
    annotations.insert(MAX.to_owned(), max.to_string());
}

/// Some set was last scaled for another wish than today's.
pub fn is_scaling(deployment: &Deployment, sets: &[&ReplicaSet]) -> bool {
    sets.iter().filter(|s| size(s) > 0).any(|set| {
        let desired: Option<i32> = annotation(*set, DESIRED).and_then(|v| v.parse().ok());
        desired.is_some_and(|d| d != wished(deployment))
    })
}

/// Old sets beyond the history limit, oldest revisions first.
pub fn superfluous(deployment: &Deployment, old: &[ReplicaSet]) -> Vec<ReplicaSet> {
    let limit = deployment.spec.revision_history_limit;
    let Some(limit) = limit.and_then(|l| usize::try_from(l).ok()) else {
        return Vec::new();
    };
    let mut alive: Vec<&ReplicaSet> = old.iter().filter(|s| !is_deleting(*s)).collect();
    let surplus = alive.len().saturating_sub(limit);
    alive.sort_by_key(|s| revision(s));
    let idle = |set: &ReplicaSet| {
        let status = set.status.clone().unwrap_or_default();
        size(set) == 0
            && status.replicas == 0
            && set.metadata.generation.unwrap_or(0) <= status.observed_generation.unwrap_or(0)
    };
    alive.into_iter().take(surplus).filter(|s| idle(s)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(revision: Option<&str>, replicas: i32) -> ReplicaSet {
        let mut set: ReplicaSet =
            serde_json::from_value(json!({"spec": {"replicas": replicas, "selector": {}}})).unwrap();
        set.metadata.annotations = revision.map(|r| [(REVISION.to_owned(), r.to_owned())].into());
        set
    }

    fn deployment(limit: Option<i32>) -> Deployment {
        serde_json::from_value(json!({"metadata": {"annotations": {"kept": "v", REVISION: "7",
            "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "spec": {"revisionHistoryLimit": limit, "selector": {}, "template": {}}}))
        .unwrap()
    }

    #[test]
    fn a_rollback_gets_a_new_revision_and_remembers_the_old() {
        let mut back = set(Some("2"), 0);
        annotate_new(&deployment(None), &mut back, 5);
        assert_eq!(annotation(&back, REVISION), Some("5"));
        assert_eq!(annotation(&back, REVISION_HISTORY), Some("2"));
        assert_eq!(annotation(&back, "kept"), Some("v"));
        assert_eq!(back.metadata.annotations.as_ref().unwrap().len(), 3);
        annotate_new(&deployment(None), &mut back, 8);
        assert_eq!(annotation(&back, REVISION_HISTORY), Some("2,5"));
        let same = back.clone();
        annotate_new(&deployment(None), &mut back, 4);
        assert_eq!(same, back);
    }

    #[test]
    fn the_oldest_idle_sets_beyond_the_limit_go() {
        let old = [set(Some("10"), 0), set(Some("2"), 0), set(Some("3"), 1), set(Some("9"), 0)];
        let gone = superfluous(&deployment(Some(1)), &old);
        assert_eq!(gone.iter().map(revision).collect::<Vec<_>>(), [2, 9]);
        assert!(superfluous(&deployment(None), &old).is_empty());
    }
}
