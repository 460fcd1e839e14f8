//! Compact records of what the API says: only the fields that decide where a packet goes.
//!
//! At 5,000 services with 50 endpoints each an endpoint must cost tens of bytes, not the kilobyte
//! of a decoded object: see [`EndpointRecord`]. Upstream counterpart: `ServicePortInfo` and
//! `BaseEndpointInfo` in `pkg/proxy`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use keelson_netfilter::nft::Family as NftFamily;

/// `namespace/name`.
pub type Name = Arc<str>;

/// Layer 4 protocols a Service port can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl Protocol {
    /// From the API's word; missing means TCP, unknown ones are none.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// From the number in an IP header.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|p| *p as u8 == number)
    }

    /// The API's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The unspecified address, which stands for "any address of this node" in a frontend.
    #[must_use]
    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

impl From<NftFamily> for Family {
    fn from(family: NftFamily) -> Self {
        if family == NftFamily::Ipv4 { Self::V4 } else { Self::V6 }
    }
}

impl From<Family> for NftFamily {
    fn from(family: Family) -> Self {
        if family == Family::V4 { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// Where a packet is sent: address and port of a pod (or host) that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ep {
    /// Address.
    pub addr: IpAddr,
    /// Port.
    pub port: u16,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Name, empty for an unnamed single port; it selects the slices' ports.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port on the cluster and external addresses.
    pub port: u16,
    /// Port on the nodes, 0 for none.
    pub node_port: u16,
}

/// A Service, as far as traffic is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceRecord {
    /// Cluster addresses, one for each family.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Load balancer ingress addresses with ipMode VIP (or unset).
    pub load_balancer_ips: Vec<IpAddr>,
    /// From where the load balancer's addresses may be reached; none for everywhere.
    pub source_ranges: Vec<ipnet::IpNet>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`, for a Service that has external addresses or node ports.
    pub external_local: bool,
    /// ClientIP affinity: time to live in seconds.
    pub affinity_seconds: Option<u32>,
    /// `spec.healthCheckNodePort`, 0 for none.
    pub health_check_node_port: u16,
}

impl ServiceRecord {
    /// Whether not everybody may reach the load balancer's addresses.
    #[must_use]
    pub fn guarded(&self) -> bool {
        !self.source_ranges.is_empty()
    }
}

/// An endpoint of a slice: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointRecord {
    /// Address.
    pub addr: IpAddr,
    /// Takes new connections.
    pub ready: bool,
    /// Could still take connections, though it may be going.
    pub serving: bool,
    /// Being deleted.
    pub terminating: bool,
    /// On this node.
    pub local: bool,
    /// Number of its topology hints in the model's table, 0 for none.
    pub hints: u32,
}

/// A port of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// Name, matched with the Service port's.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port number on the endpoints.
    pub port: u16,
}

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceRecord {
    /// The Service it belongs to.
    pub service: Name,
    /// Family of its addresses.
    pub family: Family,
    /// Ports.
    pub ports: Box<[SlicePort]>,
    /// Endpoints.
    pub endpoints: Box<[EndpointRecord]>,
}

/// What the model needs to know of its own node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeRecord {
    /// `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// Addresses of type InternalIP, the first of each family being the primary one.
    pub internal_ips: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<ipnet::IpNet>,
    /// Being deleted, or tainted for removal by the autoscaler: healthz then fails.
    pub leaving: bool,
}

impl NodeRecord {
    /// The primary address of a family.
    #[must_use]
    pub fn primary(&self, family: Family) -> Option<IpAddr> {
        self.internal_ips.iter().copied().find(|ip| Family::of(*ip) == family)
    }

    /// The primary addresses of both families.
    pub fn primaries(&self) -> impl Iterator<Item = IpAddr> {
        [Family::V4, Family::V6].into_iter().filter_map(|family| self.primary(family))
    }
}

/// Topology hints of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Hints {
    /// Zones that should use it.
    pub zones: Vec<Arc<str>>,
    /// Nodes that should use it.
    pub nodes: Vec<Arc<str>>,
}

/// Addresses that no endpoint may have (CVE-2021-25737): a slice could aim a Service at the node's
/// own loopback, its metadata service or a multicast group.
#[must_use]
pub fn endpoint_address_allowed(addr: IpAddr) -> bool {
    // An IPv4 address in IPv6 clothes is no IPv6 destination, and would hide what it is.
    addr.to_canonical() == addr
        && !addr.is_loopback()
        && !addr.is_multicast()
        && !addr.is_unspecified()
        && match addr {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_no_endpoints() {
        for special in [
            "0.0.0.0",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "224.0.0.1",
            "239.1.2.3",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "ff0e::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
        ] {
            assert!(!endpoint_address_allowed(special.parse().unwrap()), "{special}");
        }
        for usual in ["10.244.0.1", "192.168.0.1", "203.0.113.7", "fd00::1", "2001:db8::1"] {
            assert!(endpoint_address_allowed(usual.parse().unwrap()), "{usual}");
        }
    }
}
