//! Validation of requests, limits and claims, of containers and of the pod as a whole.
//!
//! Upstream counterpart: `validateResourceRequirements`, `validatePodResources`, `validatePodResourceClaims`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kube_common::quantity::Quantity;
use serde_json::Value;

use super::check;
use crate::error::FieldError;
use crate::{names, resource_names, val};

const HUGE_PAGES: &str = "hugepages-";
/// Names without a domain that exist at all; containers may use the first three.
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "services.nodeports",
    "services.loadbalancers",
];
const OF_PODS: &[&str] = &["cpu", HUGE_PAGES, "memory"];

/// Whose resources they are: it decides which names there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Container,
    Pod,
}

fn is_huge(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

fn name_errors(name: &str, owner: Owner, at: &str, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    check::text(name, at, names::qualified_name, errors);
    if errors.len() == before && !name.contains('/') && !is_huge(name) && !STANDARD.contains(&name) {
        let message = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(at, name, message));
    }
    match owner {
        Owner::Container if !name.contains('/') => {
            if !resource_names::of_containers(name) {
                errors.push(FieldError::invalid(at, name, "must be a standard resource for containers"));
            }
        }
        Owner::Container if !resource_names::native(name) && !resource_names::extended(name) => {
            errors.push(FieldError::invalid(at, name, "doesn't follow extended resource name standard"));
        }
        Owner::Pod if errors.len() == before && !is_huge(name) && !OF_PODS.contains(&name) => {
            errors.push(FieldError::not_supported(at, name, OF_PODS));
        }
        Owner::Container | Owner::Pod => {}
    }
}

fn amount_errors(name: &str, amount: Quantity, at: &str, errors: &mut Vec<FieldError>) {
    if amount.is_negative() {
        errors.push(FieldError::invalid(at, amount.to_string(), "must be greater than or equal to 0"));
    }
    if resource_names::whole(name) && !amount.is_integer() {
        errors.push(FieldError::invalid(at, amount.to_string(), "must be an integer"));
    }
    if is_huge(name) && !is_multiple(name, amount) {
        let message = format!("{amount} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid(at, amount.to_string(), message));
    }
}

/// Whether an amount of huge pages is a number of whole pages.
fn is_multiple(name: &str, amount: Quantity) -> bool {
    let Ok(page) = Quantity::parse(name.trim_start_matches(HUGE_PAGES)) else { return false };
    page.is_integer() && page.value() > 0 && amount.value() % page.value() == 0
}

fn amounts<'a>(resources: &'a Value, kind: &str) -> BTreeMap<&'a str, Quantity> {
    val::entries(resources, kind)
        .filter_map(|(name, amount)| Some((name.as_str(), Quantity::parse(amount.as_str()?).ok()?)))
        .collect()
}

fn is_cpu_or_memory(name: &str) -> bool {
    matches!(name, "cpu" | "memory")
}

fn requirements(resources: &Value, owner: Owner, at: &str, errors: &mut Vec<FieldError>) {
    let (limits, requests) = (amounts(resources, "limits"), amounts(resources, "requests"));
    for (kind, all) in [("limits", &limits), ("requests", &requests)] {
        for (name, amount) in all {
            let at = format!("{at}.{kind}[{name}]");
            name_errors(name, owner, &at, errors);
            amount_errors(name, *amount, &at, errors);
        }
    }
    let requests_at = format!("{at}.requests");
    for (name, asked) in &requests {
        let may_overcommit = resource_names::overcommit(name);
        match limits.get(name) {
            Some(limit) if !may_overcommit && asked != limit => {
                let message = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(requests_at.as_str(), asked.to_string(), message));
            }
            Some(limit) if asked > limit => {
                let message = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(requests_at.as_str(), asked.to_string(), message));
            }
            None if !may_overcommit => {
                let message = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(format!("{at}.limits"), message));
            }
            Some(_) | None => {}
        }
    }
    let mut all = limits.keys().chain(requests.keys());
    if all.clone().any(|name| is_huge(name)) && !all.any(|name| is_cpu_or_memory(name)) {
        errors.push(FieldError::forbidden(at, "HugePages require cpu or memory"));
    }
}

/// Validates the resources of a container; `claims` are the pod's.
pub(super) fn of_container(c: &Value, at: &str, claims: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
    let Some(resources) = val::at(c, "resources") else { return };
    requirements(resources, Owner::Container, at, errors);
    claim_names(resources, at, claims, errors);
}

/// Validates what a pod costs beyond its containers.
pub(super) fn overhead(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(overhead) = val::at(spec, "overhead") {
        requirements(&serde_json::json!({"limits": overhead}), Owner::Container, at, errors);
    }
}

/// Validates the resources of the pod as a whole, alone and against its containers'.
pub(super) fn of_pod(spec: &Value, at: &str, claims: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
    let Some(resources) = val::at(spec, "resources") else { return };
    if val::text(spec, "os.name") == "windows" {
        errors.push(FieldError::forbidden(at, "may not be set for a windows pod"));
        return;
    }
    if !val::list(resources, "claims").is_empty() {
        let message = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(format!("{at}.claims"), message));
    }
    requirements(resources, Owner::Pod, at, errors);
    claim_names(resources, at, claims, errors);
    let (limits, requests) = (amounts(resources, "limits"), amounts(resources, "requests"));
    for (name, sum) in together(spec, "requests") {
        if let Some(amount) = requests.get(name).filter(|amount| sum > **amount) {
            let message = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(FieldError::invalid(format!("{at}.requests[{name}]"), amount.to_string(), message));
        }
    }
    for (name, sum) in together(spec, "limits").into_iter().filter(|(name, _)| is_huge(name)) {
        if let Some(amount) = limits.get(name).filter(|amount| sum > **amount) {
            let message = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.push(FieldError::invalid(format!("{at}.limits[{name}]"), amount.to_string(), message));
        }
    }
    for (i, container) in val::list(spec, "containers").iter().enumerate() {
        let Some(resources) = val::at(container, "resources") else { continue };
        for (name, limit) in amounts(resources, "limits") {
            if let Some(most) = limits.get(name).filter(|most| limit > **most) {
                let message = format!("must be less than or equal to pod limits of {most}");
                errors.push(FieldError::invalid(
                    format!("{at}.containers[{i}][{name}].limits"),
                    limit.to_string(),
                    message,
                ));
            }
        }
    }
}

/// What the containers ask for at the same time: those that stay together, or an init container beside the sidecars before it.
fn together<'a>(spec: &'a Value, kind: &str) -> BTreeMap<&'a str, Quantity> {
    let of = |c: &'a Value| val::at(c, "resources").map(|r| amounts(r, kind)).unwrap_or_default();
    let add = |to: &mut BTreeMap<&'a str, Quantity>, more: BTreeMap<&'a str, Quantity>| {
        for (name, amount) in more {
            let sum = to.entry(name).or_insert(Quantity::ZERO);
            *sum = *sum + amount;
        }
    };
    let mut all = BTreeMap::new();
    for container in val::list(spec, "containers") {
        add(&mut all, of(container));
    }
    let (mut sidecars, mut peak) = (BTreeMap::new(), BTreeMap::<&str, Quantity>::new());
    for container in val::list(spec, "initContainers") {
        let mut now = of(container);
        if val::text(container, "restartPolicy") == "Always" {
            add(&mut all, now.clone());
            add(&mut sidecars, now);
            now = sidecars.clone();
        } else {
            add(&mut now, sidecars.clone());
        }
        for (name, amount) in now {
            let most = peak.entry(name).or_insert(amount);
            *most = amount.max(*most);
        }
    }
    for (name, amount) in peak {
        let most = all.entry(name).or_insert(amount);
        *most = amount.max(*most);
    }
    all
}

/// The names of the pod's claims.
pub(super) fn claims_of(spec: &Value) -> BTreeSet<&str> {
    val::list(spec, "resourceClaims").iter().map(|claim| val::text(claim, "name")).filter(|n| !n.is_empty()).collect()
}

/// Validates the claims that a pod brings in.
pub(super) fn claims(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (i, claim) in val::list(spec, "resourceClaims").iter().enumerate() {
        let at = format!("{at}[{i}]");
        let name = val::text(claim, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else if seen.insert(name) {
            check::text(name, &format!("{at}.name"), names::dns1123_label, errors);
        } else {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        let sources: Vec<(&str, &str)> = ["resourceClaimName", "resourceClaimTemplateName"]
            .into_iter()
            .filter_map(|key| Some((key, check::present(claim, key)?)))
            .collect();
        let count = match sources.len() {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            2 => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            _ => "",
        };
        if !count.is_empty() {
            errors.push(FieldError::invalid(at.as_str(), claim.clone(), count));
        }
        for (key, value) in sources {
            check::text(value, &format!("{at}.{key}"), names::dns1123_subdomain, errors);
        }
    }
}

/// Validates which of the pod's claims a container uses.
fn claim_names(resources: &Value, at: &str, known: &BTreeSet<&str>, errors: &mut Vec<FieldError>) {
    // A claim is used as a whole or request by request, not both.
    let (mut whole, mut parts, mut partly) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (i, claim) in val::list(resources, "claims").iter().enumerate() {
        let at = format!("{at}.claims[{i}]");
        let (name, request) = (val::text(claim, "name"), val::text(claim, "request"));
        if name.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        if whole.contains(name) {
            errors.push(FieldError::duplicate(at.as_str(), name));
        } else if request.is_empty() {
            if partly.contains(name) {
                errors.push(FieldError::duplicate(at.as_str(), name));
            }
            whole.insert(name);
        } else {
            check::text(request, &format!("{at}.request"), names::dns1123_label, errors);
            partly.insert(name);
            if !parts.insert((name, request)) {
                errors.push(FieldError::duplicate(at.as_str(), format!("{name}/{request}")));
            }
        }
        if !known.contains(name) {
            let mut error = FieldError::not_found(at, name);
            let list = known.iter().copied().collect::<Vec<_>>().join(", ");
            error.detail = if list.is_empty() {
                "must be one of the names in pod.spec.resourceClaims which is empty".to_owned()
            } else {
                format!("must be one of the names in pod.spec.resourceClaims: {list}")
            };
            errors.push(error);
        }
    }
}
