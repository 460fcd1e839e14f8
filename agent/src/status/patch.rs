//! The smallest strategic merge patch that leads from one pod or node status to another.
//!
//! Lists with a merge key (`conditions` by `type`, addresses by `ip`) become changed and deleted items, other
//! lists are replaced, fields that vanished become `null`. What belongs to others (conditions of other types, the scheduler's and the
//! controllers' fields, extended resources) is kept as the API has it.

use serde_json::{Map, Value, json};

use super::conditions::{DISRUPTED_BY_NODE, DISRUPTION};

/// Merge keys of the lists in `PodStatus` and `NodeStatus` (from the API's `x-kubernetes-patch-merge-key`).
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" | "addresses" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    }
}

/// Fields of `PodStatus` that the scheduler and controllers write.
const POD_FIELDS_OF_OTHERS: [&str; 3] = ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"];
/// Fields of `NodeStatus` that others write.
const NODE_FIELDS_OF_OTHERS: [&str; 2] = ["volumesAttached", "phase"];

/// A pod's status to send: ours, with what others wrote as the API has it.
#[must_use]
pub fn pod_status(base: &Value, mut ours: Value) -> Value {
    keep(base, &mut ours, &super::conditions::OURS, &POD_FIELDS_OF_OTHERS);
    ours
}

/// A node's status to send: ours, with what others wrote as the API has it. Extended resources that somebody advertised are kept, and
/// allocatable in full, as upstream has it.
#[must_use]
pub fn node_status(base: &Value, mut ours: Value) -> Value {
    keep(base, &mut ours, &crate::node::status::CONDITIONS, &NODE_FIELDS_OF_OTHERS);
    let extended = |name: &str| name.contains('/') && !name.contains("kubernetes.io/");
    let advertised: Vec<(String, Value)> = base["capacity"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| extended(name))
        .map(|(name, quantity)| (name.clone(), quantity.clone()))
        .collect();
    for list in ["capacity", "allocatable"] {
        if let Some(resources) = ours.get_mut(list).and_then(Value::as_object_mut) {
            for (name, quantity) in &advertised {
                resources.entry(name.clone()).or_insert_with(|| quantity.clone());
            }
        }
    }
    ours
}

fn keep(base: &Value, ours: &mut Value, conditions: &[&str], fields: &[&str]) {
    let Some(ours) = ours.as_object_mut() else { return };
    for field in fields {
        match base.get(field) {
            Some(theirs) => ours.insert((*field).to_owned(), theirs.clone()),
            None => ours.remove(*field),
        };
    }
    let other = |condition: &Value| condition["type"].as_str().is_none_or(|kind| !conditions.contains(&kind));
    // Both may tell that a pod is disrupted.
    let by_us = |condition: &Value| condition["type"] == DISRUPTION && condition["reason"] == DISRUPTED_BY_NODE;
    if let Some(list) = ours.get_mut("conditions").and_then(Value::as_array_mut) {
        list.retain(|condition| !other(condition) || by_us(condition));
        let theirs = base["conditions"].as_array().into_iter().flatten().filter(|condition| other(condition));
        let more: Vec<Value> =
            theirs.filter(|theirs| !list.iter().any(|o| o["type"] == theirs["type"])).cloned().collect();
        list.extend(more);
    }
}

/// The patch from `old` to `new`; `None` when they are equal.
#[must_use]
pub fn diff(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return Some(new.clone()) };
    let mut out = Map::new();
    for (key, value) in new {
        let before = old.get(key).unwrap_or(&Value::Null);
        if before == value {
            continue;
        }
        let change = match (merge_key(key), before, value) {
            (Some(by), Value::Array(a), Value::Array(b)) => list_diff(by, a, b),
            (_, Value::Object(_), Value::Object(_)) => diff(before, value),
            _ => Some(value.clone()),
        };
        if let Some(change) = change {
            out.insert(key.clone(), change);
        }
    }
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        out.insert(key.clone(), Value::Null);
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

fn list_diff(by: &str, old: &[Value], new: &[Value]) -> Option<Value> {
    let mut out = Vec::new();
    for item in new {
        match old.iter().find(|o| o.get(by) == item.get(by)) {
            None => out.push(item.clone()),
            Some(before) => {
                if let Some(mut change) = diff(before, item) {
                    if let (Some(map), Some(key)) = (change.as_object_mut(), item.get(by)) {
                        map.insert(by.to_owned(), key.clone());
                    }
                    out.push(change);
                }
            }
        }
    }
    for item in old.iter().filter(|o| !new.iter().any(|n| n.get(by) == o.get(by))) {
        out.push(json!({"$patch": "delete", by: item.get(by)}));
    }
    (!out.is_empty()).then_some(Value::Array(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_stays() {
        let base = json!({"nominatedNodeName": "n", "conditions": [{"type": "x/gate", "status": "True"}, {"type": "Ready", "status": "False"}]});
        let ours = json!({"resourceClaimStatuses": [], "conditions":
            [{"type": "Ready", "status": "True"}, {"type": "x/gate", "status": "False"}, {"type": "x/old", "status": "True"}]});
        let change = diff(&base, &pod_status(&base, ours)).unwrap();
        assert_eq!(change, json!({"conditions": [{"type": "Ready", "status": "True"}]}));
        let base = json!({"capacity": {"cpu": "1", "example.com/foo": "3", "hugepages-2Mi": "0"}, "volumesAttached": [{"name": "v"}],
            "conditions": [{"type": "KernelDeadlock", "status": "False"}, {"type": "Ready", "status": "True"}]});
        let ours = json!({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]});
        let change = diff(&base, &node_status(&base, ours)).unwrap();
        let expected = json!({"capacity": {"cpu": "2", "hugepages-2Mi": null}, "allocatable": {"cpu": "2", "example.com/foo": "3"}});
        assert_eq!(change, expected);
    }

    #[test]
    fn only_changes_are_sent() {
        let old = json!({"phase": "Pending", "reason": "x", "podIPs": [{"ip": "1"}],
            "conditions": [{"type": "A", "status": "False", "message": "m"}, {"type": "B", "status": "True"}],
            "containerStatuses": [{"name": "a"}]});
        let new = json!({"phase": "Running", "podIPs": [{"ip": "2"}],
            "conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}],
            "containerStatuses": [{"name": "a", "ready": true}]});
        assert_eq!(
            diff(&old, &new).unwrap(),
            json!({"phase": "Running", "reason": null,
                "podIPs": [{"ip": "2"}, {"$patch": "delete", "ip": "1"}],
                "conditions": [{"type": "A", "status": "True", "message": null}],
                "containerStatuses": [{"name": "a", "ready": true}]})
        );
        assert_eq!(diff(&new, &new), None);
    }
}
