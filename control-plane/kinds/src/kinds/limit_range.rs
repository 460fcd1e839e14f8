//! The `LimitRange` kind: its defaults and its validation.

use std::collections::BTreeSet;

use kube_common::quantity::Quantity;
use serde_json::Value;

use crate::error::FieldError;
use crate::names::qualified_name;
use crate::{resource_names as names, val};

/// Beyond this, amounts are compared in whole units (upstream's `resource.MaxMilliValue`).
const MAX_MILLI: i64 = i64::MAX / 1000;

/// Fills a limit range's own gaps, for containers: `max` fills `default`, `default` fills `defaultRequest`, `min` what is left.
pub fn default(limit_range: &mut Value) {
    for item in val::list_mut(val::child(limit_range, "spec"), "limits").filter(|item| item["type"] == "Container") {
        for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
            let Some(Value::Object(source)) = item.get(from).cloned() else { continue };
            for (name, amount) in source {
                val::default(val::child(item, to), &name, amount);
            }
        }
    }
}

/// What is wrong with a limit range; `metadata` is not looked at. It holds for updates as well.
#[must_use]
pub fn validate(limit_range: &Value) -> Vec<FieldError> {
    let mut seen = BTreeSet::new();
    let mut errors = Vec::new();
    for (index, item) in val::list(limit_range, "spec.limits").iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let kind = val::text(item, "type");
        errors.extend(type_name(kind, &format!("{path}.type")));
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(format!("{path}.type"), kind));
        }
        errors.extend(names_of(item, kind, &path));
        let keys: BTreeSet<&str> = parts(item).filter(|(part, _)| counts(kind, part)).map(|(_, name)| name).collect();
        for key in keys {
            Amounts::of(item, kind, key).validate(&path, &mut errors);
        }
    }
    errors
}

/// Pods have no defaults; what stands there is refused as such, and not compared.
fn counts(kind: &str, part: &str) -> bool {
    kind != "Pod" || !part.starts_with("default")
}

fn type_name(kind: &str, path: &str) -> Vec<FieldError> {
    let wrong = qualified_name(kind);
    if !wrong.is_empty() {
        return wrong.into_iter().map(|detail| FieldError::invalid(path, kind, detail)).collect();
    }
    if kind.contains('/') || matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") {
        return Vec::new();
    }
    vec![FieldError::invalid(path, kind, "must be a standard limit type or fully qualified")]
}

/// The names of resources, what may not be given and what must be.
fn names_of(item: &Value, kind: &str, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut refused_defaults = BTreeSet::new();
    for (part, name) in parts(item) {
        if counts(kind, part) {
            errors.extend(resource_name(kind, name, &format!("{path}.{part}[{name}]")));
        } else if refused_defaults.insert(part) {
            let detail = "may not be specified when `type` is 'Pod'";
            errors.push(FieldError::forbidden(format!("{path}.{part}"), detail));
        }
    }
    if kind == "PersistentVolumeClaim" && item["min"]["storage"].is_null() && item["max"]["storage"].is_null() {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(format!("{path}.limits"), detail));
    }
    errors
}

fn resource_name(kind: &str, name: &str, path: &str) -> Vec<FieldError> {
    let invalid = |detail: &str| FieldError::invalid(path, name, detail);
    let mut errors: Vec<FieldError> = qualified_name(name).iter().map(|detail| invalid(detail)).collect();
    if errors.is_empty() && !name.contains('/') && !names::standard(name) {
        errors.push(invalid("must be a standard resource type or fully qualified"));
    }
    if matches!(kind, "Pod" | "Container") {
        if !name.contains('/') {
            if !names::of_containers(name) {
                errors.push(invalid("must be a standard resource for containers"));
            }
        } else if !names::native(name) && !names::extended(name) {
            errors.push(invalid("doesn't follow extended resource name standard"));
        }
    }
    errors
}

/// All that one item says about one resource.
struct Amounts<'a> {
    key: &'a str,
    min: Option<Quantity>,
    max: Option<Quantity>,
    default: Option<Quantity>,
    request: Option<Quantity>,
    ratio: Option<Quantity>,
}

impl<'a> Amounts<'a> {
    fn of(item: &Value, kind: &str, key: &'a str) -> Self {
        let at = |part: &str| {
            let found = val::map(item, part).and_then(|amounts| amounts.get(key));
            found.and_then(names::quantity).filter(|_| counts(kind, part))
        };
        let (default, request) = (at("default"), at("defaultRequest"));
        Self { key, min: at("min"), max: at("max"), default, request, ratio: at("maxLimitRequestRatio") }
    }

    fn validate(&self, path: &str, errors: &mut Vec<FieldError>) {
        let key = self.key;
        // Lower and upper amount in words, and where and with which value upstream complains.
        let orders = [
            ("min value", self.min, "max value", self.max, "min", self.min),
            ("min value", self.min, "default request value", self.request, "defaultRequest", self.request),
            ("default request value", self.request, "max value", self.max, "defaultRequest", self.request),
            (
                "default request value",
                self.request,
                "default limit value",
                self.default,
                "defaultRequest",
                self.request,
            ),
            ("min value", self.min, "default value", self.default, "default", self.min),
            ("default value", self.default, "max value", self.max, "default", self.max),
        ];
        for (low_name, low, high_name, high, part, shown) in orders {
            let (Some(low), Some(high), Some(shown)) = (low, high, shown) else { continue };
            if low > high {
                let detail = format!("{low_name} {low} is greater than {high_name} {high}");
                errors.push(FieldError::invalid(format!("{path}.{part}[{key}]"), shown.to_string(), detail));
            }
        }
        self.validate_ratio(path, errors);
        if let (false, Some(default), Some(request)) = (names::overcommit(key), self.default, self.request)
            && default != request
        {
            let detail = format!("default value {default} must equal to defaultRequest value {request} in {key}");
            errors.push(FieldError::invalid(format!("{path}.defaultRequest[{key}]"), request.to_string(), detail));
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn validate_ratio(&self, path: &str, errors: &mut Vec<FieldError>) {
        let Some(ratio) = self.ratio else { return };
        let mut invalid = |detail: String| {
            let field = format!("{path}.maxLimitRequestRatio[{}]", self.key);
            errors.push(FieldError::invalid(field, ratio.to_string(), detail));
        };
        if ratio < Quantity::from_value(1) {
            invalid(format!("ratio {ratio} is less than 1"));
        }
        let (Some(min), Some(max)) = (self.min, self.max) else { return };
        let fine = [ratio, min, max].iter().all(|amount| amount.value() < MAX_MILLI);
        let (given, greatest) = if fine {
            (ratio.milli() as f64 / 1000.0, max.milli() as f64 / min.milli() as f64)
        } else {
            (ratio.value() as f64, max.value() as f64 / min.value() as f64)
        };
        if given > greatest {
            invalid(format!("ratio {ratio} is greater than max/min = {greatest:.6}"));
        }
    }
}

/// All amounts of an item, by the part that they are in.
fn parts(item: &Value) -> impl Iterator<Item = (&'static str, &str)> {
    let of = |part: &'static str| val::entries(item, part).map(move |(name, _)| (part, name.as_str()));
    ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"].into_iter().flat_map(of)
}
