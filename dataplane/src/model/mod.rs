//! The model: Services, slices and the node, and from them the frontends with their endpoints.
//!
//! Pure: no I/O, no clock. Invariant: what [`Model::plan`] says depends only on the objects last
//! seen, never on the order in which they came. Upstream counterpart: `pkg/proxy`'s change
//! trackers and `CategorizeEndpoints`.

pub mod choose;
pub mod decode;
pub mod drain;
mod refused;
pub mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use choose::Chosen;
use decode::Interner;
use ipnet::IpNet;
use types::{Ep, Family, Name, NodeRecord, Protocol, ServiceRecord, SliceRecord};

/// What a packet is addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrontendKey {
    /// Destination address; unspecified stands for a node port on this node's addresses.
    pub addr: IpAddr,
    /// Destination port.
    pub port: u16,
    /// Protocol.
    pub protocol: Protocol,
}

impl FrontendKey {
    /// Whether this is a node port.
    #[must_use]
    pub fn is_node_port(&self) -> bool {
        self.addr.is_unspecified()
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.addr)
    }
}

/// What happens to a packet addressed to a frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// No endpoint at all: refused at once.
    Reject,
    /// Endpoints, but none that the traffic policy allows: dropped.
    Drop,
    /// Class "cluster": masqueraded if the source is not local.
    Cluster(Vec<Ep>),
    /// Class "ext-cluster": always masqueraded.
    External(Vec<Ep>),
    /// Class "ext-local": `all` for pods and the node itself, `local` for everybody else.
    ExternalLocal {
        /// Endpoints by the cluster policy.
        all: Vec<Ep>,
        /// Endpoints on this node; none means drop.
        local: Vec<Ep>,
    },
}

/// ClientIP affinity of a service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// Stable number of the service port.
    pub id: u64,
    /// Time to live since the last new connection.
    pub seconds: u32,
}

/// A frontend with its decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// What it answers for.
    pub key: FrontendKey,
    /// What it does.
    pub target: Target,
    /// Whether clients stick to endpoints.
    pub affinity: Option<Affinity>,
    /// From where it may be reached; none for everywhere.
    pub sources: Vec<IpNet>,
}

/// All that one Service wants programmed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePlan {
    /// Frontends.
    pub frontends: Vec<Frontend>,
    /// Cluster addresses, whose unknown ports are refused.
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses of endpoints on this node, which could reach themselves.
    pub hairpin: Vec<IpAddr>,
    /// Policies that leave it without endpoints here.
    pub no_local: NoLocal,
}

/// Numbers of service ports whose policy is Local while all their endpoints are elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoLocal {
    /// By `internalTrafficPolicy`.
    pub internal: u32,
    /// By `externalTrafficPolicy`.
    pub external: u32,
}

#[derive(Debug, Default)]
struct Entry {
    service: Option<ServiceRecord>,
    slices: BTreeMap<Name, SliceRecord>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Model {
    node_name: String,
    node: NodeRecord,
    entries: HashMap<Name, Entry>,
    slice_owner: HashMap<Name, Name>,
    dirty: BTreeSet<Name>,
    /// Services with a health check node port.
    health_ports: BTreeMap<Name, u16>,
    drains: drain::Drains,
    /// Shared strings and hints of the records; decoding fills it.
    pub interner: Interner,
}

impl Model {
    /// An empty model for a node.
    #[must_use]
    pub fn new(node_name: &str) -> Self {
        Self { node_name: node_name.to_owned(), ..Self::default() }
    }

    /// Name of the node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &NodeRecord {
        &self.node
    }

    /// Takes note of the node. A new zone can change every choice of endpoints.
    pub fn set_node(&mut self, node: NodeRecord) {
        if node.zone != self.node.zone {
            self.dirty.extend(self.entries.keys().cloned());
        }
        if node.internal_ips != self.node.internal_ips {
            let guarded = self.entries.iter().filter(|(_, e)| e.service.as_ref().is_some_and(ServiceRecord::guarded));
            self.dirty.extend(guarded.map(|(name, _)| name.clone()));
        }
        self.node = node;
    }

    /// Takes note of a Service, or that it is gone (or not ours to serve).
    pub fn set_service(&mut self, name: &Name, service: Option<ServiceRecord>) {
        let entry = match self.entries.get_mut(name) {
            Some(entry) => entry,
            None if service.is_none() => return,
            None => self.entries.entry(name.clone()).or_default(),
        };
        if entry.service == service {
            return;
        }
        match service.as_ref().map_or(0, |s| s.health_check_node_port) {
            0 => self.health_ports.remove(name),
            port => self.health_ports.insert(name.clone(), port),
        };
        entry.service = service;
        self.forget_if_empty(name);
        self.dirty.insert(name.clone());
    }

    /// Takes note of a slice, or that it is gone.
    pub fn set_slice(&mut self, slice: &Name, record: Option<SliceRecord>) {
        if record.is_none() {
            self.drains.forget(slice);
        }
        let before = self.slice_owner.get(slice).cloned();
        let after = record.as_ref().map(|r| r.service.clone());
        if let Some(before) = before.filter(|b| Some(b) != after.as_ref()) {
            self.slice_owner.remove(slice);
            if let Some(entry) = self.entries.get_mut(&before) {
                entry.slices.remove(slice);
            }
            self.forget_if_empty(&before);
            self.dirty.insert(before);
        }
        if record.is_none() {
            self.interner.refused.forget(slice);
        }
        if let (Some(record), Some(service)) = (record, after) {
            let entry = self.entries.entry(service.clone()).or_default();
            if entry.slices.get(slice) != Some(&record) {
                entry.slices.insert(slice.clone(), record);
                self.dirty.insert(service.clone());
            }
            self.slice_owner.insert(slice.clone(), service);
        }
    }

    fn forget_if_empty(&mut self, name: &Name) {
        if self.entries.get(name).is_some_and(|e| e.service.is_none() && e.slices.is_empty()) {
            self.entries.remove(name);
        }
    }

    /// Names of all Services known.
    pub fn services(&self) -> impl Iterator<Item = (&Name, &ServiceRecord)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name, entry.service.as_ref()?)))
    }

    /// Names of slices known.
    pub fn slices(&self) -> impl Iterator<Item = &Name> {
        self.slice_owner.keys()
    }

    /// Services whose plan may have changed since the last call.
    pub fn take_dirty(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.dirty)
    }

    /// Marks a Service as changed.
    pub fn mark_dirty(&mut self, name: Name) {
        self.dirty.insert(name);
    }

    /// Marks all Services as changed, for a full sync.
    pub fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.entries.keys().cloned());
    }

    /// What a Service wants programmed; empty when it is gone.
    #[must_use]
    pub fn plan(&self, name: &Name) -> ServicePlan {
        let Some((entry, service)) = self.entries.get(name).and_then(|e| Some((e, e.service.as_ref()?))) else {
            return ServicePlan::default();
        };
        let mut plan = ServicePlan { cluster_ips: service.cluster_ips.clone(), ..ServicePlan::default() };
        let families: BTreeSet<Family> = service.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
        let slices = self.treated(entry);
        for port in &service.ports {
            for family in &families {
                let chosen = choose::choose(self, slices.iter().map(AsRef::as_ref), port, *family);
                let affinity = service.affinity_seconds.map(|seconds| Affinity {
                    // The timeout is part of it: a set's timeout cannot be changed.
                    id: stable_id(&[
                        name.as_bytes(),
                        port.name.as_bytes(),
                        &[port.protocol as u8, *family as u8],
                        &seconds.to_le_bytes(),
                    ]),
                    seconds,
                });
                plan.add_port(service, port, *family, &chosen, affinity, &self.sources(service, *family));
                plan.hairpin.extend(chosen.local_addresses);
            }
        }
        plan.hairpin.sort_unstable();
        plan.hairpin.dedup();
        plan
    }

    /// Frontends that a Service claims, with the names of their ports.
    pub fn frontends<'a>(&'a self, name: &Name) -> impl Iterator<Item = (FrontendKey, &'a str)> {
        let service = self.entries.get(name).and_then(|e| e.service.as_ref());
        service.into_iter().flat_map(|service| {
            let addresses = service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
            let addresses: Vec<IpAddr> = addresses.copied().collect();
            service.ports.iter().flat_map(move |port| {
                let key = |addr, number| FrontendKey { addr, port: number, protocol: port.protocol };
                let node_ports =
                    addresses.iter().map(|ip| Family::of(*ip).unspecified()).map(|any| key(any, port.node_port));
                let mut keys: Vec<FrontendKey> = addresses.iter().map(|ip| key(*ip, port.port)).collect();
                keys.extend(node_ports.filter(|_| port.node_port != 0));
                keys.into_iter().map(|key| (key, &*port.name))
            })
        })
    }

    /// From where load balancer addresses of one family may be reached; none for everywhere: also when all
    /// ranges are of the other family, as upstream has it.
    fn sources(&self, service: &ServiceRecord, family: Family) -> Vec<IpNet> {
        let of_family = |ip: IpAddr| Family::of(ip) == family;
        let ranges = service.source_ranges.iter().filter(|net| of_family(net.addr()));
        let mut sources: Vec<IpNet> = ranges.copied().collect();
        if sources.iter().any(|net| net.prefix_len() == 0) {
            return Vec::new();
        }
        // A node that has the load balancer's address as one of its own reaches it from that address.
        if self.node.primary(family).is_some_and(|ip| sources.iter().any(|net| net.contains(&ip))) {
            sources.extend(service.load_balancer_ips.iter().copied().filter(|ip| of_family(*ip)).map(IpNet::from));
        }
        sources
    }

    /// Services with a health check node port: that port, and the number of ready endpoints on this node.
    #[must_use]
    pub fn health_checks(&self) -> BTreeMap<Name, (u16, usize)> {
        self.health_ports.iter().map(|(name, port)| (name.clone(), (*port, self.local_endpoints(name)))).collect()
    }

    /// Number of local ready endpoints of a Service. A pod with addresses of both families counts once; one
    /// that is going does not count: the load balancer shall look elsewhere in time.
    #[must_use]
    pub fn local_endpoints(&self, name: &Name) -> usize {
        let Some(entry) = self.entries.get(name) else { return 0 };
        let slices = self.treated(entry);
        let of_family = |family| {
            let of_family = slices.iter().filter(|s| s.family == family && !s.ports.is_empty());
            let ready = of_family.flat_map(|s| s.endpoints.iter()).filter(|e| e.local && e.ready);
            ready.map(|e| e.addr).collect::<BTreeSet<_>>().len()
        };
        of_family(Family::V4).max(of_family(Family::V6))
    }
}

impl ServicePlan {
    fn add_port(
        &mut self,
        service: &ServiceRecord,
        port: &types::ServicePort,
        family: Family,
        chosen: &Chosen,
        affinity: Option<Affinity>,
        sources: &[IpNet],
    ) {
        let missing = chosen.any && chosen.local.is_empty();
        self.no_local.internal += u32::from(missing && service.internal_local);
        self.no_local.external += u32::from(missing && service.external_local);
        let mut add = |addr, number, target| {
            let key = FrontendKey { addr, port: number, protocol: port.protocol };
            let guarded = !addr.is_unspecified() && service.load_balancer_ips.contains(&addr);
            let sources = if guarded { sources.to_vec() } else { Vec::new() };
            self.frontends.push(Frontend { key, target, affinity, sources });
        };
        let of_family = |ips: &[IpAddr]| {
            ips.iter().copied().filter(|ip| Family::of(*ip) == family && !ip.is_unspecified()).collect::<Vec<_>>()
        };
        let internal = if service.internal_local { &chosen.local } else { &chosen.cluster };
        for ip in of_family(&service.cluster_ips) {
            add(ip, port.port, if internal.is_empty() { none(chosen) } else { Target::Cluster(internal.clone()) });
        }
        let external = if service.external_local {
            if chosen.cluster.is_empty() && chosen.local.is_empty() {
                Target::Reject
            } else {
                Target::ExternalLocal { all: chosen.cluster.clone(), local: chosen.local.clone() }
            }
        } else if chosen.cluster.is_empty() {
            none(chosen)
        } else {
            Target::External(chosen.cluster.clone())
        };
        let mut addresses = of_family(&service.external_ips);
        addresses.extend(of_family(&service.load_balancer_ips));
        addresses.sort_unstable();
        addresses.dedup();
        for ip in addresses {
            add(ip, port.port, external.clone());
        }
        if port.node_port != 0 {
            add(family.unspecified(), port.node_port, external);
        }
    }
}

fn none(chosen: &Chosen) -> Target {
    if chosen.any { Target::Drop } else { Target::Reject }
}

/// FNV-1a over length-prefixed parts: stable over restarts and versions, as names in the kernel
/// are made of it.
#[must_use]
pub fn stable_id(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    for part in parts {
        (part.len() as u32).to_le_bytes().into_iter().for_each(&mut eat);
        part.iter().copied().for_each(&mut eat);
    }
    hash
}
