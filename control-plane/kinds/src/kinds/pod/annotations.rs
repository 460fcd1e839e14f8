//! Annotations that mean something to the API server: the mark of a mirror pod.
//!
//! Upstream counterparts: `ValidatePodSpecificAnnotations`, `ValidatePodSpecificAnnotationUpdates`.

use serde_json::Value;

use crate::error::FieldError;
use crate::val;

/// Marks the API's view of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

fn mirror(pod: &Value) -> Option<&Value> {
    val::map(pod, "metadata.annotations")?.get(MIRROR)
}

fn field() -> String {
    format!("metadata.annotations[{MIRROR}]")
}

/// A mirror pod stands for one that runs already, on a node.
pub(super) fn validate(pod: &Value) -> Vec<FieldError> {
    match mirror(pod) {
        Some(value) if val::text(pod, "spec.nodeName").is_empty() => {
            let message = "must set spec.nodeName if mirror pod annotation is set";
            vec![FieldError::invalid(field(), value.clone(), message)]
        }
        _ => Vec::new(),
    }
}

/// Whether a pod is a mirror pod is settled when it is made: else anybody who may update pods could
/// take one out of the agent's hands, or make the agent delete it.
pub(super) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    match (mirror(old), mirror(new)) {
        (Some(before), after) if after != Some(before) => {
            vec![FieldError::forbidden(field(), "may not remove or update mirror pod annotation")]
        }
        (None, Some(_)) => vec![FieldError::forbidden(field(), "may not add mirror pod annotation")],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::strategy::Part;

    fn pod(mirror: Option<&str>, node: &str) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "d", "annotations": {"other": "x"}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        });
        if let Some(mirror) = mirror {
            pod["metadata"]["annotations"][MIRROR] = mirror.into();
        }
        pod
    }

    #[test]
    fn a_mirror_pod_needs_a_node() {
        let res = crate::lookup("", "v1", "pods").unwrap();
        let refused = |pod: &Value| res.strategy.validate(pod).iter().any(|e| e.field == field());
        assert!(refused(&pod(Some("h"), "")));
        assert!(refused(&pod(Some(""), "")));
        assert!(!refused(&pod(Some("h"), "n")));
        assert!(!refused(&pod(None, "")));
    }

    #[test]
    fn the_mark_never_changes_by_whatever_way() {
        let res = crate::lookup("", "v1", "pods").unwrap();
        let cases = [
            (None, Some("h"), "may not add"),
            (Some("h"), None, "may not remove or update"),
            (Some("h"), Some("g"), "may not remove or update"),
        ];
        for part in [Part::Main, Part::Status, Part::Other("ephemeralcontainers"), Part::Other("resize")] {
            for (old, new, message) in cases {
                let errors = res.strategy.validate_update(&pod(new, "n"), &pod(old, "n"), part);
                let found = errors.iter().any(|e| e.field == field() && e.detail.starts_with(message));
                assert!(found, "{part:?} {old:?} {new:?}: {errors:?}");
            }
            for same in [None, Some("h")] {
                let errors = res.strategy.validate_update(&pod(same, "n"), &pod(same, "n"), part);
                assert!(!errors.iter().any(|e| e.field == field()), "{part:?} {same:?}: {errors:?}");
            }
        }
    }
}
