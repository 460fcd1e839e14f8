//! What the kernel holds, as far as we know: the committed state.
//!
//! Kept small: 20 bytes for an endpoint of a list. Verdicts that this program never writes are
//! kept as [`V::Foreign`], so that they differ from everything wanted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::layout::{
    CHAIN_EXT_LOCAL, CHAIN_EXT_LOCAL_NODEPORT, CHAIN_REFUSE, CHAIN_SOURCE_RANGES, ListMap, Pick, VerdictMap,
    class_name, class_of,
};
use crate::model::FrontendKey;
use crate::model::types::Ep;
use crate::planner::{Class, Group};

/// A verdict of a map element, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum V {
    /// `goto pick-…-N`.
    Pick(Class, u16),
    /// `goto ext-local…`.
    ExtLocal,
    /// `goto source-ranges-check`.
    Guarded,
    /// `goto affinity-ID-CLASS`.
    Sticky(u64, Class),
    /// `goto refuse`.
    Refuse,
    /// `drop`.
    Drop,
    /// Something else.
    Foreign,
}

/// How names of chains and sets of service ports with affinity begin.
pub const AFFINITY: &str = "affinity-";

/// The chain that spreads a class of a service port with affinity.
#[must_use]
pub fn sticky_chain(id: u64, class: Class) -> String {
    format!("{AFFINITY}{id:016x}-{}", class_name(class))
}

/// The chain, and the set of clients, of one endpoint of such a service port.
#[must_use]
pub fn sticky_endpoint(id: u64, ep: &Ep) -> String {
    // nft 1.0.6 accepts letters, digits and `/\_.-` in names; a colon it does not.
    let addr = ep.addr.to_string().replace(':', "_");
    format!("{AFFINITY}{id:016x}-to-{addr}-{}", ep.port)
}

impl V {
    /// The chain a verdict goes to; none for `drop`.
    #[must_use]
    pub fn chain(self, node_port: bool) -> Option<String> {
        Some(match self {
            Self::Pick(class, count) => Pick { class, node_port, count }.name(),
            Self::ExtLocal if node_port => CHAIN_EXT_LOCAL_NODEPORT.to_owned(),
            Self::ExtLocal => CHAIN_EXT_LOCAL.to_owned(),
            Self::Guarded => CHAIN_SOURCE_RANGES.to_owned(),
            Self::Sticky(id, class) => sticky_chain(id, class),
            Self::Refuse => CHAIN_REFUSE.to_owned(),
            Self::Drop | Self::Foreign => return None,
        })
    }

    /// Reads a verdict's chain.
    #[must_use]
    pub fn of_chain(chain: &str, node_port: bool) -> Self {
        if let Some(pick) = Pick::parse(chain).filter(|p| p.node_port == node_port) {
            return Self::Pick(pick.class, pick.count);
        }
        let ext_local = if node_port { CHAIN_EXT_LOCAL_NODEPORT } else { CHAIN_EXT_LOCAL };
        if chain == ext_local {
            Self::ExtLocal
        } else if chain == CHAIN_REFUSE {
            Self::Refuse
        } else if chain == CHAIN_SOURCE_RANGES {
            Self::Guarded
        } else if let Some((id, class)) = parse_sticky_chain(chain) {
            Self::Sticky(id, class)
        } else {
            Self::Foreign
        }
    }
}

fn parse_sticky_chain(chain: &str) -> Option<(u64, Class)> {
    let (id, class) = chain.strip_prefix(AFFINITY)?.split_once('-')?;
    Some((u64::from_str_radix(id, 16).ok()?, class_of(class)?))
}

/// A list as the kernel holds it, by index; holes can only come from a foreign hand or a crash
/// between two transactions.
pub type List = Vec<Option<Ep>>;

/// Ranges of addresses as (first, last), disjoint.
pub type Sources = BTreeSet<(IpAddr, IpAddr)>;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Committed {
    /// Elements of the verdict maps.
    pub verdicts: HashMap<(VerdictMap, FrontendKey), V>,
    /// Elements of the endpoint maps.
    pub lists: HashMap<(ListMap, FrontendKey), List>,
    /// Ranges of sources, by the destination that they may reach.
    pub sources: HashMap<FrontendKey, Sources>,
    /// Pick chains that exist with their rules.
    pub picks: HashSet<Pick>,
    /// Affinity groups that exist.
    pub groups: BTreeMap<u64, Group>,
    /// Chains and sets of affinity groups found at start, whose owners are not known yet.
    pub stray_sticky_chains: BTreeSet<String>,
    /// The same for sets.
    pub stray_sticky_sets: BTreeSet<String>,
    /// Members of `cluster-ips`.
    pub cluster_ips: HashSet<IpAddr>,
    /// Members of `hairpin`.
    pub hairpin: HashSet<IpAddr>,
    /// Borders of the interval sets.
    pub ranges: HashMap<&'static str, BTreeSet<(Vec<u8>, bool)>>,
}

/// What must change in a list. Indexes of `set` are written (after deletion, when they held
/// something else) before the verdict changes; `delete` afterwards.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListChange {
    /// (index, whether another endpoint stands there now, endpoint).
    pub set: Vec<(u16, bool, Ep)>,
    /// Indexes to be deleted once no verdict leads there.
    pub delete: Vec<u16>,
}

/// The smallest change that brings a list to a set of endpoints: those that stay keep their index.
#[must_use]
pub fn diff_list(old: &[Option<Ep>], wanted: &[Ep]) -> ListChange {
    let mut missing: BTreeSet<Ep> = wanted.iter().copied().collect();
    let count = missing.len();
    let mut free = Vec::new();
    let mut change = ListChange::default();
    for (index, slot) in old.iter().enumerate().take(count) {
        match slot {
            Some(ep) if missing.remove(ep) => {}
            Some(_) => free.push((index as u16, true)),
            None => free.push((index as u16, false)),
        }
    }
    free.extend((old.len()..count).map(|index| (index as u16, false)));
    change.set.extend(free.into_iter().zip(missing).map(|((index, held), ep)| (index, held, ep)));
    change
        .delete
        .extend(old.iter().enumerate().skip(count).filter(|(_, slot)| slot.is_some()).map(|(index, _)| index as u16));
    change
}

/// Applies a change to a list.
pub fn apply_list(list: &mut List, change: &ListChange) {
    for (index, _, ep) in &change.set {
        let index = usize::from(*index);
        if list.len() <= index {
            list.resize(index + 1, None);
        }
        list[index] = Some(*ep);
    }
    for index in &change.delete {
        list[usize::from(*index)] = None;
    }
    while list.last() == Some(&None) {
        list.pop();
    }
    list.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ep(n: u8) -> Ep {
        Ep { addr: [10, 0, 0, n].into(), port: 80 }
    }

    proptest! {
        #[test]
        fn a_list_becomes_what_is_wanted_with_the_fewest_writes(
            old in proptest::collection::vec(proptest::option::of(0u8..12), 0..12),
            new in proptest::collection::btree_set(0u8..12, 0..12),
        ) {
            let old: List = old.into_iter().map(|o| o.map(ep)).collect();
            let wanted: Vec<Ep> = new.iter().map(|n| ep(*n)).collect();
            let change = diff_list(&old, &wanted);
            let mut list = old.clone();
            apply_list(&mut list, &change);
            let mut got: Vec<Ep> = list.iter().map(|s| s.expect("no hole")).collect();
            got.sort_unstable();
            prop_assert_eq!(&got, &wanted);
            let kept: BTreeSet<Ep> = old.iter().take(wanted.len()).flatten().copied().filter(|e| wanted.contains(e)).collect();
            prop_assert_eq!(change.set.len(), wanted.len() - kept.len());
            prop_assert!(diff_list(&list, &wanted) == ListChange::default());
        }
    }

    #[test]
    fn chain_names_read_back() {
        for v in [V::Pick(Class::Inside, 7), V::ExtLocal, V::Sticky(77, Class::Local), V::Refuse] {
            for node_port in [false, true] {
                assert_eq!(V::of_chain(&v.chain(node_port).unwrap(), node_port), v);
            }
        }
        assert_eq!(V::of_chain("pick-cluster-x", false), V::Foreign);
    }
}
