//! The policies of admissionregistration.k8s.io. Its webhooks are in `webhook`.
//!
//! Upstream counterpart: `pkg/apis/admissionregistration`.

use k8s_openapi::api::admissionregistration::v1 as admission;
use keelson_cel::policy::{mutating, validating};
use serde_json::{Value, json};

use super::status;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, number, text};
use crate::val;

/// Defaults that policies and the resources of bindings share.
fn match_defaults(resources: &mut Value) {
    val::default(resources, "matchPolicy", "Equivalent");
    for key in ["namespaceSelector", "objectSelector"] {
        val::default(resources, key, json!({}));
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        for rule in val::list_mut(resources, key) {
            val::default(rule, "scope", "*");
        }
    }
}

fn policy_defaults(obj: &mut Value) {
    let spec = val::child(obj, "spec");
    val::default(spec, "failurePolicy", "Fail");
    if let Some(constraints) = val::child_mut(spec, "matchConstraints") {
        match_defaults(constraints);
    }
}

fn binding_defaults(obj: &mut Value) {
    if let Some(resources) = val::child_mut(val::child(obj, "spec"), "matchResources") {
        match_defaults(resources);
    }
}

static POLICY_RULES: Rules = Rules { defaults: policy_defaults, validate: validating::validate, ..Rules::SPEC };

static POLICY_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Validations"), text("ParamKind"), AGE],
    cells: |obj, now| {
        vec![name_of(obj), json!(val::list(obj, "spec.validations").len()), param_kind(obj), age_of(obj, now)]
    },
};

fn param_kind(obj: &Value) -> Value {
    match val::at(obj, "spec.paramKind") {
        Some(kind) => json!(format!("{}/{}", val::text(kind, "apiVersion"), val::text(kind, "kind"))),
        None => json!("<unset>"),
    }
}

/// `kubectl get api-extensions` lists them.
const CATEGORIES: &[&str] = &["api-extensions"];

kind!(VALIDATING_POLICIES: "admissionregistration" "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies" "validatingadmissionpolicy", Cluster "/registry/validatingadmissionpolicies/",
    admission::ValidatingAdmissionPolicy, POLICY_RULES, POLICY_COLUMNS, categories: CATEGORIES,
    subresources: &[status("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy")]);

static BINDING_RULES: Rules =
    Rules { generation: true, defaults: binding_defaults, validate: validating::validate_binding, ..Rules::PLAIN };

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
    "/registry/validatingadmissionpolicybindings/", admission::ValidatingAdmissionPolicyBinding, BINDING_RULES, BINDING_COLUMNS,
    categories: CATEGORIES);

static MUTATING_RULES: Rules =
    Rules { generation: true, defaults: policy_defaults, validate: mutating::validate, ..Rules::PLAIN };

static MUTATING_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Mutations"), text("ParamKind"), AGE],
    cells: |obj, now| {
        vec![name_of(obj), json!(val::list(obj, "spec.mutations").len()), param_kind(obj), age_of(obj, now)]
    },
};

kind!(MUTATING_POLICIES: "admissionregistration" "admissionregistration.k8s.io" "v1" "MutatingAdmissionPolicy",
    "mutatingadmissionpolicies" "mutatingadmissionpolicy", Cluster "/registry/mutatingadmissionpolicies/",
    admission::MutatingAdmissionPolicy, MUTATING_RULES, MUTATING_COLUMNS, categories: CATEGORIES);

static MUTATING_BINDING_RULES: Rules =
    Rules { generation: true, defaults: binding_defaults, validate: mutating::validate_binding, ..Rules::PLAIN };

kind!(MUTATING_POLICY_BINDINGS: "admissionregistration" "admissionregistration.k8s.io" "v1" "MutatingAdmissionPolicyBinding",
    "mutatingadmissionpolicybindings" "mutatingadmissionpolicybinding", Cluster
    "/registry/mutatingadmissionpolicybindings/", admission::MutatingAdmissionPolicyBinding, MUTATING_BINDING_RULES, BINDING_COLUMNS,
    categories: CATEGORIES);
