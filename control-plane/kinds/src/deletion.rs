//! What a delete does to an object: at once, after finalizers, after a grace period.
//!
//! Upstream counterpart: `rest.BeforeDelete` and the garbage-collection part of `genericregistry.Store.Delete`.

use serde_json::Value;

use crate::error::ApiError;
use crate::resource::Resource;

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
    pub fn from_json(body: &Value) -> Result<Self, ApiError> {
        let _ = body;
        Ok(Self::default())
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

/// Decides what a delete of `obj` does. Checks the preconditions (409).
pub fn begin(res: &Resource, obj: &Value, options: &DeleteOptions, now: jiff::Timestamp) -> Result<Deletion, ApiError> {
    let _ = (res, options, now);
    Ok(Deletion::Remove(obj.clone()))
}

/// Whether an object that was just updated must now be removed: deletion is under way, no finalizer is left and no grace remains.
#[must_use]
pub fn is_finished(res: &Resource, obj: &Value) -> bool {
    let _ = (res, obj);
    false
}
