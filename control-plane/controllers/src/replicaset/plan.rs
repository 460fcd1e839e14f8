//! How many pods to make, and which to delete first. Pure.
//!
//! Upstream counterpart: `manageReplicas`, `getPodsToDelete` and `ActivePodsWithRanks`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::meta::{annotation, created, uid_of};
use crate::pods;

/// Most pods made or deleted in one pass (upstream's `BurstReplicas`).
pub const BURST: usize = 500;
/// Pods with a lower value are deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// What to do about the number of pods.
#[derive(Debug, Default)]
pub struct Plan {
    /// Pods to make.
    pub create: usize,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
}

/// Compares the wished number with the active pods. `related` are the active pods of all replica sets with the same
/// controller (the Deployment's): a node with several of them loses one first.
pub fn plan(wished: i32, active: &[Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) -> Plan {
    let wished = usize::try_from(wished).unwrap_or(0);
    if active.len() < wished {
        return Plan { create: (wished - active.len()).min(BURST), delete: Vec::new() };
    }
    let surplus = (active.len() - wished).min(BURST);
    if surplus == 0 {
        return Plan::default();
    }
    let mut ranked: Vec<Ranked> = rank(active, related);
    ranked.sort_by(|a, b| deletion_order(a, b, now));
    Plan { create: 0, delete: ranked.into_iter().take(surplus).map(|r| Arc::clone(r.pod)).collect() }
}

struct Ranked<'a> {
    pod: &'a Arc<Pod>,
    neighbours: usize,
}

fn rank<'a>(active: &'a [Arc<Pod>], related: &[Arc<Pod>]) -> Vec<Ranked<'a>> {
    let mut per_node: HashMap<&str, usize> = HashMap::new();
    for pod in related {
        if let Some(node) = pods::node_name(pod) {
            *per_node.entry(node).or_default() += 1;
        }
    }
    let ranked = active.iter().map(|pod| Ranked {
        pod,
        neighbours: pods::node_name(pod).and_then(|n| per_node.get(n)).copied().unwrap_or(0),
    });
    ranked.collect()
}

fn phase_order(pod: &Pod) -> u8 {
    match pods::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    annotation(pod, DELETION_COST).and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// `Less` means: deleted earlier.
fn deletion_order(a: &Ranked, b: &Ranked, now: Timestamp) -> Ordering {
    let (pod_a, pod_b) = (a.pod.as_ref(), b.pod.as_ref());
    pods::node_name(pod_a)
        .is_some()
        .cmp(&pods::node_name(pod_b).is_some())
        .then_with(|| phase_order(pod_a).cmp(&phase_order(pod_b)))
        .then_with(|| pods::is_ready(pod_a).cmp(&pods::is_ready(pod_b)))
        .then_with(|| deletion_cost(pod_a).cmp(&deletion_cost(pod_b)))
        .then_with(|| b.neighbours.cmp(&a.neighbours))
        .then_with(|| newer_first(pods::ready_since(pod_a), pods::ready_since(pod_b), now))
        .then_with(|| pods::restarts(pod_b).cmp(&pods::restarts(pod_a)))
        .then_with(|| newer_first(Some(created(pod_a)), Some(created(pod_b)), now))
        .then_with(|| uid_of(pod_a).cmp(uid_of(pod_b)))
}

/// Ages are compared by order of magnitude (as upstream's `LogarithmicScaleDown`), so that which of several pods of
/// about the same age goes is spread by their UIDs.
fn newer_first(a: Option<Timestamp>, b: Option<Timestamp>, now: Timestamp) -> Ordering {
    let magnitude = |time: Timestamp| {
        let age = now.duration_since(time).as_nanos();
        u128::try_from(age).ok().filter(|n| *n > 0).map(u128::ilog2)
    };
    match (a, b) {
        (Some(a), Some(b)) => magnitude(a).cmp(&magnitude(b)),
        // Upstream: a pod without the time goes first.
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodSpec, PodStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::SignedDuration;
    use proptest::prelude::*;

    struct P(Pod);

    fn pod(uid: &str) -> P {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some(uid.to_owned());
        pod.metadata.creation_timestamp = Some(Time(at(0)));
        pod.spec = Some(PodSpec { node_name: Some("n1".to_owned()), ..PodSpec::default() });
        pod.status = Some(PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() });
        P(pod).ready(at(0))
    }

    impl P {
        fn ready(mut self, since: Timestamp) -> Self {
            self.0.status.as_mut().unwrap().conditions = Some(vec![PodCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(Time(since)),
                ..PodCondition::default()
            }]);
            self
        }
        fn edit(mut self, edit: impl FnOnce(&mut Pod)) -> Arc<Pod> {
            edit(&mut self.0);
            Arc::new(self.0)
        }
        fn done(self) -> Arc<Pod> {
            Arc::new(self.0)
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn order(pods: &[Arc<Pod>]) -> Vec<String> {
        let plan = plan(0, pods, pods, at(1_000_000));
        plan.delete.iter().map(|p| uid_of(p.as_ref()).to_owned()).collect()
    }

    #[test]
    fn the_least_useful_pod_goes_first() {
        let all = [
            pod("h-old").done(),
            pod("g-young").ready(at(999_000)).done(),
            pod("f-restarts").edit(|p| {
                p.status.as_mut().unwrap().container_statuses =
                    Some(vec![ContainerStatus { restart_count: 3, ..ContainerStatus::default() }]);
            }),
            pod("d-cheap").edit(|p| {
                p.metadata.annotations = Some([(DELETION_COST.to_owned(), "-5".to_owned())].into());
            }),
            pod("c-unready").edit(|p| p.status.as_mut().unwrap().conditions = None),
            pod("b-pending").edit(|p| p.status.as_mut().unwrap().phase = Some("Pending".to_owned())),
            pod("a-unassigned").edit(|p| p.spec.as_mut().unwrap().node_name = None),
        ];
        assert_eq!(
            order(&all),
            ["a-unassigned", "b-pending", "c-unready", "d-cheap", "g-young", "f-restarts", "h-old"]
        );
    }

    #[test]
    fn a_crowded_node_loses_one_first() {
        let on = |uid: &str, node: &str| {
            let node = node.to_owned();
            pod(uid).edit(|p| p.spec.as_mut().unwrap().node_name = Some(node))
        };
        let active = [on("a", "n1"), on("b", "n2"), on("c", "n2")];
        let plan = plan(2, &active, &active, at(10));
        assert_eq!(uid_of(plan.delete[0].as_ref()), "b");
    }

    #[test]
    fn pods_of_about_the_same_age_are_told_apart_by_uid() {
        let all = [pod("b").ready(at(900_000)).done(), pod("a").ready(at(900_100)).done()];
        assert_eq!(order(&all), ["a", "b"]);
    }

    proptest! {
        #[test]
        fn the_number_is_reached_and_never_overshot(wished in 0i32..40, have in 0usize..40) {
            let active: Vec<_> = (0..have).map(|i| pod(&i.to_string()).done()).collect();
            let plan = plan(wished, &active, &active, at(100));
            let after = have + plan.create - plan.delete.len();
            prop_assert_eq!(after, usize::try_from(wished).unwrap());
            prop_assert!(plan.create == 0 || plan.delete.is_empty());
        }
    }
}
