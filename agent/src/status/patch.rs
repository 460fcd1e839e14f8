//! The smallest strategic merge patch that leads from one pod or node status to another.
//!
//! Lists with a merge key (`conditions` by `type`, addresses by `ip`) become changed and deleted items, other
//! lists are replaced, fields that vanished become `null`.

use serde_json::{Map, Value, json};

/// Merge keys of the lists in `PodStatus` and `NodeStatus` (from the API's `x-kubernetes-patch-merge-key`).
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" | "addresses" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
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
