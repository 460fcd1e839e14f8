//! Sets of field paths: a tree whose nodes may be members themselves.
//!
//! Invariant: no child set is empty. A member does not imply its parents: `.spec` need not be in a set with `.spec.replicas`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Path, PathElement};

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub(crate) members: BTreeSet<PathElement>,
    pub(crate) children: BTreeMap<PathElement, Set>,
}

impl Set {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { members: BTreeSet::new(), children: BTreeMap::new() }
    }

    /// A set of paths of field names, `["metadata", "name"]`.
    #[must_use]
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(&Path::fields(path).0);
        }
        set
    }

    /// Adds a path, not its parents. The empty path, the whole object, is owned by nobody and not added.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Whether the path is a member.
    #[must_use]
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self.children.get(first).is_some_and(|child| child.has(rest)),
        }
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len() + self.children.values().map(Self::len).sum::<usize>()
    }

    /// Members of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.extend(other);
        out
    }

    /// Adds all members of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            self.children.entry(element.clone()).or_default().extend(child);
        }
    }

    /// Members of both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: self
                .children
                .iter()
                .filter_map(|(element, child)| other.children.get(element).map(|o| (element, child.intersection(o))))
                .filter(|(_, child)| !child.is_empty())
                .map(|(element, child)| (element.clone(), child))
                .collect(),
        }
    }

    /// Members that `other` does not have. A member of `other` takes away neither its parents nor what is below it.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.minus(other, false)
    }

    /// Members that `other` does not have, nor any parent of theirs.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.minus(other, true)
    }

    fn minus(&self, other: &Self, recursive: bool) -> Self {
        let mut out = Self { members: self.members.difference(&other.members).cloned().collect(), ..Self::new() };
        for (element, child) in &self.children {
            if recursive && other.members.contains(element) {
                continue;
            }
            let rest = match other.children.get(element) {
                Some(o) => child.minus(o, recursive),
                None => child.clone(),
            };
            if !rest.is_empty() {
                out.children.insert(element.clone(), rest);
            }
        }
        out
    }

    /// What is below one element, without it.
    #[must_use]
    pub fn with_prefix(&self, element: &PathElement) -> Option<&Self> {
        self.children.get(element).filter(|child| !child.is_empty())
    }

    /// Members that have nothing below them.
    #[must_use]
    pub fn leaves(&self) -> Self {
        Self {
            members: self.members.iter().filter(|m| !self.children.contains_key(*m)).cloned().collect(),
            children: self.children.iter().map(|(element, child)| (element.clone(), child.leaves())).collect(),
        }
    }

    /// Members for which `keep` holds.
    #[must_use]
    pub fn filter(&self, keep: &dyn Fn(&[PathElement]) -> bool) -> Self {
        let mut out = Self::new();
        self.for_each(&mut |path| {
            if keep(path) {
                out.insert(path);
            }
        });
        out
    }

    /// Calls `visit` for each member, those of a node before what is below them.
    pub fn for_each(&self, visit: &mut dyn FnMut(&[PathElement])) {
        self.walk(&mut Vec::new(), visit);
    }

    fn walk(&self, path: &mut Vec<PathElement>, visit: &mut dyn FnMut(&[PathElement])) {
        for member in &self.members {
            path.push(member.clone());
            visit(path);
            path.pop();
        }
        for (element, child) in &self.children {
            path.push(element.clone());
            child.walk(path, visit);
            path.pop();
        }
    }

    /// All members.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        let mut out = Vec::with_capacity(self.len());
        self.for_each(&mut |path| out.push(Path(path.to_vec())));
        out
    }
}

impl FromIterator<Path> for Set {
    fn from_iter<I: IntoIterator<Item = Path>>(paths: I) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(&path.0);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(paths: &[&str]) -> Set {
        paths.iter().map(|p| Path::fields(&p.split('.').collect::<Vec<_>>())).collect()
    }

    #[test]
    fn a_difference_takes_neither_parents_nor_children() {
        let all = set(&["a", "a.b", "a.b.c", "d"]);
        assert_eq!(all.difference(&set(&["a.b"])), set(&["a", "a.b.c", "d"]));
        assert_eq!(all.difference(&set(&["a"])), set(&["a.b", "a.b.c", "d"]));
        assert_eq!(set(&["a.b"]).difference(&set(&["a.b"])), Set::new());
    }

    #[test]
    fn a_recursive_difference_takes_what_is_below() {
        let all = set(&["a", "a.b", "a.b.c", "d"]);
        assert_eq!(all.recursive_difference(&set(&["a.b"])), set(&["a", "d"]));
        assert_eq!(all.recursive_difference(&set(&["a", "a.b.c"])), set(&["d"]));
        assert_eq!(all.recursive_difference(&set(&["d.e"])), all);
    }

    #[test]
    fn leaves_have_nothing_below() {
        assert_eq!(set(&["a", "a.b", "c", "d.e"]).leaves(), set(&["a.b", "c", "d.e"]));
    }

    #[test]
    fn the_whole_object_is_owned_by_nobody() {
        let mut s = Set::new();
        s.insert(&[]);
        assert!(s.is_empty() && !s.has(&[]));
    }

    #[test]
    fn membership_is_of_the_path_alone() {
        let s = set(&["a.b"]);
        assert!(s.has(&Path::fields(&["a", "b"]).0));
        assert!(!s.has(&Path::fields(&["a"]).0));
        assert!(s.with_prefix(&PathElement::field("a")).is_some_and(|sub| *sub == set(&["b"])));
        assert_eq!(s.filter(&|path| path.len() == 1), Set::new());
        assert_eq!(s.union(&set(&["a"])).len(), 2);
    }
}
