//! Kinds that are asked, not stored: access and token reviews; and the decision behind them.

use std::sync::Arc;

use http::{Response, StatusCode, header};
use keelson_kinds::{ApiError, Reason, Resource};
use kube_common::selector::FieldSelector;
use serde_json::{Value, json};

use super::decode_body;
use crate::auth::{self, Attributes, Decision, User, authenticate, node};
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::negotiate::takes_the_object;
use crate::server::Server;

/// Whether a user may do something.
#[must_use]
pub fn decide(server: &Arc<Server>, user: &User, attributes: &Attributes) -> Decision {
    let allow = |reason: &str| Decision { allowed: true, reason: reason.to_owned() };
    if user.in_group(auth::MASTERS) {
        return allow("");
    }
    if let Some(name) = node::node_name(user)
        && node::allows(&server.hub, name, attributes)
    {
        return allow("");
    }
    if server.rbac.allows(user, attributes) {
        return allow("RBAC: allowed by a role bound to the user or one of its groups");
    }
    Decision { allowed: false, reason: String::new() }
}

/// Refuses what a user may not do.
///
/// # Errors
/// 403.
pub fn require(
    server: &Arc<Server>,
    user: &User,
    attributes: &Attributes,
    res: Option<&Resource>,
) -> Result<(), ApiError> {
    if decide(server, user, attributes).allowed {
        return Ok(());
    }
    let why = auth::refusal(user, attributes);
    Err(match res {
        Some(res) => ApiError::forbidden(res, &attributes.name, &why),
        None => ApiError::new(Reason::Forbidden, format!("forbidden: {why}")),
    })
}

/// What a review can be written as, in upstream's words.
const REPRESENTATIONS: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// POST of a review.
///
/// # Errors
/// 400, 404, 406, 415, 422.
pub async fn create(call: &Call) -> Result<Response<Body>, ApiError> {
    if !takes_the_object(Some(call.header(header::ACCEPT))) {
        // A review is stored nowhere and has no columns.
        return Err(ApiError::not_acceptable(&REPRESENTATIONS));
    }
    let mut review = decode_body(call, None)?.object;
    review["status"] = match call.res.kind {
        "SelfSubjectAccessReview" => access(call, &call.user, &review["spec"]),
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let user = subject(&review["spec"]);
            access(call, &user, &review["spec"])
        }
        "TokenReview" => token(call, &review["spec"]),
        "SelfSubjectReview" => json!({"userInfo": user_info(&call.user)}),
        "SelfSubjectRulesReview" => rules(call, &review["spec"]),
        _ => return Err(ApiError::method_not_allowed(call.res, call.verb)),
    };
    if review["metadata"].is_null() {
        review["metadata"] = json!({});
    }
    Ok(body::json_value(StatusCode::CREATED, &review))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn subject(spec: &Value) -> User {
    User {
        name: text(&spec["user"]),
        uid: text(&spec["uid"]),
        groups: serde_json::from_value(spec["groups"].clone()).unwrap_or_default(),
        extra: serde_json::from_value(spec["extra"].clone()).unwrap_or_default(),
    }
}

/// The node a review's field selector requires; terms as given one by one, or as the text of the query.
fn selected_node(selector: &Value) -> String {
    let terms = selector["requirements"].as_array().into_iter().flatten();
    let required = terms.filter(|t| t["key"] == "spec.nodeName" && t["operator"] == "In").find_map(|term| {
        let values = term["values"].as_array()?;
        if values.len() == 1 { values[0].as_str() } else { None }
    });
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let parsed = FieldSelector::parse(raw).unwrap_or_default();
    required.or_else(|| parsed.exact("spec.nodeName")).unwrap_or_default().to_owned()
}

fn access(call: &Call, user: &User, spec: &Value) -> Value {
    let attributes = if spec["resourceAttributes"].is_object() {
        let of = &spec["resourceAttributes"];
        Attributes {
            verb: text(&of["verb"]),
            group: text(&of["group"]),
            version: text(&of["version"]),
            resource: text(&of["resource"]),
            subresource: text(&of["subresource"]),
            namespace: text(&of["namespace"]),
            name: text(&of["name"]),
            node_name: selected_node(&of["fieldSelector"]),
            path: String::new(),
        }
    } else {
        let of = &spec["nonResourceAttributes"];
        Attributes { verb: text(&of["verb"]), path: text(&of["path"]), ..Attributes::default() }
    };
    let decision = decide(&call.server, user, &attributes);
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = json!(decision.reason);
    }
    status
}

/// A user as `UserInfo`.
#[must_use]
pub fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn token(call: &Call, spec: &Value) -> Value {
    let audiences: Vec<String> = serde_json::from_value(spec["audiences"].clone()).unwrap_or_default();
    let given = spec["token"].as_str().unwrap_or_default();
    match authenticate::token_user(&call.server, given, &audiences, jiff::Timestamp::now()) {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user_info(&user), "audiences": audiences})
        }
        Err(error) => json!({"authenticated": false, "user": {}, "error": error.to_string()}),
    }
}

fn rules(call: &Call, spec: &Value) -> Value {
    let namespace = text(&spec["namespace"]);
    let (mut resources, mut urls) = (Vec::new(), Vec::new());
    if call.user.in_group(auth::MASTERS) {
        resources.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        urls.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    for rule in call.server.rbac.rules_for(&call.user, &namespace) {
        if rule.non_resource_urls.is_empty() {
            let mut shown = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            resources.push(shown);
        } else {
            urls.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": node::node_name(&call.user).is_some()})
}
