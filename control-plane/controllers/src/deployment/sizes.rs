//! The arithmetic of surge, availability and proportional scaling. Pure.
//!
//! Upstream counterpart: `deployment_util.go` (`ResolveFenceposts`, `NewRSNewReplicas`, `GetReplicaSetProportion`).

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::history::{DESIRED, MAX};
use crate::meta::{Round, annotation, created, scaled};

/// The wished number of replicas.
pub fn wished(deployment: &Deployment) -> i32 {
    deployment.spec.replicas.unwrap_or(1)
}

/// The wished number of a set.
pub fn size(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

/// Available pods of a set.
pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

/// Sum of the wished sizes.
pub fn total<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>) -> i32 {
    sets.into_iter().map(size).sum()
}

/// All pods are replaced at once.
pub fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.strategy.as_ref();
    strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate")
}

/// (maxSurge, maxUnavailable) in pods. Both 0 would never get on: then one may be unavailable.
pub fn fenceposts(deployment: &Deployment) -> (i32, i32) {
    if is_recreate(deployment) {
        return (0, 0);
    }
    let quarter = IntOrString::String("25%".to_owned());
    let strategy = deployment.spec.strategy.as_ref();
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let surge = rolling.and_then(|r| r.max_surge.as_ref()).unwrap_or(&quarter);
    let unavailable = rolling.and_then(|r| r.max_unavailable.as_ref()).unwrap_or(&quarter);
    let wished = wished(deployment);
    let surge = scaled(surge, wished, Round::Up);
    let unavailable = scaled(unavailable, wished, Round::Down);
    if surge == 0 && unavailable == 0 {
        return (0, 1);
    }
    (surge, unavailable)
}

/// Pods that may be made beyond the wish.
pub fn max_surge(deployment: &Deployment) -> i32 {
    fenceposts(deployment).0
}

/// Pods that may be missing.
pub fn max_unavailable(deployment: &Deployment) -> i32 {
    if is_recreate(deployment) || wished(deployment) == 0 {
        return 0;
    }
    fenceposts(deployment).1.min(wished(deployment))
}

/// The size that the newest set may have now.
pub fn new_set_size(deployment: &Deployment, all: i32, new: &ReplicaSet) -> i32 {
    let wished = wished(deployment);
    if is_recreate(deployment) {
        return wished;
    }
    let room = wished + max_surge(deployment) - all;
    if room <= 0 {
        return size(new);
    }
    size(new) + room.min(wished - size(new))
}

/// The set has the whole wish, all of it available.
pub fn is_saturated(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let wished = wished(deployment);
    let desired = annotation(set, DESIRED).and_then(|v| v.parse().ok());
    size(set) == wished && desired == Some(wished) && available(set) == wished
}

/// New sizes (in the order of `sets`) so that each set gets its share of a changed wish.
pub fn proportional(deployment: &Deployment, sets: &[&ReplicaSet]) -> Vec<i32> {
    let mut sizes: Vec<i32> = sets.iter().map(|s| size(s)).collect();
    let wished = wished(deployment);
    let allowed = if wished > 0 { wished + max_surge(deployment) } else { 0 };
    let missing = allowed - sizes.iter().sum::<i32>();
    if missing == 0 {
        return sizes;
    }
    let mut order: Vec<usize> = (0..sets.len()).collect();
    order.sort_by(|&a, &b| {
        let age = created(sets[a]).cmp(&created(sets[b]));
        size(sets[b]).cmp(&size(sets[a])).then(if missing > 0 { age.reverse() } else { age })
    });
    let mut added = 0;
    for &i in &order {
        let left = missing - added;
        let share = fraction(deployment, sets[i]);
        let share = if missing > 0 { share.min(left) } else { share.max(left) };
        sizes[i] += share;
        added += share;
    }
    if let Some(&largest) = order.first() {
        sizes[largest] = (sizes[largest] + missing - added).max(0);
    }
    sizes.iter().map(|s| (*s).max(0)).collect()
}

fn fraction(deployment: &Deployment, set: &ReplicaSet) -> i32 {
    if wished(deployment) == 0 {
        return -size(set);
    }
    let max_now = i64::from(wished(deployment) + max_surge(deployment));
    let reported = deployment.status.as_ref().and_then(|s| s.replicas).unwrap_or(0);
    let before: i64 =
        annotation(set, MAX).and_then(|v| v.parse().ok()).filter(|v| *v > 0).unwrap_or(i64::from(reported));
    if before == 0 {
        return 0;
    }
    let product = i64::from(size(set)) * max_now;
    // Rounded to the nearest, halves up.
    let scaled = (2 * product + before) / (2 * before);
    i32::try_from(scaled).unwrap_or(i32::MAX) - size(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn deployment(replicas: i32, surge: &serde_json::Value, unavailable: &serde_json::Value) -> Deployment {
        serde_json::from_value(json!({"spec": {"replicas": replicas, "selector": {}, "template": {},
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}}))
        .unwrap()
    }

    fn set(replicas: i32, max: i32) -> ReplicaSet {
        serde_json::from_value(json!({"metadata": {"annotations": {MAX: max.to_string()}},
            "spec": {"replicas": replicas, "selector": {}}}))
        .unwrap()
    }

    #[test]
    fn fenceposts_as_upstream() {
        let cases = [
            (json!("25%"), json!("25%"), 10, (3, 2)),
            (json!("0%"), json!("0%"), 10, (0, 1)),
            (json!(2), json!(0), 5, (2, 0)),
            (json!("25%"), json!("25%"), 1, (1, 0)),
        ];
        for (surge, unavailable, replicas, want) in cases {
            assert_eq!(fenceposts(&deployment(replicas, &surge, &unavailable)), want);
        }
        assert_eq!(max_unavailable(&deployment(2, &json!(0), &json!(9))), 2);
    }

    #[test]
    fn a_rollout_in_the_middle_scales_in_proportion() {
        // 10 replicas with surge 3: sets of 8 and 5; now 15 replicas, surge 3 (documentation's example).
        let d = deployment(15, &json!(3), &json!(2));
        let (old, new) = (set(8, 13), set(5, 13));
        assert_eq!(proportional(&d, &[&old, &new]), [11, 7]);
    }

    proptest! {
        #[test]
        fn shares_sum_to_what_is_allowed(a in 0i32..30, b in 0i32..30, c in 0i32..30, wish in 0i32..60, surge in 0i32..6) {
            let d = deployment(wish, &json!(surge), &json!(1));
            let max = (a + b + c).max(1);
            let (a, b, c) = (set(a, max), set(b, max), set(c, max));
            let sizes = proportional(&d, &[&a, &b, &c]);
            prop_assert!(sizes.iter().all(|s| *s >= 0));
            let allowed = if wish > 0 { wish + surge } else { 0 };
            prop_assert_eq!(sizes.iter().sum::<i32>(), allowed);
        }
    }
}
