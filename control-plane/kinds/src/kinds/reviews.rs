//! Kinds that are asked and answered but not stored: bindings, token and access reviews.

use k8s_openapi::api::authentication::v1 as authentication;
use k8s_openapi::api::authorization::v1 as authorization;
use k8s_openapi::api::core::v1 as core;
use serde_json::Value;

use crate::error::FieldError;
use crate::resource::Verb;
use crate::strategy::Rules;
use crate::table::CREATED_AT;
use crate::val;

const CREATE: &[Verb] = &[Verb::Create];

static RULES: Rules = Rules::PLAIN;

static BINDING_RULES: Rules = Rules {
    validate: |obj| {
        let kind = val::text(obj, "target.kind");
        let mut errors = Vec::new();
        if !kind.is_empty() && kind != "Node" {
            errors.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
        }
        if val::text(obj, "target.name").is_empty() {
            errors.push(FieldError::required("target.name", ""));
        }
        errors
    },
    ..Rules::PLAIN
};

static ACCESS_RULES: Rules = Rules { validate: validate_access, ..Rules::PLAIN };

fn validate_access(obj: &Value) -> Vec<FieldError> {
    let resource = val::at(obj, "spec.resourceAttributes").is_some();
    let other = val::at(obj, "spec.nonResourceAttributes").is_some();
    if resource == other {
        let detail = if resource {
            "cannot be specified in combination with resourceAttributes"
        } else {
            "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        };
        return vec![FieldError::invalid("spec.resourceAttributes", Value::Null, detail)];
    }
    Vec::new()
}

kind!(BINDINGS: "core" "" "v1" "Binding", "bindings" "binding", Namespaced "", core::Binding, BINDING_RULES, CREATED_AT,
    verbs: CREATE);
kind!(TOKEN_REVIEWS: "authentication" "authentication.k8s.io" "v1" "TokenReview", "tokenreviews" "tokenreview", Cluster "",
    authentication::TokenReview, RULES, CREATED_AT, verbs: CREATE);
kind!(SELF_SUBJECT_REVIEWS: "authentication" "authentication.k8s.io" "v1" "SelfSubjectReview", "selfsubjectreviews"
    "selfsubjectreview", Cluster "", authentication::SelfSubjectReview, RULES, CREATED_AT, verbs: CREATE);
kind!(LOCAL_ACCESS_REVIEWS: "authorization" "authorization.k8s.io" "v1" "LocalSubjectAccessReview", "localsubjectaccessreviews"
    "localsubjectaccessreview", Namespaced "", authorization::LocalSubjectAccessReview, ACCESS_RULES, CREATED_AT, verbs: CREATE);
kind!(SELF_ACCESS_REVIEWS: "authorization" "authorization.k8s.io" "v1" "SelfSubjectAccessReview", "selfsubjectaccessreviews"
    "selfsubjectaccessreview", Cluster "", authorization::SelfSubjectAccessReview, ACCESS_RULES, CREATED_AT, verbs: CREATE);
kind!(SELF_RULES_REVIEWS: "authorization" "authorization.k8s.io" "v1" "SelfSubjectRulesReview", "selfsubjectrulesreviews"
    "selfsubjectrulesreview", Cluster "", authorization::SelfSubjectRulesReview, RULES, CREATED_AT, verbs: CREATE);
kind!(ACCESS_REVIEWS: "authorization" "authorization.k8s.io" "v1" "SubjectAccessReview", "subjectaccessreviews"
    "subjectaccessreview", Cluster "", authorization::SubjectAccessReview, ACCESS_RULES, CREATED_AT, verbs: CREATE);
