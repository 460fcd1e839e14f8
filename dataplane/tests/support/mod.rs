//! Namespaces made by a test: a client pod, two backend pods, a node and an external host.
//!
//! Every namespace is held by a thread of the test that unshared it; nothing is mounted, nothing
//! has a name on the machine, and all of it goes when the threads end. A closure is run inside a
//! namespace by sending it to that thread.

#![allow(dead_code)]

pub mod flows;
pub mod lab;

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use keelson_dataplane::engine::{DetectLocal, Engine, NodePortAddresses, Settings};
use keelson_dataplane::model::types::{
    EndpointRecord, Family, Name, NodeRecord, Protocol, ServicePort, ServiceRecord, SlicePort, SliceRecord,
};
use keelson_netfilter::conntrack::KernelConntrack;
use keelson_netfilter::nft::{Family as NftFamily, KernelNft, Nft};

/// Says why a test is skipped, if it must be.
pub fn skip(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    let tools = ["nft", "ip", "nsenter"]
        .iter()
        .all(|tool| Command::new("which").arg(tool).stdout(Stdio::null()).status().is_ok_and(|s| s.success()));
    match (root, tools) {
        (true, true) => false,
        (false, _) => {
            println!("SKIPPED {name}: needs root for network namespaces");
            true
        }
        (true, false) => {
            println!("SKIPPED {name}: needs the programs nft, ip and nsenter");
            true
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace.
#[derive(Clone)]
pub struct Netns {
    jobs: Sender<Job>,
    tid: i32,
}

impl Netns {
    /// A new, empty one with loopback up.
    pub fn new() -> Self {
        let (jobs, work) = channel::<Job>();
        let (ready, wait) = channel();
        std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("unshare");
            ready.send(nix::unistd::gettid().as_raw()).expect("send");
            for job in work {
                job();
            }
        });
        let ns = Self { jobs, tid: wait.recv().expect("namespace thread") };
        ns.ip("link set lo up");
        ns
    }

    /// Runs a closure inside.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = channel();
        self.jobs.send(Box::new(move || done.send(job()).expect("result"))).expect("namespace");
        wait.recv().expect("the closure panicked")
    }

    /// Starts a thread inside that runs beside the others.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        // A new thread inherits the namespace of the one that makes it.
        self.run(move || {
            std::thread::spawn(job);
        });
    }

    /// Runs a program inside and gives its output.
    pub fn cmd(&self, program: &str, args: &[&str]) -> String {
        self.cmd_in(program, args, "")
    }

    /// The same with standard input.
    pub fn cmd_in(&self, program: &str, args: &[&str], input: &str) -> String {
        let (program, input) = (program.to_owned(), input.to_owned());
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        self.run(move || {
            let mut child = Command::new(&program)
                .args(&args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("spawn");
            child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("write");
            let out = child.wait_with_output().expect("wait");
            let err = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{program} {args:?}: {err}");
            String::from_utf8_lossy(&out.stdout).into_owned()
        })
    }

    /// `ip …` inside.
    pub fn ip(&self, args: &str) -> String {
        self.cmd("ip", &args.split(' ').collect::<Vec<_>>())
    }

    /// Writes a sysctl of this namespace.
    pub fn sysctl(&self, name: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/{name}"), value.to_owned());
        self.run(move || std::fs::write(&path, value).unwrap_or_else(|e| panic!("{path}: {e}")));
    }

    /// A veth pair between two namespaces, with addresses.
    pub fn connect(&self, name: &str, addr: &str, other: &Self, other_name: &str, other_addr: &str) {
        self.ip(&format!("link add {name} type veth peer name {other_name} netns {}", other.tid));
        for (ns, name, addr) in [(self, name, addr), (other, other_name, other_addr)] {
            if !addr.is_empty() {
                ns.ip(&format!("addr add {addr} dev {name}"));
            }
            ns.ip(&format!("link set {name} up"));
        }
    }

    /// An engine for both families whose sockets live inside.
    pub fn engine(&self, settings: Settings) -> Engine {
        self.run(move || {
            let open = || -> Box<dyn Nft> { Box::new(KernelNft::open().expect("nft")) };
            let conntrack = KernelConntrack::open().expect("conntrack");
            let tables = vec![(NftFamily::Ipv4, open()), (NftFamily::Ipv6, open())];
            Engine::new("node1", settings, tables, Some(Box::new(conntrack)))
        })
    }
}

pub fn settings() -> Settings {
    Settings {
        detect_local: DetectLocal::ClusterCidr(vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:244::/32".parse().unwrap(),
        ]),
        node_port_addresses: NodePortAddresses::Primary,
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
        masquerade_all: false,
        masquerade_mark: 0x4000,
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn name(text: &str) -> Name {
    format!("default/{text}").into()
}

pub fn node(addr: &str) -> NodeRecord {
    NodeRecord { internal_ips: vec![ip(addr)], ..NodeRecord::default() }
}

pub fn port(number: u16, node_port: u16, protocol: Protocol) -> ServicePort {
    ServicePort { name: Arc::from(""), protocol, port: number, node_port }
}

pub fn service(cluster_ip: &str, ports: Vec<ServicePort>) -> ServiceRecord {
    ServiceRecord { cluster_ips: vec![ip(cluster_ip)], ports, ..ServiceRecord::default() }
}

pub fn ready(addr: &str, local: bool) -> EndpointRecord {
    EndpointRecord { addr: ip(addr), ready: true, serving: true, terminating: false, local, hints: 0 }
}

pub fn slice(service: &str, ports: &[(Protocol, u16)], endpoints: Vec<EndpointRecord>) -> SliceRecord {
    let port = |(protocol, port): &(Protocol, u16)| SlicePort { name: Arc::from(""), protocol: *protocol, port: *port };
    SliceRecord {
        service: name(service),
        family: Family::V4,
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.into(),
    }
}
