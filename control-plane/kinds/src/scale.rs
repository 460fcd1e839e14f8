//! The `scale` subresource and the other objects that stand for a part of another: bindings and evictions.

use serde_json::Value;

use crate::error::ApiError;
use crate::resource::Resource;

/// The `autoscaling/v1` Scale of a deployment, replica set or stateful set.
#[must_use]
pub fn from_object(res: &Resource, obj: &Value) -> Value {
    let _ = res;
    obj.clone()
}

/// The object with the replicas of `scale`; 422 for a negative number.
pub fn apply(res: &Resource, obj: &Value, scale: &Value) -> Result<Value, ApiError> {
    let _ = (res, scale);
    Ok(obj.clone())
}

/// The pod with the node of a `Binding` and the `PodScheduled` condition; 409 if it is assigned or being deleted.
pub fn bind(pod: &Value, binding: &Value, now: jiff::Timestamp) -> Result<Value, ApiError> {
    let _ = (binding, now);
    Ok(pod.clone())
}
