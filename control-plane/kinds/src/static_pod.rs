//! What the API server would say of a pod that never reaches it: one that a node reads from a file.
//!
//! The node agent checks its manifests with this, as upstream's kubelet does with `ValidatePodCreate` of
//! `pkg/apis/core/validation`: one set of rules, so that the mirror of a pod that runs can be created.

use serde_json::Value;

use crate::error::FieldError;
use crate::kinds::pod::{Context, PODS, validate_spec};
use crate::kinds::template;
use crate::{meta, val};

/// Every mistake in a pod that would be created as it stands; what is left out counts as its default.
#[must_use]
pub fn validate(pod: &Value) -> Vec<FieldError> {
    let mut pod = pod.clone();
    val::default(val::child(&mut pod, "metadata"), "namespace", "default");
    let spec = val::child(&mut pod, "spec");
    template::pod_spec(spec);
    template::pod_only(spec);
    let mut errors = meta::validate(&PODS, &pod);
    errors.extend(validate_spec(pod.get("spec").unwrap_or(&Value::Null), "spec", Context::Pod));
    if !val::list(&pod, "spec.ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden("spec.ephemeralContainers", "cannot be set on create"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(pod: &Value) -> Vec<String> {
        validate(pod).into_iter().map(|e| e.field).collect()
    }

    #[test]
    fn defaults_count_and_mistakes_are_all_found() {
        let good = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i",
            "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": 80}}}]}});
        assert_eq!(fields(&good), Vec::<String>::new());
        let bad = json!({"metadata": {"name": "a", "namespace": "../x"}, "spec": {
            "volumes": [{"name": "a/b", "emptyDir": {}}],
            "containers": [{"name": "c", "image": "i", "livenessProbe": {"periodSeconds": -1, "httpGet": {"port": 80}}}]}});
        let found = fields(&bad);
        for field in ["metadata.namespace", "spec.volumes[0].name", "spec.containers[0].livenessProbe.periodSeconds"] {
            assert!(found.iter().any(|f| f == field), "{field} is not among {found:?}");
        }
        assert_eq!(fields(&json!({"metadata": {"name": "a"}})), ["spec.containers"]);
    }
}
