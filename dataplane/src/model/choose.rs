//! Which endpoints a service port may use: spec section 2.
//!
//! 1. Cluster policy: ready endpoints that pass the topology filter; if none, serving and
//!    terminating ones.
//! 2. Local policy: ready ones on this node; else serving and terminating ones on this node.
//! 3. Topology: same-node hints only if all ready endpoints carry node hints and one names this
//!    node; else same-zone hints by the same rule; else all.
//!
//! An address that several slices name counts once; where they disagree the better state wins
//! (a slice being replaced lags behind the one that replaces it). Upstream counterpart:
//! `pkg/proxy/topology.go`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Model;
use super::types::{EndpointRecord, Ep, Family, ServicePort, SliceRecord};

/// Endpoints by policy, each list sorted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// By the cluster policy.
    pub cluster: Vec<Ep>,
    /// By the local policy.
    pub local: Vec<Ep>,
    /// Whether there is any usable endpoint anywhere.
    pub any: bool,
    /// Addresses of endpoints on this node, usable or not.
    pub local_addresses: Vec<IpAddr>,
}

/// The better of two statements on one endpoint.
fn merge(a: EndpointRecord, b: EndpointRecord) -> EndpointRecord {
    let rank = |e: &EndpointRecord| (e.ready, e.serving, !e.terminating, e.hints);
    let better = if rank(&b) > rank(&a) { b } else { a };
    EndpointRecord { local: a.local || b.local, ..better }
}

/// Chooses for one port and family.
pub fn choose<'a>(
    model: &Model,
    slices: impl Iterator<Item = &'a SliceRecord>,
    port: &ServicePort,
    family: Family,
) -> Chosen {
    let mut all: Vec<(Ep, EndpointRecord)> = Vec::new();
    for slice in slices.filter(|s| s.family == family) {
        for slice_port in slice.ports.iter().filter(|p| p.name == port.name && p.protocol == port.protocol) {
            all.extend(slice.endpoints.iter().map(|e| (Ep { addr: e.addr, port: slice_port.port }, *e)));
        }
    }
    all.sort_by_key(|(ep, _)| *ep);
    all.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = merge(kept.1, later.1);
        }
        same
    });
    let pick = |keep: &dyn Fn(&EndpointRecord) -> bool| -> Vec<Ep> {
        all.iter().filter(|(_, e)| keep(e)).map(|(ep, _)| *ep).collect()
    };
    let topology = Topology::decide(model, all.iter().map(|(_, e)| e).filter(|e| e.ready));
    let going = |e: &EndpointRecord| e.serving && e.terminating;
    let mut cluster = pick(&|e| e.ready && topology.allows(model, e));
    if cluster.is_empty() {
        cluster = pick(&going);
    }
    let mut local = pick(&|e| e.local && e.ready);
    if local.is_empty() {
        local = pick(&|e| e.local && going(e));
    }
    let mut local_addresses: Vec<IpAddr> = all.iter().filter(|(_, e)| e.local).map(|(ep, _)| ep.addr).collect();
    local_addresses.dedup();
    let any = all.iter().any(|(_, e)| e.ready || going(e));
    Chosen { cluster, local, any, local_addresses }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    Everywhere,
    SameZone,
    SameNode,
}

impl Topology {
    fn decide<'a>(model: &Model, ready: impl Iterator<Item = &'a EndpointRecord> + Clone) -> Self {
        // Node and zone hints are looked up once for each distinct set of hints.
        let mut seen: BTreeMap<u32, [bool; 4]> = BTreeMap::new();
        for endpoint in ready {
            seen.entry(endpoint.hints).or_insert_with(|| {
                let Some(hints) = model.interner.hints(endpoint.hints) else { return [false; 4] };
                [
                    !hints.nodes.is_empty(),
                    Self::names_node(model, hints),
                    !hints.zones.is_empty(),
                    Self::names_zone(model, hints),
                ]
            });
        }
        let all = |i: usize| !seen.is_empty() && seen.values().all(|f| f[i]);
        let any = |i: usize| seen.values().any(|f| f[i]);
        if all(0) && any(1) {
            Self::SameNode
        } else if all(2) && any(3) {
            Self::SameZone
        } else {
            Self::Everywhere
        }
    }

    fn names_node(model: &Model, hints: &super::types::Hints) -> bool {
        hints.nodes.iter().any(|n| **n == *model.node_name)
    }

    fn names_zone(model: &Model, hints: &super::types::Hints) -> bool {
        model.node.zone.as_ref().is_some_and(|zone| hints.zones.contains(zone))
    }

    fn allows(self, model: &Model, endpoint: &EndpointRecord) -> bool {
        let hints = || model.interner.hints(endpoint.hints);
        match self {
            Self::Everywhere => true,
            Self::SameNode => hints().is_some_and(|h| Self::names_node(model, h)),
            Self::SameZone => hints().is_some_and(|h| Self::names_zone(model, h)),
        }
    }
}
