//! The policies of admissionregistration.k8s.io, stored. Its webhooks are in `webhook`.
//!
//! Upstream counterpart: `pkg/apis/admissionregistration`.

use k8s_openapi::api::admissionregistration::v1 as admission;
use serde_json::{Value, json};

use super::status;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, number, text};
use crate::val;

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
