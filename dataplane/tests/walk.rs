//! The table of cases on the packet walk: the rules as they were sent, without a kernel. The same
//! table runs on the kernel in `packets.rs`. And `trace` and `diff`, which read tables.

mod cases;
mod support;

use std::collections::BTreeSet;
use std::net::IpAddr;

use cases::{Case, Ends, Whence, b, c, scenarios, web};
use keelson_dataplane::diff::diff;
use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{EndpointRecord, Protocol, ServiceRecord};
use keelson_dataplane::nftables::layout::TABLE;
use keelson_dataplane::trace::{Machine, Question, answer, outcomes};
use keelson_netfilter::nft::walk::Fate;
use keelson_netfilter::nft::{FakeNft, Family as NftFamily, KernelNft, Nft, TableState};
use support::{ip, name, node, settings, slice};

/// The node of the cases.
fn machine() -> Machine {
    let address = |(interface, addr): (&str, &str)| (interface.to_owned(), ip(addr));
    let route = |(net, from): (&str, &str)| (net.parse().unwrap(), ip(from));
    Machine::new(
        [("pod0", "10.244.1.1"), ("pod1", "10.244.1.5"), ("pod2", "10.244.2.1"), ("up0", "192.168.7.2")]
            .map(address)
            .into(),
        [
            ("10.244.1.0/30", "10.244.1.1"),
            ("10.244.1.4/30", "10.244.1.5"),
            ("10.244.2.0/30", "10.244.2.1"),
            ("0.0.0.0/0", "192.168.7.2"),
        ]
        .map(route)
        .into(),
    )
}

fn table(service: ServiceRecord, endpoints: Vec<EndpointRecord>) -> TableState {
    let nft = FakeNft::default();
    let fake: Box<dyn Nft> = Box::new(nft.clone());
    let mut engine = Engine::new("node1", settings(), vec![(NftFamily::Ipv4, fake)], None);
    engine.model.set_node(node("192.168.7.2"));
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)];
    engine.model.set_service(&name("web"), Some(service));
    engine.model.set_slice(&name("web-1"), Some(slice("web", &ports, endpoints)));
    engine.sync().unwrap();
    nft.table(NftFamily::Ipv4, TABLE).unwrap()
}

fn sender(from: Whence) -> &'static str {
    match from {
        Whence::Client => "10.244.1.2",
        Whence::BackendB => "10.244.1.6",
        Whence::External => "192.168.7.1",
        // What the routes give: the node asks without a sender.
        Whence::Node => "",
    }
}

fn question(case: &Case) -> Question {
    let from = Some(sender(case.from)).filter(|from| !from.is_empty()).map(|from| from.parse().unwrap());
    let to = case.to.parse().unwrap();
    let from = from.or_else(|| case.to.starts_with("127.").then(|| "127.0.0.1".parse().unwrap()));
    Question { from, to, interface: None }
}

/// What the walk says, in the words of the cases.
fn walked(table: &TableState, case: &Case) -> BTreeSet<String> {
    let machine = machine();
    let packet = question(case).packet(&machine).unwrap();
    let (_, ends) = outcomes(table, &packet, &machine).unwrap();
    let backend = |addr: IpAddr| match addr.to_string().as_str() {
        "10.244.1.6" => "b".to_owned(),
        "10.244.2.2" => "c".to_owned(),
        other => other.to_owned(),
    };
    ends.values()
        .map(|(fate, _)| match fate {
            Fate::Dropped => "dropped".to_owned(),
            Fate::Refused(_) => "refused".to_owned(),
            Fate::Arrives { at, .. } if *at == packet.destination => "untouched".to_owned(),
            Fate::Arrives { at, masqueraded } => {
                let source = if *masqueraded { machine.source_towards(at.ip()).unwrap() } else { packet.source.ip() };
                format!("{} {source}", backend(at.ip()))
            }
        })
        .collect()
}

fn expected(ends: &Ends) -> BTreeSet<String> {
    match ends {
        Ends::At(backends) => backends.iter().map(|text| (*text).to_owned()).collect(),
        Ends::Refused => ["refused".to_owned()].into(),
        Ends::Dropped => ["dropped".to_owned()].into(),
        Ends::Untouched => ["untouched".to_owned()].into(),
    }
}

#[test]
fn every_case_ends_where_it_should() {
    let mut count = 0;
    for scenario in scenarios() {
        let table = table(scenario.service, scenario.endpoints);
        for case in &scenario.cases {
            let at = format!("{}: {:?} to {}", scenario.name, case.from, case.to);
            assert_eq!(walked(&table, case), expected(&case.ends), "{at}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count} cases");
}

/// What the kernel lists is walked through by `dataplane trace`: it must lead to the same ends.
#[test]
fn the_kernels_listing_leads_to_the_same_ends() {
    if support::skip("the_kernels_listing_leads_to_the_same_ends") {
        return;
    }
    let ns = support::Netns::new();
    let mut engine = ns.engine(settings());
    engine.model.set_node(node("192.168.7.2"));
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)];
    let names = std::collections::BTreeMap::new();
    for scenario in scenarios() {
        engine.model.set_service(&name("web"), Some(scenario.service.clone()));
        engine.model.set_slice(&name("web-1"), Some(slice("web", &ports, scenario.endpoints.clone())));
        engine.sync().unwrap();
        let listed = ns.run(|| KernelNft::open().unwrap().dump(NftFamily::Ipv4, TABLE).unwrap().unwrap());
        for case in &scenario.cases {
            let at = format!("{}: {:?} to {}", scenario.name, case.from, case.to);
            assert_eq!(walked(&listed, case), expected(&case.ends), "{at}");
        }
        let wanted = table(scenario.service, scenario.endpoints);
        assert_eq!(diff(NftFamily::Ipv4, &wanted, &listed, &names), Vec::<String>::new(), "{}", scenario.name);
    }
}

#[test]
fn the_mark_is_taken_off_and_other_bits_stay() {
    let table = table(web(), vec![c()]);
    let machine = machine();
    let case = Case { from: Whence::External, to: "203.0.113.5:80/tcp", ends: Ends::Untouched };
    let mut packet = question(&case).packet(&machine).unwrap();
    packet.mark = 0x8001;
    let (walked, _) = outcomes(&table, &packet, &machine).unwrap();
    assert!(matches!(walked.fate, Fate::Arrives { masqueraded: true, .. }));
    assert_eq!(walked.mark, 0x8001);
}

#[test]
fn a_trace_tells_the_way_in_words() {
    let table = table(web(), vec![b(), c()]);
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
}

#[test]
fn a_diff_names_what_somebody_changed() {
    let wanted = table(ServiceRecord { affinity_seconds: None, ..web() }, vec![b(), c()]);
    let names = std::collections::BTreeMap::new();
    let diff = |programmed: &TableState| diff(NftFamily::Ipv4, &wanted, programmed, &names);
    assert_eq!(diff(&wanted), Vec::<String>::new());
    // Equal states may have their lists in another order.
    assert_eq!(diff(&table(web(), vec![c(), b()])), Vec::<String>::new());
    let changed = |change: &dyn Fn(&mut TableState)| {
        let mut programmed = wanted.clone();
        change(&mut programmed);
        diff(&programmed)
    };
    let lines = diff(&table(web(), vec![b()]));
    assert!(
        lines.contains(&"services: 10.96.0.10:80/TCP leads to pick-cluster-1, wanted pick-cluster-2".to_owned()),
        "{lines:?}"
    );
    assert!(lines.contains(&"endpoints: 10.96.0.10:80/TCP lacks 10.244.2.2:8080".to_owned()), "{lines:?}");
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
    assert_eq!(emptied.len(), 2);
    assert!(emptied[0].starts_with("nodeports: node port "), "{emptied:?}");
    assert_eq!(changed(&|t| drop(t.sets.remove("hairpin"))), ["set hairpin is missing"]);
}
