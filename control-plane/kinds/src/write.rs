//! Creating and updating: the steps every kind shares, around its [`crate::Strategy`].
//!
//! Upstream counterpart: `rest.BeforeCreate` and `rest.BeforeUpdate`.

use serde_json::Value;

use crate::error::ApiError;
use crate::resource::Resource;
use crate::strategy::Part;

/// What the outside world lends to a write.
#[derive(Clone, Debug)]
pub struct WriteContext<'a> {
    /// Now.
    pub now: jiff::Timestamp,
    /// A fresh UUID.
    pub uid: &'a str,
    /// Five random characters of `bcdfghjklmnpqrstvwxz2456789`, appended to `generateName`; another call with another suffix is the retry.
    pub suffix: &'a str,
    /// Namespace of the URL, empty for cluster-scoped kinds.
    pub namespace: &'a str,
}

/// Prepares and validates a new object: metadata (name from generateName, uid, creationTimestamp, generation; resourceVersion,
/// deletionTimestamp, managedFields and selfLink are dropped), status removed or initialised, then validation. Returns warnings.
pub fn create(res: &Resource, obj: &mut Value, ctx: &WriteContext<'_>) -> Result<Vec<String>, ApiError> {
    let _ = (res, obj, ctx);
    Ok(Vec::new())
}

/// Prepares and validates an update of `old` (as stored) by `new`. Does not compare resourceVersions: the server does, before; the
/// stored metadata that clients may not change is carried over. Returns warnings.
pub fn update(
    res: &Resource,
    new: &mut Value,
    old: &Value,
    part: Part,
    ctx: &WriteContext<'_>,
) -> Result<Vec<String>, ApiError> {
    let _ = (res, new, old, part, ctx);
    Ok(Vec::new())
}

/// Validates again after admission changed `obj`.
pub fn validate(res: &Resource, obj: &Value) -> Result<(), ApiError> {
    let _ = (res, obj);
    Ok(())
}

/// Values that field selectors see: `metadata.name`, `metadata.namespace` and what the kind adds.
#[must_use]
pub fn selectable(res: &Resource, obj: &Value) -> Vec<(&'static str, String)> {
    let _ = (res, obj);
    Vec::new()
}

/// Whether a field selector may name `field`; the error carries upstream's message.
pub fn check_selectable(res: &Resource, field: &str) -> Result<(), ApiError> {
    let _ = (res, field);
    Ok(())
}
