//! Real packets through a real kernel: a client pod, two backends (one of them "on another node"),
//! the node and an external host, each a namespace of this test.
//!
//! ```text
//! client 10.244.1.2 ─┐
//! backend b 10.244.1.6 ─┤ node 192.168.7.2 ─ external 192.168.7.1
//! backend c 10.244.2.2 ─┘
//! ```
//! The backends answer with their name and the source address they see.

mod support;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keelson_dataplane::engine::Engine;
use keelson_dataplane::model::types::{EndpointRecord, Protocol, ServiceRecord};
use support::*;

const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the stream of connections lasts at least, and at most where a machine is slow.
const TIME: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(60);
/// What the stream has to have seen.
const LEAST_CONNECTIONS: u32 = 500;
const LEAST_CHANGES: u32 = 100;

struct Lab {
    node: Netns,
    client: Netns,
    b: Netns,
    c: Netns,
    external: Netns,
    engine: Engine,
}

fn serve(ns: &Netns, name: &'static str) {
    ns.spawn(move || {
        let listener = TcpListener::bind("0.0.0.0:8080").expect("listen");
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let peer = stream.peer_addr().expect("peer").ip();
                let mut out = stream.try_clone().expect("clone");
                let _ = writeln!(out, "{name} {peer}");
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = writeln!(out, "{line}");
                }
            });
        }
    });
    ns.spawn(move || {
        let socket = UdpSocket::bind("0.0.0.0:5353").expect("bind");
        let mut buf = [0; 64];
        while let Ok((_, peer)) = socket.recv_from(&mut buf) {
            let _ = socket.send_to(format!("{name} {}", peer.ip()).as_bytes(), peer);
        }
    });
}

impl Lab {
    fn new() -> Self {
        let (node, client, b, c, external) = (Netns::new(), Netns::new(), Netns::new(), Netns::new(), Netns::new());
        for (i, (pod, subnet)) in [(&client, "10.244.1.0"), (&b, "10.244.1.4"), (&c, "10.244.2.0")].iter().enumerate() {
            let (prefix, last) = subnet.rsplit_once('.').unwrap();
            let last: u8 = last.parse().unwrap();
            let (gateway, addr) = (format!("{prefix}.{}", last + 1), format!("{prefix}.{}/30", last + 2));
            node.connect(&format!("pod{i}"), &format!("{gateway}/30"), pod, "eth0", &addr);
            pod.ip(&format!("route add default via {gateway}"));
        }
        node.connect("up0", "192.168.7.2/24", &external, "eth0", "192.168.7.1/24");
        node.ip("route add default via 192.168.7.1");
        external.ip("route add 203.0.113.0/24 via 192.168.7.2");
        external.ip("route add 10.96.0.0/16 via 192.168.7.2");
        node.sysctl("net/ipv4/ip_forward", "1");
        serve(&b, "b");
        serve(&c, "c");
        let mut engine = node.engine(settings());
        engine.model.set_node(support::node("192.168.7.2"));
        let lab = Self { node, client, b, c, external, engine };
        // The servers listen when the first connection is taken.
        lab.client.run(|| {
            for addr in ["10.244.1.6:8080", "10.244.2.2:8080"] {
                let until = Instant::now() + TIMEOUT;
                while get(addr).is_err() {
                    assert!(Instant::now() < until, "{addr} does not answer");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        lab
    }

    fn sync(&mut self) {
        self.engine.sync().expect("sync");
    }

    fn set(&mut self, service: &str, record: ServiceRecord, endpoints: Vec<EndpointRecord>) {
        self.engine.model.set_service(&name(service), Some(record));
        self.endpoints(service, endpoints);
    }

    fn endpoints(&mut self, service: &str, endpoints: Vec<EndpointRecord>) {
        let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)];
        self.engine.model.set_slice(&name(&format!("{service}-1")), Some(slice(service, &ports, endpoints)));
        self.sync();
    }
}

fn b() -> EndpointRecord {
    ready("10.244.1.6", true)
}

fn c() -> EndpointRecord {
    ready("10.244.2.2", false)
}

fn both() -> Vec<keelson_dataplane::model::types::ServicePort> {
    vec![port(80, 30080, Protocol::Tcp), port(53, 30053, Protocol::Udp)]
}

fn open(addr: &str) -> io::Result<(BufReader<TcpStream>, String)> {
    let addr: SocketAddr = addr.parse().expect("address");
    let stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok((reader, line.trim().to_owned()))
}

fn get(addr: &str) -> io::Result<String> {
    open(addr).map(|(_, line)| line)
}

fn ask(socket: &UdpSocket, addr: &str) -> io::Result<String> {
    // As long as a busy machine may need; a refusal comes at once.
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    socket.send_to(b"?", addr)?;
    let mut buf = [0; 64];
    let (n, _) = socket.recv_from(&mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
}

/// A connection from a namespace: the backend's line, or the kind of error.
fn from(ns: &Netns, addr: &'static str) -> Result<String, io::ErrorKind> {
    ns.run(move || get(addr).map_err(|e| e.kind()))
}

fn udp_from(ns: &Netns, addr: &'static str) -> Result<String, io::ErrorKind> {
    ns.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(|e| e.kind())?;
        ask(&socket, addr).map_err(|e| e.kind())
    })
}

#[test]
fn every_class_arrives_with_the_right_source() {
    if skip("every_class_arrives_with_the_right_source") {
        return;
    }
    let mut lab = Lab::new();
    let mut web = service("10.96.0.10", both());
    web.external_ips = vec![ip("203.0.113.5")];
    lab.set("web", web.clone(), vec![c()]);
    // Cluster class: a pod keeps its address; the node itself and the outside do not.
    assert_eq!(from(&lab.client, "10.96.0.10:80"), Ok("c 10.244.1.2".into()));
    assert_eq!(udp_from(&lab.client, "10.96.0.10:53"), Ok("c 10.244.1.2".into()));
    assert_eq!(from(&lab.node, "10.96.0.10:80"), Ok("c 10.244.2.1".into()));
    assert_eq!(from(&lab.external, "10.96.0.10:80"), Ok("c 10.244.2.1".into()));
    // ext-cluster: always masqueraded.
    for addr in ["192.168.7.2:30080", "203.0.113.5:80"] {
        assert_eq!(from(&lab.external, addr), Ok("c 10.244.2.1".into()), "{addr}");
        assert_eq!(from(&lab.client, addr), Ok("c 10.244.2.1".into()), "{addr}");
        assert_eq!(from(&lab.node, addr), Ok("c 10.244.2.1".into()), "{addr}");
    }
    assert_eq!(udp_from(&lab.external, "192.168.7.2:30053"), Ok("c 10.244.2.1".into()));
    // Node ports answer on the primary address alone, and never on loopback.
    assert_eq!(from(&lab.client, "10.244.1.1:30080"), Err(io::ErrorKind::ConnectionRefused));
    assert_eq!(from(&lab.node, "127.0.0.1:30080"), Err(io::ErrorKind::ConnectionRefused));
    // Hairpin: a pod that reaches itself.
    lab.endpoints("web", vec![b()]);
    assert_eq!(from(&lab.b, "10.96.0.10:80"), Ok("b 10.244.1.5".into()));
    // The mark's bit does not stay on the packet, and other bits do.
    assert_eq!(from(&lab.client, "10.96.0.10:80"), Ok("b 10.244.1.2".into()));
}

#[test]
fn local_policy_keeps_the_source_and_stays_on_the_node() {
    if skip("local_policy_keeps_the_source_and_stays_on_the_node") {
        return;
    }
    let mut lab = Lab::new();
    let mut web = service("10.96.0.10", both());
    web.external_ips = vec![ip("203.0.113.5")];
    web.external_local = true;
    lab.set("web", web, vec![b(), c()]);
    for addr in ["192.168.7.2:30080", "203.0.113.5:80"] {
        for _ in 0..10 {
            assert_eq!(from(&lab.external, addr), Ok("b 192.168.7.1".into()), "{addr}");
        }
        // From inside: all endpoints. A pod keeps its address, the node is masqueraded.
        let inside: std::collections::BTreeSet<_> = (0..30).map(|_| from(&lab.client, addr).unwrap()).collect();
        assert_eq!(inside.into_iter().collect::<Vec<_>>(), ["b 10.244.1.2", "c 10.244.1.2"], "{addr}");
        let node: std::collections::BTreeSet<_> = (0..30).map(|_| from(&lab.node, addr).unwrap()).collect();
        assert_eq!(node.into_iter().collect::<Vec<_>>(), ["b 10.244.1.5", "c 10.244.2.1"], "{addr}");
    }
    // Endpoints elsewhere only: the outside is dropped, the inside still works.
    lab.endpoints("web", vec![c()]);
    assert_eq!(from(&lab.external, "203.0.113.5:80"), Err(io::ErrorKind::TimedOut));
    assert_eq!(from(&lab.external, "192.168.7.2:30080"), Err(io::ErrorKind::TimedOut));
    assert_eq!(from(&lab.client, "203.0.113.5:80"), Ok("c 10.244.1.2".into()));
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    if skip("what_cannot_be_served_is_refused_at_once") {
        return;
    }
    let mut lab = Lab::new();
    let mut web = service("10.96.0.10", both());
    web.external_ips = vec![ip("203.0.113.5")];
    lab.set("web", web, vec![]);
    let refused = Err(io::ErrorKind::ConnectionRefused);
    let start = Instant::now();
    for (ns, who) in [(&lab.client, "pod"), (&lab.node, "node"), (&lab.external, "external")] {
        for addr in ["10.96.0.10:80", "192.168.7.2:30080", "203.0.113.5:80"] {
            assert_eq!(from(ns, addr), refused, "{who} to {addr}");
        }
    }
    // UDP: ICMP port unreachable, which a connected socket reports.
    let udp = lab.client.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect("10.96.0.10:53").unwrap();
        socket.send(b"?").unwrap();
        socket.recv(&mut [0; 8]).unwrap_err().kind()
    });
    assert_eq!(udp, io::ErrorKind::ConnectionRefused);
    assert!(start.elapsed() < Duration::from_secs(1), "refusals took {:?}", start.elapsed());
    // An unknown port of a cluster address is refused, an unallocated address dropped.
    assert_eq!(from(&lab.client, "10.96.0.10:81"), refused);
    assert_eq!(from(&lab.node, "10.96.0.10:81"), refused);
    assert_eq!(from(&lab.client, "10.96.0.99:80"), Err(io::ErrorKind::TimedOut));
    // With an endpoint it works from the next packet on.
    lab.endpoints("web", vec![b()]);
    assert_eq!(from(&lab.client, "10.96.0.10:80"), Ok("b 10.244.1.2".into()));
}

#[test]
fn connections_spread_evenly() {
    if skip("connections_spread_evenly") {
        return;
    }
    let mut lab = Lab::new();
    lab.set("web", service("10.96.0.10", both()), vec![b(), c()]);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..400 {
        *counts.entry(from(&lab.client, "10.96.0.10:80").unwrap()).or_default() += 1;
    }
    // 400 fair coin throws leave 140 to 260 with a probability beyond 1 - 1e-8.
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(counts.values().all(|n| (140..=260).contains(n)), "{counts:?}");
}

#[test]
fn scaling_under_a_stream_of_connections_loses_none() {
    if skip("scaling_under_a_stream_of_connections_loses_none") {
        return;
    }
    let mut lab = Lab::new();
    lab.set("web", service("10.96.0.10", both()), vec![b(), c()]);
    let (stop, done, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    for _ in 0..2 {
        let (stop, done, failed) = (stop.clone(), done.clone(), failed.clone());
        lab.client.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match get("10.96.0.10:80") {
                    Ok(_) => done.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        eprintln!("lost: {error}");
                        failed.fetch_add(1, Ordering::Relaxed)
                    }
                };
            }
        });
    }
    let (begun, mut changes) = (Instant::now(), 0);
    // On a translated machine there are not enough of either after a few seconds.
    let few = |changes| done.load(Ordering::Relaxed) <= LEAST_CONNECTIONS || changes <= LEAST_CHANGES;
    while begun.elapsed() < TIME || (few(changes) && begun.elapsed() < LIMIT) {
        for endpoints in [vec![b()], vec![b(), c()], vec![c()], vec![c(), b()]] {
            lab.endpoints("web", endpoints);
            changes += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (done, failed) = (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    println!("{changes} changes under {done} connections, {failed} lost");
    assert_eq!(failed, 0);
    assert!(done > LEAST_CONNECTIONS && changes > LEAST_CHANGES, "{done} connections, {changes} changes");
}

#[test]
fn a_restart_adopts_and_open_connections_survive() {
    if skip("a_restart_adopts_and_open_connections_survive") {
        return;
    }
    let mut lab = Lab::new();
    let web = service("10.96.0.10", both());
    lab.set("web", web.clone(), vec![b(), c()]);
    let (tcp, first) = lab.client.run(|| open("10.96.0.10:80")).expect("connect");
    let (socket, udp_first) = lab.client.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:40000").unwrap();
        let answer = ask(&socket, "10.96.0.10:53").unwrap();
        (socket, answer)
    });
    // A new engine, as after a restart of the program, with the same objects in another order.
    let mut second = lab.node.engine(settings());
    second.model.set_node(node("192.168.7.2"));
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)];
    second.model.set_slice(&name("web-1"), Some(slice("web", &ports, vec![c(), b()])));
    second.model.set_service(&name("web"), Some(web));
    let report = second.sync().unwrap();
    assert_eq!((report.stats.elements, report.conntrack_deleted), (0, 0), "{report:?}");
    lab.engine = second;
    let echoed = lab.client.run(move || {
        let mut tcp = tcp;
        tcp.get_mut().write_all(b"still here\n").unwrap();
        let mut line = String::new();
        tcp.read_line(&mut line).unwrap();
        line
    });
    assert_eq!(echoed, "still here\n", "connection to {first}");
    let udp_again = lab.client.run(move || ask(&socket, "10.96.0.10:53").unwrap());
    assert_eq!(udp_again, udp_first);
}

#[test]
fn udp_flows_leave_an_endpoint_that_is_gone() {
    if skip("udp_flows_leave_an_endpoint_that_is_gone") {
        return;
    }
    let mut lab = Lab::new();
    lab.set("dns", service("10.96.0.10", both()), vec![b()]);
    let socket = Arc::new(lab.client.run(|| UdpSocket::bind("0.0.0.0:40001").unwrap()));
    let outside = Arc::new(lab.external.run(|| UdpSocket::bind("0.0.0.0:40001").unwrap()));
    let again = |lab: &Lab| {
        let (socket, outside) = (socket.clone(), outside.clone());
        let inside = lab.client.run(move || ask(&socket, "10.96.0.10:53").map_err(|e| e.kind()));
        let outside = lab.external.run(move || ask(&outside, "192.168.7.2:30053").map_err(|e| e.kind()));
        (inside.map(|a| a[..1].to_owned()), outside.map(|a| a[..1].to_owned()))
    };
    assert_eq!(again(&lab), (Ok("b".into()), Ok("b".into())));
    lab.endpoints("dns", vec![c()]);
    assert_eq!(again(&lab), (Ok("c".into()), Ok("c".into())));
    // At zero endpoints, too: nothing stays behind that would blackhole the flow later.
    lab.endpoints("dns", vec![]);
    assert!(again(&lab).0.is_err());
    lab.endpoints("dns", vec![b()]);
    assert_eq!(again(&lab), (Ok("b".into()), Ok("b".into())));
}

#[test]
fn clients_stick_and_stick_anew() {
    if skip("clients_stick_and_stick_anew") {
        return;
    }
    let mut lab = Lab::new();
    let mut web = service("10.96.0.10", both());
    web.affinity_seconds = Some(60);
    web.external_ips = vec![ip("203.0.113.5")];
    lab.set("web", web.clone(), vec![b(), c()]);
    let first = from(&lab.client, "10.96.0.10:80").unwrap();
    for _ in 0..30 {
        assert_eq!(from(&lab.client, "10.96.0.10:80").unwrap(), first);
    }
    // Shared by the addresses of the service port.
    assert_eq!(from(&lab.client, "203.0.113.5:80").unwrap()[..1], first[..1]);
    // A restart keeps it.
    lab.engine.forget();
    lab.sync();
    for _ in 0..10 {
        assert_eq!(from(&lab.client, "10.96.0.10:80").unwrap(), first);
    }
    // The endpoint goes: the client sticks to the other one, and stays there when it comes back.
    let (gone, left) = if first.starts_with('b') { (b(), c()) } else { (c(), b()) };
    lab.endpoints("web", vec![left]);
    let second = from(&lab.client, "10.96.0.10:80").unwrap();
    assert_ne!(second, first);
    lab.endpoints("web", vec![left, gone]);
    for _ in 0..30 {
        assert_eq!(from(&lab.client, "10.96.0.10:80").unwrap(), second);
    }
    // Affinity off: chains and sets go.
    web.affinity_seconds = None;
    lab.set("web", web, vec![b(), c()]);
    assert!(!lab.node.cmd("nft", &["list", "ruleset"]).contains("affinity-"));
    let _ = &lab.c;
}
