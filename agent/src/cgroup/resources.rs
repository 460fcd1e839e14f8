//! From requests and limits to what the kernel is told. Pure.
//!
//! Upstream counterpart: `pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use crate::pod::{self, Qos};

const SHARES_PER_CPU: i64 = 1024;
/// Least weight the kernel knows.
pub const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// Shortest quota the kernel accepts, in microseconds.
const MIN_QUOTA_US: i64 = 1000;
const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;

/// Limits of one pod's cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodResources {
    /// CPU weight in v1 shares.
    pub cpu_shares: Option<i64>,
    /// CPU time per period: (quota, period) in microseconds; quota -1 is no limit.
    pub cpu_quota: Option<(i64, i64)>,
    /// Memory in bytes.
    pub memory: Option<i64>,
    /// Processes.
    pub pids: Option<i64>,
}

/// CPU shares for a request in thousandths of a core.
#[must_use]
pub fn shares(milli: i64) -> i64 {
    (milli.max(0) * SHARES_PER_CPU / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// The v2 weight for v1 shares, by the curve newer runtimes use: 2 -> 1, 1024 -> 100, 262144 -> 10000.
#[must_use]
pub fn weight(shares: i64) -> i64 {
    if shares <= MIN_SHARES {
        return 1;
    }
    if shares >= MAX_SHARES {
        return 10_000;
    }
    #[expect(clippy::cast_precision_loss, reason = "shares are below 2^18")]
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    #[expect(clippy::cast_possible_truncation, reason = "between 1 and 10000")]
    let weight = 10f64.powf(exponent).ceil() as i64;
    weight
}

/// CPU quota in microseconds for a limit in thousandths of a core.
#[must_use]
pub fn quota(milli: i64, period: Duration) -> i64 {
    let period_us = i64::try_from(period.as_micros()).unwrap_or(i64::MAX);
    (milli * period_us / 1000).max(MIN_QUOTA_US)
}

fn period_us(period: Duration) -> i64 {
    i64::try_from(period.as_micros()).unwrap_or(i64::MAX)
}

/// The largest need of the init phase against the sum of what runs together, sidecars included.
fn aggregate(pod: &Pod, of: impl Fn(&Container) -> Option<i64>) -> Option<i64> {
    let mut all = true;
    let mut running = 0;
    let mut peak = 0;
    for container in pod::init_containers(pod) {
        let value = of(container);
        all &= value.is_some();
        if pod::is_sidecar(container) {
            running += value.unwrap_or(0);
            peak = peak.max(running);
        } else {
            peak = peak.max(running + value.unwrap_or(0));
        }
    }
    for container in pod::main_containers(pod) {
        let value = of(container);
        all &= value.is_some();
        running += value.unwrap_or(0);
    }
    let total = running.max(peak);
    (all || total > 0).then_some(if all { total } else { -total })
}

/// The pod's CPU request in thousandths.
#[must_use]
pub fn cpu_request(pod: &Pod) -> i64 {
    pod_level(pod, "cpu", false)
        .or_else(|| aggregate(pod, |c| pod::request_milli(c.resources.as_ref(), "cpu")))
        .unwrap_or(0)
        .abs()
}

fn pod_level(pod: &Pod, key: &str, limit: bool) -> Option<i64> {
    let r = pod.spec.as_ref()?.resources.as_ref();
    if limit { pod::limit_milli(r, key) } else { pod::request_milli(r, key) }
}

/// A limit holds for the pod only when every container has one (or the pod itself does).
fn limit(pod: &Pod, key: &str) -> Option<i64> {
    pod_level(pod, key, true)
        .or_else(|| aggregate(pod, |c| pod::limit_milli(c.resources.as_ref(), key)).filter(|v| *v > 0))
}

/// The limits of a pod's cgroup.
#[must_use]
pub fn of_pod(pod: &Pod, enforce_quota: bool, period: Duration, pids: i64) -> PodResources {
    let quota = match limit(pod, "cpu").filter(|_| enforce_quota) {
        Some(milli) => quota(milli, period),
        None => -1,
    };
    PodResources {
        cpu_shares: Some(if Qos::of(pod) == Qos::BestEffort { MIN_SHARES } else { shares(cpu_request(pod)) }),
        cpu_quota: Some((quota, period_us(period))),
        memory: limit(pod, "memory").map(|milli| milli / 1000),
        pids: (pids > 0).then_some(pids),
    }
}

impl PodResources {
    /// Files and values of one controller on v1, or of the unified tree (controller "").
    #[must_use]
    pub fn files(&self, controller: &str) -> Vec<(&'static str, String)> {
        let mut out = Vec::new();
        match controller {
            "" => {
                out.extend(self.cpu_shares.map(|s| ("cpu.weight", weight(s).to_string())));
                out.extend(self.cpu_quota.map(|(quota, period)| {
                    let quota = if quota < 0 { "max".to_owned() } else { quota.to_string() };
                    ("cpu.max", format!("{quota} {period}"))
                }));
                out.extend(self.memory.map(|m| ("memory.max", m.to_string())));
                out.extend(self.pids.map(|p| ("pids.max", p.to_string())));
            }
            "cpu" => {
                out.extend(self.cpu_shares.map(|s| ("cpu.shares", s.to_string())));
                if let Some((quota, period)) = self.cpu_quota {
                    out.push(("cpu.cfs_period_us", period.to_string()));
                    out.push(("cpu.cfs_quota_us", quota.to_string()));
                }
            }
            "memory" => out.extend(self.memory.map(|m| ("memory.limit_in_bytes", m.to_string()))),
            "pids" => out.extend(self.pids.map(|p| ("pids.max", p.to_string()))),
            _ => {}
        }
        out
    }
}

/// The OOM score adjustment of a container.
#[must_use]
pub fn oom_score(pod: &Pod, container: Option<&ResourceRequirements>, memory_capacity: i64) -> i64 {
    let node_critical =
        pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= pod::SYSTEM_CRITICAL_PRIORITY + 1000);
    if node_critical {
        return GUARANTEED_OOM_SCORE;
    }
    match Qos::of(pod) {
        Qos::Guaranteed => GUARANTEED_OOM_SCORE,
        Qos::BestEffort => BEST_EFFORT_OOM_SCORE,
        Qos::Burstable => {
            let request = pod::request_milli(container, "memory").unwrap_or(0) / 1000;
            let share = if memory_capacity > 0 {
                i64::try_from(1000 * i128::from(request) / i128::from(memory_capacity)).unwrap_or(1000)
            } else {
                0
            };
            let score = 1000 - share;
            // Never as low as a guaranteed pod, never as high as a best-effort one.
            score.clamp(1000 + GUARANTEED_OOM_SCORE, BEST_EFFORT_OOM_SCORE - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(containers: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn known_points() {
        assert_eq!([shares(0), shares(1000), shares(100)], [2, 1024, 102]);
        assert_eq!([weight(2), weight(1024), weight(262_144)], [1, 100, 10_000]);
        assert_eq!(quota(500, Duration::from_millis(100)), 50_000);
        assert_eq!(quota(1, Duration::from_millis(100)), 1000);
    }

    #[test]
    fn a_memory_limit_needs_every_container() {
        let period = Duration::from_millis(100);
        let both = pod(json!([{"name": "a", "resources": {"limits": {"memory": "1Mi", "cpu": "1"}}},
            {"name": "b", "resources": {"limits": {"memory": "1Mi"}}}]));
        let r = of_pod(&both, true, period, -1);
        assert_eq!(r.memory, Some(2 << 20));
        assert_eq!(r.cpu_quota, Some((-1, 100_000)));
        assert_eq!(r.cpu_shares, Some(1024));
        let one = pod(json!([{"name": "a", "resources": {"limits": {"memory": "1Mi"}}}, {"name": "b"}]));
        assert_eq!(of_pod(&one, true, period, -1).memory, None);
    }

    #[test]
    fn oom_scores() {
        let burstable = pod(json!([{"name": "a", "resources": {"requests": {"memory": "1Gi"}}}]));
        let r = burstable.spec.as_ref().unwrap().containers[0].resources.as_ref();
        assert_eq!(oom_score(&burstable, r, 4 << 30), 750);
        assert_eq!(oom_score(&burstable, r, 1 << 30), 3);
        assert_eq!(oom_score(&burstable, None, 4 << 30), 999);
        assert_eq!(oom_score(&pod(json!([{"name": "a"}])), None, 1), 1000);
    }
}
