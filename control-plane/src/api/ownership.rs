//! Who set which field: managedFields of every write, and server-side apply.
//!
//! As upstream, a write's fields count before admission and the kind's own rules change the object, so that nobody owns what the server
//! filled in. Upstream counterparts: `apiserver/pkg/endpoints/handlers/{create,update,patch}.go` where they call the field manager.

use keelson_kinds::decode::{self, Format};
use keelson_kinds::ownership::Kind;
use keelson_kinds::strategy::Part;
use keelson_kinds::{ApiError, Cause, FieldError, Reason};
use keelson_managed_fields::schema::JsonSchema;
use keelson_managed_fields::{ApplyError, Conflict, OneType, Request, Set, applied, manager_or_user_agent, updated};
use serde_json::{Value, json};

use super::write::part;
use crate::http::Call;

/// Longest name of a manager, in bytes (upstream's `FieldManagerMaxLength`).
const MANAGER_MAX: usize = 128;

/// Media types of a server-side apply.
pub const APPLY_TYPES: [&str; 2] = ["application/apply-patch+yaml", "application/apply-patch+json"];

/// Whether a patch of this media type is an apply.
#[must_use]
pub fn is_apply(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default();
    APPLY_TYPES.contains(&media.trim())
}

/// Checks `fieldManager` and `force`.
///
/// # Errors
/// 422.
pub fn check_options(call: &Call, kind: &str, apply: bool) -> Result<(), ApiError> {
    let manager = call.query.get("fieldManager");
    let mut errors = Vec::new();
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError::too_long("fieldManager", MANAGER_MAX));
    }
    if let Some((at, bad)) = manager.char_indices().find(|(_, c)| c.is_control()) {
        let why = format!("should only contain printable characters (see character {bad:?} at {at})");
        errors.push(FieldError::invalid("fieldManager", manager, why));
    }
    if apply && manager.is_empty() {
        errors.push(FieldError::required("fieldManager", "is required for apply patch"));
    }
    if !apply && call.query.has("force") {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", kind, "", &errors)) }
}

fn manager(call: &Call) -> String {
    manager_or_user_agent(call.query.get("fieldManager"), call.header(http::header::USER_AGENT))
}

/// Fields that a write to this URL cannot change.
fn ignored(call: &Call) -> Set {
    match part(call) {
        Part::Main if call.res.strategy.has_status() => Set::of_fields(&[&["status"]]),
        Part::Status => Set::of_fields(&[
            &["spec"],
            &["metadata", "deletionTimestamp"],
            &["metadata", "finalizers"],
            &["metadata", "ownerReferences"],
        ]),
        Part::Main | Part::Other(_) => Set::new(),
    }
}

/// Notes in `new` who set what, after a create (`live` is `None`), update or patch.
pub fn note(call: &Call, live: Option<&Value>, new: &mut Value) {
    let manager = manager(call);
    let request = Request {
        manager: &manager,
        api_version: &call.res.api_version(),
        subresource: &call.subresource,
        now: jiff::Timestamp::now(),
        force: false,
    };
    let ignored = ignored(call);
    let noted = match call.res.strategy.custom() {
        Some(version) => updated(&OneType(JsonSchema::object(version.source())), live, new, &request, &ignored),
        None => updated(&Kind(call.res), live, new, &request, &ignored),
    };
    if noted.is_err() {
        // As upstream: a write does not fail for that, the list stays as it was.
        // The error may show values, a Secret's among them.
        tracing::debug!(resource = call.res.plural, name = %call.name, "cannot tell who set which field");
    }
}

/// Reads the configuration of an apply.
///
/// # Errors
/// 400 for what is no object of the call's kind, version and name.
pub fn configuration(call: &Call) -> Result<Value, ApiError> {
    let mut config = decode::parse(&call.body, Format::Yaml)?;
    if !config.is_object() {
        return Err(ApiError::bad_request("error decoding YAML: an apply patch is an object"));
    }
    let (res, text) = (call.res, |value: &Value| value.as_str().unwrap_or_default().to_owned());
    let (version, kind) = (text(&config["apiVersion"]), text(&config["kind"]));
    if version != res.api_version() {
        let expected = res.api_version();
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {expected}"
        )));
    }
    if kind != res.kind {
        return Err(ApiError::bad_request(format!(
            "the kind in the apply patch ({kind}) does not match the kind of the resource ({})",
            res.kind
        )));
    }
    let name = text(&config["metadata"]["name"]);
    if name != call.name {
        return Err(ApiError::bad_request(format!(
            "metadata.name of the apply patch ({name}) does not match the name on the URL ({})",
            call.name
        )));
    }
    if res.namespaced() && config["metadata"]["namespace"].is_null() {
        config["metadata"]["namespace"] = json!(call.namespace);
    }
    Ok(config)
}

/// What an apply makes of the object that is there, or of none.
///
/// # Errors
/// 409 for conflicts, 400 and 500 for a configuration that does not fit.
pub fn apply(call: &Call, live: Option<&Value>, config: &Value) -> Result<Value, ApiError> {
    let manager = manager(call);
    let request = Request {
        manager: &manager,
        api_version: &call.res.api_version(),
        subresource: &call.subresource,
        now: jiff::Timestamp::now(),
        force: call.query.flag("force"),
    };
    let ignored = ignored(call);
    let result = match call.res.strategy.custom() {
        Some(version) => applied(&OneType(JsonSchema::object(version.source())), live, config, &request, &ignored),
        None => applied(&Kind(call.res), live, config, &request, &ignored),
    };
    result.map_err(|error| refusal(&error))
}

fn refusal(error: &ApplyError) -> ApiError {
    let reason = match error.code() {
        409 => Reason::Conflict,
        400 => Reason::BadRequest,
        _ => Reason::Unknown,
    };
    let mut answer = ApiError::new(reason, error.to_string());
    if let ApplyError::Conflicts(conflicts) = error {
        answer.causes = conflicts
            .0
            .iter()
            .map(|conflict| Cause {
                reason: Conflict::CAUSE.to_owned(),
                message: conflict.message(),
                field: conflict.field(),
            })
            .collect();
    }
    answer
}
