//! Pod Security Standards: which pods a namespace takes, and what it says about those that it does not.
//!
//! [`evaluate`] runs the checks of a level at a version. [`admit`] applies them to requests; it decides about pods on create, on
//! update and on `ephemeralcontainers`, warns about the templates of controllers, and checks the labels of namespaces.
//! Whoever calls it passes objects as they are about to be stored, with their defaults.
//!
//! Upstream counterpart: `k8s.io/pod-security-admission` (`policy`, `admission`, `api`), as of 1.35; exemptions are not configurable.

pub mod admit;
mod baseline;
mod levels;
mod pod;
mod restricted;

use serde_json::Value;

use baseline::Found;
pub use levels::{Level, LevelVersion, PREFIX, Policy, Version};
use pod::Pod;

/// Why a check refuses a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Upstream's name of the check.
    pub check: &'static str,
    /// In short: `privileged`.
    pub reason: &'static str,
    /// Who, and what: `container "a" must not set securityContext.privileged=true`.
    pub detail: String,
}

/// `privileged, hostPort`.
#[must_use]
pub fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|violation| violation.reason).collect::<Vec<_>>().join(", ")
}

/// `privileged (container "a" must not set securityContext.privileged=true), …`.
#[must_use]
pub fn details(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match violation.detail.as_str() {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

type Form = fn(Pod<'_>) -> Found;

struct Check {
    id: &'static str,
    /// The check of the baseline level that this one takes the place of.
    replaces: &'static str,
    /// Its forms, each with the minor version that it begins with, ascending.
    forms: &'static [(u64, Form)],
}

impl Check {
    const fn new(id: &'static str, forms: &'static [(u64, Form)]) -> Self {
        Self { id, replaces: "", forms }
    }

    const fn replacing(self, replaces: &'static str) -> Self {
        Self { replaces, ..self }
    }

    fn at(&self, minor: u64) -> Option<Form> {
        self.forms.iter().rev().find(|(since, _)| *since <= minor).map(|(_, form)| *form)
    }
}

// Both are in the order of upstream's names, which is the order of the messages.
static BASELINE: [Check; 12] = [
    Check::new("appArmorProfile", &[(0, baseline::app_armor_profile)]),
    Check::new("capabilities_baseline", &[(0, baseline::capabilities)]),
    Check::new("hostNamespaces", &[(0, baseline::host_namespaces)]),
    Check::new("hostPathVolumes", &[(0, baseline::host_path_volumes)]),
    Check::new("hostPorts", &[(0, baseline::host_ports)]),
    Check::new("hostProbesAndHostLifecycle", &[(34, baseline::host_probes_34)]),
    Check::new("privileged", &[(0, baseline::privileged)]),
    Check::new("procMount", &[(0, baseline::proc_mount), (35, baseline::proc_mount_35)]),
    Check::new("seLinuxOptions", &[(0, baseline::selinux_options), (31, baseline::selinux_options_31)]),
    Check::new("seccompProfile_baseline", &[(0, baseline::seccomp_profile), (19, baseline::seccomp_profile_19)]),
    Check::new(
        "sysctls",
        &[
            (0, baseline::sysctls::<0>),
            (27, baseline::sysctls::<27>),
            (29, baseline::sysctls::<29>),
            (32, baseline::sysctls::<32>),
        ],
    ),
    Check::new("windowsHostProcess", &[(0, baseline::windows_host_process)]),
];

static RESTRICTED: [Check; 7] = [
    Check::new(
        "allowPrivilegeEscalation",
        &[(8, restricted::allow_privilege_escalation_8), (25, restricted::allow_privilege_escalation_25)],
    ),
    Check::new("capabilities_restricted", &[(22, restricted::capabilities_22), (25, restricted::capabilities_25)])
        .replacing("capabilities_baseline"),
    Check::new("procMount_restricted", &[(35, baseline::proc_mount)]).replacing("procMount"),
    Check::new("restrictedVolumes", &[(0, restricted::restricted_volumes)]).replacing("hostPathVolumes"),
    Check::new("runAsNonRoot", &[(0, restricted::run_as_non_root), (35, restricted::run_as_non_root_35)]),
    Check::new("runAsUser", &[(23, restricted::run_as_user_23), (35, restricted::run_as_user_35)]),
    Check::new(
        "seccompProfile_restricted",
        &[(19, restricted::seccomp_profile_19), (25, restricted::seccomp_profile_25)],
    )
    .replacing("seccompProfile_baseline"),
];

/// Everything that a pod with this metadata and spec breaks, in upstream's order; nothing if it may run.
///
/// A version newer than the newest check is the newest. Never fails: what is not of the expected type counts as not set.
#[must_use]
pub fn evaluate(policy: LevelVersion, metadata: &Value, spec: &Value) -> Vec<Violation> {
    let minor = match policy.version {
        Version::Minor(minor) => minor,
        Version::Latest => u64::MAX,
    };
    let added: &[Check] = match policy.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => &[],
        Level::Restricted => &RESTRICTED,
    };
    let replaced = |id: &str| added.iter().any(|check| check.replaces == id && check.at(minor).is_some());
    let pod = Pod::new(metadata, spec);
    BASELINE
        .iter()
        .filter(|check| !replaced(check.id))
        .chain(added)
        .filter_map(|check| {
            let (reason, detail) = check.at(minor)?(pod)?;
            Some(Violation { check: check.id, reason, detail })
        })
        .collect()
}

#[cfg(test)]
mod tests;
