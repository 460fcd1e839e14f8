//! The kinds of admissionregistration.k8s.io, stored.
//!
//! Upstream counterpart: `pkg/apis/admissionregistration`.

use k8s_openapi::api::admissionregistration::v1 as admission;
use serde_json::{Value, json};

use super::status;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, number, text};
use crate::val;

static WEBHOOK_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        let mutating = val::text(obj, "kind") == "MutatingWebhookConfiguration";
        for hook in val::list_mut(obj, "webhooks") {
            val::default(hook, "failurePolicy", "Fail");
            val::default(hook, "matchPolicy", "Equivalent");
            val::default(hook, "timeoutSeconds", 10);
            for key in ["namespaceSelector", "objectSelector"] {
                if hook.get(key).is_none() {
                    val::set(hook, key, json!({}));
                }
            }
            if mutating {
                val::default(hook, "reinvocationPolicy", "Never");
            }
            if let Some(service) = val::child_mut(val::child(hook, "clientConfig"), "service") {
                val::default(service, "port", 443);
            }
            for rule in val::list_mut(hook, "rules") {
                val::default(rule, "scope", "*");
            }
        }
    },
    ..Rules::PLAIN
};

static WEBHOOK_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Webhooks"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::list(obj, "webhooks").len()), age_of(obj, now)],
};

kind!(MUTATING_WEBHOOKS: "admissionregistration" "admissionregistration.k8s.io" "v1" "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations" "mutatingwebhookconfiguration", Cluster "/registry/mutatingwebhookconfigurations/",
    admission::MutatingWebhookConfiguration, WEBHOOK_RULES, WEBHOOK_COLUMNS);
kind!(VALIDATING_WEBHOOKS: "admissionregistration" "admissionregistration.k8s.io" "v1" "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations" "validatingwebhookconfiguration", Cluster "/registry/validatingwebhookconfigurations/",
    admission::ValidatingWebhookConfiguration, WEBHOOK_RULES, WEBHOOK_COLUMNS);

static POLICY_RULES: Rules =
    Rules { defaults: |obj| val::default(val::child(obj, "spec"), "failurePolicy", "Fail"), ..Rules::SPEC };

static POLICY_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Validations"), text("ParamKind"), AGE],
    cells: |obj, now| {
        let param = val::at(obj, "spec.paramKind").map_or_else(
            || "<unset>".to_owned(),
            |p| format!("{}/{}", val::text(p, "apiVersion"), val::text(p, "kind")),
        );
        vec![name_of(obj), json!(val::list(obj, "spec.validations").len()), json!(param), age_of(obj, now)]
    },
};

kind!(VALIDATING_POLICIES: "admissionregistration" "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies" "validatingadmissionpolicy", Cluster "/registry/validatingadmissionpolicies/",
    admission::ValidatingAdmissionPolicy, POLICY_RULES, POLICY_COLUMNS,
    subresources: &[status("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy")]);

static BINDING_RULES: Rules = Rules { generation: true, ..Rules::PLAIN };

static BINDING_COLUMNS: Columns = Columns {
    columns: &[NAME, text("PolicyName"), text("ParamRef"), AGE],
    cells: |obj: &Value, now| {
        let param = match val::at(obj, "spec.paramRef") {
            None => "<unset>".to_owned(),
            Some(p) if val::text(p, "namespace").is_empty() => format!("*/{}", val::text(p, "name")),
            Some(p) => format!("{}/{}", val::text(p, "namespace"), val::text(p, "name")),
        };
        vec![name_of(obj), json!(val::text(obj, "spec.policyName")), json!(param), age_of(obj, now)]
    },
};

kind!(VALIDATING_POLICY_BINDINGS: "admissionregistration" "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings" "validatingadmissionpolicybinding", Cluster
    "/registry/validatingadmissionpolicybindings/", admission::ValidatingAdmissionPolicyBinding, BINDING_RULES, BINDING_COLUMNS);
