//! The pod's host name and its managed `/etc/hosts`.
//!
//! Content and header are upstream's to the byte (tools look for the header). The file lies at
//! `<pod dir>/etc-hosts`, is written by the agent and bind-mounted into every container that does
//! not mount something of its own there.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{HostAlias, Pod};

/// Where the file is mounted in a container, and the node's own file.
pub const ETC_HOSTS: &str = "/etc/hosts";
/// A host name holds 63 characters (64 bytes with the terminator).
const HOSTNAME_MAX: usize = 63;
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOCAL_ENTRIES: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// A pod whose host name cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// `spec.hostname` is no DNS label.
    #[error("pod Hostname {0:?} is not a valid DNS label")]
    Hostname(String),
    /// `spec.subdomain` is no DNS label.
    #[error("pod Subdomain {0:?} is not a valid DNS label")]
    Subdomain(String),
    /// `spec.hostnameOverride` is no DNS subdomain.
    #[error("pod HostnameOverride {0:?} is not a valid DNS subdomain")]
    Override(String),
    /// Nothing is left after cutting.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    Empty {
        /// The pod's name.
        pod: String,
        /// The name before it was cut.
        hostname: String,
    },
}

/// The `/etc/hosts` file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct HostsError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// A pod's host name and the domain behind it (empty without a subdomain).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHostname {
    /// At most 63 characters.
    pub hostname: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>` or empty.
    pub domain: String,
}

/// Derives host name and domain from the pod.
///
/// # Errors
/// A name of the spec that is not a DNS label.
pub fn pod_hostname(pod: &Pod, cluster_domain: &str) -> Result<PodHostname, HostnameError> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref();
    if let Some(wanted) = spec.and_then(|s| s.hostname_override.as_deref()) {
        if wanted.len() > 253 || !wanted.split('.').all(is_dns_label) {
            return Err(HostnameError::Override(wanted.into()));
        }
        return Ok(PodHostname { hostname: cut(name, wanted)?, domain: String::new() });
    }
    let set = |value: Option<&str>| value.filter(|v| !v.is_empty()).map(str::to_owned);
    let hostname = match set(spec.and_then(|s| s.hostname.as_deref())) {
        Some(wanted) if !is_dns_label(&wanted) => return Err(HostnameError::Hostname(wanted)),
        Some(wanted) => wanted,
        None => name.to_owned(),
    };
    let domain = match set(spec.and_then(|s| s.subdomain.as_deref())) {
        Some(wanted) if !is_dns_label(&wanted) => return Err(HostnameError::Subdomain(wanted)),
        Some(wanted) => {
            format!("{wanted}.{}.svc.{cluster_domain}", pod.metadata.namespace.as_deref().unwrap_or_default())
        }
        None => String::new(),
    };
    Ok(PodHostname { hostname: cut(name, &hostname)?, domain })
}

fn cut(pod: &str, hostname: &str) -> Result<String, HostnameError> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.to_owned());
    }
    let end = (0..=HOSTNAME_MAX).rev().find(|at| hostname.is_char_boundary(*at)).unwrap_or_default();
    let short = hostname[..end].trim_end_matches(['-', '.']);
    if short.is_empty() {
        return Err(HostnameError::Empty { pod: pod.into(), hostname: hostname.into() });
    }
    Ok(short.to_owned())
}

fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.chars().all(|c| inner(c) || c == '-')
        && text.starts_with(inner)
        && text.ends_with(inner)
}

/// The file for a pod with its own network.
pub fn managed_content(ips: &[String], name: &PodHostname, aliases: &[HostAlias]) -> String {
    let mut out = String::from(HEADER);
    out.push_str(LOCAL_ENTRIES);
    let PodHostname { hostname, domain } = name;
    for ip in ips {
        let _ = if domain.is_empty() {
            writeln!(out, "{ip}\t{hostname}")
        } else {
            writeln!(out, "{ip}\t{hostname}.{domain}\t{hostname}")
        };
    }
    push_aliases(&mut out, aliases);
    out
}

/// The file for a pod on the node's network: the node's own entries and the aliases.
pub fn host_network_content(node_file: &str, aliases: &[HostAlias]) -> String {
    let mut out = String::from(HEADER_HOST_NETWORK);
    out.push_str(node_file);
    push_aliases(&mut out, aliases);
    out
}

fn push_aliases(out: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    out.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(out, "{}\t{names}", alias.ip);
    }
}

/// Writes `<pod_dir>/etc-hosts` (mode 0644) and returns its path; `None` while a pod with its own
/// network has no address, when nothing is to be mounted.
///
/// The file is rewritten in place: running containers have it mounted by inode.
///
/// # Errors
/// The node's file cannot be read or the pod's cannot be written; retryable.
pub fn ensure_file(
    pod: &Pod,
    pod_dir: &Path,
    pod_ips: &[String],
    name: &PodHostname,
) -> Result<Option<PathBuf>, HostsError> {
    let spec = pod.spec.as_ref();
    let aliases = spec.and_then(|s| s.host_aliases.as_deref()).unwrap_or_default();
    let content = if spec.and_then(|s| s.host_network) == Some(true) {
        let node = std::fs::read_to_string(ETC_HOSTS).map_err(|source| HostsError {
            action: "read the node's",
            path: ETC_HOSTS.into(),
            source,
        })?;
        host_network_content(&node, aliases)
    } else if pod_ips.is_empty() {
        return Ok(None);
    } else {
        managed_content(pod_ips, name, aliases)
    };
    let path = pod_dir.join("etc-hosts");
    let failed = |action| {
        let path = path.clone();
        move |source| HostsError { action, path, source }
    };
    std::fs::write(&path, content).map_err(failed("write"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).map_err(failed("set the mode of"))?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec}))
        .unwrap()
    }

    fn name_of(spec: serde_json::Value) -> Result<PodHostname, HostnameError> {
        pod_hostname(&pod(spec), "cluster.local")
    }

    #[test]
    fn hostnames() {
        let containers = serde_json::json!([]);
        let plain = name_of(serde_json::json!({"containers": containers})).unwrap();
        assert_eq!((plain.hostname.as_str(), plain.domain.as_str()), ("web-0", ""));
        let set = name_of(serde_json::json!({"containers": containers, "hostname": "h", "subdomain": "sub"})).unwrap();
        assert_eq!(set.domain, "sub.shop.svc.cluster.local");
        let over =
            name_of(serde_json::json!({"containers": containers, "hostnameOverride": "a.b", "subdomain": "sub"}))
                .unwrap();
        assert_eq!((over.hostname.as_str(), over.domain.as_str()), ("a.b", ""));
        assert!(name_of(serde_json::json!({"containers": containers, "hostname": "A"})).is_err());
        let long = cut("p", &format!("{}-x", "a".repeat(62))).unwrap();
        assert_eq!(long, "a".repeat(62));
        assert!(cut("p", &"-".repeat(70)).is_err());
    }

    #[test]
    fn content() {
        let name = PodHostname { hostname: "web-0".into(), domain: "sub.shop.svc.cluster.local".into() };
        let aliases = [HostAlias { ip: "1.2.3.4".into(), hostnames: Some(vec!["foo".into(), "bar".into()]) }];
        let got = managed_content(&["10.0.0.2".into()], &name, &aliases);
        assert!(got.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\t"));
        assert!(got.ends_with(
            "fe00::2\tip6-allrouters\n10.0.0.2\tweb-0.sub.shop.svc.cluster.local\tweb-0\n\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"
        ));
        assert_eq!(
            host_network_content("1.1.1.1 one\n", &[]),
            "# Kubernetes-managed hosts file (host network).\n1.1.1.1 one\n"
        );
    }

    #[test]
    fn the_file_keeps_its_inode() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let pod = pod(serde_json::json!({"containers": []}));
        let name = pod_hostname(&pod, "cluster.local").unwrap();
        assert!(ensure_file(&pod, dir.path(), &[], &name).unwrap().is_none());
        let write = |ip: &str| ensure_file(&pod, dir.path(), &[ip.to_owned()], &name).unwrap().unwrap();
        let first = std::fs::metadata(write("10.0.0.2")).unwrap();
        let second = std::fs::metadata(write("10.0.0.3")).unwrap();
        assert_eq!(first.ino(), second.ino());
        assert_eq!(second.mode() & 0o777, 0o644);
    }
}
