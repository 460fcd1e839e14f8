//! Which routes lead to the pods of the other nodes, and what must change to have them. Pure.
//!
//! host-gw: a pod range of another node is reached by that node's own address. A Node object is written by that node, so
//! what it claims is checked: a range that overlaps ours, that of a node before it, or the address of any node is refused.
//! Upstream counterpart: the route controller of `cloud-controller-manager`, flannel's `host-gw` backend.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

/// What a Node object says about the way to its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNet {
    /// Its pod ranges.
    pub ranges: Vec<IpNet>,
    /// Its internal addresses.
    pub addresses: Vec<IpAddr>,
}

impl NodeNet {
    /// Reads a Node object.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let ranges = pod_ranges(node);
        let status = node.status.as_ref();
        let addresses = status
            .iter()
            .flat_map(|status| status.addresses.iter().flatten())
            .filter(|address| address.type_ == "InternalIP")
            .filter_map(|address| address.address.parse().ok())
            .collect();
        Self { ranges, addresses }
    }

    fn gateway(&self, range: &IpNet) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| ip.is_ipv4() == range.addr().is_ipv4())
    }
}

/// The pod ranges of a node: `podCIDRs`, else `podCIDR`.
#[must_use]
pub fn pod_ranges(node: &Node) -> Vec<IpNet> {
    let Some(spec) = node.spec.as_ref() else { return Vec::new() };
    let several = spec.pod_cidrs.iter().flatten();
    let one = spec.pod_cidr.iter().filter(|_| spec.pod_cidrs.as_ref().is_none_or(Vec::is_empty));
    several.chain(one).filter_map(|text| text.parse::<IpNet>().ok()).map(|net| net.trunc()).collect()
}

/// Why a range gets no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node has no address of the range's family.
    NoAddress,
    /// The range overlaps one of this node's.
    Ours(IpNet),
    /// The range overlaps one that another node has.
    Taken(String, IpNet),
    /// The range holds the address of a node.
    HoldsNode(IpAddr),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => write!(f, "the node has no InternalIP of that family"),
            Self::Ours(range) => write!(f, "it overlaps {range}, which is this node's"),
            Self::Taken(node, range) => write!(f, "it overlaps {range} of node {node}"),
            Self::HoldsNode(ip) => write!(f, "it holds {ip}, the address of a node"),
        }
    }
}

/// The routes to be there, and the ranges that get none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Gateway and node by range.
    pub routes: BTreeMap<IpNet, (IpAddr, String)>,
    /// Node, range, reason.
    pub refused: Vec<(String, IpNet, Refused)>,
}

/// This node's own place.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// Its name.
    pub name: String,
    /// Its pod ranges.
    pub ranges: Vec<IpNet>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

/// The routes for these nodes. Where two claim the same range, the one whose name comes first has it.
#[must_use]
pub fn wanted(nodes: &BTreeMap<String, NodeNet>, own: &Own) -> Wanted {
    let mut out = Wanted::default();
    let addresses = || nodes.values().flat_map(|n| n.addresses.iter()).chain(&own.addresses);
    for (name, node) in nodes.iter().filter(|(name, _)| **name != own.name) {
        for range in &node.ranges {
            let refused = if let Some(ours) = own.ranges.iter().find(|ours| overlap(ours, range)) {
                Refused::Ours(*ours)
            } else if let Some(ip) = addresses().find(|ip| range.contains(*ip)) {
                Refused::HoldsNode(*ip)
            } else if let Some((taken, (_, other))) = out.routes.iter().find(|(taken, _)| overlap(taken, range)) {
                Refused::Taken(other.clone(), *taken)
            } else if let Some(gateway) = node.gateway(range) {
                out.routes.insert(*range, (gateway, name.clone()));
                continue;
            } else {
                Refused::NoAddress
            };
            out.refused.push((name.clone(), *range, refused));
        }
    }
    out
}

/// A route of ours as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Destination.
    pub range: IpNet,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Index of the link it goes out by.
    pub link: Option<u32>,
}

/// One change of the kernel's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A route that nobody needs any more.
    Remove(Found),
    /// A route that is missing.
    Add(IpNet, IpAddr),
    /// A route of ours that must lead elsewhere.
    Replace(IpNet, IpAddr),
}

/// What leads from the routes of ours that are there to those that shall be. Removals come first: a range may have moved
/// into a wider or narrower one.
#[must_use]
pub fn steps(wanted: &BTreeMap<IpNet, (IpAddr, String)>, found: &[Found]) -> Vec<Step> {
    let mut seen: BTreeMap<IpNet, Option<IpAddr>> = BTreeMap::new();
    let mut out = Vec::new();
    for route in found {
        // A second one to the same place (another metric) is a leftover.
        if !wanted.contains_key(&route.range) || seen.contains_key(&route.range) {
            out.push(Step::Remove(route.clone()));
            continue;
        }
        seen.insert(route.range, route.gateway);
    }
    for (range, (gateway, _)) in wanted {
        match seen.get(range) {
            Some(Some(now)) if now == gateway => {}
            Some(_) => out.push(Step::Replace(*range, *gateway)),
            None => out.push(Step::Add(*range, *gateway)),
        }
    }
    out
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
