//! Create, update and patch.
//!
//! Order as upstream: decode and default, admission, prepare and validate, allocate, store. A patch runs the whole sequence on the newest
//! object after a conflict. Upstream counterpart: `apiserver/pkg/endpoints/handlers/{create,update,patch}.go`.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use keelson_kinds::decode::{self, FieldValidation};
use keelson_kinds::patch::{self, PatchType};
use keelson_kinds::strategy::Part;
use keelson_kinds::{ApiError, FieldError, Reason, Resource, deletion, write};
use serde_json::{Value, json};

use super::{Fresh, decode_body, dry_run, one, ownership, review};
use crate::admission::{self, Operation, Request, quota};
use crate::custom;
use crate::http::Call;
use crate::http::body::Body;
use crate::server::{Change, Inserted, MAX_CONFLICTS, Server};
use crate::services::{is_service, owner};

/// Tries with another suffix when a generated name is taken; upstream's number.
const NAME_ATTEMPTS: usize = 8;

impl Server {
    /// Brings the allocator in line with the stored Service after a write, successful or not.
    pub fn settle_service(&self, res: &Resource, namespace: &str, name: &str) {
        if is_service(res) {
            let stored = self.get(res, namespace, name);
            self.allocator.settle(&owner(namespace, name), stored.as_ref());
        }
    }
}

/// Fits the object to the namespace of the URL.
fn set_namespace(call: &Call, object: &mut Value) -> Result<(), ApiError> {
    if !call.res.namespaced() {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        return Ok(());
    }
    let given = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if !given.is_empty() && given != call.namespace {
        return Err(ApiError::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request ({given} vs {})",
            call.namespace
        )));
    }
    object["metadata"]["namespace"] = json!(call.namespace);
    Ok(())
}

/// POST to a collection.
///
/// # Errors
/// 400, 403, 404 for a missing namespace, 409, 415, 422.
pub async fn create(call: &Call) -> Result<Response<Body>, ApiError> {
    ownership::check_options(call, "CreateOptions", false)?;
    let mut decoded = decode_body(call, None)?;
    ownership::note(call, None, &mut decoded.object);
    create_decoded(call, decoded).await
}

async fn create_decoded(call: &Call, decoded: decode::Decoded) -> Result<Response<Body>, ApiError> {
    let dry = dry_run(call)?;
    let mut warnings = decoded.warnings;
    let mut object = decoded.object;
    set_namespace(call, &mut object)?;
    let given = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let request = Request { name: &given, ..Request::new(call, Operation::Create, None, dry) };
    warnings.extend(admission::mutate(&request, &mut object).await?);
    for _ in 0..NAME_ATTEMPTS {
        let fresh = Fresh::new();
        let mut attempt = object.clone();
        let mut more = write::create(call.res, &mut attempt, &fresh.context(&call.namespace))?;
        let name = attempt["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let request = Request { name: &name, ..request };
        more.extend(admission::validate(&request, Some(&attempt)).await?);
        let stored = store_new(&request, &mut attempt).await;
        call.server.settle_service(call.res, &call.namespace, &name);
        match stored? {
            Some(json) => {
                warnings.extend(more);
                return Ok(one(call, StatusCode::CREATED, json, &warnings));
            }
            None if given.is_empty() => {}
            None => return Err(ApiError::already_exists(call.res, &name)),
        }
    }
    let base = object["metadata"]["generateName"].as_str().unwrap_or_default();
    let mut error = ApiError::already_exists(call.res, base);
    error.retry_after_seconds = 1;
    Err(error)
}

/// Stores a new object and what it costs; `None` when the name is taken.
async fn store_new(request: &Request<'_>, object: &mut Value) -> Result<Option<Bytes>, ApiError> {
    let (call, server) = (request.call, &request.call.server);
    let taken = || server.get(call.res, request.namespace, request.name).is_some();
    let _turn = quota::turn(request).await;
    let asked = is_service(call.res).then(|| object.clone());
    for _ in 0..MAX_CONFLICTS {
        if let Some(asked) = &asked {
            if taken() {
                return Ok(None);
            }
            // Again after a conflict: another server may have given the same address away.
            asked.clone_into(object);
            server.allocator.allocate(&owner(request.namespace, request.name), object)?;
        }
        let mut also = quota::charge(request, object)?;
        also.extend(custom::guard(server, call.res)?);
        if request.dry_run {
            return Ok((!taken()).then(|| object.to_string().into()));
        }
        match server.insert(call.res, request.namespace, request.name, object, also).await? {
            Inserted::Done(json) => return Ok(Some(json)),
            Inserted::Taken => return Ok(None),
            Inserted::Stale => {}
        }
    }
    Err(ApiError::modified(call.res, request.name))
}

/// The part of the object that a URL writes.
#[must_use]
pub fn part(call: &Call) -> Part {
    match call.res.subresource(&call.subresource) {
        None => Part::Main,
        Some(sub) if sub.name == "status" => Part::Status,
        Some(sub) => Part::Other(sub.name),
    }
}

fn sub(call: &Call) -> Option<&str> {
    (!call.subresource.is_empty()).then_some(call.subresource.as_str())
}

/// Refuses a stale or foreign object.
///
/// # Errors
/// 409 for another resourceVersion or uid, 422 where one is required.
pub fn check_preconditions(res: &Resource, name: &str, new: &Value, current: &Value) -> Result<(), ApiError> {
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let version = text(new, "resourceVersion");
    if version.is_empty() || version == "0" {
        if !res.strategy.allow_unconditional_update() {
            let error = FieldError::invalid("metadata.resourceVersion", json!(0), "must be specified for an update");
            return Err(ApiError::invalid(res.group, res.kind, name, &[error]));
        }
    } else if version != text(current, "resourceVersion") {
        return Err(ApiError::modified(res, name));
    }
    let (given, present) = (text(new, "uid"), text(current, "uid"));
    if !given.is_empty() && given != present {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {present}");
        return Err(ApiError::conflict(res, name, &why));
    }
    Ok(())
}

/// What an update makes of the current object, and what the client is warned of.
async fn replace(request: &Request<'_>, current: &Value, mut new: Value) -> Result<(Value, Vec<String>), ApiError> {
    let call = request.call;
    let fresh = Fresh::new();
    set_namespace(call, &mut new)?;
    check_preconditions(call.res, &call.name, &new, current)?;
    if !ownership::is_apply(call.header(header::CONTENT_TYPE)) {
        ownership::note(call, Some(current), &mut new);
    }
    let mut warnings = admission::mutate(request, &mut new).await?;
    warnings.extend(write::update(call.res, &mut new, current, part(call), &fresh.context(&call.namespace))?);
    warnings.extend(admission::validate(request, Some(&new)).await?);
    if is_service(call.res) && call.subresource.is_empty() {
        call.server.allocator.allocate(&owner(&call.namespace, &call.name), &mut new)?;
    }
    Ok((new, warnings))
}

fn outcome(call: &Call, new: Value) -> Change {
    if deletion::is_finished(call.res, &new) { Change::Remove(new) } else { Change::Put(new) }
}

/// Makes of the current object what `wanted` says, for real or dry, and answers with the result.
async fn apply(
    call: &Call,
    wanted: impl FnMut(&Value) -> Result<decode::Decoded, ApiError> + Send,
) -> Result<Response<Body>, ApiError> {
    let result = attempt(call, wanted).await;
    call.server.settle_service(call.res, &call.namespace, &call.name);
    let (json, warnings) = result?;
    Ok(one(call, StatusCode::OK, json, &warnings))
}

async fn attempt(
    call: &Call,
    mut wanted: impl FnMut(&Value) -> Result<decode::Decoded, ApiError> + Send,
) -> Result<(Bytes, Vec<String>), ApiError> {
    let dry = dry_run(call)?;
    let mut attempts = call.server.attempts(call.res, &call.namespace, &call.name);
    loop {
        let current = attempts.current()?;
        let decoded = wanted(&current)?;
        let request = Request::new(call, Operation::Update, Some(&current), dry);
        let (mut new, more) = replace(&request, &current, decoded.object).await?;
        let warnings = [decoded.warnings, more].concat();
        let _turn = quota::turn(&request).await;
        let charges = quota::charge(&request, &new)?;
        if dry {
            // Nothing is stored, so this is still the version; without it a client sees a difference.
            new["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
            return Ok((new.to_string().into(), warnings));
        }
        if let Some(changed) = attempts.commit(outcome(call, new), charges).await? {
            return Ok((changed.json, warnings));
        }
    }
}

/// PUT.
///
/// # Errors
/// 400, 404, 409, 415, 422.
pub async fn update(call: &Call) -> Result<Response<Body>, ApiError> {
    ownership::check_options(call, "UpdateOptions", false)?;
    let mut decoded = decode_body(call, sub(call))?;
    same_name(call, &decoded.object)?;
    let exists = call.server.cache(call.res)?.get(&call.res.key(&call.namespace, &call.name)).is_some();
    if !exists && call.subresource.is_empty() && call.res.strategy.allow_create_on_update() {
        review::require(&call.server, &call.user, &call.attributes("create"), Some(call.res))?;
        ownership::note(call, None, &mut decoded.object);
        return create_decoded(call, decoded).await;
    }
    apply(call, |_| Ok(decoded.clone())).await
}

fn same_name(call: &Call, object: &Value) -> Result<(), ApiError> {
    let given = object["metadata"]["name"].as_str().unwrap_or_default();
    if given == call.name {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the name of the object ({given}) does not match the name on the URL ({})",
        call.name
    )))
}

/// PATCH.
///
/// # Errors
/// 400, 404, 409, 415, 422.
pub async fn patch(call: &Call) -> Result<Response<Body>, ApiError> {
    let apply_patch = ownership::is_apply(call.header(header::CONTENT_TYPE));
    ownership::check_options(call, "PatchOptions", apply_patch)?;
    if apply_patch {
        return server_side_apply(call).await;
    }
    let kind = PatchType::from_content_type(call.header(header::CONTENT_TYPE))?;
    let validation = FieldValidation::parse(call.query.get("fieldValidation"))?;
    apply(call, |current| {
        let patched = patch::apply(call.res, sub(call), kind, current, &call.body)?;
        let decoded = decode::object(call.res, sub(call), patched, validation)?;
        same_name(call, &decoded.object)?;
        Ok(decoded)
    })
    .await
}

/// PATCH with an apply: the object becomes what its managers want together.
async fn server_side_apply(call: &Call) -> Result<Response<Body>, ApiError> {
    let validation = FieldValidation::parse(call.query.get("fieldValidation"))?;
    let config = ownership::configuration(call)?;
    let decoded = |live: Option<&Value>| {
        let applied = ownership::apply(call, live, &config)?;
        decode::object(call.res, sub(call), applied, validation)
    };
    let exists = || call.server.get(call.res, &call.namespace, &call.name).is_some();
    if !exists() && call.subresource.is_empty() {
        review::require(&call.server, &call.user, &call.attributes("create"), Some(call.res))?;
        let uid = config["metadata"]["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(ApiError::conflict(call.res, &call.name, &why));
        }
        match create_decoded(call, decoded(None)?).await {
            // Somebody else was faster: the object is there now.
            Err(error) if error.reason == Reason::AlreadyExists => {}
            result => return result,
        }
    }
    apply(call, |current| decoded(Some(current))).await
}
