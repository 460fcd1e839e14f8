//! What the server answers.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use super::Server;
use super::http::Request;

/// Most bytes `/bytes` hands out.
const BYTES_LIMIT: usize = 64 * 1024 * 1024;

/// What happens after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The connection goes on as HTTP has it.
    Continue,
    /// The process exits.
    Exit(i32),
}

/// An answer.
pub struct Response {
    status: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
    /// What to do once it is sent.
    pub then: Then,
}

impl Response {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain", body: format!("{body}\n").into_bytes(), then: Then::Continue }
    }

    fn json(value: &Value) -> Self {
        let body = format!("{value}\n").into_bytes();
        Self { status: "200 OK", content_type: "application/json", body, then: Then::Continue }
    }

    /// The bytes on the wire.
    pub fn encode(&self, keep_alive: bool, head_only: bool) -> Vec<u8> {
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let mut wire = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
        .into_bytes();
        if !head_only {
            wire.extend_from_slice(&self.body);
        }
        wire
    }
}

/// Who this server is, read once: from the downward API's usual variables where the pod sets them.
#[derive(Debug)]
pub struct Identity {
    /// POD_NAME, else the host name, which is the pod's name unless it has a hostname of its own.
    pub pod: String,
    namespace: Option<String>,
    node: Option<String>,
    pod_ip: Option<String>,
    hostname: String,
}

impl Identity {
    /// Reads environment and host name.
    pub fn of_this_pod() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let token_namespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
        Self {
            pod: variable("POD_NAME").unwrap_or_else(|| hostname.clone()),
            namespace: variable("POD_NAMESPACE").or_else(|| fs::read_to_string(token_namespace).ok()),
            node: variable("NODE_NAME"),
            pod_ip: variable("POD_IP").or_else(|| address_in_hosts_file(&hostname)),
            hostname,
        }
    }
}

/// The node agent writes the pod's own address and host name into /etc/hosts.
fn address_in_hosts_file(hostname: &str) -> Option<String> {
    let hosts = fs::read_to_string("/etc/hosts").ok()?;
    hosts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        (!address.is_loopback() && words.any(|name| name == hostname)).then(|| address.to_string())
    })
}

/// Answers a request.
pub async fn respond(request: &Request, server: &Server) -> Response {
    let number = |name: &str| request.parameter(name).and_then(|value| value.parse::<u64>().ok());
    match request.path.as_str() {
        "/healthz" => Response::text("200 OK", "ok"),
        "/readyz" => readiness(request, server),
        "/exit" => exit(request),
        "/env" => Response::json(&json!(environment())),
        "/seen" => Response::text("200 OK", &Vec::from(server.seen.borrow().clone()).join("\n")),
        "/hostname" => Response::text("200 OK", &server.identity.hostname),
        "/bytes" => {
            let length = usize::try_from(number("n").unwrap_or(0)).unwrap_or(usize::MAX).min(BYTES_LIMIT);
            let content_type = "application/octet-stream";
            Response { status: "200 OK", content_type, body: vec![b'x'; length], then: Then::Continue }
        }
        "/sleep" => {
            tokio::time::sleep(Duration::from_millis(number("ms").unwrap_or(0))).await;
            Response::json(&report(request, server))
        }
        _ => Response::json(&report(request, server)),
    }
}

fn readiness(request: &Request, server: &Server) -> Response {
    if request.method == "POST" || request.method == "PUT" {
        match request.parameter("ok").as_deref() {
            Some("true") => server.ready.set(true),
            Some("false") => server.ready.set(false),
            _ => return Response::text("400 Bad Request", "say ?ok=true or ?ok=false"),
        }
        return Response::text("200 OK", if server.ready.get() { "now ready" } else { "now not ready" });
    }
    if server.ready.get() {
        Response::text("200 OK", "ok")
    } else {
        Response::text("503 Service Unavailable", "not ready")
    }
}

fn exit(request: &Request) -> Response {
    let code = request.parameter("code").map_or(Some(0), |code| code.parse().ok());
    let Some(code) = code else { return Response::text("400 Bad Request", "code must be a number") };
    if let Some(message) = request.parameter("message") {
        // Best effort: the file exists only inside a pod.
        let _ = fs::write("/dev/termination-log", message);
    }
    Response { then: Then::Exit(code), ..Response::text("200 OK", "exiting") }
}

fn environment() -> BTreeMap<String, String> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

fn report(request: &Request, server: &Server) -> Value {
    let identity = &server.identity;
    let headers: BTreeMap<&str, &str> =
        request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    json!({
        "pod": identity.pod,
        "namespace": identity.namespace,
        "node": identity.node,
        "podIP": identity.pod_ip,
        "hostname": identity.hostname,
        "source": request.source.map(plain),
        "sourceIP": request.source.map(|source| plain(source).ip()),
        "local": request.local.map(plain),
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "headers": headers,
        "served": server.served.get(),
        "uptimeMs": u64::try_from(server.started.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

/// IPv4 addresses as such, although the socket is an IPv6 one.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
