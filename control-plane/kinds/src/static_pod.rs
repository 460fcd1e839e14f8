//! What the API server would say of a pod that never reaches it: one that a node reads from a file.
//!
//! The node agent checks its manifests with this, as upstream's kubelet does with `ValidatePodCreate` of
//! `pkg/apis/core/validation`: one set of rules, so that the mirror of a pod that runs can be created.

use serde_json::Value;

use crate::error::FieldError;
use crate::kinds::pod::{self, PODS};
use crate::kinds::template;
use crate::{decode, meta, val};

/// Every mistake in a pod that would be created as it stands on `node`; what is left out counts as its default.
#[must_use]
pub fn validate(pod: &Value, node: &str) -> Vec<FieldError> {
    let mut pod = pod.clone();
    let mut errors = decode::malformed(&PODS, &mut pod);
    val::default(val::child(&mut pod, "metadata"), "namespace", "default");
    let spec = val::child(&mut pod, "spec");
    val::set(spec, "nodeName", node.to_lowercase());
    template::pod_spec(spec);
    template::pod_only(spec);
    errors.extend(meta::validate(&PODS, &pod));
    errors.extend(pod::validate(&pod));
    errors.extend(pod::validate_new(&pod));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(pod: &Value) -> Vec<String> {
        validate(pod, "n").into_iter().map(|e| e.field).collect()
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
