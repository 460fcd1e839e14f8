//! `serviceaccounts/token`: makes a token.
//!
//! Upstream counterpart: `pkg/registry/core/serviceaccount/storage/token.go`, with its limits and its one-year extension for the tokens
//! that agents mount into pods.

use http::{Response, StatusCode};
use keelson_kinds::{ApiError, FieldError, lookup};
use serde_json::{Value, json};

use super::{decode_body, dry_run};
use crate::admission;
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::pki::token::{Claims, ISSUER, KubernetesClaims, Ref};

/// Shortest lifetime.
const MIN_SECONDS: i64 = 600;
/// Longest lifetime that can be asked for.
const MAX_SECONDS: i64 = 1 << 32;
/// Lifetime when none is asked for.
const DEFAULT_SECONDS: i64 = 3600;
/// The lifetime that injected volumes ask for; it marks tokens whose expiry is extended.
const INJECTED_SECONDS: i64 = 3607;
/// Extended expiry, for clients that do not read the file again.
const EXTENDED_SECONDS: i64 = 365 * 86_400;

/// POST of a TokenRequest.
///
/// # Errors
/// 404 for the account or what it is to be bound to, 409 for another uid, 422 for the lifetime.
pub async fn create(call: &Call) -> Result<Response<Body>, ApiError> {
    let mut request = decode_body(call, Some("token"))?.object;
    let account = call
        .server
        .get(call.res, &call.namespace, &call.name)
        .ok_or_else(|| ApiError::not_found(call.res, &call.name))?;
    let warnings = admission::create_subresource(call, &mut request, dry_run(call)?).await?;
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    check_lifetime(call, seconds)?;
    let mut audiences: Vec<String> = serde_json::from_value(request["spec"]["audiences"].clone()).unwrap_or_default();
    audiences.retain(|a| !a.is_empty());
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let now = jiff::Timestamp::now();
    let iat = now.as_second();
    let mut bound = KubernetesClaims {
        namespace: call.namespace.clone(),
        node: None,
        pod: None,
        secret: None,
        serviceaccount: reference(&account),
        warnafter: None,
    };
    bind(call, &request["spec"]["boundObjectRef"], &mut bound)?;
    let mut exp = iat + seconds;
    if seconds == INJECTED_SECONDS && bound.pod.is_some() && audiences == [ISSUER] {
        bound.warnafter = Some(exp);
        exp = iat + EXTENDED_SECONDS;
    }
    let claims = Claims {
        aud: audiences.clone(),
        exp,
        iat,
        iss: ISSUER.to_owned(),
        jti: uuid::Uuid::new_v4().to_string(),
        kubernetes: bound,
        nbf: iat,
        sub: format!("system:serviceaccount:{}:{}", call.namespace, call.name),
    };
    let token = call.server.tokens.sign(&claims).ok_or_else(|| ApiError::internal("the token could not be signed"))?;
    let expiry = jiff::Timestamp::from_second(iat + seconds).unwrap_or(now);
    request["metadata"] = json!({"name": call.name, "namespace": call.namespace,
        "creationTimestamp": rfc3339(now)});
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = json!(seconds);
    request["status"] = json!({"token": token, "expirationTimestamp": rfc3339(expiry)});
    let mut response = body::json_value(StatusCode::CREATED, &request);
    body::add_warnings(&mut response, &warnings);
    Ok(response)
}

fn rfc3339(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn check_lifetime(call: &Call, seconds: i64) -> Result<(), ApiError> {
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let error = FieldError::invalid("spec.expirationSeconds", seconds, why);
    Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", &call.name, &[error]))
}

fn reference(object: &Value) -> Ref {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    Ref { name: text("name"), uid: text("uid") }
}

fn bind(call: &Call, wanted: &Value, bound: &mut KubernetesClaims) -> Result<(), ApiError> {
    if wanted.is_null() {
        return Ok(());
    }
    let name = wanted["name"].as_str().unwrap_or_default();
    let (plural, namespace) = match (wanted["apiVersion"].as_str(), wanted["kind"].as_str()) {
        (Some("v1"), Some("Pod")) => ("pods", call.namespace.as_str()),
        (Some("v1"), Some("Secret")) => ("secrets", call.namespace.as_str()),
        (Some("v1"), Some("Node")) => ("nodes", ""),
        _ => {
            return Err(ApiError::bad_request(format!("cannot bind token to object of type {wanted}")));
        }
    };
    let res = lookup("", "v1", plural).ok_or_else(ApiError::no_such_resource)?;
    let object = call.server.get(res, namespace, name).ok_or_else(|| ApiError::not_found(res, name))?;
    let found = reference(&object);
    let uid = wanted["uid"].as_str().unwrap_or_default();
    if !uid.is_empty() && uid != found.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict(res, name, &why));
    }
    match plural {
        "pods" => {
            if object["spec"]["serviceAccountName"] != call.name.as_str() {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
                    call.name
                )));
            }
            bound.node = object["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()).map(|node| {
                let uid = lookup("", "v1", "nodes")
                    .and_then(|res| call.server.get(res, "", node))
                    .map(|node| reference(&node).uid)
                    .unwrap_or_default();
                Ref { name: node.to_owned(), uid }
            });
            bound.pod = Some(found);
        }
        "secrets" => bound.secret = Some(found),
        _ => bound.node = Some(found),
    }
    Ok(())
}
