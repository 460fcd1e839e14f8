//! From API objects to compact records. Nothing of an object is kept that is not in the record.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;

use super::drain::LocalUids;
use super::refused::Refused;
use super::types::{
    EndpointRecord, Family, Hints, Name, NodeRecord, Protocol, ServicePort, ServiceRecord, SlicePort, SliceRecord,
    endpoint_address_allowed,
};

/// Label by which a Service asks for another proxy.
pub const LABEL_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label on Services and slices without a cluster address.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// Label on a slice that names its Service.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Where source ranges stood before `spec.loadBalancerSourceRanges`, which has precedence.
const ANNOTATION_SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// Taint by which the cluster autoscaler says that a node is about to go.
const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// `service.spec.sessionAffinityConfig.clientIP.timeoutSeconds` when unset.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// Strings that many records share are kept once.
#[derive(Debug, Default)]
pub struct Interner {
    strings: HashMap<Arc<str>, ()>,
    hints: Vec<Hints>,
    hint_numbers: HashMap<Hints, u32>,
    /// Endpoint addresses that were refused, and told.
    pub(super) refused: Refused,
}

impl Interner {
    /// One shared copy of a string.
    pub fn string(&mut self, text: &str) -> Arc<str> {
        if let Some((known, ())) = self.strings.get_key_value(text) {
            return known.clone();
        }
        let shared: Arc<str> = text.into();
        self.strings.insert(shared.clone(), ());
        shared
    }

    /// The number of a set of hints; 0 for no hints.
    pub fn hints_number(&mut self, hints: Hints) -> u32 {
        if hints.zones.is_empty() && hints.nodes.is_empty() {
            return 0;
        }
        if let Some(number) = self.hint_numbers.get(&hints) {
            return *number;
        }
        self.hints.push(hints.clone());
        let number = self.hints.len() as u32;
        self.hint_numbers.insert(hints, number);
        number
    }

    /// The hints of a number.
    #[must_use]
    pub fn hints(&self, number: u32) -> Option<&Hints> {
        self.hints.get(number.checked_sub(1)? as usize)
    }
}

/// `namespace/name` of an object.
#[must_use]
pub fn object_name(meta: &kube::api::ObjectMeta) -> Name {
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default()).into()
}

fn port(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|p| *p != 0)
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpAddr> {
    texts.into_iter().filter_map(|t| t.parse().ok()).collect()
}

/// A range as Go's sloppy parser of old reads it: spaces around it and zeros before a number do no harm, host
/// bits are cut off.
fn range(text: &str) -> Option<IpNet> {
    let text = text.trim();
    if let Ok(net) = text.parse::<IpNet>() {
        return Some(net.trunc());
    }
    let (addr, length) = text.split_once('/')?;
    let octets: Vec<&str> = addr.split('.').map(|n| n.trim_start_matches('0')).collect();
    let octets: Vec<&str> = octets.into_iter().map(|n| if n.is_empty() { "0" } else { n }).collect();
    format!("{}/{length}", octets.join(".")).parse::<IpNet>().ok().map(|net| net.trunc())
}

/// From where a Service's load balancer addresses may be reached.
fn source_ranges(service: &Service) -> Vec<IpNet> {
    let spec = service.spec.as_ref();
    let field: Vec<&str> =
        spec.iter().flat_map(|s| s.load_balancer_source_ranges.iter().flatten()).map(String::as_str).collect();
    let texts = if field.is_empty() {
        let annotation = service.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION_SOURCE_RANGES));
        annotation.map_or_else(Vec::new, |text| text.split(',').filter(|t| !t.trim().is_empty()).collect())
    } else {
        field
    };
    texts.into_iter().filter_map(range).collect()
}

/// A Service; none when this proxy has nothing to do for it (headless, ExternalName, or labelled
/// for another proxy).
pub fn service(service: &Service, interner: &mut Interner) -> Option<ServiceRecord> {
    let labels = service.metadata.labels.as_ref();
    if labels.is_some_and(|l| l.contains_key(LABEL_PROXY_NAME)) {
        return None;
    }
    let spec = service.spec.as_ref()?;
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    let cluster_ip = spec.cluster_ip.as_deref().unwrap_or_default();
    if kind == "ExternalName" || cluster_ip == "None" || cluster_ip.is_empty() {
        return None;
    }
    let mut cluster_ips = addresses(spec.cluster_ips.iter().flatten());
    if cluster_ips.is_empty() {
        cluster_ips = addresses([&cluster_ip.to_owned()]);
    }
    let ingress =
        service.status.iter().filter_map(|s| s.load_balancer.as_ref()).flat_map(|l| l.ingress.iter().flatten());
    let load_balancer_ips = if kind == "LoadBalancer" {
        ingress
            .filter(|i| i.ip_mode.as_deref() != Some("Proxy"))
            .filter_map(|i| i.ip.as_deref()?.parse().ok())
            .collect()
    } else {
        Vec::new()
    };
    let ports = spec.ports.iter().flatten().filter_map(|p| {
        Some(ServicePort {
            name: interner.string(p.name.as_deref().unwrap_or_default()),
            protocol: Protocol::parse(p.protocol.as_deref())?,
            port: port(p.port)?,
            node_port: p.node_port.and_then(port).unwrap_or(0),
        })
    });
    let external_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let affinity = spec.session_affinity.as_deref() == Some("ClientIP");
    let timeout = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
    Some(ServiceRecord {
        cluster_ips,
        external_ips: addresses(spec.external_ips.iter().flatten()),
        source_ranges: if load_balancer_ips.is_empty() { Vec::new() } else { source_ranges(service) },
        load_balancer_ips,
        ports: ports.collect(),
        internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        external_local,
        affinity_seconds: affinity
            .then(|| timeout.and_then(|t| u32::try_from(t).ok()).unwrap_or(DEFAULT_AFFINITY_SECONDS)),
        // Upstream's `NeedsHealthCheck`: other types may still carry a number of before.
        health_check_node_port: spec
            .health_check_node_port
            .and_then(port)
            .filter(|_| kind == "LoadBalancer" && external_local)
            .unwrap_or(0),
    })
}

/// A slice; none when it belongs to no Service or holds no IP addresses.
pub fn slice(slice: &EndpointSlice, node_name: &str, interner: &mut Interner) -> Option<SliceRecord> {
    let labels = slice.metadata.labels.as_ref()?;
    if labels.contains_key(LABEL_HEADLESS) {
        return None;
    }
    let service = labels.get(LABEL_SERVICE_NAME).filter(|s| !s.is_empty())?;
    let family = match slice.address_type.as_str() {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        _ => return None,
    };
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let ports = slice.ports.iter().flatten().filter_map(|p| {
        Some(SlicePort {
            name: interner.string(p.name.as_deref().unwrap_or_default()),
            protocol: Protocol::parse(p.protocol.as_deref())?,
            port: p.port.and_then(port)?,
        })
    });
    let ports: Box<[SlicePort]> = ports.collect();
    let mut refused = BTreeSet::new();
    let mut endpoints = Vec::with_capacity(slice.endpoints.as_ref().map_or(0, Vec::len));
    for endpoint in slice.endpoints.iter().flatten() {
        // Upstream, too, looks at the first address alone.
        let Some(addr) = endpoint.addresses.first().and_then(|a| a.parse::<IpAddr>().ok()) else { continue };
        if Family::of(addr) != family || !endpoint_address_allowed(addr) {
            refused.insert(addr);
            continue;
        }
        let conditions = endpoint.conditions.as_ref();
        let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
        let hints = endpoint.hints.as_ref().map_or(0, |h| {
            let zones = h.for_zones.iter().flatten().map(|z| interner.string(&z.name)).collect();
            let nodes = h.for_nodes.iter().flatten().map(|n| interner.string(&n.name)).collect();
            interner.hints_number(Hints { zones, nodes })
        });
        endpoints.push(EndpointRecord {
            addr,
            ready,
            serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
            local: endpoint.node_name.as_deref() == Some(node_name),
            hints,
        });
    }
    interner.refused.note(&object_name(&slice.metadata), refused);
    Some(SliceRecord {
        // Not interned: names come and go, and the interner never forgets.
        service: format!("{namespace}/{service}").into(),
        family,
        ports,
        endpoints: endpoints.into(),
    })
}

/// UIDs of this node's pods among a slice's endpoints, by their place in what [`slice`] made of it.
pub fn local_uids(object: &EndpointSlice, record: &SliceRecord) -> LocalUids {
    if !record.endpoints.iter().any(|e| e.local) {
        return LocalUids::default();
    }
    let mut all = object.endpoints.iter().flatten();
    let places = record.endpoints.iter().enumerate().filter_map(|(place, kept)| {
        // What is not in the record has an address that no record has.
        let source = all.find(|e| e.addresses.first().and_then(|a| a.parse().ok()) == Some(kept.addr))?;
        let uid = source.target_ref.as_ref()?.uid.as_deref().filter(|uid| kept.local && !uid.is_empty())?;
        Some((u32::try_from(place).ok()?, uid.into()))
    });
    places.collect()
}

/// Ranges of cluster addresses.
pub fn service_cidr(object: &ServiceCIDR) -> Vec<IpNet> {
    object.spec.iter().flat_map(|s| s.cidrs.iter().flatten()).filter_map(|cidr| cidr.parse().ok()).collect()
}

/// The node this proxy runs on.
pub fn node(node: &Node, interner: &mut Interner) -> NodeRecord {
    let zone = node.metadata.labels.as_ref().and_then(|l| l.get(LABEL_ZONE)).filter(|z| !z.is_empty());
    let spec = node.spec.as_ref();
    let statuses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    NodeRecord {
        zone: zone.map(|z| interner.string(z)),
        internal_ips: statuses.filter(|a| a.type_ == "InternalIP").filter_map(|a| a.address.parse().ok()).collect(),
        pod_cidrs: spec.iter().flat_map(|s| s.pod_cidrs.iter().flatten()).filter_map(|c| c.parse().ok()).collect(),
        leaving: node.metadata.deletion_timestamp.is_some()
            || spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == TAINT_TO_BE_DELETED),
    }
}
