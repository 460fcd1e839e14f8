//! The downward API: values of pod fields and of container resources.
//!
//! Shared by container environments and by downwardAPI/projected volumes. Upstream counterparts:
//! `pkg/fieldpath`, `pkg/api/v1/resource` and the kubelet's `podFieldSelectorRuntimeValue`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_common::quantity::Quantity;

/// What the node knows and the pod object does not (yet) say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// Addresses of the pod, primary first; empty until the sandbox has them.
    pub pod_ips: Vec<String>,
    /// Addresses of the node, primary first.
    pub host_ips: Vec<String>,
    /// The node's allocatable resources by name, as in `node.status.allocatable`: the answer to a
    /// limit that no container sets.
    pub allocatable: BTreeMap<String, ApiQuantity>,
}

/// A downward API reference that has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The field may not be referenced (or does not exist).
    #[error("unsupported fieldPath: {path}")]
    UnsupportedPath {
        /// The path as written.
        path: String,
    },
    /// A subscript on a field that has none.
    #[error("field label not supported: {path}")]
    UnsupportedLabel {
        /// The path as written.
        path: String,
    },
    /// The resource may not be referenced.
    #[error("unsupported container resource : {resource}")]
    UnsupportedResource {
        /// The resource as written.
        resource: String,
    },
    /// `containerName` names no container of the pod.
    #[error("container {name} not found")]
    NoContainer {
        /// The name as written.
        name: String,
    },
    /// A quantity of the pod or the divisor does not parse.
    #[error("{what} has the invalid quantity {text:?}: correct it in the pod's spec")]
    BadQuantity {
        /// Where it stands.
        what: String,
        /// The quantity as written.
        text: String,
    },
}

/// The value of `selector` for `pod`; fields of the status come from `facts`.
///
/// # Errors
/// [`FieldError::UnsupportedPath`] or [`FieldError::UnsupportedLabel`].
pub fn field_value(selector: &ObjectFieldSelector, pod: &Pod, facts: &NodeFacts) -> Result<String, FieldError> {
    let path = selector.field_path.as_str();
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        "spec.nodeName" | "spec.host" => text(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
        "spec.restartPolicy" => text(spec.and_then(|s| s.restart_policy.as_ref())),
        "spec.schedulerName" => text(spec.and_then(|s| s.scheduler_name.as_ref())),
        "status.phase" => text(pod.status.as_ref().and_then(|s| s.phase.as_ref())),
        "status.podIP" => text(facts.pod_ips.first()),
        "status.podIPs" => Ok(facts.pod_ips.join(",")),
        "status.hostIP" => text(facts.host_ips.first()),
        "status.hostIPs" => Ok(facts.host_ips.join(",")),
        _ => subscript_value(path, pod),
    }
}

fn subscript_value(path: &str, pod: &Pod) -> Result<String, FieldError> {
    let Some((field, key)) = path.strip_suffix("']").and_then(|open| open.split_once("['")) else {
        return Err(FieldError::UnsupportedPath { path: path.into() });
    };
    let map = match field {
        "metadata.labels" => pod.metadata.labels.as_ref(),
        "metadata.annotations" => pod.metadata.annotations.as_ref(),
        _ => return Err(FieldError::UnsupportedLabel { path: path.into() }),
    };
    Ok(map.and_then(|m| m.get(key)).cloned().unwrap_or_default())
}

/// `key="value"` lines in key order, values quoted as Go quotes strings, no newline at the end.
pub fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", go_quote(value))).collect();
    lines.join("\n")
}

/// Quotes as Go's `%q` does: what is not printable becomes an escape.
fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            ' ' => out.push(' '),
            c if (c as u32) < 0x80 && c.is_control() => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control() || c.is_whitespace() || is_format_char(c) => {
                let code = c as u32;
                let _ = if code < 0x1_0000 { write!(out, "\\u{code:04x}") } else { write!(out, "\\U{code:08x}") };
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Invisible characters (Unicode category Cf, private use) that Go does not count as printable.
fn is_format_char(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

/// The value of a resource reference, divided and rounded up as upstream does.
///
/// `own` is the container that holds the reference; a volume has none and must name one.
///
/// # Errors
/// Any of [`FieldError`]'s resource cases.
pub fn resource_value(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    own: Option<&Container>,
    facts: &NodeFacts,
) -> Result<String, FieldError> {
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        None => own.ok_or_else(|| FieldError::NoContainer { name: String::new() })?,
        Some(name) => find_container(pod, name)?,
    };
    let resource = selector.resource.as_str();
    let unsupported = || FieldError::UnsupportedResource { resource: resource.into() };
    let (kind, name) = resource.split_once('.').ok_or_else(unsupported)?;
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let found = match kind {
        "limits" => limits
            .and_then(|l| nonzero(l.get(name)))
            .or_else(|| pod_level_limit(pod, name))
            .or_else(|| facts.allocatable.get(name)),
        "requests" => requests.and_then(|r| r.get(name)),
        _ => return Err(unsupported()),
    };
    let amount = match found {
        Some(q) => parse(q, resource)?,
        None => Quantity::from_value(0),
    };
    let divisor = match nonzero(selector.divisor.as_ref()) {
        Some(q) => parse(q, "divisor")?,
        None => Quantity::from_value(1),
    };
    Ok(divide_up(name, &amount, &divisor).to_string())
}

/// CPU is divided in thousandths, everything else in whole units; both round up.
fn divide_up(name: &str, amount: &Quantity, divisor: &Quantity) -> i64 {
    let (amount, divisor) =
        if name == "cpu" { (amount.milli(), divisor.milli()) } else { (amount.value(), divisor.value()) };
    let divisor = divisor.max(1);
    let quotient = amount / divisor;
    if amount % divisor > 0 { quotient + 1 } else { quotient }
}

fn find_container<'a>(pod: &'a Pod, name: &str) -> Result<&'a Container, FieldError> {
    let spec = pod.spec.as_ref();
    spec.into_iter()
        .flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
        .find(|c| c.name == name)
        .ok_or_else(|| FieldError::NoContainer { name: name.into() })
}

fn pod_level_limit<'a>(pod: &'a Pod, name: &str) -> Option<&'a ApiQuantity> {
    let resources = pod.spec.as_ref()?.resources.as_ref()?;
    nonzero(resources.limits.as_ref()?.get(name))
}

/// An absent quantity and a zero one mean the same to upstream: not set.
fn nonzero(quantity: Option<&ApiQuantity>) -> Option<&ApiQuantity> {
    quantity.filter(|q| !Quantity::parse(&q.0).is_ok_and(|q| q.is_zero()))
}

fn parse(quantity: &ApiQuantity, what: &str) -> Result<Quantity, FieldError> {
    Quantity::parse(&quantity.0).map_err(|_| FieldError::BadQuantity { what: what.into(), text: quantity.0.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u-1",
                "labels": {"app": "web", "tier/x": "a\"b"}, "annotations": {"note": "two\nlines\u{7f}é"}},
            "spec": {"nodeName": "n1", "serviceAccountName": "sa",
                "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "2"}}}],
                "containers": [{"name": "c", "resources": {
                    "limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "100m"}}}]}
        }))
        .unwrap()
    }

    fn facts() -> NodeFacts {
        NodeFacts {
            pod_ips: vec!["10.0.0.2".into(), "fd00::2".into()],
            host_ips: vec!["192.0.2.1".into()],
            allocatable: BTreeMap::from([
                ("cpu".into(), ApiQuantity("4".into())),
                ("ephemeral-storage".into(), ApiQuantity("10Gi".into())),
            ]),
        }
    }

    fn field(path: &str) -> Result<String, FieldError> {
        let selector = ObjectFieldSelector { api_version: None, field_path: path.into() };
        field_value(&selector, &pod(), &facts())
    }

    #[test]
    fn fields() {
        for (path, want) in [
            ("metadata.name", "web"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['tier/x']", "a\"b"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "app=\"web\"\ntier/x=\"a\\\"b\""),
            ("metadata.annotations", "note=\"two\\nlines\\x7fé\""),
            ("spec.nodeName", "n1"),
            ("spec.serviceAccountName", "sa"),
            ("status.podIP", "10.0.0.2"),
            ("status.podIPs", "10.0.0.2,fd00::2"),
            ("status.hostIP", "192.0.2.1"),
        ] {
            assert_eq!(field(path).as_deref(), Ok(want), "{path}");
        }
        assert_eq!(field("spec.containers").unwrap_err().to_string(), "unsupported fieldPath: spec.containers");
        assert!(field("metadata.name['x']").is_err());
    }

    fn resource(container: Option<&str>, resource: &str, divisor: &str) -> Result<String, FieldError> {
        let selector = ResourceFieldSelector {
            container_name: container.map(Into::into),
            divisor: Some(ApiQuantity(divisor.into())),
            resource: resource.into(),
        };
        let pod = pod();
        let own = &pod.spec.as_ref().unwrap().containers[0];
        resource_value(&selector, &pod, Some(own), &facts())
    }

    #[test]
    fn resources_round_up() {
        assert_eq!(resource(None, "limits.cpu", "0").as_deref(), Ok("2"));
        assert_eq!(resource(None, "limits.cpu", "1m").as_deref(), Ok("1500"));
        assert_eq!(resource(None, "requests.cpu", "1").as_deref(), Ok("1"));
        assert_eq!(resource(None, "limits.memory", "1Mi").as_deref(), Ok("64"));
        assert_eq!(resource(None, "limits.memory", "0").as_deref(), Ok("67108864"));
        assert_eq!(resource(None, "requests.memory", "1").as_deref(), Ok("0"));
        assert_eq!(resource(None, "limits.ephemeral-storage", "1Gi").as_deref(), Ok("10"));
        assert_eq!(resource(Some("i"), "limits.cpu", "1").as_deref(), Ok("2"));
        assert_eq!(resource(Some("z"), "limits.cpu", "1").unwrap_err().to_string(), "container z not found");
        assert!(resource(None, "limits.nvidia.com/gpu", "1").is_err());
        assert!(resource(None, "cpu", "1").is_err());
    }
}
