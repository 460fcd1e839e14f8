//! The node's status and metadata as pure functions of facts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_common::quantity::Quantity;
use serde_json::Value;

use super::Readiness;
use super::facts::MachineFacts;
use crate::config::Config;
use crate::pod;
use crate::runtime::{ImageRecord, RuntimeVersion};

/// The version whose behaviour is followed, as it appears in `get nodes`.
pub const KUBELET_VERSION: &str = concat!("v1.37.0-keelson.", env!("CARGO_PKG_VERSION"));
/// Memory kept free by the default hard eviction threshold (upstream `memory.available`).
const DEFAULT_MEMORY_RESERVE: &str = "100Mi";
/// Share of the file system kept free by default (upstream `nodefs.available`), in percent.
const DEFAULT_DISK_RESERVE: u64 = 10;
/// Names of one image that are reported (upstream `MaxNamesPerImageInNodeStatus`).
const MAX_IMAGE_NAMES: usize = 5;

/// What the status follows from.
pub struct Inputs<'a> {
    /// Configuration.
    pub config: &'a Config,
    /// Node name.
    pub name: &'a str,
    /// The machine.
    pub facts: &'a MachineFacts,
    /// Addresses of the node.
    pub addresses: &'a [String],
    /// The runtime.
    pub runtime: &'a RuntimeVersion,
    /// Readiness.
    pub readiness: &'a Readiness,
    /// Why the pod cache is not healthy.
    pub pleg: Option<String>,
    /// Images, largest first.
    pub images: &'a [ImageRecord],
    /// Size of the file system of the state directory, in bytes.
    pub disk: u64,
    /// Port of the HTTPS server.
    pub port: u16,
    /// The status as last known.
    pub previous: Option<&'a NodeStatus>,
    /// Now.
    pub now: &'a Time,
}

/// What all pods together may use, and the whole of it.
#[must_use]
pub fn resources(config: &Config, facts: &MachineFacts, disk: u64) -> (Resources, Resources) {
    let disk_bytes = i64::try_from(disk).unwrap_or(i64::MAX);
    let q = |text: &str| ApiQuantity(text.to_owned());
    let capacity: Resources = [
        ("cpu".to_owned(), q(&facts.cpus.to_string())),
        ("memory".to_owned(), q(&format!("{}Ki", facts.memory / 1024))),
        ("ephemeral-storage".to_owned(), q(&format!("{}Ki", disk_bytes / 1024))),
        ("pods".to_owned(), q(&config.kubelet.max_pods.to_string())),
        ("hugepages-2Mi".to_owned(), q("0")),
        ("hugepages-1Gi".to_owned(), q("0")),
    ]
    .into();
    let reserved = |key: &str| -> i64 {
        [&config.kubelet.system_reserved, &config.kubelet.kube_reserved]
            .into_iter()
            .filter_map(|m| m.get(key))
            .map(|t| pod::milli(&ApiQuantity(t.clone())))
            .sum()
    };
    let memory_reserve = eviction(config, "memory.available", DEFAULT_MEMORY_RESERVE, facts.memory);
    let disk_reserve = eviction(config, "nodefs.available", &format!("{DEFAULT_DISK_RESERVE}%"), disk_bytes);
    let cpu = (facts.cpus * 1000 - reserved("cpu")).max(0);
    let memory = (facts.memory - reserved("memory") / 1000 - memory_reserve).max(0);
    let storage = (disk_bytes - reserved("ephemeral-storage") / 1000 - disk_reserve).max(0);
    let mut allocatable = capacity.clone();
    allocatable.insert("cpu".into(), q(&Quantity::from_milli(cpu).to_string()));
    allocatable.insert("memory".into(), q(&format!("{}Ki", memory / 1024)));
    allocatable.insert("ephemeral-storage".into(), q(&storage.to_string()));
    (capacity, allocatable)
}

/// Amounts by resource name.
pub type Resources = BTreeMap<String, ApiQuantity>;

/// A hard eviction threshold in bytes; setting one key drops the defaults of the others, as upstream.
fn eviction(config: &Config, key: &str, default: &str, whole: i64) -> i64 {
    let map = &config.kubelet.eviction_hard;
    let text = match map.get(key) {
        Some(text) => text.as_str(),
        None if map.is_empty() => default,
        None => return 0,
    };
    match text.strip_suffix('%').map(str::parse::<f64>) {
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a percentage of bytes")]
        Some(Ok(percent)) => (whole as f64 * percent / 100.0) as i64,
        _ => pod::units(&ApiQuantity(text.to_owned())),
    }
}

/// The types that the agent writes.
pub const CONDITIONS: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

fn condition(inputs: &Inputs<'_>, name: &str, status: bool, reason: &str, message: String) -> NodeCondition {
    let text = if status { "True" } else { "False" };
    let previous = inputs
        .previous
        .and_then(|s| s.conditions.as_ref())
        .and_then(|c| c.iter().find(|c| c.type_ == name && c.status == text));
    NodeCondition {
        type_: name.to_owned(),
        status: text.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(inputs.now.clone()),
        last_transition_time: previous
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(inputs.now.clone())),
    }
}

fn ready(inputs: &Inputs<'_>) -> NodeCondition {
    let network = inputs.readiness.network.as_ref().map(|why| format!("container runtime network not ready: {why}"));
    let problems: Vec<String> =
        [inputs.readiness.runtime.clone(), network, inputs.pleg.clone()].into_iter().flatten().collect();
    if problems.is_empty() {
        return condition(inputs, "Ready", true, "KubeletReady", "kubelet is posting ready status".into());
    }
    let message = if problems.len() == 1 { problems[0].clone() } else { format!("[{}]", problems.join(", ")) };
    condition(inputs, "Ready", false, "KubeletNotReady", message)
}

/// The node's status.
#[must_use]
pub fn status(inputs: &Inputs<'_>) -> NodeStatus {
    let (capacity, allocatable) = resources(inputs.config, inputs.facts, inputs.disk);
    let calm = |name: &str, reason: &str, message: &str| condition(inputs, name, false, reason, message.to_owned());
    let mut addresses: Vec<NodeAddress> =
        inputs.addresses.iter().map(|a| NodeAddress { type_: "InternalIP".into(), address: a.clone() }).collect();
    addresses.push(NodeAddress { type_: "Hostname".into(), address: inputs.name.to_owned() });
    let limit = usize::try_from(inputs.config.kubelet.node_status_max_images).unwrap_or(usize::MAX);
    let images = inputs
        .images
        .iter()
        .take(limit)
        .map(|i| ContainerImage {
            names: Some(i.names.iter().take(MAX_IMAGE_NAMES).cloned().collect()),
            size_bytes: Some(i64::try_from(i.size).unwrap_or(i64::MAX)),
        })
        .collect();
    let f = inputs.facts;
    NodeStatus {
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(vec![
            calm("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            calm("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            calm("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ready(inputs),
        ]),
        addresses: Some(addresses),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(inputs.port) }),
        }),
        node_info: Some(NodeSystemInfo {
            machine_id: f.machine_id.clone(),
            system_uuid: f.system_uuid.clone(),
            boot_id: f.boot_id.clone(),
            kernel_version: f.kernel.clone(),
            os_image: f.os_image.clone(),
            container_runtime_version: format!("{}://{}", inputs.runtime.name, inputs.runtime.version),
            kubelet_version: KUBELET_VERSION.to_owned(),
            kube_proxy_version: String::new(),
            operating_system: "linux".into(),
            architecture: f.arch.clone(),
            ..NodeSystemInfo::default()
        }),
        images: Some(images),
        ..NodeStatus::default()
    }
}

/// The labels every node has, and the configured ones.
#[must_use]
pub fn labels(config: &Config, name: &str, facts: &MachineFacts) -> BTreeMap<String, String> {
    let mut out = config.node.node_labels.clone();
    for prefix in ["kubernetes.io", "beta.kubernetes.io"] {
        out.insert(format!("{prefix}/os"), "linux".into());
        out.insert(format!("{prefix}/arch"), facts.arch.clone());
    }
    out.insert("kubernetes.io/hostname".into(), name.to_owned());
    out
}

/// The object to register.
#[must_use]
pub fn node(config: &Config, name: &str, facts: &MachineFacts, status: NodeStatus) -> Node {
    let taints: Vec<Taint> = config.taints();
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels(config, name, facts)),
            annotations: Some(
                [("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned())].into(),
            ),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            provider_id: Some(config.kubelet.provider_id.clone()).filter(|p| !p.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// Whether two statuses differ in more than the times of their heartbeats.
#[must_use]
pub fn differs(old: &Value, new: &Value) -> bool {
    let calm = |status: &Value| {
        let mut status = status.clone();
        if let Some(list) = status["conditions"].as_array_mut() {
            // A patch cannot change their order, and a stock API server puts new ones first.
            list.sort_by_key(|condition| condition["type"].as_str().unwrap_or_default().to_owned());
        }
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            condition.as_object_mut().map(|fields| fields.remove("lastHeartbeatTime"));
        }
        status
    };
    calm(old) != calm(new)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> MachineFacts {
        MachineFacts { cpus: 2, memory: 4 << 30, arch: "amd64".into(), ..MachineFacts::default() }
    }

    fn compute(config: &Config, readiness: &Readiness, previous: Option<&NodeStatus>) -> NodeStatus {
        status(&Inputs {
            config,
            name: "n",
            facts: &facts(),
            addresses: &["192.0.2.1".into()],
            runtime: &RuntimeVersion { name: "containerd".into(), version: "1.6.20".into() },
            readiness,
            pleg: None,
            images: &[],
            disk: 100 << 30,
            port: 10250,
            previous,
            now: &Time(jiff::Timestamp::UNIX_EPOCH),
        })
    }

    #[test]
    fn allocatable_is_capacity_less_reserves() {
        let mut config = Config::default();
        config.kubelet.system_reserved.insert("cpu".into(), "500m".into());
        let s = compute(&config, &Readiness::default(), None);
        let a = s.allocatable.unwrap();
        assert_eq!(a["cpu"].0, "1500m");
        assert_eq!(a["memory"].0, format!("{}Ki", (4 << 20) - 102_400));
        assert_eq!(a["pods"].0, "110");
    }

    #[test]
    fn not_ready_names_the_cause() {
        let why = Readiness { network: Some("NetworkReady=false reason:x message:y".into()), runtime: None };
        let s = compute(&Config::default(), &why, None);
        let ready = s.conditions.as_ref().unwrap().iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "False");
        assert!(ready.message.as_ref().unwrap().starts_with("container runtime network not ready: NetworkReady"));
        let fine = compute(&Config::default(), &Readiness::default(), Some(&s));
        let mut later = json!(fine);
        later["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:00:00Z");
        assert!(differs(&json!(s), &json!(fine)) && !differs(&json!(fine), &later));
    }

    #[test]
    fn labels_and_taints() {
        let mut config = Config::default();
        config.node.node_labels.insert("a".into(), "b".into());
        let n = node(&config, "n", &facts(), NodeStatus::default());
        let labels = n.metadata.labels.unwrap();
        assert_eq!((labels["kubernetes.io/arch"].as_str(), labels["a"].as_str()), ("amd64", "b"));
        assert_eq!(n.spec.unwrap().taints, None);
    }
}
