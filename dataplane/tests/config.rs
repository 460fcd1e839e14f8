//! The configuration: upstream's names, strict, every mistake at once with its place.

use std::path::Path;

use keelson_dataplane::config::{Config, default_config, from_documents};
use keelson_dataplane::engine::{DetectLocal, NodePortAddresses};
use kube_common::config::load_documents;

fn load(body: &str) -> Result<Config, String> {
    let text = format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{body}");
    let path = Path::new("proxy.yaml");
    let documents = load_documents(path, &text).map_err(|e| e.to_string())?;
    from_documents(path, &documents).map_err(|e| e.to_string())
}

#[test]
fn defaults_are_upstreams() {
    let config = default_config();
    assert_eq!(config.healthz.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(config.metrics.unwrap().to_string(), "127.0.0.1:10249");
    assert_eq!(config.settings.masquerade_mark, 0x4000);
    assert_eq!(config.settings.detect_local, DetectLocal::Off);
    assert_eq!(config.settings.node_port_addresses, NodePortAddresses::Primary);
    assert_eq!(config.oom_score_adj, -999);
}

#[test]
fn a_configuration_made_for_upstream_loads() {
    let config = load(
        "bindAddress: 0.0.0.0\nclientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}\n\
         clusterCIDR: 10.244.0.0/16,fd00:10::/56\nconfigSyncPeriod: 0s\nmode: nftables\nhostnameOverride: Node-1\n\
         conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: 1h0m0s, tcpEstablishedTimeout: 24h0m0s}\n\
         iptables: {masqueradeAll: false, masqueradeBit: 14, syncPeriod: 0s}\nipvs: {strictARP: false}\n\
         nftables: {masqueradeAll: true, masqueradeBit: 10, minSyncPeriod: 1s, syncPeriod: 30s}\n\
         metricsBindAddress: \"\"\nnodePortAddresses: [\"192.168.0.0/16\"]\nwinkernel: {networkName: \"\"}\n\
         detectLocal: {bridgeInterface: \"\", interfaceNamePrefix: \"\"}\nlogging: {verbosity: 0}\n",
    )
    .unwrap();
    assert_eq!(config.hostname_override.as_deref(), Some("node-1"));
    assert_eq!((config.settings.masquerade_all, config.settings.masquerade_mark), (true, 1 << 10));
    assert!(matches!(&config.settings.detect_local, DetectLocal::ClusterCidr(nets) if nets.len() == 2));
    assert!(matches!(&config.settings.node_port_addresses, NodePortAddresses::Ranges(nets) if nets.len() == 1));
}

#[test]
fn the_drains_socket_can_be_elsewhere_or_nowhere() {
    let socket = |body: &str| load(body).map(|config| config.drain_socket);
    assert_eq!(socket(""), Ok(Some("/run/keelson/dataplane.sock".into())));
    assert_eq!(socket("keelson: {drainSocket: /run/x.sock}\n"), Ok(Some("/run/x.sock".into())));
    assert_eq!(socket("keelson: {drainSocket: \"\"}\n"), Ok(None));
    let long = format!("/{}", "x".repeat(103));
    for (path, words) in [("x.sock", "absolute"), ("/run/", "absolute"), (long.as_str(), "longer than the 103 bytes")] {
        let error = socket(&format!("keelson: {{drainSocket: {path}}}\n")).unwrap_err();
        assert!(error.contains("keelson.drainSocket: ") && error.contains(words), "{error}");
    }
}

#[test]
fn every_mistake_is_named_with_its_place() {
    let error = load(
        "mode: iptables\nclusterCIDR: nonsense\nhealthzBindAddress: here\nnodePortAddresses: [primary, 10.0.0.0/8]\n\
         nftables: {masqueradeBit: 40}\ndetectLocalMode: Guess\niptables: {masqueradeBit: 99}\n\
         ipvs: {excludeCIDRs: [10.0.0.1]}\nbindAddress: everywhere\nportRange: 9-1\nclientConnection: {burst: -1}\n",
    )
    .unwrap_err();
    for expected in [
        "proxy.yaml:3",
        "mode",
        "not built yet",
        "\"nonsense\" is not a CIDR",
        "healthzBindAddress",
        "primary",
        "nftables.masqueradeBit: 40",
        "iptables.masqueradeBit: 99",
        "ipvs.excludeCIDRs",
        "bindAddress: \"everywhere\"",
        "portRange",
        "clientConnection.burst",
        "Guess",
    ] {
        assert!(error.contains(expected), "no {expected:?} in:\n{error}");
    }
}

#[test]
fn cluster_ranges_are_checked_in_every_mode() {
    for wrong in [
        "clusterCIDR: 10.244.0.0\n",
        "clusterCIDR: 10.244.0.0\ndetectLocalMode: NodeCIDR\n",
        "clusterCIDR: 10.244.0.0/33\n",
        "clusterCIDR: 10.244.0.0/16,10.245.0.0/16\n",
        "clusterCIDR: 10.244.0.0/16,fd00::/56,fd01::/56\n",
    ] {
        let error = load(wrong).expect_err(wrong);
        assert!(error.contains("clusterCIDR"), "{wrong}: {error}");
    }
}

#[test]
fn periods_of_zero_are_the_defaults() {
    let config = load("nftables: {syncPeriod: 0s, minSyncPeriod: 0s}\n").unwrap();
    assert_eq!(config.sync_period.as_secs(), 30);
    let error = load("nftables: {syncPeriod: 1s, minSyncPeriod: 2s}\n").unwrap_err();
    assert!(error.contains("nftables.minSyncPeriod"), "{error}");
}

#[test]
fn port_ranges_are_upstreams() {
    for right in ["", "0-0", "300-2000", "300+100", "80", " 1 - 2 "] {
        assert!(load(&format!("portRange: {right:?}\n")).is_ok(), "{right:?}");
    }
    for wrong in ["2-1", "x", "1-", "70000", "-1"] {
        assert!(load(&format!("portRange: {wrong:?}\n")).is_err(), "{wrong:?}");
    }
}

#[test]
fn unknown_fields_and_wrong_types_are_mistakes() {
    let error = load("nftables: {masquradeAll: true}\n").unwrap_err();
    assert!(error.contains("masquradeAll"), "{error}");
    for section in ["iptables: {masqueradeBits: 1}", "ipvs: {strictArp: true}", "detectLocal: {clusterCIDRs: []}"] {
        assert!(load(section).is_err(), "{section}");
    }
    let error = load("oomScoreAdj: lots\n").unwrap_err();
    assert!(error.contains("oomScoreAdj"), "{error}");
}
