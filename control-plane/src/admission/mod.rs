//! Admission: what the cluster's state adds to an object, or refuses.
//!
//! Two phases, as upstream: [`mutate`] before an object is prepared and checked by its kind, [`validate`] on what would be stored. Mutating:
//! NamespaceLifecycle for every kind; ServiceAccount, Priority, RuntimeClass and DefaultTolerationSeconds for pods; TaintNodesByCondition for
//! nodes; NodeRestriction for what agents write; the rules of signing requests; LimitRanger; mutating webhooks last. Validating:
//! DenyServiceExternalIPs; no grant of permissions that are not held; LimitRanger; PodSecurity; admission policies; validating webhooks. Quotas are charged where
//! an object is stored, see [`quota`]. Upstream counterparts: the plugins of these
//! names under `plugin/pkg/admission`, `apiserver/pkg/admission`.

mod certificates;
mod escalation;
mod limits;
mod node_restriction;
mod pod_security;
mod pods;
pub mod policies;
pub(crate) mod quota;
mod runtime_class;
pub mod webhooks;

use keelson_cel::policy::mutating::Reinvocation;
use keelson_kinds::{ApiError, Cause, lookup};
use serde_json::{Value, json};

use crate::http::Call;
use node_restriction::Write;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// What a request does, as admission calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object, or one of a subresource that takes objects (binding, eviction, token).
    Create,
    /// A changed object.
    Update,
    /// A delete.
    Delete,
    /// A connection: exec, attach, port-forward, proxy.
    Connect,
}

impl Operation {
    /// As in webhook rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A request in front of admission.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who asks for what.
    pub call: &'a Call,
    /// What is done.
    pub operation: Operation,
    /// Namespace of the object, empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Name of the object, empty while it is not generated.
    pub name: &'a str,
    /// The object before, for updates and deletes.
    pub old: Option<&'a Value>,
    /// Whether nothing will be stored.
    pub dry_run: bool,
}

impl<'a> Request<'a> {
    /// For the object that the call's URL names.
    #[must_use]
    pub fn new(call: &'a Call, operation: Operation, old: Option<&'a Value>, dry_run: bool) -> Self {
        Self { call, operation, namespace: &call.namespace, name: &call.name, old, dry_run }
    }

    fn is_about_a_namespace(&self) -> bool {
        self.call.res.group.is_empty() && self.call.res.plural == "namespaces"
    }

    /// The namespace as webhooks and policies are told it: that of a Namespace is its own name.
    fn own_namespace(&self) -> &'a str {
        if self.is_about_a_namespace() { self.name } else { self.namespace }
    }
}

/// Before an object is prepared and validated. Returns what the client is warned of.
///
/// # Errors
/// 403, 404, and what webhooks answer.
pub async fn mutate(request: &Request<'_>, object: &mut Value) -> Result<Vec<String>, ApiError> {
    built_in(request, object).await?;
    let mut again = Reinvocation::default();
    let by_policies = policies::mutate(request, object, &mut again)?;
    let by_webhooks = webhooks::mutate(request, object).await?;
    if by_policies || by_webhooks.changed {
        // What others made of it goes through the steps of the server once more: a container that was added wants its defaults.
        built_in(request, object).await?;
        if again.second_pass(object) {
            policies::mutate(request, object, &mut again)?;
        }
    }
    Ok(by_webhooks.warnings)
}

async fn built_in(request: &Request<'_>, object: &mut Value) -> Result<(), ApiError> {
    match (request.operation, request.old) {
        (Operation::Create, _) => create(request.call, object).await,
        (Operation::Update, Some(old)) => update(request.call, object, old),
        _ => Ok(()),
    }
}

/// When an object is as it would be stored; without one for deletes. Returns what the client is warned of.
///
/// # Errors
/// 403, and what webhooks answer.
pub async fn validate(request: &Request<'_>, object: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let call = request.call;
    if let Some(object) = object
        && matches!(request.operation, Operation::Create | Operation::Update)
    {
        escalation::check(call, object, request.old)?;
        if (call.res.group, call.res.plural, call.subresource.as_str()) == ("", "services", "") {
            external_addresses(call, object, request.old)?;
        }
    }
    let mut warnings = Vec::new();
    if let Some(object) = object {
        limits::check(request, object)?;
        warnings.extend(pod_security::check(request, object)?);
    }
    warnings.extend(ask_others(request, object).await?);
    Ok(warnings)
}

/// Policies and validating webhooks: what others than this server's own steps have to say.
async fn ask_others(request: &Request<'_>, object: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let mut warnings = policies::validate(request, object)?;
    warnings.extend(webhooks::validate(request, object).await?);
    Ok(warnings)
}

async fn create(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if call.res.namespaced() {
        namespace_accepts(call, name)?;
    }
    node_restriction::check(call, &call.namespace, name, Write::Create(object))?;
    match (call.res.group, call.res.plural) {
        ("", "pods") => {
            limits::fill_in(call, object);
            pods::admit(call, object).await?;
        }
        ("", "nodes") => taint_new_node(object),
        ("certificates.k8s.io", "certificatesigningrequests") => certificates::create(call, object)?,
        _ => {}
    }
    Ok(())
}

/// Before a subresource is created: a binding, an eviction, a token. `object` is what was sent.
///
/// # Errors
/// 403, 404, and what webhooks answer.
pub async fn create_subresource(call: &Call, object: &mut Value, dry_run: bool) -> Result<Vec<String>, ApiError> {
    node_restriction::check(call, &call.namespace, &call.name, Write::Create(object))?;
    let request = Request::new(call, Operation::Create, None, dry_run);
    policies::mutate(&request, object, &mut Reinvocation::default())?;
    let mut warnings = webhooks::mutate(&request, object).await?.warnings;
    warnings.extend(ask_others(&request, Some(object)).await?);
    Ok(warnings)
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

fn update(call: &Call, new: &mut Value, current: &Value) -> Result<(), ApiError> {
    node_restriction::check(call, &call.namespace, &call.name, Write::Update { new, old: current })?;
    if (call.res.group, call.res.plural) == ("certificates.k8s.io", "certificatesigningrequests") {
        certificates::update(call, new, current)?;
    }
    if call.res.group.is_empty() && call.res.plural == "pods" && call.subresource.is_empty() {
        pods::tolerations(new, call.server.config.toleration_seconds);
    }
    Ok(())
}

/// Before a delete of `old`.
///
/// # Errors
/// 403, and what webhooks answer.
pub async fn delete(request: &Request<'_>) -> Result<Vec<String>, ApiError> {
    let Request { call, namespace, name, .. } = *request;
    node_restriction::check(call, namespace, name, Write::Delete)?;
    if request.is_about_a_namespace() && IMMORTAL.contains(&name) {
        return Err(ApiError::forbidden(call.res, name, "this namespace may not be deleted"));
    }
    let mut nothing = Value::Null;
    let mut warnings = webhooks::mutate(request, &mut nothing).await?.warnings;
    warnings.extend(validate(request, None).await?);
    Ok(warnings)
}

/// Before a connection to something behind this server; `options` is the object that its query stands for.
///
/// # Errors
/// What webhooks answer.
pub async fn connect(call: &Call, options: &Value) -> Result<(), ApiError> {
    let request = Request::new(call, Operation::Connect, None, false);
    let mut options = options.clone();
    webhooks::mutate(&request, &mut options).await?;
    ask_others(&request, Some(&options)).await?;
    Ok(())
}

fn namespace_accepts(call: &Call, new: &str) -> Result<(), ApiError> {
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
    let mut error = ApiError::forbidden(call.res, new, &why);
    error.causes.push(Cause {
        reason: "NamespaceTerminating".to_owned(),
        message: format!("namespace {name} is being terminated"),
        field: "metadata.namespace".to_owned(),
    });
    Err(error)
}
