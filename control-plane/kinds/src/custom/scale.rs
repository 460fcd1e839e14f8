//! The scale subresource of custom kinds.
//!
//! Upstream counterparts: `ScaleREST` of `apiextensions-apiserver/pkg/registry/customresource/etcd.go`, `ValidateScaleSpec` and
//! `ValidateScaleStatus` of `validator.go`.

use serde_json::{Value, json};

use crate::error::FieldError;
use crate::strategy::Part;
use crate::val;

/// Where an object keeps what a scale shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    spec: String,
    status: String,
    selector: Option<String>,
}

impl ScalePaths {
    pub(crate) fn new(scale: &Value) -> Self {
        let text = |key: &str| val::text(scale, key).to_owned();
        let selector = Some(text("labelSelectorPath")).filter(|path| !path.is_empty());
        Self { spec: text("specReplicasPath"), status: text("statusReplicasPath"), selector }
    }

    /// Wanted replicas, present replicas and selector; 0 and empty where there is nothing.
    pub(crate) fn read(&self, obj: &Value) -> (i64, i64, String) {
        let int = |path: &str| val::int(obj, dotted(path)).unwrap_or(0);
        let selector = self.selector.as_deref().map_or("", |path| val::text(obj, dotted(path)));
        (int(&self.spec), int(&self.status), selector.to_owned())
    }

    /// Writes the wanted replicas; maps on the way are made.
    pub(crate) fn write(&self, obj: &mut Value, replicas: i64) {
        let mut parts: Vec<&str> = dotted(&self.spec).split('.').collect();
        let Some(last) = parts.pop() else { return };
        let owner = parts.into_iter().fold(obj, |owner, part| val::child(owner, part));
        val::set(owner, last, replicas);
    }

    /// Checks that the paths lead to what a scale can show.
    pub(crate) fn validate(&self, obj: &Value, part: Part) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if part != Part::Status {
            errors.extend(replicas(obj, &self.spec));
        }
        errors.extend(replicas(obj, &self.status));
        if let Some(path) = &self.selector
            && let Some(found) = val::at(obj, dotted(path)).filter(|found| !found.is_string())
        {
            errors.push(FieldError::invalid(path.as_str(), "", accessor(path, found, "string")));
        }
        errors
    }
}

/// Paths are written with a leading dot.
fn dotted(path: &str) -> &str {
    path.strip_prefix('.').unwrap_or(path)
}

fn accessor(path: &str, found: &Value, wanted: &str) -> String {
    let (kind, shown) = match found {
        Value::String(text) => ("string", text.clone()),
        Value::Bool(_) => ("bool", found.to_string()),
        Value::Number(n) if n.is_i64() => ("int64", found.to_string()),
        Value::Number(_) => ("float64", found.to_string()),
        Value::Array(_) => ("[]interface {}", found.to_string()),
        _ => ("map[string]interface {}", found.to_string()),
    };
    format!(".{} accessor error: {shown} is of the type {kind}, expected {wanted}", dotted(path))
}

fn replicas(obj: &Value, path: &str) -> Option<FieldError> {
    let found = val::at(obj, dotted(path))?;
    let invalid = |value: Value, detail: String| Some(FieldError::invalid(path, value, detail));
    match found.as_i64() {
        None => invalid(json!(0), accessor(path, found, "int64")),
        Some(n) if n < 0 => invalid(json!(n), "should be a non-negative integer".to_owned()),
        Some(n) if n > i64::from(i32::MAX) => {
            invalid(json!(n), format!("should be less than or equal to {}", i32::MAX))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> ScalePaths {
        ScalePaths::new(&json!({
            "specReplicasPath": ".spec.deep.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
        }))
    }

    #[test]
    fn replicas_are_read_and_written() {
        let mut obj = json!({"spec": {"deep": {"replicas": 3}}, "status": {"replicas": 2, "selector": "a=b"}});
        assert_eq!(paths().read(&obj), (3, 2, "a=b".to_owned()));
        paths().write(&mut obj, 5);
        assert_eq!(obj["spec"], json!({"deep": {"replicas": 5}}));
        let mut empty = json!({});
        paths().write(&mut empty, 1);
        assert_eq!(
            (paths().read(&json!({})), empty),
            ((0, 0, String::new()), json!({"spec": {"deep": {"replicas": 1}}}))
        );
    }

    #[test]
    fn what_is_no_number_of_replicas_is_refused() {
        let found = |obj: Value, part| -> Vec<String> {
            paths().validate(&obj, part).iter().map(ToString::to_string).collect()
        };
        let obj = json!({"spec": {"deep": {"replicas": -1}}, "status": {"replicas": 3_000_000_000_i64, "selector": 1}});
        assert_eq!(
            found(obj.clone(), Part::Main),
            [
                ".spec.deep.replicas: Invalid value: -1: should be a non-negative integer",
                ".status.replicas: Invalid value: 3000000000: should be less than or equal to 2147483647",
                ".status.selector: Invalid value: \"\": .status.selector accessor error: 1 is of the type int64, expected string",
            ]
        );
        assert_eq!(found(obj, Part::Status).len(), 2);
        assert_eq!(
            found(json!({"spec": {"deep": {"replicas": "x"}}}), Part::Main),
            [
                ".spec.deep.replicas: Invalid value: 0: .spec.deep.replicas accessor error: x is of the type string, expected int64"
            ]
        );
    }
}
