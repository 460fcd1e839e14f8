//! What to do with one object. Pure.
//!
//! Upstream counterpart: `attemptToDeleteItem` and `classifyReferences`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::graph::{Ending, FOREGROUND, ORPHAN, ending};

/// What is known of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// It exists.
    Present,
    /// The server says that it does not exist.
    Absent,
    /// It exists and waits for its dependents to go.
    AwaitsDependents,
}

/// How an object's own dependents are to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They follow later.
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// What is known of an object's own dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependents {
    /// It has none.
    No,
    /// It has some.
    Some,
    /// One of them waits for its own to go: perhaps, around a circle, for this object.
    Waiting,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Drop the references to these owners (positions in the list).
    DropOwners(Vec<usize>),
    /// Delete it.
    Delete(Propagation),
    /// Let its owners no longer wait for it.
    Unblock,
    /// Look after its blocking dependents; without any, take its foreground finalizer off.
    ReleaseForeground,
    /// Free its dependents from it, then take its orphan finalizer off.
    ReleaseOrphan,
}

/// Decides about an object; `owners` are the states of its owner references, in order.
pub fn judge(meta: &ObjectMeta, owners: &[Owner], dependents: Dependents) -> Action {
    match ending(meta) {
        Ending::Foreground => return Action::ReleaseForeground,
        Ending::Orphan => return Action::ReleaseOrphan,
        Ending::Plain => return Action::Nothing,
        Ending::No => {}
    }
    if owners.is_empty() {
        return Action::Nothing;
    }
    let useless: Vec<usize> = (0..owners.len()).filter(|i| owners[*i] != Owner::Present).collect();
    if useless.is_empty() {
        return Action::Nothing;
    }
    if useless.len() < owners.len() {
        return Action::DropOwners(useless);
    }
    if owners.contains(&Owner::AwaitsDependents) && dependents != Dependents::No {
        let blocks = meta.owner_references.iter().flatten().any(|owner| owner.block_owner_deletion == Some(true));
        if blocks && dependents == Dependents::Waiting {
            // Owners in a circle would wait for one another for ever. Where it is none, an owner is gone a little early.
            return Action::Unblock;
        }
        return Action::Delete(Propagation::Foreground);
    }
    let has = |name: &str| meta.finalizers.iter().flatten().any(|f| f == name);
    Action::Delete(if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Owner::{Absent, AwaitsDependents, Present};
    use serde_json::json;

    fn meta(finalizers: &[&str], deleted: bool) -> ObjectMeta {
        let at = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({"finalizers": finalizers, "deletionTimestamp": at})).unwrap()
    }

    #[test]
    fn an_object_lives_as_long_as_one_owner_does() {
        let plain = meta(&[], false);
        assert_eq!(judge(&plain, &[], Dependents::Some), Action::Nothing);
        assert_eq!(judge(&plain, &[Present, Present], Dependents::No), Action::Nothing);
        assert_eq!(judge(&plain, &[Absent, Present, AwaitsDependents], Dependents::No), Action::DropOwners(vec![0, 2]));
        assert_eq!(judge(&plain, &[Absent], Dependents::Some), Action::Delete(Propagation::Background));
        assert_eq!(
            judge(&plain, &[Absent, AwaitsDependents], Dependents::Some),
            Action::Delete(Propagation::Foreground)
        );
        assert_eq!(judge(&plain, &[AwaitsDependents], Dependents::No), Action::Delete(Propagation::Background));
        assert_eq!(judge(&meta(&[ORPHAN], false), &[Absent], Dependents::Some), Action::Delete(Propagation::Orphan));
    }

    #[test]
    fn objects_on_their_way_out() {
        assert_eq!(judge(&meta(&[], true), &[Absent], Dependents::Some), Action::Nothing);
        assert_eq!(judge(&meta(&[FOREGROUND], true), &[], Dependents::Some), Action::ReleaseForeground);
        assert_eq!(judge(&meta(&[ORPHAN], true), &[], Dependents::Some), Action::ReleaseOrphan);
    }

    #[test]
    fn a_circle_is_opened() {
        let in_circle = |block: bool| -> ObjectMeta {
            let owner = json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": "o", "blockOwnerDeletion": block});
            serde_json::from_value(json!({"ownerReferences": [owner]})).unwrap()
        };
        let foreground = Action::Delete(Propagation::Foreground);
        assert_eq!(judge(&in_circle(true), &[AwaitsDependents], Dependents::Waiting), Action::Unblock);
        assert_eq!(judge(&in_circle(false), &[AwaitsDependents], Dependents::Waiting), foreground);
        assert_eq!(judge(&in_circle(true), &[AwaitsDependents], Dependents::Some), foreground);
    }
}
