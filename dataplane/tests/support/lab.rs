//! A node with pods and neighbours, each a namespace, and all of it in both families:
//!
//! ```text
//! client 10.244.1.2 ─┐
//! backend b 10.244.1.6 ─┤ node 192.168.7.2 ─ external 192.168.7.1
//! backend c 10.244.2.2 ─┘
//! ```
//! c stands for a pod of another node: only its endpoint's record says so. The backends answer with their name
//! and the source address they see.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use keelson_dataplane::engine::{Engine, NodePortAddresses};
use keelson_dataplane::model::types::{
    EndpointRecord, Family, NodeRecord, Protocol, ServicePort, ServiceRecord, SliceRecord,
};

use super::{Netns, ip, name, port, ready, settings, slice};

/// As long as a busy machine may need; a refusal comes at once.
pub const TIMEOUT: Duration = Duration::from_secs(3);
/// How long nothing must come before it counts as dropped.
pub const SILENCE: Duration = Duration::from_millis(1500);

/// Addresses of one family.
#[derive(Debug)]
pub struct Addresses {
    pub family: Family,
    pub vip: &'static str,
    pub unallocated: &'static str,
    pub external_ip: &'static str,
    pub lb_ip: &'static str,
    pub node: &'static str,
    /// Another address of the node, which `nodePortAddresses: primary` leaves out.
    pub other_node: &'static str,
    pub loopback: &'static str,
    pub client: &'static str,
    pub external: &'static str,
    pub b: &'static str,
    pub c: &'static str,
    /// The node as b and c see it when it masquerades.
    pub towards_b: &'static str,
    pub towards_c: &'static str,
}

pub const V4: Addresses = Addresses {
    family: Family::V4,
    vip: "10.96.0.10",
    unallocated: "10.96.0.99",
    external_ip: "203.0.113.5",
    lb_ip: "203.0.113.6",
    node: "192.168.7.2",
    other_node: "10.244.1.1",
    loopback: "127.0.0.1",
    client: "10.244.1.2",
    external: "192.168.7.1",
    b: "10.244.1.6",
    c: "10.244.2.2",
    towards_b: "10.244.1.5",
    towards_c: "10.244.2.1",
};

pub const V6: Addresses = Addresses {
    family: Family::V6,
    vip: "fd00:96::10",
    unallocated: "fd00:96::99",
    external_ip: "2001:db8:113::5",
    lb_ip: "2001:db8:113::6",
    node: "fd00:7::2",
    other_node: "fd00:244:1::1",
    loopback: "::1",
    client: "fd00:244:1::2",
    external: "fd00:7::1",
    b: "fd00:244:1::6",
    c: "fd00:244:2::2",
    towards_b: "fd00:244:1::5",
    towards_c: "fd00:244:2::1",
};

pub const BOTH: [&Addresses; 2] = [&V4, &V6];

/// Where a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Client,
    B,
    Node,
    External,
}

pub struct Lab {
    pub node: Netns,
    pub client: Netns,
    pub b: Netns,
    pub c: Netns,
    pub external: Netns,
    pub engine: Engine,
}

/// TCP on 8080 (a line of greeting, then an echo) and UDP on 5353.
fn serve(ns: &Netns, name: &'static str) {
    ns.spawn(move || {
        let listener = TcpListener::bind("[::]:8080").expect("listen");
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let Ok(peer) = stream.peer_addr() else { return };
                let mut out = stream.try_clone().expect("clone");
                let _ = writeln!(out, "{name} {}", peer.ip().to_canonical());
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = writeln!(out, "{line}");
                }
            });
        }
    });
    ns.spawn(move || {
        let socket = UdpSocket::bind("[::]:5353").expect("bind");
        let mut buf = [0; 64];
        while let Ok((_, peer)) = socket.recv_from(&mut buf) {
            let _ = socket.send_to(format!("{name} {}", peer.ip().to_canonical()).as_bytes(), peer);
        }
    });
}

impl Lab {
    pub fn new() -> Self {
        Self::with(NodePortAddresses::Primary)
    }

    pub fn with(node_port_addresses: NodePortAddresses) -> Self {
        let (node, client, b, c, external) = (Netns::new(), Netns::new(), Netns::new(), Netns::new(), Netns::new());
        node.sysctl("net/ipv4/ip_forward", "1");
        node.sysctl("net/ipv6/conf/all/forwarding", "1");
        let links = [
            ("pod0", &client, V4.other_node, V4.client, 30, V6.other_node, V6.client, 126),
            ("pod1", &b, V4.towards_b, V4.b, 30, V6.towards_b, V6.b, 126),
            ("pod2", &c, V4.towards_c, V4.c, 30, V6.towards_c, V6.c, 126),
            ("up0", &external, V4.node, V4.external, 24, V6.node, V6.external, 64),
        ];
        for (link, pod, gateway4, addr4, len4, gateway6, addr6, len6) in links {
            node.connect(link, &format!("{gateway4}/{len4}"), pod, "eth0", &format!("{addr4}/{len4}"));
            node.ip(&format!("addr add {gateway6}/{len6} dev {link} nodad"));
            pod.ip(&format!("addr add {addr6}/{len6} dev eth0 nodad"));
            // The outside has this node as its way to Services and pods, too.
            pod.ip(&format!("route add default via {gateway4}"));
            pod.ip(&format!("-6 route add default via {gateway6}"));
        }
        node.ip(&format!("route add default via {}", V4.external));
        node.ip(&format!("-6 route add default via {}", V6.external));
        serve(&b, "b");
        serve(&c, "c");
        let mut engine = node.engine(keelson_dataplane::engine::Settings { node_port_addresses, ..settings() });
        engine.model.set_node(dual_node());
        let lab = Self { node, client, b, c, external, engine };
        // The servers listen when the first connection is taken.
        lab.client.run(|| {
            for addr in [V4.b, V4.c, V6.b, V6.c] {
                let until = Instant::now() + TIMEOUT * 3;
                while get(SocketAddr::new(ip(addr), 8080), TIMEOUT).is_err() {
                    assert!(Instant::now() < until, "{addr} does not answer");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        lab
    }

    pub fn ns(&self, from: Origin) -> &Netns {
        match from {
            Origin::Client => &self.client,
            Origin::B => &self.b,
            Origin::Node => &self.node,
            Origin::External => &self.external,
        }
    }

    pub fn sync(&mut self) {
        self.engine.sync().expect("sync");
    }

    /// A Service with the backends named, `b`, `c` or both, in both families.
    pub fn set(&mut self, service: &str, record: ServiceRecord, backends: &str) {
        self.engine.model.set_service(&name(service), Some(record));
        self.endpoints(service, backends);
    }

    pub fn endpoints(&mut self, service: &str, backends: &str) {
        tell(&mut self.engine, service, backends);
        self.sync();
    }

    /// A TCP connection: the backend's line, or the kind of error.
    pub fn tcp(&self, from: Origin, addr: &str, port: u16, timeout: Duration) -> Result<String, io::ErrorKind> {
        let addr = SocketAddr::new(ip(addr), port);
        self.ns(from).run(move || get(addr, timeout).map_err(|e| e.kind()))
    }

    /// A datagram from a fresh socket.
    pub fn udp(&self, from: Origin, addr: &str, port: u16, timeout: Duration) -> Result<String, io::ErrorKind> {
        let addr = SocketAddr::new(ip(addr), port);
        self.ns(from).run(move || {
            let socket = udp_socket(addr.ip(), 0);
            ask(&socket, addr, timeout).map_err(|e| e.kind())
        })
    }
}

/// Slices of both families for the backends named.
pub fn tell(engine: &mut Engine, service: &str, backends: &str) {
    let ports = [(Protocol::Tcp, 8080), (Protocol::Udp, 5353), (Protocol::Sctp, 9090)];
    for addresses in BOTH {
        let endpoint = |backend| -> EndpointRecord {
            match backend {
                'b' => ready(addresses.b, true),
                'c' => ready(addresses.c, false),
                other => panic!("{other}"),
            }
        };
        let endpoints = backends.chars().map(endpoint).collect();
        let record = SliceRecord { family: addresses.family, ..slice(service, &ports, endpoints) };
        engine.model.set_slice(&name(&format!("{service}-{:?}", addresses.family)), Some(record));
    }
}

pub fn dual_node() -> NodeRecord {
    NodeRecord { internal_ips: vec![ip(V4.node), ip(V6.node)], ..NodeRecord::default() }
}

/// A Service with cluster addresses of both families and the ports of the backends.
pub fn dual_service() -> ServiceRecord {
    let ports: Vec<ServicePort> =
        vec![port(80, 30080, Protocol::Tcp), port(53, 30053, Protocol::Udp), port(90, 30090, Protocol::Sctp)];
    let both = |pick: fn(&Addresses) -> &'static str| -> Vec<IpAddr> { BOTH.map(|a| ip(pick(a))).to_vec() };
    ServiceRecord {
        cluster_ips: both(|a| a.vip),
        external_ips: both(|a| a.external_ip),
        load_balancer_ips: both(|a| a.lb_ip),
        ports,
        ..ServiceRecord::default()
    }
}

pub fn open(addr: SocketAddr, timeout: Duration) -> io::Result<(BufReader<TcpStream>, String)> {
    let stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok((reader, line.trim().to_owned()))
}

pub fn get(addr: SocketAddr, timeout: Duration) -> io::Result<String> {
    open(addr, timeout).map(|(_, line)| line)
}

/// A socket of the family of `addr`, on any of its addresses. A port is a number for IPv4; IPv6 takes the next
/// one, as one of IPv6 would stand for both.
pub fn udp_socket(addr: IpAddr, port: u16) -> UdpSocket {
    let port = if port > 0 && addr.is_ipv6() { port + 1 } else { port };
    UdpSocket::bind((Family::of(addr).unspecified(), port)).expect("bind")
}

pub fn ask(socket: &UdpSocket, addr: SocketAddr, timeout: Duration) -> io::Result<String> {
    socket.set_read_timeout(Some(timeout))?;
    socket.send_to(b"?", addr)?;
    let mut buf = [0; 64];
    let (n, _) = socket.recv_from(&mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
}
