//! From per-Service plans to changes of the whole: who owns a frontend that several Services
//! claim, which addresses are still in use, which affinity groups exist.
//!
//! Pure. Invariant: the sum of all changes handed out equals the changes of a fresh planner fed
//! with the same plans in any order. Where two Services claim one frontend (the same external IP
//! and port, a node port given twice), the one whose name sorts first has it; the other gets it
//! when the first lets go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::types::{Ep, Family, Name, Protocol};
use crate::model::{Affinity, Frontend, FrontendKey, NoLocal, ServicePlan, Target};

/// Which of a target's endpoint lists, and with which masquerading, a packet goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Cluster class: masqueraded if the source is not local.
    Cluster,
    /// ext-cluster class: always masqueraded.
    External,
    /// ext-local class from inside: all endpoints, no masquerade here.
    Inside,
    /// ext-local class from outside: this node's endpoints, source kept.
    Local,
}

/// Endpoint lists of a service port with affinity, by class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Protocol of the service port.
    pub protocol: Protocol,
    /// Time to live of a client's stickiness, in seconds.
    pub seconds: u32,
    /// Endpoints by class.
    pub lists: BTreeMap<Class, Vec<Ep>>,
}

/// What a frontend shall do, as the backend sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The decision.
    pub target: Target,
    /// The affinity group that chooses instead of the target's lists.
    pub affinity: Option<u64>,
    /// From where it may be reached; none for everywhere.
    pub sources: Vec<IpNet>,
}

/// Changes to be programmed. `None` as a value means: must not exist.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Frontends.
    pub frontends: BTreeMap<FrontendKey, Option<Wanted>>,
    /// Affinity groups, by family and number.
    pub groups: BTreeMap<(Family, u64), Option<Group>>,
    /// Cluster addresses.
    pub cluster_ips: BTreeMap<IpAddr, bool>,
    /// Endpoint addresses on this node.
    pub hairpin: BTreeMap<IpAddr, bool>,
    /// Whether this is everything: what is not named must not exist.
    pub full: bool,
}

impl Changes {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.full
            && self.frontends.is_empty()
            && self.groups.is_empty()
            && self.cluster_ips.is_empty()
            && self.hairpin.is_empty()
    }
}

#[derive(Debug, Default)]
struct Owned {
    frontends: Vec<FrontendKey>,
    groups: Vec<(Family, u64)>,
    cluster_ips: Vec<IpAddr>,
    hairpin: Vec<IpAddr>,
    no_local: NoLocal,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Planner {
    owned: HashMap<Name, Owned>,
    owners: HashMap<FrontendKey, Name>,
    /// Claims of Services that do not own the frontend.
    waiting: BTreeMap<FrontendKey, BTreeSet<Name>>,
    cluster_ips: HashMap<IpAddr, u32>,
    hairpin: HashMap<IpAddr, u32>,
    no_local: NoLocal,
}

fn recount(counts: &mut HashMap<IpAddr, u32>, old: &[IpAddr], new: &[IpAddr], changes: &mut BTreeMap<IpAddr, bool>) {
    for ip in new {
        let count = counts.entry(*ip).or_default();
        *count += 1;
        if *count == 1 {
            changes.insert(*ip, true);
        }
    }
    for ip in old {
        if let Some(count) = counts.get_mut(ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(ip);
                changes.insert(*ip, false);
            }
        }
    }
}

impl Planner {
    /// An empty planner.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of frontends that are programmed.
    #[must_use]
    pub fn frontends(&self) -> usize {
        self.owners.len()
    }

    /// Service ports without endpoints here, over all Services.
    #[must_use]
    pub fn no_local(&self) -> NoLocal {
        self.no_local
    }

    /// Takes the new plan of a Service and adds what follows to `changes`. Returns Services whose
    /// waiting claims may now succeed: the caller plans them again.
    pub fn update(&mut self, name: &Name, plan: ServicePlan, changes: &mut Changes) -> Vec<Name> {
        let old = self.owned.remove(name).unwrap_or_default();
        recount(&mut self.cluster_ips, &old.cluster_ips, &plan.cluster_ips, &mut changes.cluster_ips);
        recount(&mut self.hairpin, &old.hairpin, &plan.hairpin, &mut changes.hairpin);
        self.no_local.internal += plan.no_local.internal;
        self.no_local.internal -= old.no_local.internal;
        self.no_local.external += plan.no_local.external;
        self.no_local.external -= old.no_local.external;
        let mut again = Vec::new();
        let mut groups: BTreeMap<(Family, u64), Group> = BTreeMap::new();
        let mut frontends = Vec::with_capacity(plan.frontends.len());
        let wanted: BTreeSet<FrontendKey> = plan.frontends.iter().map(|f| f.key).collect();
        for key in old.frontends.iter().filter(|k| !wanted.contains(k)) {
            self.owners.remove(key);
            changes.frontends.insert(*key, None);
            if let Some(next) = self.waiting.get(key).and_then(BTreeSet::first) {
                again.push(next.clone());
            }
        }
        let owners = &self.owners;
        self.waiting.retain(|key, names| {
            if !wanted.contains(key) && names.remove(name) && !owners.contains_key(key) {
                // It was told that the frontend is free, and does not want it: the next one is.
                again.extend(names.first().cloned());
            }
            !names.is_empty()
        });
        for frontend in plan.frontends {
            let key = frontend.key;
            if !self.claim(name, key, &mut again) {
                continue;
            }
            frontends.push(key);
            if let Some(affinity) = frontend.affinity {
                collect(&mut groups, affinity, &frontend);
            }
            let affinity = frontend.affinity.map(|a| a.id);
            let wanted = Wanted { target: frontend.target, affinity, sources: frontend.sources };
            changes.frontends.insert(key, Some(wanted));
        }
        frontends.sort_unstable();
        frontends.dedup();
        for id in old.groups.iter().filter(|id| !groups.contains_key(id)) {
            changes.groups.insert(*id, None);
        }
        let owned = Owned {
            frontends,
            groups: groups.keys().copied().collect(),
            cluster_ips: plan.cluster_ips,
            hairpin: plan.hairpin,
            no_local: plan.no_local,
        };
        changes.groups.extend(groups.into_iter().map(|(id, group)| (id, Some(group))));
        let counted = owned.no_local != NoLocal::default();
        if counted || !(owned.frontends.is_empty() && owned.cluster_ips.is_empty() && owned.hairpin.is_empty()) {
            self.owned.insert(name.clone(), owned);
        }
        again
    }

    /// Whether `name` has the frontend now. A later name that had it is told to plan again.
    fn claim(&mut self, name: &Name, key: FrontendKey, again: &mut Vec<Name>) -> bool {
        match self.owners.get(&key) {
            Some(owner) if owner < name => {
                self.waiting.entry(key).or_default().insert(name.clone());
                return false;
            }
            Some(owner) if owner > name => {
                self.waiting.entry(key).or_default().insert(owner.clone());
                if let Some(owned) = self.owned.get_mut(owner) {
                    owned.frontends.retain(|k| *k != key);
                }
                again.push(owner.clone());
            }
            Some(_) | None => {}
        }
        if let Some(names) = self.waiting.get_mut(&key) {
            // An earlier name may be waiting while the frontend is between owners.
            if names.first().is_some_and(|first| first < name) {
                names.insert(name.clone());
                return false;
            }
            names.remove(name);
            if names.is_empty() {
                self.waiting.remove(&key);
            }
        }
        self.owners.insert(key, name.clone());
        true
    }
}

fn collect(groups: &mut BTreeMap<(Family, u64), Group>, affinity: Affinity, frontend: &Frontend) {
    let group = groups.entry((frontend.key.family(), affinity.id)).or_insert_with(|| Group {
        protocol: frontend.key.protocol,
        seconds: affinity.seconds,
        lists: BTreeMap::new(),
    });
    let mut add = |class, list: &Vec<Ep>| {
        if !list.is_empty() {
            group.lists.insert(class, list.clone());
        }
    };
    match &frontend.target {
        Target::Reject | Target::Drop => {}
        Target::Cluster(list) => add(Class::Cluster, list),
        Target::External(list) => add(Class::External, list),
        Target::ExternalLocal { all, local } => {
            add(Class::Inside, all);
            add(Class::Local, local);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(addrs: &[u8]) -> ServicePlan {
        let frontend = |n: &u8| Frontend {
            key: FrontendKey { addr: [203, 0, 113, *n].into(), port: 80, protocol: Protocol::Tcp },
            target: Target::Reject,
            affinity: None,
            sources: Vec::new(),
        };
        ServicePlan { frontends: addrs.iter().map(frontend).collect(), ..ServicePlan::default() }
    }

    /// Feeds plans, replanning as asked, and gives the owners by address.
    fn feed(
        planner: &mut Planner,
        current: &mut BTreeMap<Name, Vec<u8>>,
        name: &str,
        addrs: &[u8],
    ) -> BTreeMap<u8, String> {
        let name: Name = name.into();
        current.insert(name.clone(), addrs.to_vec());
        let mut queue = vec![name];
        while let Some(name) = queue.pop() {
            let plan = plan(current.get(&name).map_or(&[][..], Vec::as_slice));
            queue.extend(planner.update(&name, plan, &mut Changes::default()));
        }
        let last = |key: &FrontendKey| match key.addr {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(_) => 0,
        };
        planner.owners.iter().map(|(key, owner)| (last(key), owner.to_string())).collect()
    }

    #[test]
    fn the_first_name_has_a_contested_frontend_whatever_the_order() {
        for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["b", "a", "c"]] {
            let (mut planner, mut current) = (Planner::new(), BTreeMap::new());
            for name in order {
                feed(&mut planner, &mut current, name, &[1]);
            }
            let owner = |o: BTreeMap<u8, String>| o.get(&1).cloned();
            assert_eq!(owner(feed(&mut planner, &mut current, "c", &[1, 2])).as_deref(), Some("a"));
            assert_eq!(owner(feed(&mut planner, &mut current, "a", &[3])).as_deref(), Some("b"));
            assert_eq!(owner(feed(&mut planner, &mut current, "b", &[])).as_deref(), Some("c"));
            assert_eq!(owner(feed(&mut planner, &mut current, "a", &[1])).as_deref(), Some("a"));
            feed(&mut planner, &mut current, "a", &[]);
            assert_eq!(owner(feed(&mut planner, &mut current, "c", &[])), None);
            assert!(planner.waiting.is_empty());
        }
    }
}
