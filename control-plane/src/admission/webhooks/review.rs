//! `AdmissionReview`: the question to a webhook, and what its answer says.
//!
//! Upstream counterpart: `apiserver/pkg/admission/plugin/webhook/request`, `.../errors`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keelson_kinds::{ApiError, Reason, Resource, write};
use serde_json::{Value, json};

use super::Invocation;
use super::config::Hook;
use crate::admission::{Operation, Request};
use crate::api::review::user_info;

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("the answer is no AdmissionReview: {0}")]
    Json(serde_json::Error),
    #[error("expected webhook response of admission.k8s.io/{0}, Kind=AdmissionReview, got {1}")]
    Kind(&'static str, String),
    #[error("webhook response was absent")]
    Absent,
    #[error("expected response.uid={wanted:?}, got {got:?}")]
    Uid { wanted: String, got: String },
    #[error("webhook returned response.patch but not response.patchType")]
    NoPatchType,
    #[error("webhook returned invalid response.patchType of {0:?}")]
    PatchType(String),
    #[error("webhook returned a response.patch that is no JSON patch: {0}")]
    Patch(String),
}

/// What a webhook said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) refusal: Option<ApiError>,
    pub(super) patch: Option<json_patch::Patch>,
    pub(super) warnings: Vec<String>,
}

/// An object as a kind of the same stored objects.
pub(super) fn converted(mut object: Value, res: &Resource) -> Value {
    if object.is_object() && res.stored() && object["apiVersion"] != res.api_version() {
        write::convert(res, &mut object);
    }
    object
}

/// The object as this webhook sees it. Scales and other subresources with kinds of their own are shown as they are.
pub(super) fn shown(invocation: &Invocation<'_>, request: &Request<'_>, object: &Value) -> Value {
    if std::ptr::eq(invocation.res, request.call.res) || has_own_kind(request) {
        object.clone()
    } else {
        converted(object.clone(), invocation.res)
    }
}

/// Whether the request is about an object of another kind than the resource's: a scale, a binding, options.
pub(super) fn has_own_kind(request: &Request<'_>) -> bool {
    let res = request.call.res;
    res.subresource(&request.call.subresource).is_some_and(|sub| sub.kind != res.kind)
}

fn kind_of(res: &Resource, subresource: &str) -> Value {
    match res.subresource(subresource) {
        Some(sub) => json!({"group": sub.group, "version": sub.version, "kind": sub.kind}),
        None => json!({"group": res.group, "version": res.version, "kind": res.kind}),
    }
}

fn resource_of(res: &Resource) -> Value {
    json!({"group": res.group, "version": res.version, "resource": res.plural})
}

/// The encoded question.
pub(super) fn request(invocation: &Invocation<'_>, request: &Request<'_>, object: &Value, uid: &str) -> Vec<u8> {
    let call = request.call;
    let subresource = call.subresource.as_str();
    let mut asked = json!({
        "uid": uid,
        "kind": kind_of(invocation.res, subresource),
        "resource": resource_of(invocation.res),
        "requestKind": kind_of(call.res, subresource),
        "requestResource": resource_of(call.res),
        "operation": request.operation.as_str(),
        "userInfo": user_info(&call.user),
        "object": shown(invocation, request, object),
        "oldObject": request.old.map_or(Value::Null, |old| shown(invocation, request, old)),
        "dryRun": request.dry_run,
        "options": options(request),
    });
    for (key, value) in [("name", request.name), ("namespace", request.own_namespace())] {
        if !value.is_empty() {
            asked[key] = json!(value);
        }
    }
    if !subresource.is_empty() {
        asked["subResource"] = json!(subresource);
        asked["requestSubResource"] = json!(subresource);
    }
    let version = format!("admission.k8s.io/{}", invocation.hook.review_version);
    json!({"kind": "AdmissionReview", "apiVersion": version, "request": asked}).to_string().into_bytes()
}

/// The options of the request as an object: `CreateOptions` and its like.
pub(in crate::admission) fn options(request: &Request<'_>) -> Value {
    let call = request.call;
    let kind = match request.operation {
        Operation::Connect => return Value::Null,
        Operation::Create => "CreateOptions",
        Operation::Update if call.verb == "patch" => "PatchOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    for key in ["fieldManager", "fieldValidation"] {
        if !call.query.get(key).is_empty() {
            options[key] = json!(call.query.get(key));
        }
    }
    let dry: Vec<&str> = call.query.all("dryRun").filter(|value| !value.is_empty()).collect();
    if !dry.is_empty() {
        options["dryRun"] = json!(dry);
    }
    options
}

/// Reads an answer to the question `uid`.
pub(super) fn answer(hook: &Hook, uid: &str, bytes: &[u8]) -> Result<Answer, AnswerError> {
    let review: Value = serde_json::from_slice(bytes).map_err(AnswerError::Json)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group_version, kind) = (text(&review["apiVersion"]), text(&review["kind"]));
    let legacy = hook.review_version == "v1beta1";
    let fits = kind == "AdmissionReview" && group_version == format!("admission.k8s.io/{}", hook.review_version);
    let bare = legacy && kind.is_empty() && group_version.is_empty();
    if !(fits || bare) {
        return Err(AnswerError::Kind(hook.review_version, format!("{group_version}, Kind={kind}")));
    }
    let response = &review["response"];
    if !response.is_object() {
        return Err(AnswerError::Absent);
    }
    let got = text(&response["uid"]);
    if !legacy && got != uid {
        return Err(AnswerError::Uid { wanted: uid.to_owned(), got });
    }
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let allowed = response["allowed"] == true;
    Ok(Answer {
        refusal: (!allowed).then(|| refusal(&hook.name, &response["status"])),
        patch: if allowed { patch(response, legacy)? } else { None },
        warnings: warnings.collect(),
    })
}

fn patch(response: &Value, legacy: bool) -> Result<Option<json_patch::Patch>, AnswerError> {
    let Some(encoded) = response["patch"].as_str().filter(|patch| !patch.is_empty()) else { return Ok(None) };
    match response["patchType"].as_str() {
        Some("JSONPatch") => {}
        None | Some("") if legacy => {}
        None | Some("") => return Err(AnswerError::NoPatchType),
        Some(other) => return Err(AnswerError::PatchType(other.to_owned())),
    }
    let bad = |error: &dyn std::fmt::Display| AnswerError::Patch(error.to_string());
    let decoded = STANDARD.decode(encoded).map_err(|error| bad(&error))?;
    serde_json::from_slice(&decoded).map(Some).map_err(|error| bad(&error))
}

/// A webhook's refusal: its own `Status`, with who it was in front of the message.
fn refusal(name: &str, status: &Value) -> ApiError {
    let mut status = if status.is_object() { status.clone() } else { json!({}) };
    let denied = format!("admission webhook {name:?} denied the request");
    let said = ["message", "reason"].iter().filter_map(|key| status[*key].as_str()).find(|text| !text.is_empty());
    let message = match said {
        Some(text) => format!("{denied}: {text}"),
        None => format!("{denied} without explanation"),
    };
    // Upstream answers 400 where a webhook names no failure.
    let code =
        status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
    let code = code.unwrap_or(400);
    for (key, value) in
        [("kind", json!("Status")), ("apiVersion", json!("v1")), ("message", json!(message)), ("code", json!(code))]
    {
        status[key] = value;
    }
    if status["status"].as_str().is_none_or(|text| text.is_empty() || text == "Success") {
        status["status"] = json!("Failure");
    }
    if !status["metadata"].is_object() {
        status["metadata"] = json!({});
    }
    ApiError { code, verbatim: Some(Box::new(status)), ..ApiError::new(Reason::Forbidden, message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(version: &str) -> Hook {
        Hook::read(&json!({"name": "a.b.c", "admissionReviewVersions": [version]}))
    }

    fn answered(response: Value) -> Result<Answer, String> {
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        answer(&hook("v1"), "u", review.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn refusals_name_the_webhook() {
        let of = |status: Value| {
            let refusal = answered(json!({"uid": "u", "allowed": false, "status": status})).unwrap().refusal.unwrap();
            (refusal.to_status()["message"].as_str().unwrap().to_owned(), refusal.code)
        };
        let denied = "admission webhook \"a.b.c\" denied the request";
        assert_eq!(of(json!({"message": "no", "code": 403})), (format!("{denied}: no"), 403));
        assert_eq!(of(json!({"reason": "why"})), (format!("{denied}: why"), 400));
        assert_eq!(of(json!({"code": 200})), (format!("{denied} without explanation"), 400));
        assert_eq!(of(Value::Null), (format!("{denied} without explanation"), 400));
    }

    #[test]
    fn answers_that_cannot_be_used() {
        let fault = |response: Value| answered(response).err().unwrap_or_default();
        assert_eq!(fault(json!({"uid": "x", "allowed": true})), "expected response.uid=\"u\", got \"x\"");
        assert_eq!(fault(Value::Null), "webhook response was absent");
        let patch = STANDARD.encode("[]");
        assert_eq!(
            fault(json!({"uid": "u", "allowed": true, "patch": patch})),
            "webhook returned response.patch but not response.patchType"
        );
        assert!(answer(&hook("v1"), "u", b"{").is_err());
        let old = json!({"response": {"allowed": true}}).to_string();
        assert!(answer(&hook("v1"), "u", old.as_bytes()).is_err());
        assert!(answer(&hook("v1beta1"), "u", old.as_bytes()).unwrap().refusal.is_none());
    }
}
