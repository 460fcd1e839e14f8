//! Validation of containers.
//!
//! Upstream counterpart: `validateContainers`, `validateInitContainers`, `validateContainerCommon`.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use super::probe::{self, Around};
use super::sources::Volumes;
use super::{check, env, mounts, resources, security};
use crate::error::FieldError;
use crate::{names, val};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
pub(super) const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: &[&str] = &["File", "FallbackToLogsOnError"];
const RESTART_POLICIES: &[&str] = &["Always", "Never", "OnFailure"];
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
/// Fields that only a container that stays may have.
const OF_LASTING: [&str; 4] = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];

/// Names and images of a pod spec's containers, joined by commas.
pub(crate) fn images_and_names(spec: &Value) -> (String, String) {
    let of = |key: &str| val::list(spec, "containers").iter().map(|c| val::text(c, key)).collect::<Vec<_>>().join(",");
    (of("name"), of("image"))
}

/// What the containers of a pod have around them.
pub(super) struct Surroundings<'a> {
    pub(super) spec: &'a Value,
    pub(super) volumes: Volumes<'a>,
    pub(super) claims: BTreeSet<&'a str>,
    pub(super) is_template: bool,
}

/// Validates the three lists of containers.
pub(super) fn validate_all(around: &Surroundings<'_>, at: &str, errors: &mut Vec<FieldError>) {
    let spec = around.spec;
    let (os, grace) = (val::at(spec, "os"), val::int(spec, "terminationGracePeriodSeconds"));
    let beside = Around { grace, os: os.map(|os| val::text(os, "name")) };
    let containers = val::list(spec, "containers");
    if containers.is_empty() {
        errors.push(FieldError::required(format!("{at}.containers"), ""));
    }
    let mut seen: HashSet<&str> = HashSet::new();
    let mut taken = HashSet::new();
    for (i, container) in containers.iter().enumerate() {
        let at = format!("{at}.containers[{i}]");
        common(container, &at, around, errors);
        let name = val::text(container, "name");
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        probe::validate(container, &at, beside, errors);
        restart_rules(container, &at, errors);
        host_ports(container, &at, &mut taken, errors);
    }
    for (i, container) in val::list(spec, "initContainers").iter().enumerate() {
        let list = format!("{at}.initContainers");
        let at = format!("{list}[{i}]");
        common(container, &at, around, errors);
        let name = val::text(container, "name");
        if !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        // They run one by one; upstream's path is that of a list of this one.
        host_ports(container, &format!("{list}[0]"), &mut HashSet::new(), errors);
        if val::text(container, "restartPolicy") == "Always" {
            probe::validate(container, &at, beside, errors);
        } else {
            once(container, &at, errors);
        }
        restart_rules(container, &at, errors);
    }
    super::ephemeral::validate_all(around, at, seen, errors);
    host_network(around, at, errors);
}

/// What every container has to fulfil.
pub(super) fn common(c: &Value, at: &str, around: &Surroundings<'_>, errors: &mut Vec<FieldError>) {
    let f = |name: &str| format!("{at}.{name}");
    check::required_text(val::text(c, "name"), &f("name"), names::dns1123_label, errors);
    let image = val::text(c, "image");
    check::required(image, &f("image"), errors);
    if !around.is_template && image.trim() != image {
        errors.push(FieldError::invalid(f("image"), image, "must not have leading or trailing whitespace"));
    }
    let policy = val::text(c, "terminationMessagePolicy");
    check::one_of(policy, MESSAGE_POLICIES, &f("terminationMessagePolicy"), errors);
    ports(c, at, errors);
    env::validate(c, at, errors);
    mounts::validate(c, at, &around.volumes, errors);
    check::one_of(val::text(c, "imagePullPolicy"), PULL_POLICIES, &f("imagePullPolicy"), errors);
    resources::of_container(c, &f("resources"), &around.claims, errors);
    resize(c, &f("resizePolicy"), val::text(around.spec, "restartPolicy"), errors);
    security::of_container(c, at, around.spec, errors);
}

/// What a container that runs once and ends may not have.
fn once(c: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for key in OF_LASTING.into_iter().filter(|key| val::at(c, key).is_some()) {
        let message = "may not be set for init containers without restartPolicy=Always";
        errors.push(FieldError::forbidden(format!("{at}.{key}"), message));
    }
    for (j, policy) in val::list(c, "resizePolicy").iter().enumerate() {
        if val::text(policy, "restartPolicy") == "RestartContainer" {
            let message = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            let at = format!("{at}.resizePolicy[{j}].restartPolicy");
            errors.push(FieldError::invalid(at, "RestartContainer", message));
        }
    }
}

/// Validates a container's own restart policy and the rules that come before it.
fn restart_rules(c: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let policy_at = format!("{at}.restartPolicy");
    let rules = val::list(c, "restartPolicyRules");
    match check::present(c, "restartPolicy") {
        Some(policy) => check::supported(policy, RESTART_POLICIES, &policy_at, errors),
        None if rules.is_empty() => return,
        None => {
            errors.push(FieldError::required(policy_at, "must specify restartPolicy when restart rules are used"));
        }
    }
    let at = format!("{at}.restartPolicyRules");
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(at.as_str(), rules.len(), MAX_RULES));
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = format!("{at}[{i}]");
        // Restarting all containers is another action of upstream's, off by default there and unknown here.
        check::supported(val::text(rule, "action"), &["Restart"], &format!("{at}.action"), errors);
        let Some(codes) = val::at(rule, "exitCodes") else {
            errors.push(FieldError::required(format!("{at}.exitCodes"), "must be specified"));
            continue;
        };
        let at = format!("{at}.exitCodes");
        check::supported(val::text(codes, "operator"), &["In", "NotIn"], &format!("{at}.operator"), errors);
        let count = val::list(codes, "values").len();
        if count > MAX_EXIT_CODES {
            errors.push(FieldError::too_many(format!("{at}.values"), count, MAX_EXIT_CODES));
        }
    }
}

/// Validates whether a change of resources restarts the container.
fn resize(c: &Value, at: &str, pod_policy: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (i, policy) in val::list(c, "resizePolicy").iter().enumerate() {
        let (resource, restart) = (val::text(policy, "resourceName"), val::text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(format!("{at}[{i}]"), resource));
        }
        check::one_of(resource, &["cpu", "memory"], at, errors);
        check::one_of(restart, &["NotRequired", "RestartContainer"], at, errors);
        if pod_policy == "Never" && restart != "NotRequired" {
            let message = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(at, restart, message));
        }
    }
}

fn ports(c: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (i, port) in val::list(c, "ports").iter().enumerate() {
        let f = |name: &str| format!("{at}.ports[{i}].{name}");
        let name = val::text(port, "name");
        if !name.is_empty() {
            let bad = names::port_name(name);
            if bad.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(f("name"), name));
            }
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(f("name"), name, m)));
        }
        match val::int(port, "containerPort").unwrap_or(0) {
            0 => errors.push(FieldError::required(f("containerPort"), "")),
            number => check::port_number(number, &f("containerPort"), errors),
        }
        let host = val::int(port, "hostPort").unwrap_or(0);
        if host != 0 {
            check::port_number(host, &f("hostPort"), errors);
        }
        check::one_of(val::text(port, "protocol"), PROTOCOLS, &f("protocol"), errors);
    }
}

/// Two containers may not want the same port of the host.
fn host_ports(c: &Value, at: &str, taken: &mut HashSet<String>, errors: &mut Vec<FieldError>) {
    for (j, port) in val::list(c, "ports").iter().enumerate() {
        let host = val::int(port, "hostPort").unwrap_or(0);
        let key = format!("{}/{}/{host}", val::text(port, "protocol"), val::text(port, "hostIP"));
        if host != 0 && !taken.insert(key.clone()) {
            errors.push(FieldError::duplicate(format!("{at}.ports[{j}].hostPort"), key));
        }
    }
}

/// On the host's network a container's port is the host's; in a template it may be left out, a pod's is filled in.
fn host_network(around: &Surroundings<'_>, at: &str, errors: &mut Vec<FieldError>) {
    if !val::flag(around.spec, "hostNetwork") {
        return;
    }
    for (i, container) in val::list(around.spec, "containers").iter().enumerate() {
        for (j, port) in val::list(container, "ports").iter().enumerate() {
            let (host, own) = (val::int(port, "hostPort").unwrap_or(0), val::int(port, "containerPort").unwrap_or(0));
            if host != own && (host != 0 || !around.is_template) {
                let at = format!("{at}.containers[{i}].ports[{j}].hostPort");
                errors.push(FieldError::invalid(at, host, "must match `containerPort` when `hostNetwork` is true"));
            }
        }
    }
}
