//! Validation of pod specs and pod templates.
//!
//! Upstream counterpart: `ValidatePodSpec`, `ValidatePodTemplateSpec` in `pkg/apis/core/validation`.

use serde_json::Value;

use super::{container, sources};
use crate::error::FieldError;
use crate::{meta, names, val};

/// What the spec belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// A pod.
    Pod,
    /// A template of a workload.
    Template,
}

const DNS_POLICIES: &[&str] = &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const RESTART_POLICIES: &[&str] = &["Always", "OnFailure", "Never"];
/// Upstream's limits of a pod's resolver configuration.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

/// A check of [`names`].
type Check = fn(&str) -> Vec<String>;

/// Validates a pod spec that messages call `at`.
pub(crate) fn validate_spec(spec: &Value, at: &str, context: Context) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let volumes = sources::validate(spec, at, &mut errors);
    container::validate_all(spec, at, &volumes, context, &mut errors);
    let f = |name: &str| format!("{at}.{name}");
    policies(spec, &f, &mut errors);
    dns_config(spec, at, &mut errors);
    errors.extend(meta::labels_at(val::map(spec, "nodeSelector"), &f("nodeSelector")));
    let checks: [(&str, Check); 6] = [
        ("serviceAccountName", names::dns1123_subdomain),
        ("nodeName", names::dns1123_subdomain),
        ("hostname", names::dns1123_label),
        ("subdomain", names::dns1123_label),
        ("priorityClassName", names::dns1123_subdomain),
        ("runtimeClassName", names::dns1123_subdomain),
    ];
    for (key, check) in checks {
        let value = val::text(spec, key);
        if !value.is_empty() {
            errors.extend(check(value).into_iter().map(|m| FieldError::invalid(f(key), value, m)));
        }
    }
    for (i, alias) in val::list(spec, "hostAliases").iter().enumerate() {
        let ip = val::text(alias, "ip");
        errors
            .extend(names::ip(ip).into_iter().map(|m| FieldError::invalid(f(&format!("hostAliases[{i}].ip")), ip, m)));
        for (j, name) in val::list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            let field = f(&format!("hostAliases[{i}].hostnames[{j}]"));
            errors.extend(
                names::dns1123_subdomain(name).into_iter().map(|m| FieldError::invalid(field.as_str(), name, m)),
            );
        }
    }
    tolerations(val::list(spec, "tolerations"), &f("tolerations"), &mut errors);
    if let Some(affinity) = val::at(spec, "affinity") {
        affinity_errors(affinity, &f("affinity"), &mut errors);
    }
    spread(spec, at, &mut errors);
    security(spec, at, &mut errors);
    gates(spec, at, context, &mut errors);
    errors
}

fn policies(spec: &Value, f: &dyn Fn(&str) -> String, errors: &mut Vec<FieldError>) {
    for (key, valid) in [("restartPolicy", RESTART_POLICIES), ("dnsPolicy", DNS_POLICIES)] {
        let value = val::text(spec, key);
        if value.is_empty() {
            errors.push(FieldError::required(f(key), ""));
        } else if !valid.contains(&value) {
            errors.push(FieldError::not_supported(f(key), value, valid));
        }
    }
    if let Some(seconds) = val::int(spec, "terminationGracePeriodSeconds")
        && seconds < 0
    {
        errors.push(FieldError::invalid(
            f("terminationGracePeriodSeconds"),
            seconds,
            "must be greater than or equal to 0",
        ));
    }
    if let Some(seconds) = val::int(spec, "activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.push(FieldError::invalid(
            f("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    let preemption = val::text(spec, "preemptionPolicy");
    let valid = ["Never", "PreemptLowerPriority"];
    if !preemption.is_empty() && !valid.contains(&preemption) {
        errors.push(FieldError::not_supported(f("preemptionPolicy"), preemption, &valid));
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
            errors.push(FieldError::required(
                f(".nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ));
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
        errors.extend(
            names::ip(server).into_iter().map(|m| FieldError::invalid(f(&format!(".nameservers[{i}]")), server, m)),
        );
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
    for (i, option) in val::list(spec, "dnsConfig.options").iter().enumerate() {
        if val::text(option, "name").is_empty() {
            errors.push(FieldError::required(f(&format!(".options[{i}]")), "must not be empty"));
        }
    }
}

/// Validates tolerations that messages call `at`.
fn tolerations(items: &[Value], at: &str, errors: &mut Vec<FieldError>) {
    for (i, toleration) in items.iter().enumerate() {
        let f = |name: &str| format!("{at}[{i}].{name}");
        let text = |name: &str| val::text(toleration, name);
        let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
        if !key.is_empty() {
            errors.extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(f("key"), key, m)));
        }
        if key.is_empty() && operator != "Exists" {
            errors.push(FieldError::invalid(
                f("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if val::at(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            errors.push(FieldError::invalid(
                f("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "" | "Equal" => {
                errors.extend(
                    names::label_value(value).into_iter().map(|m| FieldError::invalid(f("operator"), value, m)),
                );
            }
            "Exists" if !value.is_empty() => {
                errors.push(FieldError::invalid(
                    f("operator"),
                    toleration.clone(),
                    "value must be empty when `operator` is 'Exists'",
                ));
            }
            "Exists" | "Lt" | "Gt" => {}
            other => errors.push(FieldError::not_supported(f("operator"), other, &["Equal", "Exists"])),
        }
        let effects = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
        if !effect.is_empty() && !effects.contains(&effect) {
            errors.push(FieldError::not_supported(f("effect"), effect, &effects));
        }
    }
}

fn affinity_errors(affinity: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(required) = val::at(affinity, "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution") {
        let at = format!("{at}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        let terms = val::list(required, "nodeSelectorTerms");
        if terms.is_empty() {
            errors.push(FieldError::required(at.as_str(), "must have at least one node selector term"));
        }
        for (i, term) in terms.iter().enumerate() {
            node_term(term, &format!("{at}[{i}]"), errors);
        }
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (i, item) in val::list(affinity, &format!("nodeAffinity.{preferred}")).iter().enumerate() {
        let at = format!("{at}.nodeAffinity.{preferred}[{i}]");
        weight(item, &at, errors);
        node_term(item.get("preference").unwrap_or(&Value::Null), &format!("{at}.preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (i, term) in val::list(affinity, &format!("{kind}.{required}")).iter().enumerate() {
            pod_term(term, &format!("{at}.{kind}.{required}[{i}]"), errors);
        }
        for (i, item) in val::list(affinity, &format!("{kind}.{preferred}")).iter().enumerate() {
            let at = format!("{at}.{kind}.{preferred}[{i}]");
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

/// A term of a node selector.
pub(crate) fn node_term(term: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (list, key_check) in [("matchExpressions", true), ("matchFields", false)] {
        for (j, requirement) in val::list(term, list).iter().enumerate() {
            let at = format!("{at}.{list}[{j}]");
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
            let key = val::text(requirement, "key");
            if key_check {
                errors.extend(
                    names::qualified_name(key).into_iter().map(|m| FieldError::invalid(format!("{at}.key"), key, m)),
                );
            } else if key != "metadata.name" {
                errors.push(FieldError::invalid(format!("{at}.key"), key, "not a valid field selector key"));
            }
        }
    }
}

fn pod_term(term: &Value, at: &str, errors: &mut Vec<FieldError>) {
    errors.extend(meta::selector(val::at(term, "labelSelector"), &format!("{at}.labelSelector")));
    errors.extend(meta::selector(val::at(term, "namespaceSelector"), &format!("{at}.namespaceSelector")));
    let key = val::text(term, "topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(format!("{at}.topologyKey"), "can not be empty"));
    } else {
        errors.extend(
            names::qualified_name(key).into_iter().map(|m| FieldError::invalid(format!("{at}.topologyKey"), key, m)),
        );
    }
}

fn spread(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut seen = Vec::new();
    for (i, constraint) in val::list(spec, "topologySpreadConstraints").iter().enumerate() {
        let f = |name: &str| format!("{at}.topologySpreadConstraints[{i}].{name}");
        let skew = val::int(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            errors.push(FieldError::invalid(f("maxSkew"), skew, "must be greater than zero"));
        }
        let key = val::text(constraint, "topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(f("topologyKey"), "can not be empty"));
        }
        let when = val::text(constraint, "whenUnsatisfiable");
        let valid = ["DoNotSchedule", "ScheduleAnyway"];
        if !valid.contains(&when) {
            errors.push(FieldError::not_supported(f("whenUnsatisfiable"), when, &valid));
        }
        if seen.contains(&(key, when)) {
            let pair = format!("{{{key}, {when}}}");
            errors.push(FieldError::duplicate(f("{topologyKey, whenUnsatisfiable}"), pair));
        }
        seen.push((key, when));
        errors.extend(meta::selector(val::at(constraint, "labelSelector"), &f("labelSelector")));
    }
}

fn security(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let f = |name: &str| format!("{at}.securityContext.{name}");
    for key in ["runAsUser", "runAsGroup", "fsGroup"] {
        if let Some(id) = val::int(spec, &format!("securityContext.{key}"))
            && !(0..=i64::from(i32::MAX)).contains(&id)
        {
            errors.push(FieldError::invalid(f(key), id, "must be between 0 and 2147483647, inclusive"));
        }
    }
    for (i, group) in val::list(spec, "securityContext.supplementalGroups").iter().filter_map(Value::as_i64).enumerate()
    {
        if !(0..=i64::from(i32::MAX)).contains(&group) {
            errors.push(FieldError::invalid(
                f(&format!("supplementalGroups[{i}]")),
                group,
                "must be between 0 and 2147483647, inclusive",
            ));
        }
    }
    let share = val::flag(spec, "shareProcessNamespace");
    if share && val::flag(spec, "hostPID") {
        errors.push(FieldError::invalid(
            format!("{at}.shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ));
    }
    let policy = val::text(spec, "securityContext.fsGroupChangePolicy");
    let valid = ["Always", "OnRootMismatch"];
    if !policy.is_empty() && !valid.contains(&policy) {
        errors.push(FieldError::not_supported(f("fsGroupChangePolicy"), policy, &valid));
    }
    container::seccomp(spec, &f("seccompProfile"), "securityContext.seccompProfile", errors);
    let mut seen = Vec::new();
    for (i, sysctl) in val::list(spec, "securityContext.sysctls").iter().enumerate() {
        let name = val::text(sysctl, "name");
        let field = f(&format!("sysctls[{i}].name"));
        if name.is_empty() {
            errors.push(FieldError::required(field.as_str(), ""));
        } else if let Some(message) = names::sysctl(name) {
            errors.push(FieldError::invalid(field, name, message));
        } else if seen.contains(&name) {
            errors.push(FieldError::duplicate(field, name));
        }
        seen.push(name);
    }
}

fn gates(spec: &Value, at: &str, context: Context, errors: &mut Vec<FieldError>) {
    let gates = val::list(spec, "schedulingGates");
    let mut seen = Vec::new();
    for (i, gate) in gates.iter().enumerate() {
        let name = val::text(gate, "name");
        let field = format!("{at}.schedulingGates[{i}]");
        errors.extend(names::qualified_name(name).into_iter().map(|m| FieldError::invalid(field.as_str(), name, m)));
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(field, name));
        }
        seen.push(name);
    }
    if context == Context::Pod && !gates.is_empty() && !val::text(spec, "nodeName").is_empty() {
        errors.push(FieldError::forbidden(
            format!("{at}.nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        ));
    }
    for (i, gate) in val::list(spec, "readinessGates").iter().enumerate() {
        let kind = val::text(gate, "conditionType");
        let field = format!("{at}.readinessGates[{i}].conditionType");
        errors.extend(names::qualified_name(kind).into_iter().map(|m| FieldError::invalid(field.as_str(), kind, m)));
    }
}

/// Validates a pod template that messages call `at`.
pub(crate) fn validate_template(template: &Value, at: &str, context: Context) -> Vec<FieldError> {
    let mut errors = meta::labels_at(val::map(template, "metadata.labels"), &format!("{at}.labels"));
    let empty = serde_json::json!({});
    errors.extend(validate_spec(template.get("spec").unwrap_or(&empty), &format!("{at}.spec"), context));
    if !val::list(template, "spec.ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden(
            format!("{at}.spec.ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
    errors
}
