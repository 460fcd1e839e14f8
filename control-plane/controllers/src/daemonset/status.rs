//! What a DaemonSet reports. Pure.
//!
//! Upstream counterpart: `updateDaemonSetStatus`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSetStatus;

use super::place::Placement;
use super::plan::{Input, is_available, is_updated};
use crate::meta::{name_of, nonzero, seconds};
use crate::pods;

/// The status; `collisions` is how many hashes of revisions were taken.
pub fn status(input: &Input, collisions: i32) -> DaemonSetStatus {
    let placement = Placement::of(input.set);
    let mut status = DaemonSetStatus {
        observed_generation: input.set.metadata.generation,
        collision_count: nonzero(collisions),
        conditions: input.set.status.as_ref().and_then(|s| s.conditions.clone()),
        ..DaemonSetStatus::default()
    };
    let (mut available, mut updated) = (0, 0);
    for node in input.nodes {
        let first = input.pods.get(name_of(node.as_ref())).and_then(|pods| pods.first());
        if !placement.fit(node).should_run {
            status.number_misscheduled += i32::from(first.is_some());
            continue;
        }
        status.desired_number_scheduled += 1;
        let Some(pod) = first else { continue };
        status.current_number_scheduled += 1;
        status.number_ready += i32::from(pods::is_ready(pod));
        available += i32::from(is_available(input.set, pod, input.now));
        updated += i32::from(is_updated(pod, input.hash));
    }
    status.number_available = nonzero(available);
    status.updated_number_scheduled = nonzero(updated);
    status.number_unavailable = nonzero(status.desired_number_scheduled - available);
    status
}

/// When the next ready pod will have been ready for long enough.
pub fn next_available(input: &Input) -> Option<Duration> {
    let min_ready = seconds(input.set.spec.min_ready_seconds);
    let waits = input.pods.values().flatten().filter_map(|p| pods::available_in(p, min_ready, input.now));
    waits.filter(|wait| !wait.is_zero()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemonset::plan::by_node;
    use crate::daemonset::plan::tests::{node, pod, set};
    use serde_json::json;

    #[test]
    fn nodes_are_counted() {
        let set = set(|s| {
            s["metadata"]["generation"] = json!(4);
            s["spec"]["minReadySeconds"] = json!(10);
        });
        let mut cordoned = node("m").as_ref().clone();
        cordoned.spec = serde_json::from_value(json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})).unwrap();
        let nodes = [node("a"), node("b"), node("c"), cordoned.into()];
        let fresh =
            pod("x@a:new", |p| p["status"]["conditions"][0]["lastTransitionTime"] = json!("2026-01-01T00:00:55Z"));
        let pods = by_node([fresh, pod("y@b:old", |_| {}), pod("z@m:old", |_| {})]);
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let input = Input { set: &set, nodes: &nodes, pods: &pods, hash: "new", now };
        let status = status(&input, 0);
        let counts = [status.desired_number_scheduled, status.current_number_scheduled, status.number_ready];
        assert_eq!((counts, status.number_misscheduled), ([3, 2, 2], 1));
        let more = (status.updated_number_scheduled, status.number_available, status.number_unavailable);
        assert_eq!((more, status.observed_generation), ((Some(1), Some(1), Some(2)), Some(4)));
        assert_eq!(next_available(&input), Some(Duration::from_secs(5)));
    }
}
