//! Errors as `Status` objects, with upstream's reasons, codes, causes and wording.
//!
//! Upstream counterparts: `k8s.io/apimachinery/pkg/api/errors` and `pkg/util/validation/field`. An [`ApiError`] is what a client sees;
//! it is never retried by this crate, [`ApiError::is_retryable`] says whether a client may.

use std::fmt;

use serde_json::{Map, Value, json};

pub use kube_common::field::{CauseKind, FieldError, go_quote};

use crate::resource::Resource;

/// The machine-readable reason of a `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// 400.
    BadRequest,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
    /// 405.
    MethodNotAllowed,
    /// 406.
    NotAcceptable,
    /// 409, the name is taken.
    AlreadyExists,
    /// 409, optimistic locking or preconditions.
    Conflict,
    /// 410, the resourceVersion or continue token is too old.
    Expired,
    /// 410, the thing is no longer there.
    Gone,
    /// 413.
    RequestEntityTooLarge,
    /// 415.
    UnsupportedMediaType,
    /// 422.
    Invalid,
    /// 429.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 500 without a reason: upstream's answer where an error has no `Status`.
    Unknown,
    /// 500, try again.
    ServerTimeout,
    /// 503.
    ServiceUnavailable,
    /// 504.
    Timeout,
}

impl Reason {
    /// The reason as it is written in a `Status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::Gone => "Gone",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::Unknown => "",
            Self::ServerTimeout => "ServerTimeout",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Timeout => "Timeout",
        }
    }

    /// The HTTP status code.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Expired | Self::Gone => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError | Self::Unknown | Self::ServerTimeout => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// A `StatusCause` that did not come from field validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable reason, e.g. `DisruptionBudget` or `ResourceVersionTooLarge`.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Field path, empty if it is not about a field.
    pub field: String,
}

/// A refusal, ready to be sent as a `Status`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Reason.
    pub reason: Reason,
    /// HTTP code; nearly always `reason.code()`.
    pub code: u16,
    /// Message for people.
    pub message: String,
    /// `details.name`.
    pub name: Box<str>,
    /// `details.group`.
    pub group: Box<str>,
    /// `details.kind`: the plural resource, or the kind for `Invalid`.
    pub kind: Box<str>,
    /// `details.causes`.
    pub causes: Vec<Cause>,
    /// `details.retryAfterSeconds`, 0 if not given; also goes into the `Retry-After` header.
    pub retry_after_seconds: u32,
    /// The `Status` of somebody else's refusal (a webhook's), answered as it is.
    pub verbatim: Option<Box<Value>>,
}

impl ApiError {
    /// An error of `reason` with a free message and no details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            code: reason.code(),
            message: message.into(),
            name: Box::default(),
            group: Box::default(),
            kind: Box::default(),
            causes: Vec::new(),
            retry_after_seconds: 0,
            verbatim: None,
        }
    }

    fn about(reason: Reason, res: &Resource, name: &str, message: String) -> Self {
        Self { name: name.into(), group: res.group.into(), kind: res.plural.into(), ..Self::new(reason, message) }
    }

    /// 404 `pods "x" not found`.
    #[must_use]
    pub fn not_found(res: &Resource, name: &str) -> Self {
        Self::about(Reason::NotFound, res, name, format!("{} {} not found", res.group_resource(), go_quote(name)))
    }

    /// 404 for a URL that no resource serves.
    #[must_use]
    pub fn no_such_resource() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource")
    }

    /// 409 `pods "x" already exists`.
    #[must_use]
    pub fn already_exists(res: &Resource, name: &str) -> Self {
        Self::about(
            Reason::AlreadyExists,
            res,
            name,
            format!("{} {} already exists", res.group_resource(), go_quote(name)),
        )
    }

    /// 409 `Operation cannot be fulfilled on pods "x": …`.
    #[must_use]
    pub fn conflict(res: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {}: {why}", res.group_resource(), go_quote(name));
        Self::about(Reason::Conflict, res, name, message)
    }

    /// 409 for a stale resourceVersion.
    #[must_use]
    pub fn modified(res: &Resource, name: &str) -> Self {
        Self::conflict(
            res,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 403 `pods "x" is forbidden: …`.
    #[must_use]
    pub fn forbidden(res: &Resource, name: &str, why: &str) -> Self {
        let what = res.group_resource();
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {} is forbidden: {why}", go_quote(name))
        };
        Self::about(Reason::Forbidden, res, name, message)
    }

    /// 422 with one cause per refused field.
    #[must_use]
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let what = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let list = match shown.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Self {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            causes: errors
                .iter()
                .map(|e| Cause { reason: e.kind.as_str().to_owned(), message: e.body(), field: e.field.clone() })
                .collect(),
            ..Self::new(Reason::Invalid, format!("{what} {} is invalid: {list}", go_quote(name)))
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 401.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// 405.
    #[must_use]
    pub fn method_not_allowed(res: &Resource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", res.group_resource());
        Self::about(Reason::MethodNotAllowed, res, "", message)
    }

    /// 406.
    #[must_use]
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        Self::new(
            Reason::NotAcceptable,
            format!("only the following media types are accepted: {}", accepted.join(", ")),
        )
    }

    /// 415.
    #[must_use]
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 410 for a watch or list from a revision that was compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// 413 for a body over `limit` bytes.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        Self::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {limit}"))
    }

    /// 429 with `Retry-After`.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self { retry_after_seconds, ..Self::new(Reason::TooManyRequests, message) }
    }

    /// 504 for a resourceVersion of the future, or a request that took too long.
    pub fn timeout(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self { retry_after_seconds, ..Self::new(Reason::Timeout, format!("Timeout: {}", message.into())) }
    }

    /// 500.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self {
            causes: vec![Cause { reason: String::new(), message: message.to_string(), field: String::new() }],
            ..Self::new(Reason::InternalError, format!("Internal error occurred: {message}"))
        }
    }

    /// Whether the same request may succeed later without being changed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self.reason,
            Reason::TooManyRequests
                | Reason::ServerTimeout
                | Reason::ServiceUnavailable
                | Reason::Timeout
                | Reason::Conflict
        )
    }

    /// The `Status` object.
    #[must_use]
    pub fn to_status(&self) -> Value {
        if let Some(status) = &self.verbatim {
            return Value::clone(status);
        }
        let mut details = Map::new();
        for (key, value) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), json!(value));
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(cause_json).collect();
            details.insert("causes".to_owned(), Value::Array(causes));
        }
        if self.retry_after_seconds > 0 {
            details.insert("retryAfterSeconds".to_owned(), json!(self.retry_after_seconds));
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        });
        if let Some(map) = status.as_object_mut() {
            if self.reason != Reason::Unknown {
                map.insert("reason".to_owned(), json!(self.reason.as_str()));
            }
            if !details.is_empty() {
                map.insert("details".to_owned(), Value::Object(details));
            }
            map.insert("code".to_owned(), json!(self.code));
        }
        status
    }
}

fn cause_json(cause: &Cause) -> Value {
    let mut map = Map::new();
    for (key, value) in [("reason", &cause.reason), ("message", &cause.message), ("field", &cause.field)] {
        if !value.is_empty() {
            map.insert(key.to_owned(), json!(value));
        }
    }
    Value::Object(map)
}

/// The `Status` that answers a delete which removed the object at once.
#[must_use]
pub fn deleted_status(res: &Resource, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": res.plural, "uid": uid});
    if !res.group.is_empty() {
        details["group"] = json!(res.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup;

    #[test]
    fn messages_are_upstreams() {
        let pods = lookup("", "v1", "pods").expect("pods");
        let deployments = lookup("apps", "v1", "deployments").expect("deployments");
        assert_eq!(ApiError::not_found(pods, "x").message, "pods \"x\" not found");
        assert_eq!(ApiError::already_exists(deployments, "x").message, "deployments.apps \"x\" already exists");
        assert_eq!(
            ApiError::modified(deployments, "x").message,
            "Operation cannot be fulfilled on deployments.apps \"x\": the object has been modified; please apply your changes to \
             the latest version and try again"
        );
        assert_eq!(
            ApiError::forbidden(pods, "", "User \"u\" cannot list").message,
            "pods is forbidden: User \"u\" cannot list"
        );
        let one = [FieldError::required("spec.x", "")];
        assert_eq!(
            ApiError::invalid("apps", "Deployment", "d", &one).message,
            "Deployment.apps \"d\" is invalid: spec.x: Required value"
        );
    }

    #[test]
    fn statuses_have_upstreams_shape() {
        let pods = lookup("", "v1", "pods").expect("pods");
        assert_eq!(
            ApiError::not_found(pods, "x").to_status(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "pods \"x\" not found",
                "reason": "NotFound", "details": {"name": "x", "kind": "pods"}, "code": 404})
        );
        let busy = ApiError::too_many_requests("busy", 3).to_status();
        assert_eq!((&busy["details"]["retryAfterSeconds"], &busy["code"]), (&json!(3), &json!(429)));
        assert_eq!(deleted_status(pods, "x", "u")["details"], json!({"name": "x", "kind": "pods", "uid": "u"}));
    }

    #[test]
    fn values_are_quoted_as_go_does() {
        assert_eq!(go_quote("a\"b\\c\n\u{1}é"), "\"a\\\"b\\\\c\\n\\x01é\"");
        let error = FieldError::invalid("a", json!({"b": 1}), "c");
        assert_eq!(error.to_string(), "a: Invalid value: {\"b\":1}: c");
    }
}
