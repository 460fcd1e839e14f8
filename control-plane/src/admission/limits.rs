//! LimitRanger: what a namespace's limit ranges fill in and forbid.

use keelson_admission::{Change, limit_ranger};
use keelson_kinds::{ApiError, lookup};
use serde_json::Value;

use super::{Operation, Request};
use crate::http::Call;

fn ranges(call: &Call, namespace: &str) -> Vec<Value> {
    let cache = lookup("", "v1", "limitranges").and_then(|res| call.server.hub.cache(res));
    cache.map(|cache| cache.values(Some(namespace))).unwrap_or_default()
}

/// Fills in what a new pod's containers do not ask for.
pub(super) fn fill_in(call: &Call, pod: &mut Value) {
    limit_ranger::apply_defaults(&ranges(call, &call.namespace), pod);
}

/// Refuses what does not keep to the bounds.
pub(super) fn check(request: &Request<'_>, object: &Value) -> Result<(), ApiError> {
    let Some(change) = change(request, object) else { return Ok(()) };
    let call = request.call;
    if !limit_ranger::applies(call.res.group, call.res.plural, &call.subresource, change) {
        return Ok(());
    }
    limit_ranger::check(&ranges(call, request.namespace), call.res.plural, object)
        .map_err(|error| ApiError::forbidden(call.res, &super::pods::name_of(object), &error.to_string()))
}

/// The request as the pure half of admission sees it: creates and updates of the object itself or of what is stored through it.
pub(super) fn change<'a>(request: &Request<'a>, object: &'a Value) -> Option<Change<'a>> {
    match (request.operation, request.old) {
        (Operation::Create, _) => Some(Change::Create(object)),
        (Operation::Update, Some(old)) => Some(Change::Update { new: object, old }),
        _ => None,
    }
}
