//! What the scheduler knows of nodes and pods: only what decisions need, in a form that is quick to judge.
//!
//! Invariant: a node's sums are always those of the pods listed on it.
//!
//! Upstream counterpart: the scheduler's `NodeInfo`, `PodInfo` and cache.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, Pod, PreferredSchedulingTerm, Taint, Toleration};

use crate::engine::Key;
use kube_common::scheduling::affinity::named_nodes;
use kube_common::scheduling::resources::{Resources, pod_requests, pod_requests_nonzero};

/// A port that a pod takes on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// The number.
    pub port: i32,
    /// The address; `0.0.0.0` is all.
    pub ip: String,
}

impl HostPort {
    /// Both cannot be on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        const ALL: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ALL || other.ip == ALL)
    }
}

/// What matters of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodInfo {
    /// Namespace and name.
    pub key: Key,
    /// The pod's UID.
    pub uid: String,
    /// Higher goes first.
    pub priority: i32,
    /// What it asks for.
    pub requests: Resources,
    /// (thousandths of a CPU, bytes) with defaults, for comparing nodes.
    pub nonzero: (i64, i64),
    /// Ports on the node.
    pub ports: Vec<HostPort>,
    /// Its tolerations.
    pub tolerations: Vec<Toleration>,
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Required affinity: one of these terms, if any were given.
    pub required: Option<Vec<NodeSelectorTerm>>,
    /// The only nodes that can match [`Self::required`], if it names them.
    pub named_nodes: Option<Vec<String>>,
    /// Preferred affinity.
    pub preferred: Vec<PreferredSchedulingTerm>,
    /// Images, with a tag.
    pub images: Vec<String>,
    /// It may not be scheduled yet.
    pub is_gated: bool,
}

impl PodInfo {
    /// Reads a pod.
    pub fn read(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let required = required.map(|r| r.node_selector_terms.clone());
        let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone());
        Self {
            key: Key::of(pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            requests: pod_requests(&spec),
            nonzero: pod_requests_nonzero(&spec),
            ports: host_ports(&spec),
            named_nodes: required.as_deref().and_then(named_nodes),
            required,
            preferred: preferred.unwrap_or_default(),
            images: spec.containers.iter().filter_map(|c| c.image.as_deref()).map(with_tag).collect(),
            is_gated: spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()),
            node_selector: spec.node_selector.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_default(),
        }
    }
}

fn host_ports(spec: &k8s_openapi::api::core::v1::PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|p| {
            Some(HostPort {
                port: p.host_port.filter(|port| *port > 0)?,
                protocol: p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                ip: p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned()),
            })
        })
        .collect()
}

/// `nginx` is `nginx:latest`.
pub fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || last.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

/// What a pod takes on its node.
#[derive(Debug, Clone)]
struct Tenant {
    requests: Resources,
    nonzero: (i64, i64),
    ports: Vec<HostPort>,
}

/// What matters of a node, with the sums of its pods.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// The node's name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// What pods may take.
    pub allocatable: Resources,
    /// Sizes of its images.
    pub images: HashMap<String, i64>,
    /// What its pods take.
    pub requested: Resources,
    /// The same with defaults.
    pub nonzero: (i64, i64),
    tenants: HashMap<String, Tenant>,
}

impl NodeInfo {
    /// How many pods it has.
    pub fn pod_count(&self) -> usize {
        self.tenants.len()
    }

    /// A port that its pods hold already.
    pub fn holds_port(&self, port: &HostPort) -> bool {
        self.tenants.values().flat_map(|t| &t.ports).any(|held| held.conflicts(port))
    }

    fn read(&mut self, node: &Node) {
        self.name = node.metadata.name.clone().unwrap_or_default();
        self.labels = node.metadata.labels.clone().unwrap_or_default();
        let spec = node.spec.clone().unwrap_or_default();
        self.taints = spec.taints.unwrap_or_default();
        self.unschedulable = spec.unschedulable.unwrap_or(false);
        let status = node.status.as_ref();
        self.allocatable = Resources::read(status.and_then(|s| s.allocatable.as_ref()));
        self.images.clear();
        for image in status.and_then(|s| s.images.as_ref()).into_iter().flatten() {
            for name in image.names.iter().flatten() {
                self.images.insert(name.clone(), image.size_bytes.unwrap_or(0));
            }
        }
    }

    fn add(&mut self, pod: &PodInfo) {
        self.remove(&pod.uid);
        self.requested.add(&pod.requests);
        self.nonzero.0 += pod.nonzero.0;
        self.nonzero.1 += pod.nonzero.1;
        let tenant = Tenant { requests: pod.requests.clone(), nonzero: pod.nonzero, ports: pod.ports.clone() };
        self.tenants.insert(pod.uid.clone(), tenant);
    }

    fn remove(&mut self, uid: &str) -> bool {
        let Some(gone) = self.tenants.remove(uid) else {
            return false;
        };
        self.requested.subtract(&gone.requests);
        self.nonzero.0 -= gone.nonzero.0;
        self.nonzero.1 -= gone.nonzero.1;
        true
    }
}

/// All nodes, and where each pod is.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Nodes that exist, in the order of their names; scheduling goes around in this order.
    names: BTreeSet<String>,
    nodes: HashMap<String, NodeInfo>,
    places: HashMap<String, String>,
    /// How many nodes have an image.
    image_spread: HashMap<String, usize>,
    order: Vec<Arc<str>>,
}

impl Cluster {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// The node in this position.
    pub fn at(&self, position: usize) -> Option<&NodeInfo> {
        self.nodes.get(self.order.get(position)?.as_ref())
    }

    /// The node of this name, if it exists.
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).filter(|_| self.names.contains(name))
    }

    /// How many nodes have the image.
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.image_spread.get(image).copied().unwrap_or(0)
    }

    /// A node that is new or changed.
    pub fn set_node(&mut self, node: &Node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        self.count_images(&name, false);
        self.nodes.entry(name.clone()).or_default().read(node);
        self.count_images(&name, true);
        if self.names.insert(name) {
            self.reorder();
        }
    }

    /// A node that is gone. Its pods stay listed until they go too, in case it comes back.
    pub fn remove_node(&mut self, name: &str) {
        self.count_images(name, false);
        if self.names.remove(name) {
            self.reorder();
        }
        match self.nodes.get_mut(name) {
            Some(node) if node.tenants.is_empty() => {
                self.nodes.remove(name);
            }
            Some(node) => node.images.clear(),
            None => {}
        }
    }

    /// A pod that is on a node (or assumed to be).
    pub fn place(&mut self, pod: &PodInfo, node: &str) {
        if self.places.get(&pod.uid).is_some_and(|known| known != node) {
            self.unplace(&pod.uid);
        }
        self.nodes.entry(node.to_owned()).or_default().add(pod);
        self.places.insert(pod.uid.clone(), node.to_owned());
    }

    /// A pod that takes nothing any more; tells from which node.
    pub fn unplace(&mut self, uid: &str) -> Option<String> {
        let name = self.places.remove(uid)?;
        if let Some(node) = self.nodes.get_mut(&name) {
            node.remove(uid);
            if node.tenants.is_empty() && !self.names.contains(&name) {
                self.nodes.remove(&name);
            }
        }
        Some(name)
    }

    fn count_images(&mut self, name: &str, present: bool) {
        let Some(node) = self.nodes.get(name) else { return };
        for image in node.images.keys() {
            let count = self.image_spread.entry(image.clone()).or_default();
            *count = if present { *count + 1 } else { count.saturating_sub(1) };
        }
        if !present {
            self.image_spread.retain(|_, count| *count > 0);
        }
    }

    fn reorder(&mut self) {
        self.order = self.names.iter().map(|n| Arc::from(n.as_str())).collect();
    }
}
