//! The parameters of a binding.
//!
//! Upstream counterpart: `CollectParams` of `admission/plugin/policy/generic/policy_dispatcher.go`.

use std::sync::Arc;

use kube_common::selector::LabelSelector;
use serde_json::Value;

use super::text;

/// The kind of a policy's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamKind {
    /// `group/version`, or a version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
}

impl ParamKind {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let own = |field: &str| text(value, field).to_owned();
        value.is_object().then(|| Self { api_version: own("apiVersion"), kind: own("kind") })
    }
}

/// Where parameters are found.
pub trait ParamLookup {
    /// Whether the kind is namespaced; nothing for an unknown kind.
    fn is_namespaced(&self, kind: &ParamKind) -> Option<bool>;
    /// One object, with `apiVersion` and `kind`.
    ///
    /// # Errors
    /// Why the store could not be asked.
    fn get(&self, kind: &ParamKind, namespace: Option<&str>, name: &str) -> Result<Option<Arc<Value>>, String>;
    /// All objects with the labels.
    ///
    /// # Errors
    /// Why the store could not be asked.
    fn list(
        &self,
        kind: &ParamKind,
        namespace: Option<&str>,
        selector: &LabelSelector,
    ) -> Result<Vec<Arc<Value>>, String>;
}

/// The parameters to evaluate with, one evaluation each; `None` is an evaluation with `params` null. None at all: not evaluated.
pub(super) fn collect(
    kind: Option<&ParamKind>,
    reference: &Value,
    namespace: &str,
    lookup: &dyn ParamLookup,
) -> Result<Vec<Option<Arc<Value>>>, String> {
    let (Some(kind), true) = (kind, reference.is_object()) else { return Ok(vec![None]) };
    let shown = || format!("{}, Kind={}", kind.api_version, kind.kind);
    let is_namespaced = lookup.is_namespaced(kind).ok_or_else(|| format!("paramKind kind `{}` not known", shown()))?;
    let own = text(reference, "namespace");
    let namespace = match (is_namespaced, own.is_empty()) {
        (true, false) => Some(own),
        (true, true) if namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, true) => Some(namespace),
        (false, false) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
        (false, true) => None,
    };
    let name = text(reference, "name");
    let selector = &reference["selector"];
    let found: Vec<Arc<Value>> = match (name.is_empty(), selector.is_null()) {
        (false, false) => return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned()),
        (false, true) => lookup.get(kind, namespace, name)?.into_iter().collect(),
        (true, false) => {
            let selector = LabelSelector::from_json(Some(selector)).map_err(|error| error.to_string())?;
            lookup.list(kind, namespace, &selector)?
        }
        (true, true) => return Err("one of name or selector must be provided".to_owned()),
    };
    if found.is_empty() && text(reference, "parameterNotFoundAction") == "Deny" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found.into_iter().map(Some).collect())
}
