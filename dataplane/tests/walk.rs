//! The table of cases on the packet walk: the rules as they were sent, without a kernel, and as the kernel lists them. The same table runs with
//! packets in `packets.rs`. And `trace` and `diff`, which read tables.

mod cases;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use cases::{Case, Then, To, all, line};
use keelson_dataplane::diff::diff;
use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{Family, ServiceRecord};
use keelson_dataplane::nftables::layout::TABLE;
use keelson_dataplane::trace::{Machine, Question, answer, outcomes};
use keelson_netfilter::nft::walk::Fate;
use keelson_netfilter::nft::{FakeNft, Family as NftFamily, KernelNft, Nft, TableState};
use support::lab::{Addresses, BOTH, Origin, V4, V6, dual_node, dual_service, tell};
use support::{ip, name, settings};

/// The node of the cases.
fn machine() -> Machine {
    let (mut addresses, mut routes) = (Vec::new(), Vec::new());
    for (a, pod, everything) in [(&V4, 30, "0.0.0.0/0"), (&V6, 126, "::/0")] {
        for (link, addr) in [("pod0", a.other_node), ("pod1", a.towards_b), ("pod2", a.towards_c), ("up0", a.node)] {
            addresses.push((link.to_owned(), ip(addr)));
            let net = if link == "up0" { everything.to_owned() } else { format!("{addr}/{pod}") };
            routes.push((net.parse::<ipnet::IpNet>().unwrap().trunc(), ip(addr)));
        }
    }
    Machine::new(addresses, routes)
}

fn families() -> [(NftFamily, &'static Addresses); 2] {
    BOTH.map(|a| (if a.family == Family::V4 { NftFamily::Ipv4 } else { NftFamily::Ipv6 }, a))
}

fn feed(engine: &mut Engine, service: ServiceRecord, backends: &str) {
    engine.model.set_node(dual_node());
    engine.model.set_service(&name("web"), Some(service));
    tell(engine, "web", backends);
    engine.sync().unwrap();
}

/// The tables of both families, in memory.
fn tables(service: ServiceRecord, backends: &str) -> FakeNft {
    let nft = FakeNft::default();
    let fakes = families().map(|(family, _)| (family, Box::new(nft.clone()) as Box<dyn Nft>));
    let mut engine = Engine::new("node1", settings(), fakes.into(), None);
    feed(&mut engine, service, backends);
    nft
}

fn table(service: ServiceRecord, backends: &str) -> TableState {
    tables(service, backends).table(NftFamily::Ipv4, TABLE).unwrap()
}

fn question(a: &Addresses, from: Origin, to: To, udp: bool) -> Question {
    let sender = match from {
        Origin::Client => Some(a.client),
        Origin::B => Some(a.b),
        Origin::External => Some(a.external),
        Origin::Node if matches!(to, To::Loopback) => Some(a.loopback),
        // As the routes have it: the node asks without a sender.
        Origin::Node => None,
    };
    let (port, protocol) = if udp { (to.port(53, 30053), "udp") } else { (to.port(80, 30080), "tcp") };
    let to = format!("{}/{protocol}", SocketAddr::new(ip(to.addr(a)), port)).parse().unwrap();
    Question { from: sender.map(|addr| addr.parse().unwrap()), to, interface: None }
}

/// What the walk says, in the words of the backends.
fn walked(table: &TableState, a: &Addresses, case: &Case, udp: bool) -> BTreeSet<String> {
    let machine = machine();
    let packet = question(a, case.0, case.1, udp).packet(&machine).unwrap();
    let (_, ends) = outcomes(table, &packet, &machine).unwrap();
    let told = |fate: &Fate| match fate {
        Fate::Dropped => "dropped".to_owned(),
        Fate::Refused(_) => "refused".to_owned(),
        Fate::Arrives { at, .. } if *at == packet.destination => "nobody".to_owned(),
        Fate::Arrives { at, masqueraded } => {
            let backend = if at.ip() == ip(a.b) { 'b' } else { 'c' };
            let source = if *masqueraded { machine.source_towards(at.ip()).unwrap() } else { packet.source.ip() };
            format!("{backend} {source}")
        }
    };
    ends.values().map(|(fate, _)| told(fate)).collect()
}

fn expected(a: &Addresses, (from, _, then): &Case) -> BTreeSet<String> {
    match then {
        Then::B(seen) => [line(a, 'b', *seen, *from)].into(),
        Then::C(seen) => [line(a, 'c', *seen, *from)].into(),
        Then::Either(seen) => ['b', 'c'].map(|backend| line(a, backend, *seen, *from)).into(),
        Then::Refused => ["refused".to_owned()].into(),
        Then::Dropped => ["dropped".to_owned()].into(),
        Then::Nobody => ["nobody".to_owned()].into(),
    }
}

/// Checks a scenario's cases; their number.
fn check(what: &str, a: &Addresses, table: &TableState, cases: &[Case]) -> usize {
    for case in cases {
        for udp in [false, true] {
            let at = format!("{what}, {:?}, udp {udp}: {:?} to {:?}", a.family, case.0, case.1);
            assert_eq!(walked(table, a, case, udp), expected(a, case), "{at}");
        }
    }
    cases.len() * 2
}

#[test]
fn every_case_ends_where_it_should() {
    let mut count = 0;
    for scenario in all() {
        let nft = tables(scenario.service, scenario.backends);
        for (family, a) in families() {
            count += check(scenario.what, a, &nft.table(family, TABLE).unwrap(), &scenario.cases);
        }
    }
    assert!(count > 250, "only {count} cases");
}

/// What the kernel lists is walked through by `dataplane trace`: it must lead to the same ends, and not differ from what is wanted.
#[test]
fn the_kernels_listing_leads_to_the_same_ends() {
    if support::skip("the_kernels_listing_leads_to_the_same_ends") {
        return;
    }
    let ns = support::Netns::new();
    let mut engine = ns.engine(settings());
    for scenario in all() {
        feed(&mut engine, scenario.service.clone(), scenario.backends);
        let wanted = tables(scenario.service, scenario.backends);
        for (family, a) in families() {
            let listed = ns.run(move || KernelNft::open().unwrap().dump(family, TABLE).unwrap().unwrap());
            check(scenario.what, a, &listed, &scenario.cases);
            let wanted = wanted.table(family, TABLE).unwrap();
            assert_eq!(diff(family, &wanted, &listed, &BTreeMap::new()), Vec::<String>::new(), "{}", scenario.what);
        }
    }
}

#[test]
fn clients_that_stick_are_noted_and_go_where_they_went() {
    let mut table = table(ServiceRecord { affinity_seconds: Some(60), ..dual_service() }, "bc");
    let machine = machine();
    let packet = question(&V4, Origin::Client, To::Cluster, false).packet(&machine).unwrap();
    let case = (Origin::Client, To::Cluster, Then::Either(cases::Seen::Kept));
    assert_eq!(walked(&table, &V4, &case, false), expected(&V4, &case));
    let clients = table.sets.keys().find(|set| set.starts_with("affinity-") && set.contains("10.244.2.2")).cloned();
    let addr = [10, 244, 1, 2].to_vec();
    let noted = keelson_netfilter::nft::OwnedData::None;
    table.sets.get_mut(&clients.unwrap()).unwrap().insert((addr, false), noted);
    let (walked, ends) = outcomes(&table, &packet, &machine).unwrap();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert!(matches!(walked.fate, Fate::Arrives { at, .. } if at.ip() == ip(V4.c)), "{walked:?}");
}

#[test]
fn the_mark_is_taken_off_and_other_bits_stay() {
    let table = table(dual_service(), "c");
    let machine = machine();
    let mut packet = question(&V4, Origin::External, To::ExternalIp, false).packet(&machine).unwrap();
    packet.mark = 0x8001;
    let (walked, _) = outcomes(&table, &packet, &machine).unwrap();
    assert!(matches!(walked.fate, Fate::Arrives { masqueraded: true, .. }));
    assert_eq!(walked.mark, 0x8001);
}

#[test]
fn a_trace_tells_the_way_in_words() {
    let table = table(dual_service(), "bc");
    let ask = |from: Option<&str>, to: &str| {
        let question = Question { from: from.map(|f| f.parse().unwrap()), to: to.parse().unwrap(), interface: None };
        answer(&question, &machine(), &table, Err("nobody was asked".to_owned())).unwrap()
    };
    assert_eq!(
        ask(Some("10.244.1.2"), "10.96.0.10:80"),
        "TCP from 10.244.1.2 to 10.96.0.10:80, coming in by pod0\n  \
         before routing (nat-prerouting):\n    \
         its destination is an address of a Service: endpoints by the internal policy, masqueraded unless it comes from a pod  [dispatch]\n    \
         one of 2 endpoints, each as likely as the others  [pick-cluster-2]\n    \
         the destination becomes 10.244.1.6:8080  [pick-cluster-2]\n\
         The packet, by chance one of these:\n  \
         1 of 2: arrives at 10.244.1.6:8080 with its own source 10.244.1.2\n  \
         1 of 2: arrives at 10.244.2.2:8080 with its own source 10.244.1.2\n\
         Names are missing, and what is wanted was not compared: nobody was asked.\n"
    );
    let own = ask(None, "192.168.7.2:30080");
    for words in
        ["sent by this node itself", "a node port", "marked for masquerading", "the mark is taken off", "masqueraded"]
    {
        assert!(own.contains(words), "no '{words}' in:\n{own}");
    }
    assert!(ask(Some("10.244.1.2"), "10.96.0.10:81").contains("has no such port"));
    assert!(ask(Some("10.244.1.2"), "10.96.0.99:80").contains("The packet is dropped"));
    assert!(ask(Some("10.244.1.2"), "10.244.2.2:22").contains("no rule of the dataplane concerns it"));
    let guarded = self::table(cases::with_ranges(&["192.168.7.1/32"]), "c");
    let question = question(&V4, Origin::Client, To::LoadBalancer, false);
    let told = answer(&question, &machine(), &guarded, Err("nobody".to_owned())).unwrap();
    assert!(told.contains("its source is not in the Service's loadBalancerSourceRanges"), "{told}");
}

#[test]
fn a_diff_names_what_somebody_changed() {
    let wanted = table(dual_service(), "bc");
    let diff = |programmed: &TableState| diff(NftFamily::Ipv4, &wanted, programmed, &BTreeMap::new());
    assert_eq!(diff(&wanted), Vec::<String>::new());
    // Equal states may have their lists in another order.
    assert_eq!(diff(&table(dual_service(), "cb")), Vec::<String>::new());
    let changed = |change: &dyn Fn(&mut TableState)| {
        let mut programmed = wanted.clone();
        change(&mut programmed);
        diff(&programmed)
    };
    let lines = diff(&table(dual_service(), "b"));
    for line in [
        "services: 10.96.0.10:80/TCP leads to pick-cluster-1, wanted pick-cluster-2",
        "endpoints: 10.96.0.10:80/TCP lacks 10.244.2.2:8080",
    ] {
        assert!(lines.iter().any(|l| l == line), "{lines:?}");
    }
    let lines = diff(&table(cases::with_ranges(&["192.168.7.0/24"]), "bc"));
    let more = "set source-ranges: 203.0.113.6:80/TCP from 192.168.7.0 to 192.168.7.255 is not wanted";
    assert!(lines.iter().any(|l| l == more), "{lines:?}");
    assert_eq!(
        changed(&|t| t.chains.get_mut("dispatch").unwrap().truncate(1)),
        ["chain dispatch: 2 rules wanted, 1 programmed, the first that differs is number 2"]
    );
    assert_eq!(
        changed(&|t| t.chains.get_mut("dispatch").unwrap().swap(0, 1)),
        ["chain dispatch: 2 rules wanted, 2 programmed, the first that differs is number 1"]
    );
    assert_eq!(
        changed(&|t| drop(t.chains.insert("evil".to_owned(), Vec::new()))),
        ["chain evil is nothing of this version's"]
    );
    assert_eq!(
        changed(&|t| t.hooks.get_mut("nat-output").unwrap().priority = 0),
        ["chain nat-output is attached to another hook, or with another priority"]
    );
    let emptied = changed(&|t| t.sets.get_mut("nodeports").unwrap().clear());
    assert_eq!(emptied.len(), 3);
    assert!(emptied[0].starts_with("nodeports: node port "), "{emptied:?}");
    assert_eq!(changed(&|t| drop(t.sets.remove("hairpin"))), ["set hairpin is missing"]);
}
