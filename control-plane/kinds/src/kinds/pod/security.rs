//! Validation of the security contexts of pods and containers, and of what depends on the pod's operating system.
//!
//! Upstream counterpart: `validatePodSpecSecurityContext`, `ValidateSecurityContext`, `validateLinux`, `validateWindows`.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{check, windows};
use crate::error::FieldError;
use crate::{names, val};

/// Longest path of a file, less its end: the name of an AppArmor profile.
const MAX_PROFILE: usize = 4095;
/// Kernel parameters of the IPC namespace, by prefix.
const IPC_PARAMETERS: &[&str] = &["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// Whether a pod shares the host's users: it does unless it says that it does not.
fn shares_users(spec: &Value) -> bool {
    val::at(spec, "hostUsers").and_then(Value::as_bool).unwrap_or(true)
}

/// Validates `spec.securityContext` and the namespaces that the pod shares with the host.
pub(super) fn of_pod(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let f = |name: &str| format!("{at}.securityContext.{name}");
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        check::identity(spec, &format!("securityContext.{key}"), &f(key), errors);
    }
    let groups = val::list(spec, "securityContext.supplementalGroups").iter().filter_map(Value::as_i64);
    for (i, group) in groups.enumerate() {
        check::within(group, 0, i64::from(i32::MAX), &f(&format!("supplementalGroups[{i}]")), errors);
    }
    if val::flag(spec, "shareProcessNamespace") && val::flag(spec, "hostPID") {
        let message = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(f("shareProcessNamespace"), true, message));
    }
    sysctls(spec, &f("sysctls"), errors);
    for (key, valid) in [
        ("fsGroupChangePolicy", ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", ["Merge", "Strict"]),
        ("seLinuxChangePolicy", ["MountOption", "Recursive"]),
    ] {
        if let Some(policy) = check::present(spec, &format!("securityContext.{key}")) {
            check::supported(policy, &valid, &f(key), errors);
        }
    }
    profiles(spec, &format!("{at}.securityContext"), errors);
    windows::options(spec, &f("windowsOptions"), errors);
    windows::host_process(spec, at, errors);
    users(spec, at, errors);
}

fn profiles(v: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(profile) = val::at(v, "securityContext.seccompProfile") {
        seccomp(profile, &format!("{at}.seccompProfile"), errors);
    }
    if let Some(profile) = val::at(v, "securityContext.appArmorProfile") {
        app_armor(profile, &format!("{at}.appArmorProfile"), errors);
    }
}

/// Validates `securityContext` of a container of `spec`.
pub(super) fn of_container(c: &Value, at: &str, spec: &Value, errors: &mut Vec<FieldError>) {
    let Some(context) = val::at(c, "securityContext") else { return };
    let f = |name: &str| format!("{at}.securityContext.{name}");
    for key in ["runAsUser", "runAsGroup"] {
        check::identity(context, key, &f(key), errors);
    }
    if let Some(mount) = check::present(context, "procMount") {
        check::supported(mount, &["Default", "Unmasked"], &f("procMount"), errors);
        if mount == "Unmasked" && shares_users(spec) {
            errors.push(FieldError::invalid(f("procMount"), mount, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    let mut contradicts = |what: &str| {
        let message = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
        errors.push(FieldError::invalid(format!("{at}.securityContext"), context.clone(), message));
    };
    if val::at(context, "allowPrivilegeEscalation") == Some(&json!(false)) {
        if val::flag(context, "privileged") {
            contradicts("`privileged` to true");
        }
        if val::list(context, "capabilities.add").iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            contradicts("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    profiles(c, &format!("{at}.securityContext"), errors);
    windows::options(c, &f("windowsOptions"), errors);
}

fn seccomp(profile: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let kind = val::text(profile, "type");
    let file_at = format!("{at}.localhostProfile");
    let file = check::present(profile, "localhostProfile");
    if kind.is_empty() {
        errors.push(FieldError::required(format!("{at}.type"), "type is required when seccompProfile is set"));
    } else {
        check::supported(kind, &["Localhost", "RuntimeDefault", "Unconfined"], &format!("{at}.type"), errors);
    }
    match file {
        // An empty one would be the folder of all profiles: ours fails closed where upstream lets it pass.
        None | Some("") if kind == "Localhost" => {
            errors.push(FieldError::required(file_at, "must be set when seccomp type is Localhost"));
        }
        Some(file) if kind == "Localhost" => check::local_path(file, &file_at, errors),
        Some(_) => {
            let message = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid(file_at, profile.clone(), message));
        }
        None => {}
    }
}

fn app_armor(profile: &Value, at: &str, errors: &mut Vec<FieldError>) {
    const MUST: &str = "must be set when AppArmor type is Localhost";
    let kind = val::text(profile, "type");
    let name_at = format!("{at}.localhostProfile");
    let name = check::present(profile, "localhostProfile");
    match (kind, name) {
        ("Localhost", None | Some("")) => errors.push(FieldError::required(name_at, MUST)),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                errors.push(FieldError::invalid(name_at.as_str(), name, "must not be padded with whitespace"));
            }
            if name.len() > MAX_PROFILE {
                errors.push(FieldError::too_long(name_at, MAX_PROFILE));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.push(FieldError::invalid(name_at, name, "can only be set when AppArmor type is Localhost"));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            errors.push(FieldError::required(format!("{at}.type"), "type is required when appArmorProfile is set"));
        }
        _ => check::supported(kind, &["Localhost", "RuntimeDefault", "Unconfined"], &format!("{at}.type"), errors),
    }
}

fn sysctls(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (i, sysctl) in val::list(spec, "securityContext.sysctls").iter().enumerate() {
        let name = val::text(sysctl, "name");
        let at = format!("{at}[{i}].name");
        if name.is_empty() {
            errors.push(FieldError::required(at.as_str(), ""));
        } else if let Some(message) = names::sysctl(name) {
            errors.push(FieldError::invalid(at.as_str(), name, message));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(at.as_str(), name));
        }
        let dotted = name.replace('/', ".");
        for (shared, is_of) in [
            ("hostNetwork", dotted.starts_with("net.")),
            ("hostIPC", IPC_PARAMETERS.iter().any(|prefix| dotted.starts_with(prefix))),
        ] {
            if is_of && val::flag(spec, shared) {
                let message = format!("may not be specified when '{shared}' is true");
                errors.push(FieldError::invalid(at.as_str(), name, message));
            }
        }
    }
}

/// A pod with users of its own has the other namespaces of its own too.
fn users(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if shares_users(spec) {
        return;
    }
    let why = "when `hostUsers` is false";
    // Upstream's names of these fields.
    for (key, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if val::flag(spec, key) {
            errors.push(FieldError::forbidden(format!("{at}.{shown}"), why));
        }
    }
    for (at, container) in check::containers(spec, at) {
        if !val::list(container, "volumeDevices").is_empty() {
            errors.push(FieldError::forbidden(format!("{at}.volumeDevices"), why));
        }
    }
}

/// Validates `spec.os` and what a pod of that system may not have.
pub(super) fn system(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(os) = val::at(spec, "os") else { return };
    match val::text(os, "name") {
        "" => errors.push(FieldError::required(format!("{at}.os.name"), "")),
        "windows" => windows::not_for_windows(spec, at, errors),
        "linux" => {
            let why = "windows options cannot be set for a linux pod";
            let contexts = std::iter::once((at.to_owned(), spec)).chain(check::containers(spec, at));
            for (at, v) in contexts {
                if val::at(v, "securityContext.windowsOptions").is_some() {
                    errors.push(FieldError::forbidden(format!("{at}.securityContext.windowsOptions"), why));
                }
            }
        }
        other => errors.push(FieldError::not_supported(format!("{at}.os"), other, &["linux", "windows"])),
    }
}
