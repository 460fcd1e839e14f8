//! PodSecurity: the level that a namespace's labels ask for.

use std::time::{Duration, Instant};

use keelson_admission::Change;
use keelson_admission::pod_security::admit;
use keelson_kinds::{ApiError, lookup};
use serde_json::Value;

use super::{Request, limits};

/// How long the pods of a namespace are looked at when its level is raised (upstream's bound).
const LOOK: Duration = Duration::from_secs(1);

/// Refuses a pod that the level does not allow, and says what else is against the level. Returns warnings.
pub(super) fn check(request: &Request<'_>, object: &Value) -> Result<Vec<String>, ApiError> {
    let call = request.call;
    let Some(change) = limits::change(request, object) else { return Ok(Vec::new()) };
    let (group, plural, subresource) = (call.res.group, call.res.plural, call.subresource.as_str());
    if (group, plural) == ("", "namespaces") {
        return if subresource.is_empty() { namespace(request, change) } else { Ok(Vec::new()) };
    }
    if !matches!(group, "" | "apps" | "batch") || !call.res.namespaced() {
        return Ok(Vec::new());
    }
    let namespaces = lookup("", "v1", "namespaces").ok_or_else(ApiError::no_such_resource)?;
    let namespace = call.server.get(namespaces, "", request.namespace).unwrap_or_default();
    let labels = &namespace["metadata"]["labels"];
    let decision = if (group, plural) == ("", "pods") {
        admit::pod(labels, subresource, change)
    } else {
        admit::controller(labels, group, plural, subresource, object)
    };
    match decision.denied {
        Some(why) => Err(ApiError::forbidden(call.res, &super::pods::name_of(object), &why)),
        None => Ok(decision.warnings),
    }
}

fn namespace(request: &Request<'_>, change: Change<'_>) -> Result<Vec<String>, ApiError> {
    let call = request.call;
    let level = admit::namespace(change)
        .map_err(|errors| ApiError::invalid(call.res.group, call.res.kind, request.name, &errors))?;
    let (Some(level), Some(pods)) = (level, lookup("", "v1", "pods")) else { return Ok(Vec::new()) };
    let there = call.server.cache(pods)?.objects(Some(request.name));
    let pods: Vec<Value> = there.iter().take(admit::MAX_PODS).map(|object| object.value()).collect();
    let begun = Instant::now();
    Ok(admit::existing_pods(request.name, level, &pods, || begun.elapsed() > LOOK))
}
