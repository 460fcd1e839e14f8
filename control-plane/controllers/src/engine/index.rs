//! The state behind a cache: objects by namespace and name, with read-your-own-writes.
//!
//! What for: a watch lags behind the writes of its own process. A controller that reads the lagging cache repeats
//! its last decision (a second Pod, a second slice). Upstream guards each controller with "expectations"; here the
//! cache itself takes the answer of each write and then refuses to go back in time.
//!
//! Invariants:
//! - An object never goes to a lower resource version (they are comparable integers, KEP-5504).
//! - An answer that the watch has already passed is ignored: its object may be deleted since.
//! - An object this process saw deleted does not come back by an older watch event.
//! - A new list replaces everything but what was written or deleted after that list began.
//!
//! Upstream counterpart: client-go's `ThreadSafeStore` plus `ControllerExpectations`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kube::Resource;

/// What happened to one object.
#[derive(Debug, Clone)]
pub enum Change<K> {
    /// It was not there before.
    Added(Arc<K>),
    /// It was there, with the same UID.
    Updated {
        /// Before.
        old: Arc<K>,
        /// After.
        new: Arc<K>,
    },
    /// It is gone; the last state that is known.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The newest state that the change carries.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(object) | Self::Deleted(object) => object,
            Self::Updated { new, .. } => new,
        }
    }

    /// The state before, if there was one and it still matters.
    pub fn old(&self) -> Option<&Arc<K>> {
        match self {
            Self::Updated { old, .. } => Some(old),
            Self::Added(_) | Self::Deleted(_) => None,
        }
    }
}

/// A write of this process that the watch has not shown yet.
#[derive(Debug, Clone, Copy)]
struct Unconfirmed {
    version: u64,
    epoch: u64,
}

/// Objects of one kind by namespace (empty for cluster-scoped kinds) and name.
#[derive(Debug)]
pub struct Index<K> {
    objects: HashMap<String, HashMap<String, Arc<K>>>,
    /// Highest version that the watch has shown.
    seen: u64,
    /// Counts lists; a write remembers the list that was current.
    epoch: u64,
    written: HashMap<String, Unconfirmed>,
    removed: HashMap<String, u64>,
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { objects: HashMap::new(), seen: 0, epoch: 0, written: HashMap::new(), removed: HashMap::new() }
    }
}

fn version<K: Resource>(object: &K) -> u64 {
    let text = object.meta().resource_version.as_deref();
    text.and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or("")
}

/// The same state of the same object.
fn is_same<K: Resource>(a: &K, b: &K) -> bool {
    version(a) != 0 && version(a) == version(b) && uid(a) == uid(b)
}

fn place<K: Resource>(object: &K) -> (&str, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
}

impl<K: Resource> Index<K> {
    /// The object, if it is known.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.objects.get(namespace)?.get(name)
    }

    /// All objects of one namespace.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.objects.get(namespace).into_iter().flat_map(HashMap::values)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values().flat_map(HashMap::values)
    }

    /// An added or modified object, as the watch shows it.
    pub fn apply(&mut self, object: K) -> Vec<Change<K>> {
        let version = version(&object);
        self.seen = self.seen.max(version);
        if self.removed.contains_key(uid(&object)) {
            return Vec::new();
        }
        if self.written.get(uid(&object)).is_some_and(|w| w.version <= version) {
            self.written.remove(uid(&object));
        }
        self.put(object, version)
    }

    /// A deleted object, as the watch shows it.
    pub fn delete(&mut self, object: &K) -> Vec<Change<K>> {
        self.seen = self.seen.max(version(object));
        self.removed.remove(uid(object));
        self.written.remove(uid(object));
        self.take(object)
    }

    /// A list is about to be asked for: what it will show includes every write that has returned by now.
    pub fn begin_list(&mut self) {
        self.epoch += 1;
    }

    /// The list that began with [`Self::begin_list`] is complete.
    ///
    /// What it shows is true even if it is older than what was known: a server whose store was restored from a backup
    /// counts from where the backup was made.
    pub fn replace(&mut self, list: Vec<K>) -> Vec<Change<K>> {
        let epoch = self.epoch;
        let mut changes = Vec::new();
        let mut present: HashSet<String> = HashSet::with_capacity(list.len());
        let newest = list.iter().map(version).max().unwrap_or(0);
        let mut went_back = false;
        for object in list {
            present.insert(uid(&object).to_owned());
            if self.is_newer_than_list(&object) {
                continue;
            }
            let (namespace, name) = place(&object);
            went_back |= self.get(namespace, name).is_some_and(|known| version(known.as_ref()) > version(&object));
            changes.extend(self.store(object));
        }
        let gone: Vec<Arc<K>> = self
            .iter()
            .filter(|o| !present.contains(uid(o.as_ref())))
            .filter(|o| self.written.get(uid(o.as_ref())).is_none_or(|w| w.epoch < epoch))
            .cloned()
            .collect();
        for object in gone {
            changes.extend(self.take(&object));
        }
        self.written.retain(|_, written| written.epoch == epoch);
        self.removed.retain(|_, removed_epoch| *removed_epoch == epoch);
        self.seen = if went_back { newest } else { self.seen.max(newest) };
        changes
    }

    /// The object was written or deleted here after the list began.
    fn is_newer_than_list(&self, listed: &K) -> bool {
        let written = self.written.get(uid(listed));
        let is_newer = written.is_some_and(|w| w.epoch == self.epoch && w.version >= version(listed));
        is_newer || self.removed.get(uid(listed)) == Some(&self.epoch)
    }

    /// The server's answer to a create, update or patch of this process.
    pub fn written(&mut self, object: K) -> Vec<Change<K>> {
        let version = version(&object);
        if version == 0 || version <= self.seen || self.removed.contains_key(uid(&object)) {
            return Vec::new();
        }
        let epoch = self.epoch;
        let uid = uid(&object).to_owned();
        let changes = self.put(object, version);
        if !changes.is_empty() {
            self.written.insert(uid, Unconfirmed { version, epoch });
        }
        changes
    }

    /// This process deleted the object and the server answered that it is gone.
    pub fn removed(&mut self, namespace: &str, name: &str, gone: &str) -> Vec<Change<K>> {
        let Some(object) = self.get(namespace, name).filter(|o| uid(o.as_ref()) == gone).cloned() else {
            return Vec::new();
        };
        self.written.remove(gone);
        self.removed.insert(gone.to_owned(), self.epoch);
        self.take(&object)
    }

    /// Takes the object in unless a newer state is known.
    fn put(&mut self, object: K, version: u64) -> Vec<Change<K>> {
        let (namespace, name) = place(&object);
        let known = self.get(namespace, name).map(|current| self::version(current.as_ref()));
        if version != 0 && known.is_some_and(|known| known >= version) {
            return Vec::new();
        }
        self.store(object)
    }

    fn store(&mut self, object: K) -> Vec<Change<K>> {
        let (namespace, name) = place(&object);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let new = Arc::new(object);
        match self.objects.entry(namespace).or_default().insert(name, Arc::clone(&new)) {
            None => vec![Change::Added(new)],
            Some(old) if is_same(old.as_ref(), new.as_ref()) => Vec::new(),
            Some(old) if uid(old.as_ref()) == uid(new.as_ref()) => vec![Change::Updated { old, new }],
            Some(old) => vec![Change::Deleted(old), Change::Added(new)],
        }
    }

    fn take(&mut self, object: &K) -> Vec<Change<K>> {
        let (namespace, name) = place(object);
        let Some(names) = self.objects.get_mut(namespace) else {
            return Vec::new();
        };
        if names.get(name).is_none_or(|known| uid(known.as_ref()) != uid(object)) {
            return Vec::new();
        }
        let known = names.remove(name);
        if names.is_empty() {
            self.objects.remove(namespace);
        }
        known.map(Change::Deleted).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::prelude::*;

    fn object(name: &str, uid: &str, version: u64) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("ns".to_owned());
        map.metadata.name = Some(name.to_owned());
        map.metadata.uid = Some(uid.to_owned());
        map.metadata.resource_version = Some(version.to_string());
        map
    }

    fn names(index: &Index<ConfigMap>) -> Vec<String> {
        let mut names: Vec<_> = index.iter().filter_map(|o| o.metadata.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_write_is_seen_at_once_and_an_older_event_does_not_undo_it() {
        let mut index = Index::default();
        index.apply(object("a", "1", 5));
        assert_eq!(index.written(object("a", "1", 9)).len(), 1);
        assert!(index.apply(object("a", "1", 7)).is_empty());
        assert_eq!(version(index.get("ns", "a").unwrap().as_ref()), 9);
        assert!(index.apply(object("a", "1", 9)).is_empty());
    }

    #[test]
    fn an_answer_the_watch_has_passed_is_ignored() {
        let mut index = Index::default();
        index.apply(object("a", "1", 5));
        index.delete(&object("a", "1", 8));
        assert!(index.written(object("a", "1", 6)).is_empty());
        assert!(names(&index).is_empty());
    }

    #[test]
    fn a_deleted_object_does_not_come_back() {
        let mut index = Index::default();
        index.apply(object("a", "1", 5));
        assert_eq!(index.removed("ns", "a", "1").len(), 1);
        assert!(index.apply(object("a", "1", 6)).is_empty());
        assert!(names(&index).is_empty());
        index.delete(&object("a", "1", 7));
        assert_eq!(index.apply(object("a", "2", 8)).len(), 1);
    }

    #[test]
    fn a_list_drops_what_is_gone_and_keeps_what_was_written_after_it_began() {
        let mut index = Index::default();
        index.apply(object("old", "1", 5));
        index.written(object("before", "2", 6));
        index.begin_list();
        index.written(object("after", "3", 7));
        index.replace(vec![object("kept", "4", 3)]);
        assert_eq!(names(&index), ["after", "kept"]);
        index.begin_list();
        index.replace(vec![]);
        assert!(names(&index).is_empty());
    }

    #[test]
    fn a_list_of_a_restored_server_is_believed() {
        let mut index = Index::default();
        index.apply(object("a", "1", 50));
        index.begin_list();
        assert_eq!(index.replace(vec![object("a", "1", 20)]).len(), 1);
        assert_eq!(index.written(object("b", "2", 21)).len(), 1);
        assert_eq!(index.apply(object("a", "1", 22)).len(), 1);
    }

    #[test]
    fn a_list_that_shows_nothing_new_changes_nothing() {
        let mut index = Index::default();
        index.apply(object("a", "1", 5));
        index.begin_list();
        assert!(index.replace(vec![object("a", "1", 5)]).is_empty());
    }

    #[test]
    fn a_new_object_under_an_old_name_is_a_deletion_and_an_addition() {
        let mut index = Index::default();
        index.apply(object("a", "1", 5));
        let changes = index.apply(object("a", "2", 6));
        assert!(matches!(changes[..], [Change::Deleted(_), Change::Added(_)]));
    }

    proptest! {
        /// A server log, watched with delay, with some answers also given as writes: at the end both agree, and at no
        /// moment does the index miss an object that was written and not deleted.
        #[test]
        fn delayed_watch_converges(ops in proptest::collection::vec((0u8..4, any::<bool>(), any::<bool>()), 1..60), lag in 0usize..10) {
            let mut index = Index::default();
            let mut server: HashMap<u8, (u64, u64)> = HashMap::new();
            let mut log: Vec<(bool, ConfigMap)> = Vec::new();
            let (mut rev, mut next_uid, mut shown) = (0u64, 0u64, 0usize);
            for (name, delete, own) in ops {
                rev += 1;
                let text = name.to_string();
                if delete {
                    let Some((uid, _)) = server.remove(&name) else { continue };
                    log.push((true, object(&text, &uid.to_string(), rev)));
                    if own { index.removed("ns", &text, &uid.to_string()); }
                } else {
                    let uid = server.get(&name).map_or_else(|| { next_uid += 1; next_uid }, |(uid, _)| *uid);
                    server.insert(name, (uid, rev));
                    let new = object(&text, &uid.to_string(), rev);
                    log.push((false, new.clone()));
                    if own {
                        index.written(new);
                        prop_assert_eq!(version(index.get("ns", &text).unwrap().as_ref()), rev);
                    }
                }
                while log.len() - shown > lag {
                    let (gone, object) = log[shown].clone();
                    if gone { index.delete(&object); } else { index.apply(object); }
                    shown += 1;
                }
            }
            for (gone, object) in log.drain(shown..) {
                if gone { index.delete(&object); } else { index.apply(object); }
            }
            let mut want: Vec<(String, u64)> = server.iter().map(|(n, (_, v))| (n.to_string(), *v)).collect();
            let mut have: Vec<(String, u64)> = index.iter().map(|o| (o.metadata.name.clone().unwrap(), version(o.as_ref()))).collect();
            want.sort();
            have.sort();
            prop_assert_eq!(want, have);
            prop_assert!(index.written.is_empty() && index.removed.is_empty());
        }
    }
}
