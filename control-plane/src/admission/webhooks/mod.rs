//! Admission webhooks: what is asked of whom, in which order, and what comes of the answers.
//!
//! Mutating webhooks run one after the other, each on what the ones before made of the object, and once more if they ask for that and the
//! object changed after their turn. Validating ones run at once. Neither is asked about webhook configurations or admission policies
//! themselves, so that nobody can lock himself out. Upstream counterpart: `apiserver/pkg/admission/plugin/webhook`.

mod config;
mod review;
mod rules;
mod transport;

use std::sync::Arc;

use futures::future::join_all;
use keelson_cel::match_conditions::{FailurePolicy, Matched};
use keelson_cel::{Budget, MATCH_CONDITIONS_BUDGET, Variables};
use keelson_kinds::decode::{self, FieldValidation};
use keelson_kinds::patch;
use keelson_kinds::{ApiError, Reason, Resource, Scope, lookup};
use kube_common::selector::LabelSelector;
use serde_json::Value;

use super::{Operation, Request, policies};
pub use config::Configurations;
use config::{Hook, SideEffects};
pub(super) use review::options;

/// Group whose configurations and policies no webhook is asked about.
const OWN_GROUP: &str = "admissionregistration.k8s.io";

/// Which of the two kinds of webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// They may change the object.
    Mutating,
    /// They may only refuse.
    Validating,
}

impl Phase {
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Mutating => "mutatingwebhookconfigurations",
            Self::Validating => "validatingwebhookconfigurations",
        }
    }
}

/// A request as one webhook is asked about it: perhaps in another version than the client's.
struct Invocation<'a> {
    hook: &'a Hook,
    /// The kind that the webhook's rules named.
    res: &'static Resource,
}

fn hooks(request: &Request<'_>, phase: Phase) -> Arc<Vec<Hook>> {
    let none = Arc::default;
    if request.call.res.group == OWN_GROUP {
        return none();
    }
    let server = &request.call.server;
    let Some(cache) = lookup(OWN_GROUP, "v1", phase.plural()).and_then(|res| server.hub.cache(res)) else {
        return none();
    };
    server.webhooks.hooks(phase, &cache)
}

/// Labels that a webhook's namespace selector looks at; `None` for what is in no namespace and is none itself.
fn namespace_labels(request: &Request<'_>, object: &Value) -> Option<Value> {
    let res = request.call.res;
    if request.is_about_a_namespace() {
        let own = request.call.subresource.is_empty() && !object.is_null();
        let object = if own { object } else { request.old.unwrap_or(object) };
        return Some(object["metadata"]["labels"].clone());
    }
    if res.scope == Scope::Cluster {
        return None;
    }
    let namespaces = lookup("", "v1", "namespaces")?;
    let namespace = request.call.server.get(namespaces, "", request.namespace);
    Some(namespace.map(|namespace| namespace["metadata"]["labels"].clone()).unwrap_or_default())
}

fn selects(selector: &LabelSelector, labels: &Value) -> bool {
    let none = serde_json::Map::new();
    selector.matches(labels.as_object().unwrap_or(&none))
}

fn applies<'a>(hook: &'a Hook, request: &Request<'_>, object: &Value) -> Result<Option<Invocation<'a>>, ApiError> {
    let call = request.call;
    let Some(res) = rules::matching(hook, &call.server.registry.all(), call.res, &call.subresource, request.operation)
    else {
        return Ok(None);
    };
    if let Some(labels) = namespace_labels(request, object)
        && !selects(&hook.namespaces, &labels)
    {
        return Ok(None);
    }
    // What has no metadata, as the options of a connection, or is not there, is selected by nothing but a selector of everything.
    let selected =
        |object: &Value| object["metadata"].is_object() && selects(&hook.objects, &object["metadata"]["labels"]);
    if !hook.objects.is_everything() && !selected(object) && !request.old.is_some_and(selected) {
        return Ok(None);
    }
    if !hook.conditions.is_empty() && !conditions_hold(hook, request, object)? {
        return Ok(None);
    }
    if request.dry_run && hook.side_effects == SideEffects::Some {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(ApiError::bad_request(why));
    }
    Ok(Some(Invocation { hook, res }))
}

/// Whether the webhook's conditions hold for a request that its rules name.
fn conditions_hold(hook: &Hook, request: &Request<'_>, object: &Value) -> Result<bool, ApiError> {
    let asked = policies::Asked::new(request);
    let attributes = asked.attributes(request, Some(object));
    let shown = attributes.request(attributes.resource);
    let authorizer = policies::authorizer(request);
    let variables = Variables::new()
        .json("object", attributes.object)
        .json("oldObject", attributes.old_object)
        .json("request", Some(&shown))
        .authorizer(&authorizer, attributes.request_resource());
    let mut budget = Budget::new(MATCH_CONDITIONS_BUDGET);
    match hook.conditions.evaluate(&variables, hook.failure, &mut budget) {
        Matched::Yes => Ok(true),
        Matched::No(_) => Ok(false),
        Matched::Refused(why) => Err(ApiError::forbidden(request.call.res, request.name, &why)),
    }
}

/// What mutating webhooks did.
#[derive(Debug, Default)]
pub(super) struct Mutated {
    /// What the client is warned of.
    pub(super) warnings: Vec<String>,
    /// Whether one of them changed the object.
    pub(super) changed: bool,
}

/// Asks the mutating webhooks and applies what they answer.
pub(super) async fn mutate(request: &Request<'_>, object: &mut Value) -> Result<Mutated, ApiError> {
    let hooks = hooks(request, Phase::Mutating);
    let mut mutated = Mutated::default();
    let mut again: Vec<(&Hook, Value)> = Vec::new();
    for hook in hooks.iter() {
        if ask_to_change(hook, request, object, &mut mutated).await? && hook.reinvoke {
            again.push((hook, object.clone()));
        }
    }
    for (hook, left) in again {
        if left != *object {
            ask_to_change(hook, request, object, &mut mutated).await?;
        }
    }
    Ok(mutated)
}

/// Whether the webhook was asked.
async fn ask_to_change(
    hook: &Hook,
    request: &Request<'_>,
    object: &mut Value,
    mutated: &mut Mutated,
) -> Result<bool, ApiError> {
    let Some(invocation) = applies(hook, request, object)? else { return Ok(false) };
    let Some(answer) = ask(&invocation, request, object).await? else { return Ok(true) };
    mutated.warnings.extend(answer.warnings);
    if let Some(refusal) = answer.refusal {
        return Err(refusal);
    }
    if let Some(patch) = answer.patch {
        let new = patched(&invocation, request, object, &patch)?;
        mutated.changed |= new != *object;
        *object = new;
    }
    Ok(true)
}

/// What a webhook's patch makes of the object, in the request's version and with defaults.
fn patched(
    invocation: &Invocation<'_>,
    request: &Request<'_>,
    object: &Value,
    patch: &json_patch::Patch,
) -> Result<Value, ApiError> {
    let name = &invocation.hook.name;
    let failed = |why: &dyn std::fmt::Display| {
        ApiError::internal(format!("failed to apply the patch of webhook {name:?}: {why}"))
    };
    if patch.0.is_empty() {
        return Ok(object.clone());
    }
    if object.is_null() {
        let why = format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        );
        return Err(ApiError::internal(why));
    }
    let seen = review::shown(invocation, request, object);
    let patched = patch::bounded(&seen, patch).map_err(|error| failed(&error))?;
    let (res, subresource) = (request.call.res, request.call.subresource.as_str());
    if request.operation == Operation::Connect {
        return Ok(patched);
    }
    let back = if review::has_own_kind(request) { patched } else { review::converted(patched, res) };
    let sub = (!subresource.is_empty()).then_some(subresource);
    let decoded = decode::object(res, sub, back, FieldValidation::Ignore);
    decoded.map(|decoded| decoded.object).map_err(|error| failed(&error))
}

/// Asks the validating webhooks; the first refusal in their order counts.
pub(super) async fn validate(request: &Request<'_>, object: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let hooks = hooks(request, Phase::Validating);
    let object = object.unwrap_or(&Value::Null);
    let mut invocations = Vec::new();
    for hook in hooks.iter() {
        invocations.extend(applies(hook, request, object)?);
    }
    let answers = join_all(invocations.iter().map(|invocation| ask(invocation, request, object))).await;
    let mut warnings = Vec::new();
    for answer in answers {
        let Some(answer) = answer? else { continue };
        warnings.extend(answer.warnings);
        if let Some(refusal) = answer.refusal {
            return Err(refusal);
        }
    }
    Ok(warnings)
}

/// Asks one webhook. `None` where it failed and may.
async fn ask(
    invocation: &Invocation<'_>,
    request: &Request<'_>,
    object: &Value,
) -> Result<Option<review::Answer>, ApiError> {
    let hook = invocation.hook;
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::request(invocation, request, object, &uid);
    let calling = transport::post(&request.call.server, hook, &body);
    let failure = match tokio::time::timeout(hook.timeout, calling).await {
        Ok(Ok(answer)) => match review::answer(hook, &uid, &answer) {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error.to_string(),
        },
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("Post {:?}: context deadline exceeded", hook.shown_url()),
    };
    let message = format!("failed calling webhook {:?}: failed to call webhook: {failure}", hook.name);
    match hook.failure {
        FailurePolicy::Ignore => {
            tracing::warn!(webhook = %hook.name, error = %failure, "a webhook failed and is passed over");
            Ok(None)
        }
        FailurePolicy::Fail => {
            tracing::warn!(webhook = %hook.name, error = %failure, "a webhook failed, so the request is refused");
            Err(ApiError {
                causes: Vec::new(),
                ..ApiError::new(Reason::InternalError, format!("Internal error occurred: {message}"))
            })
        }
    }
}
