//! Conditions and taints of one node. Pure.
//!
//! Upstream counterpart: `tryUpdateNodeHealth`, `doNoScheduleTaintingPass`, `processTaintBaseEviction`,
//! `ComputeZoneState`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// Taint keys.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The node is silent.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Above this number of nodes a large failure slows evictions down instead of stopping them (upstream's default).
const LARGE_CLUSTER: usize = 50;
/// Share of unready nodes from which a failure is large (upstream's `--unhealthy-zone-threshold`).
const UNHEALTHY_SHARE: f64 = 0.55;

/// Conditions that only the node's agent can vouch for.
const OF_THE_AGENT: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// (condition, value, taint) of the taints that keep new pods away.
const TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

/// The value of the Ready condition; `Unknown` without one.
pub fn readiness(node: &Node) -> &str {
    condition(node, "Ready").map_or("Unknown", |c| c.status.as_str())
}

/// The node has said at least once whether it is ready.
pub fn has_reported(node: &Node) -> bool {
    condition(node, "Ready").is_some()
}

/// The node's conditions after a silence that was too long; `None` if they say so already.
pub fn silenced(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let before = conditions.clone();
    for type_ in OF_THE_AGENT {
        match conditions.iter_mut().find(|c| c.type_ == type_) {
            Some(known) if known.status == "Unknown" => {}
            Some(known) => {
                known.status = "Unknown".to_owned();
                known.reason = Some("NodeStatusUnknown".to_owned());
                known.message = Some("Kubelet stopped posting node status.".to_owned());
                known.last_transition_time = Some(Time(now));
            }
            None => conditions.push(NodeCondition {
                type_: type_.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(Time(now)),
            }),
        }
    }
    (conditions != before).then_some(conditions)
}

/// Whether a node may be told to evict its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evictions {
    /// Nodes fall out one by one: one node in 10 s (upstream's `--node-eviction-rate` 0.1).
    Normal,
    /// Many fell out of a large cluster: one node in 100 s.
    Slow,
    /// So many fell out that the fault is probably ours: nobody.
    Stopped,
}

impl Evictions {
    /// Judges by the numbers of ready and unready nodes.
    pub fn judge(ready: usize, unready: usize) -> Self {
        #[allow(clippy::cast_precision_loss)] // A ratio of small numbers.
        let share = unready as f64 / (ready + unready).max(1) as f64;
        if ready == 0 && unready > 0 {
            Self::Stopped
        } else if unready > 2 && share >= UNHEALTHY_SHARE {
            if ready + unready > LARGE_CLUSTER { Self::Slow } else { Self::Stopped }
        } else {
            Self::Normal
        }
    }

    /// Time between two nodes.
    pub fn interval(self) -> Option<Duration> {
        match self {
            Self::Normal => Some(Duration::from_secs(10)),
            Self::Slow => Some(Duration::from_secs(100)),
            Self::Stopped => None,
        }
    }
}

fn is_ours(taint: &Taint) -> bool {
    match taint.effect.as_str() {
        "NoSchedule" => taint.key == UNSCHEDULABLE || TAINTS.iter().any(|(.., key)| *key == taint.key),
        "NoExecute" => matches!(taint.key.as_str(), NOT_READY | UNREACHABLE),
        _ => false,
    }
}

/// The NoExecute taint that the node's readiness calls for.
pub fn wanted_no_execute(node: &Node) -> Option<&'static str> {
    match readiness(node) {
        "True" => None,
        "False" => Some(NOT_READY),
        _ => Some(UNREACHABLE),
    }
}

/// The node has this NoExecute taint.
pub fn has_no_execute(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().any(|t| t.key == key && t.effect == "NoExecute")
}

/// The node's taints as they should be. `no_execute` is the NoExecute taint that it may have now. Taints of others stay,
/// and so do the times of those that stay.
pub fn taints(node: &Node, no_execute: Option<&str>, now: Timestamp) -> Vec<Taint> {
    let known = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (type_, value, key) in TAINTS {
        if condition(node, type_).is_some_and(|c| c.status == value) {
            wanted.push((key, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    wanted.extend(no_execute.map(|key| (key, "NoExecute")));
    let is_wanted = |taint: &Taint| wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut result: Vec<Taint> = known.into_iter().filter(|t| !is_ours(t) || is_wanted(t)).collect();
    for (key, effect) in wanted {
        if !result.iter().any(|t| t.key == key && t.effect == effect) {
            result.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(Time(now)),
            });
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "mine", "effect": "NoSchedule"},
            {"key": NOT_READY, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}, {"type": "NetworkUnavailable", "status": "False"}]}}))
        .unwrap()
    }

    fn keys(taints: &[Taint]) -> Vec<String> {
        taints.iter().map(|t| format!("{}:{}", t.key.rsplit('/').next().unwrap(), t.effect)).collect()
    }

    #[test]
    fn taints_follow_conditions_and_leave_others_alone() {
        let now = Timestamp::now();
        assert_eq!(keys(&taints(&node("True"), None, now)), ["mine:NoSchedule"]);
        let unready = taints(&node("False"), Some(NOT_READY), now);
        assert_eq!(keys(&unready), ["mine:NoSchedule", "not-ready:NoSchedule", "not-ready:NoExecute"]);
        assert_eq!(unready[1].time_added.as_ref().unwrap().0.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(keys(&taints(&node("Unknown"), None, now)), ["mine:NoSchedule", "unreachable:NoSchedule"]);
        let mut cordoned = node("True");
        cordoned.spec.as_mut().unwrap().unschedulable = Some(true);
        assert_eq!(keys(&taints(&cordoned, None, now)), ["mine:NoSchedule", "unschedulable:NoSchedule"]);
    }

    #[test]
    fn silence_makes_what_the_agent_vouches_for_unknown() {
        let conditions = silenced(&node("True"), Timestamp::UNIX_EPOCH).unwrap();
        let status = |type_: &str| conditions.iter().find(|c| c.type_ == type_).unwrap().status.clone();
        assert_eq!((status("Ready").as_str(), status("NetworkUnavailable").as_str()), ("Unknown", "False"));
        assert_eq!(conditions.len(), 5);
        let mut again = node("True");
        again.status.as_mut().unwrap().conditions = Some(conditions);
        assert_eq!(silenced(&again, Timestamp::now()), None);
    }

    #[test]
    fn a_large_failure_stops_evictions() {
        assert_eq!(Evictions::judge(0, 1), Evictions::Stopped);
        assert_eq!(Evictions::judge(1, 1), Evictions::Normal);
        assert_eq!(Evictions::judge(2, 3), Evictions::Stopped);
        assert_eq!(Evictions::judge(40, 60), Evictions::Slow);
        assert_eq!(Evictions::judge(9, 1), Evictions::Normal);
    }
}
