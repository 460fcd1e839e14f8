//! Which kernel parameters a pod may set: those the kernel keeps per pod and that cannot harm others, and those the
//! operator allows in `allowedUnsafeSysctls`. Pure.
//!
//! Upstream counterpart: `pkg/kubelet/sysctl`, `component-helpers/node/util/sysctl`.

use k8s_openapi::api::core::v1::Pod;

use crate::pod;

/// Reason of the refusal of a pod.
pub const FORBIDDEN_REASON: &str = "SysctlForbidden";
/// Longest name (upstream `SysctlMaxLength`).
const MAX_LENGTH: usize = 253;
/// What every pod may set.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// The kernel's namespace that keeps a parameter; none for one of the whole machine.
fn namespace(name: &str) -> Option<&'static str> {
    if name == "kernel.sem" || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p)) {
        return Some("ipc");
    }
    name.starts_with("net.").then_some("net")
}

/// `net/ipv4/x` as `net.ipv4.x`; when the first separator is a slash, dots and slashes change places.
fn dotted(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes()[at] == b'.') {
        return name.to_owned();
    }
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    name.chars().map(swap).collect()
}

fn covers(pattern: &str, name: &str) -> bool {
    let pattern = dotted(pattern);
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

/// Why a pod may not run here because of its sysctls; upstream's message.
#[must_use]
pub fn forbidden(pod: &Pod, allowed_unsafe: &[String]) -> Option<String> {
    let spec = pod::spec(pod);
    let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
    for sysctl in sysctls {
        let name = dotted(&sysctl.name);
        if !SAFE.contains(&name.as_str()) && !allowed_unsafe.iter().any(|pattern| covers(pattern, &name)) {
            return Some(format!("forbidden sysctl: {name:?} not allowlisted"));
        }
        let host = match namespace(&name) {
            Some("net") => spec.host_network == Some(true),
            Some(_) => spec.host_ipc == Some(true),
            // The kernel has one for the whole machine: allowed by no list.
            None => return Some(format!("forbidden sysctl: {name:?} not allowlisted")),
        };
        if host {
            let kept = namespace(&name).unwrap_or_default();
            return Some(format!("forbidden sysctl: {name:?} not allowed with host {kept} enabled"));
        }
    }
    None
}

/// What is wrong with an entry of `allowedUnsafeSysctls`.
#[must_use]
pub fn pattern_problem(text: &str) -> Option<String> {
    let prefix = text.strip_suffix('*');
    let body = prefix.unwrap_or(text);
    let mut parts: Vec<&str> = body.split(['.', '/']).collect();
    if prefix.is_some() && parts.last().is_some_and(|last| last.is_empty()) {
        parts.pop();
    }
    let fine = |part: &&str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
        !part.is_empty() && part.bytes().all(inner)
    };
    if parts.is_empty() || text.len() > MAX_LENGTH || !parts.iter().all(fine) {
        return Some(format!(
            "{text:?} is no kernel parameter such as kernel.msgmax, nor a pattern such as net.core.*"
        ));
    }
    namespace(&dotted(body)).is_none().then(|| {
        format!("the sysctl {text:?} is not known to be namespaced: the kernel keeps it for the whole machine")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(spec: serde_json::Value, names: &[&str], allowed: &[&str]) -> Option<String> {
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"containers": []}})).unwrap();
        let mut spec = spec;
        let list: Vec<_> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        spec["containers"] = json!([]);
        spec["securityContext"] = json!({"sysctls": list});
        pod.spec = Some(serde_json::from_value(spec).unwrap());
        forbidden(&pod, &allowed.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn safe_ones_pass_and_others_do_not() {
        assert_eq!(forbidden(&Pod::default(), &[]), None);
        assert_eq!(check(json!({}), &["net.ipv4.tcp_syncookies", "net/ipv4/ping_group_range"], &[]), None);
        for (name, shown) in [
            ("kernel.msgmax", "kernel.msgmax"),
            ("net.core.somaxconn", "net.core.somaxconn"),
            ("kernel/shmmax", "kernel.shmmax"),
            ("vm.overcommit_memory", "vm.overcommit_memory"),
        ] {
            let expected = format!("forbidden sysctl: \"{shown}\" not allowlisted");
            assert_eq!(check(json!({}), &["net.ipv4.tcp_syncookies", name], &[]), Some(expected));
        }
    }

    #[test]
    fn what_the_operator_allows() {
        let allowed = ["kernel.msg*", "net/core/*", "vm.*"];
        assert_eq!(check(json!({}), &["kernel.msgmax", "net.core.somaxconn"], &allowed), None);
        assert!(check(json!({}), &["net.ipv4.ip_forward"], &allowed).is_some());
        // No list makes a parameter of the whole machine one of the pod.
        assert!(check(json!({}), &["vm.overcommit_memory"], &allowed).is_some());
        assert!(check(json!({}), &["kernel.msgmax2"], &["kernel.msgmax"]).is_some());
    }

    #[test]
    fn a_namespace_shared_with_the_node_forbids() {
        let host = json!({"hostNetwork": true});
        let text = "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled";
        assert_eq!(check(host, &["net.ipv4.tcp_syncookies"], &[]).as_deref(), Some(text));
        let text = "forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host ipc enabled";
        assert_eq!(check(json!({"hostIPC": true}), &["kernel.shm_rmid_forced"], &[]).as_deref(), Some(text));
    }

    #[test]
    fn patterns() {
        for good in
            ["kernel.msg*", "net.*", "net.core.somaxconn", "fs.mqueue.*", "kernel.sem", "net/ipv4/conf/eth0.1/x"]
        {
            assert_eq!(pattern_problem(good), None, "{good}");
        }
        for bad in ["", "*", "vm.swappiness", "kernel.*", "net..x", "Net.x", "net.*.x", "net.ipv4."] {
            assert!(pattern_problem(bad).is_some(), "{bad}");
        }
    }
}
