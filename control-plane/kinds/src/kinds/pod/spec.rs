//! Validation of pod specs and pod templates.
//!
//! Upstream counterpart: `ValidatePodSpec`, `ValidatePodTemplateSpec` in `pkg/apis/core/validation`.

use std::collections::HashSet;

use serde_json::Value;

use super::container::{self, Surroundings};
use super::{annotations, check, env, projected, resources, scheduling, security, sources};
use crate::error::FieldError;
use crate::{meta, names, val};

/// What the spec belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context<'a> {
    /// A pod, of this name.
    Pod {
        /// Empty if it is still to be made up.
        name: &'a str,
    },
    /// A template of a workload.
    Template,
}

const DNS_POLICIES: &[&str] = &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const RESTART_POLICIES: &[&str] = &["Always", "OnFailure", "Never"];
/// Upstream's limits of a pod's resolver configuration.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// Longest name that the kernel takes for a host.
const MAX_HOSTNAME: usize = 64;

/// Validates a pod spec that messages call `at`.
pub(crate) fn validate_spec(spec: &Value, at: &str, context: Context<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let f = |name: &str| format!("{at}.{name}");
    let name = match context {
        Context::Pod { name } => Some(name).filter(|name| !name.is_empty()),
        Context::Template => None,
    };
    let volumes = sources::validate(spec, name, at, &mut errors);
    resources::claims(spec, &f("resourceClaims"), &mut errors);
    let claims = resources::claims_of(spec);
    resources::of_pod(spec, &f("resources"), &claims, &mut errors);
    let is_template = context == Context::Template;
    container::validate_all(&Surroundings { spec, volumes, claims, is_template }, at, &mut errors);
    policies(spec, &f, &mut errors);
    errors.extend(meta::labels_at(val::map(spec, "nodeSelector"), &f("nodeSelector")));
    security::of_pod(spec, at, &mut errors);
    if let Some(affinity) = val::at(spec, "affinity") {
        scheduling::affinity(affinity, &f("affinity"), &mut errors);
    }
    dns_config(spec, at, &mut errors);
    gates(spec, at, &mut errors);
    scheduling::spread(spec, at, &mut errors);
    host_names(spec, &f, &mut errors);
    referred(spec, &f, &mut errors);
    scheduling::tolerations(val::list(spec, "tolerations"), &f("tolerations"), &mut errors);
    resources::overhead(spec, &f("overhead"), &mut errors);
    security::system(spec, at, &mut errors);
    env::file_volumes(spec, at, &mut errors);
    if !is_template {
        projected::tokens(spec, at, &mut errors);
    }
    errors
}

fn policies(spec: &Value, f: &dyn Fn(&str) -> String, errors: &mut Vec<FieldError>) {
    // A negative grace period is taken for the shortest one when the pod is deleted.
    if val::int(spec, "terminationGracePeriodSeconds").is_none() {
        errors.push(FieldError::required(f("terminationGracePeriodSeconds"), ""));
    }
    for (key, valid) in [("restartPolicy", RESTART_POLICIES), ("dnsPolicy", DNS_POLICIES)] {
        check::one_of(val::text(spec, key), valid, &f(key), errors);
    }
    if let Some(seconds) = val::int(spec, "activeDeadlineSeconds") {
        check::within(seconds, 1, i64::from(i32::MAX), &f("activeDeadlineSeconds"), errors);
    }
    if let Some(policy) = check::present(spec, "preemptionPolicy") {
        check::one_of(policy, &["PreemptLowerPriority", "Never"], &f("preemptionPolicy"), errors);
    }
}

/// Names of other objects.
fn referred(spec: &Value, f: &dyn Fn(&str) -> String, errors: &mut Vec<FieldError>) {
    for key in ["serviceAccountName", "nodeName", "priorityClassName"] {
        check::optional(val::text(spec, key), &f(key), names::dns1123_subdomain, errors);
    }
    if let Some(class) = check::present(spec, "runtimeClassName") {
        check::text(class, &f("runtimeClassName"), names::dns1123_subdomain, errors);
    }
    if let Some(group) = val::at(spec, "schedulingGroup") {
        let at = f("schedulingGroup.podGroupName");
        match check::present(group, "podGroupName") {
            Some(name) => check::text(name, &at, names::dns1123_subdomain, errors),
            None => errors.push(FieldError::invalid(at, Value::Null, "must specify one of: `podGroupName`")),
        }
    }
}

fn host_names(spec: &Value, f: &dyn Fn(&str) -> String, errors: &mut Vec<FieldError>) {
    for key in ["hostname", "subdomain"] {
        check::optional(val::text(spec, key), &f(key), names::dns1123_label, errors);
    }
    if let Some(name) = check::present(spec, "hostnameOverride") {
        let at = f("hostnameOverride");
        for key in ["setHostnameAsFQDN", "hostNetwork"] {
            if val::flag(spec, key) {
                errors.push(FieldError::forbidden(at.as_str(), format!("may not be specified when {key} is true")));
            }
        }
        if name.len() > MAX_HOSTNAME {
            errors.push(FieldError::too_long(at.as_str(), MAX_HOSTNAME));
        }
        check::text(name, &at, names::dns1123_subdomain, errors);
    }
    for (i, alias) in val::list(spec, "hostAliases").iter().enumerate() {
        let at = f(&format!("hostAliases[{i}]"));
        check::text(val::text(alias, "ip"), &format!("{at}.ip"), names::ip, errors);
        for (j, name) in val::list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            check::text(name, &format!("{at}.hostnames[{j}]"), names::dns1123_subdomain, errors);
        }
    }
}

fn dns_config(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let f = |rest: &str| format!("{at}.dnsConfig{rest}");
    let servers = val::list(spec, "dnsConfig.nameservers");
    if val::text(spec, "dnsPolicy") == "None" {
        if val::at(spec, "dnsConfig").is_none() {
            errors.push(FieldError::required(f(""), "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(f(".nameservers"), message));
            return;
        }
    }
    if servers.len() > MAX_NAMESERVERS {
        errors.push(FieldError::invalid(
            f(".nameservers"),
            Value::Array(servers.to_vec()),
            format!("must not have more than {MAX_NAMESERVERS} nameservers"),
        ));
    }
    for (i, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        check::text(server, &f(&format!(".nameservers[{i}]")), names::ip, errors);
    }
    let searches = val::list(spec, "dnsConfig.searches");
    if searches.len() > MAX_SEARCH_PATHS {
        errors.push(FieldError::invalid(
            f(".searches"),
            Value::Array(searches.to_vec()),
            format!("must not have more than {MAX_SEARCH_PATHS} search paths"),
        ));
    }
    if searches.iter().filter_map(Value::as_str).map(|s| s.len() + 1).sum::<usize>() > MAX_SEARCH_CHARS + 1 {
        errors.push(FieldError::invalid(
            f(".searches"),
            Value::Array(searches.to_vec()),
            format!("must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list"),
        ));
    }
    for (i, search) in searches.iter().filter_map(Value::as_str).enumerate().filter(|(_, search)| *search != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        check::text(search, &f(&format!(".searches[{i}]")), names::dns1123_subdomain_with_underscore, errors);
    }
    for (i, option) in val::list(spec, "dnsConfig.options").iter().enumerate() {
        if val::text(option, "name").is_empty() {
            errors.push(FieldError::required(f(&format!(".options[{i}]")), "must not be empty"));
        }
    }
}

fn gates(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (i, gate) in val::list(spec, "readinessGates").iter().enumerate() {
        let field = format!("{at}.readinessGates[{i}].conditionType");
        check::text(val::text(gate, "conditionType"), &field, names::qualified_name, errors);
    }
    let mut seen = HashSet::new();
    for (i, gate) in val::list(spec, "schedulingGates").iter().enumerate() {
        let name = val::text(gate, "name");
        let field = format!("{at}.schedulingGates[{i}]");
        check::text(name, &field, names::qualified_name, errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(field, name));
        }
    }
}

/// What a pod may not have when it is made.
pub(crate) fn validate_new(pod: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !val::list(pod, "spec.ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden("spec.ephemeralContainers", "cannot be set on create"));
    }
    if !val::list(pod, "spec.schedulingGates").is_empty() && !val::text(pod, "spec.nodeName").is_empty() {
        let message = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden("spec.nodeName", message));
    }
    errors.extend(annotations::validate_new(pod, "spec"));
    errors
}

/// Validates a pod template that messages call `at`.
pub(crate) fn validate_template(template: &Value, at: &str) -> Vec<FieldError> {
    let empty = serde_json::json!({});
    let mut errors = meta::labels_at(val::map(template, "metadata.labels"), &format!("{at}.labels"));
    let annotations_at = format!("{at}.annotations");
    errors.extend(meta::annotations_at(val::map(template, "metadata.annotations"), &annotations_at));
    errors.extend(annotations::validate(template, &annotations_at));
    let spec_at = format!("{at}.spec");
    errors.extend(validate_spec(template.get("spec").unwrap_or(&empty), &spec_at, Context::Template));
    errors.extend(annotations::validate_new(template, &spec_at));
    if !val::list(template, "spec.ephemeralContainers").is_empty() {
        let message = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(format!("{spec_at}.ephemeralContainers"), message));
    }
    errors
}
