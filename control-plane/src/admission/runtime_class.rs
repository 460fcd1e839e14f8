//! RuntimeClass of pods: the class must exist; a pod gets its overhead, and its conditions on nodes.
//!
//! Upstream counterpart: `plugin/pkg/admission/runtimeclass`.

use keelson_kinds::{ApiError, lookup};
use kube_common::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::pods::name_of;
use crate::http::Call;

pub(super) fn admit(call: &Call, pod: &mut Value) -> Result<(), ApiError> {
    let name = pod["spec"]["runtimeClassName"].as_str().unwrap_or_default().to_owned();
    let class = lookup("node.k8s.io", "v1", "runtimeclasses").and_then(|res| call.server.get(res, "", &name));
    let result = match class {
        _ if name.is_empty() => apply(pod, &Value::Null),
        None => Err(format!("pod rejected: RuntimeClass {name:?} not found")),
        Some(class) => apply(pod, &class),
    };
    result.map_err(|why| ApiError::forbidden(call.res, &name_of(pod), &why))
}

/// What a class means for a pod (no class is null), or why they do not go together.
fn apply(pod: &mut Value, class: &Value) -> Result<(), String> {
    overhead(pod, &class["overhead"])?;
    scheduling(pod, &class["scheduling"])
}

fn overhead(pod: &mut Value, overhead: &Value) -> Result<(), String> {
    let own = pod["spec"]["overhead"].as_object().cloned().unwrap_or_default();
    if overhead.is_null() {
        let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        return if own.is_empty() { Ok(()) } else { Err(why.to_owned()) };
    }
    let fixed = overhead["podFixed"].as_object().cloned().unwrap_or_default();
    if !pod["spec"]["overhead"].is_null() && !same_amounts(&own, &fixed) {
        return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned());
    }
    if !fixed.is_empty() {
        pod["spec"]["overhead"] = Value::Object(fixed);
    }
    Ok(())
}

fn same_amounts(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    let amount = |value: &Value| value.as_str().and_then(|text| Quantity::parse(text).ok());
    a.len() == b.len()
        && a.iter().all(|(name, mine)| {
            b.get(name).is_some_and(|theirs| mine == theirs || amount(mine).is_some_and(|m| Some(m) == amount(theirs)))
        })
}

fn scheduling(pod: &mut Value, scheduling: &Value) -> Result<(), String> {
    let mut selector = pod["spec"]["nodeSelector"].as_object().cloned().unwrap_or_default();
    for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        if let Some(own) = selector.get(key).filter(|own| *own != value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                text(value),
                text(own)
            ));
        }
        selector.insert(key.clone(), value.clone());
    }
    if !selector.is_empty() {
        pod["spec"]["nodeSelector"] = Value::Object(selector);
    }
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    for toleration in scheduling["tolerations"].as_array().into_iter().flatten() {
        if !tolerations.contains(toleration) {
            tolerations.push(toleration.clone());
        }
    }
    if !tolerations.is_empty() {
        pod["spec"]["tolerations"] = json!(tolerations);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(mut pod: Value, class: &Value) -> Result<Value, String> {
        apply(&mut pod, class)?;
        Ok(pod["spec"].clone())
    }

    #[test]
    fn overhead_is_the_classs() {
        let class = json!({"overhead": {"podFixed": {"cpu": "10m", "memory": "1Mi"}}});
        let spec = applied(json!({"spec": {}}), &class).unwrap();
        assert_eq!(spec["overhead"], json!({"cpu": "10m", "memory": "1Mi"}));
        // The same amounts in other words are the same.
        let own = json!({"spec": {"overhead": {"cpu": "0.01", "memory": "1024Ki"}}});
        assert!(applied(own.clone(), &class).is_ok());
        assert!(applied(own.clone(), &Value::Null).unwrap_err().contains("without corresponding"));
        let other = json!({"spec": {"overhead": {"cpu": "20m", "memory": "1Mi"}}});
        assert!(applied(other, &class).unwrap_err().contains("doesn't match"));
        assert_eq!(applied(json!({"spec": {"a": 1}}), &Value::Null).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn scheduling_is_added_unless_it_contradicts() {
        let class = json!({"scheduling": {"nodeSelector": {"a": "1"}, "tolerations": [{"key": "t"}]}});
        let pod = json!({"spec": {"nodeSelector": {"b": "2"}, "tolerations": [{"key": "t"}, {"key": "u"}]}});
        let spec = applied(pod, &class).unwrap();
        assert_eq!(spec["nodeSelector"], json!({"a": "1", "b": "2"}));
        assert_eq!(spec["tolerations"], json!([{"key": "t"}, {"key": "u"}]));
        let pod = json!({"spec": {"nodeSelector": {"a": "2"}}});
        assert!(applied(pod, &class).unwrap_err().starts_with("conflict"));
    }
}
