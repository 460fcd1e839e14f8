//! Admission policies: expressions instead of webhooks.
//!
//! Policies and bindings are compiled once for each change of them. Upstream counterpart: `apiserver/pkg/admission/plugin/policy`.

use std::sync::Arc;

use keelson_cel::policy::mutating::{self, MutatingPolicy, Patcher, Reinvocation};
use keelson_cel::policy::validating::{self, Denial, ValidatingPolicy};
use keelson_cel::policy::{Attributes, Binding, ParamKind, ParamLookup, ResourceKind};
use keelson_cel::{Authorizer, Check, Decision, Target};
use keelson_kinds::decode::{self, FieldValidation};
use keelson_kinds::ownership::Kind;
use keelson_kinds::patch::{self, PatchError};
use keelson_kinds::{ApiError, Cause, Reason, Resource, lookup};
use keelson_managed_fields::schema::JsonSchema;
use keelson_managed_fields::{Versions, typed};
use kube_common::selector::LabelSelector;
use serde_json::{Value, json};

use super::{Operation, Request};
use crate::api::review::{decide, user_info};
use crate::auth::{self, User};
use crate::cache::{Derived, Filter};
use crate::server::Server;
use crate::store::Revision;

const GROUP: &str = "admissionregistration.k8s.io";

/// The policies of both phases with their bindings, as of the last change of either.
#[derive(Debug, Default)]
pub struct Policies {
    validating: Compiled<ValidatingPolicy>,
    mutating: Compiled<MutatingPolicy>,
}

type Compiled<P> = Derived<(Revision, Revision), Vec<(P, Vec<Binding>)>>;

/// What is compiled, compiled anew if a policy or a binding changed. Empty at once where there is none.
fn compiled<P>(
    server: &Server,
    known: &Compiled<P>,
    plurals: [&str; 2],
    compile: impl Fn(&Value) -> P,
) -> Arc<Vec<(P, Vec<Binding>)>> {
    let cache = |plural: &str| lookup(GROUP, "v1", plural).and_then(|res| server.hub.cache(res));
    let (Some(policies), Some(bindings)) = (cache(plurals[0]), cache(plurals[1])) else { return Arc::default() };
    if policies.is_empty() || bindings.is_empty() {
        return Arc::default();
    }
    known.get((policies.last_change(), bindings.last_change()), || {
        let bindings: Vec<Binding> = bindings.values(None).iter().map(Binding::read).collect();
        let with_bindings = |policy: &Value| {
            let own = policy["metadata"]["name"].as_str().unwrap_or_default();
            (compile(policy), bindings.iter().filter(|binding| binding.policy() == own).cloned().collect())
        };
        policies.values(None).iter().map(with_bindings).collect()
    })
}

/// Decides as this server does.
struct Own {
    server: Arc<Server>,
    user: User,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl Authorizer for Own {
    fn authorize(&self, check: &Check) -> Decision {
        let user = match &check.service_account {
            None => self.user.clone(),
            Some((namespace, name)) => {
                let mut groups = auth::service_account_groups(namespace);
                groups.push(auth::AUTHENTICATED.to_owned());
                User { name: format!("system:serviceaccount:{namespace}:{name}"), groups, ..User::default() }
            }
        };
        let attributes = match &check.target {
            Target::Path(path) => {
                auth::Attributes { verb: check.verb.clone(), path: path.clone(), ..auth::Attributes::default() }
            }
            Target::Resource(of) => auth::Attributes {
                verb: check.verb.clone(),
                group: of.group.clone(),
                version: "*".to_owned(),
                resource: of.resource.clone(),
                subresource: of.subresource.clone(),
                namespace: of.namespace.clone(),
                name: of.name.clone(),
                ..auth::Attributes::default()
            },
        };
        let decision = decide(&self.server, &user, &attributes);
        Decision { allowed: decision.allowed, reason: decision.reason, error: None }
    }
}

/// What expressions ask who may do what.
pub(super) fn authorizer(request: &Request<'_>) -> Arc<dyn Authorizer> {
    Arc::new(Own { server: Arc::clone(&request.call.server), user: request.call.user.clone() })
}

fn kind_of(res: &Resource, subresource: &str) -> ResourceKind {
    let kind = res.subresource(subresource).map_or(res.kind, |sub| sub.kind);
    ResourceKind {
        group: res.group.to_owned(),
        version: res.version.to_owned(),
        resource: res.plural.to_owned(),
        kind: kind.to_owned(),
    }
}

/// A request in the terms of policies.
pub(super) struct Asked {
    resource: ResourceKind,
    equivalents: Vec<ResourceKind>,
    namespace: String,
    namespace_object: Option<Value>,
    user: Value,
    options: Value,
}

impl Asked {
    pub(super) fn new(request: &Request<'_>) -> Self {
        let call = request.call;
        let namespace = request.own_namespace();
        let namespaces = lookup("", "v1", "namespaces");
        let table = call.server.registry.all();
        let others = table.iter().filter(|other| {
            call.res.stored() && other.storage_prefix == call.res.storage_prefix && !std::ptr::eq(**other, call.res)
        });
        Self {
            resource: kind_of(call.res, &call.subresource),
            equivalents: others.map(|other| kind_of(other, &call.subresource)).collect(),
            namespace: namespace.to_owned(),
            namespace_object: namespaces.and_then(|res| call.server.get(res, "", namespace)),
            user: user_info(&call.user),
            options: super::webhooks::options(request),
        }
    }

    pub(super) fn attributes<'a>(&'a self, request: &Request<'a>, object: Option<&'a Value>) -> Attributes<'a> {
        Attributes {
            operation: request.operation.as_str(),
            resource: &self.resource,
            subresource: &request.call.subresource,
            namespace: &self.namespace,
            name: request.name,
            object: object.filter(|object| !object.is_null()),
            old_object: request.old,
            namespace_object: self.namespace_object.as_ref(),
            user: &self.user,
            dry_run: request.dry_run,
            options: &self.options,
            equivalents: &self.equivalents,
        }
    }
}

/// Parameters, from the caches.
struct Params<'a>(&'a Server);

impl Params<'_> {
    fn resource(&self, kind: &ParamKind) -> Option<&'static Resource> {
        let (group, version) = kind.api_version.split_once('/').unwrap_or(("", &kind.api_version));
        self.0.registry.by_kind(group, version, &kind.kind)
    }
}

impl ParamLookup for Params<'_> {
    fn is_namespaced(&self, kind: &ParamKind) -> Option<bool> {
        self.resource(kind).map(Resource::namespaced)
    }

    fn get(&self, kind: &ParamKind, namespace: Option<&str>, name: &str) -> Result<Option<Arc<Value>>, String> {
        let found = self.resource(kind).and_then(|res| self.0.get(res, namespace.unwrap_or_default(), name));
        Ok(found.map(Arc::new))
    }

    fn list(
        &self,
        kind: &ParamKind,
        namespace: Option<&str>,
        selector: &LabelSelector,
    ) -> Result<Vec<Arc<Value>>, String> {
        let Some(res) = self.resource(kind) else { return Ok(Vec::new()) };
        let Some(cache) = self.0.hub.cache(res) else { return Ok(Vec::new()) };
        let filter = Filter { labels: selector.clone(), ..Filter::default() };
        let listed = cache.list(&res.key_prefix(namespace), None, &filter, 0);
        Ok(listed.objects.iter().map(|object| Arc::new(object.value_as(res))).collect())
    }
}

/// The refusal of the first policy.
fn refused(request: &Request<'_>, denials: &[Denial], whole: bool) -> Result<(), ApiError> {
    let Some(first) = denials.first() else { return Ok(()) };
    let mut error = if whole {
        ApiError::new(Reason::Forbidden, first.message.clone())
    } else {
        ApiError::forbidden(request.call.res, request.name, &first.message)
    };
    error.code = first.code;
    error.causes = vec![Cause { reason: String::new(), message: first.message.clone(), field: String::new() }];
    let mut status = error.to_status();
    status["reason"] = json!(first.reason);
    error.verbatim = Some(Box::new(status));
    Err(error)
}

/// Lets the validating policies judge. Returns warnings.
pub(super) fn validate(request: &Request<'_>, object: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let server = &request.call.server;
    let plurals = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    let compiled = compiled(server, &server.policies.validating, plurals, ValidatingPolicy::compile);
    if compiled.is_empty() {
        return Ok(Vec::new());
    }
    let asked = Asked::new(request);
    let policies: Vec<(&ValidatingPolicy, &[Binding])> =
        compiled.iter().map(|(policy, bindings)| (policy, bindings.as_slice())).collect();
    let authorizer = authorizer(request);
    let attributes = asked.attributes(request, object);
    let outcome = validating::evaluate(&policies, &attributes, &Params(server), Some(&authorizer));
    refused(request, &outcome.denials, false)?;
    Ok(outcome.warnings)
}

/// Lets the mutating policies change the object. Returns whether one did.
pub(super) fn mutate(request: &Request<'_>, object: &mut Value, again: &mut Reinvocation) -> Result<bool, ApiError> {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Ok(false);
    }
    let server = &request.call.server;
    let plurals = ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];
    let compiled = compiled(server, &server.policies.mutating, plurals, MutatingPolicy::compile);
    if compiled.is_empty() {
        return Ok(false);
    }
    let asked = Asked::new(request);
    let policies: Vec<(&MutatingPolicy, &[Binding])> =
        compiled.iter().map(|(policy, bindings)| (policy, bindings.as_slice())).collect();
    let authorizer = authorizer(request);
    let outcome = {
        let attributes = asked.attributes(request, Some(object));
        let patcher = ToKind { res: request.call.res, subresource: &request.call.subresource };
        mutating::evaluate(&policies, &attributes, &Params(server), Some(&authorizer), &patcher, again)
    };
    refused(request, &outcome.denials, true)?;
    let changed = outcome.object.is_some();
    if let Some(new) = outcome.object {
        *object = new;
    }
    Ok(changed)
}

/// Patches objects of one kind.
struct ToKind<'a> {
    res: &'static Resource,
    subresource: &'a str,
}

impl Patcher for ToKind<'_> {
    fn apply_configuration(&self, object: &Value, configuration: &Value) -> Result<Value, String> {
        let merged = match self.res.strategy.custom() {
            Some(version) => typed::merge(object, configuration, JsonSchema::object(version.source())),
            None => {
                let kind = Kind(self.res).type_of(&self.res.api_version());
                typed::merge(object, configuration, kind.ok_or("the kind has no schema")?)
            }
        };
        merged.map_err(|errors| errors.to_string())
    }

    fn json_patch(&self, object: &Value, operations: &Value) -> Result<Option<Value>, String> {
        let patch: json_patch::Patch = serde_json::from_value(operations.clone()).map_err(|error| error.to_string())?;
        match patch::bounded(object, &patch) {
            Ok(patched) => Ok(Some(patched)),
            Err(PatchError::Operation(error)) if matches!(error.kind, json_patch::PatchErrorKind::TestFailed) => {
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn default(&self, object: Value) -> Value {
        let sub = (!self.subresource.is_empty()).then_some(self.subresource);
        let decoded = decode::object(self.res, sub, object.clone(), FieldValidation::Ignore);
        decoded.map_or(object, |decoded| decoded.object)
    }
}
