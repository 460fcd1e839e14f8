//! What a trace must know of the machine: its addresses, and where its routes lead.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::IpNet;

use crate::interfaces;

/// A machine: this one, or one that a test describes.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    addresses: Vec<(String, IpAddr)>,
    /// Where packets go, by the interface's address; none: the kernel is asked.
    routes: Option<Vec<(IpNet, IpAddr)>>,
}

impl Machine {
    /// A machine with these addresses (with their interfaces) and routes (with the address that packets leave with).
    #[must_use]
    pub fn new(addresses: Vec<(String, IpAddr)>, routes: Vec<(IpNet, IpAddr)>) -> Self {
        Self { addresses, routes: Some(routes) }
    }

    /// The machine that this program runs on.
    ///
    /// # Errors
    /// When the kernel does not list its addresses.
    pub fn this() -> io::Result<Self> {
        Ok(Self { addresses: interfaces::addresses()?.collect(), routes: None })
    }

    /// Whether packets to an address end here.
    #[must_use]
    pub fn is_local(&self, addr: IpAddr) -> bool {
        addr.is_loopback() || self.addresses.iter().any(|(_, own)| *own == addr)
    }

    /// The address that a packet to there leaves with; none without a route.
    #[must_use]
    pub fn source_towards(&self, to: IpAddr) -> Option<IpAddr> {
        if let Some(routes) = &self.routes {
            let matching = routes.iter().filter(|(net, _)| net.contains(&to));
            return matching.max_by_key(|(net, _)| net.prefix_len()).map(|(_, from)| *from);
        }
        // Connecting a datagram socket sends nothing; the kernel chooses its address by the routes.
        let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        // Any port but 0 will do.
        socket.connect(SocketAddr::new(to, 9)).ok()?;
        socket.local_addr().ok().map(|addr| addr.ip())
    }

    /// The interface behind which an address is; none without a route.
    #[must_use]
    pub fn interface_towards(&self, addr: IpAddr) -> Option<String> {
        let own = self.source_towards(addr)?;
        self.addresses.iter().find(|(_, a)| *a == own).map(|(name, _)| name.clone())
    }
}
