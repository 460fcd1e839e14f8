//! Warnings about policy that is stored and does nothing here, so that nobody relies on it.

use serde_json::Value;

use crate::http::Call;

const POD_SECURITY: &str = "pod-security.kubernetes.io/";

/// Warnings for a new object, or for a changed one and what it was.
#[must_use]
pub(super) fn warnings(call: &Call, new: &Value, old: Option<&Value>) -> Vec<String> {
    if !call.subresource.is_empty() {
        return Vec::new();
    }
    if call.res.group.is_empty() && call.res.plural == "namespaces" {
        return pod_security(new, old);
    }
    if old.is_some() {
        return Vec::new();
    }
    let effect = match (call.res.group, call.res.plural) {
        ("", "resourcequotas") => "no amount is limited by it",
        ("", "limitranges") => "it neither sets nor checks requests and limits of pods",
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            let webhooks = new["webhooks"].as_array().into_iter().flatten();
            if !webhooks.into_iter().any(|hook| hook["matchConditions"].as_array().is_some_and(|list| !list.is_empty()))
            {
                return Vec::new();
            }
            "matchConditions are not evaluated, the webhook is asked whatever they say"
        }
        ("admissionregistration.k8s.io", _) => "it is not evaluated",
        _ => return Vec::new(),
    };
    vec![format!("this control plane stores the {} but does not enforce it yet: {effect}", call.res.kind)]
}

/// Labels of pod security that appear or change; `warn` and `audit` promise nothing that could be relied on, but say nothing either.
fn pod_security(new: &Value, old: Option<&Value>) -> Vec<String> {
    let labels = new["metadata"]["labels"].as_object().into_iter().flatten();
    let before = |key: &str| old.map(|old| &old["metadata"]["labels"][key]);
    let changed = labels.filter(|(key, value)| key.starts_with(POD_SECURITY) && before(key) != Some(*value));
    let keys: Vec<&str> = changed.map(|(key, _)| key.as_str()).collect();
    if keys.is_empty() {
        return Vec::new();
    }
    vec![format!("this control plane does not enforce pod security yet: {} has no effect", keys.join(", "))]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_security_is_spoken_of_once() {
        let of = |level: &str| json!({"metadata": {"labels": {"a": "b", "pod-security.kubernetes.io/enforce": level}}});
        assert_eq!(pod_security(&of("restricted"), None).len(), 1);
        assert!(pod_security(&of("restricted"), Some(&of("restricted"))).is_empty());
        assert_eq!(pod_security(&of("restricted"), Some(&of("baseline"))).len(), 1);
        assert!(pod_security(&json!({"metadata": {}}), None).is_empty());
    }
}
