//! Validation of probes and lifecycle hooks.
//!
//! Upstream counterpart: `validateProbe`, `validateHandler`, `validateLifecycle`.

use serde_json::Value;

use super::check;
use crate::error::FieldError;
use crate::{names, val};

const PROBE_HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "grpc"];
const HOOK_HANDLERS: &[&str] = &["exec", "httpGet", "tcpSocket", "sleep"];
const NUMBERS: &[&str] =
    &["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
const WINDOWS_SIGNALS: &[&str] = &["SIGKILL", "SIGTERM"];
/// Signals by name, besides the real-time ones.
const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// What hooks and probes depend on in the rest of the spec.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// The pod's grace period.
    pub(super) grace: Option<i64>,
    /// The pod's operating system, if it says so.
    pub(super) os: Option<&'a str>,
}

/// Validates the three probes and the hooks of a container.
pub(super) fn validate(c: &Value, at: &str, around: Around<'_>, errors: &mut Vec<FieldError>) {
    if let Some(lifecycle) = val::at(c, "lifecycle") {
        self::lifecycle(lifecycle, &format!("{at}.lifecycle"), around, errors);
    }
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = val::at(c, kind) else { continue };
        let at = format!("{at}.{kind}");
        handler(probe, &at, PROBE_HANDLERS, around.grace, errors);
        for key in NUMBERS {
            if let Some(n) = val::int(probe, key)
                && n < 0
            {
                errors.push(FieldError::invalid(format!("{at}.{key}"), n, "must be greater than or equal to 0"));
            }
        }
        let grace_at = format!("{at}.terminationGracePeriodSeconds");
        if let Some(grace) = val::int(probe, "terminationGracePeriodSeconds") {
            if grace <= 0 {
                errors.push(FieldError::invalid(grace_at.as_str(), grace, "must be greater than 0"));
            }
            if kind == "readinessProbe" {
                errors.push(FieldError::invalid(grace_at, grace, "must not be set for readinessProbes"));
            }
        }
        let successes = val::int(probe, "successThreshold").unwrap_or(1);
        if kind != "readinessProbe" && successes != 1 {
            errors.push(FieldError::invalid(format!("{at}.successThreshold"), successes, "must be 1"));
        }
    }
}

fn lifecycle(lifecycle: &Value, at: &str, around: Around<'_>, errors: &mut Vec<FieldError>) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = val::at(lifecycle, hook) {
            self::handler(handler, &format!("{at}.{hook}"), HOOK_HANDLERS, around.grace, errors);
        }
    }
    let Some(signal) = check::present(lifecycle, "stopSignal") else { return };
    let at = format!("{at}.stopSignal");
    match around.os {
        None => errors.push(FieldError::forbidden(at, "may not be set for containers with empty `spec.os.name`")),
        Some("windows") => check::supported(signal, WINDOWS_SIGNALS, &at, errors),
        Some("linux") => {
            let mut valid: Vec<String> = SIGNALS.iter().map(|name| (*name).to_owned()).collect();
            valid.extend(["SIGRTMIN", "SIGRTMAX"].map(ToOwned::to_owned));
            valid.extend((1..=15).map(|n| format!("SIGRTMIN+{n}")));
            valid.extend((1..=14).map(|n| format!("SIGRTMAX-{n}")));
            valid.sort();
            check::supported(signal, &valid.iter().map(String::as_str).collect::<Vec<_>>(), &at, errors);
        }
        Some(_) => {}
    }
}

/// Checks that exactly one of `kinds` is there and is well formed.
fn handler(v: &Value, at: &str, kinds: &[&str], grace: Option<i64>, errors: &mut Vec<FieldError>) {
    let given: Vec<&&str> = kinds.iter().filter(|kind| val::at(v, kind).is_some()).collect();
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
            "httpGet" => http_get(inner, &at, errors),
            "sleep" => {
                let seconds = val::int(inner, "seconds").unwrap_or(0);
                if let Some(grace) = grace
                    && (seconds < 0 || seconds > grace)
                {
                    let bound = "must be non-negative and less than terminationGracePeriodSeconds";
                    errors.push(FieldError::invalid(at, seconds, format!("{bound} ({grace})")));
                }
            }
            _ => check::port_or_name(inner, &format!("{at}.port"), errors),
        }
    }
}

fn http_get(get: &Value, at: &str, errors: &mut Vec<FieldError>) {
    check::required(val::text(get, "path"), &format!("{at}.path"), errors);
    check::port_or_name(get, &format!("{at}.port"), errors);
    check::supported(val::text(get, "scheme"), &["HTTP", "HTTPS"], &format!("{at}.scheme"), errors);
    for header in val::list(get, "httpHeaders") {
        check::text(val::text(header, "name"), &format!("{at}.httpHeaders"), names::http_header, errors);
    }
}
