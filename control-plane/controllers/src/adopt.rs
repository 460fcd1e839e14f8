//! Taking possession: owner references set on what an owner's selector matches, and taken off what it no longer does.
//!
//! Invariant: nothing is adopted for an owner that the server no longer has: the garbage collector would delete it.
//!
//! Upstream counterpart: `pkg/controller/controller_ref_manager.go`; the decision is in [`crate::claim`].

use std::sync::Arc;

use kube::core::{Selector, SelectorExt};
use serde::Serialize;

use crate::claim::claim;
use crate::engine::cache::{Cache, Cached};
use crate::engine::index::Change;
use crate::engine::{Key, Kind, ReconcileError};
use crate::meta::{controller_of, controller_reference, is_deleting, labels, namespace_of, uid_of};

/// What more to change on an object when it gets or loses its owner.
pub struct Marks<C> {
    /// Together with the new owner reference.
    pub adopt: fn(&mut C),
    /// Together with the end of the old one.
    pub release: fn(&mut C),
}

impl<C> Marks<C> {
    /// Nothing but the owner reference.
    pub const NONE: Self = Self { adopt: |_| {}, release: |_| {} };
}

/// What `owner` owns of the children's kind, after adopting what `matches` and releasing what does not.
///
/// # Errors
/// A request failed; an object that is gone is none of its own.
pub async fn take<O: Cached + Serialize, C: Cached + Serialize>(
    owners: &Kind<O>,
    children: &Kind<C>,
    owner: &O,
    matches: impl Fn(&C) -> bool,
    marks: Marks<C>,
) -> Result<Vec<Arc<C>>, ReconcileError> {
    let all = children.cache().in_namespace(namespace_of(owner));
    let claim = claim(uid_of(owner), is_deleting(owner), matches, all);
    let mut owned = claim.owned;
    for lost in &claim.release {
        let mut freed = lost.as_ref().clone();
        if let Some(references) = &mut freed.meta_mut().owner_references {
            references.retain(|reference| reference.uid != uid_of(owner));
        }
        (marks.release)(&mut freed);
        ignore_gone(children.update(lost, &freed).await)?;
    }
    if claim.adopt.is_empty() {
        return Ok(owned);
    }
    let live = owners.get_live(&Key::of(owner)).await?;
    if live.is_none_or(|live| uid_of(&live) != uid_of(owner) || is_deleting(&live)) {
        return Ok(owned);
    }
    for orphan in claim.adopt {
        let mut mine = orphan.as_ref().clone();
        mine.meta_mut().owner_references.get_or_insert_default().push(controller_reference(owner));
        (marks.adopt)(&mut mine);
        if ignore_gone(children.update(&orphan, &mine).await)?.is_some() {
            owned.push(children.cache().by_key(&Key::of(&mine)).unwrap_or_else(|| Arc::new(mine)));
        }
    }
    Ok(owned)
}

/// An answer for an object that is gone is no answer.
///
/// # Errors
/// All others.
pub fn ignore_gone<T>(result: Result<Option<T>, ReconcileError>) -> Result<Option<T>, ReconcileError> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        other => other,
    }
}

/// Calls `add` with the owner of a changed object; if it has none, with every owner whose selector matches it.
pub fn child_changed<O: Cached, C: Cached>(
    owners: &Cache<O>,
    add: impl Fn(Key),
    change: &Change<C>,
    selector: impl Fn(&O) -> Option<Selector>,
) {
    let new = change.object().as_ref();
    let mut is_owned = false;
    for child in [change.old().map(AsRef::as_ref), Some(new)].into_iter().flatten() {
        if let Some(owner) = controller_of(child) {
            is_owned = true;
            if owner.kind == O::kind(&()) && owner.api_version == O::api_version(&()) {
                add(Key::new(namespace_of(child), owner.name.as_str()));
            }
        }
    }
    if is_owned || matches!(change, Change::Deleted(_)) {
        return;
    }
    for owner in owners.in_namespace(namespace_of(new)) {
        if selector(&owner).is_some_and(|s| s.matches(labels(new))) {
            add(Key::of(owner.as_ref()));
        }
    }
}
