//! What goes wrong beside this program: buffers that are too small, others who never stop committing, hands in
//! its table. On a real kernel.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::Protocol;
use keelson_netfilter::nft::{Batch, Change, ElementData, Family, Field, KernelNft, Monitor, Nft, SetDecl};
use support::*;

const TABLE: &str = "keelson-dataplane";
/// The smallest that the kernel gives.
const TINY: usize = 1;
/// Enough that a listing takes several reads, and that as many errors do not fit.
const SERVICES: u16 = 1_500;
/// As the issue has it.
const REPAIRED_WITHIN: Duration = Duration::from_secs(1);

/// How many times slower a translated processor may be.
fn patience() -> u32 {
    std::env::var("KEELSON_TEST_PATIENCE").ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

fn fill(engine: &mut Engine, endpoint: u8) {
    engine.model.set_node(node("192.168.7.2"));
    for n in 0..SERVICES {
        let record = service(&format!("10.96.{}.{}", n >> 8, n & 255), vec![port(80, 0, Protocol::Tcp)]);
        engine.model.set_service(&name(&format!("s{n}")), Some(record));
        let endpoints = vec![ready(&format!("10.244.1.{endpoint}"), false), ready("10.244.2.9", false)];
        let slice = slice(&format!("s{n}"), &[(Protocol::Tcp, 8080)], endpoints);
        engine.model.set_slice(&name(&format!("s{n}-1")), Some(slice));
    }
}

fn engine_on(ns: &Netns, receive_buffer: usize) -> Engine {
    ns.run(move || {
        let nft = KernelNft::open().unwrap();
        nft.set_receive_buffer(receive_buffer).unwrap();
        Engine::new("node1", settings(), vec![(Family::Ipv4, Box::new(nft) as Box<dyn Nft>)], None)
    })
}

fn listing(ns: &Netns) -> Vec<String> {
    let text = ns.cmd("nft", &["list", "table", "ip", TABLE]);
    let mut words: Vec<String> =
        text.split([' ', '\n', '\t', ',']).filter(|w| !w.is_empty()).map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn answers_that_overrun_the_socket_lead_to_a_listing_and_a_repair() {
    if skip("answers_that_overrun_the_socket_lead_to_a_listing_and_a_repair") {
        return;
    }
    let ns = Netns::new();
    let mut engine = engine_on(&ns, TINY);
    fill(&mut engine, 1);
    engine.sync().unwrap();
    // Everything that the next sync wants to delete is gone already: an error for each.
    ns.cmd("nft", &["flush", "map", "ip", TABLE, "endpoints"]);
    fill(&mut engine, 2);
    let error = engine.sync().unwrap_err();
    assert!(error.retryable(), "{error}");
    println!("the first answer: {error}");
    engine.sync().unwrap();
    let other = Netns::new();
    let mut fresh = engine_on(&other, 1 << 20);
    fill(&mut fresh, 2);
    fresh.sync().unwrap();
    assert!(listing(&ns) == listing(&other), "the repaired table differs from a fresh one");
    // Nothing of the flood is taken for an answer to what comes later.
    fill(&mut engine, 3);
    engine.sync().unwrap();
}

#[test]
fn a_table_is_adopted_while_others_keep_committing() {
    if skip("a_table_is_adopted_while_others_keep_committing") {
        return;
    }
    let ns = Netns::new();
    let mut engine = engine_on(&ns, 1 << 20);
    fill(&mut engine, 1);
    engine.sync().unwrap();
    let (stop, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (told, count) = (stop.clone(), commits.clone());
    ns.spawn(move || {
        let mut nft = KernelNft::open().unwrap();
        let mut batch = Batch::new(Family::Ipv4, "somebody-else");
        batch.add_table();
        batch.add_set(&SetDecl::set("s", &[Field::Ipv4]));
        nft.commit(&mut batch).unwrap();
        while !told.load(Ordering::Relaxed) {
            batch.add_element("s", &[10, 0, 0, 1], ElementData::None);
            nft.commit(&mut batch).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    for _ in 0..3 {
        let before = commits.load(Ordering::Relaxed);
        let mut again = engine_on(&ns, 1 << 20);
        fill(&mut again, 1);
        let report = again.sync().unwrap();
        assert_eq!(report.stats.elements, 0, "{report:?}");
        println!("adopted in {:?} under {} commits", report.took, commits.load(Ordering::Relaxed) - before);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(commits.load(Ordering::Relaxed) > 10, "nobody committed anything");
}

#[test]
fn announcements_that_overrun_the_socket_count_as_lost() {
    if skip("announcements_that_overrun_the_socket_count_as_lost") {
        return;
    }
    let ns = Netns::new();
    let mut engine = engine_on(&ns, 1 << 20);
    let change = ns.run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut monitor = Monitor::open(TABLE, Vec::new()).unwrap();
            monitor.set_receive_buffer(TINY).unwrap();
            fill(&mut engine, 1);
            engine.sync().unwrap();
            tokio::time::timeout(Duration::from_secs(5), monitor.next()).await.expect("no announcement").unwrap()
        })
    });
    assert_eq!(change, Change::Lost);
}

/// An API server with one Service, whose watches say nothing.
fn api() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    addr
}

fn answer(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request).unwrap_or(0) == 0 {
            return;
        }
        let mut header = String::new();
        while reader.read_line(&mut header).is_ok_and(|n| n > 2) {
            header.clear();
        }
        if request.contains("watch=") {
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
            continue;
        }
        let items = if request.contains("/services") {
            serde_json::json!([{
                "metadata": {"name": "web", "namespace": "default", "uid": "1", "resourceVersion": "1"},
                "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
                    "loadBalancerSourceRanges": [" 010.0.0.0/8"], "ports": [{"port": 80, "nodePort": 30080}]},
                "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.6"}]}},
            }])
        } else if request.contains("/endpointslices") {
            serde_json::json!([{
                "metadata": {"name": "web-1", "namespace": "default", "uid": "2", "resourceVersion": "1",
                    "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "ports": [{"port": 8080}],
                "endpoints": [{"addresses": ["10.244.1.2"]}, {"addresses": ["10.244.1.3"]}],
            }])
        } else {
            serde_json::json!([])
        };
        let body = serde_json::json!({"metadata": {"resourceVersion": "1"}, "items": items}).to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    }
}

fn wait_for(ns: &Netns, within: Duration, right: &dyn Fn(&[String]) -> bool) -> Option<Duration> {
    let start = Instant::now();
    while start.elapsed() < within {
        let tables = ns.cmd("nft", &["list", "tables"]);
        if tables.contains(&format!("table ip {TABLE}")) && right(&listing(ns)) {
            return Some(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// The whole program's loop, with its announcements: nobody tells it to look.
#[test]
fn hands_in_the_table_are_repaired_within_a_second() {
    if skip("hands_in_the_table_are_repaired_within_a_second") {
        return;
    }
    let ns = Netns::new();
    let stop = tokio_util::sync::CancellationToken::new();
    let told = stop.clone();
    ns.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut config = keelson_dataplane::config::default_config();
        config.hostname_override = Some("node1".to_owned());
        config.settings = settings();
        (config.healthz, config.metrics) = (None, None);
        let url = format!("http://{}", api());
        runtime.block_on(async {
            let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
            keelson_dataplane::run(config, client, told).await.unwrap();
        });
    });
    let complete =
        |words: &[String]| words.iter().any(|w| w == "10.0.0.0/8") && words.iter().any(|w| w == "pick-cluster-2");
    wait_for(&ns, Duration::from_secs(30), &complete).expect("nothing is programmed");
    // The monitor subscribes after the first sync.
    std::thread::sleep(Duration::from_secs(1));
    let right = listing(&ns);
    for harm in [
        "flush ruleset",
        "delete table ip keelson-dataplane",
        "delete element ip keelson-dataplane services { 10.96.0.10 . tcp . 80 }",
        "flush map ip keelson-dataplane endpoints",
        "flush set ip keelson-dataplane source-ranges",
        "add element ip keelson-dataplane source-ranges { 203.0.113.6 . tcp . 80 . 8.8.8.8 }",
        "flush chain ip keelson-dataplane source-ranges-check",
        "flush chain ip keelson-dataplane dispatch",
    ] {
        // On a busy machine one may be late: the best of three counts, and none may stay.
        let times: Vec<Duration> = (0..3)
            .map(|_| {
                ns.cmd("nft", &harm.split(' ').collect::<Vec<_>>());
                wait_for(&ns, Duration::from_secs(20), &|words| words == right)
                    .unwrap_or_else(|| panic!("{harm}: not repaired"))
            })
            .collect();
        println!("{harm}: {times:?}");
        assert!(times.iter().any(|t| *t <= REPAIRED_WITHIN * patience()), "{harm}: {times:?}");
    }
    stop.cancel();
}
