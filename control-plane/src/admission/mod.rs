//! Admission: what the cluster's state adds to an object, or refuses.
//!
//! NamespaceLifecycle for every kind; ServiceAccount, Priority and DefaultTolerationSeconds for pods; TaintNodesByCondition for nodes. Upstream counterparts: the plugins of
//! these names under `plugin/pkg/admission`.

mod pods;

use keelson_kinds::{ApiError, Cause, lookup};
use serde_json::{Value, json};

use crate::http::Call;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Before a new object is prepared and validated.
///
/// # Errors
/// 403 and 404.
pub async fn create(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    if call.res.namespaced() {
        namespace_accepts(call)?;
    }
    if call.res.group.is_empty() && call.res.plural == "pods" {
        pods::admit(call, object).await?;
    }
    if call.res.group.is_empty() && call.res.plural == "nodes" {
        taint_new_node(object);
    }
    Ok(())
}

/// A node takes no pods until the node-lifecycle controller has seen it ready: TaintNodesByCondition.
fn taint_new_node(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = &mut node["spec"]["taints"];
    match taints {
        Value::Array(list) => {
            if !list.iter().any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"]) {
                list.push(taint);
            }
        }
        other => *other = json!([taint]),
    }
}

/// Before a changed object is prepared and validated.
///
/// # Errors
/// 403.
pub fn update(call: &Call, new: &mut Value, _current: &Value) -> Result<(), ApiError> {
    if call.res.group.is_empty() && call.res.plural == "pods" && call.subresource.is_empty() {
        pods::tolerations(new, call.server.config.toleration_seconds);
    }
    Ok(())
}

/// Before a delete.
///
/// # Errors
/// 403.
pub fn delete(call: &Call, name: &str) -> Result<(), ApiError> {
    if call.res.group.is_empty() && call.res.plural == "namespaces" && IMMORTAL.contains(&name) {
        return Err(ApiError::forbidden(call.res, name, "this namespace may not be deleted"));
    }
    Ok(())
}

fn namespace_accepts(call: &Call) -> Result<(), ApiError> {
    let res = lookup("", "v1", "namespaces").ok_or_else(ApiError::no_such_resource)?;
    let name = call.namespace.as_str();
    let namespace = call.server.get(res, "", name).ok_or_else(|| ApiError::not_found(res, name))?;
    let terminating =
        namespace["status"]["phase"] == "Terminating" || !namespace["metadata"]["deletionTimestamp"].is_null();
    // An access review changes nothing in the namespace, so a terminating one still answers it.
    if !terminating || !call.res.stored() {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {name} because it is being terminated");
    let mut error = ApiError::forbidden(call.res, "", &why);
    error.causes.push(Cause {
        reason: "NamespaceTerminating".to_owned(),
        message: format!("namespace {name} is being terminated"),
        field: "metadata.namespace".to_owned(),
    });
    Err(error)
}
