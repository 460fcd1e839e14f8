//! Masquerade of what pods send out of the cluster: whoever is outside does not know the way back to a pod.
//!
//! One small table for each family, written whole in one transaction, which leaves connections alone:
//!
//! ```text
//! table ip keelson-egress {
//!     set pods  { type ipv4_addr; flags interval; elements = { this node's pod ranges } }
//!     set known { type ipv4_addr; flags interval; elements = { every node's pod ranges and addresses, multicast } }
//!     chain postrouting { type nat hook postrouting priority srcnat; ip saddr @pods ip daddr != @known masquerade fully-random }
//! }
//! ```
//!
//! Nodes have routes to each other's pods, so between pods and nodes the source stays what it is. Upstream counterpart:
//! `ipMasq` of the bridge plugin and `ip-masq-agent`, which both know less of the cluster.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use keelson_netfilter::nft::{
    Base, BaseChain, Batch, ElementData, Expr, Family, Field, Hook, KernelNft, Monitor, Nft, NftError, Reg, SetDecl,
    borders,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::routes::{NodeNet, Own, Wanted};

/// The table in each family.
pub const TABLE: &str = "keelson-egress";
const PODS: &str = "pods";
const KNOWN: &str = "known";
const CHAIN: &str = "postrouting";
/// `srcnat` in nft's words; marks of the service dataplane and host ports are decided before or are no business of this table.
const PRIORITY: i32 = 100;
/// Offsets and lengths of the addresses in the headers.
const V4: (u32, u32, u32) = (12, 16, 4);
const V6: (u32, u32, u32) = (8, 24, 16);
/// Pause before something that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Somebody who fights for the table must not keep this node busy.
const SETTLE: Duration = Duration::from_millis(200);

/// What the tables say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sources: this node's pods.
    pub pods: Vec<IpNet>,
    /// Destinations that know the way back.
    pub known: Vec<IpNet>,
}

impl Plan {
    /// The plan for these nodes: those that get a route have one back.
    #[must_use]
    pub fn of(nodes: &BTreeMap<String, NodeNet>, own: &Own, wanted: &Wanted) -> Self {
        let reached = |name: &String| *name == own.name || wanted.routes.values().any(|(_, node)| node == name);
        let addresses = nodes.iter().filter(|(name, _)| reached(name)).flat_map(|(_, node)| &node.addresses);
        let mut known: Vec<IpNet> = addresses.chain(&own.addresses).copied().map(IpNet::from).collect();
        known.extend(wanted.routes.keys().chain(&own.ranges));
        known.sort_unstable();
        known.dedup();
        Self { pods: own.ranges.clone(), known }
    }
}

/// Keeps the tables as the plan says until `stop`; before the first plan nothing is touched. Opens its sockets in the network
/// namespace of the calling thread.
pub async fn run(mut plan: watch::Receiver<Option<Plan>>, stop: CancellationToken) {
    let mut failing = false;
    while !stop.is_cancelled() {
        let error = match keep(&mut plan, &stop, &mut failing).await {
            Ok(()) => return,
            Err(error) => error,
        };
        if !std::mem::replace(&mut failing, true) {
            warn!(
                "pods may not reach what is outside of the cluster, their addresses are not masqueraded: {error}; trying again"
            );
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn keep(
    plan: &mut watch::Receiver<Option<Plan>>,
    stop: &CancellationToken,
    failing: &mut bool,
) -> Result<(), NftError> {
    let mut nft = KernelNft::open()?;
    let mut foreign = Monitor::open(TABLE, vec![nft.port()])?;
    let mut written = None;
    loop {
        let now = plan.borrow_and_update().clone();
        if let Some(now) = now.filter(|now| written.as_ref() != Some(now)) {
            write(&mut nft, &now)?;
            info!(pods = ?now.pods, known = now.known.len(), "what pods send out of the cluster is masqueraded");
            *failing = false;
            written = Some(now);
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = plan.changed() => if changed.is_err() { return Ok(()) },
            change = foreign.next() => {
                change?;
                tokio::time::sleep(SETTLE).await;
                written = None;
            }
        }
    }
}

/// Brings both families to the plan.
///
/// # Errors
/// See [`NftError`].
pub fn write(nft: &mut impl Nft, plan: &Plan) -> Result<(), NftError> {
    for family in [Family::Ipv4, Family::Ipv6] {
        if let Some(mut batch) = transaction(family, plan) {
            nft.commit(&mut batch)?;
        } else {
            remove(nft, family)?;
        }
    }
    Ok(())
}

fn remove(nft: &mut impl Nft, family: Family) -> Result<(), NftError> {
    if nft.names(family, TABLE)?.is_none() {
        return Ok(());
    }
    let mut batch = Batch::new(family, TABLE);
    batch.delete_table();
    nft.commit(&mut batch)
}

/// The family's table anew; none when the node has no pods of that family.
fn transaction(family: Family, plan: &Plan) -> Option<Batch> {
    let pods = borders(&plan.pods, family);
    if pods.is_empty() {
        return None;
    }
    let (multicast, field, (source, destination, len)) = match family {
        Family::Ipv4 => (IpNet::new_assert(IpAddr::from([224, 0, 0, 0]), 4), Field::Ipv4, V4),
        Family::Ipv6 => (IpNet::new_assert(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8), Field::Ipv6, V6),
    };
    let known: Vec<IpNet> = plan.known.iter().copied().chain([multicast]).collect();
    let mut batch = Batch::new(family, TABLE);
    // Made, so that it can be removed, so that it is made anew: the idiom for "replace" within a transaction.
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    for (name, ends) in [(PODS, pods), (KNOWN, borders(&known, family))] {
        batch.add_set(&SetDecl::set(name, &[field]).intervals());
        for (key, end) in ends {
            batch.add_element(name, &key, if end { ElementData::IntervalEnd } else { ElementData::None });
        }
    }
    batch.add_chain(CHAIN, Some(BaseChain { kind: "nat", hook: Hook::Postrouting, priority: PRIORITY }));
    let load = |offset| Expr::Payload { base: Base::Network, offset, len, into: Reg(0) };
    batch.add_rule(
        CHAIN,
        &[
            load(source),
            Expr::Lookup { set: PODS.into(), key: Reg(0), invert: false },
            load(destination),
            Expr::Lookup { set: KNOWN.into(), key: Reg(0), invert: true },
            Expr::Masquerade,
        ],
    );
    Some(batch)
}

#[cfg(test)]
mod tests {
    use keelson_netfilter::nft::FakeNft;

    use super::*;
    use crate::network::routes;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn node(ranges: &[&str], address: &str) -> NodeNet {
        NodeNet { ranges: nets(ranges), addresses: vec![address.parse().unwrap()] }
    }

    fn own() -> Own {
        Own { name: "a".into(), ranges: nets(&["10.244.0.0/24"]), addresses: vec!["192.0.2.1".parse().unwrap()] }
    }

    #[test]
    fn nodes_with_a_route_know_the_way_back_and_no_others() {
        let nodes = BTreeMap::from([
            ("a".to_owned(), node(&["10.244.0.0/24"], "192.0.2.1")),
            ("b".to_owned(), node(&["10.244.1.0/24"], "192.0.2.2")),
            // Overlaps ours: it gets no route.
            ("c".to_owned(), node(&["10.244.0.0/16"], "192.0.2.3")),
            ("no-range-yet".to_owned(), node(&[], "192.0.2.4")),
        ]);
        let plan = Plan::of(&nodes, &own(), &routes::wanted(&nodes, &own()));
        assert_eq!(plan.pods, nets(&["10.244.0.0/24"]));
        assert_eq!(plan.known, nets(&["10.244.0.0/24", "10.244.1.0/24", "192.0.2.1/32", "192.0.2.2/32"]));
    }

    #[test]
    fn the_table_goes_with_the_last_range_of_its_family() {
        let mut nft = FakeNft::default();
        let both = Plan { pods: nets(&["10.244.0.0/24", "fd00::/64"]), known: Vec::new() };
        write(&mut nft, &both).unwrap();
        assert!(nft.table(Family::Ipv6, TABLE).is_some());
        let one = Plan { pods: nets(&["10.244.0.0/24"]), known: Vec::new() };
        write(&mut nft, &one).unwrap();
        assert!(nft.table(Family::Ipv4, TABLE).is_some());
        assert!(nft.table(Family::Ipv6, TABLE).is_none());
    }
}
