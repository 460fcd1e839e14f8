//! `pods/exec`, `pods/attach` and `pods/portforward`: to the agent of the pod's node.

use http::{HeaderMap, HeaderName, Request, Response, header};
use http_body_util::{BodyExt, Empty};
use keelson_kinds::ApiError;
use serde_json::Value;

use super::{Connect, upgraded};
use crate::api::log;
use crate::http::Call;
use crate::http::body::Body;
use crate::http::path::{Query, encode};
use crate::kubelet::{Scheme, Target};

/// What an upgrade needs; nothing else of the client reaches the agent, credentials least of all.
const PASSED: [HeaderName; 8] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::USER_AGENT,
    HeaderName::from_static("x-stream-protocol-version"),
];

pub(super) async fn connect(call: &Call, connect: Connect) -> Result<Response<Body>, ApiError> {
    let pod = call
        .server
        .get(call.res, &call.namespace, &call.name)
        .ok_or_else(|| ApiError::not_found(call.res, &call.name))?;
    let path = agent_path(call, &pod)?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", call.name)));
    }
    if !connect.tail.is_empty() {
        return Err(ApiError::no_such_resource());
    }
    let (host, port) = log::agent(call, node)?;
    let client =
        call.server.kubelet.as_ref().ok_or_else(|| ApiError::internal("this server has no client for agents"))?;
    let empty = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::builder().method(connect.method).uri(path).body(empty).map_err(ApiError::internal)?;
    pass(&call.headers, request.headers_mut());
    let target = Target { scheme: Scheme::Agent, host, port };
    let answer = client.upgrade(&target, request).await.map_err(ApiError::internal)?;
    upgraded(call, connect.upgrade, answer, connect.place).await
}

fn pass(from: &HeaderMap, to: &mut HeaderMap) {
    for name in &PASSED {
        for value in from.get_all(name) {
            to.append(name, value.clone());
        }
    }
}

/// The agent's path with its query.
fn agent_path(call: &Call, pod: &Value) -> Result<String, ApiError> {
    let place = format!("{}/{}", encode(&call.namespace), encode(&call.name));
    if call.subresource == "portforward" {
        return Ok(forward_path(&place, &call.query));
    }
    let container = log::container(pod, call.query.get("container"), &call.name)?;
    Ok(command_path(&call.subresource, &place, &container, &call.query))
}

fn forward_path(place: &str, query: &Query) -> String {
    let ports: Vec<&str> = query.all("ports").collect();
    if ports.is_empty() {
        return format!("/portForward/{place}");
    }
    format!("/portForward/{place}?port={}", encode(&ports.join(",")))
}

fn command_path(endpoint: &str, place: &str, container: &str, query: &Query) -> String {
    let mut options = Vec::new();
    for (theirs, ours) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if query.flag(theirs) {
            options.push(format!("{ours}=1"));
        }
    }
    if endpoint == "exec" {
        options.extend(query.all("command").map(|word| format!("command={}", encode(word))));
    }
    format!("/{endpoint}/{place}/{}?{}", encode(container), options.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_the_agents() {
        let query =
            Query::parse("container=c&command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=1&stderr=false&tty=");
        assert_eq!(
            command_path("exec", "d/p", "c", &query),
            "/exec/d/p/c?input=1&output=1&tty=1&command=sh&command=-c&command=echo%20a%26b"
        );
        assert_eq!(command_path("attach", "d/p", "c", &Query::parse("stdout=true")), "/attach/d/p/c?output=1");
        assert_eq!(forward_path("d/p", &Query::parse("ports=80&ports=443")), "/portForward/d/p?port=80%2C443");
        assert_eq!(forward_path("d/p", &Query::default()), "/portForward/d/p");
    }
}
