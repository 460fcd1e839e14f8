//! What each kind counts for.
//!
//! Upstream counterparts: `pkg/quota/v1/evaluator/core`, `k8s.io/apiserver/pkg/quota/v1/generic`, `pkg/quota/v1/install`.

use std::collections::BTreeSet;

use kube_common::quantity::Quantity;
use serde_json::Value;

use super::pods;
use super::scopes::attributes_classes;
use crate::Change;
use crate::json::{items, text};
use keelson_kinds::resource_names::quantity;

use crate::resources::ResourceList;

/// Never counted: what is not stored, and events.
const IGNORED: [(&str, &str); 10] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("events.k8s.io", "events"),
];

/// Between a storage class and what is counted of it.
const OF_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const CLAIM_RESOURCES: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];
/// The storage class of a claim before there was a field.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// How objects of one kind are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evaluator<'a> {
    Pods,
    Services,
    Claims,
    /// Only how many there are; four kinds have a second, shorter name for it.
    Count {
        group: &'a str,
        resource: &'a str,
        alias: bool,
    },
}

/// `count/deployments.apps`, `count/secrets`.
fn is_count_of(name: &str, group: &str, resource: &str) -> bool {
    let Some(counted) = name.strip_prefix("count/") else { return false };
    match counted.strip_prefix(resource) {
        Some("") => group.is_empty(),
        Some(rest) => !group.is_empty() && rest.strip_prefix('.') == Some(group),
        None => false,
    }
}

fn count_name(group: &str, resource: &str) -> String {
    if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") }
}

fn one() -> Quantity {
    Quantity::from_value(1)
}

fn number(count: usize) -> Quantity {
    Quantity::from_value(i64::try_from(count).unwrap_or(i64::MAX))
}

impl<'a> Evaluator<'a> {
    /// Nothing for kinds that are never counted.
    pub fn of(group: &'a str, resource: &'a str) -> Option<Self> {
        if IGNORED.contains(&(group, resource)) {
            return None;
        }
        Some(match (group, resource) {
            ("", "pods") => Self::Pods,
            ("", "services") => Self::Services,
            ("", "persistentvolumeclaims") => Self::Claims,
            _ => {
                let alias = group.is_empty()
                    && matches!(resource, "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets");
                Self::Count { group, resource, alias }
            }
        })
    }

    /// Whether a write can change what there is to count.
    pub fn handles(self, subresource: &str, change: Change<'_>) -> bool {
        match (self, subresource, change) {
            (_, "", Change::Create(_)) | (Self::Services | Self::Claims, "", _) => true,
            (Self::Pods, "", Change::Update { new, old }) => pods::terminating(new) != pods::terminating(old),
            (Self::Pods, "resize", Change::Update { .. }) => true,
            (Self::Claims, "status", Change::Update { new, old }) => {
                let allocated = |claim: &Value| quantity(&claim["status"]["allocatedResources"]["storage"]);
                allocated(new) != allocated(old) || attributes_classes(new) != attributes_classes(old)
            }
            _ => false,
        }
    }

    /// Whether that name in a quota is about this kind.
    pub fn tracks(self, name: &str) -> bool {
        match self {
            Self::Pods => is_count_of(name, "", "pods") || pods::tracks(name),
            Self::Services => {
                is_count_of(name, "", "services")
                    || matches!(name, "services" | "services.nodeports" | "services.loadbalancers")
            }
            Self::Claims => {
                let of_class = name.split_once(OF_STORAGE_CLASS).map(|(_, of_class)| of_class);
                is_count_of(name, "", "persistentvolumeclaims")
                    || CLAIM_RESOURCES.contains(&name)
                    || of_class.is_some_and(|of_class| CLAIM_RESOURCES.contains(&of_class))
            }
            Self::Count { group, resource, alias } => is_count_of(name, group, resource) || (alias && name == resource),
        }
    }

    /// What a pod would have to say, but does not, for a quota with these resources.
    pub fn unspecified(self, limited: &BTreeSet<&str>, object: &Value) -> Option<String> {
        if self == Self::Pods { pods::unspecified(limited, object) } else { None }
    }

    /// What an object counts for.
    pub fn usage(self, object: &Value, now: i64) -> ResourceList {
        match self {
            Self::Pods => pods::usage(object, now),
            Self::Services => service(object),
            Self::Claims => claim(object),
            Self::Count { group, resource, alias } => {
                let short = alias.then(|| (resource.to_owned(), one()));
                short.into_iter().chain([(count_name(group, resource), one())]).collect()
            }
        }
    }
}

fn service(service: &Value) -> ResourceList {
    let spec = &service["spec"];
    let ports = items(&spec["ports"]);
    let balanced = spec["type"] == "LoadBalancer";
    // Node ports are not allocated yet: the intent counts.
    let node_ports = match text(&spec["type"]) {
        "NodePort" => ports.len(),
        "LoadBalancer" if spec["allocateLoadBalancerNodePorts"] == false => {
            ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count()
        }
        "LoadBalancer" => ports.len(),
        _ => 0,
    };
    ResourceList::from([
        ("count/services".to_owned(), one()),
        ("services".to_owned(), one()),
        ("services.loadbalancers".to_owned(), number(usize::from(balanced))),
        ("services.nodeports".to_owned(), number(node_ports)),
    ])
}

fn claim(claim: &Value) -> ResourceList {
    let annotation = claim["metadata"]["annotations"][CLASS_ANNOTATION].as_str();
    let class = annotation.unwrap_or_else(|| text(&claim["spec"]["storageClassName"]));
    let mut usage = ResourceList::from([
        ("count/persistentvolumeclaims".to_owned(), one()),
        ("persistentvolumeclaims".to_owned(), one()),
    ]);
    let asked = quantity(&claim["spec"]["resources"]["requests"]["storage"]);
    let allocated = quantity(&claim["status"]["allocatedResources"]["storage"]);
    if let Some(storage) = asked.map(|asked| asked.max(allocated.unwrap_or(asked))) {
        usage.insert("requests.storage".to_owned(), whole_bytes(storage));
    }
    if !class.is_empty() {
        for name in CLAIM_RESOURCES {
            if let Some(amount) = usage.get(name).copied() {
                usage.insert(format!("{class}{OF_STORAGE_CLASS}{name}"), amount);
            }
        }
    }
    usage
}

/// Rounded up to whole bytes, in the notation that it had.
fn whole_bytes(amount: Quantity) -> Quantity {
    if amount.is_integer() { amount } else { amount + (Quantity::from_value(amount.value()) - amount) }
}
