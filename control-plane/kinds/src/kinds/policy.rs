//! Quotas, limit ranges, disruption budgets, autoscalers.
//!
//! Upstream counterparts: `pkg/apis/core`, `pkg/apis/policy`, `pkg/apis/autoscaling`.

use k8s_openapi::api::autoscaling::v2 as autoscaling;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use serde_json::{Value, json};

use super::{not_negative, status};
use crate::error::FieldError;
use crate::strategy::Rules;
use crate::table::{AGE, CREATED_AT, Columns, NAME, age_of, name_of, number, text};
use crate::{meta, val};

static QUOTA_RULES: Rules = Rules {
    create: |obj| val::set(obj, "status", json!({})),
    validate: |obj| super::quota::validate(obj, None),
    validate_update: |new, old, part| match part {
        crate::strategy::Part::Status => super::quota::validate_status(new),
        _ => super::quota::validate(new, Some(old)),
    },
    status: true,
    ..Rules::PLAIN
};

static QUOTA_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Request"), text("Limit"), AGE],
    cells: |obj, now| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in val::entries(obj, "status.hard") {
            let used = val::map(obj, "status.used").and_then(|u| u.get(name)).and_then(Value::as_str).unwrap_or("0");
            let part = format!("{name}: {used}/{}", hard.as_str().unwrap_or(""));
            if name.starts_with("limits") { limits.push(part) } else { requests.push(part) }
        }
        vec![name_of(obj), json!(requests.join(", ")), json!(limits.join(", ")), age_of(obj, now)]
    },
};

kind!(RESOURCE_QUOTAS: "core" "" "v1" "ResourceQuota", "resourcequotas" "resourcequota", Namespaced "/registry/resourcequotas/",
    core::ResourceQuota, QUOTA_RULES, QUOTA_COLUMNS, short_names: &["quota"], subresources: &[status("", "v1", "ResourceQuota")]);

static LIMIT_RULES: Rules = Rules {
    create_on_update: true,
    defaults: super::limit_range::default,
    validate: super::limit_range::validate,
    ..Rules::PLAIN
};

kind!(LIMIT_RANGES: "core" "" "v1" "LimitRange", "limitranges" "limitrange", Namespaced "/registry/limitranges/", core::LimitRange,
    LIMIT_RULES, CREATED_AT, short_names: &["limits"]);

static BUDGET_RULES: Rules = Rules {
    create: |obj| {
        let zero = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        val::set(obj, "status", zero);
    },
    validate: |obj| {
        let mut errors = Vec::new();
        if val::at(obj, "spec.minAvailable").is_some() && val::at(obj, "spec.maxUnavailable").is_some() {
            errors.push(FieldError::invalid(
                "spec",
                obj["spec"].clone(),
                "minAvailable and maxUnavailable cannot be both set",
            ));
        }
        errors.extend(meta::selector(val::at(obj, "spec.selector"), "spec.selector"));
        errors
    },
    ..Rules::SPEC
};

static BUDGET_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Min Available"), text("Max Unavailable"), number("Allowed Disruptions"), AGE],
    cells: |obj, now| {
        let shown = |path: &str| match val::at(obj, path) {
            Some(Value::String(s)) => json!(s),
            Some(n) => json!(n.to_string()),
            None => json!("N/A"),
        };
        vec![
            name_of(obj),
            shown("spec.minAvailable"),
            shown("spec.maxUnavailable"),
            json!(val::int(obj, "status.disruptionsAllowed").unwrap_or(0)),
            age_of(obj, now),
        ]
    },
};

kind!(DISRUPTION_BUDGETS: "policy" "policy" "v1" "PodDisruptionBudget", "poddisruptionbudgets" "poddisruptionbudget", Namespaced
    "/registry/poddisruptionbudgets/", policy::PodDisruptionBudget, BUDGET_RULES, BUDGET_COLUMNS, short_names: &["pdb"],
    subresources: &[status("policy", "v1", "PodDisruptionBudget")]);

static AUTOSCALER_RULES: Rules = Rules {
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "minReplicas", 1);
        if val::list(spec, "metrics").is_empty() {
            val::set(
                spec,
                "metrics",
                json!([{"type": "Resource", "resource": {
                    "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]),
            );
        }
    },
    create: |obj| val::set(obj, "status", json!({"currentMetrics": null, "desiredReplicas": 0})),
    validate: |obj| {
        let mut errors: Vec<FieldError> = not_negative(obj, "spec.minReplicas").into_iter().collect();
        let (least, most) =
            (val::int(obj, "spec.minReplicas").unwrap_or(1), val::int(obj, "spec.maxReplicas").unwrap_or(0));
        if most < 1 {
            errors.push(FieldError::invalid("spec.maxReplicas", most, "must be greater than 0"));
        }
        if most < least {
            errors.push(FieldError::invalid(
                "spec.maxReplicas",
                most,
                "must be greater than or equal to `minReplicas`",
            ));
        }
        for key in ["kind", "name"] {
            if val::text(obj, &format!("spec.scaleTargetRef.{key}")).is_empty() {
                errors.push(FieldError::required(format!("spec.scaleTargetRef.{key}"), ""));
            }
        }
        errors
    },
    status: true,
    ..Rules::PLAIN
};

static AUTOSCALER_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Reference"), text("Targets"), text("MinPods"), text("MaxPods"), number("Replicas"), AGE],
    cells: |obj, now| {
        let reference =
            format!("{}/{}", val::text(obj, "spec.scaleTargetRef.kind"), val::text(obj, "spec.scaleTargetRef.name"));
        let least = val::int(obj, "spec.minReplicas").map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
        vec![
            name_of(obj),
            json!(reference),
            json!(targets(obj)),
            json!(least),
            json!(val::int(obj, "spec.maxReplicas").unwrap_or(0).to_string()),
            json!(val::int(obj, "status.currentReplicas").unwrap_or(0)),
            age_of(obj, now),
        ]
    },
};

/// Current and wanted value of each metric, as far as they are resource metrics.
fn targets(obj: &Value) -> String {
    let current = val::list(obj, "status.currentMetrics");
    let shown: Vec<String> = val::list(obj, "spec.metrics")
        .iter()
        .enumerate()
        .take(2)
        .map(|(i, metric)| {
            let name = val::text(metric, "resource.name");
            let now = current.get(i).and_then(|m| val::int(m, "resource.current.averageUtilization"));
            let now = now.map_or_else(|| "<unknown>".to_owned(), |n| format!("{n}%"));
            match val::int(metric, "resource.target.averageUtilization") {
                Some(wanted) => format!("{name}: {now}/{wanted}%"),
                None => {
                    let wanted = val::text(metric, "resource.target.averageValue");
                    format!("{name}: <unknown>/{}", if wanted.is_empty() { "<auto>" } else { wanted })
                }
            }
        })
        .collect();
    if shown.is_empty() { "<none>".to_owned() } else { shown.join(", ") }
}

kind!(AUTOSCALERS: "autoscaling" "autoscaling" "v2" "HorizontalPodAutoscaler", "horizontalpodautoscalers"
    "horizontalpodautoscaler", Namespaced "/registry/horizontalpodautoscalers/", autoscaling::HorizontalPodAutoscaler,
    AUTOSCALER_RULES, AUTOSCALER_COLUMNS, short_names: &["hpa"], categories: &["all"],
    subresources: &[status("autoscaling", "v2", "HorizontalPodAutoscaler")]);
