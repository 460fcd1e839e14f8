//! From a budget, its pods and the wished sizes of their owners to the budget's status. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::meta::{Round, controller_of, is_deleting, name_of, number, scaled};
use crate::pods::is_ready;

/// An eviction that has not become a deletion for so long did not happen (upstream's `DeletionTimeout`).
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
/// The condition's type.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// The status of a budget, and when it has to be looked at again.
#[derive(Debug)]
pub struct Plan {
    /// The status.
    pub status: PodDisruptionBudgetStatus,
    /// When the first eviction that is under way counts as not having happened.
    pub again: Option<Duration>,
}

/// Why the numbers are not known. Not retryable until an object changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// A pod's owner has no size that is known here.
    #[error("{kind} {owner} of pod {pod} does not implement the scale subresource")]
    NoScale {
        /// Kind of the owner.
        kind: String,
        /// Its name.
        owner: String,
        /// The pod.
        pod: String,
    },
}

/// The status of `budget`; `scale` knows the wished size of an owner by UID, with the UID of who decides it (a ReplicaSet's Deployment).
///
/// # Errors
/// [`Unknown`] when the number of expected pods cannot be told.
pub fn plan(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale: impl Fn(&str) -> Option<(String, i32)>,
    now: Timestamp,
) -> Result<Plan, Unknown> {
    let (expected, desired) = wanted(budget, pods, scale)?;
    let (disrupted, again) = under_way(budget, pods, now);
    let healthy = pods.iter().filter(|pod| !is_deleting(pod.as_ref())).filter(|pod| {
        let evicted = disrupted.contains_key(name_of(pod.as_ref()));
        !evicted && is_ready(pod)
    });
    let healthy = number(healthy.count());
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let old = budget.status.as_ref();
    let status = PodDisruptionBudgetStatus {
        conditions: Some(vec![condition(old, allowed > 0, budget.metadata.generation, now)]),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(expected),
        observed_generation: budget.metadata.generation,
    };
    Ok(Plan { status, again })
}

/// The status of a budget whose numbers are not known: nothing is allowed.
pub fn failed(budget: &PodDisruptionBudget, why: &Unknown, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    let mut condition = condition(budget.status.as_ref(), false, budget.metadata.generation, now);
    condition.reason = "SyncFailed".to_owned();
    condition.message = why.to_string();
    status.disruptions_allowed = Some(0);
    status.observed_generation = budget.metadata.generation;
    status.conditions = Some(vec![condition]);
    status
}

fn condition(
    old: Option<&PodDisruptionBudgetStatus>,
    allowed: bool,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = if allowed { "True" } else { "False" };
    let before = old.and_then(|old| old.conditions.as_ref()?.iter().find(|c| c.type_ == DISRUPTION_ALLOWED));
    let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
    // Seconds, as it will be read back: else it would differ each time.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: if allowed { "SufficientPods" } else { "InsufficientPods" }.to_owned(),
        message: String::new(),
        observed_generation: generation,
        last_transition_time: since.unwrap_or(Time(now)),
    }
}

/// Expected pods, and how many of them have to be healthy.
fn wanted(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale: impl Fn(&str) -> Option<(String, i32)>,
) -> Result<(i32, i32), Unknown> {
    let spec = budget.spec.as_ref();
    if let Some(most) = spec.and_then(|spec| spec.max_unavailable.as_ref()) {
        let expected = sizes(pods, scale)?;
        return Ok((expected, (expected - scaled(most, expected, Round::Up)).max(0)));
    }
    match spec.and_then(|spec| spec.min_available.as_ref()) {
        Some(IntOrString::Int(least)) => Ok((number(pods.len()), *least)),
        Some(share) => {
            let expected = sizes(pods, scale)?;
            Ok((expected, scaled(share, expected, Round::Up)))
        }
        None => Ok((0, 0)),
    }
}

/// The wished sizes of all owners together. Pods without an owner do not count, as upstream.
fn sizes(pods: &[Arc<Pod>], scale: impl Fn(&str) -> Option<(String, i32)>) -> Result<i32, Unknown> {
    let mut seen = BTreeSet::new();
    let mut total = 0;
    for pod in pods {
        let Some(owner) = controller_of(pod.as_ref()) else { continue };
        let Some((decider, size)) = scale(&owner.uid) else {
            return Err(Unknown::NoScale {
                kind: owner.kind.clone(),
                owner: owner.name.clone(),
                pod: name_of(pod.as_ref()).to_owned(),
            });
        };
        if seen.insert(decider) {
            total += size;
        }
    }
    Ok(total)
}

/// Evictions that were granted and are not seen as deletions yet, and when the first of them is given up.
fn under_way(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let noted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    let mut kept = BTreeMap::new();
    let mut again: Option<Duration> = None;
    for (name, since) in noted.into_iter().flatten() {
        let there = pods.iter().any(|pod| name_of(pod.as_ref()) == name && !is_deleting(pod.as_ref()));
        let left = since.0 + DELETION_TIMEOUT;
        if !there || left <= now {
            continue;
        }
        let wait = Duration::try_from(left.duration_since(now)).unwrap_or_default();
        again = Some(again.map_or(wait, |earlier| earlier.min(wait)));
        kept.insert(name.clone(), since.clone());
    }
    (kept, again)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn pod(name: &str, owner: Option<&str>, ready: bool) -> Arc<Pod> {
        let owners = owner.map(
            |uid| json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": true}]),
        );
        let ready = if ready { "True" } else { "False" };
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": owners},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap(),
        )
    }

    fn budget(spec: &Value, status: &Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({"metadata": {"name": "b", "generation": 3}, "spec": spec, "status": status}))
            .unwrap()
    }

    fn of(spec: &Value, pods: &[Arc<Pod>]) -> (i32, i32, i32, i32) {
        let scale = |uid: &str| (uid == "rs").then(|| ("deployment".to_owned(), 4));
        let status = plan(&budget(spec, &Value::Null), pods, scale, NOW.parse().unwrap()).unwrap().status;
        let numbers =
            [status.expected_pods, status.desired_healthy, status.current_healthy, status.disruptions_allowed];
        let [expected, desired, healthy, allowed] = numbers.map(|number| number.unwrap_or(-1));
        (expected, desired, healthy, allowed)
    }

    #[test]
    fn numbers_and_shares() {
        let pods: Vec<_> = (0..4).map(|n| pod(&format!("p{n}"), Some("rs"), n != 3)).collect();
        assert_eq!(of(&json!({"minAvailable": 2}), &pods), (4, 2, 3, 1));
        assert_eq!(of(&json!({"minAvailable": "60%"}), &pods), (4, 3, 3, 0));
        assert_eq!(of(&json!({"maxUnavailable": 2}), &pods), (4, 2, 3, 1));
        assert_eq!(of(&json!({"maxUnavailable": "30%"}), &pods), (4, 2, 3, 1));
        assert_eq!(of(&json!({"maxUnavailable": 9}), &pods), (4, 0, 3, 3));
        assert_eq!(of(&json!({"minAvailable": 0}), &[]), (0, 0, 0, 0));
        assert_eq!(of(&json!({"maxUnavailable": 1}), &[pod("bare", None, true)]), (0, 0, 1, 0));
        assert_eq!(of(&json!({"minAvailable": 1}), &[pod("bare", None, true)]), (1, 1, 1, 0));
    }

    #[test]
    fn an_owner_without_a_size_allows_nothing() {
        let budget = budget(
            &json!({"maxUnavailable": 1}),
            &json!({"disruptionsAllowed": 2, "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3}),
        );
        let now = NOW.parse().unwrap();
        let why = plan(&budget, &[pod("p", Some("other"), true)], |_| None, now).unwrap_err();
        let status = failed(&budget, &why, now);
        let condition = &status.conditions.as_ref().unwrap()[0];
        assert_eq!((status.disruptions_allowed, condition.reason.as_str()), (Some(0), "SyncFailed"));
        assert_eq!(condition.message, "ReplicaSet other of pod p does not implement the scale subresource");
    }

    #[test]
    fn evictions_under_way_count_until_they_are_given_up() {
        let pods: Vec<_> = (0..3).map(|n| pod(&format!("p{n}"), Some("rs"), true)).collect();
        let noted = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            "disruptedPods": {"p0": "2026-01-01T00:09:00Z", "p1": "2026-01-01T00:07:59Z", "gone": "2026-01-01T00:09:00Z"}});
        let plan = plan(&budget(&json!({"minAvailable": 1}), &noted), &pods, |_| None, NOW.parse().unwrap()).unwrap();
        assert_eq!(plan.status.disrupted_pods.unwrap().keys().collect::<Vec<_>>(), ["p0"]);
        assert_eq!((plan.status.current_healthy, plan.status.disruptions_allowed), (Some(2), Some(1)));
        assert_eq!(plan.again, Some(Duration::from_secs(60)));
    }

    #[test]
    fn the_condition_keeps_its_time() {
        let pods = [pod("p", Some("rs"), true)];
        let first = plan(
            &budget(&json!({"minAvailable": 1}), &Value::Null),
            &pods,
            |_| None,
            "2026-01-01T00:00:00.5Z".parse().unwrap(),
        );
        let status = serde_json::to_value(first.unwrap().status).unwrap();
        let again = plan(&budget(&json!({"minAvailable": 1}), &status), &pods, |_| None, NOW.parse().unwrap()).unwrap();
        assert_eq!(serde_json::to_value(again.status).unwrap(), status);
    }
}
