//! Warnings about policy that is stored and does nothing here, so that nobody relies on it.

use serde_json::Value;

use crate::http::Call;

/// Warnings for a new object, or for a changed one and what it was.
#[must_use]
pub(super) fn warnings(call: &Call, new: &Value, old: Option<&Value>) -> Vec<String> {
    if !call.subresource.is_empty() {
        return Vec::new();
    }
    if old.is_some() {
        return Vec::new();
    }
    let effect = match (call.res.group, call.res.plural) {
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
