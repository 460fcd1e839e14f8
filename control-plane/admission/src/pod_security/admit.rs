//! Requests under a namespace's policy: pods, controllers of pods, and namespaces themselves.
//!
//! Upstream counterpart: `k8s.io/pod-security-admission/admission`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::baseline::{SECCOMP_CONTAINER_ANNOTATION, SECCOMP_POD_ANNOTATION};
use super::{Level, LevelVersion, PREFIX, Policy, details, evaluate, reasons};
use crate::Change;
use crate::json::{aggregate, items, text};
use keelson_kinds::FieldError;
use keelson_kinds::error::go_quote;

/// So many pods at most are looked at when a namespace's level is raised.
pub const MAX_PODS: usize = 3000;

/// Subresources of pods that carry no pod, or none that could become worse.
const IGNORED_SUBRESOURCES: [&str; 8] =
    ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// What is to happen to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Why it is refused with 403; the server puts `pods "x" is forbidden: ` before it.
    pub denied: Option<String>,
    /// `Warning:` headers.
    pub warnings: Vec<String>,
    /// For the audit log, keys with their prefix.
    pub audit_annotations: BTreeMap<String, String>,
}

impl Decision {
    fn note(&mut self, key: &str, value: String) {
        self.audit_annotations.insert(format!("{PREFIX}{key}"), value);
    }
}

/// A pod, or a subresource of one, under the labels of its namespace.
#[must_use]
pub fn pod(namespace_labels: &Value, subresource: &str, change: Change<'_>) -> Decision {
    let mut decision = Decision::default();
    if IGNORED_SUBRESOURCES.contains(&subresource) {
        return decision;
    }
    let (policy, errors) = Policy::of_labels(namespace_labels);
    if errors.is_empty() && [policy.enforce, policy.audit, policy.warn].iter().all(|p| p.level == Level::Privileged) {
        decision.note("enforce-policy", LevelVersion::PRIVILEGED.to_string());
        return decision;
    }
    let pod = change.object();
    if change.old().is_some_and(|old| !significant(pod, old)) {
        return decision;
    }
    decide(&policy, &errors, &pod["metadata"], &pod["spec"], true)
}

/// A controller of pods: nothing is refused, its template is audited and warned about.
///
/// Other kinds than the eight that have a pod template pass without a word.
#[must_use]
pub fn controller(
    namespace_labels: &Value,
    group: &str,
    resource: &str,
    subresource: &str,
    object: &Value,
) -> Decision {
    let Some(template) = template(group, resource, object).filter(|_| subresource.is_empty()) else {
        return Decision::default();
    };
    let (policy, errors) = Policy::of_labels(namespace_labels);
    if errors.is_empty() && policy.audit.level == Level::Privileged && policy.warn.level == Level::Privileged {
        return Decision::default();
    }
    decide(&policy, &errors, &template["metadata"], &template["spec"], false)
}

fn template<'a>(group: &str, resource: &str, object: &'a Value) -> Option<&'a Value> {
    let spec = &object["spec"];
    let template = match (group, resource) {
        ("", "podtemplates") => &object["template"],
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &spec["template"],
        ("batch", "cronjobs") => &spec["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    (!template.is_null()).then_some(template)
}

fn decide(policy: &Policy, errors: &[FieldError], metadata: &Value, spec: &Value, enforce: bool) -> Decision {
    let mut decision = Decision::default();
    if !errors.is_empty() {
        let errors = aggregate(errors.iter().map(ToString::to_string));
        decision.note("error", format!("Failed to parse policy: {errors}"));
    }
    let found = |policy: LevelVersion| {
        let violations = evaluate(policy, metadata, spec);
        (!violations.is_empty())
            .then(|| format!("violate PodSecurity {}: {}", go_quote(&policy.to_string()), details(&violations)))
    };
    if enforce {
        decision.note("enforce-policy", policy.enforce.to_string());
        decision.denied = found(policy.enforce).map(|why| why.replacen("violate", "violates", 1));
    }
    if let Some(why) = found(policy.audit) {
        decision.note("audit-violations", format!("would {why}"));
    }
    // What is refused needs no warning.
    if decision.denied.is_none() {
        decision.warnings.extend(found(policy.warn).map(|why| format!("would {why}")));
    }
    decision
}

/// Whether an update changes what the checks look at. Of a pod that is stored, only images, ephemeral containers and annotations can.
fn significant(new: &Value, old: &Value) -> bool {
    let annotation = |pod: &Value, key: &str| text(&pod["metadata"]["annotations"][key]).to_owned();
    let differs = |key: &str| annotation(new, key) != annotation(old, key);
    let container_differs = |new: &Value, old: &Value| {
        text(&new["image"]) != text(&old["image"])
            || differs(&format!("{SECCOMP_CONTAINER_ANNOTATION}{}", text(&new["name"])))
    };
    let list_differs = |list: &str| {
        let (new, old) = (items(&new["spec"][list]), items(&old["spec"][list]));
        new.len() != old.len() || new.iter().zip(old).any(|(new, old)| container_differs(new, old))
    };
    let before = items(&old["spec"]["ephemeralContainers"]);
    let ephemeral_differs = |new: &Value| {
        let same_name = before.iter().find(|old| text(&old["name"]) == text(&new["name"]));
        same_name.is_none_or(|old| container_differs(new, old))
    };
    differs(SECCOMP_POD_ANNOTATION)
        || list_differs("containers")
        || list_differs("initContainers")
        || items(&new["spec"]["ephemeralContainers"]).iter().any(ephemeral_differs)
}

/// A namespace that is created or changed (no subresource).
///
/// Returns the level that is newly enforced, if the pods that are there are to be looked at: see [`existing_pods`].
///
/// # Errors
/// The labels that cannot be read, for 422; on update only if they are not wrong already.
pub fn namespace(change: Change<'_>) -> Result<Option<LevelVersion>, Vec<FieldError>> {
    let of = |namespace: &Value| Policy::of_labels(&namespace["metadata"]["labels"]);
    let (policy, errors) = of(change.object());
    let Some(old) = change.old() else {
        return if errors.is_empty() { Ok(None) } else { Err(errors) };
    };
    let (before, old_errors) = of(old);
    if !errors.is_empty() && errors != old_errors {
        return Err(errors);
    }
    let (new, old) = (policy.enforce, before.enforce);
    let relaxed = new.version == old.version && new.level <= old.level;
    Ok((new.level != Level::Privileged && !relaxed).then_some(new))
}

/// Warnings about pods that a namespace has and that its new level would refuse.
///
/// At most [`MAX_PODS`] are looked at, one of each controller first. `expired` is asked after each pod; upstream gives itself a second.
pub fn existing_pods<'a>(
    namespace: &str,
    enforce: LevelVersion,
    pods: impl IntoIterator<Item = &'a Value>,
    mut expired: impl FnMut() -> bool,
) -> Vec<String> {
    let pods = prioritized(pods);
    let mut checked = 0;
    // By reasons: the first name in order of names, and how many.
    let mut found: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for pod in pods.iter().take(MAX_PODS) {
        let violations = evaluate(enforce, &pod["metadata"], &pod["spec"]);
        if !violations.is_empty() {
            let name = text(&pod["metadata"]["name"]);
            let (first, count) = found.entry(reasons(&violations)).or_insert((name, 0));
            *first = (*first).min(name);
            *count += 1;
        }
        checked += 1;
        if expired() {
            break;
        }
    }
    let mut warnings = Vec::new();
    if checked < pods.len() {
        let all = pods.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {all} existing pods"
        ));
    }
    if !found.is_empty() {
        let (namespace, level) = (go_quote(namespace), go_quote(&enforce.to_string()));
        warnings
            .push(format!("existing pods in namespace {namespace} violate the new PodSecurity enforce level {level}"));
    }
    let one = |(reasons, (name, count)): (String, (&str, usize))| match count {
        1 => format!("{name}: {reasons}"),
        2 => format!("{name} (and 1 other pod): {reasons}"),
        _ => format!("{name} (and {} other pods): {reasons}", count - 1),
    };
    let listed: BTreeSet<String> = found.into_iter().map(one).collect();
    warnings.extend(listed);
    warnings
}

/// The first pod of each controller, and those that have none, before the others.
fn prioritized<'a>(pods: impl IntoIterator<Item = &'a Value>) -> Vec<&'a Value> {
    let mut seen = BTreeSet::new();
    let (mut first, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| {
        let mut owners = items(&pod["metadata"]["ownerReferences"]).iter();
        owners.find(|owner| owner["controller"] == true).is_none_or(|owner| seen.insert(text(&owner["uid"])))
    });
    first.extend(others);
    first
}
