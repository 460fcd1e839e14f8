//! `pods/log`: proxied to the agent of the pod's node.

use std::num::{IntErrorKind, ParseIntError};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream};
use keelson_kinds::error::go_quote;
use keelson_kinds::{ApiError, FieldError, Reason, lookup};
use serde_json::Value;

use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::path::{Query, encode};

/// The agent's port when its Node does not say.
const DEFAULT_PORT: u16 = 10250;
/// Log options that the agent understands.
const OPTIONS: [&str; 8] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];
/// What `stream` may be.
const STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];
/// An error body of an agent is read up to this.
const ERROR_BYTES: usize = 64 << 10;

/// GET of a log.
///
/// # Errors
/// 400 for an unknown container or options that cannot be read, 404, 422 for options out of range or contradicting, what the agent
/// answers.
pub async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let errors = check(&call.query)?;
    if !errors.is_empty() {
        return Err(ApiError::invalid("", "PodLogOptions", &call.name, &errors));
    }
    let pod = call
        .server
        .get(call.res, &call.namespace, &call.name)
        .ok_or_else(|| ApiError::not_found(call.res, &call.name))?;
    let container = container(&pod, call.query.get("container"), &call.name)?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        // Not scheduled: no log yet, as upstream answers.
        return Ok(text(StatusCode::OK, body::full(Bytes::new())));
    }
    let (host, port) = agent(call, node)?;
    let mut path = format!("/containerLogs/{}/{}/{}", encode(&call.namespace), encode(&call.name), encode(&container));
    let options: Vec<String> = OPTIONS
        .iter()
        .filter(|option| call.query.has(option))
        .map(|option| format!("{option}={}", encode(call.query.get(option))))
        .collect();
    if !options.is_empty() {
        path = format!("{path}?{}", options.join("&"));
    }
    let client =
        call.server.kubelet.as_ref().ok_or_else(|| ApiError::internal("this server has no client for agents"))?;
    let answer = client.get(&host, port, &path).await.map_err(ApiError::internal)?;
    let status = answer.status();
    if !status.is_success() {
        return Err(refused(status, answer.into_body()).await);
    }
    let shutdown = call.server.shutdown.clone();
    let frames = BodyStream::new(answer.into_body()).filter_map(|frame| async move {
        match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(std::io::Error::other(error))),
        }
    });
    let stream = frames.take_until(async move { shutdown.cancelled().await });
    Ok(text(StatusCode::OK, body::streamed(stream)))
}

/// The query's options, judged as upstream's `ValidatePodLogOptions` does, before the pod is looked for.
fn check(query: &Query) -> Result<Vec<FieldError>, ApiError> {
    let number = |name: &str| -> Result<Option<i64>, ApiError> {
        let Some(text) = query.all(name).next() else { return Ok(None) };
        let unreadable =
            |why: &str| ApiError::bad_request(format!("strconv.ParseInt: parsing {}: {why}", go_quote(text)));
        text.parse().map(Some).map_err(|e: ParseIntError| match e.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => unreadable("value out of range"),
            _ => unreadable("invalid syntax"),
        })
    };
    let (tail, limit, seconds) = (number("tailLines")?, number("limitBytes")?, number("sinceSeconds")?);
    // An empty time is no time.
    let time = query.get("sinceTime");
    if !time.is_empty() && time.parse::<jiff::Timestamp>().is_err() {
        return Err(ApiError::bad_request(format!("sinceTime {} is not a time as in RFC 3339", go_quote(time))));
    }
    let mut errors = Vec::new();
    if let Some(tail) = tail.filter(|n| *n < 0) {
        errors.push(FieldError::invalid("tailLines", tail, "must be greater than or equal to 0"));
    }
    if let Some(limit) = limit.filter(|n| *n < 1) {
        errors.push(FieldError::invalid("limitBytes", limit, "must be greater than 0"));
    }
    if seconds.is_some() && query.has("sinceTime") {
        errors.push(FieldError::forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"));
    } else if let Some(seconds) = seconds.filter(|n| *n < 1) {
        errors.push(FieldError::invalid("sinceSeconds", seconds, "must be greater than 0"));
    }
    let stream = query.get("stream");
    if !stream.is_empty() && !STREAMS.contains(&stream) {
        errors.push(FieldError::not_supported("stream", stream, &STREAMS));
    } else if !matches!(stream, "" | "All") && tail.is_some() {
        errors.push(FieldError::forbidden("", "`tailLines` and specific `stream` are mutually exclusive for now"));
    }
    Ok(errors)
}

fn text(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

async fn refused(status: StatusCode, body: hyper::body::Incoming) -> ApiError {
    let bytes = http_body_util::Limited::new(body, ERROR_BYTES)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let said = String::from_utf8_lossy(&bytes).trim().to_owned();
    match status.as_u16() {
        400 => ApiError::bad_request(said),
        404 => ApiError::new(Reason::NotFound, said),
        _ => ApiError::internal(format!("the agent answered {status}: {said}")),
    }
}

fn names(pod: &Value, field: &str) -> Vec<String> {
    let list = pod["spec"][field].as_array().into_iter().flatten();
    list.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
}

/// The container whose log is meant.
pub(super) fn container(pod: &Value, wanted: &str, pod_name: &str) -> Result<String, ApiError> {
    let containers = names(pod, "containers");
    let init = names(pod, "initContainers");
    let ephemeral = names(pod, "ephemeralContainers");
    if !wanted.is_empty() {
        let known = [&containers, &init, &ephemeral].iter().any(|list| list.iter().any(|name| name == wanted));
        return if known {
            Ok(wanted.to_owned())
        } else {
            Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {pod_name}")))
        };
    }
    match containers.as_slice() {
        // As upstream: others than main containers do not count.
        [one] => Ok(one.clone()),
        _ => {
            let mut message = format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                containers.join(" ")
            );
            if !init.is_empty() {
                message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            if !ephemeral.is_empty() {
                message.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
            }
            Err(ApiError::bad_request(message))
        }
    }
}

/// Address and port the node's own object reports.
pub(super) fn agent(call: &Call, node: &str) -> Result<(String, u16), ApiError> {
    let res = lookup("", "v1", "nodes").ok_or_else(ApiError::no_such_resource)?;
    let object = call.server.get(res, "", node).ok_or_else(|| ApiError::not_found(res, node))?;
    let addresses = object["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    let of_type = |kind: &str| addresses.iter().find(|a| a["type"] == kind).and_then(|a| a["address"].as_str());
    // Addresses only: node names resolve nowhere in a small cluster, and what is not resolved cannot be redirected.
    let host = ["InternalIP", "ExternalIP"]
        .into_iter()
        .find_map(|kind| of_type(kind).filter(|a| a.parse::<std::net::IpAddr>().is_ok()))
        .ok_or_else(|| {
            ApiError::internal(format!("no preferred addresses found; known addresses of node {node}: {addresses:?}"))
        })?;
    let port = object["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    Ok((host.to_owned(), port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0).unwrap_or(DEFAULT_PORT)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_judged_before_the_agent_is_asked() {
        let judged = |query: &str| -> Vec<String> {
            check(&Query::parse(query)).unwrap().iter().map(ToString::to_string).collect()
        };
        let cases: [(&str, &[&str]); 9] = [
            ("tailLines=-1", &["tailLines: Invalid value: -1: must be greater than or equal to 0"]),
            ("limitBytes=0", &["limitBytes: Invalid value: 0: must be greater than 0"]),
            ("sinceSeconds=0", &["sinceSeconds: Invalid value: 0: must be greater than 0"]),
            (
                "sinceSeconds=1&sinceTime=2024-01-02T03:04:05Z",
                &[": Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"],
            ),
            (
                "tailLines=-2&limitBytes=-3&sinceSeconds=-4",
                &[
                    "tailLines: Invalid value: -2: must be greater than or equal to 0",
                    "limitBytes: Invalid value: -3: must be greater than 0",
                    "sinceSeconds: Invalid value: -4: must be greater than 0",
                ],
            ),
            (
                "stream=Both",
                &["stream: Unsupported value: \"Both\": supported values: \"All\", \"Stderr\", \"Stdout\""],
            ),
            (
                "stream=Stdout&tailLines=1",
                &[": Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"],
            ),
            ("tailLines=0&limitBytes=1&sinceSeconds=1&follow=true&stream=All", &[]),
            ("sinceTime=", &[]),
        ];
        for (query, expected) in cases {
            assert_eq!(judged(query), expected, "{query}");
        }
        for (query, message) in [
            ("tailLines=x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
            ("limitBytes=", "strconv.ParseInt: parsing \"\": invalid syntax"),
            ("sinceSeconds=99999999999999999999", "value out of range"),
            ("sinceTime=yesterday", "yesterday"),
        ] {
            let error = check(&Query::parse(query)).unwrap_err();
            assert_eq!(error.reason, Reason::BadRequest, "{query}");
            assert!(error.message.contains(message), "{query}: {}", error.message);
        }
    }

    #[test]
    fn chooses_the_only_container_or_asks() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(container(&one, "", "p").unwrap(), "a");
        assert_eq!(container(&one, "b", "p").unwrap_err().message, "container b is not valid for pod p");
        let debugged = json!({"spec": {"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "e"}]}});
        assert_eq!(container(&debugged, "", "p").unwrap(), "a");
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(
            container(&two, "", "p").unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
        assert_eq!(container(&two, "i", "p").unwrap(), "i");
    }
}
