//! The DNS configuration of a pod (what becomes its `/etc/resolv.conf`).
//!
//! Pure: [`pod_dns`] is a function of the pod, the node's settings and the text of the node's
//! resolver file; what upstream sends as events is returned. Limits and policies are upstream's
//! (`pkg/kubelet/network/dns`).

use std::net::IpAddr;

use k8s_cri::v1::DnsConfig;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfigOption};

/// resolv.conf holds three nameservers (glibc's MAXNS).
const MAX_NAMESERVERS: usize = 3;
/// Search domains a pod may have.
const MAX_SEARCHES: usize = 32;
/// Characters of the search line.
const MAX_SEARCH_CHARS: usize = 2048;
/// A longer domain makes some resolvers abort.
const MAX_DOMAIN: usize = 253;
/// Options of a pod that uses the cluster's DNS.
const CLUSTER_OPTION: &str = "ndots:5";
/// The most that is read of the node's resolver file.
pub const MAX_RESOLV_CONF_BYTES: u64 = 10 << 20;

/// The node's DNS settings.
#[derive(Debug, Clone, Default)]
pub struct DnsSettings {
    /// Addresses of the cluster's DNS service (`clusterDNS`).
    pub cluster_dns: Vec<IpAddr>,
    /// `clusterDomain`, e.g. `cluster.local`.
    pub cluster_domain: String,
    /// Whether the node has a resolver file (`resolvConf` is not empty).
    pub has_resolver_file: bool,
    /// Addresses of the node; they decide which localhost stands in without a resolver file.
    pub node_ips: Vec<IpAddr>,
}

/// Something that is to be reported as a warning event on the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsWarning {
    /// Event reason: `DNSConfigForming` or `MissingClusterDNS`.
    pub reason: &'static str,
    /// Event message.
    pub message: String,
}

/// A pod's DNS configuration and what there is to say about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodDns {
    /// At most 3.
    pub servers: Vec<String>,
    /// At most 32, together at most 2048 characters.
    pub searches: Vec<String>,
    /// `name` or `name:value`.
    pub options: Vec<String>,
    /// To be sent as events.
    pub warnings: Vec<DnsWarning>,
}

impl PodDns {
    /// As the runtime wants it; the runtime writes the file.
    pub fn to_cri(&self) -> DnsConfig {
        DnsConfig { servers: self.servers.clone(), searches: self.searches.clone(), options: self.options.clone() }
    }

    /// As text of a resolv.conf.
    pub fn to_resolv_conf(&self) -> String {
        let mut out = String::new();
        if !self.searches.is_empty() {
            out.push_str(&format!("search {}\n", self.searches.join(" ")));
        }
        for server in &self.servers {
            out.push_str(&format!("nameserver {server}\n"));
        }
        if !self.options.is_empty() {
            out.push_str(&format!("options {}\n", self.options.join(" ")));
        }
        out
    }
}

/// A resolver file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    /// A `nameserver` line without an address.
    #[error("line {line} of the resolver file: nameserver list is empty")]
    EmptyNameserver {
        /// Counted from 1.
        line: usize,
    },
}

/// Reads nameservers, searches and options of a resolv.conf; the last `search` and the last
/// `options` line count.
///
/// # Errors
/// A `nameserver` line without an address.
pub fn parse_resolv_conf(text: &str) -> Result<PodDns, DnsError> {
    let mut dns = PodDns::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => match words.next() {
                Some(address) => dns.servers.push(address.to_owned()),
                None => return Err(DnsError::EmptyNameserver { line: index + 1 }),
            },
            // With and without the final dot is the same domain; "." alone is the root.
            Some("search") => {
                dns.searches = words
                    .map(|w| if w == "." { w } else { w.strip_suffix('.').unwrap_or(w) })
                    .map(str::to_owned)
                    .collect();
            }
            Some("options") => dns.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    Ok(dns)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Cluster,
    Host,
    None,
}

/// Forms the configuration of `pod`; `resolver_file` is the text of the node's resolver file.
///
/// # Errors
/// The node's resolver file does not parse.
pub fn pod_dns(pod: &Pod, settings: &DnsSettings, resolver_file: &str) -> Result<PodDns, DnsError> {
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|s| s.host_network) == Some(true);
    let source = match spec.and_then(|s| s.dns_policy.as_deref()) {
        Some("None") => Source::None,
        Some("Default") => Source::Host,
        Some("ClusterFirstWithHostNet") => Source::Cluster,
        _ if host_network => Source::Host,
        // The API refuses other policies; upstream falls back to ClusterFirst.
        _ => Source::Cluster,
    };
    let mut dns = match source {
        Source::None => PodDns::default(),
        _ => parse_resolv_conf(resolver_file)?,
    };
    match source {
        Source::Cluster if !settings.cluster_dns.is_empty() => {
            dns.servers = settings.cluster_dns.iter().map(IpAddr::to_string).collect();
            dns.searches = cluster_searches(pod, &settings.cluster_domain, dns.searches);
            dns.options = vec![CLUSTER_OPTION.to_owned()];
        }
        Source::Cluster | Source::Host => {
            if source == Source::Cluster {
                dns.warnings.push(missing_cluster_dns(pod));
            }
            if !settings.has_resolver_file {
                use_localhost(&mut dns, &settings.node_ips);
            }
        }
        Source::None => {}
    }
    if let Some(own) = spec.and_then(|s| s.dns_config.as_ref()) {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        dedup(&mut dns.servers);
        dedup(&mut dns.searches);
        merge_options(&mut dns.options, own.options.as_deref().unwrap_or_default());
    }
    fit_limits(&mut dns);
    Ok(dns)
}

fn cluster_searches(pod: &Pod, domain: &str, host: Vec<String>) -> Vec<String> {
    if domain.is_empty() {
        return host;
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
    searches.extend(host);
    dedup(&mut searches);
    searches
}

fn missing_cluster_dns(pod: &Pod) -> DnsWarning {
    let meta = &pod.metadata;
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    DnsWarning {
        reason: "MissingClusterDNS",
        message: format!(
            "pod: \"{}_{}({})\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
            text(meta.name.as_ref()),
            text(meta.namespace.as_ref()),
            text(meta.uid.as_ref()),
        ),
    }
}

/// Without a resolver file the node itself is asked, as the resolver library would by default.
fn use_localhost(dns: &mut PodDns, node_ips: &[IpAddr]) {
    for ip in node_ips {
        let local = if ip.is_ipv6() { "::1" } else { "127.0.0.1" };
        dns.servers.push(local.to_owned());
    }
    if dns.servers.is_empty() {
        dns.servers.push("127.0.0.1".to_owned());
    }
    dns.searches = vec![".".to_owned()];
}

fn dedup(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

/// The pod's option replaces one of the same name; the order stays that of first mention.
fn merge_options(options: &mut Vec<String>, own: &[PodDNSConfigOption]) {
    for option in own {
        let name = option.name.as_deref().unwrap_or_default();
        let text = match option.value.as_deref() {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name.to_owned(),
        };
        let same = |o: &String| o.split(':').next() == Some(name);
        match options.iter().position(same) {
            Some(at) => options[at] = text,
            None => options.push(text),
        }
    }
}

fn fit_limits(dns: &mut PodDns) {
    if dns.servers.len() > MAX_NAMESERVERS {
        dns.servers.truncate(MAX_NAMESERVERS);
        dns.warnings.push(DnsWarning {
            reason: "DNSConfigForming",
            message: format!(
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
                dns.servers.join(" ")
            ),
        });
    }
    let before = dns.searches.len();
    dns.searches.truncate(MAX_SEARCHES);
    dns.searches.retain(|s| s.len() <= MAX_DOMAIN);
    let mut chars = 0;
    let fitting = dns
        .searches
        .iter()
        .take_while(|s| {
            chars += s.len() + usize::from(chars > 0);
            chars <= MAX_SEARCH_CHARS
        })
        .count();
    dns.searches.truncate(fitting);
    if dns.searches.len() < before {
        dns.warnings.push(DnsWarning {
            reason: "DNSConfigForming",
            message: format!(
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
                dns.searches.join(" ")
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOST: &str =
        "# c\nnameserver 9.9.9.9\nnameserver 8.8.8.8\nsearch a. old\nsearch corp.example. .\noptions rotate ndots:2\n";

    fn settings() -> DnsSettings {
        DnsSettings {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            has_resolver_file: true,
            node_ips: vec!["192.0.2.1".parse().unwrap()],
        }
    }

    fn dns(spec: serde_json::Value, settings: &DnsSettings, host: &str) -> PodDns {
        let mut spec = spec;
        spec["containers"] = serde_json::json!([]);
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "shop", "uid": "u"}, "spec": spec}))
        .unwrap();
        pod_dns(&pod, settings, host).unwrap()
    }

    #[test]
    fn cluster_first() {
        let got = dns(serde_json::json!({"dnsPolicy": "ClusterFirst"}), &settings(), HOST);
        assert_eq!(
            got.to_resolv_conf(),
            "search shop.svc.cluster.local svc.cluster.local cluster.local corp.example .\nnameserver 10.96.0.10\noptions ndots:5\n"
        );
        assert!(got.warnings.is_empty());
    }

    #[test]
    fn policies() {
        let host_net = serde_json::json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true});
        let got = dns(host_net, &settings(), HOST);
        assert_eq!(got.servers, ["9.9.9.9", "8.8.8.8"]);
        assert_eq!(got.searches, ["corp.example", "."]);
        assert_eq!(got.options, ["rotate", "ndots:2"]);
        let with = serde_json::json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true});
        assert_eq!(dns(with, &settings(), HOST).servers, ["10.96.0.10"]);
        let none = serde_json::json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.1"],
            "searches": ["x"], "options": [{"name": "edns0"}, {"name": "ndots", "value": "3"}]}});
        let got = dns(none, &settings(), HOST);
        assert_eq!(got.to_resolv_conf(), "search x\nnameserver 1.1.1.1\noptions edns0 ndots:3\n");
    }

    #[test]
    fn pod_options_replace_those_of_the_cluster() {
        let spec = serde_json::json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}});
        assert_eq!(dns(spec, &settings(), HOST).options, ["ndots:2", "edns0"]);
    }

    #[test]
    fn no_cluster_dns_and_no_resolver_file() {
        let mut settings = settings();
        settings.cluster_dns.clear();
        let got = dns(serde_json::json!({}), &settings, HOST);
        assert_eq!(got.warnings[0].reason, "MissingClusterDNS");
        assert_eq!(got.servers[0], "9.9.9.9");
        settings.has_resolver_file = false;
        let got = dns(serde_json::json!({"dnsPolicy": "Default"}), &settings, "");
        assert_eq!((got.servers, got.searches), (vec!["127.0.0.1".into()], vec![".".into()]));
    }

    #[test]
    fn limits_warn() {
        let many: Vec<String> = (0..40).map(|i| format!("d{i}")).collect();
        let servers = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"];
        let spec = serde_json::json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": servers, "searches": many}});
        let got = dns(spec, &settings(), HOST);
        assert_eq!((got.servers.len(), got.searches.len()), (3, 32));
        assert_eq!(
            got.warnings[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3"
        );
        assert_eq!(got.warnings.len(), 2);
    }

    proptest! {
        #[test]
        fn never_over_the_limits(searches in prop::collection::vec("[a-z]{1,300}", 0..60), host in "\\PC{0,200}") {
            let spec = serde_json::json!({"dnsConfig": {"searches": searches}});
            let mut spec = spec;
            spec["containers"] = serde_json::json!([]);
            let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap();
            if let Ok(got) = pod_dns(&pod, &settings(), &host) {
                prop_assert!(got.servers.len() <= MAX_NAMESERVERS && got.searches.len() <= MAX_SEARCHES);
                prop_assert!(got.searches.join(" ").len() <= MAX_SEARCH_CHARS);
                prop_assert!(got.searches.iter().all(|s| s.len() <= MAX_DOMAIN));
            }
        }
    }
}
