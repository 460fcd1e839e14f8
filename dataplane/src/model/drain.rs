//! Pods of this node that end although the slices do not say so yet: the override of the drain.
//!
//! Pure. An endpoint here whose pod is being drained counts as not ready and terminating, and serves as long as its slice says that it does, so that
//! the usual rules do the rest: new connections go elsewhere, and the last one that serves keeps receiving. Invariants: on an endpoint that its slice
//! calls terminating the override changes nothing, hence ending it then changes nothing either; pods are known by UID, so that whoever gets their
//! address next is not meant. UIDs are kept beside the records, and of this node's endpoints alone: the others must stay small.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use super::types::{EndpointRecord, Name, SliceRecord};
use super::{Entry, Model};

/// UIDs of this node's pods behind a slice's endpoints, by their place in its record.
pub type LocalUids = Box<[(u32, Box<str>)]>;

/// How the slices see a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No slice of a Service has an endpoint of it on this node.
    Unknown,
    /// These slices still call it ready.
    Ready(Vec<Name>),
    /// None calls it ready, but not each says that it is terminating: it may have been unready, or the node ends it.
    Unready,
    /// All that have it say that it is terminating.
    Terminating,
}

/// UIDs, and which of them are drained.
#[derive(Debug, Default)]
pub(super) struct Drains {
    uids: HashMap<Name, LocalUids>,
    overrides: BTreeSet<Box<str>>,
}

impl Drains {
    /// A slice is gone.
    pub(super) fn forget(&mut self, slice: &Name) {
        self.uids.remove(slice);
    }

    /// A slice as this node treats it.
    fn treated<'a>(&self, name: &Name, slice: &'a SliceRecord) -> Cow<'a, SliceRecord> {
        let mut out = Cow::Borrowed(slice);
        let Some(uids) = self.uids.get(name).filter(|_| !self.overrides.is_empty()) else { return out };
        for (place, _) in uids.iter().filter(|(_, uid)| self.overrides.contains(uid)) {
            if let Some(endpoint) = out.to_mut().endpoints.get_mut(*place as usize).filter(|e| !e.terminating) {
                *endpoint = EndpointRecord { ready: false, terminating: true, ..*endpoint };
            }
        }
        out
    }
}

impl Model {
    /// Slices of a Service as this node treats them.
    pub(super) fn treated<'a>(&self, entry: &'a Entry) -> Vec<Cow<'a, SliceRecord>> {
        entry.slices.iter().map(|(name, slice)| self.drains.treated(name, slice)).collect()
    }

    /// Takes note of the UIDs that belong to a record just given to [`Model::set_slice`]. Whoever gives records of objects gives these with each.
    pub fn set_local_uids(&mut self, slice: &Name, uids: LocalUids) {
        let old = self.drains.uids.get(slice).map_or(&[][..], |known| known);
        if *old == *uids {
            return;
        }
        let is_drained = |list: &[(u32, Box<str>)]| list.iter().any(|(_, uid)| self.drains.overrides.contains(uid));
        let matters = is_drained(old) || is_drained(&uids);
        if uids.is_empty() {
            self.drains.forget(slice);
        } else {
            self.drains.uids.insert(slice.clone(), uids);
        }
        if let Some(service) = self.slice_owner.get(slice).filter(|_| matters) {
            self.dirty.insert(service.clone());
        }
    }

    /// What the slices of Services say of a pod on this node.
    #[must_use]
    pub fn standing(&self, uid: &str) -> Standing {
        let (mut known, mut ready, mut all_terminating) = (false, Vec::new(), true);
        for (name, record) in self.of_pod(uid) {
            known = true;
            all_terminating &= record.terminating;
            if record.ready && !record.terminating {
                ready.push(name.clone());
            }
        }
        ready.sort();
        ready.dedup();
        match (known, ready.is_empty()) {
            (false, _) => Standing::Unknown,
            (true, false) => Standing::Ready(ready),
            (true, true) if all_terminating => Standing::Terminating,
            (true, true) => Standing::Unready,
        }
    }

    /// Treats a pod on this node as terminating from now on, and says how the slices see it. Of a pod that no slice knows nothing is kept.
    pub fn drain(&mut self, uid: &str) -> Standing {
        let standing = self.standing(uid);
        if matches!(standing, Standing::Ready(_) | Standing::Unready) && self.drains.overrides.insert(uid.into()) {
            self.mark_services_of(uid);
        }
        standing
    }

    /// Ends that.
    pub fn end_drain(&mut self, uid: &str) {
        if self.drains.overrides.remove(uid) && self.standing(uid) != Standing::Terminating {
            self.mark_services_of(uid);
        }
    }

    fn mark_services_of(&mut self, uid: &str) {
        let services: Vec<Name> =
            self.of_pod(uid).filter_map(|(slice, _)| self.slice_owner.get(slice)).cloned().collect();
        self.dirty.extend(services);
    }

    /// The pod's endpoints in slices of Services that are ours to serve.
    fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = (&'a Name, EndpointRecord)> {
        self.drains.uids.iter().flat_map(move |(name, uids)| {
            let entry = self.slice_owner.get(name).and_then(|service| self.entries.get(service));
            let slice = entry.filter(|e| e.service.is_some()).and_then(|e| e.slices.get(name));
            let places = uids.iter().filter(move |(_, known)| **known == *uid);
            places.filter_map(move |(place, _)| Some((name, *slice?.endpoints.get(*place as usize)?)))
        })
    }
}
