//! Validation of what is about Windows only: no node of ours runs it, the API knows it.
//!
//! Upstream counterpart: `validateWindowsSecurityContextOptions`, `validateWindowsHostProcessPod`, `validateWindows`.

use serde_json::Value;

use super::check;
use crate::error::FieldError;
use crate::{names, val};

/// Largest credential specification: 64 KiB.
const MAX_CREDENTIALS: usize = 64 * 1024;
const MAX_DOMAIN: usize = 256;
const MAX_USER: usize = 104;
/// What a pod for Windows may not have, besides what is in its security context.
const OF_SPEC: &[&str] = &["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"];
const OF_POD: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const OF_CONTAINER: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Validates `securityContext.windowsOptions` of a pod or container.
pub(super) fn options(v: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(options) = val::at(v, "securityContext.windowsOptions") else { return };
    if let Some(name) = check::present(options, "gmsaCredentialSpecName") {
        check::text(name, &format!("{at}.gmsaCredentialSpecName"), names::dns1123_subdomain, errors);
    }
    if let Some(spec) = check::present(options, "gmsaCredentialSpec") {
        let message = match spec.len() {
            0 => "gmsaCredentialSpec cannot be an empty string",
            n if n > MAX_CREDENTIALS => "gmsaCredentialSpec size must be under 64 KiB",
            _ => "",
        };
        if !message.is_empty() {
            errors.push(FieldError::invalid(format!("{at}.gmsaCredentialSpec"), spec, message));
        }
    }
    if let Some(user) = check::present(options, "runAsUserName") {
        let at = format!("{at}.runAsUserName");
        errors.extend(user_name(user).into_iter().map(|message| FieldError::invalid(at.as_str(), user, message)));
    }
}

fn user_name(name: &str) -> Vec<String> {
    let say = |what: &str| format!("runAsUserName{what}");
    if name.is_empty() {
        return vec![say(" cannot be an empty string")];
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return vec![say(" cannot contain control characters")];
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec![say(" cannot contain more than one backslash")],
    };
    let mut out = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= MAX_DOMAIN {
            out.push(say("'s Domain length must be under 256 characters"));
        }
        if !is_net_bios(domain) && !is_dns(domain) {
            out.push(say("'s Domain doesn't match the NetBios nor the DNS format"));
        }
    }
    if user.is_empty() {
        out.push(say("'s User cannot be empty"));
    } else if user.len() > MAX_USER {
        out.push(say("'s User length must not be longer than 104 characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        out.push(say("'s User cannot contain only periods or spaces"));
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        out.push(say("'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"));
    }
    out
}

fn is_net_bios(domain: &str) -> bool {
    let bad = |c: char| matches!(c, '\\' | '/' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    (1..=15).contains(&domain.chars().count()) && !domain.starts_with('.') && !domain.chars().any(bad)
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

/// All containers of a pod are processes of the host, or none is.
pub(super) fn host_process(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    const KEY: &str = "securityContext.windowsOptions.hostProcess";
    let says = |v: &Value| val::at(v, KEY).and_then(Value::as_bool);
    let pod = says(spec);
    let containers = check::containers(spec, at);
    let mut count = 0;
    for (at, container) in &containers {
        let own = says(container);
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let message = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.push(FieldError::invalid(format!("{at}.{KEY}"), own, message));
        }
        count += usize::from(own.or(pod).unwrap_or(false));
    }
    if count == 0 {
        return;
    }
    if count != containers.len() {
        let message = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(at, "", message));
    }
    if !val::flag(spec, "hostNetwork") {
        let message = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(format!("{at}.hostNetwork"), false, message));
    }
}

/// What is about Linux has no place in a pod for Windows.
pub(super) fn not_for_windows(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    const WHY: &str = "cannot be set for a windows pod";
    for key in OF_SPEC {
        // Sharing what is the host's is what counts, but for the two that are pointers.
        let is_pointer = matches!(*key, "hostUsers" | "shareProcessNamespace");
        if val::flag(spec, key) || (is_pointer && val::at(spec, key).is_some()) {
            errors.push(FieldError::forbidden(format!("{at}.{key}"), WHY));
        }
    }
    let contexts = std::iter::once((at.to_owned(), spec, OF_POD))
        .chain(check::containers(spec, at).into_iter().map(|(at, container)| (at, container, OF_CONTAINER)));
    for (at, v, keys) in contexts {
        let Some(context) = val::at(v, "securityContext") else { continue };
        for key in keys.iter().filter(|key| val::at(context, key).is_some()) {
            errors.push(FieldError::forbidden(format!("{at}.securityContext.{key}"), WHY));
        }
    }
}
