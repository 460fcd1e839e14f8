//! Validation of containers.
//!
//! Upstream counterpart: `validateContainers`, `validateInitContainers`, `ValidateContainerResourceRequirements`, `validateProbe`.

use kube_common::quantity::Quantity;
use serde_json::{Value, json};

use super::Context;
use super::sources::local_path;
use crate::error::FieldError;
use crate::{names, val};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
/// Fields that an environment variable may show.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Names and images of a pod spec's containers, joined by commas.
pub(crate) fn images_and_names(spec: &Value) -> (String, String) {
    let of = |key: &str| val::list(spec, "containers").iter().map(|c| val::text(c, key)).collect::<Vec<_>>().join(",");
    (of("name"), of("image"))
}

/// Validates the three lists of containers.
pub(super) fn validate_all(spec: &Value, at: &str, volumes: &[&str], context: Context, errors: &mut Vec<FieldError>) {
    let containers = val::list(spec, "containers");
    if containers.is_empty() {
        errors.push(FieldError::required(format!("{at}.containers"), ""));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (list, init) in [("containers", false), ("initContainers", true)] {
        let host_network = val::flag(spec, "hostNetwork");
        for (i, container) in val::list(spec, list).iter().enumerate() {
            let at = format!("{at}.{list}[{i}]");
            let name = val::text(container, "name");
            if name.is_empty() {
                errors.push(FieldError::required(format!("{at}.name"), ""));
            } else {
                errors.extend(
                    names::dns1123_label(name).into_iter().map(|m| FieldError::invalid(format!("{at}.name"), name, m)),
                );
                if seen.contains(&name) {
                    errors.push(FieldError::duplicate(format!("{at}.name"), name));
                }
                seen.push(name);
            }
            one(container, &at, volumes, errors);
            ports(container, &at, host_network, errors);
            probes(container, &at, init, errors);
            restart_policy(container, &at, init, errors);
        }
    }
    host_ports(spec, at, errors);
    if context == Context::Pod {
        super::ephemeral::validate_all(spec, at, volumes, seen, errors);
    }
}

pub(super) fn one(c: &Value, at: &str, volumes: &[&str], errors: &mut Vec<FieldError>) {
    let image = val::text(c, "image");
    if image.is_empty() {
        errors.push(FieldError::required(format!("{at}.image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid(format!("{at}.image"), image, "must not have leading or trailing whitespace"));
    }
    for (key, valid) in
        [("terminationMessagePolicy", &["FallbackToLogsOnError", "File"][..]), ("imagePullPolicy", PULL_POLICIES)]
    {
        let value = val::text(c, key);
        if value.is_empty() {
            errors.push(FieldError::required(format!("{at}.{key}"), ""));
        } else if !valid.contains(&value) {
            errors.push(FieldError::not_supported(format!("{at}.{key}"), value, valid));
        }
    }
    env(c, at, errors);
    mounts(c, at, volumes, errors);
    if let Some(resources) = val::at(c, "resources") {
        self::resources(resources, &format!("{at}.resources"), errors);
    }
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = val::at(c, &format!("lifecycle.{hook}")) {
            self::handler(
                handler,
                &format!("{at}.lifecycle.{hook}"),
                &["exec", "httpGet", "tcpSocket", "sleep"],
                errors,
            );
        }
    }
    seccomp(c, &format!("{at}.securityContext.seccompProfile"), "securityContext.seccompProfile", errors);
    security(c, at, errors);
}

fn security(c: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for key in ["runAsUser", "runAsGroup"] {
        if let Some(id) = val::int(c, &format!("securityContext.{key}"))
            && !(0..=i64::from(i32::MAX)).contains(&id)
        {
            errors.push(FieldError::invalid(
                format!("{at}.securityContext.{key}"),
                id,
                "must be between 0 and 2147483647, inclusive",
            ));
        }
    }
    let no_escalation = val::at(c, "securityContext.allowPrivilegeEscalation") == Some(&json!(false));
    if no_escalation && val::flag(c, "securityContext.privileged") {
        errors.push(FieldError::invalid(
            format!("{at}.securityContext"),
            c["securityContext"].clone(),
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ));
    }
}

/// Checks a seccomp profile at `path` of `v`.
pub(super) fn seccomp(v: &Value, at: &str, path: &str, errors: &mut Vec<FieldError>) {
    let Some(profile) = val::at(v, path) else { return };
    let kind = val::text(profile, "type");
    let has_file = !val::text(profile, "localhostProfile").is_empty();
    match kind {
        "Localhost" if !has_file => {
            errors.push(FieldError::required(
                format!("{at}.localhostProfile"),
                "must be set when seccomp type is Localhost",
            ));
        }
        "RuntimeDefault" | "Unconfined" if has_file => errors.push(FieldError::invalid(
            format!("{at}.localhostProfile"),
            profile["localhostProfile"].clone(),
            "can only be set when seccomp type is Localhost",
        )),
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => errors.push(FieldError::required(format!("{at}.type"), "type is required when seccompProfile is set")),
        other => {
            let valid = ["Localhost", "RuntimeDefault", "Unconfined"];
            errors.push(FieldError::not_supported(format!("{at}.type"), other, &valid));
        }
    }
}

fn restart_policy(c: &Value, at: &str, init: bool, errors: &mut Vec<FieldError>) {
    let policy = val::text(c, "restartPolicy");
    let valid = ["Always", "Never", "OnFailure"];
    if !policy.is_empty() && !valid.contains(&policy) {
        errors.push(FieldError::not_supported(format!("{at}.restartPolicy"), policy, &valid));
    }
    if init && policy != "Always" {
        for key in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if val::at(c, key).is_some() {
                errors.push(FieldError::forbidden(
                    format!("{at}.{key}"),
                    "may not be set for init containers without restartPolicy=Always",
                ));
            }
        }
    }
}

fn ports(c: &Value, at: &str, host_network: bool, errors: &mut Vec<FieldError>) {
    let mut seen = Vec::new();
    for (i, port) in val::list(c, "ports").iter().enumerate() {
        let f = |name: &str| format!("{at}.ports[{i}].{name}");
        let name = val::text(port, "name");
        if !name.is_empty() {
            let bad = names::port_name(name);
            if bad.is_empty() && seen.contains(&name) {
                errors.push(FieldError::duplicate(f("name"), name));
            }
            errors.extend(bad.into_iter().map(|m| FieldError::invalid(f("name"), name, m)));
            seen.push(name);
        }
        let number = val::int(port, "containerPort").unwrap_or(0);
        if number == 0 {
            errors.push(FieldError::required(f("containerPort"), ""));
        } else {
            errors.extend(
                names::port_number(number).into_iter().map(|m| FieldError::invalid(f("containerPort"), number, m)),
            );
        }
        let host = val::int(port, "hostPort").unwrap_or(0);
        if host != 0 {
            errors.extend(names::port_number(host).into_iter().map(|m| FieldError::invalid(f("hostPort"), host, m)));
        }
        // A template's ports are filled in when its pods are made.
        if host_network && host != 0 && host != number {
            errors.push(FieldError::invalid(
                f("containerPort"),
                number,
                "must match `hostPort` when `hostNetwork` is true",
            ));
        }
        let protocol = val::text(port, "protocol");
        if protocol.is_empty() {
            errors.push(FieldError::required(f("protocol"), ""));
        } else if !PROTOCOLS.contains(&protocol) {
            errors.push(FieldError::not_supported(f("protocol"), protocol, PROTOCOLS));
        }
    }
}

/// Two containers may not want the same port of the host.
fn host_ports(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut taken = Vec::new();
    for (i, container) in val::list(spec, "containers").iter().enumerate() {
        for (j, port) in val::list(container, "ports").iter().enumerate() {
            let host = val::int(port, "hostPort").unwrap_or(0);
            if host == 0 {
                continue;
            }
            let key = format!("{}/{}/{host}", val::text(port, "protocol"), val::text(port, "hostIP"));
            if taken.contains(&key) {
                errors.push(FieldError::duplicate(format!("{at}.containers[{i}].ports[{j}].hostPort"), key.clone()));
            }
            taken.push(key);
        }
    }
}

fn env(c: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (i, var) in val::list(c, "env").iter().enumerate() {
        let at = format!("{at}.env[{i}]");
        let name = val::text(var, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        } else {
            errors.extend(
                names::env_var_name(name).into_iter().map(|m| FieldError::invalid(format!("{at}.name"), name, m)),
            );
        }
        if let Some(source) = val::at(var, "valueFrom") {
            env_source(var, source, &format!("{at}.valueFrom"), errors);
        }
    }
    for (i, from) in val::list(c, "envFrom").iter().enumerate() {
        let at = format!("{at}.envFrom[{i}]");
        let prefix = val::text(from, "prefix");
        if !prefix.is_empty() {
            errors.extend(
                names::env_var_name(prefix).into_iter().map(|m| FieldError::invalid(format!("{at}.prefix"), prefix, m)),
            );
        }
        let refs: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|r| val::at(from, r).is_some()).collect();
        match refs.as_slice() {
            [] => errors.push(FieldError::invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")),
            [one] => {
                if val::text(from, &format!("{one}.name")).is_empty() {
                    errors.push(FieldError::required(format!("{at}.{one}.name"), ""));
                }
            }
            _ => errors.push(FieldError::invalid(at, "", "may not have more than one field specified at a time")),
        }
    }
}

fn env_source(var: &Value, source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let kinds: Vec<&String> = source.as_object().into_iter().flatten().map(|(k, _)| k).collect();
    if !val::text(var, "value").is_empty() {
        if !kinds.is_empty() {
            errors.push(FieldError::invalid(at, "", "may not be specified when `value` is not empty"));
        }
    } else if kinds.is_empty() {
        errors.push(FieldError::invalid(
            at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ));
    } else if kinds.len() > 1 {
        errors.push(FieldError::invalid(at, "", "may not have more than one field specified at a time"));
    }
    if let Some(field) = val::at(source, "fieldRef") {
        let path = val::text(field, "fieldPath");
        let keyed =
            ["metadata.annotations['", "metadata.labels['"].iter().any(|p| path.starts_with(p)) && path.ends_with("']");
        if path.is_empty() {
            errors.push(FieldError::required(format!("{at}.fieldRef.fieldPath"), ""));
        } else if !keyed && !ENV_FIELDS.contains(&path) {
            errors.push(FieldError::not_supported(format!("{at}.fieldRef.fieldPath"), path, ENV_FIELDS));
        }
    }
    if let Some(field) = val::at(source, "resourceFieldRef")
        && val::text(field, "resource").is_empty()
    {
        errors.push(FieldError::required(format!("{at}.resourceFieldRef.resource"), ""));
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        let Some(reference) = val::at(source, kind) else { continue };
        if val::text(reference, "name").is_empty() {
            errors.push(FieldError::required(format!("{at}.{kind}.name"), ""));
        }
        let key = val::text(reference, "key");
        if key.is_empty() {
            errors.push(FieldError::required(format!("{at}.{kind}.key"), ""));
        } else {
            errors.extend(
                names::config_key(key).into_iter().map(|m| FieldError::invalid(format!("{at}.{kind}.key"), key, m)),
            );
        }
    }
}

fn mounts(c: &Value, at: &str, volumes: &[&str], errors: &mut Vec<FieldError>) {
    let mut seen = Vec::new();
    for (i, mount) in val::list(c, "volumeMounts").iter().enumerate() {
        let f = |name: &str| format!("{at}.volumeMounts[{i}].{name}");
        let name = val::text(mount, "name");
        if name.is_empty() {
            errors.push(FieldError::required(f("name"), ""));
        } else if !volumes.contains(&name) {
            errors.push(FieldError::not_found(f("name"), name));
        }
        let path = val::text(mount, "mountPath");
        if path.is_empty() {
            errors.push(FieldError::required(f("mountPath"), ""));
        } else if seen.contains(&path) {
            errors.push(FieldError::invalid(f("mountPath"), path, "must be unique"));
        }
        seen.push(path);
        local_path(val::text(mount, "subPath"), &f("subPath"), errors);
        local_path(val::text(mount, "subPathExpr"), &f("subPathExpr"), errors);
        if !val::text(mount, "subPath").is_empty() && !val::text(mount, "subPathExpr").is_empty() {
            errors.push(FieldError::invalid(
                f("subPathExpr"),
                mount["subPathExpr"].clone(),
                "subPathExpr and subPath are mutually exclusive",
            ));
        }
        let propagation = val::text(mount, "mountPropagation");
        let valid = ["Bidirectional", "HostToContainer", "None"];
        if !propagation.is_empty() && !valid.contains(&propagation) {
            errors.push(FieldError::not_supported(f("mountPropagation"), propagation, &valid));
        }
        if propagation == "Bidirectional" && !val::flag(c, "securityContext.privileged") {
            errors.push(FieldError::forbidden(
                f("mountPropagation"),
                "Bidirectional mount propagation is available only to privileged containers",
            ));
        }
    }
}

/// Whether containers may ask for a resource of this name.
fn resource_name(name: &str) -> Option<&'static str> {
    if matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-") {
        return None;
    }
    if name.contains('/') {
        return (!names::qualified_name(name).is_empty())
            .then_some("must be a standard resource type or fully qualified");
    }
    Some("must be a standard resource for containers")
}

/// Validates requests and limits that messages call `at`.
fn resources(resources: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let parse = |v: &Value| v.as_str().and_then(|s| Quantity::parse(s).ok());
    for kind in ["limits", "requests"] {
        for (name, amount) in val::entries(resources, kind) {
            let field = format!("{at}.{kind}[{name}]");
            if let Some(message) = resource_name(name) {
                errors.push(FieldError::invalid(format!("{at}.{kind}"), name.as_str(), message));
            }
            let Some(quantity) = parse(amount) else { continue };
            if quantity.is_negative() {
                errors.push(FieldError::invalid(field.as_str(), amount.clone(), "must be greater than or equal to 0"));
            }
            let standard = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
            if !standard && !quantity.is_integer() {
                errors.push(FieldError::invalid(field, amount.clone(), "must be an integer"));
            }
        }
    }
    for (name, request) in val::entries(resources, "requests") {
        let limit = val::map(resources, "limits").and_then(|l| l.get(name));
        let (Some(limit), Some(asked)) = (limit, parse(request)) else { continue };
        let Some(allowed) = parse(limit) else { continue };
        let over = (asked.value(), asked.milli()) > (allowed.value(), allowed.milli());
        let shown = limit.as_str().unwrap_or("");
        let overcommit = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if over && overcommit {
            errors.push(FieldError::invalid(
                format!("{at}.requests"),
                request.clone(),
                format!("must be less than or equal to {name} limit of {shown}"),
            ));
        } else if !overcommit && (asked.value(), asked.milli()) != (allowed.value(), allowed.milli()) {
            errors.push(FieldError::invalid(
                format!("{at}.requests"),
                request.clone(),
                format!("must be equal to {name} limit of {shown}"),
            ));
        }
    }
}

fn probes(c: &Value, at: &str, init: bool, errors: &mut Vec<FieldError>) {
    let _ = init;
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = val::at(c, kind) else { continue };
        let at = format!("{at}.{kind}");
        handler(probe, &at, &["exec", "grpc", "httpGet", "tcpSocket"], errors);
        for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
            if let Some(n) = val::int(probe, key)
                && n < 0
            {
                errors.push(FieldError::invalid(format!("{at}.{key}"), n, "must be greater than or equal to 0"));
            }
        }
        let successes = val::int(probe, "successThreshold").unwrap_or(1);
        if kind != "readinessProbe" && successes != 1 {
            errors.push(FieldError::invalid(format!("{at}.successThreshold"), successes, "must be 1"));
        }
        if let Some(grace) = val::int(probe, "terminationGracePeriodSeconds") {
            if kind == "readinessProbe" {
                errors.push(FieldError::invalid(
                    format!("{at}.terminationGracePeriodSeconds"),
                    grace,
                    "must not be set for readinessProbes",
                ));
            } else if grace <= 0 {
                errors.push(FieldError::invalid(
                    format!("{at}.terminationGracePeriodSeconds"),
                    grace,
                    "must be greater than 0",
                ));
            }
        }
    }
}

/// Checks that exactly one of `kinds` is there and is well formed.
fn handler(v: &Value, at: &str, kinds: &[&str], errors: &mut Vec<FieldError>) {
    let given: Vec<&&str> = kinds.iter().filter(|k| val::at(v, k).is_some()).collect();
    if given.is_empty() {
        errors.push(FieldError::required(at, "must specify a handler type"));
    }
    for (i, kind) in given.into_iter().enumerate() {
        let at = format!("{at}.{kind}");
        if i > 0 {
            errors.push(FieldError::forbidden(at, "may not specify more than 1 handler type"));
            continue;
        }
        let inner = &v[*kind];
        match *kind {
            "exec" => {
                if val::list(inner, "command").is_empty() {
                    errors.push(FieldError::required(format!("{at}.command"), ""));
                }
            }
            "httpGet" => {
                if val::text(inner, "path").is_empty() {
                    errors.push(FieldError::required(format!("{at}.path"), ""));
                }
                port_or_name(inner, &at, errors);
                let scheme = val::text(inner, "scheme");
                if !["HTTP", "HTTPS"].contains(&scheme) {
                    errors.push(FieldError::not_supported(format!("{at}.scheme"), scheme, &["HTTP", "HTTPS"]));
                }
            }
            "sleep" => {
                let seconds = val::int(inner, "seconds").unwrap_or(0);
                if seconds < 0 {
                    errors.push(FieldError::invalid(
                        at,
                        seconds,
                        "must be non-negative and less than terminationGracePeriodSeconds",
                    ));
                }
            }
            _ => port_or_name(inner, &at, errors),
        }
    }
}

fn port_or_name(v: &Value, at: &str, errors: &mut Vec<FieldError>) {
    match v.get("port") {
        Some(Value::String(name)) => {
            errors.extend(
                names::port_name(name).into_iter().map(|m| FieldError::invalid(format!("{at}.port"), name.as_str(), m)),
            );
        }
        port => {
            let number = port.and_then(Value::as_i64).unwrap_or(0);
            errors.extend(
                names::port_number(number).into_iter().map(|m| FieldError::invalid(format!("{at}.port"), number, m)),
            );
        }
    }
}
