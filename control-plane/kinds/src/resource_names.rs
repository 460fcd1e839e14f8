//! Names of resources: which of them upstream knows for what.
//!
//! Upstream counterpart: `pkg/apis/core/helper`.

use kube_common::quantity::Quantity;
use serde_json::Value;

use crate::names::qualified_name;

/// An amount, given as a text or a number.
#[must_use]
pub fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// Resources of which containers can ask.
#[must_use]
pub fn of_containers(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// What quotas count in whole pieces, by its short names.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Unqualified names that quotas know.
#[must_use]
pub fn of_quotas(name: &str) -> bool {
    const AMOUNTS: [&str; 10] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "requests.storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    let huge_pages = name.starts_with("hugepages-") || name.starts_with("requests.hugepages-");
    AMOUNTS.contains(&name) || COUNTED.contains(&name) || huge_pages
}

/// Unqualified names that exist at all.
#[must_use]
pub fn standard(name: &str) -> bool {
    name == "storage" || of_quotas(name)
}

/// Names without a domain, and those of Kubernetes' own.
#[must_use]
pub fn native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Names of devices and the like.
#[must_use]
pub fn extended(name: &str) -> bool {
    !native(name) && !name.starts_with("requests.") && qualified_name(&format!("requests.{name}")).is_empty()
}

/// Whether only whole amounts make sense.
#[must_use]
pub fn whole(name: &str) -> bool {
    COUNTED.contains(&name) || extended(name)
}

/// Whether limits may be above requests.
#[must_use]
pub fn overcommit(name: &str) -> bool {
    native(name) && !name.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_resources() {
        for (name, in_containers, in_quotas, is_extended, in_whole, over) in [
            ("cpu", true, true, false, false, true),
            ("pods", false, true, false, true, true),
            ("storage", false, false, false, false, true),
            ("hugepages-2Mi", true, true, false, false, false),
            ("requests.hugepages-2Mi", false, true, false, false, true),
            ("example.com/gpu", false, false, true, true, false),
            ("requests.example.com/gpu", false, false, false, false, false),
            ("kubernetes.io/x", false, false, false, false, true),
            ("count/deployments.apps", false, false, true, true, false),
            ("made-up", false, false, false, false, true),
        ] {
            assert_eq!(
                (of_containers(name), of_quotas(name), extended(name), whole(name), overcommit(name)),
                (in_containers, in_quotas, is_extended, in_whole, over),
                "{name}"
            );
        }
        assert!(standard("storage") && standard("cpu") && !standard("made-up"));
    }
}
