//! Nodes.
//!
//! Upstream counterparts: `pkg/registry/core/node`, `ValidateNode` and `ValidateNodeUpdate` in `pkg/apis/core/validation`.

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::status;
use crate::error::FieldError;
use crate::resource::{Subresource, Verb};
use crate::strategy::{Part, Rules};
use crate::table::{AGE, Columns, NAME, age_of, name_of, text, wide};
use crate::{names, val};

const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "PreferNoSchedule"];

static RULES: Rules = Rules {
    status: true,
    status_on_create: true,
    defaults: |obj| {
        pod_cidrs(val::child(obj, "spec"));
        if let Some(status) = val::child_mut(obj, "status") {
            // Allocatable falls back to capacity, as in upstream's defaults.
            if val::map(status, "allocatable").is_none()
                && let Some(capacity) = status.get("capacity").cloned()
            {
                val::set(status, "allocatable", capacity);
            }
        }
    },
    create: |obj| {
        // A node says nothing about where its configuration comes from through the API.
        val::remove(val::child(obj, "spec"), "configSource");
    },
    validate,
    validate_update,
    selectable: &["spec.unschedulable"],
    selectable_values: Some(|obj| vec![("spec.unschedulable", val::flag(obj, "spec.unschedulable").to_string())]),
    ..Rules::PLAIN
};

/// Two fields say the same; `podCIDR` is the older one and wins, as in upstream's conversion.
fn pod_cidrs(spec: &mut Value) {
    let first = val::list(spec, "podCIDRs").first().and_then(Value::as_str).unwrap_or_default().to_owned();
    let single = val::text(spec, "podCIDR").to_owned();
    if single.is_empty() && !first.is_empty() {
        val::set(spec, "podCIDR", first);
    } else if single != first {
        val::set(spec, "podCIDRs", json!([single]));
    }
}

fn validate(obj: &Value) -> Vec<FieldError> {
    let mut errors = taints(val::list(obj, "spec.taints"));
    let mut seen = Vec::new();
    for (i, cidr) in val::list(obj, "spec.podCIDRs").iter().filter_map(Value::as_str).enumerate() {
        let field = format!("spec.podCIDRs[{i}]");
        for msg in names::cidr(cidr) {
            errors.push(FieldError::invalid(field.as_str(), cidr, msg));
        }
        if seen.contains(&cidr) {
            errors.push(FieldError::duplicate(field, cidr));
        }
        seen.push(cidr);
    }
    for address in val::list(obj, "status.addresses") {
        if val::text(address, "type").is_empty() {
            errors.push(FieldError::required("status.addresses[0].type", ""));
        }
    }
    errors
}

fn taints(taints: &[Value]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = Vec::new();
    for (i, taint) in taints.iter().enumerate() {
        let at = format!("spec.taints[{i}]");
        let (key, value, effect) = (val::text(taint, "key"), val::text(taint, "value"), val::text(taint, "effect"));
        for msg in names::qualified_name(key) {
            errors.push(FieldError::invalid(format!("{at}.key"), key, msg));
        }
        for msg in names::label_value(value) {
            errors.push(FieldError::invalid(format!("{at}.value"), value, msg));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(format!("{at}.effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(format!("{at}.effect"), effect, EFFECTS));
        }
        if seen.contains(&(key, effect)) {
            errors.push(FieldError::duplicate(at, taint.clone()));
        }
        seen.push((key, effect));
    }
    errors
}

fn validate_update(new: &Value, old: &Value, _: Part) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (before, after) = (val::text(old, "spec.providerID"), val::text(new, "spec.providerID"));
    if !before.is_empty() && before != after {
        errors.push(FieldError::forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
    let before = val::list(old, "spec.podCIDRs");
    if !before.is_empty() && before != val::list(new, "spec.podCIDRs") {
        errors.push(FieldError::forbidden(
            "spec.podCIDRs",
            "node updates may not change podCIDR except from \"\" to valid",
        ));
    }
    errors
}

static COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Status"),
        text("Roles"),
        AGE,
        text("Version"),
        wide("Internal-IP"),
        wide("External-IP"),
        wide("OS-Image"),
        wide("Kernel-Version"),
        wide("Container-Runtime"),
    ],
    cells,
};

fn cells(obj: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let ready = val::list(obj, "status.conditions").iter().find(|c| val::text(c, "type") == "Ready");
    let mut state = match ready.map(|c| val::text(c, "status")) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if val::flag(obj, "spec.unschedulable") {
        state.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = val::list(obj, "status.addresses").iter().find(|a| val::text(a, "type") == kind);
        json!(found.map_or("<none>", |a| val::text(a, "address")))
    };
    let info = |key: &str| {
        let value = val::text(obj, &format!("status.nodeInfo.{key}"));
        json!(if value.is_empty() { "<unknown>" } else { value })
    };
    vec![
        name_of(obj),
        json!(state),
        json!(roles(obj)),
        age_of(obj, now),
        json!(val::text(obj, "status.nodeInfo.kubeletVersion")),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ]
}

/// Roles from the labels `node-role.kubernetes.io/ROLE` and `kubernetes.io/role=ROLE`.
fn roles(obj: &Value) -> String {
    let mut roles: Vec<&str> = val::entries(obj, "metadata.labels")
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role).filter(|r| !r.is_empty()),
            None if key == "kubernetes.io/role" => value.as_str().filter(|r| !r.is_empty()),
            None => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

kind!(NODES: "core" "" "v1" "Node", "nodes" "node", Cluster "/registry/minions/", core::Node, RULES, COLUMNS, short_names: &["no"],
subresources: &[
    Subresource {
        name: "proxy",
        group: "",
        version: "v1",
        kind: "NodeProxyOptions",
        verbs: &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update],
    },
    status("", "v1", "Node"),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_cells() {
        let node = json!({
            "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.37.0", "osImage": "Debian"},
            },
        });
        let now = "2026-01-02T03:04:05Z".parse().expect("time");
        let cells = cells(&node, now);
        assert_eq!(cells[1], "Ready,SchedulingDisabled");
        assert_eq!(cells[2], "edge,worker");
        assert_eq!(cells[5], "10.0.0.1");
        assert_eq!(cells[6], "<none>");
        assert_eq!(cells[9], "<unknown>");
    }

    #[test]
    fn pod_ranges_stay_whichever_field_names_them() {
        let ranges = |spec: Value| {
            let mut node = json!({"metadata": {"name": "n"}, "spec": spec});
            (RULES.defaults)(&mut node);
            node
        };
        let old = ranges(json!({"podCIDRs": ["10.244.1.0/24"]}));
        assert_eq!(old["spec"]["podCIDR"], "10.244.1.0/24");
        assert_eq!(ranges(json!({"podCIDR": "10.244.1.0/24"})), old);
        for changed in [
            json!({"podCIDR": "10.244.2.0/24", "podCIDRs": ["10.244.1.0/24"]}),
            json!({"podCIDR": "10.244.2.0/24"}),
            json!({"podCIDRs": ["10.244.2.0/24"]}),
            json!({}),
        ] {
            let errors = validate_update(&ranges(changed.clone()), &old, Part::Main);
            assert!(errors.iter().any(|e| e.field == "spec.podCIDRs"), "{changed}");
        }
        assert!(validate_update(&old, &old, Part::Main).is_empty());
        assert!(validate_update(&old, &ranges(json!({})), Part::Main).is_empty());
    }

    #[test]
    fn taints_are_checked() {
        let errors = taints(&[
            json!({"key": "a", "effect": "Never"}),
            json!({"key": "a", "effect": "NoExecute"}),
            json!({"key": "a", "effect": "NoExecute"}),
        ]);
        assert_eq!(
            errors[0].to_string(),
            "spec.taints[0].effect: Unsupported value: \"Never\": supported values: \"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\""
        );
        assert!(errors[1].to_string().starts_with("spec.taints[2]: Duplicate value"));
    }
}
