//! From N to M endpoints under a stream of new flows, on the kernel of this machine: no packet may pass untranslated, and none may be dropped
//! because a list was found shorter than its verdict said.
//!
//! Raw transactions that shrink verdict and list together let some through, and a key that is deleted and added in one transaction may be
//! missed by kernels before about 6.17 (spec section 2): so the suite `vm` runs this program on older kernels too.

mod support;

use std::time::{Duration, Instant};

use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{EndpointRecord, Protocol, ServiceRecord};
use support::flows::{Counts, PORT, SETTLE, Stream, TARGET, prepare};
use support::*;

const ADDRESS: &str = "10.96.0.10";
/// How long endpoints change under the stream, and how much longer where that is too slow to show anything: a translated machine on a busy
/// host makes 3 changes a second.
const TIME: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between changes: some packets find each state.
const PAUSE: Duration = Duration::from_millis(2);
/// Fewer packets or changes show nothing.
const LEAST_PACKETS: u64 = 5_000;
const LEAST_CHANGES: u32 = 100;
/// Lists of endpoints by their last number: growing, shrinking, by one and by several, members replaced, order changed.
const LISTS: &[&[u8]] = &[
    &[1, 2],
    &[1, 2, 3],
    &[3],
    &[4],
    &[4, 3],
    &[3, 4],
    &[1, 2, 3, 4, 5, 6, 7, 8],
    &[8, 7],
    &[7],
    &[1, 2, 3, 7],
    &[4, 5, 6],
    &[6],
    &[1],
];

fn endpoints(list: &[u8]) -> Vec<EndpointRecord> {
    list.iter().map(|last| ready(&format!("10.244.2.{last}"), false)).collect()
}

/// The dataplane of a node, with one Service without endpoints. `affinity`: ClientIP.
fn dataplane(node: &Netns, affinity: bool) -> Engine {
    let mut engine = node.engine(settings());
    engine.model.set_node(support::node("192.168.7.2"));
    let mut service = service(ADDRESS, vec![port(PORT, 0, Protocol::Udp)]);
    service.affinity_seconds = affinity.then_some(10_800);
    engine.model.set_service(&name("dns"), Some(service));
    engine
}

fn change(engine: &mut Engine, list: &[u8]) {
    let slice = slice("dns", &[(Protocol::Udp, TARGET)], endpoints(list));
    engine.model.set_slice(&name("dns-1"), Some(slice));
    engine.sync().expect("sync");
}

/// A packet that began under the old rules and looks a verdict up after the commit is sent to the new verdict's chain, and finds it as it was
/// under the old rules: empty, if it was made by the same transaction.
#[test]
fn a_chain_is_complete_before_a_verdict_leads_to_it() {
    if skip("a_chain_is_complete_before_a_verdict_leads_to_it") {
        return;
    }
    for affinity in [false, true] {
        let (node, client) = prepare(ADDRESS);
        let mut engine = dataplane(&node, affinity);
        change(&mut engine, &[1]);
        let before = Counts::read(&node);
        let stream = Stream::start(&client, &[ADDRESS], Duration::ZERO);
        let (begun, mut changes) = (Instant::now(), 0);
        // Each number of endpoints once: every change needs a chain that is not there yet.
        for count in 2..=250_u8 {
            change(&mut engine, &(1..=count).collect::<Vec<_>>());
            changes += 1;
            std::thread::sleep(PAUSE);
            if begun.elapsed() > LIMIT {
                break;
            }
        }
        stream.end();
        let counts = Counts::read(&node).since(before);
        println!("affinity {affinity}: {changes} new chains under {} new flows: {counts:?}", counts.sent);
        assert_eq!(
            (counts.untranslated, counts.dropped()),
            (0, 0),
            "affinity {affinity}: {changes} changes, {counts:?}"
        );
        assert!(counts.sent >= LEAST_PACKETS && changes >= LEAST_CHANGES, "{changes} changes, {counts:?}");
    }
}

/// A packet that was led to a second look-up by the verdict of before finds it there, whatever leads to it now: policies and source
/// ranges that come and go.
#[test]
fn a_second_look_up_outlives_what_leads_to_it() {
    if skip("a_second_look_up_outlives_what_leads_to_it") {
        return;
    }
    let (node, client) = prepare(ADDRESS);
    let mut engine = node.engine(settings());
    engine.model.set_node(support::node("192.168.7.2"));
    engine.model.set_slice(&name("dns-1"), Some(slice("dns", &[(Protocol::Udp, TARGET)], endpoints(&[1, 2]))));
    let plain = ServiceRecord {
        load_balancer_ips: vec![ip(ADDRESS)],
        ..service("10.96.0.11", vec![port(PORT, 0, Protocol::Udp)])
    };
    let with = |local, ranges: &[&str]| ServiceRecord {
        external_local: local,
        source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..plain.clone()
    };
    let pods = "10.244.0.0/16";
    let records = [
        with(false, &[]),
        with(true, &[]),
        with(false, &[pods]),
        with(true, &[pods, "198.51.100.0/24"]),
        with(true, &[pods]),
    ];
    let mut set = |record: &ServiceRecord| {
        engine.model.set_service(&name("dns"), Some(record.clone()));
        engine.sync().expect("sync");
    };
    set(&records[0]);
    let before = Counts::read(&node);
    let stream = Stream::start(&client, &[ADDRESS], Duration::ZERO);
    let (begun, mut changes) = (Instant::now(), 0);
    while begun.elapsed() < TIME || (changes < LEAST_CHANGES && begun.elapsed() < LIMIT) {
        for record in &records {
            set(record);
            changes += 1;
            std::thread::sleep(PAUSE);
        }
    }
    stream.end();
    let counts = Counts::read(&node).since(before);
    println!(
        "{changes} changes of policies under {} new flows: {counts:?}, dropped: {}",
        counts.sent,
        counts.dropped()
    );
    assert_eq!((counts.untranslated, counts.dropped()), (0, 0), "{changes} changes, {counts:?}");
    assert!(counts.sent >= LEAST_PACKETS && changes >= LEAST_CHANGES, "{changes} changes, {counts:?}");
}

#[test]
fn no_new_flow_is_lost_or_untranslated_while_endpoints_change() {
    if skip("no_new_flow_is_lost_or_untranslated_while_endpoints_change") {
        return;
    }
    let (node, client) = prepare(ADDRESS);
    let mut engine = dataplane(&node, false);
    change(&mut engine, &[1]);

    let before = Counts::read(&node);
    let stream = Stream::start(&client, &[ADDRESS], Duration::ZERO);
    let (begun, mut changes) = (Instant::now(), 0);
    while begun.elapsed() < TIME || (changes < LEAST_CHANGES && begun.elapsed() < LIMIT) {
        for list in LISTS {
            change(&mut engine, list);
            changes += 1;
            std::thread::sleep(PAUSE);
        }
    }
    stream.end();
    let counts = Counts::read(&node).since(before);
    println!("{changes} changes under {} new flows: {counts:?}, dropped: {}", counts.sent, counts.dropped());
    assert_eq!((counts.untranslated, counts.dropped()), (0, 0), "{changes} changes, {counts:?}");
    assert!(counts.sent >= LEAST_PACKETS && changes >= LEAST_CHANGES, "{changes} changes, {counts:?}");

    // The counters see what they are for: a list that loses its elements before the verdict, and a verdict that goes.
    for (map, untranslated) in [("endpoints", false), ("services", true)] {
        let before = Counts::read(&node);
        let stream = Stream::start(&client, &[ADDRESS], Duration::ZERO);
        node.cmd("nft", &["flush", "map", "ip", "keelson-dataplane", map]);
        std::thread::sleep(SETTLE);
        stream.end();
        let counts = Counts::read(&node).since(before);
        let seen = if untranslated { counts.untranslated } else { counts.dropped() };
        assert!(seen > 0, "without {map}: {counts:?}");
    }
}
