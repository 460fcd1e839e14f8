//! What is emitted can be listed by the `nft` program of the machine, and the listing loads again.

mod support;

use keelson_dataplane::model::types::{Family, Protocol, SliceRecord};
use support::*;

/// A load balancer's address that not everybody may reach, with and without endpoints, in both families.
fn guarded(engine: &mut keelson_dataplane::engine::Engine) {
    for (service_name, last, endpoints) in [("guarded", 7, 2), ("guarded-none", 8, 0)] {
        let mut record = service(&format!("10.96.0.2{last}"), vec![port(80, 0, Protocol::Tcp)]);
        record.cluster_ips.push(ip(&format!("fd00:96::2{last}")));
        record.load_balancer_ips = vec![ip(&format!("203.0.113.{last}")), ip(&format!("2001:db8:113::{last}"))];
        record.source_ranges = [
            "192.168.0.0/16",
            "10.0.0.0/24",
            "10.0.1.0/24",
            "10.0.2.0/24",
            "198.51.100.7/32",
            "fd00:7::/64",
            "::1/128",
        ]
        .iter()
        .map(|range| range.parse().unwrap())
        .collect();
        engine.model.set_service(&name(service_name), Some(record));
        for (family, addr) in [(Family::V4, "10.244.1."), (Family::V6, "fd00:244:1::")] {
            let endpoints = (0..endpoints).map(|n| ready(&format!("{addr}{}", n + 2), false)).collect();
            let slice = SliceRecord { family, ..slice(service_name, &[(Protocol::Tcp, 8080)], endpoints) };
            engine.model.set_slice(&name(&format!("{service_name}-{family:?}")), Some(slice));
        }
    }
}

fn sample(engine: &mut keelson_dataplane::engine::Engine) {
    engine.model.set_node(node("192.168.7.2"));
    let mut web = service("10.96.0.10", vec![port(80, 30080, Protocol::Tcp)]);
    web.external_ips = vec![ip("203.0.113.5")];
    engine.model.set_service(&name("web"), Some(web.clone()));
    let both = vec![ready("10.244.1.2", true), ready("10.244.2.3", false)];
    engine.model.set_slice(&name("web-a"), Some(slice("web", &[(Protocol::Tcp, 8080)], both.clone())));
    let mut local = service("10.96.0.11", vec![port(80, 30081, Protocol::Udp)]);
    local.external_local = true;
    local.external_ips = vec![ip("203.0.113.6")];
    engine.model.set_service(&name("local"), Some(local));
    engine.model.set_slice(&name("local-a"), Some(slice("local", &[(Protocol::Udp, 53)], both.clone())));
    engine.model.set_service(&name("none"), Some(service("10.96.0.12", vec![port(80, 30082, Protocol::Tcp)])));
    let sticky = keelson_dataplane::model::types::ServiceRecord {
        cluster_ips: vec![ip("10.96.0.13")],
        affinity_seconds: Some(300),
        ..web
    };
    let sticky = keelson_dataplane::model::types::ServiceRecord {
        external_ips: vec![],
        ports: vec![port(80, 30083, Protocol::Tcp)],
        ..sticky
    };
    engine.model.set_service(&name("sticky"), Some(sticky));
    engine.model.set_slice(&name("sticky-a"), Some(slice("sticky", &[(Protocol::Tcp, 8080)], both)));
    guarded(engine);
}

#[test]
fn nft_lists_what_is_emitted_and_loads_it_again() {
    if skip("nft_lists_what_is_emitted_and_loads_it_again") {
        return;
    }
    let ns = Netns::new();
    let mut engine = ns.engine(settings());
    sample(&mut engine);
    let report = engine.sync().unwrap();
    assert!(report.full);
    let listing = ns.cmd("nft", &["list", "ruleset"]);
    println!("{listing}");
    for expected in [
        "10.96.0.10 . tcp . 80 : goto pick-cluster-2",
        "203.0.113.5 . tcp . 80 : goto pick-external-2",
        "tcp . 30080 : goto pick-nodeport-external-2",
        "203.0.113.6 . udp . 80 : goto ext-local",
        "10.96.0.12 . tcp . 80 : goto refuse",
        "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints",
        "10.96.0.0/16",
        "203.0.113.7 . tcp . 80 : goto source-ranges-check",
        "203.0.113.7 . tcp . 80 . 192.168.0.0/16",
        "203.0.113.7 . tcp . 80 . 10.0.0.0-10.0.2.255",
        "203.0.113.8 . tcp . 80 . 198.51.100.7",
        "2001:db8:113::7 . tcp . 80 . fd00:7::/64",
        "ip daddr . meta l4proto . th dport . ip saddr != @source-ranges counter packets 0 bytes 0 drop",
        "ip6 daddr . meta l4proto . th dport vmap @guarded",
    ] {
        assert!(listing.contains(expected), "no {expected:?} in the listing");
    }
    let other = Netns::new();
    other.cmd_in("nft", &["-f", "-"], &listing);
    let again = other.cmd("nft", &["list", "ruleset"]);
    assert_eq!(normal(&listing), normal(&again));
}

/// A namespace in which the sample is programmed, and what nft lists there.
fn programmed() -> (Netns, keelson_dataplane::engine::Engine, String) {
    let ns = Netns::new();
    let mut engine = ns.engine(settings());
    sample(&mut engine);
    engine.sync().unwrap();
    let listing = ns.cmd("nft", &["list", "ruleset"]);
    (ns, engine, listing)
}

/// Order of elements in a hash is not the same twice.
fn normal(listing: &str) -> Vec<String> {
    let mut words: Vec<String> =
        listing.replace(['\n', '\t', ','], " ").split(' ').filter(|w| !w.is_empty()).map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn status_names_source_ranges() {
    if skip("status_names_source_ranges") {
        return;
    }
    let ns = Netns::new();
    let mut engine = ns.engine(settings());
    sample(&mut engine);
    engine.sync().unwrap();
    let status = ns.run(|| keelson_dataplane::status::status().unwrap());
    let row = |frontend: &str| -> Vec<String> {
        let line = status.lines().find(|l| l.starts_with(frontend)).unwrap_or_else(|| panic!("{status}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    // The node's own address is in a range, so the load balancer's is, too.
    let four = |own| format!("(only from 10.0.0.0-10.0.2.255, 192.168.0.0-192.168.255.255, 198.51.100.7, {own})");
    let guarded = row("203.0.113.7:80").join(" ");
    assert!(guarded.contains("TCP external 2 10.244.1.") && guarded.ends_with(&four("203.0.113.7")), "{guarded}");
    assert_eq!(row("203.0.113.8:80").join(" "), format!("203.0.113.8:80 TCP refuse {}", four("203.0.113.8")));
    let six = row("[2001:db8:113::7]:80").join(" ");
    assert!(six.ends_with("(only from ::1, fd00:7::-fd00:7::ffff:ffff:ffff:ffff)"), "{six}");
    assert!(!row("203.0.113.5:80").join(" ").contains("only from"), "{status}");
}

#[test]
fn a_second_engine_adopts_and_writes_nothing() {
    if skip("a_second_engine_adopts_and_writes_nothing") {
        return;
    }
    let ns = Netns::new();
    let mut first = ns.engine(settings());
    sample(&mut first);
    first.sync().unwrap();
    let before = ns.cmd("nft", &["list", "ruleset"]);
    let mut second = ns.engine(settings());
    sample(&mut second);
    let report = second.sync().unwrap();
    assert!(report.full);
    assert_eq!(report.stats.elements, 0, "{report:?}");
    assert_eq!(normal(&before), normal(&ns.cmd("nft", &["list", "ruleset"])));
}

#[test]
fn a_flushed_table_and_foreign_elements_are_repaired() {
    if skip("a_flushed_table_and_foreign_elements_are_repaired") {
        return;
    }
    let (ns, mut engine, before) = programmed();
    for harm in [
        "flush ruleset",
        "delete element ip keelson-dataplane services { 10.96.0.10 . tcp . 80 }",
        "add element ip keelson-dataplane services { 10.96.9.9 . tcp . 80 : drop }",
        "flush chain ip keelson-dataplane dispatch",
        "flush chain ip keelson-dataplane source-ranges-check",
        "flush set ip keelson-dataplane source-ranges",
        "delete element ip keelson-dataplane source-ranges { 203.0.113.7 . tcp . 80 . 192.168.0.0/16 }",
        "add element ip keelson-dataplane source-ranges { 203.0.113.7 . tcp . 80 . 8.8.8.0/24 }",
        "add element ip6 keelson-dataplane source-ranges { 2001:db8::9 . tcp . 80 . ::2 }",
        "delete element ip keelson-dataplane guarded { 203.0.113.7 . tcp . 80 }",
        "flush chain ip keelson-dataplane pick-cluster-2",
    ] {
        ns.cmd("nft", &harm.split(' ').collect::<Vec<_>>());
        assert_ne!(normal(&before), normal(&ns.cmd("nft", &["list", "ruleset"])), "{harm}");
        engine.forget();
        engine.sync().unwrap();
        assert_eq!(normal(&before), normal(&ns.cmd("nft", &["list", "ruleset"])), "{harm}");
    }
}

/// The number of rules stays the same.
#[test]
fn a_replaced_rule_is_repaired() {
    if skip("a_replaced_rule_is_repaired") {
        return;
    }
    let (ns, mut engine, before) = programmed();
    for chain in ["refuse", "pick-cluster-2", "nat-prerouting"] {
        let listing = ns.cmd("nft", &["-a", "list", "chain", "ip", "keelson-dataplane", chain]);
        let last = listing.rsplit("# handle ").next().unwrap().split_whitespace().next().unwrap();
        ns.cmd("nft", &["replace", "rule", "ip", "keelson-dataplane", chain, "handle", last, "accept"]);
        assert_ne!(normal(&before), normal(&ns.cmd("nft", &["list", "ruleset"])), "{chain}");
        engine.forget();
        engine.sync().unwrap();
        assert_eq!(normal(&before), normal(&ns.cmd("nft", &["list", "ruleset"])), "{chain}");
    }
    // What is right is not written again.
    engine.forget();
    let generation = engine.sync().map(|report| report.stats.transactions).unwrap();
    assert!(engine.alone_since_sync() && generation <= 1, "{generation} transactions to adopt what is right");
}

#[test]
fn no_feature_is_missing_here_and_the_probe_leaves_nothing() {
    if skip("no_feature_is_missing_here_and_the_probe_leaves_nothing") {
        return;
    }
    let ns = Netns::new();
    let missing = ns.run(|| {
        let mut nft = keelson_netfilter::nft::KernelNft::open().unwrap();
        let mut missing =
            keelson_dataplane::nftables::probe::probe(&mut nft, keelson_netfilter::nft::Family::Ipv4).unwrap();
        missing
            .extend(keelson_dataplane::nftables::probe::probe(&mut nft, keelson_netfilter::nft::Family::Ipv6).unwrap());
        format!("{missing:?}")
    });
    assert_eq!(missing, "[]");
    assert_eq!(ns.cmd("nft", &["list", "ruleset"]), "");
}
