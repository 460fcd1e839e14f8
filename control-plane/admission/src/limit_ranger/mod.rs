//! Limit ranges: what a namespace's containers, pods and claims get when they ask for nothing, and between which bounds they may ask.
//!
//! [`apply_defaults`] comes before validation of the pod, [`check`] after it; [`applies`] says for which requests.
//!
//! Upstream counterparts: `plugin/pkg/admission/limitranger`, `SetDefaults_LimitRangeItem`, `ValidateLimitRange`.

use kube_common::quantity::Quantity;
use serde_json::{Map, Value, json};

use crate::Change;
use crate::json::{aggregate, child, items, text};
use crate::resources::{Field, ResourceList, of_spec, parse, to_json};

/// Says what a limit range filled in.
pub const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Beyond this, amounts are compared in whole units (upstream's `resource.MaxMilliValue`).
const MAX_MILLI: i64 = i64::MAX / 1000;

/// Which bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The lower one.
    Minimum,
    /// The upper one.
    Maximum,
}

impl Bound {
    const fn word(self) -> &'static str {
        match self {
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
        }
    }
}

/// One bound that an object does not keep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Nothing was asked for.
    #[error("{} {resource} usage per {kind} is {allowed}.  No {what} is specified", .bound.word())]
    Missing {
        /// The bound.
        bound: Bound,
        /// The resource.
        resource: String,
        /// `Container`, `Pod` or `PersistentVolumeClaim`.
        kind: String,
        /// The bound's amount.
        allowed: Quantity,
        /// `request` or `limit`.
        what: &'static str,
    },
    /// Too little or too much was asked for.
    #[error("{} {resource} usage per {kind} is {allowed}, but {what} is {given}", .bound.word())]
    Outside {
        /// The bound.
        bound: Bound,
        /// The resource.
        resource: String,
        /// `Container`, `Pod` or `PersistentVolumeClaim`.
        kind: String,
        /// The bound's amount.
        allowed: Quantity,
        /// `request` or `limit`.
        what: &'static str,
        /// What was asked for.
        given: Quantity,
    },
    /// There is no ratio without both.
    #[error("{resource} max limit to request ratio per {kind} is {allowed}, but no {what} is specified or {what} is 0")]
    NoRatio {
        /// The resource.
        resource: String,
        /// `Container` or `Pod`.
        kind: String,
        /// The greatest ratio.
        allowed: Quantity,
        /// `request` or `limit`.
        what: &'static str,
    },
    /// The limit is too far above the request.
    #[error("{resource} max limit to request ratio per {kind} is {allowed}, but provided ratio is {given}")]
    Ratio {
        /// The resource.
        resource: String,
        /// `Container` or `Pod`.
        kind: String,
        /// The greatest ratio.
        allowed: Quantity,
        /// The ratio with six places.
        given: String,
    },
}

/// An object does not fit a limit range; the text is for a 403. Not retryable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", aggregate(.violations.iter().map(ToString::to_string)))]
pub struct LimitError {
    /// The name of the limit range.
    pub limit_range: String,
    /// All bounds of it that are not kept.
    pub violations: Vec<Violation>,
}

/// Whether limit ranges have a say in a request. What is being deleted is left alone.
#[must_use]
pub fn applies(group: &str, resource: &str, subresource: &str, change: Change<'_>) -> bool {
    if change.old().is_some_and(|old| !old["metadata"]["deletionTimestamp"].is_null()) {
        return false;
    }
    match (group, resource, subresource) {
        ("", "pods", "") => change.old().is_none(),
        ("", "pods", "resize") => change.old().is_some(),
        ("", "persistentvolumeclaims", "") => true,
        _ => false,
    }
}

/// Fills in what a pod's containers do not ask for, from the namespace's limit ranges in their order, and says so in [`ANNOTATION`].
///
/// It makes no difference whether the pod's own defaults were filled in before: a request that is to follow its limit is left to them.
pub fn apply_defaults<'a>(limit_ranges: impl IntoIterator<Item = &'a Value>, pod: &mut Value) {
    for range in limit_ranges {
        let (mut requests, mut limits) = (ResourceList::new(), ResourceList::new());
        for item in items(&range["spec"]["limits"]).iter().filter(|item| item["type"] == "Container") {
            requests.extend(parse(&item["defaultRequest"]));
            limits.extend(parse(&item["default"]));
        }
        let mut said = Vec::new();
        for (list, noun) in [("/spec/containers", "container"), ("/spec/initContainers", "init container")] {
            for container in pod.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let name = text(&container["name"]).to_owned();
                for (what, set) in fill(container, &requests, &limits) {
                    said.push(format!("{} {what} for {noun} {name}", set.join(", ")));
                }
            }
        }
        if let Some(pod) = pod.as_object_mut().filter(|_| !said.is_empty()) {
            let annotations = child(child(pod, "metadata"), "annotations");
            annotations.insert(ANNOTATION.to_owned(), json!(format!("LimitRanger plugin set: {}", said.join("; "))));
        }
    }
}

/// What was set in a container, by `request` and `limit`.
fn fill(container: &mut Value, requests: &ResourceList, limits: &ResourceList) -> Vec<(&'static str, Vec<String>)> {
    let Some(container) = container.as_object_mut() else { return Vec::new() };
    let given = container.get("resources").cloned().unwrap_or_default();
    let has = |list: &str, name: &str| !given[list][name].is_null();
    let missing = |defaults: &ResourceList, has: &dyn Fn(&str) -> bool| -> ResourceList {
        defaults.iter().filter(|(name, _)| !has(name)).map(|(name, amount)| (name.clone(), *amount)).collect()
    };
    let new_requests = missing(requests, &|name| has("requests", name) || has("limits", name));
    let new_limits = missing(limits, &|name| has("limits", name));
    [("requests", "request", new_requests), ("limits", "limit", new_limits)]
        .into_iter()
        .filter(|(_, _, new)| !new.is_empty())
        .map(|(list, what, new)| {
            let target: &mut Map<String, Value> = child(child(container, "resources"), list);
            if let Value::Object(new) = to_json(&new) {
                target.extend(new);
            }
            (what, new.into_keys().collect())
        })
        .collect()
}

/// Whether a pod or a claim keeps to the namespace's limit ranges.
///
/// # Errors
/// The first limit range that it does not fit, with everything that is wrong.
pub fn check<'a>(
    limit_ranges: impl IntoIterator<Item = &'a Value>,
    resource: &str,
    object: &Value,
) -> Result<(), LimitError> {
    for range in limit_ranges {
        let violations: Vec<Violation> = items(&range["spec"]["limits"])
            .iter()
            .flat_map(|item| match (resource, text(&item["type"])) {
                ("pods", "Container") => of_containers(item, &object["spec"]),
                ("pods", "Pod") => {
                    let spec = &object["spec"];
                    of_amounts(item, &of_spec(spec, Field::Requests), &of_spec(spec, Field::Limits))
                }
                ("persistentvolumeclaims", "PersistentVolumeClaim") => of_claim(item, &object["spec"]),
                _ => Vec::new(),
            })
            .collect();
        if !violations.is_empty() {
            return Err(LimitError { limit_range: text(&range["metadata"]["name"]).to_owned(), violations });
        }
    }
    Ok(())
}

fn of_containers(item: &Value, spec: &Value) -> Vec<Violation> {
    let all = items(&spec["containers"]).iter().chain(items(&spec["initContainers"]));
    let one = |container: &Value| {
        let resources = &container["resources"];
        of_amounts(item, &parse(&resources["requests"]), &parse(&resources["limits"]))
    };
    all.flat_map(one).collect()
}

fn of_amounts(item: &Value, requests: &ResourceList, limits: &ResourceList) -> Vec<Violation> {
    let constraint = |name: &str, allowed: Quantity| Constraint {
        kind: text(&item["type"]).to_owned(),
        resource: name.to_owned(),
        allowed,
        request: requests.get(name).copied(),
        limit: limits.get(name).copied(),
    };
    let min = parse(&item["min"]).into_iter().filter_map(|(name, amount)| constraint(&name, amount).min());
    let max = parse(&item["max"]).into_iter().filter_map(|(name, amount)| constraint(&name, amount).max());
    let ratio =
        parse(&item["maxLimitRequestRatio"]).into_iter().filter_map(|(name, amount)| constraint(&name, amount).ratio());
    min.chain(max).chain(ratio).collect()
}

/// Claims have requests only.
fn of_claim(item: &Value, spec: &Value) -> Vec<Violation> {
    let requests = parse(&spec["resources"]["requests"]);
    let constraint = |name: &str, allowed: Quantity| Constraint {
        kind: text(&item["type"]).to_owned(),
        resource: name.to_owned(),
        allowed,
        request: requests.get(name).copied(),
        limit: None,
    };
    let min = parse(&item["min"]).into_iter().filter_map(|(name, amount)| constraint(&name, amount).min());
    let max = parse(&item["max"]).into_iter().filter_map(|(name, amount)| constraint(&name, amount).max_request());
    min.chain(max).collect()
}

/// One amount of a limit range and what an object has to do with it.
struct Constraint {
    kind: String,
    resource: String,
    allowed: Quantity,
    request: Option<Quantity>,
    limit: Option<Quantity>,
}

impl Constraint {
    /// Request, limit and bound in one unit: thousandths, unless one of them is too great for that.
    fn comparable(&self) -> (i64, i64, i64) {
        let all = [self.request.unwrap_or(Quantity::ZERO), self.limit.unwrap_or(Quantity::ZERO), self.allowed];
        let fine = all.iter().all(|amount| amount.value() <= MAX_MILLI);
        let [request, limit, allowed] = all.map(|amount| if fine { amount.milli() } else { amount.value() });
        (request, limit, allowed)
    }

    fn missing(self, bound: Bound, what: &'static str) -> Violation {
        Violation::Missing { bound, resource: self.resource, kind: self.kind, allowed: self.allowed, what }
    }

    fn outside(self, bound: Bound, what: &'static str, given: Quantity) -> Violation {
        Violation::Outside { bound, resource: self.resource, kind: self.kind, allowed: self.allowed, what, given }
    }

    fn min(self) -> Option<Violation> {
        let (request, limit, least) = self.comparable();
        match (self.request, self.limit) {
            (None, _) => Some(self.missing(Bound::Minimum, "request")),
            (Some(given), _) if request < least => Some(self.outside(Bound::Minimum, "request", given)),
            (_, Some(given)) if limit < least => Some(self.outside(Bound::Minimum, "limit", given)),
            _ => None,
        }
    }

    fn max(self) -> Option<Violation> {
        let (request, limit, most) = self.comparable();
        match (self.request, self.limit) {
            (_, None) => Some(self.missing(Bound::Maximum, "limit")),
            (_, Some(given)) if limit > most => Some(self.outside(Bound::Maximum, "limit", given)),
            (Some(given), _) if request > most => Some(self.outside(Bound::Maximum, "request", given)),
            _ => None,
        }
    }

    fn max_request(self) -> Option<Violation> {
        let (request, _, most) = self.comparable();
        match self.request {
            None => Some(self.missing(Bound::Maximum, "request")),
            Some(given) if request > most => Some(self.outside(Bound::Maximum, "request", given)),
            Some(_) => None,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn ratio(self) -> Option<Violation> {
        let (request, limit, _) = self.comparable();
        let (resource, kind, allowed) = (self.resource, self.kind, self.allowed);
        if request == 0 {
            return Some(Violation::NoRatio { resource, kind, allowed, what: "request" });
        }
        if limit == 0 {
            return Some(Violation::NoRatio { resource, kind, allowed, what: "limit" });
        }
        let given = limit as f64 / request as f64;
        let exceeded = if allowed.value() <= MAX_MILLI {
            given * 1000.0 > allowed.milli() as f64
        } else {
            given > allowed.value() as f64
        };
        exceeded.then(|| Violation::Ratio { resource, kind, allowed, given: format!("{given:.6}") })
    }
}

#[cfg(test)]
mod tests;
