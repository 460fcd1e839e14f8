//! What a pod counts for.
//!
//! Upstream counterpart: `pkg/quota/v1/evaluator/core/pods.go`.

use std::collections::{BTreeMap, BTreeSet};

use kube_common::quantity::Quantity;
use serde_json::Value;

use crate::json::{entries, items, text};
use crate::resources::{ResourceList, parse, pod_limits, pod_requests, set_as_a_whole};
use keelson_kinds::resource_names::{self, quantity};

const TRACKED: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];
/// Where a quota limits these, each container has to say how much it takes.
const EXPLICIT: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
/// Extended resources that a device class answers to.
const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

pub(super) fn tracks(name: &str) -> bool {
    TRACKED.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
        || (name.starts_with("requests.") && !resource_names::native(name))
}

/// Every pod that is stored counts as an object; for the rest only those that are not over.
pub(super) fn usage(pod: &Value, now: i64) -> ResourceList {
    let mut usage = ResourceList::from([("count/pods".to_owned(), Quantity::from_value(1))]);
    if counts(pod, now) {
        usage.extend(of_amounts(&pod_requests(pod), &pod_limits(pod)));
    }
    usage
}

fn of_amounts(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut usage = ResourceList::from([("pods".to_owned(), Quantity::from_value(1))]);
    for (name, amount) in requests {
        let plain = resource_names::of_containers(name);
        if plain {
            usage.insert(name.clone(), *amount);
        }
        if plain || resource_names::extended(name) || name.starts_with(DEVICE_CLASS_PREFIX) {
            usage.insert(format!("requests.{name}"), *amount);
        }
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        usage.extend(limits.get(name).map(|amount| (format!("limits.{name}"), *amount)));
    }
    usage
}

/// Not one that has ended, nor one that should have by now.
pub(super) fn counts(pod: &Value, now: i64) -> bool {
    if matches!(text(&pod["status"]["phase"]), "Failed" | "Succeeded") {
        return false;
    }
    let metadata = &pod["metadata"];
    let deleted = metadata["deletionTimestamp"].as_str().and_then(unix_seconds);
    let grace = metadata["deletionGracePeriodSeconds"].as_i64();
    deleted.zip(grace).is_none_or(|(deleted, grace)| now <= deleted.saturating_add(grace))
}

/// Seconds since 1970 of a timestamp as objects have them: `2026-01-02T03:04:05Z`.
fn unix_seconds(time: &str) -> Option<i64> {
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, separator: char| -> Option<[i64; 3]> {
        let parts: Option<Vec<i64>> = text.split(separator).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock.split_once('.').map_or(clock, |(whole, _)| whole), ':')?;
    if !(0..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    // Days from the first of March of year 0, so that the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// `limits.cpu for: a,b; …`, of what the quota's resources demand of each container.
pub(super) fn unspecified(limited: &BTreeSet<&str>, pod: &Value) -> Option<String> {
    let spec = &pod["spec"];
    if set_as_a_whole(spec) {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in items(&spec["containers"]).iter().chain(items(&spec["initContainers"])) {
        let resources = &container["resources"];
        let said = of_amounts(&parse(&resources["requests"]), &parse(&resources["limits"]));
        for name in EXPLICIT.into_iter().filter(|name| limited.contains(name) && !said.contains_key(*name)) {
            missing.entry(name).or_default().insert(text(&container["name"]));
        }
    }
    let one = |(name, containers): (&str, BTreeSet<&str>)| {
        format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
    };
    (!missing.is_empty()).then(|| missing.into_iter().map(one).collect::<Vec<_>>().join("; "))
}

/// Whether a pod ends by itself after a time.
pub(super) fn terminating(pod: &Value) -> bool {
    pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0)
}

/// Whether a pod asks for no processor time and no memory.
pub(super) fn best_effort(pod: &Value) -> bool {
    if let Some(class) = pod["status"]["qosClass"].as_str() {
        return class == "BestEffort";
    }
    let spec = &pod["spec"];
    let asks = |resources: &Value| {
        let mut amounts = ["requests", "limits"].into_iter().flat_map(|list| entries(&resources[list]));
        amounts.any(|(name, amount)| {
            let positive = quantity(amount).is_some_and(|amount| !amount.is_zero() && !amount.is_negative());
            matches!(name, "cpu" | "memory") && positive
        })
    };
    if set_as_a_whole(spec) {
        return !asks(&spec["resources"]);
    }
    let mut containers = items(&spec["containers"]).iter().chain(items(&spec["initContainers"]));
    !containers.any(|container| asks(&container["resources"]))
}

/// Whether a pod wants to be near to, or far from, pods of other namespaces.
pub(super) fn crosses_namespaces(pod: &Value) -> bool {
    let affinity = &pod["spec"]["affinity"];
    let crosses = |term: &Value| !items(&term["namespaces"]).is_empty() || !term["namespaceSelector"].is_null();
    [&affinity["podAffinity"], &affinity["podAntiAffinity"]].into_iter().any(|affinity| {
        items(&affinity["requiredDuringSchedulingIgnoredDuringExecution"]).iter().any(crosses)
            || items(&affinity["preferredDuringSchedulingIgnoredDuringExecution"])
                .iter()
                .any(|weighted| crosses(&weighted["podAffinityTerm"]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn timestamps() {
        for (time, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56Z", Some(951_827_696)),
            ("2026-03-01T00:00:00.123456Z", Some(1_772_323_200)),
            ("1969-12-31T23:59:59Z", Some(-1)),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-01T24:00:00Z", None),
            ("2026-01-01", None),
            ("", None),
        ] {
            assert_eq!(unix_seconds(time), seconds, "{time}");
        }
    }

    #[test]
    fn best_effort_is_without_processors_and_memory() {
        for (spec, want) in [
            (json!({"containers": [{}]}), true),
            (json!({"containers": [{"resources": {"requests": {"cpu": "0"}}}]}), true),
            (json!({"containers": [{"resources": {"requests": {"ephemeral-storage": "1"}}}]}), true),
            (json!({"containers": [{"resources": {"limits": {"memory": "1"}}}]}), false),
            (json!({"containers": [{}], "initContainers": [{"resources": {"requests": {"cpu": "1"}}}]}), false),
            (json!({"containers": [{}], "resources": {"requests": {"cpu": "1"}}}), false),
        ] {
            assert_eq!(best_effort(&json!({"spec": spec})), want, "{spec}");
        }
        assert!(!best_effort(&json!({"status": {"qosClass": "Burstable"}})));
    }
}
