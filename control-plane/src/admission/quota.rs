//! ResourceQuota: what a request costs is charged in the same transaction that stores the object.
//!
//! So neither is there without the other: a quota never counts what was refused or lost in a crash, which upstream's counts until its next
//! resync. What is deleted or shrinks is given back by [`crate::quota`].

use std::sync::Arc;

use keelson_admission::quota::{self, Charge};
use keelson_kinds::{ApiError, Resource, lookup};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use super::{Request, limits};
use crate::cache::Object;
use crate::server::Also;

/// The quotas of a namespace.
pub(crate) fn of(server: &crate::server::Server, namespace: &str) -> Vec<Arc<Object>> {
    let Some(res) = resource() else { return Vec::new() };
    let Some(cache) = server.hub.cache(res).filter(|cache| !cache.is_empty()) else { return Vec::new() };
    cache.objects(Some(namespace))
}

/// The kind.
pub(crate) fn resource() -> Option<&'static Resource> {
    lookup("", "v1", "resourcequotas")
}

/// Requests that cost quota of one namespace go one after the other, as they would only collide. `None` where nothing is limited.
pub(crate) async fn turn(request: &Request<'_>) -> Option<OwnedMutexGuard<()>> {
    let server = &request.call.server;
    if request.namespace.is_empty() || of(server, request.namespace).is_empty() {
        return None;
    }
    Some(server.quotas.turn(request.namespace).await)
}

/// What has to be stored together with the object, because it costs quota.
pub(crate) fn charge(request: &Request<'_>, object: &Value) -> Result<Vec<Also>, ApiError> {
    let call = request.call;
    let Some(change) = limits::change(request, object).filter(|_| !request.namespace.is_empty()) else {
        return Ok(Vec::new());
    };
    let asked = quota::Request {
        group: call.res.group,
        resource: call.res.plural,
        subresource: &call.subresource,
        change,
        now: jiff::Timestamp::now().as_second(),
    };
    if !quota::handles(&asked) {
        return Ok(Vec::new());
    }
    let stored = of(&call.server, request.namespace);
    let quotas: Vec<Value> = stored.iter().map(|object| object.value()).collect();
    let charges = quota::check(&quotas, &asked)
        .map_err(|error| ApiError::forbidden(call.res, &super::pods::name_of(object), &error.to_string()))?;
    let also = |charge: &Charge| {
        let at = stored.iter().position(|object| *object.name == *charge.quota)?;
        let mut quota = quotas[at].clone();
        charge.apply_to(&mut quota);
        Some(Also { key: Arc::clone(&stored[at].key), read_at: stored[at].revision, object: Some(quota) })
    };
    Ok(charges.iter().filter_map(also).collect())
}
