//! What a definition's status says: which names it has, whether it is served, and how far its deletion is.
//!
//! Upstream counterparts: `apiextensions-apiserver/pkg/controller/status`, `establish` and `finalizer`.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::{time, val};

/// Keeps a definition until its objects are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How far the deletion of a definition's objects is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminating {
    /// It was asked for.
    Pending,
    /// Objects are being deleted.
    InProgress,
    /// All objects are gone; the finalizer may be taken away.
    Completed,
    /// Listing or deleting failed.
    Failed(String),
}

/// Whether the names of a definition were accepted once, so that it is served.
#[must_use]
pub fn established(crd: &Value) -> bool {
    val::list(crd, "status.conditions")
        .iter()
        .any(|c| val::text(c, "type") == "Established" && val::text(c, "status") == "True")
}

/// The status that a definition should have, beside the other definitions of the server: accepted names, and the conditions
/// `NamesAccepted` and `Established`. Names that another definition of the group holds are refused, first come first served; once
/// established stays established.
#[must_use]
pub fn status<'a>(crd: &Value, others: impl IntoIterator<Item = &'a Value>, now: jiff::Timestamp) -> Value {
    let (name, group) = (val::text(crd, "metadata.name"), val::text(crd, "spec.group"));
    let mut resources: HashSet<&str> = HashSet::new();
    let mut kinds: HashSet<&str> = HashSet::new();
    for other in others {
        if val::text(other, "spec.group") != group || val::text(other, "metadata.name") == name {
            continue;
        }
        let Some(names) = val::at(other, "status.acceptedNames") else { continue };
        resources.extend(["plural", "singular"].map(|key| val::text(names, key)));
        resources.extend(val::list(names, "shortNames").iter().filter_map(Value::as_str));
        kinds.extend(["kind", "listKind"].map(|key| val::text(names, key)));
    }
    let requested = val::at(crd, "spec.names").unwrap_or(&Value::Null);
    let mut accepted = val::at(crd, "status.acceptedNames").cloned().unwrap_or_else(|| json!({}));
    let mut conflict = None;
    let mut take = |key: &str, used: &HashSet<&str>, reason: &'static str| {
        let wanted = val::text(requested, key);
        if wanted != val::text(&accepted, key) && used.contains(wanted) {
            conflict = Some((reason, format!("{wanted:?} is already in use")));
        } else if !wanted.is_empty() {
            val::set(&mut accepted, key, wanted);
        }
    };
    take("plural", &resources, "PluralConflict");
    take("singular", &resources, "SingularConflict");
    let held = val::list(&accepted, "shortNames").to_vec();
    let short: Vec<&Value> = val::list(requested, "shortNames").iter().collect();
    let taken: Vec<String> = short
        .iter()
        .filter(|name| !held.contains(name))
        .filter_map(|name| name.as_str())
        .filter(|name| resources.contains(name))
        .map(|name| format!("{name:?} is already in use"))
        .collect();
    match taken.as_slice() {
        [] => carry(&mut accepted, requested, "shortNames"),
        [one] => conflict = Some(("ShortNamesConflict", one.clone())),
        many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
    }
    let mut take = |key: &str, reason: &'static str| {
        let wanted = val::text(requested, key);
        if wanted != val::text(&accepted, key) && kinds.contains(wanted) {
            conflict = Some((reason, format!("{wanted:?} is already in use")));
        } else if !wanted.is_empty() {
            val::set(&mut accepted, key, wanted);
        }
    };
    take("kind", "KindConflict");
    take("listKind", "ListKindConflict");
    carry(&mut accepted, requested, "categories");
    let mut out = crd.get("status").filter(|status| status.is_object()).cloned().unwrap_or_else(|| json!({}));
    val::set(&mut out, "acceptedNames", accepted);
    let ok = conflict.is_none();
    let (reason, message) = conflict.unwrap_or(("NoConflicts", "no conflicts found".to_owned()));
    set_condition(&mut out, ("NamesAccepted", ok), reason, &message, now);
    if !established(crd) {
        let (reason, message) = if ok {
            ("InitialNamesAccepted", "the initial names have been accepted")
        } else {
            ("NotAccepted", "not all names are accepted")
        };
        set_condition(&mut out, ("Established", ok), reason, message, now);
    }
    out
}

fn carry(accepted: &mut Value, requested: &Value, key: &str) {
    val::carry(accepted, requested, key);
}

/// Sets a condition; the time of its transition is that of the last change of its status.
fn set_condition(status: &mut Value, (kind, truth): (&str, bool), reason: &str, message: &str, now: jiff::Timestamp) {
    let truth = if truth { "True" } else { "False" };
    let mut conditions = val::list(status, "conditions").to_vec();
    let same = |c: &&mut Value| val::text(c, "type") == kind;
    let mut condition = json!({
        "type": kind, "status": truth, "lastTransitionTime": time::seconds(now), "reason": reason, "message": message,
    });
    match conditions.iter_mut().find(same) {
        Some(known) => {
            if val::text(known, "status") == truth {
                val::carry(&mut condition, known, "lastTransitionTime");
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
    val::set(status, "conditions", conditions);
}

/// The definition as a deletion leaves it at first: with the finalizer that keeps it, and the condition `Terminating`. The server adds
/// the deletionTimestamp.
pub fn begin_deletion(crd: &mut Value, now: jiff::Timestamp) {
    let metadata = val::child(crd, "metadata");
    let mut finalizers = val::list(metadata, "finalizers").to_vec();
    if !finalizers.iter().any(|f| f == CLEANUP_FINALIZER) {
        finalizers.push(json!(CLEANUP_FINALIZER));
        val::set(metadata, "finalizers", finalizers);
    }
    terminating(crd, &Terminating::Pending, now);
}

/// Says in the status how far the deletion is; [`Terminating::Completed`] takes the finalizer away.
pub fn terminating(crd: &mut Value, phase: &Terminating, now: jiff::Timestamp) {
    let (truth, reason, message) = match phase {
        Terminating::Pending => (
            true,
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon".to_owned(),
        ),
        Terminating::InProgress => {
            (true, "InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned())
        }
        Terminating::Completed => (false, "InstanceDeletionCompleted", "removed all instances".to_owned()),
        Terminating::Failed(why) => (true, "InstanceDeletionFailed", format!("could not list instances: {why}")),
    };
    set_condition(val::child(crd, "status"), ("Terminating", truth), reason, &message, now);
    if *phase == Terminating::Completed {
        let metadata = val::child(crd, "metadata");
        let mut finalizers = val::list(metadata, "finalizers").to_vec();
        finalizers.retain(|f| f != CLEANUP_FINALIZER);
        val::set(metadata, "finalizers", finalizers);
    }
}
