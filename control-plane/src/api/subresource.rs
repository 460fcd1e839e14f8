//! Subresources with objects of their own: scale, binding, eviction.

use http::{Response, StatusCode, header};
use keelson_kinds::decode::{self, FieldValidation};
use keelson_kinds::deletion::DeleteOptions;
use keelson_kinds::patch::{self, PatchType};
use keelson_kinds::strategy::Part;
use keelson_kinds::{ApiError, Cause, Resource, lookup, scale as kinds_scale, write};
use kube_common::selector::LabelSelector;
use serde_json::{Value, json};

use super::write::check_preconditions;
use super::{Fresh, decode_body, delete, dry_run};
use crate::admission::{self, Operation, Request};
use crate::cache::Filter;
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::server::Change;

/// GET, PUT and PATCH of a scale.
///
/// # Errors
/// 404, 409, 415, 422.
pub async fn scale(call: &Call) -> Result<Response<Body>, ApiError> {
    let missing = || ApiError::not_found(call.res, &call.name);
    if call.verb == "get" {
        let object = call.server.get(call.res, &call.namespace, &call.name).ok_or_else(missing)?;
        return Ok(body::json_value(StatusCode::OK, &kinds_scale::from_object(call.res, &object)));
    }
    let given = if call.verb == "update" { Some(decode_body(call, Some("scale"))?.object) } else { None };
    let kind =
        if given.is_none() { Some(PatchType::from_content_type(call.header(header::CONTENT_TYPE))?) } else { None };
    let wanted = |current: &Value| -> Result<Value, ApiError> {
        let scale = match (&given, kind) {
            (Some(scale), _) => scale.clone(),
            (None, Some(kind)) => {
                let present = kinds_scale::from_object(call.res, current);
                let patched = patch::apply(call.res, Some("scale"), kind, &present, &call.body)?;
                let validation = FieldValidation::parse(call.query.get("fieldValidation"))?;
                decode::object(call.res, Some("scale"), patched, validation)?.object
            }
            (None, None) => kinds_scale::from_object(call.res, current),
        };
        check_preconditions(call.res, &call.name, &scale, current)?;
        Ok(scale)
    };
    let dry = dry_run(call)?;
    let mut attempts = call.server.attempts(call.res, &call.namespace, &call.name);
    let (object, warnings) = loop {
        let current = attempts.current()?;
        let mut scale = wanted(&current)?;
        // Webhooks see scales here, before and after, as upstream's do.
        let before = kinds_scale::from_object(call.res, &current);
        let request = Request::new(call, Operation::Update, Some(&before), dry);
        let mut warnings = admission::mutate(&request, &mut scale).await?;
        let mut new = kinds_scale::apply(call.res, &current, &scale)?;
        let fresh = Fresh::new();
        write::update(call.res, &mut new, &current, Part::Main, &fresh.context(&call.namespace))?;
        let after = kinds_scale::from_object(call.res, &new);
        warnings.extend(admission::validate(&request, Some(&after)).await?);
        if dry {
            break (new, warnings);
        }
        if let Some(changed) = attempts.commit(Change::Put(new)).await? {
            break (serde_json::from_slice(&changed.json).unwrap_or_default(), warnings);
        }
    };
    let mut response = body::json_value(StatusCode::OK, &kinds_scale::from_object(call.res, &object));
    body::add_warnings(&mut response, &warnings);
    Ok(response)
}

fn success(status: StatusCode, warnings: &[String]) -> Response<Body> {
    let mut response = body::json_value(
        status,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": status.as_u16()}),
    );
    body::add_warnings(&mut response, warnings);
    response
}

/// POST of a binding: the scheduler's decision.
///
/// # Errors
/// 404, 409 when the pod is bound or being deleted.
pub async fn bind(call: &Call) -> Result<Response<Body>, ApiError> {
    let mut binding = decode_body(call, Some("binding"))?.object;
    let warnings = admission::create_subresource(call, &mut binding, dry_run(call)?).await?;
    let now = jiff::Timestamp::now();
    if !dry_run(call)? {
        call.server
            .change(call.res, &call.namespace, &call.name, |pod| {
                Ok(Change::Put(kinds_scale::bind(pod, &binding, now)?))
            })
            .await?;
    }
    Ok(success(StatusCode::CREATED, &warnings))
}

/// POST of an eviction: a delete that disruption budgets may refuse.
///
/// # Errors
/// 404, 429 when a budget is used up.
pub async fn evict(call: &Call) -> Result<Response<Body>, ApiError> {
    let mut eviction = decode_body(call, Some("eviction"))?.object;
    let mut warnings = admission::create_subresource(call, &mut eviction, dry_run(call)?).await?;
    if eviction["metadata"]["name"] != call.name.as_str() {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = DeleteOptions::from_json(&eviction["deleteOptions"])?;
    options.dry_run |= dry_run(call)?;
    let pod = call
        .server
        .get(call.res, &call.namespace, &call.name)
        .ok_or_else(|| ApiError::not_found(call.res, &call.name))?;
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
    if !finished && pod["metadata"]["deletionTimestamp"].is_null() {
        spend_budget(call, &pod, options.dry_run).await?;
    }
    warnings.extend(delete::remove(call, &call.namespace, &call.name, &options).await?.warnings);
    Ok(success(StatusCode::CREATED, &warnings))
}

async fn spend_budget(call: &Call, pod: &Value, dry: bool) -> Result<(), ApiError> {
    let Some(res) = lookup("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
    let Some(cache) = call.server.hub.cache(res) else { return Ok(()) };
    let no_labels = serde_json::Map::new();
    let labels = pod["metadata"]["labels"].as_object().unwrap_or(&no_labels);
    let listed = cache.list(&res.key_prefix(Some(&call.namespace)), None, &Filter::default(), 0);
    let mut budgets = listed.objects.iter().map(|o| o.value()).filter(|budget| {
        let selector = LabelSelector::from_json(budget["spec"].get("selector"));
        selector.is_ok_and(|s| s.matches(labels))
    });
    let Some(budget) = budgets.next() else { return Ok(()) };
    if budgets.next().is_some() {
        return Err(ApiError::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let name = budget["metadata"]["name"].as_str().unwrap_or_default();
    let spend = |budget: &Value| -> Result<Change, ApiError> {
        let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        if allowed <= 0 {
            return Err(budget_used_up(res, name, budget));
        }
        let mut new = budget.clone();
        new["status"]["disruptionsAllowed"] = json!(allowed - 1);
        new["status"]["disruptedPods"][&call.name] =
            json!(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        Ok(Change::Put(new))
    };
    if dry {
        spend(&budget)?;
    } else {
        call.server.change(res, &call.namespace, name, spend).await?;
    }
    Ok(())
}

fn budget_used_up(_res: &Resource, name: &str, budget: &Value) -> ApiError {
    let mut error = ApiError::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 0);
    error.causes.push(Cause {
        reason: "DisruptionBudget".to_owned(),
        message: format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            budget["status"]["desiredHealthy"].as_i64().unwrap_or(0),
            budget["status"]["currentHealthy"].as_i64().unwrap_or(0)
        ),
        field: String::new(),
    });
    error
}
