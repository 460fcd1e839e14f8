//! Gives each node its part of the cluster's pod ranges.
//!
//! Invariant: no two nodes share a part. Parts are handed out in order and come back when their node is gone; all nodes'
//! parts are known before the first is given out, because workers start after the first lists.
//!
//! Upstream counterpart: the range allocator of `node-ipam-controller`.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;

use crate::config::Config;
use crate::engine::events::Level;
use crate::engine::index::Change;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};

const COMPONENT: &str = "cidrAllocator";

/// The parts of one range.
#[derive(Debug)]
struct Pool {
    range: IpNet,
    mask: u8,
    taken: BTreeSet<u32>,
}

impl Pool {
    fn size(&self) -> u32 {
        1 << u32::from(self.mask - self.range.prefix_len()).min(31)
    }

    fn part(&self, number: u32) -> Option<IpNet> {
        let shift = u32::from(self.range.max_prefix_len() - self.mask);
        let address = match self.range.network() {
            IpAddr::V4(start) => {
                IpAddr::V4(Ipv4Addr::from_bits(start.to_bits() + number.checked_shl(shift).unwrap_or(0)))
            }
            IpAddr::V6(start) => {
                IpAddr::V6(Ipv6Addr::from_bits(start.to_bits() + u128::from(number).checked_shl(shift).unwrap_or(0)))
            }
        };
        IpNet::new(address, self.mask).ok()
    }

    /// The numbers of the parts that `net` touches.
    fn numbers(&self, net: &IpNet) -> Option<(u32, u32)> {
        if !(self.range.contains(net) || net.contains(&self.range)) {
            return None;
        }
        if net.contains(&self.range) {
            return Some((0, self.size() - 1));
        }
        let shift = u32::from(self.range.max_prefix_len() - self.mask);
        let number = |address: IpAddr| -> Option<u32> {
            let offset = match (address, self.range.network()) {
                (IpAddr::V4(a), IpAddr::V4(s)) => u128::from(a.to_bits() - s.to_bits()),
                (IpAddr::V6(a), IpAddr::V6(s)) => a.to_bits() - s.to_bits(),
                _ => return None,
            };
            u32::try_from(offset.checked_shr(shift).unwrap_or(0)).ok()
        };
        Some((number(net.network())?, number(net.broadcast())?))
    }

    fn take(&mut self) -> Option<IpNet> {
        let free = (0..self.size()).find(|n| !self.taken.contains(n))?;
        self.taken.insert(free);
        self.part(free)
    }

    fn mark(&mut self, net: &IpNet, taken: bool) {
        let Some((from, to)) = self.numbers(net) else { return };
        for number in from..=to {
            if taken {
                self.taken.insert(number);
            } else {
                self.taken.remove(&number);
            }
        }
    }
}

/// Who has which part.
#[derive(Debug)]
pub struct Ranges {
    pools: Vec<Pool>,
    reserved: Vec<IpNet>,
    held: HashMap<String, Vec<IpNet>>,
}

impl Ranges {
    /// All parts free but those that services use.
    pub fn new(config: &Config) -> Self {
        let pool = |range: &IpNet| Pool { range: range.trunc(), mask: config.node_mask(range), taken: BTreeSet::new() };
        let mut ranges = Self {
            pools: config.cluster_cidrs.iter().map(pool).collect(),
            reserved: config.service_cidrs.clone(),
            held: HashMap::new(),
        };
        ranges.reserve();
        ranges
    }

    fn reserve(&mut self) {
        for pool in &mut self.pools {
            for net in &self.reserved {
                pool.mark(net, true);
            }
        }
    }

    /// A node has these parts.
    pub fn occupy(&mut self, node: &str, nets: &[IpNet]) {
        if self.held.get(node).is_some_and(|held| held == nets) {
            return;
        }
        for net in nets {
            self.pools.iter_mut().for_each(|pool| pool.mark(net, true));
        }
        self.held.insert(node.to_owned(), nets.to_vec());
    }

    /// A node is gone.
    pub fn release(&mut self, node: &str) {
        for net in self.held.remove(node).unwrap_or_default() {
            let still_held = self.held.values().flatten().any(|other| *other == net);
            if !still_held {
                self.pools.iter_mut().for_each(|pool| pool.mark(&net, false));
            }
        }
        self.reserve();
    }

    /// Parts for a node without any: one of each range; `None` if a range is used up.
    pub fn assign(&mut self, node: &str) -> Option<Vec<IpNet>> {
        if let Some(held) = self.held.get(node) {
            return Some(held.clone());
        }
        let mut nets = Vec::new();
        for i in 0..self.pools.len() {
            match self.pools[i].take() {
                Some(net) => nets.push(net),
                None => {
                    for (pool, net) in self.pools.iter_mut().zip(&nets) {
                        pool.mark(net, false);
                    }
                    return None;
                }
            }
        }
        self.held.insert(node.to_owned(), nets.clone());
        Some(nets)
    }
}

fn parts_of(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.clone().unwrap_or_default();
    let many: Vec<IpNet> = spec.pod_cidrs.iter().flatten().filter_map(|c| c.parse().ok()).collect();
    if many.is_empty() { spec.pod_cidr.iter().filter_map(|c| c.parse().ok()).collect() } else { many }
}

/// The controller.
pub struct NodeIpam {
    caches: Arc<Caches>,
    nodes: Kind<Node>,
    events: Events,
    ranges: Arc<Mutex<Ranges>>,
}

impl NodeIpam {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events, config: &Config) -> Self {
        Self {
            nodes: Kind::new(caches.client.clone(), Arc::clone(&caches.nodes)),
            caches: Arc::clone(caches),
            events,
            ranges: Arc::new(Mutex::new(Ranges::new(config))),
        }
    }

    /// Makes changes of nodes fill `queue`, and keeps account of their parts.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let (target, ranges) = (Arc::clone(queue), Arc::clone(&self.ranges));
        self.caches.nodes.on_change(move |change| {
            let node = change.object().as_ref();
            let name = node.metadata.name.as_deref().unwrap_or("");
            let parts = parts_of(node);
            if matches!(change, Change::Deleted(_)) {
                ranges.lock().release(name);
            } else if parts.is_empty() {
                target.add(Key::of(node));
            } else {
                ranges.lock().occupy(name, &parts);
            }
        });
    }
}

impl Reconcile for NodeIpam {
    type Key = Key;
    const NAME: &'static str = "node-ipam-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(node) = self.caches.nodes.by_key(key).filter(|n| parts_of(n).is_empty()) else {
            return Ok(Outcome::Done);
        };
        let assigned = self.ranges.lock().assign(&key.name);
        let Some(parts) = assigned else {
            let message = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.events.about(node.as_ref(), COMPONENT, Level::Normal, "CIDRNotAvailable", message);
            return Ok(Outcome::After(std::time::Duration::from_secs(30)));
        };
        let mut wanted = node.as_ref().clone();
        let spec = wanted.spec.get_or_insert_default();
        spec.pod_cidr = parts.first().map(ToString::to_string);
        spec.pod_cidrs = Some(parts.iter().map(ToString::to_string).collect());
        match self.nodes.update(&node, &wanted).await {
            // The node's end releases the parts.
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            other => other.map(|_| Outcome::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(cluster: &str, service: &str) -> Ranges {
        Ranges::new(&Config {
            cluster_cidrs: cluster.split(',').map(|c| c.parse().unwrap()).collect(),
            service_cidrs: vec![service.parse().unwrap()],
            ..Config::default()
        })
    }

    fn text(parts: Option<Vec<IpNet>>) -> Vec<String> {
        parts.unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn parts_are_given_in_order_and_come_back() {
        let mut ranges = ranges("10.244.0.0/16,fd00::/56", "10.96.0.0/16");
        assert_eq!(text(ranges.assign("a")), ["10.244.0.0/24", "fd00::/64"]);
        assert_eq!(text(ranges.assign("a")), ["10.244.0.0/24", "fd00::/64"]);
        assert_eq!(text(ranges.assign("b")), ["10.244.1.0/24", "fd00:0:0:1::/64"]);
        ranges.release("a");
        assert_eq!(text(ranges.assign("c")), ["10.244.0.0/24", "fd00::/64"]);
    }

    #[test]
    fn parts_of_existing_nodes_and_of_services_are_left_out() {
        let mut ranges = ranges("10.0.0.0/22", "10.0.1.0/24");
        ranges.occupy("old", &["10.0.0.0/24".parse().unwrap()]);
        assert_eq!(text(ranges.assign("a")), ["10.0.2.0/24"]);
        assert_eq!(text(ranges.assign("b")), ["10.0.3.0/24"]);
        assert_eq!(ranges.assign("c"), None);
        ranges.release("old");
        assert_eq!(text(ranges.assign("c")), ["10.0.0.0/24"]);
    }

    proptest! {
        #[test]
        fn no_two_nodes_share_a_part(steps in proptest::collection::vec((0u8..12, any::<bool>()), 0..80)) {
            let mut ranges = ranges("10.0.0.0/21", "10.0.2.0/23");
            for (node, come) in steps {
                let name = node.to_string();
                if come { ranges.assign(&name); } else { ranges.release(&name); }
                let mut parts: Vec<_> = ranges.held.values().flatten().copied().collect();
                let count = parts.len();
                parts.sort();
                parts.dedup();
                prop_assert_eq!(parts.len(), count);
                prop_assert!(count <= 6);
            }
        }
    }
}
