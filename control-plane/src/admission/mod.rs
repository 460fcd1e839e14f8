//! Admission: what the cluster's state adds to an object, or refuses.
//!
//! NamespaceLifecycle for every kind; ServiceAccount, Priority, RuntimeClass and DefaultTolerationSeconds for pods; TaintNodesByCondition for nodes;
//! NodeRestriction for what agents write; DenyServiceExternalIPs; the rules of signing requests; no grant of permissions that are not held.
//! Upstream counterparts: the plugins of these names under `plugin/pkg/admission`.

mod certificates;
mod escalation;
mod node_restriction;
mod pods;
mod runtime_class;
mod unenforced;

use keelson_kinds::{ApiError, Cause, lookup};
use serde_json::{Value, json};

use crate::http::Call;
use node_restriction::Write;

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
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    node_restriction::check(call, &call.namespace, name, Write::Create(object))?;
    escalation::check(call, object, None)?;
    match (call.res.group, call.res.plural) {
        ("", "pods") => pods::admit(call, object).await?,
        ("", "nodes") => taint_new_node(object),
        ("", "services") => external_addresses(call, object, None)?,
        ("certificates.k8s.io", "certificatesigningrequests") => certificates::create(call, object)?,
        _ => {}
    }
    Ok(())
}

/// What the client should know about a new object, or a changed one and what it was.
#[must_use]
pub fn warnings(call: &Call, new: &Value, old: Option<&Value>) -> Vec<String> {
    unenforced::warnings(call, new, old)
}

/// Before a subresource is created: a binding, an eviction, a token. `object` is what was sent.
///
/// # Errors
/// 403 and 404.
pub fn create_subresource(call: &Call, object: &Value) -> Result<(), ApiError> {
    node_restriction::check(call, &call.namespace, &call.name, Write::Create(object))
}

/// Who may write Services could take over traffic to any address with these (CVE-2020-8554).
fn external_addresses(call: &Call, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let of = |service: &Value| service["spec"]["externalIPs"].as_array().cloned().unwrap_or_default();
    let present = old.map(of).unwrap_or_default();
    if call.server.config.allow_external_ips || of(new).iter().all(|address| present.contains(address)) {
        return Ok(());
    }
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    Err(ApiError::forbidden(call.res, name, "Use of external IPs is denied by admission control"))
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
pub fn update(call: &Call, new: &mut Value, current: &Value) -> Result<(), ApiError> {
    node_restriction::check(call, &call.namespace, &call.name, Write::Update { new, old: current })?;
    escalation::check(call, new, Some(current))?;
    match (call.res.group, call.res.plural) {
        ("", "services") if call.subresource.is_empty() => external_addresses(call, new, Some(current))?,
        ("certificates.k8s.io", "certificatesigningrequests") => certificates::update(call, new, current)?,
        _ => {}
    }
    if call.res.group.is_empty() && call.res.plural == "pods" && call.subresource.is_empty() {
        pods::tolerations(new, call.server.config.toleration_seconds);
    }
    Ok(())
}

/// Before a delete.
///
/// # Errors
/// 403.
pub fn delete(call: &Call, namespace: &str, name: &str) -> Result<(), ApiError> {
    node_restriction::check(call, namespace, name, Write::Delete)?;
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
