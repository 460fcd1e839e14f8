//! Who belongs to whom. Pure.
//!
//! Upstream counterpart: `graph_builder.go`. There an owner that was never seen is a "virtual node"; here it is simply not
//! known, and the shell asks the server.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::judge::Dependents;

/// An object's UID in 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(u128);

impl Uid {
    /// UUIDs are taken as numbers, anything else is hashed.
    pub fn new(text: &str) -> Self {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if let Some(number) = Some(&digits).filter(|d| d.len() == 32).and_then(|d| u128::from_str_radix(d, 16).ok()) {
            return Self(number);
        }
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, text).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Self(half(0) << 64 | half(1))
    }
}

impl std::fmt::Display for Uid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// How an object is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// It is not.
    #[default]
    No,
    /// It was deleted, nothing of ours holds it.
    Plain,
    /// It waits until its blocking dependents are gone.
    Foreground,
    /// It waits until its dependents no longer refer to it.
    Orphan,
}

/// Waits for dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Waits for dependents to be orphaned.
pub const ORPHAN: &str = "orphan";

/// How the object with this metadata is on its way out.
pub fn ending(meta: &ObjectMeta) -> Ending {
    if meta.deletion_timestamp.is_none() {
        return Ending::No;
    }
    let has = |name: &str| meta.finalizers.iter().flatten().any(|f| f == name);
    if has(FOREGROUND) {
        Ending::Foreground
    } else if has(ORPHAN) {
        Ending::Orphan
    } else {
        Ending::Plain
    }
}

/// Where an object is to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Index of its kind in the shell's table.
    pub kind: u16,
    /// Empty for cluster-scoped kinds.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// What is known of one object.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it is.
    pub place: Place,
    /// Whom it belongs to.
    pub owners: Box<[OwnerReference]>,
    /// Whether it is on its way out.
    pub ending: Ending,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, HashSet<Uid>>,
}

impl Graph {
    /// What is known of the object.
    pub fn node(&self, uid: Uid) -> Option<&Node> {
        self.nodes.get(&uid)
    }

    /// Objects that name it as an owner.
    pub fn dependents(&self, uid: Uid) -> impl Iterator<Item = (Uid, &Node)> {
        let set = self.dependents.get(&uid).into_iter().flatten();
        set.filter_map(|uid| self.nodes.get(uid).map(|node| (*uid, node)))
    }

    /// What its dependents do.
    pub fn dependents_state(&self, uid: Uid) -> Dependents {
        let mut state = Dependents::No;
        for (_, node) in self.dependents(uid) {
            if node.ending == Ending::Foreground {
                return Dependents::Waiting;
            }
            state = Dependents::Some;
        }
        state
    }

    /// Dependents that hold a foreground deletion of their owner up.
    pub fn blocking(&self, uid: Uid) -> Vec<Uid> {
        let blocks =
            |node: &Node| node.owners.iter().any(|o| Uid::new(&o.uid) == uid && o.block_owner_deletion == Some(true));
        self.dependents(uid).filter(|(_, node)| blocks(node)).map(|(uid, _)| uid).collect()
    }

    /// Whether an object waits, over others that wait, for itself.
    pub fn waits_for_itself(&self, uid: Uid) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![uid]);
        while let Some(one) = next.pop() {
            for dependent in self.blocking(one) {
                if dependent == uid {
                    return true;
                }
                if self.waiting(dependent).is_some() && seen.insert(dependent) {
                    next.push(dependent);
                }
            }
        }
        false
    }

    /// A new or changed object. Returns whom to look at.
    pub fn observe(&mut self, kind: u16, meta: &ObjectMeta) -> Vec<Uid> {
        let uid = Uid::new(meta.uid.as_deref().unwrap_or(""));
        let node = Node {
            place: Place {
                kind,
                namespace: meta.namespace.clone().unwrap_or_default().into(),
                name: meta.name.clone().unwrap_or_default().into(),
            },
            owners: meta.owner_references.clone().unwrap_or_default().into(),
            ending: ending(meta),
        };
        let before = self.nodes.insert(uid, node.clone());
        let mut look = Vec::new();
        let same_owners = before.as_ref().is_some_and(|b| b.owners == node.owners);
        if !same_owners {
            let old = before.iter().flat_map(|b| b.owners.iter());
            for owner in old {
                let owner = Uid::new(&owner.uid);
                self.unlink(owner, uid);
                // An owner that waits for its dependents may be free now.
                look.extend(self.waiting(owner));
            }
            for owner in &node.owners {
                let owner = Uid::new(&owner.uid);
                self.dependents.entry(owner).or_default().insert(uid);
                let waits = self.waiting(owner);
                if waits.is_some() || !self.nodes.contains_key(&owner) {
                    look.push(uid);
                }
            }
        }
        let ending_before = before.map(|b| b.ending).unwrap_or_default();
        if node.ending != ending_before && matches!(node.ending, Ending::Foreground | Ending::Orphan) {
            look.push(uid);
        }
        look.dedup();
        look
    }

    /// An object that is gone. Returns whom to look at.
    pub fn forget(&mut self, uid: Uid) -> Vec<Uid> {
        let Some(node) = self.nodes.remove(&uid) else {
            return Vec::new();
        };
        let mut look: Vec<Uid> = self.dependents.get(&uid).into_iter().flatten().copied().collect();
        for owner in &node.owners {
            let owner = Uid::new(&owner.uid);
            self.unlink(owner, uid);
            look.extend(self.waiting(owner));
        }
        look
    }

    /// Forgets all objects of a kind that a new list does not have.
    pub fn retain(&mut self, kind: u16, present: &HashSet<Uid>) -> Vec<Uid> {
        let of_kind = self.nodes.iter().filter(|(uid, node)| node.place.kind == kind && !present.contains(uid));
        let gone: Vec<Uid> = of_kind.map(|(uid, _)| *uid).collect();
        gone.into_iter().flat_map(|uid| self.forget(uid)).collect()
    }

    /// How many objects are known.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    fn waiting(&self, uid: Uid) -> Option<Uid> {
        self.nodes.get(&uid).filter(|n| n.ending == Ending::Foreground).map(|_| uid)
    }

    fn unlink(&mut self, owner: Uid, dependent: Uid) {
        if let Some(set) = self.dependents.get_mut(&owner) {
            set.remove(&dependent);
            if set.is_empty() {
                self.dependents.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(uid: &str, owners: &[(&str, bool)], finalizers: &[&str], deleted: bool) -> ObjectMeta {
        let owners: Vec<_> = owners
            .iter()
            .map(|(uid, block)| json!({"apiVersion": "v1", "kind": "K", "name": uid, "uid": uid, "blockOwnerDeletion": block}))
            .collect();
        let at = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({"name": uid, "uid": uid, "ownerReferences": owners, "finalizers": finalizers, "deletionTimestamp": at})).unwrap()
    }

    fn u(text: &str) -> Uid {
        Uid::new(text)
    }

    #[test]
    fn dependents_are_looked_at_when_their_owner_goes_or_was_never_seen() {
        let mut graph = Graph::default();
        assert_eq!(graph.observe(0, &meta("child", &[("parent", true)], &[], false)), [u("child")]);
        assert!(graph.observe(0, &meta("parent", &[], &[], false)).is_empty());
        assert!(graph.observe(0, &meta("child", &[("parent", true)], &[], false)).is_empty());
        assert_eq!(graph.forget(u("parent")), [u("child")]);
        graph.forget(u("child"));
        assert!(graph.dependents.is_empty() && graph.nodes.is_empty());
    }

    #[test]
    fn a_foreground_owner_is_looked_at_when_a_dependent_goes() {
        let mut graph = Graph::default();
        graph.observe(0, &meta("parent", &[], &[], false));
        graph.observe(0, &meta("a", &[("parent", true)], &[], false));
        graph.observe(0, &meta("b", &[("parent", false)], &[], false));
        assert_eq!(graph.observe(0, &meta("parent", &[], &[FOREGROUND], true)), [u("parent")]);
        assert_eq!(graph.blocking(u("parent")), [u("a")]);
        assert_eq!(graph.forget(u("a")), [u("parent")]);
        assert!(graph.blocking(u("parent")).is_empty());
        // A dependent that lets go of its owner counts as well.
        assert_eq!(graph.observe(0, &meta("b", &[], &[], false)), [u("parent")]);
    }

    #[test]
    fn circles_of_those_that_wait() {
        let mut graph = Graph::default();
        graph.observe(0, &meta("a", &[("c", true)], &[FOREGROUND], true));
        graph.observe(0, &meta("b", &[("a", true)], &[FOREGROUND], true));
        graph.observe(0, &meta("c", &[("b", true)], &[], false));
        graph.observe(0, &meta("self", &[("self", true)], &[FOREGROUND], true));
        graph.observe(0, &meta("beside", &[("b", true)], &[FOREGROUND], true));
        assert!(!graph.waits_for_itself(u("a")), "c can still go");
        assert!(graph.waits_for_itself(u("self")));
        graph.observe(0, &meta("c", &[("b", true)], &[FOREGROUND], true));
        assert!(graph.waits_for_itself(u("a")) && graph.waits_for_itself(u("b")) && graph.waits_for_itself(u("c")));
        assert!(!graph.waits_for_itself(u("beside")));
    }

    #[test]
    fn a_new_list_forgets_the_missing_of_its_kind_only() {
        let mut graph = Graph::default();
        graph.observe(1, &meta("a", &[], &[], false));
        graph.observe(1, &meta("b", &[], &[], false));
        graph.observe(2, &meta("c", &[("a", true)], &[], false));
        assert_eq!(graph.retain(1, &[u("b")].into()), [u("c")]);
        assert_eq!(graph.len(), 2);
    }

    #[test]
    fn uids() {
        assert_eq!(u("00000000-0000-0000-0000-0000000000ff"), Uid(255));
        assert_ne!(u("x"), u("y"));
    }
}
