//! The checks of the baseline level. A check says why a pod is refused (reason and detail), or nothing.
//!
//! Upstream counterparts: `k8s.io/pod-security-admission/policy/check_*.go`; a number in a name is the minor version that it begins with.

use keelson_kinds::error::go_quote;
use serde_json::Value;

use super::pod::{Pod, Texts, at_fault, containers, plural, quoted};
use crate::json::{entries, items, text};

/// Reason and detail.
pub(super) type Found = Option<(&'static str, String)>;

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The pod's seccomp profile before 1.19.
pub(super) const SECCOMP_POD_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// A container's seccomp profile before 1.19; its name follows.
pub(super) const SECCOMP_CONTAINER_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(super) fn app_armor_profile(pod: Pod<'_>) -> Found {
    let mut values = Texts::new();
    let in_fields = at_fault(pod, |context| bad_profile(&context["appArmorProfile"], &mut values));
    let allowed = |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations: Texts = entries(pod.annotations)
        .filter(|(key, value)| key.starts_with(APP_ARMOR_ANNOTATION) && !allowed(text(value)))
        .map(|(key, value)| format!("{key}={}", go_quote(text(value))))
        .collect();
    let in_annotations =
        (!annotations.is_empty()).then(|| plural("annotation", "annotations", annotations.len()).to_owned());
    let setters: Vec<String> = in_fields.into_iter().chain(in_annotations).collect();
    if setters.is_empty() {
        return None;
    }
    let values: Vec<String> = values.into_iter().chain(annotations).collect();
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    Some((reason, format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(&values))))
}

/// Whether a seccomp or AppArmor profile is given that is neither the runtime's nor the node's.
pub(super) fn bad_profile(profile: &Value, bad: &mut Texts) -> bool {
    let kind = text(&profile["type"]);
    let fault = profile.is_object() && !matches!(kind, "RuntimeDefault" | "Localhost");
    if fault {
        bad.insert(kind.to_owned());
    }
    fault
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub(super) fn capabilities(pod: Pod<'_>) -> Found {
    added_capabilities(pod, &DEFAULT_CAPABILITIES).map(|detail| ("non-default capabilities", detail))
}

/// Who adds capabilities other than those.
pub(super) fn added_capabilities(pod: Pod<'_>, allowed: &[&str]) -> Option<String> {
    let mut others = Texts::new();
    let bad = pod.named(|container| {
        let added = items(&container["securityContext"]["capabilities"]["add"]).iter().map(text);
        let before: Vec<&str> = added.filter(|capability| !allowed.contains(capability)).collect();
        others.extend(before.iter().map(|&capability| capability.to_owned()));
        !before.is_empty()
    });
    (!bad.is_empty()).then(|| {
        format!("{} must not include {} in securityContext.capabilities.add", containers(&bad), quoted(&others))
    })
}

pub(super) fn host_namespaces(pod: Pod<'_>) -> Found {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| pod.spec[field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    (!shared.is_empty()).then(|| ("host namespaces", shared.join(", ")))
}

pub(super) fn host_path_volumes(pod: Pod<'_>) -> Found {
    let volumes = items(&pod.spec["volumes"]).iter().filter(|volume| !volume["hostPath"].is_null());
    let names: Vec<&str> = volumes.map(|volume| text(&volume["name"])).collect();
    let detail = || format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names));
    (!names.is_empty()).then(|| ("hostPath volumes", detail()))
}

pub(super) fn host_ports(pod: Pod<'_>) -> Found {
    // Sorted as texts, as upstream does.
    let mut ports = Texts::new();
    let bad = pod.named(|container| {
        let used = items(&container["ports"]).iter().filter_map(|port| port["hostPort"].as_i64());
        let used: Vec<i64> = used.filter(|port| *port != 0).collect();
        ports.extend(used.iter().map(ToString::to_string));
        !used.is_empty()
    });
    (!bad.is_empty()).then(|| {
        let listed: Vec<&str> = ports.iter().map(String::as_str).collect();
        let (uses, noun) = (plural("uses", "use", bad.len()), plural("hostPort", "hostPorts", ports.len()));
        ("hostPort", format!("{} {uses} {noun} {}", containers(&bad), listed.join(", ")))
    })
}

pub(super) fn host_probes_34(pod: Pod<'_>) -> Found {
    let mut hosts = Texts::new();
    let bad: Texts = pod
        .named(|container| {
            let lifecycle = &container["lifecycle"];
            let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
            let handlers = probes.into_iter().chain([&lifecycle["postStart"], &lifecycle["preStop"]]);
            let named = handlers.flat_map(|handler| [&handler["httpGet"]["host"], &handler["tcpSocket"]["host"]]);
            let named: Vec<&str> = named.map(text).filter(|host| !host.is_empty()).collect();
            hosts.extend(named.iter().map(|&host| host.to_owned()));
            !named.is_empty()
        })
        .into_iter()
        .map(str::to_owned)
        .collect();
    (!bad.is_empty()).then(|| {
        let names: Vec<&str> = bad.iter().map(String::as_str).collect();
        let uses = plural("uses", "use", bad.len());
        let noun = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
        ("probe or lifecycle host", format!("{} {uses} {noun} {}", containers(&names), quoted(&hosts)))
    })
}

pub(super) fn privileged(pod: Pod<'_>) -> Found {
    let bad = pod.named(|container| container["securityContext"]["privileged"] == true);
    (!bad.is_empty())
        .then(|| ("privileged", format!("{} must not set securityContext.privileged=true", containers(&bad))))
}

pub(super) fn proc_mount(pod: Pod<'_>) -> Found {
    let mut kinds = Texts::new();
    let bad = pod.named(|container| {
        let kind = container["securityContext"]["procMount"].as_str().filter(|kind| *kind != "Default");
        kinds.extend(kind.map(str::to_owned));
        kind.is_some()
    });
    (!bad.is_empty()).then(|| {
        let detail = format!("{} must not set securityContext.procMount to {}", containers(&bad), quoted(&kinds));
        ("procMount", detail)
    })
}

pub(super) fn proc_mount_35(pod: Pod<'_>) -> Found {
    if pod.user_namespace() { None } else { proc_mount(pod) }
}

const SELINUX_TYPES: [&str; 4] = ["", "container_t", "container_init_t", "container_kvm_t"];
const SELINUX_TYPES_31: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

pub(super) fn selinux_options(pod: Pod<'_>) -> Found {
    selinux(pod, &SELINUX_TYPES)
}

pub(super) fn selinux_options_31(pod: Pod<'_>) -> Found {
    selinux(pod, &SELINUX_TYPES_31)
}

fn selinux(pod: Pod<'_>, allowed: &[&str]) -> Found {
    let (mut types, mut user, mut role) = (Texts::new(), false, false);
    let setters = at_fault(pod, |context| {
        let options = &context["seLinuxOptions"];
        let kind = text(&options["type"]);
        let (bad_type, sets_user, sets_role) =
            (!allowed.contains(&kind), !text(&options["user"]).is_empty(), !text(&options["role"]).is_empty());
        if bad_type {
            types.insert(kind.to_owned());
        }
        user |= sets_user;
        role |= sets_role;
        bad_type || sets_user || sets_role
    })?;
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    }
    what.extend(user.then(|| "user may not be set".to_owned()));
    what.extend(role.then(|| "role may not be set".to_owned()));
    let detail = format!("{setters} set forbidden securityContext.seLinuxOptions: {}", what.join("; "));
    Some(("seLinuxOptions", detail))
}

pub(super) fn seccomp_profile(pod: Pod<'_>) -> Found {
    let allowed =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let of_containers =
        pod.containers().map(|container| format!("{SECCOMP_CONTAINER_ANNOTATION}{}", text(&container["name"])));
    let bad: Texts = std::iter::once(SECCOMP_POD_ANNOTATION.to_owned())
        .chain(of_containers)
        .filter_map(|key| {
            let value = pod.annotations[&key].as_str().filter(|value| !allowed(value))?;
            Some(format!("{key}={}", go_quote(value)))
        })
        .collect();
    (!bad.is_empty()).then(|| {
        let listed: Vec<&str> = bad.iter().map(String::as_str).collect();
        let noun = plural("annotation", "annotations", bad.len());
        ("seccompProfile", format!("forbidden {noun} {}", listed.join(", ")))
    })
}

pub(super) fn seccomp_profile_19(pod: Pod<'_>) -> Found {
    let mut types = Texts::new();
    let setters = at_fault(pod, |context| bad_profile(&context["seccompProfile"], &mut types))?;
    let detail = format!("{setters} must not set securityContext.seccompProfile.type to {}", quoted(&types));
    Some(("seccompProfile", detail))
}

/// Allowed sysctls, each with the minor version that it is allowed from.
const SYSCTLS: [(u64, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

/// The sysctls check as it is from that minor version on.
pub(super) fn sysctls<const MINOR: u64>(pod: Pod<'_>) -> Found {
    let allowed = |name: &str| SYSCTLS.iter().any(|(since, known)| *since <= MINOR && *known == name);
    let set = items(&pod.spec["securityContext"]["sysctls"]).iter().map(|sysctl| text(&sysctl["name"]));
    let bad: Vec<&str> = set.filter(|name| !allowed(name)).collect();
    (!bad.is_empty()).then(|| ("forbidden sysctls", bad.join(", ")))
}

pub(super) fn windows_host_process(pod: Pod<'_>) -> Found {
    let setters = at_fault(pod, |context| context["windowsOptions"]["hostProcess"] == true)?;
    Some(("hostProcess", format!("{setters} must not set securityContext.windowsOptions.hostProcess=true")))
}
