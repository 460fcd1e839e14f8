//! What agents may write: their own Node, mirror pods, the status of their pods, tokens for their pods.
//!
//! Authorization sees the URL, this sees the object; the rules, and the words of a refusal, are those of upstream's
//! `plugin/pkg/admission/noderestriction`.

use keelson_kinds::error::go_quote;
use keelson_kinds::{ApiError, lookup};
use serde_json::Value;

use super::certificates;
use super::pods::MIRROR_ANNOTATION;
use crate::auth::Attributes;
use crate::auth::node::{LEASE_NAMESPACE, Referent, USER_PREFIX, node_name, references};
use crate::http::Call;

/// A write as admission sees it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Write<'a> {
    Create(&'a Value),
    Update { new: &'a Value, old: &'a Value },
    Delete,
}

impl Write<'_> {
    fn operation(self) -> &'static str {
        match self {
            Self::Create(_) => "CREATE",
            Self::Update { .. } => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// What is written: the object's place, and the node that writes.
struct Request<'a> {
    call: &'a Call,
    node: &'a str,
    namespace: &'a str,
    name: &'a str,
    write: Write<'a>,
}

/// Checks a write of an object, or of a subresource of it, if a node asks for it.
pub(super) fn check(call: &Call, namespace: &str, name: &str, write: Write<'_>) -> Result<(), ApiError> {
    let Some(node) = node_name(&call.user) else { return Ok(()) };
    let request = Request { call, node, namespace, name, write };
    if node.is_empty() {
        return request.refuse(format!("could not determine node from user {}", go_quote(&call.user.name)));
    }
    match (call.res.group, call.res.plural) {
        ("", "pods") => match call.subresource.as_str() {
            "" => request.pod(),
            "status" => request.pod_status(),
            "eviction" => request.eviction(),
            other => request.refuse(format!(
                "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
                go_quote(other)
            )),
        },
        ("", "nodes") => request.node(),
        ("", "persistentvolumeclaims") if call.subresource == "status" => request.claim_status(),
        ("", "persistentvolumeclaims") => request.refuse("may only update PVC status"),
        ("", "serviceaccounts") => request.token(),
        ("coordination.k8s.io", "leases") if namespace != LEASE_NAMESPACE => {
            request.refuse(format!("can only access leases in the {} system namespace", go_quote(LEASE_NAMESPACE)))
        }
        ("coordination.k8s.io", "leases") => request.own("node lease"),
        ("storage.k8s.io", "csinodes") => request.own("CSINode"),
        ("certificates.k8s.io", "certificatesigningrequests") => request.signing_request(),
        _ => Ok(()),
    }
}

impl Request<'_> {
    fn refuse(&self, why: impl AsRef<str>) -> Result<(), ApiError> {
        Err(ApiError::forbidden(self.call.res, self.name, why.as_ref()))
    }

    /// Refuses with the node's name in front.
    fn refuse_node(&self, why: &str) -> Result<(), ApiError> {
        self.refuse(format!("node {} {why}", go_quote(self.node)))
    }

    fn unexpected(&self) -> Result<(), ApiError> {
        self.refuse(format!("unexpected operation {}", go_quote(self.write.operation())))
    }

    fn own(&self, what: &str) -> Result<(), ApiError> {
        if self.name == self.node {
            return Ok(());
        }
        self.refuse(format!("can only access {what} with the same name as the requesting node"))
    }

    fn stored_pod(&self, name: &str) -> Result<Value, ApiError> {
        let res = lookup("", "v1", "pods").ok_or_else(ApiError::no_such_resource)?;
        self.call.server.get(res, self.namespace, name).ok_or_else(|| ApiError::not_found(res, name))
    }

    fn pod(&self) -> Result<(), ApiError> {
        match self.write {
            Write::Create(pod) => self.new_pod(pod),
            Write::Delete if self.stored_pod(self.name)?["spec"]["nodeName"] == self.node => Ok(()),
            Write::Delete => self.refuse_node("can only delete pods with spec.nodeName set to itself"),
            Write::Update { .. } => self.refuse(format!(
                "unexpected operation \"UPDATE\", node {} can only create and delete mirror pods",
                go_quote(self.node)
            )),
        }
    }

    fn new_pod(&self, pod: &Value) -> Result<(), ApiError> {
        if pod["metadata"]["annotations"][MIRROR_ANNOTATION].is_null() {
            return self.refuse(format!(
                "pod does not have {} annotation, node {} can only create mirror pods",
                go_quote(MIRROR_ANNOTATION),
                go_quote(self.node)
            ));
        }
        if pod["spec"]["nodeName"] != self.node {
            return self.refuse_node("can only create pods with spec.nodeName set to itself");
        }
        self.owner(items(&pod["metadata"]["ownerReferences"]))?;
        let named = |field: &str| pod["spec"][field].as_str().is_some_and(|name| !name.is_empty());
        if named("serviceAccountName") || named("serviceAccount") {
            return self.refuse_node("can not create pods that reference a service account");
        }
        for (what, plural) in [(Referent::Secret, "secrets"), (Referent::ConfigMap, "configmaps")] {
            if !references(pod, what).is_empty() {
                return self.refuse_node(&format!("can not create pods that reference {plural}"));
            }
        }
        for volume in items(&pod["spec"]["volumes"]) {
            if items(&volume["projected"]["sources"]).iter().any(|s| !s["clusterTrustBundle"].is_null()) {
                return self.refuse_node("can not create pods that reference clustertrustbundles");
            }
            if !volume["persistentVolumeClaim"].is_null() {
                return self.refuse_node("can not create pods that reference persistentvolumeclaims");
            }
        }
        Ok(())
    }

    /// A mirror pod belongs to its node and to nothing else, so that it ends with it.
    fn owner(&self, owners: &[Value]) -> Result<(), ApiError> {
        let [owner] = owners else {
            return self.refuse_node(if owners.is_empty() {
                "can only create pods with an owner reference set to itself"
            } else {
                "can only create pods with a single owner reference set to itself"
            });
        };
        if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != self.node {
            return self.refuse_node("can only create pods with an owner reference set to itself");
        }
        if owner["controller"] != true {
            return self.refuse_node("can only create pods with a controller owner reference set to itself");
        }
        if owner["blockOwnerDeletion"] == true {
            return self.refuse_node("must not set blockOwnerDeletion on an owner reference");
        }
        let res = lookup("", "v1", "nodes").ok_or_else(ApiError::no_such_resource)?;
        let stored = self.call.server.get(res, "", self.node).ok_or_else(|| ApiError::not_found(res, self.node))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (given, present) = (text(&owner["uid"]), text(&stored["metadata"]["uid"]));
        if given != present {
            return self.refuse(format!("node {} UID mismatch: expected {given} got {present}", self.node));
        }
        Ok(())
    }

    fn pod_status(&self) -> Result<(), ApiError> {
        let Write::Update { new, old } = self.write else { return self.unexpected() };
        if old["spec"]["nodeName"] != self.node {
            return self.refuse_node("can only update pod status for pods with spec.nodeName set to itself");
        }
        if !same(&new["metadata"]["labels"], &old["metadata"]["labels"]) {
            return self.refuse_node("cannot update labels through pod status");
        }
        if !same(&new["status"]["resourceClaimStatuses"], &old["status"]["resourceClaimStatuses"]) {
            return self.refuse_node("cannot update resource claim statues");
        }
        Ok(())
    }

    fn eviction(&self) -> Result<(), ApiError> {
        if self.stored_pod(self.name)?["spec"]["nodeName"] == self.node {
            return Ok(());
        }
        self.refuse(format!("node {} can only evict pods with spec.nodeName set to itself", self.node))
    }

    fn node(&self) -> Result<(), ApiError> {
        if self.name != self.node {
            return self.refuse_node(&format!("is not allowed to modify node {}", go_quote(self.name)));
        }
        match self.write {
            Write::Create(new) => {
                if !new["spec"]["configSource"].is_null() {
                    return self.refuse_node("is not allowed to create pods with a non-nil configSource");
                }
                let forbidden = forbidden_labels(new, &Value::Null);
                if !forbidden.is_empty() {
                    let why = format!("is not allowed to set the following labels: {}", forbidden.join(", "));
                    return self.refuse_node(&why);
                }
                // A Node that is owned can be made to vanish by its own agent (CVE-2025-5187).
                if !items(&new["metadata"]["ownerReferences"]).is_empty() {
                    return self.refuse_node("is not allowed to modify ownerReferences");
                }
                Ok(())
            }
            Write::Update { new, old } => self.changed_node(new, old),
            Write::Delete => Ok(()),
        }
    }

    fn changed_node(&self, new: &Value, old: &Value) -> Result<(), ApiError> {
        let source = &new["spec"]["configSource"];
        if !source.is_null() && *source != old["spec"]["configSource"] {
            return self.refuse_node("is not allowed to update configSource to a new non-nil configSource");
        }
        if !same(&new["spec"]["taints"], &old["spec"]["taints"]) {
            return self.refuse_node("is not allowed to modify taints");
        }
        if !same(&new["metadata"]["ownerReferences"], &old["metadata"]["ownerReferences"]) {
            return self.refuse_node("is not allowed to modify ownerReferences");
        }
        let forbidden = forbidden_labels(new, old);
        if !forbidden.is_empty() {
            return self.refuse(format!("is not allowed to modify labels: {}", forbidden.join(", ")));
        }
        Ok(())
    }

    fn claim_status(&self) -> Result<(), ApiError> {
        let Write::Update { new, old } = self.write else { return self.unexpected() };
        let rest = |claim: &Value| {
            let mut claim = claim.clone();
            if let Some(metadata) = claim["metadata"].as_object_mut() {
                metadata
                    .retain(|key, value| !matches!(key.as_str(), "resourceVersion" | "managedFields") && !empty(value));
            }
            if let Some(status) = claim["status"].as_object_mut() {
                for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
                    status.remove(field);
                }
            }
            claim
        };
        if rest(new) != rest(old) {
            return self
                .refuse_node("is not allowed to update fields other than status.quantity and status.conditions");
        }
        Ok(())
    }

    fn token(&self) -> Result<(), ApiError> {
        let Write::Create(request) = self.write else { return Ok(()) };
        if self.call.subresource != "token" {
            return Ok(());
        }
        let bound = &request["spec"]["boundObjectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text(&bound["name"]), text(&bound["uid"]));
        if bound["apiVersion"] != "v1" || bound["kind"] != "Pod" || name.is_empty() {
            return self.refuse("node requested token not bound to a pod");
        }
        if uid.is_empty() {
            return self.refuse("node requested token with a pod binding without a uid");
        }
        let pod = self.stored_pod(&name)?;
        if pod["metadata"]["uid"] != uid.as_str() {
            return self.refuse(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ));
        }
        if pod["spec"]["nodeName"] != self.node {
            return self.refuse("node requested token bound to a pod scheduled on a different node");
        }
        self.audience(request, &pod)
    }

    /// Only audiences that the pod's volumes ask for, or that RBAC lets nodes ask for.
    fn audience(&self, request: &Value, pod: &Value) -> Result<(), ApiError> {
        let wanted = match items(&request["spec"]["audiences"]) {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return self.refuse("node may only request 0 or 1 audiences"),
        };
        let projected = items(&pod["spec"]["volumes"]).iter().flat_map(|v| items(&v["projected"]["sources"]));
        let mut tokens = projected.map(|s| &s["serviceAccountToken"]).filter(|t| t.is_object());
        if tokens.any(|t| t["audience"].as_str().unwrap_or_default() == wanted) || self.driver_audience(pod, wanted) {
            return Ok(());
        }
        let attributes = Attributes {
            verb: "request-serviceaccounts-token-audience".to_owned(),
            resource: wanted.to_owned(),
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            ..Attributes::default()
        };
        if !wanted.is_empty() && self.call.server.rbac.allows(&self.call.user, &attributes) {
            return Ok(());
        }
        self.refuse(format!("audience {} not found in pod spec volume", go_quote(wanted)))
    }

    /// Whether the driver of one of the pod's volumes asks for tokens of this audience.
    fn driver_audience(&self, pod: &Value, wanted: &str) -> bool {
        let server = &self.call.server;
        let stored = |group: &str, plural: &str, namespace: &str, name: &str| {
            lookup(group, "v1", plural).and_then(|res| server.get(res, namespace, name))
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let inline = items(&pod["spec"]["volumes"]).iter().map(|v| text(&v["csi"]["driver"]));
        let claims = references(pod, Referent::Claim);
        let bound = claims.iter().filter_map(|claim| {
            let claim = stored("", "persistentvolumeclaims", self.namespace, claim)?;
            let volume = stored("", "persistentvolumes", "", claim["spec"]["volumeName"].as_str()?)?;
            Some(text(&volume["spec"]["csi"]["driver"]))
        });
        inline.chain(bound).filter(|driver| !driver.is_empty()).any(|driver| {
            let driver = stored("storage.k8s.io", "csidrivers", "", &driver).unwrap_or_default();
            items(&driver["spec"]["tokenRequests"]).iter().any(|t| t["audience"].as_str().unwrap_or_default() == wanted)
        })
    }

    fn signing_request(&self) -> Result<(), ApiError> {
        let Write::Create(csr) = self.write else { return Ok(()) };
        let signers = [certificates::KUBELET_SERVING, certificates::KUBELET_CLIENT];
        if !signers.iter().any(|signer| csr["spec"]["signerName"] == *signer) {
            return Ok(());
        }
        let own = format!("{USER_PREFIX}{}", self.node);
        match certificates::parse(csr) {
            Err(error) => self.refuse(format!("unable to parse csr: {error}")),
            Ok(subject) if subject.user == own => Ok(()),
            Ok(_) => self.refuse(format!("can only create a node CSR with CN={own}")),
        }
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Equal, where absent and empty are the same.
fn same(a: &Value, b: &Value) -> bool {
    a == b || (empty(a) && empty(b))
}

/// Labels of `kubernetes.io` and `k8s.io` that an agent reports.
const AGENT_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Label domains that belong to agents, with everything below them.
const AGENT_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Changed labels that could steer workloads to the node, sorted.
fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let (new, old) = (&new["metadata"]["labels"], &old["metadata"]["labels"]);
    let keys = [new, old].into_iter().filter_map(Value::as_object).flat_map(serde_json::Map::keys);
    let changed = keys.filter(|key| new.get(key.as_str()) != old.get(key.as_str()));
    let mut forbidden: Vec<String> = changed.filter(|key| is_forbidden_label(key)).cloned().collect();
    forbidden.sort();
    forbidden.dedup();
    forbidden
}

fn is_forbidden_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let within = |of: &str| domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return true;
    }
    let reserved = within("kubernetes.io") || within("k8s.io");
    reserved && !AGENT_LABELS.contains(&key) && !AGENT_DOMAINS.into_iter().any(within)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_that_steer_workloads_are_not_the_agents() {
        for key in [
            "node-restriction.kubernetes.io/tier",
            "a.node-restriction.kubernetes.io/tier",
            "node-role.kubernetes.io/control-plane",
            "kubernetes.io/anything",
            "x.k8s.io/y",
        ] {
            assert!(is_forbidden_label(key), "{key}");
        }
        for key in [
            "app",
            "example.com/app",
            "notkubernetes.io/app",
            "kubernetes.io/hostname",
            "node.kubernetes.io/anything",
            "a.kubelet.kubernetes.io/b",
            "topology.kubernetes.io/zone",
        ] {
            assert!(!is_forbidden_label(key), "{key}");
        }
    }

    #[test]
    fn changed_and_removed_labels_count_untouched_ones_do_not() {
        let of = |labels: Value| json!({"metadata": {"labels": labels}});
        let old = of(json!({"kubernetes.io/a": "1", "kubernetes.io/b": "1", "x": "1"}));
        assert!(forbidden_labels(&old, &old).is_empty());
        let new = of(json!({"kubernetes.io/a": "2", "x": "2", "kubernetes.io/hostname": "n"}));
        assert_eq!(forbidden_labels(&new, &old), ["kubernetes.io/a", "kubernetes.io/b"]);
    }
}
