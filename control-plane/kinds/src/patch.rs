//! The three patch types of this line: JSON patch, JSON merge patch, strategic merge patch.
//!
//! Upstream counterpart: `apiserver/pkg/endpoints/handlers/patch.go` and `apimachinery/pkg/util/strategicpatch`.

mod json;
mod strategic;

pub use json::{PatchError, bounded};

use serde_json::Value;

use crate::decode::{self, Target};
use crate::error::{ApiError, Reason};
use crate::resource::Resource;
use crate::schema::schemas;

/// A patch's media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// `application/json-patch+json`.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
}

impl PatchType {
    /// From a Content-Type header.
    ///
    /// # Errors
    /// 415 for anything else; an apply is no patch of these.
    pub fn from_content_type(header: &str) -> Result<Self, ApiError> {
        match header.split(';').next().unwrap_or("").trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            _ => Err(ApiError::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ])),
        }
    }
}

/// Applies a patch to the current object (`sub` names the subresource when its kind differs, as for scale). The result still has to go
/// through [`crate::decode::object`].
///
/// # Errors
/// 400 for a malformed patch, 413 for one with too many operations, 415 for a strategic merge of a custom kind, which has no merge
/// keys, 422 for one that cannot be applied.
pub fn apply(
    res: &Resource,
    sub: Option<&str>,
    kind: PatchType,
    current: &Value,
    patch: &[u8],
) -> Result<Value, ApiError> {
    if kind == PatchType::Strategic && res.strategy.custom().is_some() {
        return Err(ApiError::unsupported_media_type(&[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/apply-patch+yaml",
        ]));
    }
    let parsed = decode::parse(patch, decode::Format::Json)
        .map_err(|e| ApiError::bad_request(format!("error decoding patch: {}", e.message)))?;
    match kind {
        PatchType::Json => json::apply(current, parsed),
        PatchType::Merge => {
            must_be_map(&parsed, "error decoding patch: ")?;
            let mut out = current.clone();
            json_patch::merge(&mut out, &parsed);
            Ok(out)
        }
        PatchType::Strategic => {
            must_be_map(&parsed, "")?;
            strategic_merge(&Target::of(res, sub).schema, current, parsed)
        }
    }
}

/// Applies a strategic merge patch to an object of the type called `definition`.
pub(crate) fn strategic_merge(definition: &str, current: &Value, patch: Value) -> Result<Value, ApiError> {
    let table = schemas();
    let root = table.get(definition);
    strategic::merge(table, root, current.clone(), patch).map_err(|e| {
        let reason = if e.is_format() { Reason::BadRequest } else { Reason::Invalid };
        ApiError::new(reason, e.to_string())
    })
}

fn must_be_map(patch: &Value, before: &str) -> Result<(), ApiError> {
    if patch.is_object() {
        return Ok(());
    }
    let what = decode::json_kind(patch);
    Err(ApiError::bad_request(format!(
        "{before}json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
    )))
}
