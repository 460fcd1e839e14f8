//! What a delete does to an object: at once, after finalizers, after a grace period.
//!
//! Upstream counterpart: `rest.BeforeDelete`, the garbage-collection part of `genericregistry.Store.Delete`, and the pod and namespace
//! strategies. Invariant: an object with finalizers is never removed.

use serde_json::{Value, json};

use crate::error::{ApiError, FieldError};
use crate::resource::Resource;
use crate::{time, val};

/// Finalizer of foreground deletion.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer that orphans dependents.
pub const ORPHAN: &str = "orphan";

/// `DeleteOptions`, from the body and the query parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds; `Some(0)` is forced deletion.
    pub grace_period_seconds: Option<i64>,
    /// `Orphan`, `Background` or `Foreground`.
    pub propagation_policy: Option<String>,
    /// Deprecated predecessor of the above.
    pub orphan_dependents: Option<bool>,
    /// `preconditions.uid`.
    pub precondition_uid: Option<String>,
    /// `preconditions.resourceVersion`.
    pub precondition_resource_version: Option<String>,
    /// `dryRun: [All]`.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// From a parsed body (`DeleteOptions`, perhaps `null` or empty).
    ///
    /// # Errors
    /// 422 for a value that upstream refuses.
    pub fn from_json(body: &Value) -> Result<Self, ApiError> {
        if !(body.is_null() || body.is_object()) {
            return Err(ApiError::bad_request("DeleteOptions must be an object"));
        }
        let text = |path: &str| val::at(body, path).and_then(Value::as_str).map(str::to_owned);
        let options = Self {
            grace_period_seconds: val::int(body, "gracePeriodSeconds"),
            propagation_policy: text("propagationPolicy"),
            orphan_dependents: val::at(body, "orphanDependents").and_then(Value::as_bool),
            precondition_uid: text("preconditions.uid"),
            precondition_resource_version: text("preconditions.resourceVersion"),
            dry_run: val::list(body, "dryRun").iter().any(|v| v == "All"),
        };
        options.validate(val::list(body, "dryRun"))?;
        Ok(options)
    }

    fn validate(&self, dry_run: &[Value]) -> Result<(), ApiError> {
        let mut errors = Vec::new();
        if self.propagation_policy.is_some() && self.orphan_dependents.is_some() {
            errors.push(FieldError::invalid(
                "propagationPolicy",
                self.propagation_policy.clone().unwrap_or_default(),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        if let Some(policy) = &self.propagation_policy
            && !matches!(policy.as_str(), "Orphan" | "Background" | "Foreground")
        {
            let valid = ["Foreground", "Background", "Orphan"];
            errors.push(FieldError::not_supported("propagationPolicy", policy.as_str(), &valid));
        }
        for value in dry_run.iter().filter(|v| *v != "All") {
            errors.push(FieldError::not_supported("dryRun", value.clone(), &["All"]));
        }
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &errors)) }
    }
}

/// What the server must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// Remove the object now; answer with this last state.
    Remove(Value),
    /// Store this (deletionTimestamp, grace period, finalizers) and answer with it.
    Update(Value),
    /// Nothing to do, the deletion is already under way; answer with the stored object.
    Pending,
}

/// Decides what a delete of `obj` does. Checks the preconditions.
///
/// # Errors
/// 409 when a precondition fails.
pub fn begin(res: &Resource, obj: &Value, options: &DeleteOptions, now: jiff::Timestamp) -> Result<Deletion, ApiError> {
    check_preconditions(res, obj, options)?;
    let mut next = obj.clone();
    let changed = set_propagation_finalizers(&mut next, options);
    let already = val::at(obj, "metadata.deletionTimestamp").is_some();
    let grace = if res.strategy.graceful() { grace_seconds(obj, options) } else { 0 };
    if already {
        return Ok(shorten(res, next, obj, grace, options, now, changed));
    }
    if grace > 0 || !finalizers(&next).is_empty() || (is_namespace(res) && !namespace_finalizers(&next).is_empty()) {
        mark(res, &mut next, grace, now);
        return Ok(Deletion::Update(next));
    }
    mark(res, &mut next, 0, now);
    Ok(Deletion::Remove(next))
}

fn check_preconditions(res: &Resource, obj: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let name = val::text(obj, "metadata.name");
    let checks = [
        ("UID", &options.precondition_uid, "metadata.uid"),
        ("ResourceVersion", &options.precondition_resource_version, "metadata.resourceVersion"),
    ];
    for (what, wanted, path) in checks {
        let found = val::text(obj, path);
        if let Some(wanted) = wanted.as_deref()
            && wanted != found
        {
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
            return Err(ApiError::conflict(res, name, &why));
        }
    }
    Ok(())
}

fn finalizers(obj: &Value) -> &[Value] {
    val::list(obj, "metadata.finalizers")
}

fn is_namespace(res: &Resource) -> bool {
    res.kind == "Namespace" && res.group.is_empty()
}

fn namespace_finalizers(obj: &Value) -> &[Value] {
    val::list(obj, "spec.finalizers")
}

/// Adds or removes the two garbage-collection finalizers; true if anything changed.
fn set_propagation_finalizers(obj: &mut Value, options: &DeleteOptions) -> bool {
    let wanted = match (options.propagation_policy.as_deref(), options.orphan_dependents) {
        (Some("Orphan"), _) | (None, Some(true)) => Some(ORPHAN),
        (Some("Foreground"), _) => Some(FOREGROUND),
        (Some(_), _) | (None, Some(false)) => None,
        // No policy given: what the object already asks for stays.
        (None, None) => return false,
    };
    let before: Vec<Value> = finalizers(obj).to_vec();
    let mut after: Vec<Value> = before.iter().filter(|f| **f != ORPHAN && **f != FOREGROUND).cloned().collect();
    if let Some(wanted) = wanted {
        after.push(json!(wanted));
    }
    if after == before {
        return false;
    }
    let metadata = val::child(obj, "metadata");
    if after.is_empty() {
        val::remove(metadata, "finalizers");
    } else {
        val::set(metadata, "finalizers", after);
    }
    true
}

/// Grace of a pod: what was asked for, else the spec's; none if it was never assigned to a node or has ended. A pod that runs gets at
/// least one second through its spec, so that zero is only ever forced by the client.
fn grace_seconds(pod: &Value, options: &DeleteOptions) -> i64 {
    let spec = val::int(pod, "spec.terminationGracePeriodSeconds").unwrap_or(DEFAULT_GRACE).max(1);
    let grace = match options.grace_period_seconds {
        Some(seconds) if seconds < 0 => 1,
        Some(seconds) => seconds,
        None => spec,
    };
    let ended = matches!(val::text(pod, "status.phase"), "Succeeded" | "Failed");
    if val::text(pod, "spec.nodeName").is_empty() || ended { 0 } else { grace }
}

/// Upstream's `DefaultTerminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;

fn mark(res: &Resource, obj: &mut Value, grace: i64, now: jiff::Timestamp) {
    let at = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
    let metadata = val::child(obj, "metadata");
    val::set(metadata, "deletionTimestamp", time::seconds(at));
    val::set(metadata, "deletionGracePeriodSeconds", grace);
    if let Some(generation) = val::int(metadata, "generation")
        && generation > 0
    {
        val::set(metadata, "generation", generation + 1);
    }
    if is_namespace(res) {
        val::set(val::child(obj, "status"), "phase", "Terminating");
        val::remove(val::child(obj, "metadata"), "deletionGracePeriodSeconds");
    }
}

/// A delete of what is already being deleted: only a shorter grace period, or a change of the finalizers, does anything.
fn shorten(
    res: &Resource,
    mut next: Value,
    obj: &Value,
    grace: i64,
    options: &DeleteOptions,
    now: jiff::Timestamp,
    changed: bool,
) -> Deletion {
    let current = val::int(obj, "metadata.deletionGracePeriodSeconds").unwrap_or(0);
    let blocked = !finalizers(&next).is_empty() || (is_namespace(res) && !namespace_finalizers(&next).is_empty());
    if res.strategy.graceful() && current > 0 && options.grace_period_seconds.is_some() && grace < current {
        let began = time::parse(val::text(obj, "metadata.deletionTimestamp"))
            .and_then(|t| t.checked_sub(jiff::SignedDuration::from_secs(current)).ok())
            .unwrap_or(now);
        if grace == 0 && !blocked {
            val::set(val::child(&mut next, "metadata"), "deletionGracePeriodSeconds", 0);
            return Deletion::Remove(next);
        }
        let end = began.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
        let metadata = val::child(&mut next, "metadata");
        val::set(metadata, "deletionTimestamp", time::seconds(end));
        val::set(metadata, "deletionGracePeriodSeconds", grace);
        return Deletion::Update(next);
    }
    if current == 0 && !blocked {
        return Deletion::Remove(next);
    }
    if changed { Deletion::Update(next) } else { Deletion::Pending }
}

/// Whether an object that was just updated must now be removed: deletion is under way, no finalizer is left and no grace remains.
#[must_use]
pub fn is_finished(res: &Resource, obj: &Value) -> bool {
    val::at(obj, "metadata.deletionTimestamp").is_some()
        && finalizers(obj).is_empty()
        && val::int(obj, "metadata.deletionGracePeriodSeconds").unwrap_or(0) == 0
        && (!is_namespace(res) || namespace_finalizers(obj).is_empty())
}
