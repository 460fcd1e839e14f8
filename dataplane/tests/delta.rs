//! Properties of the whole path, on the in-memory nf_tables: the order of events never matters,
//! and the changes applied one after the other lead where a full build leads. The fake refuses
//! what the kernel would refuse, so every sequence is also a test of the order of writes.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{EndpointRecord, Protocol, ServiceRecord};
use keelson_dataplane::nftables::layout::TABLE;
use keelson_netfilter::nft::{FakeNft, Family, OwnedData, TableState};
use proptest::prelude::*;
use support::{ip, name, node, port, ready, service, settings, slice};

fn engine(fake: &FakeNft) -> Engine {
    let mut engine = Engine::new("node1", settings(), vec![(Family::Ipv4, Box::new(fake.clone()))], None);
    engine.model.set_node(node("192.168.7.2"));
    engine
}

type Canonical = BTreeMap<String, BTreeSet<String>>;

/// A table with what may differ between equal states taken out: which endpoint has which index,
/// and pick chains that nobody uses any more.
fn canonical(table: &TableState) -> Canonical {
    let mut out = Canonical::new();
    for (set, elements) in &table.sets {
        let mut lists: BTreeMap<Vec<u8>, (BTreeSet<u32>, Vec<String>)> = BTreeMap::new();
        let entry = out.entry(set.clone()).or_default();
        for ((key, end), data) in elements {
            if set.contains("endpoints") && matches!(data, OwnedData::Value(_)) {
                let (list, index) = key.split_at(key.len() - 4);
                let (indexes, values) = lists.entry(list.to_vec()).or_default();
                indexes.insert(u32::from_ne_bytes(index.try_into().unwrap()));
                values.push(format!("{data:?}"));
            } else {
                entry.insert(format!("{key:?} {end} {data:?}"));
            }
        }
        for (list, (indexes, mut values)) in lists {
            assert_eq!(indexes.iter().copied().max(), Some(values.len() as u32 - 1), "a hole in {set} {list:?}");
            values.sort();
            entry.insert(format!("{list:?} {values:?}"));
        }
    }
    let used: BTreeSet<String> = table.sets.values().flat_map(BTreeMap::values).map(|d| format!("{d:?}")).collect();
    for (chain, rules) in &table.chains {
        if !chain.starts_with("pick-") || used.iter().any(|d| d.contains(&format!("\"{chain}\""))) {
            out.insert(format!("chain {chain}"), rules.iter().enumerate().map(|r| format!("{r:?}")).collect());
        }
    }
    out
}

/// Fails with the entries that differ, not with two whole tables.
fn assert_same(a: &Canonical, b: &Canonical) {
    let none = BTreeSet::new();
    for name in a.keys().chain(b.keys()) {
        let (a, b) = (a.get(name).unwrap_or(&none), b.get(name).unwrap_or(&none));
        let (only_a, only_b): (Vec<_>, Vec<_>) = (a.difference(b).collect(), b.difference(a).collect());
        assert!(only_a.is_empty() && only_b.is_empty(), "{name}: only left {only_a:?}, only right {only_b:?}");
    }
}

/// An event on one of a few objects, so that sequences meet on the same ones.
#[derive(Debug, Clone)]
enum Event {
    Service(u8, Option<ServiceKind>),
    Slice(u8, u8, Option<Vec<(u8, u8, bool)>>),
}

#[derive(Debug, Clone)]
struct ServiceKind {
    ip: u8,
    node_port: u8,
    external: Option<u8>,
    external_local: bool,
    internal_local: bool,
    sticky: bool,
    udp: bool,
    /// Source ranges of the external address, by number; that address is a load balancer's then.
    ranges: u8,
}

/// Ranges that overlap, touch and hold one another, in both families.
const RANGES: [&[&str]; 6] = [
    &[],
    &["10.0.0.0/8"],
    &["10.0.0.0/16", "192.168.7.0/24"],
    &["10.1.0.0/16", "10.0.0.0/16", "fd00::/64"],
    &["fd00::/64"],
    &["0.0.0.0/0"],
];

fn record(kind: &ServiceKind) -> ServiceRecord {
    let node_port = if kind.node_port == 0 { 0 } else { 30_000 + u16::from(kind.node_port) };
    let mut ports = vec![port(80, node_port, Protocol::Tcp)];
    if kind.udp {
        ports.push(port(53, 0, Protocol::Udp));
    }
    let external = kind.external.iter().map(|n| ip(&format!("203.0.113.{n}"))).collect();
    let ranges = RANGES[usize::from(kind.ranges)];
    let (external_ips, load_balancer_ips) = if ranges.is_empty() { (external, vec![]) } else { (vec![], external) };
    ServiceRecord {
        external_ips,
        load_balancer_ips,
        source_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
        external_local: kind.external_local,
        internal_local: kind.internal_local,
        affinity_seconds: kind.sticky.then_some(60),
        ..service(&format!("10.96.0.{}", 10 + kind.ip), ports)
    }
}

fn endpoints(list: &[(u8, u8, bool)]) -> Vec<EndpointRecord> {
    list.iter()
        .map(|(addr, state, local)| EndpointRecord {
            ready: *state == 0,
            serving: *state < 2,
            terminating: *state > 0,
            ..ready(&format!("10.244.0.{addr}"), *local)
        })
        .collect()
}

fn apply(engine: &mut Engine, event: &Event) {
    match event {
        Event::Service(n, kind) => {
            engine.model.set_service(&name(&format!("s{n}")), kind.as_ref().map(record));
        }
        Event::Slice(n, s, list) => {
            let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)];
            let record = list.as_ref().map(|list| slice(&format!("s{n}"), &ports, endpoints(list)));
            engine.model.set_slice(&name(&format!("slice{s}")), record);
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let kind = (0u8..3, 0u8..3, proptest::option::of(1u8..3), any::<[bool; 4]>(), 0..RANGES.len() as u8).prop_map(
        |(ip, node_port, external, [external_local, internal_local, sticky, udp], ranges)| ServiceKind {
            ip,
            node_port,
            external,
            external_local,
            internal_local,
            sticky,
            udp,
            ranges,
        },
    );
    prop_oneof![
        (0u8..4, proptest::option::weighted(0.8, kind)).prop_map(|(n, k)| Event::Service(n, k)),
        (
            0u8..4,
            0u8..4,
            proptest::option::weighted(0.85, proptest::collection::vec((1u8..7, 0u8..3, any::<bool>()), 0..6))
        )
            .prop_map(|(n, s, l)| Event::Slice(n, s, l)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn deltas_lead_where_a_full_build_leads(events in proptest::collection::vec((event(), any::<bool>()), 1..40)) {
        let (step, whole) = (FakeNft::default(), FakeNft::default());
        let (mut one, mut other) = (engine(&step), engine(&whole));
        for (event, sync) in &events {
            apply(&mut one, event);
            apply(&mut other, event);
            if *sync {
                one.sync().unwrap();
            }
        }
        one.sync().unwrap();
        other.sync().unwrap();
        let got = step.table(Family::Ipv4, TABLE).unwrap();
        assert_same(&canonical(&got), &canonical(&whole.table(Family::Ipv4, TABLE).unwrap()));
        // A restart finds nothing to do.
        let _ = step.take_commits();
        let mut again = engine(&step);
        for (event, _) in &events {
            apply(&mut again, event);
        }
        let report = again.sync().unwrap();
        prop_assert_eq!(report.stats.elements, 0);
        assert_same(&canonical(&step.table(Family::Ipv4, TABLE).unwrap()), &canonical(&got));
    }

    #[test]
    fn the_order_of_events_on_different_objects_does_not_matter(
        events in proptest::collection::vec(event(), 1..20),
        seed in any::<u64>(),
    ) {
        // The last event of each object decides; shuffled, the outcome is the same.
        let object = |e: &Event| match e { Event::Service(n, _) => (0, *n), Event::Slice(_, s, _) => (1, *s) };
        let mut last: BTreeMap<(u8, u8), Event> = BTreeMap::new();
        for event in &events {
            last.insert(object(event), event.clone());
        }
        let mut order: Vec<Event> = last.into_values().collect();
        let build = |order: &[Event]| {
            let fake = FakeNft::default();
            let mut engine = engine(&fake);
            for event in order {
                apply(&mut engine, event);
                engine.sync().unwrap();
            }
            canonical(&fake.table(Family::Ipv4, TABLE).unwrap())
        };
        let sorted = build(&order);
        let mut state = seed;
        for i in (1..order.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            order.swap(i, (state >> 33) as usize % (i + 1));
        }
        assert_same(&sorted, &build(&order));
    }
}

#[test]
fn a_change_of_one_service_touches_only_its_elements() {
    let fake = FakeNft::default();
    let mut engine = engine(&fake);
    for n in 0..50u8 {
        let events = [
            Event::Service(
                n,
                Some(ServiceKind {
                    ip: n,
                    node_port: n,
                    external: None,
                    external_local: false,
                    internal_local: false,
                    sticky: false,
                    udp: false,
                    ranges: 0,
                }),
            ),
            Event::Slice(n, n, Some(vec![(1, 0, false), (2, 0, false), (3, 0, false)])),
        ];
        events.iter().for_each(|e| apply(&mut engine, e));
    }
    engine.sync().unwrap();
    let _ = fake.take_commits();
    // Growing to a number that needs new chains: they come first, with an element for each of two lists; then two verdicts are replaced.
    apply(&mut engine, &Event::Slice(7, 7, Some(vec![(1, 0, false), (2, 0, false), (3, 0, false), (4, 0, false)])));
    engine.sync().unwrap();
    assert_eq!(fake.take_commits(), [2, 4]);
    // The chains are there: one transaction.
    apply(&mut engine, &Event::Slice(8, 8, Some(vec![(1, 0, false), (2, 0, false), (3, 0, false), (4, 0, false)])));
    engine.sync().unwrap();
    assert_eq!(fake.take_commits(), [6]);
    // Shrinking: verdicts (and the hole) first, the spare elements in a second transaction.
    apply(&mut engine, &Event::Slice(7, 7, Some(vec![(2, 0, false), (3, 0, false), (4, 0, false)])));
    engine.sync().unwrap();
    assert_eq!(fake.take_commits(), [8, 2]);
    // Nothing changed: nothing written.
    engine.sync().unwrap();
    assert_eq!(fake.take_commits(), [0usize; 0]);
}

/// While the kernel enlarges a hash its listing leaves elements out. Newer kernels count them, so that this is noticed; with older ones a list that
/// is shorter than its verdict says is the sign.
#[test]
fn a_listing_that_leaves_elements_out_is_made_again() {
    for (told, times) in [(true, 40), (false, 3)] {
        let nft = FakeNft::default();
        let mut engine = engine(&nft);
        for n in 0..5_u8 {
            let at = format!("s{n}");
            engine
                .model
                .set_service(&name(&at), Some(service(&format!("10.96.0.{n}"), vec![port(80, 0, Protocol::Tcp)])));
            let list = (1..=4).map(|i| ready(&format!("10.244.{n}.{i}"), false)).collect();
            engine.model.set_slice(&name(&format!("{at}-1")), Some(slice(&at, &[(Protocol::Tcp, 8080)], list)));
        }
        engine.sync().unwrap();
        engine.forget();
        nft.list_partially(times, told);
        assert_eq!(engine.sync().unwrap().stats.elements, 0, "told: {told}");
    }
}

/// A list that stays shorter (somebody deleted elements) is repaired all the same.
#[test]
fn a_list_that_lost_elements_is_repaired_where_the_kernel_does_not_count() {
    let nft = FakeNft::default();
    let mut engine = engine(&nft);
    engine.model.set_service(&name("web"), Some(service("10.96.0.1", vec![port(80, 0, Protocol::Tcp)])));
    let list = (1..=4).map(|i| ready(&format!("10.244.0.{i}"), false)).collect();
    engine.model.set_slice(&name("web-1"), Some(slice("web", &[(Protocol::Tcp, 8080)], list)));
    engine.sync().unwrap();
    let before = nft.table(Family::Ipv4, TABLE).unwrap();
    nft.tamper(Family::Ipv4, TABLE, |table| drop(table.sets.get_mut("endpoints").unwrap().pop_first()));
    engine.forget();
    nft.list_partially(1, false);
    let start = std::time::Instant::now();
    engine.sync().unwrap();
    assert!(start.elapsed() < std::time::Duration::from_secs(1), "repaired within a second");
    assert_eq!(nft.table(Family::Ipv4, TABLE).unwrap(), before);
}

/// Elements by transaction, in order: a packet may stand between two look-ups while any of them is committed.
#[test]
fn what_is_looked_at_second_is_there_first_and_goes_last() {
    let fake = FakeNft::default();
    let mut engine = engine(&fake);
    let balanced = |local: bool, ranges: &[&str]| ServiceRecord {
        load_balancer_ips: vec![ip("203.0.113.1")],
        external_local: local,
        source_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
        ..service("10.96.0.10", vec![port(80, 0, Protocol::Tcp)])
    };
    let list = endpoints(&[(1, 0, true), (2, 0, false)]);
    engine.model.set_slice(&name("slice"), Some(slice("s1", &[(Protocol::Tcp, 8080)], list)));
    let mut commits = |record: ServiceRecord| {
        engine.model.set_service(&name("s1"), Some(record));
        engine.sync().unwrap();
        fake.take_commits()
    };
    // Once each, for the chains.
    for record in [balanced(true, &[]), balanced(false, &["10.0.0.0/8"]), balanced(false, &[])] {
        commits(record);
    }
    // The range; then the verdict behind it, and the one that leads there in another's place.
    assert_eq!(commits(balanced(false, &["10.0.0.0/8"])), [1, 3]);
    // A range more and one less; then an overlap, in one transaction.
    assert_eq!(commits(balanced(false, &["10.0.0.0/8", "192.168.0.0/24"])), [1]);
    assert_eq!(commits(balanced(false, &["10.0.0.0/8"])), [1]);
    assert_eq!(commits(balanced(false, &["10.0.0.0/16"])), [2]);
    // The verdict; then what it led to; then the range.
    assert_eq!(commits(balanced(false, &[])), [2, 1, 1]);
    // An endpoint here and two look-ups more; and back, where both look-ups go after the verdict.
    assert_eq!(commits(balanced(true, &[])), [5]);
    assert_eq!(commits(balanced(false, &[])), [2, 2, 1]);
}

#[test]
fn a_refused_transaction_leads_to_a_listing_and_a_repair() {
    let fake = FakeNft::default();
    let mut engine = engine(&fake);
    let kind = ServiceKind {
        ip: 1,
        node_port: 1,
        external: None,
        external_local: false,
        internal_local: false,
        sticky: false,
        udp: false,
        ranges: 0,
    };
    apply(&mut engine, &Event::Service(1, Some(kind.clone())));
    apply(&mut engine, &Event::Slice(1, 1, Some(vec![(1, 0, false)])));
    engine.sync().unwrap();
    let right = fake.table(Family::Ipv4, TABLE).unwrap();
    for errno in [libc_enobufs(), 12, 16] {
        apply(&mut engine, &Event::Slice(1, 1, Some(vec![(2, 0, false)])));
        fake.fail_next(errno);
        let error = engine.sync().unwrap_err();
        assert!(error.retryable());
        engine.sync().unwrap();
        apply(&mut engine, &Event::Slice(1, 1, Some(vec![(1, 0, false)])));
        engine.sync().unwrap();
        assert_eq!(canonical(&fake.table(Family::Ipv4, TABLE).unwrap()), canonical(&right));
    }
    fake.drop_table(Family::Ipv4, TABLE);
    engine.forget();
    engine.sync().unwrap();
    assert_eq!(canonical(&fake.table(Family::Ipv4, TABLE).unwrap()), canonical(&right));
}

#[test]
fn a_table_is_adopted_though_others_never_stop_committing() {
    let fake = FakeNft::default();
    let fill = |engine: &mut Engine| {
        for n in 0..20u8 {
            let record = service(&format!("10.96.0.{n}"), vec![port(80, 0, Protocol::Tcp)]);
            engine.model.set_service(&name(&format!("s{n}")), Some(record));
            let slice = slice(&format!("s{n}"), &[(Protocol::Tcp, 8080)], endpoints(&[(1, 0, false), (2, 0, true)]));
            engine.model.set_slice(&name(&format!("slice{n}")), Some(slice));
        }
    };
    let mut first = engine(&fake);
    fill(&mut first);
    first.sync().unwrap();
    let right = fake.table(Family::Ipv4, TABLE).unwrap();
    let mut again = engine(&fake);
    fill(&mut again);
    fake.interrupt_next(usize::MAX);
    assert_eq!(again.sync().unwrap().stats.elements, 0);
    assert_eq!(canonical(&fake.table(Family::Ipv4, TABLE).unwrap()), canonical(&right));
}

fn libc_enobufs() -> i32 {
    105
}
