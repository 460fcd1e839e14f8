//! Delete of one object and of a collection.

use futures::StreamExt;
use http::{Response, StatusCode};
use keelson_kinds::deletion::{self, DeleteOptions};
use keelson_kinds::{ApiError, Reason, error};
use serde_json::{Map, Value, json};

use super::{one, one_value, parse_body, read};
use crate::admission::{self, Operation, Request};
use crate::custom;
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::path::Query;
use crate::server::{Change, Changed};

/// Deletes of a collection that run at once, so that they share commits.
const PARALLEL: usize = 64;

/// Options from the body and, where that is silent, the query; judged together.
///
/// # Errors
/// 400, 415, 422.
pub fn options(call: &Call) -> Result<DeleteOptions, ApiError> {
    let body = if call.body.is_empty() { json!({}) } else { parse_body(call)? };
    DeleteOptions::from_json(&merged(body, &call.query)?)
}

fn merged(mut body: Value, query: &Query) -> Result<Value, ApiError> {
    if body.is_null() {
        body = json!({});
    }
    let Some(options) = body.as_object_mut() else { return Ok(body) };
    let absent =
        |options: &Map<String, Value>, name: &str| query.has(name) && options.get(name).is_none_or(Value::is_null);
    let grace = query.get("gracePeriodSeconds");
    if absent(options, "gracePeriodSeconds") && !grace.is_empty() {
        let seconds: i64 = grace
            .parse()
            .map_err(|_| ApiError::bad_request(format!("gracePeriodSeconds: Invalid value: {grace:?}")))?;
        options.insert("gracePeriodSeconds".to_owned(), json!(seconds));
    }
    if absent(options, "propagationPolicy") {
        options.insert("propagationPolicy".to_owned(), json!(query.get("propagationPolicy")));
    }
    if absent(options, "orphanDependents") {
        options.insert("orphanDependents".to_owned(), json!(query.flag("orphanDependents")));
    }
    if absent(options, "dryRun") {
        let values: Vec<&str> = query.all("dryRun").filter(|v| !v.is_empty()).collect();
        options.insert("dryRun".to_owned(), json!(values));
    }
    Ok(body)
}

/// Deletes one object.
///
/// # Errors
/// 404, 409, 403 for what may not be deleted.
pub async fn remove(call: &Call, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Removed, ApiError> {
    let now = jiff::Timestamp::now();
    let mut attempts = call.server.attempts(call.res, namespace, name);
    loop {
        let current = attempts.current()?;
        let (operation, dry_run) = (Operation::Delete, options.dry_run);
        let request = Request { call, operation, namespace, name, old: Some(&current), dry_run };
        let warnings = admission::delete(&request).await?;
        let mut asked = current.clone();
        if custom::is_definition(call.res) && !dry_run && current["metadata"]["deletionTimestamp"].is_null() {
            keelson_kinds::custom::begin_deletion(&mut asked, now);
        }
        let change = deletion::begin(call.res, &asked, options, now)?.into();
        if dry_run {
            let (value, removed) = match change {
                Change::Remove(value) => (value, true),
                Change::Put(value) => (value, false),
                Change::Keep => (current, false),
            };
            return Ok(Removed { changed: Changed { json: value.to_string().into(), removed }, warnings });
        }
        if let Some(changed) = attempts.commit(change, Vec::new()).await? {
            call.server.settle_service(call.res, namespace, name);
            return Ok(Removed { changed, warnings });
        }
    }
}

/// How a delete ended.
#[derive(Debug)]
pub struct Removed {
    /// The object's last state, or its state while something still holds it.
    pub changed: Changed,
    /// What the client is warned of.
    pub warnings: Vec<String>,
}

/// DELETE of one object.
///
/// # Errors
/// As [`remove`], and 400, 415, 422 for the options.
pub async fn delete(call: &Call) -> Result<Response<Body>, ApiError> {
    let options = options(call)?;
    let Removed { changed, warnings } = remove(call, &call.namespace, &call.name, &options).await?;
    if !changed.removed {
        return Ok(one(call, StatusCode::OK, changed.json, &warnings));
    }
    let last: Value = serde_json::from_slice(&changed.json).unwrap_or_default();
    // Pods and some others answer with themselves, as upstream's ReturnDeletedObject.
    if matches!(call.res.plural, "pods" | "services" | "serviceaccounts") && call.res.group.is_empty() {
        return Ok(one_value(call, StatusCode::OK, &last, &warnings));
    }
    let uid = last["metadata"]["uid"].as_str().unwrap_or_default();
    let mut response = body::json_value(StatusCode::OK, &error::deleted_status(call.res, &call.name, uid));
    body::add_warnings(&mut response, &warnings);
    Ok(response)
}

/// DELETE of a collection; answers with the list of what was deleted.
///
/// # Errors
/// 400, 415, 422, and the first failure that is not "it is gone already".
pub async fn collection(call: &Call) -> Result<Response<Body>, ApiError> {
    let options = options(call)?;
    let filter = read::filter(call)?;
    let prefix = call.res.key_prefix(Some(call.namespace.as_str()).filter(|n| !n.is_empty()));
    let snapshot = call.server.cache(call.res)?.list(&prefix, None, &filter, 0);
    let options = &options;
    let results: Vec<Result<Removed, ApiError>> = futures::stream::iter(snapshot.objects)
        .map(|object| async move { remove(call, &object.namespace, &object.name, options).await })
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    let mut items: Vec<Value> = Vec::new();
    for result in results {
        match result {
            Ok(removed) => items.push(serde_json::from_slice(&removed.changed.json).unwrap_or_default()),
            Err(error) if error.reason == Reason::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let list = json!({"kind": call.res.list_kind, "apiVersion": call.res.api_version(),
        "metadata": {"resourceVersion": snapshot.revision.to_string()}, "items": items});
    Ok(body::json_value(StatusCode::OK, &list))
}
