//! Roles and bindings.
//!
//! Upstream counterparts: `pkg/apis/rbac/v1/defaults.go`, `pkg/apis/rbac/validation`.

use k8s_openapi::api::rbac::v1 as rbac;
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::strategy::{Part, Rules};
use crate::table::{AGE, CREATED_AT, Columns, NAME, age_of, name_of, text, wide};
use crate::{names, val};

const GROUP: &str = "rbac.authorization.k8s.io";

static ROLE_RULES: Rules = Rules {
    create_on_update: true,
    name: names::path_segment,
    defaults: |obj| {
        if obj.get("rules").is_none() {
            val::set(obj, "rules", Value::Null);
        }
    },
    validate: |obj| rules(obj, true),
    ..Rules::PLAIN
};

static CLUSTER_ROLE_RULES: Rules = Rules {
    create_on_update: true,
    name: names::path_segment,
    defaults: |obj| {
        if obj.get("rules").is_none() {
            val::set(obj, "rules", Value::Null);
        }
    },
    validate: |obj| rules(obj, false),
    ..Rules::PLAIN
};

fn rules(obj: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (i, rule) in val::list(obj, "rules").iter().enumerate() {
        let at = format!("rules[{i}]");
        let has = |key: &str| !val::list(rule, key).is_empty();
        if !has("verbs") {
            errors.push(FieldError::required(format!("{at}.verbs"), "verbs must contain at least one value"));
        }
        if has("nonResourceURLs") {
            if namespaced {
                errors.push(FieldError::invalid(
                    format!("{at}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            if has("apiGroups") || has("resources") || has("resourceNames") {
                errors.push(FieldError::invalid(
                    format!("{at}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            continue;
        }
        if !has("apiGroups") {
            errors.push(FieldError::required(
                format!("{at}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if !has("resources") {
            errors.push(FieldError::required(
                format!("{at}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
    errors
}

static BINDING_RULES: Rules = Rules {
    create_on_update: true,
    name: names::path_segment,
    defaults: default_binding,
    validate: |obj| validate_binding(obj, &["Role", "ClusterRole"]),
    validate_update: role_ref_is_fixed,
    ..Rules::PLAIN
};

static CLUSTER_BINDING_RULES: Rules = Rules {
    create_on_update: true,
    name: names::path_segment,
    defaults: default_binding,
    validate: |obj| validate_binding(obj, &["ClusterRole"]),
    validate_update: role_ref_is_fixed,
    ..Rules::PLAIN
};

fn default_binding(obj: &mut Value) {
    if let Some(role) = val::child_mut(obj, "roleRef") {
        val::default(role, "apiGroup", GROUP);
    }
    for subject in val::list_mut(obj, "subjects") {
        if matches!(val::text(subject, "kind"), "User" | "Group") {
            val::default(subject, "apiGroup", GROUP);
        }
    }
}

fn validate_binding(obj: &Value, kinds: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let group = val::text(obj, "roleRef.apiGroup");
    if group != GROUP {
        errors.push(FieldError::not_supported("roleRef.apiGroup", group, &[GROUP]));
    }
    let kind = val::text(obj, "roleRef.kind");
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported("roleRef.kind", kind, kinds));
    }
    let name = val::text(obj, "roleRef.name");
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    } else {
        errors.extend(names::path_segment(name).into_iter().map(|m| FieldError::invalid("roleRef.name", name, m)));
    }
    let namespaced = !val::text(obj, "metadata.namespace").is_empty();
    for (i, subject) in val::list(obj, "subjects").iter().enumerate() {
        errors.extend(subject_errors(subject, &format!("subjects[{i}]"), namespaced));
    }
    errors
}

fn subject_errors(subject: &Value, at: &str, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (name, group) = (val::text(subject, "name"), val::text(subject, "apiGroup"));
    if name.is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    }
    match val::text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                let bad = names::dns1123_subdomain(name);
                errors.extend(bad.into_iter().map(|m| FieldError::invalid(format!("{at}.name"), name, m)));
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(format!("{at}.apiGroup"), group, &[""]));
            }
            if !namespaced && val::text(subject, "namespace").is_empty() {
                errors.push(FieldError::required(format!("{at}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(FieldError::not_supported(format!("{at}.apiGroup"), group, &[GROUP]));
            }
        }
        other => {
            errors.push(FieldError::not_supported(format!("{at}.kind"), other, &["ServiceAccount", "User", "Group"]));
        }
    }
    errors
}

fn role_ref_is_fixed(new: &Value, old: &Value, _: Part) -> Vec<FieldError> {
    if new.get("roleRef") == old.get("roleRef") {
        return Vec::new();
    }
    vec![FieldError::invalid("roleRef", new.get("roleRef").cloned().unwrap_or(Value::Null), "cannot change roleRef")]
}

static BINDING_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")],
    cells: |obj, now| {
        let of = |kind: &str| {
            let found: Vec<String> = val::list(obj, "subjects")
                .iter()
                .filter(|s| val::text(s, "kind") == kind)
                .map(|s| match val::text(s, "namespace") {
                    "" => val::text(s, "name").to_owned(),
                    namespace => format!("{namespace}/{}", val::text(s, "name")),
                })
                .collect();
            json!(found.join(", "))
        };
        let role = format!("{}/{}", val::text(obj, "roleRef.kind"), val::text(obj, "roleRef.name"));
        vec![name_of(obj), json!(role), age_of(obj, now), of("User"), of("Group"), of("ServiceAccount")]
    },
};

kind!(ROLES: "rbac" "rbac.authorization.k8s.io" "v1" "Role", "roles" "role", Namespaced "/registry/roles/", rbac::Role, ROLE_RULES,
    CREATED_AT);
kind!(CLUSTER_ROLES: "rbac" "rbac.authorization.k8s.io" "v1" "ClusterRole", "clusterroles" "clusterrole", Cluster
    "/registry/clusterroles/", rbac::ClusterRole, CLUSTER_ROLE_RULES, CREATED_AT);
kind!(ROLE_BINDINGS: "rbac" "rbac.authorization.k8s.io" "v1" "RoleBinding", "rolebindings" "rolebinding", Namespaced
    "/registry/rolebindings/", rbac::RoleBinding, BINDING_RULES, BINDING_COLUMNS);
kind!(CLUSTER_ROLE_BINDINGS: "rbac" "rbac.authorization.k8s.io" "v1" "ClusterRoleBinding", "clusterrolebindings"
    "clusterrolebinding", Cluster "/registry/clusterrolebindings/", rbac::ClusterRoleBinding, CLUSTER_BINDING_RULES, BINDING_COLUMNS);
