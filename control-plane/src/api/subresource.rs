//! Subresources with objects of their own: scale and binding. Eviction is in `eviction`.

use http::{Response, StatusCode, header};
use keelson_kinds::decode::{self, FieldValidation};
use keelson_kinds::patch::{self, PatchType};
use keelson_kinds::strategy::Part;
use keelson_kinds::{ApiError, scale as kinds_scale, write};
use serde_json::{Value, json};

use super::write::check_preconditions;
use super::{Fresh, decode_body, dry_run, ownership};
use crate::admission::{self, Operation, Request};
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
        ownership::note(call, Some(&current), &mut new);
        let fresh = Fresh::new();
        write::update(call.res, &mut new, &current, Part::Main, &fresh.context(&call.namespace))?;
        let after = kinds_scale::from_object(call.res, &new);
        warnings.extend(admission::validate(&request, Some(&after)).await?);
        if dry {
            break (new, warnings);
        }
        if let Some(changed) = attempts.commit(Change::Put(new), Vec::new()).await? {
            break (serde_json::from_slice(&changed.json).unwrap_or_default(), warnings);
        }
    };
    let mut response = body::json_value(StatusCode::OK, &kinds_scale::from_object(call.res, &object));
    body::add_warnings(&mut response, &warnings);
    Ok(response)
}

/// The `Status` of a success.
#[must_use]
pub fn success(status: StatusCode, warnings: &[String]) -> Response<Body> {
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
