//! The Node rule: what an agent may do, by its name.
//!
//! A node reads its own Node, its pods and what these refer to, reports status, and asks for its pods' tokens. What a rule cannot see
//! because it lies in the object (a new pod, a label) is checked by admission. Reading other nodes is no part of the rule: the ClusterRole
//! `keelson:host-gw` grants that. Upstream counterpart: `plugin/pkg/auth/authorizer/node`.

use std::sync::Arc;

use keelson_kinds::lookup;
use serde_json::Value;

use super::{Attributes, User};
use crate::cache::{Filter, Hub};

/// Group of node agents.
pub const NODES: &str = "system:nodes";
/// Namespace of the nodes' leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// What the user name of a node begins with.
pub const USER_PREFIX: &str = "system:node:";

const READ: [&str; 3] = ["get", "list", "watch"];
/// What a node may do with an object of its own name.
const OWN: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// The node a user is, if it is one.
#[must_use]
pub fn node_name(user: &User) -> Option<&str> {
    if user.in_group(NODES) { user.name.strip_prefix(USER_PREFIX) } else { None }
}

/// Whether the Node rule grants the request to `node`.
#[must_use]
pub fn allows(hub: &Arc<Hub>, node: &str, attributes: &Attributes) -> bool {
    if node.is_empty() {
        return false;
    }
    let verb = attributes.verb.as_str();
    let read = READ.contains(&verb);
    let writes = matches!(verb, "update" | "patch");
    match (attributes.group.as_str(), attributes.resource.as_str(), attributes.subresource.as_str()) {
        ("", "services", "") | ("storage.k8s.io", "csidrivers", "") | ("node.k8s.io", "runtimeclasses", "") => read,
        // Which node is written only admission knows for sure.
        ("", "nodes", "") => writes || verb == "create" || (read && attributes.name == node),
        ("", "nodes" | "pods", "status") => writes,
        ("", "pods", "") => match verb {
            "create" | "delete" => true,
            "list" | "watch" if attributes.node_name == node => true,
            _ => read && on_node(hub, attributes, node),
        },
        ("", "pods", "eviction") => verb == "create",
        ("", "secrets", "") => read && referenced(hub, attributes, node, Referent::Secret),
        ("", "configmaps", "") => read && referenced(hub, attributes, node, Referent::ConfigMap),
        ("", "persistentvolumeclaims", "") => verb == "get" && referenced(hub, attributes, node, Referent::Claim),
        ("", "persistentvolumeclaims", "status") => writes && referenced(hub, attributes, node, Referent::Claim),
        ("", "persistentvolumes", "") => verb == "get" && claimed(hub, &attributes.name, node),
        ("", "serviceaccounts", "") => verb == "get" && account_used(hub, attributes, node),
        ("", "serviceaccounts", "token") => verb == "create" && account_used(hub, attributes, node),
        ("" | "events.k8s.io", "events", "") => writes || verb == "create",
        ("coordination.k8s.io", "leases", "") => {
            OWN.contains(&verb)
                && attributes.namespace == LEASE_NAMESPACE
                && (verb == "create" || attributes.name == node)
        }
        ("storage.k8s.io", "csinodes", "") => OWN.contains(&verb) && (verb == "create" || attributes.name == node),
        ("storage.k8s.io", "volumeattachments", "") => {
            let attachment = stored(hub, "storage.k8s.io", "volumeattachments", "", &attributes.name);
            verb == "get" && attachment.is_some_and(|a| a["spec"]["nodeName"] == node)
        }
        ("authentication.k8s.io", "tokenreviews", "")
        | ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews", "") => verb == "create",
        ("certificates.k8s.io", "certificatesigningrequests", "") => read || verb == "create",
        _ => false,
    }
}

fn stored(hub: &Arc<Hub>, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
    let res = lookup(group, "v1", plural)?;
    Some(hub.cache(res)?.get(&res.key(namespace, name))?.value())
}

fn on_node(hub: &Arc<Hub>, attributes: &Attributes, node: &str) -> bool {
    stored(hub, "", "pods", &attributes.namespace, &attributes.name).is_some_and(|pod| pod["spec"]["nodeName"] == node)
}

/// Whether a pod of `namespace` on `node` fits.
fn any_pod(hub: &Arc<Hub>, namespace: &str, node: &str, fits: impl Fn(&Value) -> bool) -> bool {
    let Some(res) = lookup("", "v1", "pods") else { return false };
    let Some(cache) = hub.cache(res) else { return false };
    let filter = Filter {
        fields: kube_common::selector::FieldSelector::parse(&format!("spec.nodeName={node}")).unwrap_or_default(),
        ..Filter::default()
    };
    let listed = cache.list(&res.key_prefix(Some(namespace)), None, &filter, 0);
    // The selector narrows, this decides: a node's name may hold what a selector reads as its own.
    listed.objects.iter().map(|o| o.value()).any(|pod| pod["spec"]["nodeName"] == node && fits(&pod))
}

fn account_used(hub: &Arc<Hub>, attributes: &Attributes, node: &str) -> bool {
    !attributes.name.is_empty()
        && any_pod(hub, &attributes.namespace, node, |pod| {
            pod["spec"]["serviceAccountName"] == attributes.name.as_str()
        })
}

fn referenced(hub: &Arc<Hub>, attributes: &Attributes, node: &str, what: Referent) -> bool {
    !attributes.name.is_empty()
        && !attributes.namespace.is_empty()
        && any_pod(hub, &attributes.namespace, node, |pod| references(pod, what).contains(&attributes.name))
}

/// Whether a volume is bound to a claim that a pod on the node uses.
fn claimed(hub: &Arc<Hub>, volume: &str, node: &str) -> bool {
    let Some(volume) = stored(hub, "", "persistentvolumes", "", volume) else { return false };
    let claim = &volume["spec"]["claimRef"];
    let (Some(namespace), Some(name)) = (claim["namespace"].as_str(), claim["name"].as_str()) else { return false };
    any_pod(hub, namespace, node, |pod| references(pod, Referent::Claim).iter().any(|n| *n == name))
}

/// What a pod may refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referent {
    /// Secrets.
    Secret,
    /// Config maps.
    ConfigMap,
    /// Persistent volume claims, those of generic ephemeral volumes included.
    Claim,
}

/// Names that a pod refers to, in volumes, environment and pull secrets of all container kinds (CVE-2023-2728, CVE-2024-3177).
#[must_use]
pub fn references(pod: &Value, what: Referent) -> Vec<String> {
    let spec = &pod["spec"];
    let mut names = Vec::new();
    if what == Referent::Claim {
        for volume in list(&spec["volumes"]) {
            if let Some(name) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                names.push(name.to_owned());
            } else if volume["ephemeral"].is_object() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                names.push(format!("{}-{}", text(&pod["metadata"]["name"]), text(&volume["name"])));
            }
        }
        return names;
    }
    let fields: &[&str] = match what {
        Referent::Secret => &["secret", "secretRef", "secretKeyRef", "secretName", "nodePublishSecretRef"],
        _ => &["configMap", "configMapRef", "configMapKeyRef"],
    };
    collect(&spec["volumes"], fields, &mut names);
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        for container in list(&spec[kind]) {
            collect(&container["env"], fields, &mut names);
            collect(&container["envFrom"], fields, &mut names);
        }
    }
    if what == Referent::Secret {
        names.extend(list(&spec["imagePullSecrets"]).filter_map(|s| s["name"].as_str()).map(str::to_owned));
    }
    names
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The names in the values of `fields`, anywhere below `value`: as a text, or as `name` or `secretName` of an object.
fn collect(value: &Value, fields: &[&str], names: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if fields.contains(&key.as_str()) {
                    let name =
                        inner.as_str().or_else(|| inner["name"].as_str()).or_else(|| inner["secretName"].as_str());
                    names.extend(name.map(str::to_owned));
                }
                collect(inner, fields, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, fields, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_every_kind_of_reference_and_nothing_else() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "nodeSelector": {"secretName": "other", "configMap": "other"},
            "volumes": [
                {"name": "a", "secret": {"secretName": "vol"}},
                {"name": "b", "projected": {"sources": [{"secret": {"name": "proj"}}, {"configMap": {"name": "cm"}}]}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "e", "azureFile": {"secretName": "azure"}},
                {"name": "f", "ephemeral": {"volumeClaimTemplate": {}}},
            ],
            "containers": [{"env": [{"name": "secret", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "from"}}]}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "init"}}]}],
            "ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "debug"}}]}],
        }});
        let mut found = references(&pod, Referent::Secret);
        found.sort();
        found.dedup();
        assert_eq!(found, ["azure", "csi", "debug", "env", "from", "init", "proj", "pull", "vol"]);
        assert_eq!(references(&pod, Referent::ConfigMap), ["cm"]);
        assert_eq!(references(&pod, Referent::Claim), ["claim", "p-f"]);
    }
}
