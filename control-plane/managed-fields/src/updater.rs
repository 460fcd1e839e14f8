//! What writing an object does to its managers, and what applying does to an object.
//!
//! An update takes over the fields that it changes, whoever had them; an apply owns what its configuration names, and must not change
//! what others have unless it is forced. A field that an applier no longer names goes unless somebody else has it.
//! Upstream counterpart: `structured-merge-diff/merge/update.go`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{ApplyError, Conflict, Conflicts, UpdateError};
use crate::fieldpath::{Path, Set};
use crate::managers::{ManagerId, VersionedSet};
use crate::typed::{Comparison, compare, merge, prune_items, reconcile, remove_items, to_field_set, with_named_fields};
use crate::value;
use crate::versions::Versions;

type Entries = BTreeMap<ManagerId, VersionedSet>;

/// One write: the version it is in, who writes, and the fields that such a write cannot change.
pub(crate) struct Updater<'u, V> {
    pub(crate) versions: &'u V,
    pub(crate) version: &'u str,
    pub(crate) workflow: &'u ManagerId,
    pub(crate) ignored: &'u Set,
}

fn typed<T>(what: &'static str, result: Result<T, crate::typed::TypedErrors>) -> Result<T, UpdateError> {
    result.map_err(|errors| UpdateError::Typed { what, errors })
}

impl<'a, V: Versions<'a>> Updater<'_, V> {
    fn own_type(&self) -> Result<V::Type, UpdateError> {
        self.versions.type_of(self.version).ok_or_else(|| UpdateError::Version(self.version.to_owned()))
    }

    /// An object of the request's version in another.
    fn convert(&self, object: &Value, version: &str) -> Result<Value, UpdateError> {
        if version == self.version {
            return Ok(object.clone());
        }
        Ok(self.versions.convert(object, version)?)
    }

    /// Sets that were written under an older schema.
    fn reconcile(&self, entries: &mut Entries) {
        for entry in entries.values_mut() {
            if let Some(t) = self.versions.type_of(&entry.api_version) {
                entry.set = reconcile(&entry.set, t);
            }
        }
    }

    /// Takes from all other managers what `new` changed or removed; conflicts unless forced. Managers whose version is no longer
    /// served are forgotten.
    fn settle(
        &self,
        old: &Value,
        new: &Value,
        entries: &mut Entries,
        force: bool,
    ) -> Result<Result<Comparison, Conflicts>, UpdateError> {
        let own = typed("compare objects", compare(old, new, self.own_type()?))?.without(self.ignored);
        let mut by_version = BTreeMap::from([(self.version.to_owned(), own)]);
        entries.retain(|id, entry| id == self.workflow || self.versions.type_of(&entry.api_version).is_some());
        let mut conflicts = Vec::new();
        let mut taken = Vec::new();
        for (id, entry) in entries.iter().filter(|(id, _)| *id != self.workflow) {
            if !by_version.contains_key(&entry.api_version)
                && let Some(t) = self.versions.type_of(&entry.api_version)
            {
                let (old, new) = (self.convert(old, &entry.api_version)?, self.convert(new, &entry.api_version)?);
                let comparison = typed("compare objects", compare(&old, &new, t))?.without(self.ignored);
                by_version.insert(entry.api_version.clone(), comparison);
            }
            let Some(comparison) = by_version.get(&entry.api_version) else { continue };
            let conflict = entry.set.intersection(&comparison.modified.union(&comparison.added));
            conflict.for_each(&mut |path| {
                conflicts.push(Conflict { manager: id.clone(), path: Path(path.to_vec()) });
            });
            if !conflict.is_empty() || !comparison.removed.is_empty() {
                taken.push((id.clone(), entry.set.difference(&conflict).difference(&comparison.removed)));
            }
        }
        if !force && !conflicts.is_empty() {
            return Ok(Err(Conflicts(conflicts)));
        }
        for (id, set) in taken {
            if let Some(entry) = entries.get_mut(&id) {
                entry.set = set;
            }
        }
        entries.retain(|_, entry| !entry.set.is_empty());
        Ok(Ok(by_version.remove(self.version).unwrap_or_default()))
    }

    /// After any write but an apply: the workflow owns what differs.
    pub(crate) fn update(&self, live: &Value, new: &Value, entries: &mut Entries) -> Result<(), UpdateError> {
        self.reconcile(entries);
        let Ok(comparison) = self.settle(live, new, entries, true)? else { return Ok(()) };
        let before = entries.remove(self.workflow).unwrap_or_default().set;
        let mut set = before.difference(&comparison.removed);
        set.extend(&comparison.modified);
        set.extend(&comparison.added);
        let set = set.recursive_difference(self.ignored);
        if !set.is_empty() {
            entries.insert(self.workflow.clone(), VersionedSet { set, api_version: self.version.to_owned() });
        }
        Ok(())
    }

    /// Applies a configuration: the new object, or `None` if it is the live one.
    pub(crate) fn apply(
        &self,
        live: &Value,
        config: &Value,
        entries: &mut Entries,
        force: bool,
    ) -> Result<Option<Value>, ApplyError> {
        self.reconcile(entries);
        let t = self.own_type()?;
        let merged = typed("merge config", merge(live, config, t))?;
        let set = typed("get field set", to_field_set(config, t))?.recursive_difference(self.ignored);
        let entry = VersionedSet { set, api_version: self.version.to_owned() };
        let last = entries.insert(self.workflow.clone(), entry);
        let new = match last {
            Some(last) if !last.set.is_empty() => {
                // A map that the configuration has empty is gone with the last thing in it.
                let pruned = self.prune(merged, entries, &last)?;
                typed("merge config", merge(&pruned, config, t))?
            }
            _ => merged,
        };
        self.settle(live, &new, entries, force)??;
        Ok((!value::equal(live, &new)).then_some(new))
    }

    /// Removes what the workflow applied last time, and does not now, and nobody else has.
    fn prune(&self, merged: Value, entries: &Entries, last: &VersionedSet) -> Result<Value, UpdateError> {
        let Some(t) = self.versions.type_of(&last.api_version) else { return Ok(merged) };
        let converted = self.convert(&merged, &last.api_version)?;
        let last_set = with_named_fields(&last.set, Some(t));
        let mut pruned = remove_items(&converted, &last_set, t);

        let mut managed: BTreeMap<&str, Set> = BTreeMap::new();
        for entry in entries.values() {
            managed.entry(&entry.api_version).or_default().extend(&entry.set);
        }
        // The version that was pruned comes first: another may need what it brings back.
        let own = managed.remove(last.api_version.as_str()).map(|set| (last.api_version.as_str(), set));
        let mut at = last.api_version.as_str();
        let mut whole = converted.clone();
        for (version, managed) in own.into_iter().chain(managed) {
            let Some(t) = self.versions.type_of(version) else { continue };
            if version != at {
                whole = self.versions.convert(&whole, version)?;
                pruned = self.versions.convert(&pruned, version)?;
                at = version;
            }
            pruned = self.give_back(&whole, &pruned, &managed, t)?;
        }
        if at != last.api_version {
            pruned = self.versions.convert(&pruned, &last.api_version)?;
        }
        let kept = with_named_fields(&typed("create field set", to_field_set(&pruned, t))?, Some(t));
        let all = with_named_fields(&typed("create field set", to_field_set(&converted, t))?, Some(t));
        let gone = all.difference(&kept).intersection(&last_set);
        let out = prune_items(&converted, &gone, t);
        if last.api_version == self.version { Ok(out) } else { Ok(self.versions.convert(&out, self.version)?) }
    }

    /// Puts back what somebody has.
    fn give_back(&self, whole: &Value, pruned: &Value, managed: &Set, t: V::Type) -> Result<Value, UpdateError> {
        let all = with_named_fields(&typed("create field set", to_field_set(whole, t))?, Some(t));
        let mut kept = with_named_fields(&typed("create field set", to_field_set(pruned, t))?, Some(t));
        kept.extend(&with_named_fields(managed, Some(t)));
        Ok(remove_items(whole, &all.difference(&kept), t))
    }

    /// What a configuration that was applied by a client, and is still what the object says, owns.
    pub(crate) fn still_applied(&self, applied: &Value, live: &Value) -> Result<Set, UpdateError> {
        let t: V::Type = self.own_type()?;
        let set = typed("get field set", to_field_set(applied, t))?;
        let comparison = typed("compare objects", compare(applied, live, t))?;
        Ok(set.difference(&comparison.modified).difference(&comparison.added).difference(&comparison.removed))
    }
}
