//! Quality of service classes.
//!
//! Upstream counterpart: `pkg/apis/core/helper/qos`.

use kube_common::quantity::Quantity;
use serde_json::Value;

use crate::val;

/// `Guaranteed`, `Burstable` or `BestEffort`: the first if every container limits CPU and memory and requests just that, the last if
/// none requests or limits either.
#[must_use]
pub fn qos_class(pod: &Value) -> &'static str {
    let containers = || val::list(pod, "spec.containers").iter().chain(val::list(pod, "spec.initContainers"));
    let amount = |c: &Value, kind: &str, resource: &str| -> Option<i64> {
        let quantity = Quantity::parse(val::text(c, &format!("resources.{kind}.{resource}"))).ok()?;
        let nano = if resource == "cpu" { quantity.milli() } else { quantity.value() };
        (nano > 0).then_some(nano)
    };
    let mut any = false;
    let mut guaranteed = true;
    for c in containers() {
        for resource in ["cpu", "memory"] {
            let (request, limit) = (amount(c, "requests", resource), amount(c, "limits", resource));
            any |= request.is_some() || limit.is_some();
            // A request that is not written is the limit.
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"resources": resources}]}});
        assert_eq!(qos_class(&pod(json!({}))), "BestEffort");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "1m"}}))), "Burstable");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "0"}}))), "BestEffort");
        let both = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
        assert_eq!(qos_class(&pod(both)), "Guaranteed");
        assert_eq!(qos_class(&pod(json!({"limits": {"cpu": "1", "memory": "1Gi"}}))), "Guaranteed");
        assert_eq!(qos_class(&pod(json!({"limits": {"cpu": "1"}}))), "Burstable");
        let mut two = pod(json!({"limits": {"cpu": "1", "memory": "1Gi"}}));
        two["spec"]["initContainers"] = json!([{"name": "i"}]);
        assert_eq!(qos_class(&two), "Burstable");
    }
}
