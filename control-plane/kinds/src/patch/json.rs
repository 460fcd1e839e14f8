//! JSON patch (RFC 6902) with upstream's limits.

use json_patch::{Patch, PatchOperation};
use serde_json::Value;

use crate::decode;
use crate::error::{ApiError, Reason};

/// Upstream's `maxJSONPatchOperations`.
const MAX_OPERATIONS: usize = 10_000;
/// All that copy operations may add: upstream's limit of a request body, so that a small patch cannot build a huge object.
const MAX_COPIED: usize = 3 << 20;

pub(super) fn apply(current: &Value, patch: Value) -> Result<Value, ApiError> {
    let count = patch.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        return Err(ApiError::new(
            Reason::RequestEntityTooLarge,
            format!(
                "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
            ),
        ));
    }
    let wrong = match patch.as_array() {
        None => Some((&patch, "Patch")),
        Some(list) => list.iter().find(|item| !item.is_object()).map(|item| (item, "Operation")),
    };
    if let Some((value, of)) = wrong {
        let what = decode::json_kind(value);
        return Err(ApiError::bad_request(format!(
            "json: cannot unmarshal {what} into Go value of type jsonpatch.{of}"
        )));
    }
    // What an operation lacks is found out only when it is applied.
    let patch: Patch = serde_json::from_value(patch).map_err(|_| unprocessable())?;
    let out = bounded(current, &patch).map_err(|_| unprocessable())?;
    if out.is_object() { Ok(out) } else { Err(unprocessable()) }
}

/// Why a JSON patch was not applied. Not retryable with the same object.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// An operation cannot be applied; a `test` among them does not hold.
    #[error(transparent)]
    Operation(#[from] json_patch::PatchError),
    /// There are too many.
    #[error("the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooMany(usize),
    /// Copies make it grow too much.
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit {MAX_COPIED}"
    )]
    Copies(usize),
}

/// Applies a JSON patch of anybody's, a client's or a webhook's, within the limits.
///
/// # Errors
/// [`PatchError`].
pub fn bounded(current: &Value, patch: &Patch) -> Result<Value, PatchError> {
    if patch.0.len() > MAX_OPERATIONS {
        return Err(PatchError::TooMany(patch.0.len()));
    }
    let mut out = current.clone();
    let mut copied = 0;
    for operation in &patch.0 {
        if let PatchOperation::Copy(copy) = operation {
            copied += out.pointer(copy.from.as_str()).map_or(0, |v| v.to_string().len());
            if copied > MAX_COPIED {
                return Err(PatchError::Copies(copied));
            }
        }
        json_patch::patch(&mut out, std::slice::from_ref(operation))?;
    }
    Ok(out)
}

/// Upstream's generic answer, which does not tell what went wrong.
fn unprocessable() -> ApiError {
    ApiError::new(Reason::Invalid, "the server rejected our request due to an error in our request")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_and_tests() {
        let current = json!({"a": {"b": 1}, "l": [1, 2]});
        let patch = json!([
            {"op": "test", "path": "/a/b", "value": 1},
            {"op": "replace", "path": "/a/b", "value": 2},
            {"op": "add", "path": "/l/-", "value": 3},
            {"op": "remove", "path": "/l/0"},
            {"op": "copy", "from": "/a", "path": "/c"},
        ]);
        assert_eq!(apply(&current, patch).expect("applies"), json!({"a": {"b": 2}, "l": [2, 3], "c": {"b": 2}}));
        let failed = apply(&current, json!([{"op": "test", "path": "/a/b", "value": 5}])).expect_err("test fails");
        assert_eq!(failed.code, 422);
    }

    #[test]
    fn limits() {
        let many: Vec<Value> = (0..=MAX_OPERATIONS).map(|_| json!({"op": "test", "path": "", "value": {}})).collect();
        assert_eq!(apply(&json!({}), Value::Array(many)).expect_err("too many").code, 413);
        let current = json!({"a": "x".repeat(1000)});
        let bomb: Vec<Value> = (0..40).map(|i| json!({"op": "copy", "from": "", "path": format!("/k{i}")})).collect();
        assert_eq!(apply(&current, Value::Array(bomb)).expect_err("bomb").code, 422);
        assert_eq!(apply(&current, json!({"op": "add"})).expect_err("no list").code, 400);
        assert_eq!(apply(&current, json!([{"op": "replace", "path": "", "value": 1}])).expect_err("no map").code, 422);
    }
}
