//! Host ports with real packets: a host, two containers on its bridge, a client and a server on two other networks of the host.
//! What reaches whom, and from which source address, must be the same with the reference plugins, which use iptables.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Call, Namespace, Plugins, REFERENCE, cannot_run, no_reference, with_previous};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

/// How long something that does not answer is waited for.
const LIMIT: Duration = Duration::from_millis(700);

/// Runs in a namespace, on a thread that ends there.
fn within<T: Send + 'static>(namespace: &Namespace, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let file = File::open(namespace.path()).unwrap();
    std::thread::spawn(move || {
        setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
}

/// A server that answers each client with its name and the client's address, until it is dropped.
struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn new(namespace: &Namespace, name: &'static str, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let (tcp_stop, udp_stop, udp_ready) = (stop.clone(), stop.clone(), ready.clone());
        let tcp = within(namespace, move || {
            let listener = TcpListener::bind(("::", port)).unwrap();
            listener.set_nonblocking(true).unwrap();
            ready.send(()).unwrap();
            while !tcp_stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, from)) => drop(write!(stream, "{name} {}", from.ip().to_canonical())),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        let udp = within(namespace, move || {
            let socket = UdpSocket::bind(("::", port)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            udp_ready.send(()).unwrap();
            let mut buffer = [0; 100];
            while !udp_stop.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(format!("{name} {}", from.ip().to_canonical()).as_bytes(), from);
                }
            }
        });
        is_ready.recv().unwrap();
        is_ready.recv().unwrap();
        Self { stop, threads: vec![tcp, udp] }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Who answered, and what source address it saw; why nobody did.
fn tcp(from: &Namespace, to: &str) -> String {
    let to: SocketAddr = to.parse().unwrap();
    let asked = within(from, move || {
        let mut stream = TcpStream::connect_timeout(&to, LIMIT).map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(LIMIT)).map_err(|error| error.kind())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|error| error.kind())?;
        Ok::<String, std::io::ErrorKind>(text)
    });
    asked.join().unwrap().unwrap_or_else(|kind| format!("{kind:?}"))
}

fn ask(socket: &UdpSocket) -> String {
    let mut buffer = [0; 100];
    let asked = socket.send(b"x").and_then(|_| socket.recv(&mut buffer));
    asked.map_or_else(
        |error| format!("{:?}", error.kind()),
        |length| String::from_utf8_lossy(&buffer[..length]).into_owned(),
    )
}

/// A UDP socket in a namespace; it stays there.
fn udp(from: &Namespace, to: &str) -> UdpSocket {
    let to: SocketAddr = to.parse().unwrap();
    let made = within(from, move || {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    });
    made.join().unwrap()
}

/// The networks: `client` 192.0.2.9, `other` 198.51.100.9, between them `host` .1 with its bridge 10.77.0.0/24.
struct World {
    host: Namespace,
    client: Namespace,
    other: Namespace,
    data: tempfile::TempDir,
    plugins: std::path::PathBuf,
}

/// A container on the bridge, with what its DEL needs.
struct Container {
    namespace: Namespace,
    id: &'static str,
    bridge: Value,
    portmap: Value,
    address: String,
}

impl World {
    fn new(plugins: &Path) -> Self {
        let (host, client, other) = (Namespace::new(), Namespace::new(), Namespace::new());
        for (peer, link, v4, v6) in
            [(&client, "eth0", "192.0.2", "2001:db8:1"), (&other, "eth1", "198.51.100", "2001:db8:2")]
        {
            host.run("ip", &["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", &peer.pid()]);
            for (side, link, last) in [(&host, link, 1), (peer, "eth0", 9)] {
                side.run("ip", &["addr", "add", &format!("{v4}.{last}/24"), "dev", link]);
                side.run("ip", &["addr", "add", &format!("{v6}::{last}/64"), "dev", link, "nodad"]);
                side.run("ip", &["link", "set", link, "up"]);
                side.run("ip", &["link", "set", "lo", "up"]);
            }
            peer.run("ip", &["route", "add", "default", "via", &format!("{v4}.1")]);
            peer.run("ip", &["-6", "route", "add", "default", "via", &format!("{v6}::1")]);
        }
        // A second address of the host, for mappings of one address only.
        host.run("ip", &["addr", "add", "192.0.2.2/24", "dev", "eth0"]);
        Self { host, client, other, data: tempfile::tempdir().unwrap(), plugins: plugins.to_owned() }
    }

    fn call<'a>(&'a self, plugin: &'a str, command: &'a str, container: &'a str, netns: &'a str) -> Call<'a> {
        Call { container, ..Call::new(&self.plugins, plugin, command, netns) }
    }

    fn container(&self, id: &'static str, v6: bool, keys: &Value, ports: &Value) -> Container {
        let namespace = Namespace::new();
        namespace.run("ip", &["link", "set", "lo", "up"]);
        let mut ranges = vec![json!([{"subnet": "10.77.0.0/24"}])];
        let mut routes = vec![json!({"dst": "0.0.0.0/0"})];
        if v6 {
            ranges.push(json!([{"subnet": "fd77::/64"}]));
            routes.push(json!({"dst": "::/0"}));
        }
        let common = json!({"cniVersion": "1.0.0", "name": "net"});
        let with = |more: Value| {
            let mut all = common.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let bridge = with(json!({"type": "bridge", "bridge": "kbr0", "isGateway": true, "hairpinMode": true,
            "ipam": {"type": "host-local", "dataDir": self.data.path(), "ranges": ranges, "routes": routes}}));
        let mut portmap = with(json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}}));
        portmap.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let netns = namespace.path();
        let result = self.call("bridge", "ADD", id, &netns).run(Some(&self.host), &bridge).expect("bridge ADD");
        let portmap = with_previous(&portmap, &result);
        let passed = self.call("portmap", "ADD", id, &netns).run(Some(&self.host), &portmap).expect("portmap ADD");
        assert_eq!(passed["ips"], result["ips"], "the result is passed on");
        let address = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        Container { namespace, id, bridge, portmap, address }
    }

    fn portmap(&self, command: &str, container: &Container) -> common::Outcome {
        self.call("portmap", command, container.id, &container.namespace.path())
            .run(Some(&self.host), &container.portmap)
    }

    fn remove(&self, container: &Container) {
        self.portmap("DEL", container).expect("portmap DEL");
        self.portmap("DEL", container).expect("second portmap DEL");
        let netns = container.namespace.path();
        self.call("bridge", "DEL", container.id, &netns).run(Some(&self.host), &container.bridge).expect("bridge DEL");
    }
}

/// The answers from everywhere to everything.
fn observe(plugins: &Path, keys: &Value) -> Vec<(String, String)> {
    let world = World::new(plugins);
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.2"},
        {"hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"},
        {"hostPort": 8053, "containerPort": 80, "protocol": "udp"},
    ]);
    let pod = world.container("pod", false, keys, &ports);
    let neighbour = world.container("neighbour", false, &json!({}), &json!([]));
    let _server = Server::new(&pod.namespace, "pod", 80);
    let _others: Vec<Server> =
        [8080, 8081, 8053].into_iter().map(|port| Server::new(&world.other, "other", port)).collect();
    if plugins != Path::new(REFERENCE) {
        // The reference's CHECK (1.1.1) wants IPv6 rules of a container without an IPv6 address.
        world.portmap("CHECK", &pod).expect("CHECK");
    }
    let mut log = Vec::new();
    let froms = [
        ("client", &world.client),
        ("host", &world.host),
        ("pod", &pod.namespace),
        ("neighbour", &neighbour.namespace),
    ];
    for (name, from) in froms {
        for to in [
            "192.0.2.1:8080",
            "192.0.2.2:8081",
            "192.0.2.1:8081",
            "192.0.2.1:8082",
            // Not an address of the host: must go where it was sent.
            "198.51.100.9:8080",
            "198.51.100.9:8081",
        ] {
            log.push((format!("tcp {name} -> {to}"), tcp(from, to)));
        }
        for to in ["192.0.2.1:8053", "198.51.100.9:8053"] {
            log.push((format!("udp {name} -> {to}"), ask(&udp(from, to))));
        }
    }
    log.push(("tcp host -> localhost".to_owned(), tcp(&world.host, "127.0.0.1:8080")));
    world.remove(&pod);
    for to in ["192.0.2.1:8080", "192.0.2.2:8081"] {
        log.push((format!("tcp client -> {to} after DEL"), tcp(&world.client, to)));
    }
    log
}

#[test]
fn packets_go_where_the_reference_sends_them() {
    let name = "packets_go_where_the_reference_sends_them";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let plain = observe(ours.path(), &json!({}));
    let answer = |key: &str| plain.iter().find(|(line, _)| line == key).unwrap().1.as_str();
    assert_eq!(answer("tcp client -> 192.0.2.1:8080"), "pod 192.0.2.9", "the client's address is kept");
    assert_eq!(answer("tcp client -> 198.51.100.9:8080"), "other 192.0.2.9", "what passes by is left alone");
    assert_eq!(answer("tcp pod -> 198.51.100.9:8080").split(' ').next(), Some("other"));
    assert_eq!(answer("tcp client -> 192.0.2.1:8081"), "ConnectionRefused", "another address of the host");
    assert_eq!(answer("tcp pod -> 192.0.2.1:8080"), "pod 10.77.0.1", "a pod reaches itself");
    assert!(answer("tcp host -> localhost").starts_with("pod "), "{}", answer("tcp host -> localhost"));
    assert_eq!(answer("udp client -> 192.0.2.1:8053"), "pod 192.0.2.9");
    assert_eq!(answer("tcp client -> 192.0.2.1:8080 after DEL"), "ConnectionRefused");
    if no_reference(name) {
        return;
    }
    let cases = [
        (json!({}), json!({})),
        (json!({"snat": false}), json!({"snat": false})),
        (json!({"markMasqBit": 9}), json!({"markMasqBit": 9})),
        (
            json!({"conditionsV4": ["ip", "saddr", "!=", "192.0.2.0/24"]}),
            json!({"conditionsV4": ["!", "-s", "192.0.2.0/24"]}),
        ),
        (json!({"conditionsV4": ["!", "-s", "10.77.0.0/16"]}), json!({"conditionsV4": ["!", "-s", "10.77.0.0/16"]})),
    ];
    for (mine, theirs) in cases {
        let (mine_log, theirs_log) = (observe(ours.path(), &mine), observe(Path::new(REFERENCE), &theirs));
        for (found, expected) in mine_log.iter().zip(&theirs_log) {
            assert_eq!(found, expected, "{mine}");
        }
    }
}

#[test]
fn masq_all_hides_every_client() {
    let name = "masq_all_hides_every_client";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let log = observe(ours.path(), &json!({"masqAll": true}));
    let answers: Vec<&str> =
        log.iter().filter(|(line, _)| line.ends_with("192.0.2.1:8080")).map(|(_, answer)| answer.as_str()).collect();
    assert_eq!(answers, ["pod 10.77.0.1"; 4]);
}

#[test]
fn both_families_and_one_address_only() {
    let name = "both_families_and_one_address_only";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let world = World::new(ours.path());
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "2001:db8:1::1"},
        {"hostPort": 8053, "containerPort": 80, "protocol": "udp", "hostIP": "::"},
    ]);
    let pod = world.container("pod", true, &json!({}), &ports);
    let _server = Server::new(&pod.namespace, "pod", 80);
    world.portmap("CHECK", &pod).expect("CHECK");
    // The kernel looks whether somebody else has the bridge's addresses before it uses them.
    while !world.host.run("ip", &["-6", "addr", "show", "tentative"]).is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(tcp(&world.client, "[2001:db8:1::1]:8080"), "pod 2001:db8:1::9");
    assert_eq!(tcp(&world.client, "[2001:db8:1::1]:8081"), "pod 2001:db8:1::9");
    assert_eq!(tcp(&world.client, "[2001:db8:2::1]:8081"), "ConnectionRefused");
    assert_eq!(tcp(&world.client, "192.0.2.1:8081"), "ConnectionRefused");
    assert_eq!(tcp(&world.client, "192.0.2.1:8080"), "pod 192.0.2.9");
    assert_eq!(tcp(&pod.namespace, "[2001:db8:1::1]:8080"), "pod fd77::1");
    assert_eq!(ask(&udp(&world.client, "[2001:db8:1::1]:8053")), "pod 2001:db8:1::9");
    assert_eq!(ask(&udp(&world.client, "192.0.2.1:8053")), "ConnectionRefused");
    // The listing is one that the nft program can print and load again.
    let listing = world.host.run("nft", &["list", "table", "ip", "keelson-hostports"]);
    assert!(listing.contains("dnat to 10.77.0.2:80") && listing.contains("fib daddr type local"), "{listing}");
    let path = world.data.path().join("listing");
    for family in ["ip", "ip6"] {
        let listing = world.host.run("nft", &["list", "table", family, "keelson-hostports"]);
        std::fs::write(&path, &listing).unwrap();
        world.host.run("nft", &["delete", "table", family, "keelson-hostports"]);
        world.host.run("nft", &["-f", path.to_str().unwrap()]);
        assert_eq!(world.host.run("nft", &["list", "table", family, "keelson-hostports"]), listing);
    }
    world.portmap("CHECK", &pod).expect("CHECK of the table that was loaded again");
    world.remove(&pod);
    assert!(!world.host.run("nft", &["list", "ruleset"]).contains("hp-"), "nothing of the container is left");
}

#[test]
fn a_udp_client_follows_the_port_to_its_new_owner() {
    let name = "a_udp_client_follows_the_port_to_its_new_owner";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let world = World::new(ours.path());
    let ports = json!([{"hostPort": 8053, "containerPort": 80, "protocol": "udp"}]);
    // One socket, one flow: it begins while nobody has the port.
    let socket = udp(&world.client, "192.0.2.1:8053");
    ask(&socket);
    let first = world.container("first", false, &json!({}), &ports);
    let server = Server::new(&first.namespace, "first", 80);
    assert_eq!(ask(&socket), "first 192.0.2.9");
    // The second comes before the first one's DEL.
    let second = world.container("second", false, &json!({}), &ports);
    let _second_server = Server::new(&second.namespace, "second", 80);
    assert_eq!(ask(&socket), "second 192.0.2.9");
    drop(server);
    world.remove(&first);
    assert_eq!(ask(&socket), "second 192.0.2.9", "the first one's DEL takes nothing of the second's");
    world.portmap("CHECK", &second).expect("CHECK");
    let (code, message) = world.portmap("CHECK", &first).expect_error("CHECK of what is gone");
    assert_eq!(code, 102, "{message}");
    world.remove(&second);
    assert_eq!(ask(&socket), "ConnectionRefused");
}

#[test]
fn nobody_from_outside_reaches_the_hosts_loopback() {
    let name = "nobody_from_outside_reaches_the_hosts_loopback";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let world = World::new(ours.path());
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let pod = world.container("pod", false, &json!({}), &ports);
    let _server = Server::new(&pod.namespace, "pod", 80);
    assert_eq!(world.host.sysctl("net/ipv4/conf/kbr0/route_localnet"), "1");
    assert_eq!(tcp(&world.host, "127.0.0.1:8080").split(' ').next(), Some("pod"));
    // What a program of the host listens to on its loopback, and a pod that sends packets for it to the bridge.
    let secret = within(&world.host, || {
        let socket = UdpSocket::bind("127.0.0.1:10248").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    });
    let secret = secret.join().unwrap();
    pod.namespace.run("ip", &["route", "del", "local", "127.0.0.0/8", "table", "local"]);
    pod.namespace.run("ip", &["route", "del", "local", "127.0.0.1", "table", "local"]);
    pod.namespace.run("ip", &["route", "add", "127.0.0.1/32", "via", "10.77.0.1", "src", &pod.address]);
    let arrives = || {
        udp(&pod.namespace, "127.0.0.1:10248").send(b"x").unwrap();
        secret.recv(&mut [0; 10]).is_ok()
    };
    assert!(!arrives());
    // Not for another reason: without the rule it arrives.
    world.host.run("nft", &["flush", "chain", "ip", "keelson-hostports", "localhost"]);
    assert!(arrives());
}

#[test]
fn gc_closes_the_ports_of_the_dead_in_its_own_network() {
    let name = "gc_closes_the_ports_of_the_dead_in_its_own_network";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let world = World::new(ours.path());
    let port = |number: u16| json!([{"hostPort": number, "containerPort": 80, "protocol": "tcp"}]);
    let (alive, dead) = (
        world.container("alive", false, &json!({}), &port(8080)),
        world.container("dead", false, &json!({}), &port(8081)),
    );
    let _servers = [Server::new(&alive.namespace, "alive", 80), Server::new(&dead.namespace, "dead", 80)];
    assert_eq!(tcp(&world.client, "192.0.2.1:8081"), "dead 192.0.2.9");
    let gc = |network: &str, valid: Value| {
        let mut config = json!({"cniVersion": "1.1.0", "name": network, "type": "portmap"});
        if !valid.is_null() {
            config["cni.dev/valid-attachments"] = valid;
        }
        world.call("portmap", "GC", "", "").run(Some(&world.host), &config)
    };
    gc("another", json!([])).expect("GC of another network");
    assert_eq!(tcp(&world.client, "192.0.2.1:8081"), "dead 192.0.2.9");
    gc("net", Value::Null).expect_error("GC without the list");
    for _ in 0..2 {
        gc("net", json!([{"containerID": "alive", "ifname": "eth0"}])).expect("GC");
        assert_eq!(tcp(&world.client, "192.0.2.1:8080"), "alive 192.0.2.9");
        assert_eq!(tcp(&world.client, "192.0.2.1:8081"), "ConnectionRefused");
    }
    let status = json!({"cniVersion": "1.1.0", "name": "net", "type": "portmap"});
    world.call("portmap", "STATUS", "", "").run(Some(&world.host), &status).expect("STATUS");
}

#[test]
fn a_mistake_is_refused_and_does_not_keep_a_container_from_being_deleted() {
    let name = "a_mistake_is_refused_and_does_not_keep_a_container_from_being_deleted";
    if cannot_run(name) {
        return;
    }
    let ours = Plugins::ours();
    let world = World::new(ours.path());
    let pod =
        world.container("pod", false, &json!({}), &json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let netns = pod.namespace.path();
    let mut wrong = pod.portmap.clone();
    wrong["backend"] = "iptables".into();
    let (code, message) =
        world.call("portmap", "ADD", "pod", &netns).run(Some(&world.host), &wrong).expect_error("ADD");
    assert_eq!((code, message.contains("nftables only")), (2, true), "{message}");
    let mut alone = pod.portmap.clone();
    alone.as_object_mut().unwrap().remove("prevResult");
    let (_, message) = world.call("portmap", "ADD", "pod", &netns).run(Some(&world.host), &alone).expect_error("ADD");
    assert_eq!(message, "must be called as chained plugin");
    world.call("portmap", "DEL", "pod", "").run(Some(&world.host), &wrong).expect("DEL without a namespace");
    assert!(!world.host.run("nft", &["list", "ruleset"]).contains("hp-"));
}
