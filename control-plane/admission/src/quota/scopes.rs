//! Which objects a quota is about.
//!
//! Upstream counterparts: `podMatchesScopeFunc`, `pvcMatchesScopeFunc`, `ScopedResourceSelectorRequirementsAsSelector`.

use std::collections::{BTreeMap, BTreeSet};

use kube_common::selector::{LabelSelector, SelectorError};
use serde_json::Value;

use super::evaluator::Evaluator;
use super::pods;
use crate::json::{items, text};

/// Whether all of a quota's scopes hold for an object. Kinds other than pods and claims are in no scope.
pub(super) fn matches(evaluator: &Evaluator<'_>, quota: &Value, object: &Value) -> Result<bool, SelectorError> {
    let spec = &quota["spec"];
    for scope in items(&spec["scopes"]) {
        if !one(evaluator, text(scope), "Exists", &[], object)? {
            return Ok(false);
        }
    }
    for expression in items(&spec["scopeSelector"]["matchExpressions"]) {
        let (scope, operator) = (text(&expression["scopeName"]), text(&expression["operator"]));
        if !one(evaluator, scope, operator, items(&expression["values"]), object)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn one(
    evaluator: &Evaluator<'_>,
    scope: &str,
    operator: &str,
    values: &[Value],
    object: &Value,
) -> Result<bool, SelectorError> {
    let named = |names: BTreeSet<&str>| by_name(scope, operator, values, names);
    Ok(match (evaluator, scope) {
        (Evaluator::Pods, "Terminating") => pods::terminating(object),
        (Evaluator::Pods, "NotTerminating") => !pods::terminating(object),
        (Evaluator::Pods, "BestEffort") => pods::best_effort(object),
        (Evaluator::Pods, "NotBestEffort") => !pods::best_effort(object),
        (Evaluator::Pods, "CrossNamespacePodAffinity") => pods::crosses_namespaces(object),
        (Evaluator::Pods, "PriorityClass") => {
            let class = text(&object["spec"]["priorityClassName"]);
            named(Some(class).filter(|class| !class.is_empty()).into_iter().collect())?
        }
        (Evaluator::Claims, "VolumeAttributesClass") => named(attributes_classes(object))?,
        _ => false,
    })
}

/// Whether the class of an object, or one of its classes, is selected.
fn by_name(scope: &str, operator: &str, values: &[Value], names: BTreeSet<&str>) -> Result<bool, SelectorError> {
    if operator == "Exists" {
        return Ok(!names.is_empty());
    }
    let values = values.iter().map(|value| text(value).to_owned()).collect();
    let selector = LabelSelector::everything().and(scope, operator, values)?;
    let selects = |name: Option<&str>| {
        let labels: BTreeMap<String, String> =
            name.map(|name| (scope.to_owned(), name.to_owned())).into_iter().collect();
        selector.matches(&labels)
    };
    Ok(if names.is_empty() { selects(None) } else { names.into_iter().any(|name| selects(Some(name))) })
}

/// The class that a claim asks for, has, and is changed to.
pub(super) fn attributes_classes(claim: &Value) -> BTreeSet<&str> {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let all = [
        &spec["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    all.into_iter().map(text).filter(|name| !name.is_empty()).collect()
}
