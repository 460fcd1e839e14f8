//! Nobody gives away permissions that he does not hold: roles and bindings.
//!
//! A role may be written by who holds all of its rules, or may `escalate`; a binding by who holds all rules of its role, or may `bind` it.
//! Upstream counterparts: `pkg/registry/rbac/*/policybased`, `pkg/registry/rbac/validation`.

use keelson_kinds::{ApiError, lookup};
use serde_json::Value;

use crate::api::review;
use crate::auth::cover::describe_missing;
use crate::auth::rbac::{GROUP, Rule};
use crate::auth::{Attributes, MASTERS};
use crate::http::Call;

/// Checks a new or changed role or binding.
pub(super) fn check(call: &Call, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if call.res.group != GROUP || call.user.in_group(MASTERS) || old.is_some_and(|old| only_collected(new, old)) {
        return Ok(());
    }
    match call.res.plural {
        "roles" | "clusterroles" => role(call, new, old),
        "rolebindings" | "clusterrolebindings" => binding(call, new),
        _ => Ok(()),
    }
}

/// Whether a change only lets the object be collected as garbage.
fn only_collected(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in ["finalizers", "ownerReferences", "resourceVersion", "managedFields"] {
                metadata.remove(field);
            }
        }
        object
    };
    rest(new) == rest(old)
}

fn may(call: &Call, verb: &str, resource: &str, name: &str) -> bool {
    let attributes = Attributes {
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        namespace: call.namespace.clone(),
        name: name.to_owned(),
        ..Attributes::default()
    };
    review::decide(&call.server, &call.user, &attributes).allowed
}

fn role(call: &Call, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    // The name of a new role is in its body, where authorization does not look.
    if may(call, "escalate", call.res.plural, &call.name) {
        return Ok(());
    }
    confirm(call, new, &rules(new))?;
    let aggregates =
        |role: &Value| role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|s| !s.is_empty());
    if aggregates(new) || old.is_some_and(aggregates) {
        // It gathers whatever rules others write.
        let all = || vec!["*".to_owned()];
        let everything = [
            Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
            Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
        ];
        if confirm(call, new, &everything).is_err() {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(ApiError::forbidden(call.res, name(new), why));
        }
    }
    Ok(())
}

fn binding(call: &Call, new: &Value) -> Result<(), ApiError> {
    let reference = &new["roleRef"];
    let referred = reference["name"].as_str().unwrap_or_default();
    let (plural, namespace) = match reference["kind"].as_str() {
        Some("ClusterRole") => ("clusterroles", ""),
        Some("Role") => ("roles", call.namespace.as_str()),
        // Validation refuses it, with a better word.
        _ => return Ok(()),
    };
    if may(call, "bind", plural, referred) {
        return Ok(());
    }
    let res = lookup(GROUP, "v1", plural).ok_or_else(ApiError::no_such_resource)?;
    let found = call.server.get(res, namespace, referred).ok_or_else(|| ApiError::not_found(res, referred))?;
    confirm(call, new, &rules(&found))
}

fn rules(role: &Value) -> Vec<Rule> {
    serde_json::from_value(role["rules"].clone()).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn confirm(call: &Call, object: &Value, wanted: &[Rule]) -> Result<(), ApiError> {
    let held = call.server.rbac.rules_for(&call.user, &call.namespace);
    let missing = describe_missing(&held, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = call.user.groups.iter().map(|g| keelson_kinds::error::go_quote(g)).collect();
    let why = format!(
        "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        keelson_kinds::error::go_quote(&call.user.name),
        groups.join(" "),
        missing.join("\n")
    );
    Err(ApiError::forbidden(call.res, name(object), &why))
}
