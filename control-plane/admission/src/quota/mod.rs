//! Resource quotas: how much of what a namespace may hold.
//!
//! [`check`] goes from the quotas as they were read and a request to what the quotas hold afterwards; the caller writes that back by
//! compare-and-swap before the object is stored, and on conflict reads and checks again. [`recompute`] counts anew from all objects, for
//! the controller, which alone gives back what was deleted or shrank.
//!
//! The admission configuration that limits resources without any quota is not there; neither are quotas of devices by device class.
//!
//! Upstream counterparts: `k8s.io/apiserver/pkg/admission/plugin/resourcequota`, `k8s.io/apiserver/pkg/quota/v1`,
//! `pkg/quota/v1/evaluator/core`, `pkg/controller/resourcequota`.

mod evaluator;
mod pods;
mod recompute;
mod scopes;

use std::collections::BTreeSet;

use kube_common::quantity::Quantity;
use kube_common::selector::SelectorError;
use serde_json::{Value, json};

use crate::Change;
use crate::json::text;
use crate::resources::{ResourceList, add, parse, show, to_json};
use evaluator::Evaluator;
pub use recompute::{Listing, concerns, recompute, replenishes};

/// A write that may cost quota.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The API group, empty for core.
    pub group: &'a str,
    /// The plural resource.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// What is written.
    pub change: Change<'a>,
    /// Seconds since 1970: pods that should be gone do not count.
    pub now: i64,
}

/// What a quota holds once a request is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The quota's name.
    pub quota: String,
    /// The version of the quota that was read; only that one may be overwritten.
    pub resource_version: String,
    /// The new `status.used`.
    pub used: ResourceList,
}

impl Charge {
    /// Puts the new `status.used` into the quota, to be written or to check the next request against.
    pub fn apply_to(&self, quota: &mut Value) {
        if let Some(quota) = quota.as_object_mut() {
            crate::json::child(quota, "status").insert("used".to_owned(), to_json(&self.used));
        }
    }
}

/// Why a request is refused with 403; the server puts `pods "x" is forbidden: ` before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// A quota on processors or memory wants to know of each container how much it takes.
    #[error("failed quota: {quota}: must specify {missing}")]
    Unspecified {
        /// The quota's name.
        quota: String,
        /// `limits.cpu for: a,b; …`.
        missing: String,
    },
    /// The controller has not counted yet; retryable.
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    Unknown {
        /// The quota's name.
        quota: String,
        /// The resources, with commas between.
        resources: String,
    },
    /// Less than nothing was asked for.
    #[error("quota usage is negative for resource(s): {resources}")]
    Negative {
        /// The resources, with commas between.
        resources: String,
    },
    /// There is not enough left.
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded {
        /// The quota's name.
        quota: String,
        /// What is too much.
        requested: String,
        /// How much of it there was.
        used: String,
        /// How much of it there may be.
        limited: String,
    },
    /// A quota's scope cannot be read; validation lets none such in.
    #[error("error matching scopes of quota {quota}, err: {source}")]
    Scope {
        /// The quota's name.
        quota: String,
        /// What is wrong with it.
        source: SelectorError,
    },
}

impl QuotaError {
    /// Whether the same request may pass later although nothing else is deleted.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

/// Whether a request can cost quota at all; if not, [`check`] charges nothing.
#[must_use]
pub fn handles(request: &Request<'_>) -> bool {
    Evaluator::of(request.group, request.resource).is_some_and(|e| e.handles(request.subresource, request.change))
}

/// What an object counts for, by all names that a quota could use for it.
#[must_use]
pub fn usage(group: &str, resource: &str, object: &Value, now: i64) -> ResourceList {
    Evaluator::of(group, resource).map(|evaluator| evaluator.usage(object, now)).unwrap_or_default()
}

/// A quota that a request has to do with.
struct Affected<'a> {
    quota: &'a Value,
    name: &'a str,
    hard: ResourceList,
    used: ResourceList,
}

/// Checks a request against all quotas of its namespace, and says what they hold afterwards: only those that change, by name.
///
/// The order of the quotas is of no importance. An update costs what it adds; what it takes away is given back by [`recompute`] alone.
/// A quota without `status.hard` has not been seen by the controller and limits nothing yet.
///
/// # Errors
/// The first quota in order of names that refuses.
pub fn check<'a>(
    quotas: impl IntoIterator<Item = &'a Value>,
    request: &Request<'_>,
) -> Result<Vec<Charge>, QuotaError> {
    let Some(evaluator) = Evaluator::of(request.group, request.resource) else { return Ok(Vec::new()) };
    if !evaluator.handles(request.subresource, request.change) {
        return Ok(Vec::new());
    }
    let object = request.change.object();
    let mut quotas: Vec<&Value> = quotas.into_iter().collect();
    quotas.sort_by_key(|quota| text(&quota["metadata"]["name"]));
    let mut affected = Vec::new();
    for quota in quotas {
        affected.extend(affect(&evaluator, quota, object)?);
    }
    let full = evaluator.usage(object, request.now);
    let negative: Vec<&str> = full.iter().filter(|(_, a)| a.is_negative()).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        return Err(QuotaError::Negative { resources: negative.join(",") });
    }
    // An object that was never stored cannot have been charged for.
    let before = request.change.old().filter(|old| !text(&old["metadata"]["resourceVersion"]).is_empty());
    let added = before.map(|old| (old, beyond(&full, &evaluator.usage(old, request.now))));
    let mut charges = Vec::new();
    for quota in affected {
        let cost = match &added {
            Some((old, added)) if in_scope(&evaluator, quota.quota, old)? => added,
            _ => &full,
        };
        let enforce = request.subresource != "status";
        charges.extend(charge(quota, cost, enforce)?);
    }
    Ok(charges)
}

fn in_scope(evaluator: &Evaluator, quota: &Value, object: &Value) -> Result<bool, QuotaError> {
    scopes::matches(evaluator, quota, object)
        .map_err(|source| QuotaError::Scope { quota: text(&quota["metadata"]["name"]).to_owned(), source })
}

/// Whether a quota limits the object, and knows enough to.
fn affect<'a>(evaluator: &Evaluator, quota: &'a Value, object: &Value) -> Result<Option<Affected<'a>>, QuotaError> {
    let name = text(&quota["metadata"]["name"]);
    let (hard, used) = (parse(&quota["status"]["hard"]), parse(&quota["status"]["used"]));
    let limited: BTreeSet<&str> = hard.keys().map(String::as_str).filter(|name| evaluator.tracks(name)).collect();
    if limited.is_empty() || !in_scope(evaluator, quota, object)? {
        return Ok(None);
    }
    if let Some(missing) = evaluator.unspecified(&limited, object) {
        return Err(QuotaError::Unspecified { quota: name.to_owned(), missing });
    }
    if limited.iter().any(|name| !used.contains_key(*name)) {
        let resources = limited.into_iter().collect::<Vec<_>>().join(",");
        return Err(QuotaError::Unknown { quota: name.to_owned(), resources });
    }
    Ok(Some(Affected { quota, name, hard, used }))
}

/// `new - old`, never less than nothing.
fn beyond(new: &ResourceList, old: &ResourceList) -> ResourceList {
    let less = |name: &String, amount: &Quantity| {
        let rest = *amount - old.get(name).copied().unwrap_or(Quantity::ZERO);
        if rest.is_negative() { Quantity::ZERO } else { rest }
    };
    new.iter().map(|(name, amount)| (name.clone(), less(name, amount))).collect()
}

fn charge(quota: Affected<'_>, cost: &ResourceList, enforce: bool) -> Result<Option<Charge>, QuotaError> {
    let limited = |(name, amount): &(&String, &Quantity)| !amount.is_zero() && quota.hard.contains_key(*name);
    let requested: ResourceList = cost.iter().filter(limited).map(|(name, amount)| (name.clone(), *amount)).collect();
    if requested.is_empty() {
        return Ok(None);
    }
    let mut used = quota.used.clone();
    add(&mut used, &requested);
    let exceeded: BTreeSet<&String> = requested.keys().filter(|name| used[*name] > quota.hard[*name]).collect();
    if enforce && !exceeded.is_empty() {
        let of = |list: &ResourceList| {
            let these = list.iter().filter(|(name, _)| exceeded.contains(name));
            show(&these.map(|(name, amount)| (name.clone(), *amount)).collect())
        };
        let (requested, used, limited) = (of(&requested), of(&quota.used), of(&quota.hard));
        return Err(QuotaError::Exceeded { quota: quota.name.to_owned(), requested, used, limited });
    }
    let resource_version = text(&quota.quota["metadata"]["resourceVersion"]).to_owned();
    Ok(Some(Charge { quota: quota.name.to_owned(), resource_version, used }))
}

/// A status as the controller writes it.
fn status(hard: &ResourceList, used: &ResourceList) -> Value {
    json!({"hard": to_json(hard), "used": to_json(used)})
}

#[cfg(test)]
mod tests;
