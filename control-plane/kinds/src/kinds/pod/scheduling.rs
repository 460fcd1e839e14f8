//! Validation of where a pod may go: tolerations, affinities, spread constraints.
//!
//! Upstream counterpart: `ValidateTolerations`, `validateAffinity`, `validateTopologySpreadConstraints`.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::check;
use crate::error::FieldError;
use crate::{meta, names, val};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const IN_BOTH: &str = "exists in both matchLabelKeys and";

/// Validates tolerations that messages call `at`.
pub(super) fn tolerations(items: &[Value], at: &str, errors: &mut Vec<FieldError>) {
    for (i, toleration) in items.iter().enumerate() {
        let f = |name: &str| format!("{at}[{i}].{name}");
        let text = |name: &str| val::text(toleration, name);
        let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
        check::optional(key, &f("key"), names::qualified_name, errors);
        if key.is_empty() && operator != "Exists" {
            errors.push(FieldError::invalid(
                f("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if val::at(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let message = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(f("effect"), effect, message));
        }
        match operator {
            "" | "Equal" => {
                let wrong = names::label_value(value);
                if !wrong.is_empty() {
                    errors.push(FieldError::invalid(f("operator"), value, wrong.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let message = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(f("operator"), value, message));
            }
            "Exists" => {}
            "Lt" | "Gt" => comparison(value, &f("value"), errors),
            other => errors.push(FieldError::not_supported(f("operator"), other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            check::supported(effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"], &f("effect"), errors);
        }
    }
}

/// What a taint's number is compared with.
fn comparison(value: &str, at: &str, errors: &mut Vec<FieldError>) {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let is_canonical = !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'))
        && value != "-0";
    if !is_canonical {
        errors.push(FieldError::invalid(at, value, "must be a valid decimal integer in canonical form"));
    }
    if value.parse::<i64>().is_err() {
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let why = if is_number { "value out of range" } else { "invalid syntax" };
        let quoted = crate::error::go_quote(value);
        errors.push(FieldError::invalid(at, value, format!("strconv.ParseInt: parsing {quoted}: {why}")));
    }
}

/// Validates the three affinities.
pub(super) fn affinity(affinity: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(required) = val::at(affinity, &format!("nodeAffinity.{REQUIRED}")) {
        node_selector(required, &format!("{at}.nodeAffinity.{REQUIRED}"), errors);
    }
    for (i, item) in val::list(affinity, &format!("nodeAffinity.{PREFERRED}")).iter().enumerate() {
        let at = format!("{at}.nodeAffinity.{PREFERRED}[{i}]");
        weight(item, &at, errors);
        // A preference may hope for labels that no node can have.
        node_term(item.get("preference").unwrap_or(&Value::Null), false, &format!("{at}.preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (i, term) in val::list(affinity, &format!("{kind}.{REQUIRED}")).iter().enumerate() {
            pod_term(term, &format!("{at}.{kind}.{REQUIRED}[{i}]"), errors);
        }
        for (i, item) in val::list(affinity, &format!("{kind}.{PREFERRED}")).iter().enumerate() {
            let at = format!("{at}.{kind}.{PREFERRED}[{i}]");
            weight(item, &at, errors);
            pod_term(item.get("podAffinityTerm").unwrap_or(&Value::Null), &format!("{at}.podAffinityTerm"), errors);
        }
    }
}

fn weight(item: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let weight = val::int(item, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(format!("{at}.weight"), weight, "must be in the range 1-100"));
    }
}

/// Validates a selector of nodes.
fn node_selector(selector: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let at = format!("{at}.nodeSelectorTerms");
    let terms = val::list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(at, "must have at least one node selector term"));
        return;
    }
    for (i, term) in terms.iter().enumerate() {
        node_term(term, true, &format!("{at}[{i}]"), errors);
    }
}

fn node_term(term: &Value, is_strict: bool, at: &str, errors: &mut Vec<FieldError>) {
    for (i, requirement) in val::list(term, "matchExpressions").iter().enumerate() {
        let at = format!("{at}.matchExpressions[{i}]");
        let values = val::list(requirement, "values");
        match val::text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                format!("{at}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
                format!("{at}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "Gt" | "Lt" if values.len() != 1 => errors.push(FieldError::required(
                format!("{at}.values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => {
                errors.push(FieldError::invalid(format!("{at}.operator"), other, "not a valid selector operator"));
            }
        }
        check::text(val::text(requirement, "key"), &format!("{at}.key"), names::qualified_name, errors);
        if is_strict {
            for (j, value) in values.iter().filter_map(Value::as_str).enumerate() {
                check::text(value, &format!("{at}.values[{j}]"), names::label_value, errors);
            }
        }
    }
    for (i, requirement) in val::list(term, "matchFields").iter().enumerate() {
        node_field(requirement, &format!("{at}.matchFields[{i}]"), errors);
    }
}

fn node_field(requirement: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let (key, values) = (val::text(requirement, "key"), val::list(requirement, "values"));
    match val::text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => errors.push(FieldError::required(
            format!("{at}.values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        )),
        "In" | "NotIn" => {}
        other => errors.push(FieldError::invalid(format!("{at}.operator"), other, "not a valid selector operator")),
    }
    if key != "metadata.name" {
        errors.push(FieldError::invalid(format!("{at}.key"), key, "not a valid field selector key"));
        return;
    }
    for (j, value) in values.iter().filter_map(Value::as_str).enumerate() {
        check::text(value, &format!("{at}.values[{j}]"), names::dns1123_subdomain, errors);
    }
}

fn pod_term(term: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for key in ["labelSelector", "namespaceSelector"] {
        errors.extend(meta::selector(val::at(term, key), &format!("{at}.{key}")));
    }
    for name in val::list(term, "namespaces").iter().filter_map(Value::as_str) {
        check::text(name, &format!("{at}.namespace"), names::dns1123_label, errors);
    }
    label_keys(term, at, errors);
    let key = val::text(term, "topologyKey");
    let key_at = format!("{at}.topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(key_at.as_str(), "can not be empty"));
    }
    check::text(key, &key_at, names::qualified_name, errors);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys`, whose values the pod's own labels give.
fn label_keys(term: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let selector = val::at(term, "labelSelector");
    let keys = |list: &str| -> Vec<&str> { val::list(term, list).iter().filter_map(Value::as_str).collect() };
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = keys(list);
        let at = format!("{at}.{list}");
        if !keys.is_empty() && selector.is_none() {
            errors.push(FieldError::forbidden(at, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (i, key) in keys.into_iter().enumerate() {
            check::text(key, &format!("{at}[{i}]"), names::qualified_name, errors);
        }
    }
    let (matching, differing) = (keys("matchLabelKeys"), keys("mismatchLabelKeys"));
    if let Some(selector) = selector {
        let index: HashMap<&str, usize> = matching.iter().enumerate().map(|(i, key)| (*key, i)).collect();
        let mut seen: HashSet<&str> = val::entries(selector, "matchLabels").map(|(key, _)| key.as_str()).collect();
        for expression in val::list(selector, "matchExpressions") {
            let key = val::text(expression, "key");
            if let Some(i) = index.get(key).filter(|_| seen.contains(key)) {
                errors.push(FieldError::invalid(format!("{at}[{i}]"), key, format!("{IN_BOTH} labelSelector")));
            }
            seen.insert(key);
        }
    }
    let differing: HashSet<&str> = differing.into_iter().collect();
    for (i, key) in matching.into_iter().enumerate().filter(|(_, key)| differing.contains(key)) {
        let at = format!("{at}.matchLabelKeys[{i}]");
        errors.push(FieldError::invalid(at, key, format!("{IN_BOTH} mismatchLabelKeys")));
    }
}

/// Validates the spread constraints of a spec.
pub(super) fn spread(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let constraints = val::list(spec, "topologySpreadConstraints");
    let pair = |constraint: &Value| {
        (val::text(constraint, "topologyKey").to_owned(), val::text(constraint, "whenUnsatisfiable").to_owned())
    };
    let mut left: HashMap<_, usize> = HashMap::new();
    for constraint in constraints {
        *left.entry(pair(constraint)).or_default() += 1;
    }
    for (i, constraint) in constraints.iter().enumerate() {
        let at = format!("{at}.topologySpreadConstraints[{i}]");
        let f = |name: &str| format!("{at}.{name}");
        positive(val::int(constraint, "maxSkew").unwrap_or(0), &f("maxSkew"), errors);
        let key = val::text(constraint, "topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(f("topologyKey"), "can not be empty"));
        }
        let when = val::text(constraint, "whenUnsatisfiable");
        check::supported(when, &["DoNotSchedule", "ScheduleAnyway"], &f("whenUnsatisfiable"), errors);
        if let Some(count) = left.get_mut(&pair(constraint)) {
            *count -= 1;
            if *count > 0 {
                let shown = format!("{{{key}, {when}}}");
                errors.push(FieldError::duplicate(f("{topologyKey, whenUnsatisfiable}"), shown));
            }
        }
        if let Some(domains) = val::int(constraint, "minDomains") {
            positive(domains, &f("minDomains"), errors);
            if when != "DoNotSchedule" {
                let message = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
                errors.push(FieldError::invalid(f("minDomains"), domains, message));
            }
        }
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = check::present(constraint, key) {
                check::supported(policy, &["Honor", "Ignore"], &f(key), errors);
            }
        }
        label_keys(constraint, &at, errors);
        errors.extend(meta::selector(val::at(constraint, "labelSelector"), &f("labelSelector")));
    }
}

fn positive(n: i64, at: &str, errors: &mut Vec<FieldError>) {
    if n <= 0 {
        errors.push(FieldError::invalid(at, n, "must be greater than zero"));
    }
}
