//! Counting anew from all objects of a namespace.
//!
//! Upstream counterparts: `pkg/controller/resourcequota` (`syncResourceQuota`), `quota.CalculateUsage`, `pkg/quota/v1/install/update_filter.go`.

use serde_json::Value;

use super::evaluator::Evaluator;
use super::{scopes, status};
use crate::Change;
use crate::json::entries;
use crate::resources::{ResourceList, add, parse};
use kube_common::quantity::Quantity;

/// All objects of one kind in the quota's namespace; none is not the same as a kind that was not listed.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    /// The API group, empty for core.
    pub group: &'a str,
    /// The plural resource.
    pub resource: &'a str,
    /// The objects.
    pub objects: &'a [Value],
}

/// Whether objects of a kind are to be listed for [`recompute`].
#[must_use]
pub fn concerns(quota: &Value, group: &str, resource: &str) -> bool {
    let Some(evaluator) = Evaluator::of(group, resource) else { return false };
    entries(&quota["spec"]["hard"]).any(|(name, _)| evaluator.tracks(name))
}

/// The status that a quota should have, if it has another.
///
/// What no listing is about keeps the value that it had; a resource that was never counted stays without one, and is refused
/// by [`super::check`] until it is.
#[must_use]
pub fn recompute(quota: &Value, listings: &[Listing<'_>], now: i64) -> Option<Value> {
    let hard = parse(&quota["spec"]["hard"]);
    let (old_hard, old_used) = (&quota["status"]["hard"], &quota["status"]["used"]);
    let mut used = parse(old_used);
    for listing in listings {
        used.extend(count(quota, &hard, listing, now));
    }
    used.retain(|name, _| hard.contains_key(name));
    let dirty = old_hard.is_null() || old_used.is_null() || parse(old_hard) != hard || parse(old_used) != used;
    dirty.then(|| status(&hard, &used))
}

fn count(quota: &Value, hard: &ResourceList, listing: &Listing<'_>, now: i64) -> ResourceList {
    let Some(evaluator) = Evaluator::of(listing.group, listing.resource) else { return ResourceList::new() };
    let tracked = hard.keys().filter(|name| evaluator.tracks(name));
    let mut sum: ResourceList = tracked.map(|name| (name.clone(), Quantity::ZERO)).collect();
    if sum.is_empty() {
        return sum;
    }
    for object in listing.objects {
        // A scope that cannot be read holds for nothing.
        if scopes::matches(&evaluator, quota, object).unwrap_or(false) {
            let mut usage = evaluator.usage(object, now);
            usage.retain(|name, _| sum.contains_key(name));
            add(&mut sum, &usage);
        }
    }
    sum
}

/// Whether a change of an object that was stored, or its deletion, means that quotas are to be counted anew.
#[must_use]
pub fn replenishes(group: &str, resource: &str, old: &Value, new: Option<&Value>, now: i64) -> bool {
    let Some(evaluator) = Evaluator::of(group, resource) else { return false };
    let Some(new) = new else { return true };
    let scope_changed = match evaluator {
        Evaluator::Pods => evaluator.handles("", Change::Update { new, old }),
        Evaluator::Claims => evaluator.handles("status", Change::Update { new, old }),
        _ => false,
    };
    scope_changed || evaluator.usage(old, now) != evaluator.usage(new, now)
}
