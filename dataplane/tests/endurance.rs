//! Hours of change in minutes: Services and endpoints come and go under a stream of new flows and real connections, on this machine's
//! kernel. Nothing may be lost, nothing may grow, and at the end the kernel must hold what a fresh start would write.
//!
//! A few seconds by default; `KEELSON_ENDURANCE_SECONDS=1800` for the long run, which also asks for a million flows.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keelson_dataplane::diff::diff;
use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{EndpointRecord, Protocol, ServiceRecord, SliceRecord};
use keelson_dataplane::nftables::layout::TABLE;
use keelson_netfilter::nft::{FakeNft, Family as NftFamily, KernelNft, Nft};
use support::flows::{Counts, PORT, Stream, TARGET, prepare};
use support::*;

/// Services that are there throughout, with at least one endpoint at any time.
const STEADY: [&str; 4] = ["10.96.0.10", "10.96.0.11", "10.96.0.12", "10.96.0.13"];
/// Services that come and go beside them.
const OTHERS: u8 = 40;
/// Endpoints that serve, by their last number.
const ENDPOINTS: u8 = 12;
/// Changes per second; bounded, so that a slow machine makes fewer.
const PACE: Duration = Duration::from_millis(5);
/// Between turns of new flows, so that changes have a processor too.
const FLOW_PAUSE: Duration = Duration::from_micros(500);
/// Between a client's connections.
const CONNECTION_PAUSE: Duration = Duration::from_millis(15);
/// What the program may have grown by since it was warm: what the allocator keeps.
const GROWTH_KIB: u64 = 8 * 1024;
/// The long run has to have seen as many new flows.
const LONG: Duration = Duration::from_secs(1800);
const MILLION: u64 = 1_000_000;

fn seconds() -> u64 {
    std::env::var("KEELSON_ENDURANCE_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6)
}

/// Numbers that look random and are the same each time (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

/// The objects as the API server would have them.
#[derive(Default)]
struct Objects {
    services: BTreeMap<String, ServiceRecord>,
    slices: BTreeMap<String, SliceRecord>,
}

impl Objects {
    fn feed(&self, engine: &mut Engine) {
        engine.model.set_node(node("192.168.7.2"));
        for (at, service) in &self.services {
            engine.model.set_service(&name(at), Some(service.clone()));
        }
        for (at, slice) in &self.slices {
            engine.model.set_slice(&name(&format!("{at}-1")), Some(slice.clone()));
        }
    }

    fn set_slice(&mut self, engine: &mut Engine, at: &str, endpoints: Vec<EndpointRecord>) {
        let slice = slice(at, &[(Protocol::Tcp, 8080), (Protocol::Udp, TARGET)], endpoints);
        engine.model.set_slice(&name(&format!("{at}-1")), Some(slice.clone()));
        self.slices.insert(at.to_owned(), slice);
    }

    fn set_service(&mut self, engine: &mut Engine, at: &str, record: Option<ServiceRecord>) {
        engine.model.set_service(&name(at), record.clone());
        match record {
            Some(record) => self.services.insert(at.to_owned(), record),
            None => self.services.remove(at),
        };
    }
}

fn endpoints(dice: &mut Dice, least: u64) -> Vec<EndpointRecord> {
    let count = least + dice.below(u64::from(ENDPOINTS) + 1 - least);
    let first = dice.below(u64::from(ENDPOINTS));
    let number = |n| 2 + ((first + n) % u64::from(ENDPOINTS));
    (0..count).map(|n| ready(&format!("10.244.2.{}", number(n)), false)).collect()
}

fn ports(node_port: u16) -> Vec<keelson_dataplane::model::types::ServicePort> {
    vec![port(80, node_port, Protocol::Tcp), port(PORT, 0, Protocol::Udp)]
}

/// One change of a Service that may come and go, in all that a Service can have.
fn other(dice: &mut Dice, number: u8) -> Option<ServiceRecord> {
    if dice.below(4) == 0 {
        return None;
    }
    let node_port = if dice.below(2) == 0 { 0 } else { 30_000 + u16::from(number) };
    Some(ServiceRecord {
        external_ips: (0..dice.below(2)).map(|_| ip(&format!("203.0.113.{number}"))).collect(),
        load_balancer_ips: (0..dice.below(2)).map(|_| ip(&format!("203.0.114.{number}"))).collect(),
        source_ranges: (0..dice.below(3)).map(|n| format!("192.168.{n}.0/24").parse().expect("range")).collect(),
        external_local: dice.below(2) == 0,
        internal_local: dice.below(4) == 0,
        affinity_seconds: (dice.below(4) == 0).then_some(60),
        ..service(&format!("10.96.1.{number}"), ports(node_port))
    })
}

/// Servers on all endpoints.
fn backend(node: &Netns) -> Netns {
    let backend = Netns::new();
    node.connect("pod1", "10.244.2.1/24", &backend, "eth0", "10.244.2.2/24");
    for last in 3..2 + ENDPOINTS {
        backend.ip(&format!("addr add 10.244.2.{last}/24 dev eth0"));
    }
    backend.ip("route add default via 10.244.2.1");
    backend.spawn(|| {
        let listener = TcpListener::bind("0.0.0.0:8080").expect("listen");
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"here\n");
        }
    });
    backend
}

/// Connects again and again; counts what was answered and what was not.
fn connect(client: &Netns, stop: &Arc<AtomicBool>) -> (Arc<AtomicU32>, Arc<AtomicU32>) {
    let (done, failed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (stop, counts) = (stop.clone(), (done.clone(), failed.clone()));
    client.spawn(move || {
        let mut turn = 0;
        while !stop.load(Ordering::Relaxed) {
            let to: SocketAddr = format!("{}:80", STEADY[turn % STEADY.len()]).parse().expect("address");
            turn += 1;
            let answer = TcpStream::connect_timeout(&to, Duration::from_secs(10)).and_then(|stream| {
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                let mut line = String::new();
                BufReader::new(stream).read_line(&mut line).map(|_| line)
            });
            match answer {
                Ok(line) if line == "here\n" => counts.0.fetch_add(1, Ordering::Relaxed),
                other => {
                    eprintln!("connection {turn} to {to}: {other:?}");
                    counts.1.fetch_add(1, Ordering::Relaxed)
                }
            };
            std::thread::sleep(CONNECTION_PAUSE);
        }
    });
    (done, failed)
}

/// What a fresh start would write against what the kernel holds.
fn differences(machine: &Netns, objects: &Objects) -> Vec<String> {
    let fake = FakeNft::default();
    let tables: Vec<(NftFamily, Box<dyn Nft>)> = vec![(NftFamily::Ipv4, Box::new(fake.clone()))];
    let mut fresh = Engine::new("node1", settings(), tables, None);
    objects.feed(&mut fresh);
    fresh.sync().expect("sync in memory");
    let wanted = fake.table(NftFamily::Ipv4, TABLE).expect("table");
    let held =
        machine.run(|| KernelNft::open().expect("nft").dump(NftFamily::Ipv4, TABLE).expect("dump").expect("table"));
    diff(NftFamily::Ipv4, &wanted, &held, &BTreeMap::new())
}

#[test]
fn nothing_is_lost_and_nothing_grows_under_churn() {
    if skip("nothing_is_lost_and_nothing_grows_under_churn") {
        return;
    }
    let time = Duration::from_secs(seconds());
    let (machine, client) = prepare("10.96.0.0/24");
    let _backend = backend(&machine);
    let mut engine = machine.engine(settings());
    let (mut objects, mut dice) = (Objects::default(), Dice(0x9e37_79b9_7f4a_7c15));
    for address in STEADY {
        let sticky = (address == STEADY[3]).then_some(10_800);
        let record = ServiceRecord { affinity_seconds: sticky, ..service(address, ports(0)) };
        objects.set_service(&mut engine, address, Some(record));
        objects.set_slice(&mut engine, address, endpoints(&mut dice, 1));
    }
    objects.feed(&mut engine);
    engine.sync().expect("sync");

    let before = Counts::read(&machine);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2).map(|_| connect(&client, &stop)).collect();
    let stream = Stream::start(&client, &STEADY, FLOW_PAUSE);
    let (begun, mut changes, mut warm) = (Instant::now(), 0_u64, None);
    while begun.elapsed() < time {
        let next = Instant::now() + PACE;
        if dice.below(2) == 0 {
            let address = STEADY[dice.below(STEADY.len() as u64) as usize];
            let list = endpoints(&mut dice, 1);
            objects.set_slice(&mut engine, address, list);
        } else {
            let number = 1 + dice.below(u64::from(OTHERS)) as u8;
            let at = format!("other-{number}");
            if dice.below(2) == 0 {
                let record = other(&mut dice, number);
                objects.set_service(&mut engine, &at, record);
            } else {
                let list = endpoints(&mut dice, 0);
                objects.set_slice(&mut engine, &at, list);
            }
        }
        engine.sync().expect("sync");
        changes += 1;
        if warm.is_none() && begun.elapsed() > time / 5 {
            warm = Some(rss_kib());
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let grown = rss_kib().saturating_sub(warm.expect("a fifth of the time has passed"));
    stream.end();
    stop.store(true, Ordering::Relaxed);
    let counts = Counts::read(&machine).since(before);
    let sum = |of: fn(&(Arc<AtomicU32>, Arc<AtomicU32>)) -> u32| clients.iter().map(of).sum::<u32>();
    let (done, failed) = (sum(|c| c.0.load(Ordering::Relaxed)), sum(|c| c.1.load(Ordering::Relaxed)));
    println!(
        "{changes} changes in {} s under {} new flows and {done} connections ({failed} failed): {counts:?}, dropped {}; grown by {grown} KiB",
        time.as_secs(),
        counts.sent,
        counts.dropped()
    );
    assert_eq!((counts.untranslated, counts.dropped(), failed), (0, 0, 0), "{counts:?}");
    assert!(done > 0 && changes > time.as_secs() * 2, "{changes} changes, {done} connections");
    assert!(time < LONG || counts.sent >= MILLION, "{counts:?}");
    assert!(grown < GROWTH_KIB, "grown by {grown} KiB in {changes} changes");
    assert_eq!(differences(&machine, &objects), Vec::<String>::new());
    // The same by a program that starts now: nothing is written again.
    let mut second = machine.engine(settings());
    objects.feed(&mut second);
    let report = second.sync().expect("sync");
    assert_eq!(report.stats.elements, 0, "{report:?}");
}
