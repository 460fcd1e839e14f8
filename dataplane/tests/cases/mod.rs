//! One table of cases in both families, "from here to there arrives at X with source Y", for the packet walk in memory, for the kernel's listing and
//! for packets. The places are those of `support/lab.rs`.

#![allow(dead_code)]

use Origin::{B, Client, External, Node};
use Seen::{Kept, Masqueraded};
use keelson_dataplane::model::types::ServiceRecord;

use crate::support::lab::{Addresses, Origin, dual_service};

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub enum To {
    Cluster,
    ClusterOtherPort,
    Unallocated,
    ExternalIp,
    LoadBalancer,
    NodePort,
    OtherNodePort,
    Loopback,
}

impl To {
    pub fn addr(self, a: &Addresses) -> &'static str {
        match self {
            Self::Cluster | Self::ClusterOtherPort => a.vip,
            Self::Unallocated => a.unallocated,
            Self::ExternalIp => a.external_ip,
            Self::LoadBalancer => a.lb_ip,
            Self::NodePort => a.node,
            Self::OtherNodePort => a.other_node,
            Self::Loopback => a.loopback,
        }
    }

    pub fn port(self, service: u16, node_port: u16) -> u16 {
        match self {
            Self::NodePort | Self::OtherNodePort | Self::Loopback => node_port,
            Self::ClusterOtherPort => service + 1,
            _ => service,
        }
    }
}

/// What becomes of it. Served: by whom, and whom that one sees.
#[derive(Debug, Clone, Copy)]
pub enum Then {
    B(Seen),
    C(Seen),
    /// Now one and now the other.
    Either(Seen),
    Refused,
    Dropped,
    /// No rule concerns it, and nobody listens where it goes.
    Nobody,
}

/// The source address at the receiver.
#[derive(Debug, Clone, Copy)]
pub enum Seen {
    /// As it was sent.
    Kept,
    /// The node's, on the link to the receiver.
    Masqueraded,
}

/// What a backend answers to whom.
pub fn line(a: &Addresses, backend: char, seen: Seen, from: Origin) -> String {
    let source = match (seen, backend, from) {
        (Masqueraded, 'b', _) => a.towards_b,
        (Masqueraded, _, _) => a.towards_c,
        (Kept, _, Client) => a.client,
        (Kept, _, B) => a.b,
        (Kept, _, External) => a.external,
        (Kept, _, Node) => panic!("the node's source depends on the route"),
    };
    format!("{backend} {source}")
}

/// From where, to what, and what then.
pub type Case = (Origin, To, Then);

/// A Service with these backends (`b` on this node, `c` elsewhere), and what becomes of packets.
pub struct Scenario {
    pub what: &'static str,
    pub service: ServiceRecord,
    pub backends: &'static str,
    pub cases: Vec<Case>,
}

fn scenario(what: &'static str, service: ServiceRecord, backends: &'static str, cases: &[Case]) -> Scenario {
    Scenario { what, service, backends, cases: cases.to_vec() }
}

/// All that are not of a single family.
pub fn all() -> Vec<Scenario> {
    [classes(), policies(), refusals(), ranges()].into_iter().flatten().collect()
}

/// Each class of frontend.
pub fn classes() -> Vec<Scenario> {
    let mut elsewhere = vec![
        // Cluster class: a pod keeps its address; the node itself and the outside do not.
        (Client, To::Cluster, Then::C(Kept)),
        (Node, To::Cluster, Then::C(Masqueraded)),
        (External, To::Cluster, Then::C(Masqueraded)),
        // Node ports answer on the primary address alone, and never on loopback.
        (Client, To::OtherNodePort, Then::Nobody),
        (External, To::OtherNodePort, Then::Nobody),
        (Node, To::Loopback, Then::Nobody),
    ];
    // ext-cluster: always masqueraded.
    for to in [To::NodePort, To::ExternalIp, To::LoadBalancer] {
        elsewhere.extend([Client, Node, External].map(|from| (from, to, Then::C(Masqueraded))));
    }
    vec![
        scenario("one endpoint elsewhere", dual_service(), "c", &elsewhere),
        // Hairpin: a pod that reaches itself. A neighbour is not masqueraded for it.
        scenario(
            "one endpoint here",
            dual_service(),
            "b",
            &[(B, To::Cluster, Then::B(Masqueraded)), (Client, To::Cluster, Then::B(Kept))],
        ),
        scenario(
            "two endpoints",
            dual_service(),
            "bc",
            &[(Client, To::Cluster, Then::Either(Kept)), (External, To::NodePort, Then::Either(Masqueraded))],
        ),
    ]
}

/// externalTrafficPolicy and internalTrafficPolicy Local.
pub fn policies() -> Vec<Scenario> {
    let local = ServiceRecord { external_local: true, ..dual_service() };
    let internal = ServiceRecord { internal_local: true, ..dual_service() };
    let external = [To::NodePort, To::ExternalIp, To::LoadBalancer];
    // From inside: all endpoints. A pod keeps its address, the node is masqueraded.
    let here = external.map(|to| {
        [(External, to, Then::B(Kept)), (Client, to, Then::Either(Kept)), (Node, to, Then::Either(Masqueraded))]
    });
    // Endpoints elsewhere only: the outside is dropped, the inside still works.
    let elsewhere = external
        .map(|to| [(External, to, Then::Dropped), (Client, to, Then::C(Kept)), (Node, to, Then::C(Masqueraded))]);
    vec![
        scenario("endpoints here and elsewhere", local.clone(), "bc", here.as_flattened()),
        scenario("endpoints elsewhere only", local, "c", elsewhere.as_flattened()),
        scenario(
            "internal policy",
            internal.clone(),
            "bc",
            &[
                (Client, To::Cluster, Then::B(Kept)),
                (Node, To::Cluster, Then::B(Masqueraded)),
                (External, To::NodePort, Then::Either(Masqueraded)),
            ],
        ),
        scenario(
            "internal policy, none here",
            internal,
            "c",
            &[(Client, To::Cluster, Then::Dropped), (Client, To::NodePort, Then::C(Masqueraded))],
        ),
    ]
}

/// What cannot be served.
pub fn refusals() -> Vec<Scenario> {
    let to = [To::Cluster, To::ClusterOtherPort, To::NodePort, To::ExternalIp, To::LoadBalancer];
    let mut cases: Vec<Case> =
        [Client, Node, External].into_iter().flat_map(|from| to.map(|to| (from, to, Then::Refused))).collect();
    cases.push((Client, To::Unallocated, Then::Dropped));
    vec![
        scenario("no endpoints", dual_service(), "", &cases),
        // With an endpoint it works from the next packet on.
        scenario("an endpoint", dual_service(), "b", &[(Client, To::Cluster, Then::B(Kept))]),
    ]
}

/// A Service whose load balancer's addresses may be reached from these ranges.
pub fn with_ranges(ranges: &[&str]) -> ServiceRecord {
    ServiceRecord { source_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(), ..dual_service() }
}

/// loadBalancerSourceRanges.
pub fn ranges() -> Vec<Scenario> {
    let outside = ["192.168.7.1/32", "198.51.100.0/24", "fd00:7::1/128"];
    let local = ServiceRecord { external_local: true, ..with_ranges(&outside) };
    let lb = |from, then| (from, To::LoadBalancer, then);
    // Only the outside may come. All other frontends are as they were: for everybody.
    let mut alone = vec![(Client, To::Cluster, Then::C(Kept))];
    for to in [To::NodePort, To::ExternalIp] {
        alone.extend([Client, Node, External].map(|from| (from, to, Then::C(Masqueraded))));
    }
    alone.extend([lb(External, Then::C(Masqueraded)), lb(Client, Then::Dropped), lb(Node, Then::Dropped)]);
    vec![
        scenario("the outside alone", with_ranges(&outside), "c", &alone),
        // Another set of ranges, which overlaps the first: pods and the node (by its primary address), not the outside.
        scenario(
            "the inside alone",
            with_ranges(&["10.0.0.0/8", "192.168.7.2/31", "fd00:244::/32", "fd00:7::2/127"]),
            "c",
            &[lb(Client, Then::C(Masqueraded)), lb(External, Then::Dropped), lb(Node, Then::C(Masqueraded))],
        ),
        // Whoever may come is refused, others hear nothing.
        scenario(
            "ranges, no endpoints",
            with_ranges(&outside),
            "",
            &[lb(External, Then::Refused), lb(Client, Then::Dropped), (Client, To::ExternalIp, Then::Refused)],
        ),
        scenario(
            "ranges, local policy",
            local.clone(),
            "bc",
            &[lb(External, Then::B(Kept)), lb(Client, Then::Dropped), (Client, To::ExternalIp, Then::Either(Kept))],
        ),
        scenario(
            "ranges, local policy, none here",
            local,
            "c",
            &[lb(External, Then::Dropped), lb(Client, Then::Dropped)],
        ),
        scenario(
            "everywhere",
            with_ranges(&["192.168.7.1/32", "0.0.0.0/0", "::/0"]),
            "c",
            &[lb(External, Then::C(Masqueraded)), lb(Client, Then::C(Masqueraded))],
        ),
    ]
}
