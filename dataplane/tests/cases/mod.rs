//! One table of cases, "from here to there arrives at X with source Y", for the packet walk in memory
//! and for the kernel.
//!
//! ```text
//! client 10.244.1.2 ─┐
//! backend b 10.244.1.6 ─┤ node 192.168.7.2 ─ external 192.168.7.1
//! backend c 10.244.2.2 ─┘
//! ```

#![allow(dead_code)]

use keelson_dataplane::model::types::{EndpointRecord, Protocol, ServicePort, ServiceRecord};

use crate::support::{ip, port, ready, service};

/// Where a packet starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    Client,
    BackendB,
    Node,
    External,
}

/// Where it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ends {
    /// At one of these backends, which see these sources: as the backends say it.
    At(&'static [&'static str]),
    Refused,
    Dropped,
    /// No rule concerns it.
    Untouched,
}

pub struct Case {
    pub from: Whence,
    pub to: &'static str,
    pub ends: Ends,
}

pub struct Scenario {
    pub name: &'static str,
    pub service: ServiceRecord,
    pub endpoints: Vec<EndpointRecord>,
    pub cases: Vec<Case>,
}

/// This node's backend.
pub fn b() -> EndpointRecord {
    ready("10.244.1.6", true)
}

/// The other node's.
pub fn c() -> EndpointRecord {
    ready("10.244.2.2", false)
}

pub fn both() -> Vec<ServicePort> {
    vec![port(80, 30080, Protocol::Tcp), port(53, 30053, Protocol::Udp)]
}

/// The Service that the scenarios vary.
pub fn web() -> ServiceRecord {
    ServiceRecord { external_ips: vec![ip("203.0.113.5")], ..service("10.96.0.10", both()) }
}

const CLUSTER: &str = "10.96.0.10:80/tcp";
const EXTERNAL_IP: &str = "203.0.113.5:80/tcp";
const BALANCER: &str = "203.0.113.9:80/tcp";
const NODE_PORT: &str = "192.168.7.2:30080/tcp";

fn all(from: Whence, ends: &Ends) -> Vec<Case> {
    [CLUSTER, EXTERNAL_IP, NODE_PORT].map(|to| Case { from, to, ends: ends.clone() }).into()
}

/// All scenarios.
pub fn scenarios() -> Vec<Scenario> {
    use Whence::{BackendB, Client, External, Node};
    let case = |from, to, ends| Case { from, to, ends };
    let masqueraded = Ends::At(&["c 10.244.2.1"]);
    let mut remote = vec![
        // Cluster class: a pod keeps its address; the node itself and the outside do not.
        case(Client, CLUSTER, Ends::At(&["c 10.244.1.2"])),
        case(Client, "10.96.0.10:53/udp", Ends::At(&["c 10.244.1.2"])),
        case(External, "192.168.7.2:30053/udp", masqueraded.clone()),
        // Unknown ports are refused, unallocated addresses dropped.
        case(Client, "10.96.0.10:81/tcp", Ends::Refused),
        case(Client, "10.96.0.10:80/udp", Ends::Refused),
        case(Client, "10.96.0.99:80/tcp", Ends::Dropped),
        // Node ports answer on the primary address alone, and never on loopback.
        case(Client, "10.244.1.1:30080/tcp", Ends::Untouched),
        case(Node, "127.0.0.1:30080/tcp", Ends::Untouched),
    ];
    remote.extend(all(Node, &masqueraded));
    remote.extend(all(External, &masqueraded));
    // ext-cluster: always masqueraded.
    remote.extend([EXTERNAL_IP, NODE_PORT].map(|to| case(Client, to, masqueraded.clone())));
    let mut refused = vec![case(Client, "10.96.0.10:53/udp", Ends::Refused)];
    for from in [Client, Node, External] {
        refused.extend(all(from, &Ends::Refused));
    }
    let inside = Ends::At(&["b 10.244.1.2", "c 10.244.1.2"]);
    let local = |ends: &Ends| [EXTERNAL_IP, NODE_PORT].map(|to| case(External, to, ends.clone()));
    let mut kept: Vec<Case> = local(&Ends::At(&["b 192.168.7.1"])).into();
    for to in [EXTERNAL_IP, NODE_PORT] {
        kept.push(case(Client, to, inside.clone()));
        kept.push(case(Node, to, Ends::At(&["b 10.244.1.5", "c 10.244.2.1"])));
    }
    let mut elsewhere: Vec<Case> = local(&Ends::Dropped).into();
    elsewhere.push(case(Client, EXTERNAL_IP, Ends::At(&["c 10.244.1.2"])));
    let balanced = |external_local| ServiceRecord {
        load_balancer_ips: vec![ip("203.0.113.9")],
        source_ranges: vec!["192.168.7.0/24".parse().unwrap()],
        external_local,
        ..web()
    };
    vec![
        Scenario {
            name: "load balancer source ranges",
            service: balanced(false),
            endpoints: vec![c()],
            cases: vec![
                case(External, BALANCER, masqueraded.clone()),
                case(Node, BALANCER, masqueraded.clone()),
                case(Client, BALANCER, Ends::Dropped),
                // They are for the load balancer's addresses alone.
                case(Client, EXTERNAL_IP, masqueraded.clone()),
                case(Client, NODE_PORT, masqueraded.clone()),
                case(Client, CLUSTER, Ends::At(&["c 10.244.1.2"])),
            ],
        },
        Scenario {
            name: "load balancer source ranges, and external traffic stays on the node",
            service: balanced(true),
            endpoints: vec![b(), c()],
            cases: vec![case(External, BALANCER, Ends::At(&["b 192.168.7.1"])), case(Client, BALANCER, Ends::Dropped)],
        },
        Scenario { name: "an endpoint elsewhere", service: web(), endpoints: vec![c()], cases: remote },
        Scenario {
            name: "a pod that reaches itself",
            service: web(),
            endpoints: vec![b()],
            cases: vec![
                case(BackendB, CLUSTER, Ends::At(&["b 10.244.1.5"])),
                case(Client, CLUSTER, Ends::At(&["b 10.244.1.2"])),
            ],
        },
        Scenario { name: "no endpoint", service: web(), endpoints: vec![], cases: refused },
        Scenario {
            name: "external traffic stays on the node",
            service: ServiceRecord { external_local: true, ..web() },
            endpoints: vec![b(), c()],
            cases: kept,
        },
        Scenario {
            name: "external traffic, and no endpoint on the node",
            service: ServiceRecord { external_local: true, ..web() },
            endpoints: vec![c()],
            cases: elsewhere,
        },
        Scenario {
            name: "internal traffic, and no endpoint on the node",
            service: ServiceRecord { internal_local: true, ..web() },
            endpoints: vec![c()],
            cases: vec![case(Client, CLUSTER, Ends::Dropped), case(Client, NODE_PORT, masqueraded.clone())],
        },
        Scenario {
            name: "clients stick",
            service: ServiceRecord { affinity_seconds: Some(60), ..web() },
            endpoints: vec![c()],
            cases: vec![case(Client, CLUSTER, Ends::At(&["c 10.244.1.2"])), case(External, NODE_PORT, masqueraded)],
        },
    ]
}
