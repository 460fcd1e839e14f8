//! The Node rule: what an agent may do, by its name.
//!
//! A node reads services and its pods' secrets, config maps and claims, writes its own Node, Lease and pods' status, and gets tokens
//! for service accounts of its pods. Upstream counterparts: `plugin/pkg/auth/authorizer/node` and the NodeRestriction admission plugin,
//! whose checks by name are made here.

use std::sync::Arc;

use keelson_kinds::lookup;
use serde_json::Value;

use super::{Attributes, User};
use crate::cache::{Filter, Hub};

/// Group of node agents.
pub const NODES: &str = "system:nodes";
const USER_PREFIX: &str = "system:node:";

const READ: [&str; 3] = ["get", "list", "watch"];

/// The node a user is, if it is one.
#[must_use]
pub fn node_name(user: &User) -> Option<&str> {
    if user.in_group(NODES) { user.name.strip_prefix(USER_PREFIX) } else { None }
}

/// Whether the Node rule grants the request to `node`.
#[must_use]
pub fn allows(hub: &Arc<Hub>, node: &str, attributes: &Attributes) -> bool {
    let verb = attributes.verb.as_str();
    let read = READ.contains(&verb);
    match (attributes.group.as_str(), attributes.resource.as_str(), attributes.subresource.as_str()) {
        ("", "services", "") | ("storage.k8s.io", "csidrivers", "") | ("node.k8s.io", "runtimeclasses", "") => read,
        ("", "nodes", "") => read || verb == "create" || own_write(verb, attributes, node),
        ("", "nodes", "status") => own_write(verb, attributes, node),
        ("", "pods", "") => {
            read || verb == "create" || (verb == "delete" && pod_on_node(hub, attributes, node, |_| true))
        }
        ("", "pods", "status") => matches!(verb, "update" | "patch") && pod_on_node(hub, attributes, node, |_| true),
        ("", "pods", "eviction") => verb == "create" && pod_on_node(hub, attributes, node, |_| true),
        ("", "secrets" | "configmaps" | "persistentvolumeclaims", "") => read && referenced(hub, attributes, node),
        ("", "persistentvolumes", "") => verb == "get",
        ("", "serviceaccounts", "") => verb == "get" && account_used(hub, attributes, node),
        ("", "serviceaccounts", "token") => verb == "create" && account_used(hub, attributes, node),
        ("" | "events.k8s.io", "events", "") => matches!(verb, "create" | "patch" | "update"),
        ("coordination.k8s.io", "leases", "") => {
            attributes.namespace == "kube-node-lease" && (verb == "create" || attributes.name == node)
        }
        ("storage.k8s.io", "csinodes", "") => verb == "create" || attributes.name == node,
        ("authentication.k8s.io", "tokenreviews", "")
        | ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews", "") => verb == "create",
        ("certificates.k8s.io", "certificatesigningrequests", "") => read || verb == "create",
        _ => false,
    }
}

fn own_write(verb: &str, attributes: &Attributes, node: &str) -> bool {
    matches!(verb, "update" | "patch") && attributes.name == node
}

fn pod_on_node(hub: &Arc<Hub>, attributes: &Attributes, node: &str, accept: impl Fn(&Value) -> bool) -> bool {
    let pod =
        lookup("", "v1", "pods").and_then(|res| hub.cache(res)?.get(&res.key(&attributes.namespace, &attributes.name)));
    pod.is_some_and(|pod| {
        let pod = pod.value();
        pod["spec"]["nodeName"] == node && accept(&pod)
    })
}

/// Pods of a namespace on a node.
fn pods_of(hub: &Arc<Hub>, namespace: &str, node: &str) -> Vec<Value> {
    let Some(res) = lookup("", "v1", "pods") else { return Vec::new() };
    let Some(cache) = hub.cache(res) else { return Vec::new() };
    let filter = Filter {
        fields: kube_common::selector::FieldSelector::parse(&format!("spec.nodeName={node}")).unwrap_or_default(),
        ..Filter::default()
    };
    let listed = cache.list(&res.key_prefix(Some(namespace)), None, &filter, 0);
    listed.objects.iter().map(|o| o.value()).collect()
}

fn account_used(hub: &Arc<Hub>, attributes: &Attributes, node: &str) -> bool {
    pods_of(hub, &attributes.namespace, node)
        .iter()
        .any(|pod| pod["spec"]["serviceAccountName"] == attributes.name.as_str())
}

fn referenced(hub: &Arc<Hub>, attributes: &Attributes, node: &str) -> bool {
    let name = &attributes.name;
    if name.is_empty() || attributes.namespace.is_empty() {
        return false;
    }
    let fields: &[&str] = match attributes.resource.as_str() {
        "secrets" => &["secretName", "secret", "secretRef", "secretKeyRef", "imagePullSecrets", "nodePublishSecretRef"],
        "configmaps" => &["configMap", "configMapRef", "configMapKeyRef"],
        _ => &["claimName"],
    };
    pods_of(hub, &attributes.namespace, node).iter().any(|pod| refers(&pod["spec"], fields, name))
}

/// Whether `fields` occurs anywhere below `value` with `name` in it: as a text, as `{name: …}` or in a list of these.
fn refers(value: &Value, fields: &[&str], name: &str) -> bool {
    match value {
        Value::Object(map) => map
            .iter()
            .any(|(key, inner)| (fields.contains(&key.as_str()) && names(inner, name)) || refers(inner, fields, name)),
        Value::Array(items) => items.iter().any(|item| refers(item, fields, name)),
        _ => false,
    }
}

fn names(value: &Value, name: &str) -> bool {
    match value {
        Value::String(text) => text == name,
        Value::Object(map) => ["name", "secretName"].iter().any(|k| map.get(*k).is_some_and(|v| v == name)),
        Value::Array(items) => items.iter().any(|item| names(item, name)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_every_kind_of_reference() {
        let spec = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"secret": {"secretName": "vol"}},
                {"projected": {"sources": [{"secret": {"name": "proj"}}, {"configMap": {"name": "cm"}}]}},
                {"persistentVolumeClaim": {"claimName": "claim"}},
            ],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "from"}}]}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "init"}}]}],
        });
        let secrets = ["secretName", "secret", "secretRef", "secretKeyRef", "imagePullSecrets"];
        for name in ["pull", "vol", "proj", "env", "from", "init"] {
            assert!(refers(&spec, &secrets, name), "{name}");
        }
        for name in ["cm", "claim", "k", "other"] {
            assert!(!refers(&spec, &secrets, name), "{name}");
        }
        assert!(refers(&spec, &["configMap"], "cm"));
        assert!(refers(&spec, &["claimName"], "claim"));
    }
}
