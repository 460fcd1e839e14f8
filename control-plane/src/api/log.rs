//! `pods/log`: proxied to the agent of the pod's node.

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream};
use keelson_kinds::{ApiError, FieldError, Reason, lookup};
use serde_json::Value;

use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::path::encode;

/// The agent's port when its Node does not say.
const DEFAULT_PORT: u16 = 10250;
/// Log options that the agent understands.
const OPTIONS: [&str; 8] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];
/// An error body of an agent is read up to this.
const ERROR_BYTES: usize = 64 << 10;

/// GET of a log.
///
/// # Errors
/// 400 for an unknown container, 404, 422 for contradicting options, what the agent answers.
pub async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    if call.query.has("sinceSeconds") && call.query.has("sinceTime") {
        let error =
            FieldError::forbidden("sinceSeconds", "at most one of `sinceTime` or `sinceSeconds` may be specified");
        return Err(ApiError::invalid("", "PodLogOptions", &call.name, &[error]));
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
        [one] if init.is_empty() && ephemeral.is_empty() => Ok(one.clone()),
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
    fn chooses_the_only_container_or_asks() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        assert_eq!(container(&one, "", "p").unwrap(), "a");
        assert_eq!(container(&one, "b", "p").unwrap_err().message, "container b is not valid for pod p");
        let two = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(
            container(&two, "", "p").unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
        assert_eq!(container(&two, "i", "p").unwrap(), "i");
    }
}
