//! `pods/proxy`, `services/proxy` and `nodes/proxy`: HTTP to an address behind the object, with and without upgrade.
//!
//! The name may be `[scheme:]name[:port]`. The address is taken from stored objects once and dialled as it is (CVE-2020-8562); those that
//! lead to this machine or its link are refused.

use std::net::IpAddr;

use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyStream;
use keelson_kinds::{ApiError, Reason, Resource, lookup};
use rand::RngExt;
use serde_json::Value;

use super::{Connect, upgraded};
use crate::api::log;
use crate::http::Call;
use crate::http::body::{self, Body};
use crate::http::path::decode;
use crate::kubelet::{Scheme, Target};
use crate::server::Server;

/// Paths of an agent that run something whatever the method.
const RUNNING: [&str; 6] = ["exec", "attach", "portForward", "run", "checkpoint", "cri"];
/// Headers that are not for the back end: those of one hop, and the client's credentials.
const KEPT_BACK: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Whether an agent's path runs something. One that climbs (`..`) might.
pub(super) fn runs_something(tail: &str) -> bool {
    let decoded = decode(tail);
    let mut segments = decoded.split('/').filter(|segment| !segment.is_empty() && *segment != ".");
    segments.clone().any(|segment| segment == "..") || segments.next().is_some_and(|first| RUNNING.contains(&first))
}

/// `[scheme:]name[:port]`.
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    https: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> Named<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let known = matches!(scheme, "" | "http" | "https");
        (known && !name.is_empty()).then_some(Self { https: scheme == "https", name, port })
    }
}

/// Whether an address may be dialled for a client: none that means this machine, its link or everybody.
fn proxyable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_link_local() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => proxyable(ip.into()),
            None => !(ip.is_unspecified() || ip.is_loopback() || ip.is_unicast_link_local() || ip.is_multicast()),
        },
    }
}

fn checked(text: &str) -> Result<String, ApiError> {
    match text.parse::<IpAddr>() {
        Ok(ip) if proxyable(ip) => Ok(ip.to_string()),
        _ => Err(ApiError::bad_request("address not allowed")),
    }
}

fn unavailable(message: String) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, message)
}

fn stored(call: &Call, name: &str) -> Result<Value, ApiError> {
    call.server.get(call.res, &call.namespace, name).ok_or_else(|| ApiError::not_found(call.res, name))
}

fn target(call: &Call) -> Result<Target, ApiError> {
    let named = Named::parse(&call.name)
        .ok_or_else(|| ApiError::bad_request(format!("invalid {} request {:?}", call.res.singular, call.name)))?;
    match call.res.plural {
        "pods" => pod(&named, &stored(call, named.name)?),
        "services" => service(call, &named),
        _ => node(call, &named),
    }
}

fn plain(named: &Named<'_>) -> Scheme {
    if named.https { Scheme::Https } else { Scheme::Http }
}

fn number(port: &str) -> Result<u16, ApiError> {
    let parsed = port.parse::<u16>().ok().filter(|port| *port != 0);
    parsed.ok_or_else(|| ApiError::bad_request(format!("invalid port {port:?}")))
}

fn pod(named: &Named<'_>, pod: &Value) -> Result<Target, ApiError> {
    let containers = pod["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let first = containers.iter().find_map(|c| c["ports"][0]["containerPort"].as_u64());
    let port = match (named.port, first) {
        ("", Some(port)) => u16::try_from(port).map_err(ApiError::internal)?,
        ("", None) if named.https => 443,
        ("", None) => 80,
        (port, _) => number(port)?,
    };
    let host = checked(pod["status"]["podIP"].as_str().unwrap_or_default())?;
    Ok(Target { scheme: plain(named), host, port })
}

/// The name of the service's port that is meant.
fn service_port(name: &str, port: &str, service: &Value) -> Result<String, ApiError> {
    let ports = service["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let port_name = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
    let Ok(wanted) = port.parse::<u64>() else { return Ok(port.to_owned()) };
    let found = ports.iter().find(|port| port["port"] == wanted);
    found.map(port_name).ok_or_else(|| unavailable(format!("no service port {wanted} found for service {name:?}")))
}

/// The addresses of a slice that serve a port.
fn addresses(slice: &Value, port: &str) -> Vec<(String, u16)> {
    let list = |field: &str| slice[field].as_array().map_or(&[][..], Vec::as_slice);
    let Some(number) = list("ports")
        .iter()
        .find(|known| known["name"].as_str().unwrap_or_default() == port)
        .and_then(|known| u16::try_from(known["port"].as_u64()?).ok())
    else {
        return Vec::new();
    };
    list("endpoints")
        .iter()
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .filter_map(|endpoint| Some((endpoint["addresses"][0].as_str()?.to_owned(), number)))
        .collect()
}

/// One of the ready endpoints of a Service's port (its number or name), by chance.
///
/// # Errors
/// 404 for a Service that does not exist, 503 for one without the port or a ready endpoint, 400 for an address that may not be dialled.
pub(crate) fn endpoint(server: &Server, namespace: &str, name: &str, port: &str) -> Result<(String, u16), ApiError> {
    let none = || unavailable(format!("no endpoints available for service {name:?}"));
    let services = lookup("", "v1", "services").ok_or_else(none)?;
    let service = server.get(services, namespace, name).ok_or_else(|| ApiError::not_found(services, name))?;
    let port = service_port(name, port, &service)?;
    let slices: &Resource = lookup("discovery.k8s.io", "v1", "endpointslices").ok_or_else(none)?;
    let mut all: Vec<(String, u16)> = server
        .cache(slices)?
        .values(Some(namespace))
        .into_iter()
        .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name)
        .flat_map(|slice| addresses(&slice, &port))
        .collect();
    if all.is_empty() {
        return Err(none());
    }
    let (host, port) = all.swap_remove(rand::rng().random_range(0..all.len()));
    Ok((checked(&host)?, port))
}

fn service(call: &Call, named: &Named<'_>) -> Result<Target, ApiError> {
    let (host, port) = endpoint(&call.server, &call.namespace, named.name, named.port)?;
    Ok(Target { scheme: plain(named), host, port })
}

fn node(call: &Call, named: &Named<'_>) -> Result<Target, ApiError> {
    let (host, agent_port) = log::agent(call, named.name)?;
    let host = checked(&host)?;
    // The agent's own port is the only one that sees this server's certificate.
    if named.port.is_empty() || named.port == agent_port.to_string() {
        return Ok(Target { scheme: Scheme::Agent, host, port: agent_port });
    }
    Ok(Target { scheme: plain(named), host, port: number(named.port)? })
}

/// The path and query for the back end.
fn path(connect: &Connect) -> String {
    let path = if connect.tail.is_empty() { "/" } else { &connect.tail };
    if connect.query.is_empty() { path.to_owned() } else { format!("{path}?{}", connect.query) }
}

fn forwarded(headers: &HeaderMap, connect: &Connect, upgrading: bool) -> HeaderMap {
    let mut out = HeaderMap::new();
    for (name, value) in headers {
        let impersonation = name.as_str().starts_with("impersonate-");
        let hop = name == "keep-alive" || name == "proxy-connection";
        if !KEPT_BACK.contains(name) && !impersonation && !hop {
            out.append(name, value.clone());
        }
    }
    if upgrading {
        for name in [header::CONNECTION, header::UPGRADE] {
            out.extend(headers.get(&name).map(|value| (name, value.clone())));
        }
    }
    let mut note = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            out.insert(name, value);
        }
    };
    note("x-forwarded-proto", "https");
    note("x-forwarded-uri", &format!("{}{}", connect.prefix, connect.tail));
    if let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) {
        note("x-forwarded-host", host);
    }
    out
}

/// A redirect within the back end leads through the proxy again; one to somewhere else is the client's affair.
fn relocated(location: &str, target: &Target, prefix: &str) -> Option<String> {
    let authority = target.authority();
    let own = ["http://", "https://"].iter().find_map(|scheme| location.strip_prefix(scheme)?.strip_prefix(&authority));
    let path = own.unwrap_or(location);
    (path.starts_with('/') && !path.starts_with("//")).then(|| format!("{prefix}{path}"))
}

pub(super) async fn connect(call: &Call, connect: Connect) -> Result<Response<Body>, ApiError> {
    let target = target(call)?;
    let upgrading = call.headers.contains_key(header::UPGRADE);
    if connect.tail.is_empty() && !upgrading && matches!(connect.method, Method::GET | Method::HEAD) {
        // Relative links of a page need the slash.
        let query = if connect.query.is_empty() { String::new() } else { format!("?{}", connect.query) };
        let mut answer = Response::new(body::full(""));
        *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
        let to = HeaderValue::from_str(&format!("{}/{query}", connect.prefix)).map_err(ApiError::internal)?;
        answer.headers_mut().insert(header::LOCATION, to);
        return Ok(answer);
    }
    let client =
        call.server.kubelet.as_ref().ok_or_else(|| ApiError::internal("this server has no client for back ends"))?;
    let headers = forwarded(&call.headers, &connect, upgrading);
    let uri = path(&connect);
    let Connect { method, prefix, body: sent, upgrade, place, .. } = connect;
    let mut request = Request::builder().method(method).uri(uri).body(sent).map_err(ApiError::internal)?;
    *request.headers_mut() = headers;
    let failed = |error: crate::kubelet::KubeletError| unavailable(format!("error trying to reach service: {error}"));
    if upgrading {
        let answer = client.upgrade(&target, request).await.map_err(failed)?;
        return upgraded(call, upgrade, answer, place).await;
    }
    let answer = client.send(&target, request).await.map_err(failed)?;
    let (parts, incoming) = answer.into_parts();
    let shutdown = call.server.shutdown.clone();
    let frames = BodyStream::new(incoming).filter_map(move |frame| {
        // The place is given back with the last byte.
        let _held = &place;
        std::future::ready(match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(std::io::Error::other(error))),
        })
    });
    let mut response = Response::new(body::streamed(frames.take_until(shutdown.cancelled_owned())));
    *response.status_mut() = parts.status;
    for (name, value) in &parts.headers {
        if !KEPT_BACK.contains(name) && name != "keep-alive" {
            response.headers_mut().append(name, value.clone());
        }
    }
    let location = parts.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    if let Some(to) = location.and_then(|location| relocated(location, &target, &prefix)) {
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_str(&to).map_err(ApiError::internal)?);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_with_scheme_and_port() {
        let parse = |text| Named::parse(text).map(|named| (named.https, named.name, named.port));
        assert_eq!(parse("web"), Some((false, "web", "")));
        assert_eq!(parse("web:http"), Some((false, "web", "http")));
        assert_eq!(parse("https:web:443"), Some((true, "web", "443")));
        assert_eq!(parse("https:web:"), Some((true, "web", "")));
        assert_eq!((parse("ftp:web:21"), parse(":80"), parse("a:b:c:d")), (None, None, None));
    }

    #[test]
    fn addresses_that_lead_home_are_refused() {
        for bad in
            ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::", "224.0.0.1", "fe80::1", "::ffff:127.0.0.1", "web"]
        {
            assert!(checked(bad).is_err(), "{bad}");
        }
        assert_eq!(checked("10.244.0.7").unwrap(), "10.244.0.7");
    }

    #[test]
    fn what_a_node_would_run() {
        for tail in ["/exec/d/p/c", "//attach/d/p/c", "/%65xec/d/p/c", "/./run/d/p/c", "/pods/../exec/d/p/c"] {
            assert!(runs_something(tail), "{tail}");
        }
        assert!(!runs_something("/pods") && !runs_something("/metrics/exec") && !runs_something(""));
    }

    #[test]
    fn ports_of_pods_and_services() {
        let object = json!({"spec": {"containers": [{}, {"ports": [{"containerPort": 8080}]}]}, "status": {"podIP": "10.0.0.7"}});
        let of = |text: &str| pod(&Named::parse(text).unwrap(), &object).map(|t| t.authority()).unwrap();
        assert_eq!((of("p"), of("p:81")), ("10.0.0.7:8080".to_owned(), "10.0.0.7:81".to_owned()));
        let service = json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 81}]}});
        let of = |port: &str| service_port("s", port, &service).map_err(|e| e.message);
        assert_eq!((of("80"), of("http"), of("81")), (Ok("http".into()), Ok("http".into()), Ok(String::new())));
        assert_eq!(of("82"), Err("no service port 82 found for service \"s\"".into()));
        let slice = json!({"ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}]});
        assert_eq!(addresses(&slice, "http"), [("10.0.0.1".to_owned(), 8080)]);
        assert!(addresses(&slice, "other").is_empty());
    }

    #[test]
    fn redirects_within_the_back_end_come_back() {
        let target = Target { scheme: Scheme::Http, host: "10.0.0.7".into(), port: 80 };
        let of = |location| relocated(location, &target, "/x/proxy");
        assert_eq!(of("/a?b").as_deref(), Some("/x/proxy/a?b"));
        assert_eq!(of("http://10.0.0.7:80/a").as_deref(), Some("/x/proxy/a"));
        assert_eq!((of("http://evil/a"), of("//evil/a"), of("a")), (None, None, None));
    }
}
