//! From a Service and its pods to endpoints. Pure.
//!
//! Upstream counterpart: `podToEndpoint`, `getEndpointPorts`, `ShouldPodBeInEndpoints`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::meta::{name_of, namespace_of};
use crate::pods;

/// `IPv4` or `IPv6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Upstream's `IPv4`.
    V4,
    /// Upstream's `IPv6`.
    V6,
}

impl Family {
    /// The API's word.
    pub fn text(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn of(address: &str) -> Option<Self> {
        match address.parse::<IpAddr>().ok()? {
            IpAddr::V4(_) => Some(Self::V4),
            IpAddr::V6(_) => Some(Self::V6),
        }
    }
}

/// Ports in a form that compares and orders: (name, number, protocol, application protocol).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The service port's name.
    pub name: String,
    /// The pod's port.
    pub number: i32,
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// A hint such as `http`.
    pub app_protocol: Option<String>,
}

impl Port {
    /// As the API wants it.
    pub fn to_api(&self) -> EndpointPort {
        EndpointPort {
            name: Some(self.name.clone()),
            port: Some(self.number),
            protocol: Some(self.protocol.clone()),
            app_protocol: self.app_protocol.clone(),
        }
    }

    /// Reads a slice's port.
    pub fn of(port: &EndpointPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            number: port.port.unwrap_or(0),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: port.app_protocol.clone(),
        }
    }
}

/// Endpoints that share a family and ports, and so may share slices.
pub type Groups = BTreeMap<(Family, Vec<Port>), Vec<Endpoint>>;

/// The service is without a cluster address on purpose.
pub fn is_headless(service: &Service) -> bool {
    let address = service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref());
    address == Some("None")
}

/// The families that the service serves.
pub fn families(service: &Service) -> Vec<Family> {
    let spec = service.spec.clone().unwrap_or_default();
    let named: Vec<Family> = spec
        .ip_families
        .iter()
        .flatten()
        .filter_map(|family| match family.as_str() {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })
        .collect();
    if !named.is_empty() {
        return named;
    }
    vec![spec.cluster_ip.as_deref().and_then(Family::of).unwrap_or(Family::V4)]
}

/// The pods whose labels the service selects; `None` if it selects none on purpose (endpoints are made by others).
pub fn selects(service: &Service, pod: &Pod) -> Option<bool> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|s| !s.is_empty())?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let labels = crate::meta::labels(pod);
    Some(selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

/// The service's endpoints are ours to make.
pub fn is_managed(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.is_some_and(|s| {
        s.type_.as_deref() != Some("ExternalName") && s.selector.as_ref().is_some_and(|selector| !selector.is_empty())
    })
}

/// A pod that has not ended and has an address.
pub fn has_endpoint(pod: &Pod) -> bool {
    !pods::is_terminal(pod) && !addresses(pod).is_empty()
}

fn addresses(pod: &Pod) -> Vec<&str> {
    let Some(status) = pod.status.as_ref() else {
        return Vec::new();
    };
    let many: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    if many.is_empty() { status.pod_ip.iter().map(String::as_str).filter(|ip| !ip.is_empty()).collect() } else { many }
}

/// The pod's address of a family.
pub fn address(pod: &Pod, family: Family) -> Option<&str> {
    addresses(pod).into_iter().find(|address| Family::of(address) == Some(family))
}

/// The pod's port for a service port; `None` if the pod has no port of that name.
pub fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let name = match port.target_port.as_ref() {
        None | Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let found = ports.find(|p| p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol);
    found.map(|p| p.container_port)
}

fn ports_of(service: &Service, pod: &Pod) -> Vec<Port> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_ref());
    let mut found: Vec<Port> = ports
        .into_iter()
        .flatten()
        .filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                number: target_port(pod, port)?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    found.sort();
    found
}

/// The pod's host name under a headless service of the pod's subdomain.
pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.clone().filter(|h| !h.is_empty())?;
    let is_in_subdomain =
        spec.subdomain.as_deref() == Some(name_of(service)) && namespace_of(service) == namespace_of(pod);
    is_in_subdomain.then_some(hostname)
}

/// A reference to the pod.
pub fn target_ref(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn endpoint(service: &Service, pod: &Pod, address: &str, zone: Option<String>) -> Endpoint {
    let publish = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
    let serving = pods::is_ready(pod);
    let terminating = pods::is_terminating(pod);
    Endpoint {
        addresses: vec![address.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(publish || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name: pods::node_name(pod).map(str::to_owned),
        target_ref: Some(target_ref(pod)),
        zone,
        ..Endpoint::default()
    }
}

/// The endpoints wanted for a service. `zone_of` tells the zone of a node.
pub fn wanted<'a>(
    service: &Service,
    pods: impl IntoIterator<Item = &'a Pod>,
    zone_of: impl Fn(&str) -> Option<String>,
) -> Groups {
    let mut groups = Groups::new();
    let families = families(service);
    for pod in pods {
        if !has_endpoint(pod) {
            continue;
        }
        let ports = ports_of(service, pod);
        let zone = pods::node_name(pod).and_then(&zone_of);
        for family in &families {
            if let Some(address) = address(pod, *family) {
                let group = groups.entry((*family, ports.clone())).or_default();
                group.push(endpoint(service, pod, address, zone.clone()));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(edit: impl FnOnce(&mut Value)) -> Service {
        let mut service = json!({"metadata": {"namespace": "d", "name": "web"}, "spec": {"clusterIP": "10.96.0.9",
            "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "www"}, {"name": "raw", "port": 9, "protocol": "UDP"}]}});
        edit(&mut service);
        serde_json::from_value(service).unwrap()
    }

    fn pod(edit: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({"metadata": {"namespace": "d", "name": "p", "uid": "u", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"name": "www", "containerPort": 8080}]}]},
            "status": {"podIPs": [{"ip": "10.244.0.5"}], "conditions": [{"type": "Ready", "status": "True"}]}});
        edit(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn only(service: &Service, pod: &Pod) -> (Vec<i32>, Endpoint) {
        let groups = wanted(service, [pod], |node| Some(format!("zone-of-{node}")));
        let ((_, ports), endpoints) = groups.into_iter().next().unwrap();
        (ports.iter().map(|p| p.number).collect(), endpoints.into_iter().next().unwrap())
    }

    fn conditions(endpoint: &Endpoint) -> (bool, bool, bool) {
        let c = endpoint.conditions.clone().unwrap();
        (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap())
    }

    #[test]
    fn a_ready_pod() {
        let (ports, endpoint) = only(&service(|_| {}), &pod(|_| {}));
        assert_eq!(ports, [8080, 9]);
        assert_eq!(conditions(&endpoint), (true, true, false));
        assert_eq!(endpoint.zone.as_deref(), Some("zone-of-n1"));
        assert_eq!(endpoint.target_ref.unwrap().uid.as_deref(), Some("u"));
        assert_eq!(endpoint.hostname, None);
    }

    #[test]
    fn readiness_and_termination() {
        let ending = pod(|p| p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        assert_eq!(conditions(&only(&service(|_| {}), &ending).1), (false, true, true));
        let unready = pod(|p| p["status"]["conditions"] = json!([]));
        assert_eq!(conditions(&only(&service(|_| {}), &unready).1), (false, false, false));
        let publish = service(|s| s["spec"]["publishNotReadyAddresses"] = json!(true));
        assert_eq!(conditions(&only(&publish, &unready).1), (true, false, false));
    }

    #[test]
    fn a_pod_without_the_named_port_has_only_the_others() {
        let bare = pod(|p| p["spec"]["containers"] = json!([{"name": "c"}]));
        assert_eq!(only(&service(|_| {}), &bare).0, [9]);
    }

    #[test]
    fn ended_pods_and_pods_without_address_have_no_endpoint() {
        for edit in [json!({"phase": "Succeeded", "podIP": "10.0.0.1"}), json!({"phase": "Running"})] {
            assert!(wanted(&service(|_| {}), [&pod(|p| p["status"] = edit)], |_| None).is_empty());
        }
    }

    #[test]
    fn both_families() {
        let dual = service(|s| s["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]));
        let pod = pod(|p| p["status"]["podIPs"] = json!([{"ip": "10.244.0.5"}, {"ip": "fd00::5"}]));
        let groups = wanted(&dual, [&pod], |_| None);
        assert_eq!(groups.keys().map(|(family, _)| *family).collect::<Vec<_>>(), [Family::V4, Family::V6]);
    }

    #[test]
    fn who_is_selected() {
        assert_eq!(selects(&service(|_| {}), &pod(|_| {})), Some(true));
        assert_eq!(selects(&service(|s| s["spec"]["selector"] = json!({})), &pod(|_| {})), None);
        assert!(!is_managed(&service(|s| s["spec"]["type"] = json!("ExternalName"))));
    }
}
