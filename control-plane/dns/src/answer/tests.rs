use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::{Endpoint, Protocol, Slice, Source};

const DOMAIN: &str = "cluster.local";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn zone() -> Zone {
    let ranges = ["10.96.0.0/16", "10.244.0.0/16"].map(|text| text.parse().unwrap());
    Zone::new(DOMAIN, DEFAULT_TTL, vec![ip("10.96.0.10")], ranges.to_vec()).unwrap()
}

fn port(text: &str, protocol: Protocol, number: u16) -> Port {
    Port { name: text.into(), protocol, number }
}

fn cluster(addresses: &[&str], ports: &[Port]) -> Service {
    let addresses = addresses.iter().map(|text| ip(text)).collect();
    Service { kind: ServiceKind::Cluster { addresses, ports: ports.into() }, publish_not_ready: false }
}

fn headless() -> Service {
    Service { kind: ServiceKind::Headless, publish_not_ready: false }
}

fn external(target: &str) -> Service {
    Service { kind: ServiceKind::External(Some(Box::new(name(target)))), publish_not_ready: false }
}

fn endpoint(address: &str, hostname: Option<&str>, ready: bool) -> Endpoint {
    Endpoint { address: ip(address), hostname: hostname.map(Into::into), ready }
}

fn slice(slice: &str, ports: &[Port], endpoints: &[Endpoint]) -> Slice {
    Slice { name: slice.into(), ports: ports.into(), endpoints: endpoints.into() }
}

/// The specification's examples and those of CoreDNS' own tests, in one cluster.
fn model() -> Model {
    let http = [port("http", Protocol::Tcp, 80)];
    let mut model = Model::new(1);
    for namespace in ["default", "testns", "svc"] {
        model.set_namespace(namespace, true);
    }
    let https = [port("https", Protocol::Tcp, 443)];
    model.set_service("kubernetes.default", Some(cluster(&["10.96.0.1"], &https)));
    model.set_service("svc1.testns", Some(cluster(&["10.96.1.1"], &http)));
    model.set_service("unnamed.testns", Some(cluster(&["10.96.1.9"], &[port("", Protocol::Tcp, 80)])));
    let two = [port("dns", Protocol::Udp, 53), port("dns-tcp", Protocol::Tcp, 53)];
    model.set_service("dual.testns", Some(cluster(&["10.96.0.3", "fd00::3"], &two)));
    model.set_service("pending.testns", Some(cluster(&[], &http)));
    model.set_service("lost.gone", Some(cluster(&["10.96.7.7"], &http)));
    model.set_service("hdls.testns", Some(headless()));
    model.set_slice(
        "testns/hdls-1",
        Some((
            "hdls.testns",
            slice(
                "hdls-1",
                &http,
                &[
                    endpoint("10.244.0.2", None, true),
                    endpoint("10.244.0.3", None, true),
                    endpoint("10.244.0.4", Some("dup-name"), true),
                    endpoint("10.244.0.5", Some("dup-name"), true),
                    endpoint("10.244.0.6", Some("late"), false),
                ],
            ),
        )),
    );
    let six = [endpoint("5678:abcd::1", None, true), endpoint("5678:abcd::2", None, true)];
    model.set_slice("testns/hdls-6", Some(("hdls.testns", slice("hdls-6", &http, &six))));
    model.set_service("portless.testns", Some(headless()));
    let one = [endpoint("10.244.0.20", None, true)];
    model.set_slice("testns/portless-1", Some(("portless.testns", slice("portless-1", &[], &one))));
    model.set_service("empty.testns", Some(headless()));
    let unready = [endpoint("10.244.0.30", Some("web-0"), false)];
    model.set_slice("testns/empty-1", Some(("empty.testns", slice("empty-1", &http, &unready))));
    model.set_service("peers.testns", Some(Service { publish_not_ready: true, ..headless() }));
    let peers = [endpoint("10.244.0.31", Some("web-0"), false)];
    model.set_slice("testns/peers-1", Some(("peers.testns", slice("peers-1", &http, &peers))));
    model.set_slice(
        "testns/svc1-1",
        Some(("svc1.testns", slice("svc1-1", &http, &[endpoint("10.244.0.40", None, true)]))),
    );
    model.set_service("external.testns", Some(external("ext.interwebs.test.")));
    model.set_service("to-service.testns", Some(external("svc1.testns.svc.cluster.local.")));
    model.set_service("to-nothing.testns", Some(external("none.testns.svc.cluster.local.")));
    model.set_service("ring-a.testns", Some(external("ring-b.testns.svc.cluster.local.")));
    model.set_service("ring-b.testns", Some(external("ring-a.testns.svc.cluster.local.")));
    model.set_service("number.testns", Some(Service { kind: ServiceKind::External(None), publish_not_ready: false }));
    for source in [Source::Namespaces, Source::Services, Source::Slices] {
        model.set_listed(source);
    }
    model
}

fn ask(question: &str, kind: RecordType) -> Reply {
    match answer(&zone(), &model(), &name(question), kind, 0) {
        Answer::Cluster(reply) => reply,
        Answer::Foreign => panic!("{question} was taken for somebody else's"),
    }
}

/// A reply as one line: code, answers, and what is in the other sections.
fn told(reply: &Reply) -> String {
    let lines = |records: &[Record]| {
        let mut all: Vec<String> =
            records.iter().map(|r| format!("{} {} {} {}", r.name, r.ttl, r.record_type(), r.data)).collect();
        all.sort();
        all.join("; ")
    };
    format!("{:?} [{}] + [{}]", reply.code, lines(&reply.answers), lines(&reply.additional))
}

fn expect(question: &str, kind: RecordType, answers: &str, additional: &str) {
    let reply = ask(question, kind);
    assert_eq!(told(&reply), format!("NoError [{answers}] + [{additional}]"), "{question} {kind}");
    assert!(reply.authority.is_empty());
}

#[test]
fn services_with_an_address() {
    expect(
        "kubernetes.default.svc.cluster.local.",
        RecordType::A,
        "kubernetes.default.svc.cluster.local. 5 A 10.96.0.1",
        "",
    );
    expect(
        "_https._tcp.kubernetes.default.svc.cluster.local.",
        RecordType::SRV,
        "_https._tcp.kubernetes.default.svc.cluster.local. 5 SRV 0 100 443 kubernetes.default.svc.cluster.local.",
        "kubernetes.default.svc.cluster.local. 5 A 10.96.0.1",
    );
    expect("dual.testns.svc.cluster.local.", RecordType::AAAA, "dual.testns.svc.cluster.local. 5 AAAA fd00::3", "");
    // Without port and protocol all ports come, the unnamed one too; two addresses share the weight.
    expect(
        "unnamed.testns.svc.cluster.local.",
        RecordType::SRV,
        "unnamed.testns.svc.cluster.local. 5 SRV 0 100 80 unnamed.testns.svc.cluster.local.",
        "unnamed.testns.svc.cluster.local. 5 A 10.96.1.9",
    );
    expect(
        "_dns._udp.dual.testns.svc.cluster.local.",
        RecordType::SRV,
        "_dns._udp.dual.testns.svc.cluster.local. 5 SRV 0 50 53 dual.testns.svc.cluster.local.",
        "dual.testns.svc.cluster.local. 5 A 10.96.0.3; dual.testns.svc.cluster.local. 5 AAAA fd00::3",
    );
    // The endpoints of such a service have names too, as with CoreDNS.
    expect(
        "10-244-0-40.svc1.testns.svc.cluster.local.",
        RecordType::A,
        "10-244-0-40.svc1.testns.svc.cluster.local. 5 A 10.244.0.40",
        "",
    );
}

#[test]
fn headless_services() {
    let of = |last: u8| format!("hdls.testns.svc.cluster.local. 5 A 10.244.0.{last}");
    expect("hdls.testns.svc.cluster.local.", RecordType::A, &[of(2), of(3), of(4), of(5)].join("; "), "");
    expect(
        "dup-name.hdls.testns.svc.cluster.local.",
        RecordType::A,
        "dup-name.hdls.testns.svc.cluster.local. 5 A 10.244.0.4; dup-name.hdls.testns.svc.cluster.local. 5 A 10.244.0.5",
        "",
    );
    expect(
        "5678-abcd--2.hdls.testns.svc.cluster.local.",
        RecordType::AAAA,
        "5678-abcd--2.hdls.testns.svc.cluster.local. 5 AAAA 5678:abcd::2",
        "",
    );
    expect(
        "portless.testns.svc.cluster.local.",
        RecordType::A,
        "portless.testns.svc.cluster.local. 5 A 10.244.0.20",
        "",
    );
    let reply = ask("_http._tcp.hdls.testns.svc.cluster.local.", RecordType::SRV);
    let answers = told(&reply);
    // Five targets of six addresses: one name has two, and counts twice in the weight.
    assert_eq!((reply.answers.len(), reply.additional.len()), (5, 6), "{answers}");
    assert!(answers.contains("SRV 0 16 80 dup-name.hdls.testns.svc.cluster.local."), "{answers}");
    assert!(answers.contains("SRV 0 16 80 5678-abcd--1.hdls.testns.svc.cluster.local."), "{answers}");
}

#[test]
fn endpoints_that_are_not_ready_count_only_where_they_are_published() {
    assert_eq!(ask("late.hdls.testns.svc.cluster.local.", RecordType::A).code, ResponseCode::NXDomain);
    assert_eq!(ask("empty.testns.svc.cluster.local.", RecordType::A).code, ResponseCode::NXDomain);
    expect(
        "web-0.peers.testns.svc.cluster.local.",
        RecordType::A,
        "web-0.peers.testns.svc.cluster.local. 5 A 10.244.0.31",
        "",
    );
    expect("peers.testns.svc.cluster.local.", RecordType::A, "peers.testns.svc.cluster.local. 5 A 10.244.0.31", "");
}

#[test]
fn external_names() {
    let alias = "external.testns.svc.cluster.local. 5 CNAME ext.interwebs.test.";
    expect("external.testns.svc.cluster.local.", RecordType::CNAME, alias, "");
    let reply = ask("external.testns.svc.cluster.local.", RecordType::A);
    assert_eq!(reply.follow, Some(name("ext.interwebs.test.")));
    assert_eq!(told(&reply), format!("NoError [{alias}] + []"));
    let inside = ask("to-service.testns.svc.cluster.local.", RecordType::A);
    assert_eq!(inside.answers.len(), 2);
    assert_eq!(inside.answers[0].record_type(), RecordType::CNAME);
    assert_eq!(inside.answers[1].data, RData::A(A::new(10, 96, 1, 1)));
    let nothing = ask("to-nothing.testns.svc.cluster.local.", RecordType::A);
    assert_eq!((nothing.code, nothing.answers.len(), nothing.authority.len()), (ResponseCode::NXDomain, 1, 1));
    assert_eq!(ask("ring-a.testns.svc.cluster.local.", RecordType::A).code, ResponseCode::ServFail);
    // Below an alias there is nothing, and an address is no alias.
    for question in ["x.external.testns.svc.cluster.local.", "number.testns.svc.cluster.local."] {
        assert_eq!(ask(question, RecordType::A).code, ResponseCode::NXDomain, "{question}");
    }
}

#[test]
fn pods_version_and_apex() {
    expect(
        "10-240-0-1.testns.pod.cluster.local.",
        RecordType::A,
        "10-240-0-1.testns.pod.cluster.local. 5 A 10.240.0.1",
        "",
    );
    expect(
        "2001-db8--1.testns.pod.cluster.local.",
        RecordType::AAAA,
        "2001-db8--1.testns.pod.cluster.local. 5 AAAA 2001:db8::1",
        "",
    );
    expect("dns-version.cluster.local.", RecordType::TXT, "dns-version.cluster.local. 28800 TXT 1.1.0", "");
    expect(
        "cluster.local.",
        RecordType::NS,
        "cluster.local. 5 NS ns.dns.cluster.local.",
        "ns.dns.cluster.local. 5 A 10.96.0.10",
    );
    expect("ns.dns.cluster.local.", RecordType::A, "ns.dns.cluster.local. 5 A 10.96.0.10", "");
    assert_eq!(ask("cluster.local.", RecordType::SOA).answers.len(), 1);
}

#[test]
fn reverse_names() {
    expect(
        "1.0.96.10.in-addr.arpa.",
        RecordType::PTR,
        "1.0.96.10.in-addr.arpa. 5 PTR kubernetes.default.svc.cluster.local.",
        "",
    );
    expect(
        "4.0.244.10.in-addr.arpa.",
        RecordType::PTR,
        "4.0.244.10.in-addr.arpa. 5 PTR dup-name.hdls.testns.svc.cluster.local.",
        "",
    );
    expect(
        "2.0.244.10.in-addr.arpa.",
        RecordType::PTR,
        "2.0.244.10.in-addr.arpa. 5 PTR 10-244-0-2.hdls.testns.svc.cluster.local.",
        "",
    );
    // Nobody else can know an address of the cluster; others are for others to know.
    assert_eq!(ask("9.9.96.10.in-addr.arpa.", RecordType::PTR).code, ResponseCode::NXDomain);
    assert_eq!(ask("30.0.244.10.in-addr.arpa.", RecordType::PTR).code, ResponseCode::NXDomain);
    let foreign = |question: &str| answer(&zone(), &model(), &name(question), RecordType::PTR, 0) == Answer::Foreign;
    assert!(foreign("1.2.0.192.in-addr.arpa.") && foreign("10.in-addr.arpa.") && foreign("example.com."));
    assert!(foreign("xcluster.local.") && foreign("local."));
}

/// What is there without a record of the type asked for, and what is not there at all.
#[test]
fn no_data_or_no_name() {
    let no_data = [
        ("kubernetes.default.svc.cluster.local.", RecordType::AAAA),
        ("kubernetes.default.svc.cluster.local.", RecordType::TXT),
        ("kubernetes.default.svc.cluster.local.", RecordType::CNAME),
        ("pending.testns.svc.cluster.local.", RecordType::A),
        ("portless.testns.svc.cluster.local.", RecordType::SRV),
        ("dup-name.hdls.testns.svc.cluster.local.", RecordType::AAAA),
        ("_tcp.kubernetes.default.svc.cluster.local.", RecordType::A),
        ("_tcp.hdls.testns.svc.cluster.local.", RecordType::SRV),
        ("testns.svc.cluster.local.", RecordType::A),
        ("testns.pod.cluster.local.", RecordType::A),
        ("svc.cluster.local.", RecordType::NS),
        ("pod.cluster.local.", RecordType::A),
        ("dns.cluster.local.", RecordType::A),
        ("dns-version.cluster.local.", RecordType::A),
        ("cluster.local.", RecordType::A),
        ("10-240-0-1.testns.pod.cluster.local.", RecordType::AAAA),
        ("1.0.96.10.in-addr.arpa.", RecordType::A),
        ("0.96.10.in-addr.arpa.", RecordType::PTR),
    ];
    let no_name = [
        ("none.testns.svc.cluster.local.", RecordType::A),
        ("svc1.none.svc.cluster.local.", RecordType::A),
        ("lost.gone.svc.cluster.local.", RecordType::A),
        ("gone.svc.cluster.local.", RecordType::A),
        ("none.pod.cluster.local.", RecordType::A),
        ("foo.cluster.local.", RecordType::NS),
        ("x.hdls.testns.svc.cluster.local.", RecordType::A),
        ("10-244-0-4.hdls.testns.svc.cluster.local.", RecordType::A),
        ("x.dns-version.cluster.local.", RecordType::TXT),
        ("_x._tcp.svc1.testns.svc.cluster.local.", RecordType::SRV),
        ("_http._udp.svc1.testns.svc.cluster.local.", RecordType::SRV),
        ("_udp.svc1.testns.svc.cluster.local.", RecordType::SRV),
        ("_._tcp.unnamed.testns.svc.cluster.local.", RecordType::SRV),
        ("_tcp.unnamed.testns.svc.cluster.local.", RecordType::SRV),
        ("http.tcp.svc1.testns.svc.cluster.local.", RecordType::SRV),
        ("_http._tcp.x.svc1.testns.svc.cluster.local.", RecordType::SRV),
        ("_http._tcp.empty.testns.svc.cluster.local.", RecordType::SRV),
        ("not-an-address.testns.pod.cluster.local.", RecordType::A),
        ("x.10-240-0-1.testns.pod.cluster.local.", RecordType::A),
        ("svc1\\.testns.svc.cluster.local.", RecordType::A),
        ("www.example.com.testns.svc.cluster.local.", RecordType::A),
        ("svc1.testns.svc.cluster.local.testns.svc.cluster.local.", RecordType::A),
    ];
    let cases = no_data.iter().map(|case| (case, ResponseCode::NoError));
    for ((question, kind), code) in cases.chain(no_name.iter().map(|case| (case, ResponseCode::NXDomain))) {
        let reply = ask(question, *kind);
        assert_eq!((reply.code, reply.answers.len()), (code, 0), "{question} {kind}");
        let [soa] = reply.authority.as_slice() else { panic!("{question}: no SOA") };
        let RData::SOA(data) = &soa.data else { panic!("{question}: {soa:?}") };
        assert_eq!((soa.ttl, data.minimum), (5, 5), "{question}");
        assert!(soa.name.zone_of(&name(question)), "{question}: the SOA is of {}", soa.name);
    }
}

#[test]
fn nothing_is_denied_before_everything_is_known() {
    let mut model = Model::new(1);
    model.set_namespace("default", true);
    model.set_service("kubernetes.default", Some(cluster(&["10.96.0.1"], &[])));
    model.set_listed(Source::Services);
    let code = |question: &str, kind| match answer(&zone(), &model, &name(question), kind, 0) {
        Answer::Cluster(reply) => reply.code,
        Answer::Foreign => ResponseCode::Refused,
    };
    assert_eq!(code("none.default.svc.cluster.local.", RecordType::A), ResponseCode::ServFail);
    assert_eq!(code("9.9.96.10.in-addr.arpa.", RecordType::PTR), ResponseCode::ServFail);
    assert_eq!(code("kubernetes.default.svc.cluster.local.", RecordType::A), ResponseCode::NoError);
}

#[test]
fn addresses_take_turns() {
    let first = |spin| match answer(&zone(), &model(), &name("hdls.testns.svc.cluster.local."), RecordType::A, spin) {
        Answer::Cluster(reply) => reply.answers[0].data.to_string(),
        Answer::Foreign => String::new(),
    };
    let firsts: std::collections::BTreeSet<String> = (0..4).map(first).collect();
    assert_eq!(firsts.len(), 4);
}

#[test]
fn a_domain_of_one_or_three_labels() {
    for domain in ["local", "k8s.Example.ORG."] {
        let zone = Zone::new(domain, 30, Vec::new(), Vec::new()).unwrap();
        let question = name(&format!("kubernetes.default.svc.{}.", domain.trim_end_matches('.')));
        let Answer::Cluster(reply) = answer(&zone, &model(), &question, RecordType::A, 0) else { panic!("{domain}") };
        assert_eq!((reply.answers.len(), reply.answers[0].ttl), (1, 30), "{domain}");
    }
    assert!(Zone::new("", 5, Vec::new(), Vec::new()).is_err());
    assert!(Zone::new("a..b", 5, Vec::new(), Vec::new()).is_err());
}

/// A label of a question: parts of known names, and anything else.
fn label() -> impl Strategy<Value = String> {
    let known = [
        "kubernetes",
        "default",
        "testns",
        "svc",
        "pod",
        "hdls",
        "dup-name",
        "_http",
        "_tcp",
        "_udp",
        "external",
        "dns",
        "ns",
        "dns-version",
        "10-244-0-2",
        "cluster",
        "local",
        "1",
        "96",
        "10",
        "in-addr",
        "ip6",
        "arpa",
    ];
    prop_oneof![8 => proptest::sample::select(known.to_vec()).prop_map(String::from), 1 => "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?"]
}

fn kinds() -> impl Strategy<Value = RecordType> {
    proptest::sample::select(vec![
        RecordType::A,
        RecordType::AAAA,
        RecordType::SRV,
        RecordType::PTR,
        RecordType::CNAME,
        RecordType::TXT,
        RecordType::NS,
        RecordType::SOA,
        RecordType::ANY,
        RecordType::HTTPS,
    ])
}

proptest! {
    /// For any name and type: no panic; the case does not matter; a denial or an empty answer has the SOA and nothing else has; a name
    /// that is denied for one type is denied for all; a name above one that exists is not denied (RFC 8020).
    #[test]
    fn rules_that_hold_for_every_question(labels in proptest::collection::vec(label(), 0..7), kind in kinds(), inside: bool) {
        let text = format!("{}{}", labels.iter().map(|l| format!("{l}.")).collect::<String>(), if inside { "svc.cluster.local." } else { "" });
        let question = if text.is_empty() { Name::root() } else { name(&text) };
        let (zone, model) = (zone(), model());
        let got = answer(&zone, &model, &question, kind, 0);
        let upper = name(&question.to_ascii().to_ascii_uppercase());
        match (&got, answer(&zone, &model, &upper, kind, 0)) {
            (Answer::Foreign, other) => prop_assert_eq!(&other, &Answer::Foreign),
            (Answer::Cluster(a), Answer::Cluster(b)) => prop_assert_eq!(told(a).to_lowercase(), told(&b).to_lowercase()),
            (a, b) => return Err(TestCaseError::fail(format!("{a:?} and {b:?}"))),
        }
        let Answer::Cluster(reply) = got else { return Ok(()) };
        let negative = reply.code != ResponseCode::ServFail && reply.answers.iter().all(|r| r.record_type() == RecordType::CNAME)
            && kind != RecordType::CNAME && reply.follow.is_none();
        let empty = reply.answers.is_empty() && reply.code != ResponseCode::ServFail;
        prop_assert_eq!(reply.authority.len(), usize::from(negative || empty), "{:?}", &reply);
        if reply.code == ResponseCode::NXDomain && reply.answers.is_empty() {
            for other in [RecordType::A, RecordType::SRV, RecordType::TXT] {
                let Answer::Cluster(other) = answer(&zone, &model, &question, other, 0) else { panic!() };
                prop_assert_eq!(other.code, ResponseCode::NXDomain);
            }
        }
        if reply.code == ResponseCode::NoError
            && question.num_labels() > 2
            && let Answer::Cluster(above) = answer(&zone, &model, &question.base_name(), RecordType::A, 0)
        {
            prop_assert_ne!(above.code, ResponseCode::NXDomain, "{} exists, the name above it does not", &question);
        }
    }

    /// Whatever order changes come in, and whatever is taken out again, the model answers like one that was told only the end.
    #[test]
    fn the_model_forgets_nothing_and_keeps_nothing(
        steps in proptest::collection::vec((0_usize..4, 0_u8..4, any::<bool>(), 0_usize..3), 0..40),
    ) {
        let mut lived = Model::new(1);
        let mut services: BTreeMap<String, Service> = BTreeMap::new();
        let mut slices: BTreeMap<String, (String, Slice)> = BTreeMap::new();
        for (which, last, present, owner) in steps {
            if which < 2 {
                let key = format!("s{which}.default");
                let service = present.then(|| if last == 0 { headless() } else { cluster(&[&format!("10.96.{which}.{last}")], &[]) });
                lived.set_service(&key, service.clone());
                match service {
                    Some(service) => drop(services.insert(key, service)),
                    None => drop(services.remove(&key)),
                }
            } else {
                let slice_key = format!("default/e{which}");
                let owner = format!("s{owner}.default");
                let endpoints = [endpoint(&format!("10.244.0.{last}"), None, true), endpoint("10.244.0.9", Some("h"), last > 1)];
                let made = slice(&format!("e{which}"), &[], &endpoints);
                lived.set_slice(&slice_key, present.then(|| (owner.as_str(), made.clone())));
                if present { slices.insert(slice_key, (owner, made)); } else { slices.remove(&slice_key); }
            }
        }
        let mut fresh = Model::new(1);
        for (key, service) in &services { fresh.set_service(key, Some(service.clone())); }
        for (key, (owner, slice)) in &slices { fresh.set_slice(key, Some((owner, slice.clone()))); }
        for model in [&mut lived, &mut fresh] {
            model.set_namespace("default", true);
            for source in [Source::Namespaces, Source::Services, Source::Slices] { model.set_listed(source); }
        }
        for question in ["s0.default.svc.cluster.local.", "s1.default.svc.cluster.local.", "h.s1.default.svc.cluster.local."] {
            let told_by = |model: &Model| match answer(&zone(), model, &name(question), RecordType::A, 0) {
                Answer::Cluster(reply) => told(&reply),
                Answer::Foreign => String::new(),
            };
            prop_assert_eq!(told_by(&lived), told_by(&fresh), "{}", question);
        }
        for last in 0..10 {
            let address = ip(&format!("10.244.0.{last}"));
            let keys = |model: &Model| { let mut all: Vec<String> = model.endpoints_at(address).map(str::to_owned).collect(); all.sort(); all };
            prop_assert_eq!(keys(&lived), keys(&fresh));
        }
        for (key, service) in &services {
            let ServiceKind::Cluster { addresses, .. } = &service.kind else { continue };
            let owner = lived.service_at(addresses[0]);
            prop_assert!(owner.is_some(), "{} has lost its address", key);
        }
    }
}
