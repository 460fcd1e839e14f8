//! Real packets through a real kernel, each case in both families: from here to there arrives at X with source Y.

mod cases;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use Origin::{Client, External, Node};
use cases::*;
use keelson_dataplane::engine::NodePortAddresses;
use keelson_dataplane::model::types::{NodeRecord, ServiceRecord};
use support::lab::*;
use support::*;

/// How long the stream of connections lasts at least, and at most where a machine is slow.
const TIME: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(120);
/// What the stream has to have seen.
const LEAST_CONNECTIONS: u32 = 500;
const LEAST_CHANGES: u32 = 100;
/// Connections after which both of two endpoints have been seen: the odds against it are 1 in 5e8.
const BOTH_SEEN: usize = 30;

use Seen::Masqueraded;

/// Runs a table in both families; TCP and, where it is served, UDP.
fn check(lab: &Lab, what: &str, cases: &[(Origin, To, Then)]) {
    for a in BOTH {
        for (from, to, then) in cases {
            let context = format!("{what}, {:?}: {from:?} to {to:?}", a.family);
            let (addr, port) = (to.addr(a), to.port(80, 30080));
            let tcp = |timeout| lab.tcp(*from, addr, port, timeout);
            let udp = || lab.udp(*from, addr, to.port(53, 30053), TIMEOUT);
            match then {
                Then::B(seen) | Then::C(seen) => {
                    let backend = if matches!(then, Then::B(_)) { 'b' } else { 'c' };
                    let expected = Ok(line(a, backend, *seen, *from));
                    assert_eq!((tcp(TIMEOUT), udp()), (expected.clone(), expected), "{context}");
                }
                Then::Either(seen) => {
                    let expected: BTreeSet<_> = ['b', 'c'].map(|b| Ok(line(a, b, *seen, *from))).into();
                    let got: BTreeSet<_> = (0..BOTH_SEEN).map(|_| tcp(TIMEOUT)).collect();
                    assert_eq!(got, expected, "{context}");
                }
                Then::Refused | Then::Nobody => {
                    let start = Instant::now();
                    assert_eq!(tcp(TIMEOUT), Err(io::ErrorKind::ConnectionRefused), "{context}");
                    assert!(start.elapsed() < Duration::from_secs(1), "{context}: took {:?}", start.elapsed());
                }
                Then::Dropped => assert_eq!(tcp(SILENCE), Err(io::ErrorKind::TimedOut), "{context}"),
            }
        }
    }
}

/// Runs scenarios one after the other on one node: each begins where the one before has ended.
fn check_all(lab: &mut Lab, scenarios: Vec<Scenario>) {
    for scenario in scenarios {
        lab.set("web", scenario.service, scenario.backends);
        check(lab, scenario.what, &scenario.cases);
    }
}

#[test]
fn every_class_arrives_with_the_right_source() {
    if skip("every_class_arrives_with_the_right_source") {
        return;
    }
    check_all(&mut Lab::new(), classes());
}

#[test]
fn local_policy_keeps_the_source_and_stays_on_the_node() {
    if skip("local_policy_keeps_the_source_and_stays_on_the_node") {
        return;
    }
    check_all(&mut Lab::new(), policies());
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    if skip("what_cannot_be_served_is_refused_at_once") {
        return;
    }
    let mut lab = Lab::new();
    check_all(&mut lab, refusals());
    lab.endpoints("web", "");
    // UDP: ICMP port unreachable, which a connected socket reports.
    for a in BOTH {
        let addr = SocketAddr::new(ip(a.vip), 53);
        let udp = lab.client.run(move || {
            let socket = udp_socket(addr.ip(), 0);
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.connect(addr).unwrap();
            socket.send(b"?").unwrap();
            socket.recv(&mut [0; 8]).unwrap_err().kind()
        });
        assert_eq!(udp, io::ErrorKind::ConnectionRefused, "{:?}", a.family);
    }
}

#[test]
fn source_ranges_keep_others_from_the_load_balancers_addresses() {
    if skip("source_ranges_keep_others_from_the_load_balancers_addresses") {
        return;
    }
    let mut lab = Lab::new();
    check_all(&mut lab, ranges());
    let lb = |from, then| (from, To::LoadBalancer, then);
    // A node that holds the load balancer's address itself speaks from it.
    lab.set("web", with_ranges(&["192.168.7.2/31", "fd00:7::2/127"]), "c");
    for a in BOTH {
        let (length, option) =
            if a.family == keelson_dataplane::model::types::Family::V4 { (32, "") } else { (128, " nodad") };
        lab.node.ip(&format!("addr add {}/{length} dev lo{option}", a.lb_ip));
    }
    check(&lab, "an address of the node", &[lb(Node, Then::C(Masqueraded)), lb(External, Then::Dropped)]);
    for a in BOTH {
        let length = if a.family == keelson_dataplane::model::types::Family::V4 { 32 } else { 128 };
        lab.node.ip(&format!("addr del {}/{length} dev lo", a.lb_ip));
    }
    // Ranges of one family alone restrict that one; all of an address space is no restriction.
    lab.set("web", with_ranges(&["192.168.7.1/32"]), "c");
    assert_eq!(lab.tcp(Client, V4.lb_ip, 80, SILENCE), Err(io::ErrorKind::TimedOut));
    assert_eq!(lab.tcp(Client, V6.lb_ip, 80, TIMEOUT), Ok(format!("c {}", V6.towards_c)));
    // Off again, and nothing stays behind.
    lab.set("web", with_ranges(&["192.168.7.1/32"]), "c");
    lab.set("web", with_ranges(&[]), "c");
    check(&lab, "no ranges", &[lb(External, Then::C(Masqueraded)), lb(Client, Then::C(Masqueraded))]);
    let listing = lab.node.cmd("nft", &["list", "set", "ip", "keelson-dataplane", "source-ranges"]);
    assert!(!listing.contains("elements"), "{listing}");
}

#[test]
fn source_ranges_follow_the_nodes_address() {
    if skip("source_ranges_follow_the_nodes_address") {
        return;
    }
    let mut lab = Lab::new();
    let record = ServiceRecord { source_ranges: vec!["192.168.7.0/24".parse().unwrap()], ..dual_service() };
    lab.set("web", record, "c");
    let listing = |lab: &Lab| lab.node.cmd("nft", &["list", "set", "ip", "keelson-dataplane", "source-ranges"]);
    assert!(listing(&lab).contains("80 . 203.0.113.6"), "{}", listing(&lab));
    lab.engine.model.set_node(NodeRecord { internal_ips: vec![ip("172.16.0.1")], ..NodeRecord::default() });
    lab.sync();
    assert!(!listing(&lab).contains("80 . 203.0.113.6"), "{}", listing(&lab));
}

#[test]
fn node_ports_answer_on_the_addresses_of_the_configuration_and_never_on_loopback() {
    if skip("node_ports_answer_on_the_addresses_of_the_configuration_and_never_on_loopback") {
        return;
    }
    // The pods' side alone, and loopback, which no range can turn on.
    let ranges = ["10.244.0.0/16", "127.0.0.0/8", "fd00:244::/32", "::1/128"];
    let mut lab = Lab::with(NodePortAddresses::Ranges(ranges.iter().map(|r| r.parse().unwrap()).collect()));
    lab.set("web", dual_service(), "c");
    let cases = [
        (Client, To::OtherNodePort, Then::C(Masqueraded)),
        (External, To::OtherNodePort, Then::C(Masqueraded)),
        (Client, To::NodePort, Then::Refused),
        (External, To::NodePort, Then::Refused),
        (Node, To::Loopback, Then::Refused),
    ];
    check(&lab, "ranges", &cases);
    // A server on the node's loopback, and somebody outside who sends packets there by way of the node.
    for a in BOTH {
        let (loopback, reply) = (a.loopback, format!("{} reached", a.loopback));
        lab.node.run(move || {
            let listener = std::net::TcpListener::bind((loopback, 7777)).unwrap();
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let _ = writeln!(stream, "{reply}");
                }
            });
        });
        assert_eq!(lab.tcp(Node, a.loopback, 7777, TIMEOUT), Ok(format!("{loopback} reached")));
    }
    // Without this the sender itself would not let such a packet out.
    lab.external.sysctl("net/ipv4/conf/eth0/route_localnet", "1");
    lab.external.ip("addr del 127.0.0.1/8 dev lo");
    lab.external.ip("route add 127.0.0.1 via 192.168.7.2 src 192.168.7.1");
    lab.external.ip("-6 addr del ::1/128 dev lo");
    lab.external.ip("-6 route add ::1 via fd00:7::2");
    let unseen = |addr: &str| {
        let table = if addr == V4.loopback { "v4" } else { "v6" };
        lab.node.cmd("nft", &["list", "counter", "netdev", "seen", table]).contains("packets 0 ")
    };
    lab.node.cmd_in(
        "nft",
        &["-f", "-"],
        "table netdev seen {
            counter v4 { }
            counter v6 { }
            chain in {
                type filter hook ingress device \"up0\" priority 0;
                ip daddr 127.0.0.1 counter name v4
                ip6 daddr ::1 counter name v6
            }
        }",
    );
    for a in BOTH {
        for port in [7777, 30080] {
            let reached = lab.tcp(External, a.loopback, port, SILENCE);
            assert!(reached.is_err(), "{}:{port} from outside: {reached:?}", a.loopback);
        }
        assert!(!unseen(a.loopback), "no packet to {} ever came to the node", a.loopback);
    }
    // A node that somebody has told to route such packets all the same: node ports are not for them.
    lab.node.sysctl("net/ipv4/conf/up0/route_localnet", "1");
    assert_eq!(lab.tcp(External, V4.loopback, 7777, TIMEOUT), Ok("127.0.0.1 reached".to_owned()));
    assert_eq!(lab.tcp(External, V4.loopback, 30080, TIMEOUT), Err(io::ErrorKind::ConnectionRefused));
}

#[test]
fn connections_spread_evenly() {
    if skip("connections_spread_evenly") {
        return;
    }
    let mut lab = Lab::new();
    lab.set("web", dual_service(), "bc");
    for a in BOTH {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..400 {
            *counts.entry(lab.tcp(Client, a.vip, 80, TIMEOUT).unwrap()).or_default() += 1;
        }
        // 400 fair coin throws leave 140 to 260 with a probability beyond 1 - 1e-8.
        assert_eq!(counts.len(), 2, "{counts:?}");
        assert!(counts.values().all(|n| (140..=260).contains(n)), "{counts:?}");
    }
}

#[test]
fn scaling_under_a_stream_of_connections_loses_none() {
    if skip("scaling_under_a_stream_of_connections_loses_none") {
        return;
    }
    let mut lab = Lab::new();
    lab.set("web", dual_service(), "bc");
    let (stop, done, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    for a in BOTH {
        let (stop, done, failed, addr) = (stop.clone(), done.clone(), failed.clone(), SocketAddr::new(ip(a.vip), 80));
        lab.client.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match get(addr, TIMEOUT) {
                    Ok(_) => done.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        eprintln!("lost: {addr}: {error}");
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
        for backends in ["b", "bc", "c", "cb"] {
            lab.endpoints("web", backends);
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
    let web = ServiceRecord { source_ranges: vec!["192.168.7.0/24".parse().unwrap()], ..dual_service() };
    lab.set("web", web.clone(), "bc");
    let mut open_ones = Vec::new();
    for a in BOTH {
        let (tcp, dns) = (SocketAddr::new(ip(a.vip), 80), SocketAddr::new(ip(a.vip), 53));
        open_ones.push((
            dns,
            lab.client.run(move || {
                let stream = open(tcp, TIMEOUT).expect("connect").0;
                let socket = udp_socket(dns.ip(), 40_000);
                let answer = ask(&socket, dns, TIMEOUT).unwrap();
                (stream, socket, answer)
            }),
        ));
    }
    // A new engine, as after a restart of the program, with the same objects in another order.
    let mut second = lab.node.engine(settings());
    second.model.set_node(dual_node());
    tell(&mut second, "web", "cb");
    second.model.set_service(&name("web"), Some(web));
    let report = second.sync().unwrap();
    assert_eq!((report.stats.elements, report.conntrack_deleted), (0, 0), "{report:?}");
    lab.engine = second;
    for (dns, (mut tcp, socket, first)) in open_ones {
        let echoed = lab.client.run(move || {
            tcp.get_mut().write_all(b"still here\n").unwrap();
            let mut line = String::new();
            tcp.read_line(&mut line).unwrap();
            line
        });
        assert_eq!(echoed, "still here\n");
        assert_eq!(lab.client.run(move || ask(&socket, dns, TIMEOUT).unwrap()), first);
    }
}

#[test]
fn udp_flows_leave_an_endpoint_that_is_gone() {
    if skip("udp_flows_leave_an_endpoint_that_is_gone") {
        return;
    }
    let mut lab = Lab::new();
    lab.set("dns", dual_service(), "b");
    let flows = BOTH.map(|a| {
        let (inside, outside) = (SocketAddr::new(ip(a.vip), 53), SocketAddr::new(ip(a.node), 30053));
        [(&lab.client, inside), (&lab.external, outside)]
            .map(|(ns, to)| (ns.clone(), to, Arc::new(ns.run(move || udp_socket(to.ip(), 40_001)))))
    });
    let again = |timeout| -> Vec<String> {
        let ask = |(ns, to, socket): &(Netns, SocketAddr, Arc<std::net::UdpSocket>)| {
            let (to, socket) = (*to, socket.clone());
            ns.run(move || ask(&socket, to, timeout)).map_or_else(|_| "-".to_owned(), |a| a[..1].to_owned())
        };
        flows.as_flattened().iter().map(ask).collect()
    };
    assert_eq!(again(TIMEOUT), ["b"; 4]);
    lab.endpoints("dns", "c");
    assert_eq!(again(TIMEOUT), ["c"; 4]);
    // At zero endpoints, too: nothing stays behind that would blackhole the flow later.
    lab.endpoints("dns", "");
    assert_eq!(again(SILENCE), ["-"; 4]);
    lab.endpoints("dns", "b");
    assert_eq!(again(TIMEOUT), ["b"; 4]);
}

#[test]
fn a_health_check_node_port_answers_through_the_rules() {
    if skip("a_health_check_node_port_answers_through_the_rules") {
        return;
    }
    let mut lab = Lab::new();
    let record = ServiceRecord { external_local: true, health_check_node_port: 31_000, ..dual_service() };
    lab.set("web", record, "bc");
    let wanted = lab.engine.model.health_checks();
    assert_eq!(wanted, [(name("web"), (31_000, 1))].into());
    lab.node.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let health = keelson_dataplane::health::Health::new(LIMIT);
            health.synced();
            let stop = tokio_util::sync::CancellationToken::new();
            let mut ports = keelson_dataplane::node_health::NodeHealth::new(health, stop);
            let addresses = keelson_dataplane::node_health::addresses(&NodePortAddresses::Primary, &dual_node());
            ports.sync(&wanted, &addresses).await;
            tokio::time::sleep(LIMIT * 2).await;
        });
    });
    for (a, from) in BOTH.iter().flat_map(|a| [(a, External), (a, Client), (a, Node)]) {
        let addr = SocketAddr::new(ip(a.node), 31_000);
        let answer = lab.ns(from).run(move || {
            let until = Instant::now() + TIMEOUT;
            let mut stream = loop {
                match std::net::TcpStream::connect_timeout(&addr, TIMEOUT) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(Instant::now() < until, "{addr}: {error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            io::read_to_string(stream).unwrap()
        });
        assert!(answer.starts_with("HTTP/1.0 200") && answer.contains(r#""localEndpoints":1"#), "{from:?}: {answer}");
    }
}
