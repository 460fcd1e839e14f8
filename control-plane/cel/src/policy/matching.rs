//! Whether a request is among those that `matchConstraints` or `matchResources` describe.
//!
//! Upstream counterpart: `admission/plugin/policy/matching` and `admission/plugin/webhook/predicates`.

use kube_common::selector::LabelSelector;
use serde_json::{Map, Value};

use super::{Attributes, ResourceKind, list, text};

/// As what a request matches: its own resource, or an equivalent one.
///
/// # Errors
/// For a selector that cannot be read, if the request would match otherwise.
pub fn matches(constraints: &Value, attributes: &Attributes<'_>) -> Result<Option<ResourceKind>, String> {
    let namespace = namespace_matches(constraints, attributes);
    let object = object_matches(constraints, attributes);
    if namespace == Ok(false) || object == Ok(false) {
        return Ok(None);
    }
    let fuzzy = constraints["matchPolicy"].as_str() == Some("Equivalent");
    if matching_rule(list(&constraints["excludeResourceRules"]), fuzzy, attributes).is_some() {
        return Ok(None);
    }
    let rules = list(&constraints["resourceRules"]);
    let matched =
        if rules.is_empty() { Some(attributes.resource.clone()) } else { matching_rule(rules, fuzzy, attributes) };
    if matched.is_some() {
        namespace?;
        object?;
    }
    Ok(matched)
}

fn matching_rule(rules: &[Value], fuzzy: bool, attributes: &Attributes<'_>) -> Option<ResourceKind> {
    let applies = |rule: &Value, resource: &ResourceKind| {
        let names = list(&rule["resourceNames"]);
        rule_matches(rule, resource, attributes)
            && (names.is_empty() || names.iter().any(|name| name == attributes.name))
    };
    if rules.iter().any(|rule| applies(rule, attributes.resource)) {
        return Some(attributes.resource.clone());
    }
    if !fuzzy {
        return None;
    }
    let others = || attributes.equivalents.iter().filter(|other| *other != attributes.resource);
    rules.iter().find_map(|rule| others().find(|other| applies(rule, other))).cloned()
}

/// Whether one rule with operations is for the resource.
#[must_use]
pub fn rule_matches(rule: &Value, resource: &ResourceKind, attributes: &Attributes<'_>) -> bool {
    let has = |field: &str, wanted: &str| list(&rule[field]).iter().any(|value| value == "*" || value == wanted);
    let in_scope = match text(rule, "scope") {
        "Namespaced" => resource.resource != "namespaces" && !attributes.namespace.is_empty(),
        "Cluster" => resource.resource == "namespaces" || attributes.namespace.is_empty(),
        _ => true,
    };
    let is_named = list(&rule["resources"]).iter().filter_map(Value::as_str).any(|named| {
        let (name, sub) = named.split_once('/').unwrap_or((named, ""));
        (name == "*" || name == resource.resource) && (sub == "*" || sub == attributes.subresource)
    });
    in_scope
        && is_named
        && has("operations", attributes.operation)
        && has("apiGroups", &resource.group)
        && has("apiVersions", &resource.version)
}

fn selector(value: &Value) -> Result<Option<LabelSelector>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let selector = LabelSelector::from_json(Some(value)).map_err(|error| error.to_string())?;
    Ok((!selector.is_everything()).then_some(selector))
}

fn labels(object: Option<&Value>) -> Option<&Map<String, Value>> {
    object.and_then(|object| object["metadata"]["labels"].as_object())
}

fn namespace_matches(constraints: &Value, attributes: &Attributes<'_>) -> Result<bool, String> {
    let is_namespace = attributes.resource.group.is_empty() && attributes.resource.resource == "namespaces";
    if attributes.namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    let Some(selector) = selector(&constraints["namespaceSelector"])? else { return Ok(true) };
    // A namespace that is written is judged by its new labels; everything else by its namespace's.
    let written =
        is_namespace && attributes.subresource.is_empty() && matches!(attributes.operation, "CREATE" | "UPDATE");
    let namespace = if written {
        attributes.object
    } else {
        attributes.namespace_object.or(attributes.old_object.filter(|_| is_namespace))
    };
    Ok(selector.matches(&labels(namespace)))
}

fn object_matches(constraints: &Value, attributes: &Attributes<'_>) -> Result<bool, String> {
    let Some(selector) = selector(&constraints["objectSelector"])? else { return Ok(true) };
    let one = |object: Option<&Value>| object.is_some() && selector.matches(&labels(object));
    Ok(one(attributes.object) || one(attributes.old_object))
}
