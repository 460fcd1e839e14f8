//! Get and list, from the cache; pages of a list at an older revision come from the store.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use keelson_kinds::{ApiError, FieldError, Reason, Resource, table, write};
use kube_common::selector::{FieldSelector, LabelSelector};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{include_object, one, wanted};
use crate::cache::{Filter, Object, Snapshot};
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::negotiate::Representation;
use crate::server::{Server, store_error, too_large_version};
use crate::store::Revision;

/// How long a read waits for a revision of the near future; upstream's bound.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);
/// Objects read from the store at a time when a page comes from there.
const STORE_PAGE: usize = 500;

/// GET of one object.
///
/// # Errors
/// 404, 504.
pub async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let wanted = revision(call.query.get("resourceVersion"))?;
    not_older_than(&call.server, wanted.unwrap_or(0)).await?;
    let cache = call.server.cache(call.res)?;
    let object = cache
        .get(&call.res.key(&call.namespace, &call.name))
        .ok_or_else(|| ApiError::not_found(call.res, &call.name))?;
    Ok(one(call, StatusCode::OK, object.json_as(call.res), &[]))
}

/// A resourceVersion parameter, `None` if absent.
///
/// # Errors
/// 400 when it is no number.
pub fn revision(text: &str) -> Result<Option<Revision>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: must be an unsigned integer"))
    })
}

/// Waits until the caches show a revision.
///
/// # Errors
/// 504 when that takes too long.
pub async fn not_older_than(server: &Server, wanted: Revision) -> Result<(), ApiError> {
    if server.hub.wait_for(wanted, FRESHNESS_WAIT).await {
        Ok(())
    } else {
        Err(too_large_version(wanted, server.hub.revision()))
    }
}

/// The filter of a list, watch or deletecollection.
///
/// # Errors
/// 400 for a selector that cannot be read or a field that cannot be selected.
pub fn filter(call: &Call) -> Result<Filter, ApiError> {
    let labels = LabelSelector::parse(call.query.get("labelSelector")).map_err(|e| {
        const BEFORE: &str = "unable to parse requirement: ";
        let why = e.to_string();
        ApiError::bad_request(format!("{BEFORE}{}", why.strip_prefix(BEFORE).unwrap_or(&why)))
    })?;
    let fields = FieldSelector::parse(call.query.get("fieldSelector"))
        .map_err(|e| ApiError::bad_request(format!("invalid field selector: {e}")))?;
    for field in fields.fields() {
        write::check_selectable(call.res, field)?;
    }
    let namespace = (!call.namespace.is_empty()).then(|| call.namespace.as_str().into());
    Ok(Filter { namespace, labels, fields })
}

/// What a continue token says.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    /// Format.
    v: String,
    /// Revision of the whole list; [`INCONSISTENT`] where that is gone, and the rest is to be read as it is now.
    rv: i64,
    /// Last key of the page before, without the prefix.
    start: String,
}

const CONTINUE_FORMAT: &str = "meta.k8s.io/v1";
/// Upstream's.
const INCONSISTENT: i64 = -1;

impl Continue {
    fn decode(text: &str) -> Result<Self, ApiError> {
        let bad = || ApiError::bad_request("continue key is not valid");
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if token.v == CONTINUE_FORMAT && (token.rv > 0 || token.rv == INCONSISTENT) { Ok(token) } else { Err(bad()) }
    }

    /// What a client is told when the revision is compacted: it may go on with how things are now.
    fn expired(mut self, error: ApiError) -> ApiError {
        if error.reason != Reason::Expired {
            return error;
        }
        self.rv = INCONSISTENT;
        let mut status = error.to_status();
        status["metadata"]["continue"] = json!(self.encode());
        ApiError { verbatim: Some(Box::new(status)), ..error }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

/// GET of a collection.
///
/// # Errors
/// 400, 410, 422, 504.
pub async fn list(call: &Call) -> Result<Response<Body>, ApiError> {
    let filter = filter(call)?;
    let prefix = call.res.key_prefix(Some(call.namespace.as_str()).filter(|n| !n.is_empty()));
    let snapshot = snapshot(call, &filter, &prefix).await?;
    let mut meta = json!({"resourceVersion": snapshot.revision.to_string()});
    if snapshot.more
        && let Some(last) = snapshot.objects.last()
    {
        let start = last.key.strip_prefix(prefix.as_str()).unwrap_or_default().to_owned();
        let rv = i64::try_from(snapshot.revision).unwrap_or(INCONSISTENT);
        let token = Continue { v: CONTINUE_FORMAT.to_owned(), rv, start };
        meta["continue"] = json!(token.encode());
        if let Some(remaining) = snapshot.remaining {
            meta["remainingItemCount"] = json!(remaining);
        }
    }
    Ok(match wanted(call) {
        Representation::Table => {
            let values: Vec<Value> = snapshot.objects.iter().map(|o| o.value_as(call.res)).collect();
            let refs: Vec<&Value> = values.iter().collect();
            let now = jiff::Timestamp::now();
            body::json_value(StatusCode::OK, &table::render(call.res, &refs, meta, include_object(call), now, true))
        }
        Representation::Partial => {
            let values: Vec<Value> = snapshot.objects.iter().map(|o| o.value_as(call.res)).collect();
            let refs: Vec<&Value> = values.iter().collect();
            body::json_value(StatusCode::OK, &table::partial_list(&refs, meta))
        }
        _ if !call.res.storage_version => {
            let items = snapshot.objects.iter().map(|o| o.value_as(call.res)).collect();
            body::json_value(StatusCode::OK, &write::list(call.res, items, &meta))
        }
        Representation::Plain | Representation::Discovery => {
            let head = format!(
                "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{meta},\"items\":[",
                call.res.list_kind,
                call.res.api_version()
            );
            body::list(head, snapshot.objects)
        }
    })
}

async fn snapshot(call: &Call, filter: &Filter, prefix: &str) -> Result<Snapshot, ApiError> {
    let cache = call.server.cache(call.res)?;
    let limit: usize = match call.query.get("limit") {
        "" => 0,
        text => text.parse().map_err(|_| ApiError::bad_request(format!("limit: Invalid value: {text:?}")))?,
    };
    let version = revision(call.query.get("resourceVersion"))?;
    let token = call.query.get("continue");
    if !token.is_empty() {
        if version.is_some_and(|v| v != 0) {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        let token = Continue::decode(token)?;
        let after = format!("{prefix}{}", token.start);
        let Ok(revision) = Revision::try_from(token.rv) else {
            return Ok(cache.list(prefix, Some(&after), filter, limit));
        };
        // A token may be from another server, or made up.
        not_older_than(&call.server, revision).await?;
        let page = at_revision(call, filter, prefix, Some(&after), revision, limit).await;
        return page.map_err(|error| token.expired(error));
    }
    let matching = call.query.get("resourceVersionMatch");
    match (matching, version) {
        ("", _) | ("NotOlderThan", Some(_)) => {
            not_older_than(&call.server, version.unwrap_or(0)).await?;
            Ok(cache.list(prefix, None, filter, limit))
        }
        ("Exact", Some(at)) if at > 0 => {
            not_older_than(&call.server, at).await?;
            at_revision(call, filter, prefix, None, at, limit).await
        }
        ("Exact" | "NotOlderThan", _) => Err(list_option(FieldError::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ))),
        (other, _) => {
            Err(list_option(FieldError::not_supported("resourceVersionMatch", other, &["Exact", "NotOlderThan"])))
        }
    }
}

/// 422 for an option of a list or watch.
#[must_use]
pub fn list_option(error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", "ListOptions", "", &[error])
}

/// A page as it stood at a revision: from the cache while nothing changed since, else from the store.
async fn at_revision(
    call: &Call,
    filter: &Filter,
    prefix: &str,
    after: Option<&str>,
    revision: Revision,
    limit: usize,
) -> Result<Snapshot, ApiError> {
    let cache = call.server.cache(call.res)?;
    let from_cache = cache.list(prefix, after, filter, limit);
    if cache.last_change() <= revision {
        return Ok(Snapshot { revision, ..from_cache });
    }
    let mut objects = Vec::new();
    let mut last: Option<Arc<str>> = after.map(Into::into);
    loop {
        let page =
            call.server.store.range(prefix, last.as_deref(), Some(revision), STORE_PAGE).await.map_err(store_error)?;
        last = page.items.last().map(|item| Arc::clone(&item.key));
        for item in &page.items {
            let Some(object) = decode(call.res, item) else { continue };
            if !filter.matches(&object) {
                continue;
            }
            if limit != 0 && objects.len() == limit {
                return Ok(Snapshot { objects, revision, more: true, remaining: None });
            }
            objects.push(object);
        }
        if !page.more {
            return Ok(Snapshot { objects, revision, more: false, remaining: None });
        }
    }
}

fn decode(res: &Resource, item: &crate::store::KeyValue) -> Option<Arc<Object>> {
    Object::stored(res, item).map(Arc::new).map_err(|error| tracing::error!(%error, "an object was left out")).ok()
}
