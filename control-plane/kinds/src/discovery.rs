//! Discovery documents, plain and aggregated, and the version document.
//!
//! Upstream counterpart: `apiserver/pkg/endpoints/discovery` and its `aggregated` package.

use serde_json::Value;

/// `/api`. `address` is host:port of this server.
#[must_use]
pub fn api_versions(address: &str) -> Value {
    let _ = address;
    Value::Null
}

/// `/apis`: an `APIGroupList`.
#[must_use]
pub fn api_groups() -> Value {
    Value::Null
}

/// `/apis/GROUP`: an `APIGroup`.
#[must_use]
pub fn api_group(group: &str) -> Option<Value> {
    let _ = group;
    None
}

/// `/api/v1` (empty group) and `/apis/GROUP/VERSION`: an `APIResourceList`.
#[must_use]
pub fn api_resources(group: &str, version: &str) -> Option<Value> {
    let _ = (group, version);
    None
}

/// Aggregated discovery of `/api` (`core` true) or `/apis`: an `apidiscovery.k8s.io/v2` `APIGroupDiscoveryList`.
#[must_use]
pub fn aggregated(core: bool) -> Value {
    let _ = core;
    Value::Null
}

/// `/version`.
#[must_use]
pub fn version() -> Value {
    Value::Null
}
