//! URLs that are no resources: discovery, OpenAPI, health, version, metrics, the token issuer's documents.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use keelson_kinds::{ApiError, Resource, discovery, openapi};
use serde_json::json;

use crate::http::body::{self, Body};
use crate::http::negotiate::{Representation, representation};
use crate::http::path::Query;
use crate::pki::token::ISSUER;
use crate::protobuf;
use crate::server::Server;

/// Whether a path is served to everyone, even anonymous.
#[must_use]
pub fn is_public(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path == "/version"
        || ["/healthz", "/livez", "/readyz"]
            .iter()
            .any(|p| path.strip_prefix(p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Answers a GET.
///
/// # Errors
/// 404.
pub fn answer(
    server: &Arc<Server>,
    path: &str,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let trimmed = path.trim_matches('/');
    let table = server.registry.all();
    let parts: Vec<&str> = trimmed.split('/').collect();
    let found = |value: Option<serde_json::Value>| {
        value.map(|v| body::json_value(StatusCode::OK, &v)).ok_or_else(ApiError::no_such_resource)
    };
    match parts.as_slice() {
        [""] => Ok(body::json_value(StatusCode::OK, &json!({"paths": root_paths(&table)}))),
        ["version"] => Ok(body::json_value(StatusCode::OK, &discovery::version())),
        ["api" | "apis"] if representation(accept) == Representation::Discovery => {
            let mut response = body::json_value(StatusCode::OK, &discovery::aggregated(&table, trimmed == "api"));
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            );
            Ok(response)
        }
        ["api"] => Ok(body::json_value(StatusCode::OK, &discovery::api_versions(&table, &address(server)))),
        ["apis"] => Ok(body::json_value(StatusCode::OK, &discovery::api_groups(&table))),
        ["apis", group] => found(discovery::api_group(&table, group)),
        ["api", version] => found(discovery::api_resources(&table, "", version)),
        ["apis", group, version] => found(discovery::api_resources(&table, group, version)),
        ["openapi", "v2"] => Ok(openapi_v2(&table, accept, headers)),
        ["openapi", "v3"] => Ok(body::json_value(StatusCode::OK, &openapi::index(&table))),
        ["openapi", "v3", rest @ ..] => {
            let document = openapi::document(&table, &rest.join("/")).ok_or_else(ApiError::no_such_resource)?;
            let mut response = body::json(StatusCode::OK, document);
            if query.has("hash") {
                // The hash names the content, so a client may keep it for ever.
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
            }
            Ok(response)
        }
        [".well-known", "openid-configuration"] => Ok(body::json_value(
            StatusCode::OK,
            &json!({"issuer": ISSUER, "jwks_uri": format!("https://{}/openid/v1/jwks", address(server)),
                "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"]}),
        )),
        ["openid", "v1", "jwks"] => {
            let mut response = body::json_value(StatusCode::OK, &server.tokens.jwks());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jwk-set+json"));
            Ok(response)
        }
        _ => {
            let verbose = query.has("verbose").then_some("verbose");
            let page = server.metrics.endpoints.answer(path.trim_end_matches('/'), verbose);
            let page = page.ok_or_else(ApiError::no_such_resource)?;
            let mut response = Response::new(body::full(page.body));
            *response.status_mut() = page.status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(page.content_type));
            Ok(response)
        }
    }
}

/// The document of v2 as protobuf or JSON, unless the client has it already.
fn openapi_v2(table: &[&'static Resource], accept: Option<&str>, headers: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}\"", openapi::v2_hash(table));
    let known = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let mut response = if known {
        let mut response = Response::new(body::full(Vec::new()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if accept.is_some_and(|accept| accept.contains(protobuf::openapi::MEDIA_TYPE)) {
        let mut response = Response::new(body::full(protobuf::openapi::document(table)));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(protobuf::openapi::CONTENT_TYPE));
        response
    } else {
        body::json_value(StatusCode::OK, &openapi::v2_document(table))
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn address(server: &Server) -> String {
    std::net::SocketAddr::new(server.config.advertise_address, server.config.secure_port).to_string()
}

fn root_paths(table: &[&'static Resource]) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    for resource in table.iter().filter(|r| !r.group.is_empty()) {
        for path in [format!("/apis/{}", resource.group), format!("/apis/{}/{}", resource.group, resource.version)] {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths
}
