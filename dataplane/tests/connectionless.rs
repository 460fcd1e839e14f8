//! Conntrack entries of connectionless protocols: those that point at an endpoint which no longer
//! serves go, all others stay (spec section 2.9). On the in-memory nf_tables and a list of entries.

mod support;

use std::io;
use std::sync::{Arc, Mutex};

use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{Protocol, ServiceRecord};
use keelson_netfilter::conntrack::{Conntrack, ConntrackError, Entry, Tuple};
use keelson_netfilter::nft::{FakeNft, Family};
use support::{ip, name, node, port, ready, service, settings, slice};

const VIP: &str = "10.96.0.10";

#[derive(Clone, Default)]
struct FakeConntrack(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    failures: u32,
}

impl FakeConntrack {
    /// A flow to the Service's address that an endpoint answers.
    fn flow(&self, client_port: u16, endpoint: &str) {
        let (client, proto) = (ip("10.244.9.9"), Protocol::Udp as u8);
        let orig = Tuple { src: client, dst: ip(VIP), proto, src_port: client_port, dst_port: 53 };
        let reply = Tuple { src: ip(endpoint), dst: client, proto, src_port: 5353, dst_port: client_port };
        self.0.lock().unwrap().entries.push(Entry { orig, reply, id: None, zone: 0 });
    }

    fn endpoints(&self) -> Vec<String> {
        self.0.lock().unwrap().entries.iter().map(|e| e.reply.src.to_string()).collect()
    }
}

impl Conntrack for FakeConntrack {
    fn list(&mut self, _: Family, proto: u8, each: &mut dyn FnMut(Entry)) -> Result<(), ConntrackError> {
        let mut state = self.0.lock().unwrap();
        if state.failures > 0 {
            state.failures -= 1;
            return Err(ConntrackError { phase: "listing", source: io::Error::from_raw_os_error(105) });
        }
        state.entries.iter().filter(|e| e.orig.proto == proto).cloned().for_each(each);
        Ok(())
    }

    fn delete(&mut self, entry: &Entry) -> Result<bool, ConntrackError> {
        let entries = &mut self.0.lock().unwrap().entries;
        let before = entries.len();
        entries.retain(|e| e != entry);
        Ok(entries.len() < before)
    }
}

fn dns(sticky: bool) -> ServiceRecord {
    ServiceRecord { affinity_seconds: sticky.then_some(60), ..service(VIP, vec![port(53, 0, Protocol::Udp)]) }
}

fn set(engine: &mut Engine, sticky: bool, endpoints: &[&str]) {
    engine.model.set_service(&name("dns"), Some(dns(sticky)));
    let endpoints = endpoints.iter().map(|e| ready(e, false)).collect();
    engine.model.set_slice(&name("slice"), Some(slice("dns", &[(Protocol::Udp, 5353)], endpoints)));
}

fn start(nft: &FakeNft, conntrack: &FakeConntrack) -> Engine {
    let tables = vec![(Family::Ipv4, Box::new(nft.clone()) as _)];
    let mut engine = Engine::new("node1", settings(), tables, Some(Box::new(conntrack.clone())));
    engine.model.set_node(node("192.168.7.2"));
    engine
}

fn all() -> [&'static str; 3] {
    ["10.244.0.1", "10.244.0.2", "10.244.0.3"]
}

#[test]
fn flows_to_a_lost_endpoint_go_with_and_without_affinity() {
    for sticky in [false, true] {
        let (nft, conntrack) = (FakeNft::default(), FakeConntrack::default());
        let mut engine = start(&nft, &conntrack);
        set(&mut engine, sticky, &all());
        engine.sync().unwrap();
        all().iter().zip(1..).for_each(|(ep, client_port)| conntrack.flow(client_port, ep));
        set(&mut engine, sticky, &["10.244.0.1", "10.244.0.3"]);
        assert_eq!(engine.sync().unwrap().conntrack_deleted, 1, "affinity: {sticky}");
        assert_eq!(conntrack.endpoints(), ["10.244.0.1", "10.244.0.3"], "affinity: {sticky}");
        set(&mut engine, sticky, &["10.244.0.1", "10.244.0.3", "10.244.0.4"]);
        assert_eq!(engine.sync().unwrap().conntrack_deleted, 0, "affinity: {sticky}");
        set(&mut engine, sticky, &[]);
        engine.sync().unwrap();
        assert!(conntrack.endpoints().is_empty(), "affinity: {sticky}");
    }
}

#[test]
fn a_switch_of_the_affinity_keeps_the_flows_of_endpoints_that_stay() {
    for sticky in [false, true] {
        let (nft, conntrack) = (FakeNft::default(), FakeConntrack::default());
        let mut engine = start(&nft, &conntrack);
        set(&mut engine, sticky, &all());
        engine.sync().unwrap();
        all().iter().zip(1..).for_each(|(ep, client_port)| conntrack.flow(client_port, ep));
        set(&mut engine, !sticky, &["10.244.0.1"]);
        engine.sync().unwrap();
        assert_eq!(conntrack.endpoints(), ["10.244.0.1"], "affinity before: {sticky}");
    }
}

#[test]
fn a_restart_drops_flows_to_endpoints_lost_meanwhile_and_no_others() {
    for (before, after) in [(false, false), (true, true), (true, false)] {
        let (nft, conntrack) = (FakeNft::default(), FakeConntrack::default());
        let mut engine = start(&nft, &conntrack);
        set(&mut engine, before, &all());
        engine.sync().unwrap();
        all().iter().zip(1..).for_each(|(ep, client_port)| conntrack.flow(client_port, ep));
        let mut engine = start(&nft, &conntrack);
        set(&mut engine, before, &all());
        assert_eq!(engine.sync().unwrap().conntrack_deleted, 0, "affinity: {before}");
        let mut engine = start(&nft, &conntrack);
        set(&mut engine, after, &["10.244.0.2"]);
        engine.sync().unwrap();
        assert_eq!(conntrack.endpoints(), ["10.244.0.2"], "affinity: {before}, then {after}");
    }
}

#[test]
fn a_clean_up_that_fails_is_tried_again_and_not_for_ever() {
    let (nft, conntrack) = (FakeNft::default(), FakeConntrack::default());
    let mut engine = start(&nft, &conntrack);
    set(&mut engine, true, &all());
    engine.sync().unwrap();
    all().iter().zip(1..).for_each(|(ep, client_port)| conntrack.flow(client_port, ep));
    conntrack.0.lock().unwrap().failures = 2;
    set(&mut engine, true, &["10.244.0.1"]);
    assert!(engine.sync().unwrap().conntrack_pending);
    // The endpoint that comes back meanwhile keeps its flow.
    set(&mut engine, true, &["10.244.0.1", "10.244.0.3"]);
    assert!(engine.sync().unwrap().conntrack_pending);
    let report = engine.sync().unwrap();
    assert_eq!((report.conntrack_deleted, report.conntrack_pending), (1, false));
    assert_eq!(conntrack.endpoints(), ["10.244.0.1", "10.244.0.3"]);
    conntrack.0.lock().unwrap().failures = u32::MAX;
    set(&mut engine, true, &["10.244.0.3"]);
    let attempts = (0..100).take_while(|_| engine.sync().unwrap().conntrack_pending).count();
    assert!((1..10).contains(&attempts), "{attempts}");
}
