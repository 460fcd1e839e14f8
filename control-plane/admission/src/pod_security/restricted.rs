//! The checks that the restricted level adds.
//!
//! Upstream counterparts: `k8s.io/pod-security-admission/policy/check_*.go`; a number in a name is the minor version that it begins with.

use serde_json::Value;

use super::baseline::{self, Found, added_capabilities};
use super::pod::{Pod, Texts, at_fault, containers, plural, quoted, setters};
use crate::json::{items, text};

pub(super) fn allow_privilege_escalation_8(pod: Pod<'_>) -> Found {
    let bad = pod.named(|container| container["securityContext"]["allowPrivilegeEscalation"] != false);
    (!bad.is_empty()).then(|| {
        let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&bad));
        ("allowPrivilegeEscalation != false", detail)
    })
}

pub(super) fn allow_privilege_escalation_25(pod: Pod<'_>) -> Found {
    if pod.windows() { None } else { allow_privilege_escalation_8(pod) }
}

pub(super) fn capabilities_22(pod: Pod<'_>) -> Found {
    let keeping = pod.named(|container| {
        let mut dropped = items(&container["securityContext"]["capabilities"]["drop"]).iter();
        !dropped.any(|capability| capability == "ALL")
    });
    let keeping = (!keeping.is_empty())
        .then(|| format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeping)));
    let details: Vec<String> = keeping.into_iter().chain(added_capabilities(pod, &["NET_BIND_SERVICE"])).collect();
    (!details.is_empty()).then(|| ("unrestricted capabilities", details.join("; ")))
}

pub(super) fn capabilities_25(pod: Pod<'_>) -> Found {
    if pod.windows() { None } else { capabilities_22(pod) }
}

const ALLOWED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

pub(super) fn restricted_volumes(pod: Pod<'_>) -> Found {
    let (mut names, mut types) = (Vec::new(), Texts::new());
    for volume in items(&pod.spec["volumes"]) {
        let has = |source: &str| !volume[source].is_null();
        // One without a source becomes an emptyDir when it is defaulted.
        let sourceless =
            volume.as_object().is_some_and(|fields| fields.iter().all(|(key, value)| key == "name" || value.is_null()));
        if sourceless || ALLOWED_VOLUMES.into_iter().any(has) {
            continue;
        }
        names.push(text(&volume["name"]));
        types.insert(OTHER_VOLUMES.into_iter().find(|source| has(source)).unwrap_or("unknown").to_owned());
    }
    (!names.is_empty()).then(|| {
        let (noun, uses) = (plural("volume", "volumes", names.len()), plural("uses", "use", names.len()));
        let what = plural("restricted volume type", "restricted volume types", types.len());
        ("restricted volume types", format!("{noun} {} {uses} {what} {}", quoted(&names), quoted(&types)))
    })
}

pub(super) fn run_as_non_root(pod: Pod<'_>) -> Found {
    const REASON: &str = "runAsNonRoot != true";
    let of = |holder: &Value| holder["securityContext"]["runAsNonRoot"].as_bool();
    let in_pod = of(pod.spec);
    let root = pod.named(|container| of(container) == Some(false));
    if let Some(setters) = setters(in_pod == Some(false), &root) {
        return Some((REASON, format!("{setters} must not set securityContext.runAsNonRoot=false")));
    }
    let unset = pod.named(|container| of(container).is_none());
    (in_pod != Some(true) && !unset.is_empty())
        .then(|| (REASON, format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&unset))))
}

pub(super) fn run_as_non_root_35(pod: Pod<'_>) -> Found {
    if pod.user_namespace() { None } else { run_as_non_root(pod) }
}

pub(super) fn run_as_user_23(pod: Pod<'_>) -> Found {
    let setters = at_fault(pod, |context| context["runAsUser"].as_i64() == Some(0))?;
    Some(("runAsUser=0", format!("{setters} must not set runAsUser=0")))
}

pub(super) fn run_as_user_35(pod: Pod<'_>) -> Found {
    if pod.user_namespace() { None } else { run_as_user_23(pod) }
}

pub(super) fn seccomp_profile_19(pod: Pod<'_>) -> Found {
    if let Some(found) = baseline::seccomp_profile_19(pod) {
        return Some(found);
    }
    let given = |holder: &Value| holder["securityContext"]["seccompProfile"].is_object();
    let unset = pod.named(|container| !given(container));
    (!given(pod.spec) && !unset.is_empty()).then(|| {
        let who = containers(&unset);
        let detail =
            format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"");
        ("seccompProfile", detail)
    })
}

pub(super) fn seccomp_profile_25(pod: Pod<'_>) -> Found {
    if pod.windows() { None } else { seccomp_profile_19(pod) }
}
