//! When a pod must leave a node with NoExecute taints. Pure.
//!
//! A taint counts from when it came, for a pod that came later from the pod's start. Who adds a taint by hand does not say when, so
//! [`Since`] remembers when each was seen first.
//!
//! Upstream counterpart: `pkg/controller/tainteviction`.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use kube_common::scheduling::affinity::tolerates;

/// When the pod must leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It may stay.
    Never,
    /// After this time from now.
    In(Duration),
}

/// NoExecute taints without a time of their own, by node, with the time of their first sight.
#[derive(Debug, Default)]
pub struct Since {
    nodes: HashMap<String, Vec<(Taint, Timestamp)>>,
}

impl Since {
    /// Notes a node's NoExecute taints: all of them each time they change, none when the node is gone.
    pub fn note(&mut self, node: &str, taints: &[Taint], now: Timestamp) {
        let noted: Vec<_> = taints
            .iter()
            .filter(|taint| taint.time_added.is_none())
            .map(|taint| (taint.clone(), self.first_seen(node, taint).unwrap_or(now)))
            .collect();
        if noted.is_empty() {
            self.nodes.remove(node);
        } else {
            self.nodes.insert(node.to_owned(), noted);
        }
    }

    /// The same taints with times; one that was not noted yet has just come.
    pub fn dated(&self, node: &str, taints: &[Taint], now: Timestamp) -> Vec<Taint> {
        let dated = |taint: &Taint| {
            let seen = || Time(self.first_seen(node, taint).unwrap_or(now));
            Taint { time_added: Some(taint.time_added.clone().unwrap_or_else(seen)), ..taint.clone() }
        };
        taints.iter().map(dated).collect()
    }

    fn first_seen(&self, node: &str, taint: &Taint) -> Option<Timestamp> {
        self.nodes.get(node)?.iter().find(|(noted, _)| noted == taint).map(|(_, since)| *since)
    }
}

/// When the pod started to be on its node, as far as it tells.
fn arrived(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref();
    let started = status.and_then(|s| s.start_time.as_ref());
    // Until its agent has spoken: when it was bound, which may be long after it was made.
    let scheduled = |condition: &&PodCondition| condition.type_ == "PodScheduled" && condition.status == "True";
    let bound = status.and_then(|s| s.conditions.iter().flatten().find(scheduled)?.last_transition_time.as_ref());
    started.or(bound).or(pod.metadata.creation_timestamp.as_ref()).map(|t| t.0)
}

/// When the pod must leave because of these taints.
pub fn leave(pod: &Pod, taints: &[Taint], now: Timestamp) -> Leave {
    let none = Vec::new();
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_ref()).unwrap_or(&none);
    let mut soonest = Leave::Never;
    for taint in taints.iter().filter(|t| t.effect == "NoExecute") {
        let covering: Vec<_> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if covering.is_empty() {
            return Leave::In(Duration::ZERO);
        }
        let Some(seconds) = covering.iter().filter_map(|t| t.toleration_seconds).min() else {
            continue;
        };
        let stay = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let since = taint.time_added.as_ref().map_or(now, |t| t.0);
        let since = arrived(pod).map_or(since, |arrived| since.max(arrived));
        let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let left = stay.saturating_sub(passed);
        soonest = match soonest {
            Leave::In(earlier) if earlier <= left => soonest,
            Leave::In(_) | Leave::Never => Leave::In(left),
        };
    }
    soonest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn when(tolerations: serde_json::Value) -> Leave {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).unwrap();
        let taint = |key: &str| json!({"key": key, "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
        let taints: Vec<Taint> =
            serde_json::from_value(json!([taint("a"), taint("b"), {"key": "c", "effect": "NoSchedule"}])).unwrap();
        leave(&pod, &taints, "2026-01-01T00:01:40Z".parse().unwrap())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_taint_without_a_time_counts_from_its_first_sight() {
        let taint =
            |key: &str| -> Taint { serde_json::from_value(json!({"key": key, "effect": "NoExecute"})).unwrap() };
        let mut since = Since::default();
        let mut times = |taints: &[Taint], now: i64| -> Vec<i64> {
            since.note("n", taints, at(now));
            let dated = since.dated("n", taints, at(1000));
            dated.iter().map(|t| t.time_added.as_ref().unwrap().0.as_second()).collect()
        };
        assert_eq!(times(&[taint("a")], 10), [10]);
        assert_eq!(times(&[taint("a"), taint("b")], 20), [10, 20]);
        // Gone and come again: it counts anew.
        assert_eq!(times(&[taint("b")], 30), [20]);
        assert_eq!(times(&[taint("a"), taint("b")], 40), [40, 20]);
        // Its own time stays.
        let mut own = taint("c");
        own.time_added = Some(Time(at(5)));
        assert_eq!(times(&[own], 60), [5]);
        assert_eq!(times(&[], 70), Vec::<i64>::new());
        assert!(since.nodes.is_empty());
    }

    #[test]
    fn a_pod_that_comes_later_stays_as_long_as_any() {
        let bound = json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:01:30Z"}]);
        // Started, and bound to a node whose agent has not spoken yet.
        for status in [json!({"startTime": "2026-01-01T00:01:30Z"}), json!({"conditions": bound})] {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"containers": [], "tolerations": [{"operator": "Exists", "tolerationSeconds": 30}]},
                "status": status,
            }))
            .unwrap();
            let taint: Taint =
                serde_json::from_value(json!({"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}))
                    .unwrap();
            let now = "2026-01-01T00:01:40Z".parse().unwrap();
            assert_eq!(leave(&pod, &[taint], now), Leave::In(Duration::from_secs(20)), "{status}");
        }
    }

    #[test]
    fn the_soonest_of_the_limits_counts() {
        let all = |seconds: Option<i64>| json!({"operator": "Exists", "tolerationSeconds": seconds});
        assert_eq!(when(json!([])), Leave::In(Duration::ZERO));
        assert_eq!(when(json!([all(None)])), Leave::Never);
        assert_eq!(when(json!([all(Some(300))])), Leave::In(Duration::from_secs(200)));
        assert_eq!(
            when(json!([all(Some(300)), {"key": "a", "operator": "Exists", "tolerationSeconds": 150}])),
            Leave::In(Duration::from_secs(50))
        );
        assert_eq!(when(json!([{"key": "a", "operator": "Exists"}])), Leave::In(Duration::ZERO));
        assert_eq!(when(json!([all(Some(10))])), Leave::In(Duration::ZERO));
    }
}
