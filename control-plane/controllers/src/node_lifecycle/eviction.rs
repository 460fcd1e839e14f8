//! When a pod must leave a node with NoExecute taints. Pure.
//!
//! Upstream counterpart: `pkg/controller/tainteviction`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Taint};
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

/// When the pod must leave because of these taints. A taint counts from when it was added.
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
