//! The kernel's routes behind a small seam: those that carry our protocol number, and notice of what happens to them.
//!
//! Invariant: only routes with [`PROTOCOL`] are ever changed or removed; a foreign route in the way is an error.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use ipnet::IpNet;
use netlink_sys::{AsyncSocket, AsyncSocketExt, TokioSocket, protocols::NETLINK_ROUTE};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::routes::{Found, Step};

/// By this number routes are known as ours, also after a restart. Free in iproute2's `rt_protos` and in the kernel's list.
pub const PROTOCOL: u8 = 107;

/// The kernel would not do something with a route. Retryable.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// No netlink socket.
    #[error("cannot open a netlink socket for routes: {0}")]
    Open(#[source] io::Error),
    /// A socket broke.
    #[error("cannot read the kernel's notices about routes: {0}")]
    Notices(#[source] io::Error),
    /// The routes could not be listed.
    #[error("cannot list the routes: {0}")]
    List(#[source] io::Error),
    /// The gateway is on no network that this node is on.
    #[error("{gateway} is not on a network of this node, and host-gw needs all nodes on one")]
    Unreachable {
        /// The other node's address.
        gateway: IpAddr,
    },
    /// Somebody else has a route to the same place.
    #[error("there is a route to {range} that is not ours: remove it, or give the node another range")]
    Foreign {
        /// The destination.
        range: IpNet,
    },
    /// Anything else.
    #[error("cannot change the route to {range}: {source}")]
    Refused {
        /// The destination.
        range: IpNet,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// What the follower needs of the kernel.
pub trait RouteTable: Send {
    /// Our routes.
    ///
    /// # Errors
    /// [`RouteError::List`].
    fn list(&mut self) -> impl Future<Output = Result<Vec<Found>, RouteError>> + Send;

    /// Makes one change; removing what is gone is no error.
    ///
    /// # Errors
    /// See [`RouteError`].
    fn apply(&mut self, step: &Step) -> impl Future<Output = Result<(), RouteError>> + Send;
}

/// Route netlink in the namespace in which it was opened.
pub struct KernelRoutes {
    handle: Handle,
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for KernelRoutes {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// The error number behind a refusal.
fn os_error(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => io::Error::from_raw_os_error(message.raw_code().abs()),
        other => io::Error::other(other.to_string()),
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn found(message: &RouteMessage) -> Option<Found> {
    let (mut to, mut gateway, mut link) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = ip(address),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Oif(index) => link = Some(*index),
            _ => {}
        }
    }
    let to = to.or(match message.header.address_family {
        AddressFamily::Inet => Some(Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    })?;
    Some(Found { range: IpNet::new(to, message.header.destination_prefix_length).ok()?, gateway, link })
}

/// The message for a route of ours; without a gateway any matches.
fn message(range: IpNet, gateway: Option<IpAddr>) -> RouteMessage {
    let protocol = RouteProtocol::Other(PROTOCOL);
    match range {
        IpNet::V4(net) => {
            let mut builder = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .protocol(protocol);
            if let Some(IpAddr::V4(gateway)) = gateway {
                builder = builder.gateway(gateway);
            }
            builder.build()
        }
        IpNet::V6(net) => {
            let mut builder = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .protocol(protocol);
            if let Some(IpAddr::V6(gateway)) = gateway {
                builder = builder.gateway(gateway);
            }
            builder.build()
        }
    }
}

impl KernelRoutes {
    /// Opens a socket in the calling thread's network namespace. Needs the runtime's context.
    ///
    /// # Errors
    /// [`RouteError::Open`].
    pub fn open() -> Result<Self, RouteError> {
        // Strict: the kernel itself leaves out all routes but ours.
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check().map_err(RouteError::Open)?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    async fn change(&self, range: IpNet, gateway: IpAddr, replace: bool) -> Result<(), RouteError> {
        let mut request = self.handle.route().add(message(range, Some(gateway)));
        if replace {
            request = request.replace();
        }
        request.execute().await.map_err(|error| {
            let source = os_error(error);
            match source.raw_os_error() {
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => RouteError::Unreachable { gateway },
                Some(libc::EEXIST) => RouteError::Foreign { range },
                _ => RouteError::Refused { range, source },
            }
        })
    }
}

impl RouteTable for KernelRoutes {
    async fn list(&mut self) -> Result<Vec<Found>, RouteError> {
        let mut all = Vec::new();
        let families = [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
        for mut filter in families {
            filter.header.protocol = RouteProtocol::Other(PROTOCOL);
            let listed: Result<Vec<RouteMessage>, _> = self.handle.route().get(filter).execute().try_collect().await;
            match listed.map_err(os_error) {
                // Kernels before 4.20 do not filter.
                Ok(messages) => all.extend(
                    messages.iter().filter(|m| m.header.protocol == RouteProtocol::Other(PROTOCOL)).filter_map(found),
                ),
                // A family that is switched off, or a table that nothing was ever put in.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAFNOSUPPORT)) => {}
                Err(error) => return Err(RouteError::List(error)),
            }
        }
        Ok(all)
    }

    async fn apply(&mut self, step: &Step) -> Result<(), RouteError> {
        match step {
            Step::Add(range, gateway) => self.change(*range, *gateway, false).await,
            Step::Replace(range, gateway) => self.change(*range, *gateway, true).await,
            Step::Remove(route) => {
                let removed = self.handle.route().del(message(route.range, route.gateway)).execute().await;
                match removed.map_err(os_error) {
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
                    other => other.map_err(|source| RouteError::Refused { range: route.range, source }),
                }
            }
        }
    }
}

/// The groups of notices: links, addresses and routes of both families (bits of `RTMGRP_*`).
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// Room for notices while the agent is busy; beyond it they are lost and everything is listed.
const RECEIVE_BUFFER: usize = 256 * 1024;
/// One notice is a few hundred bytes; a link's can be 2 KiB.
const NOTICE_BYTES: usize = 16 * 1024;

/// Notice of changes that can concern our routes.
pub struct Notices {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Notices {
    /// Subscribes in the calling thread's network namespace. Needs the runtime's context.
    ///
    /// # Errors
    /// [`RouteError::Open`].
    pub fn open() -> Result<Self, RouteError> {
        let open = || -> io::Result<TokioSocket> {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind_auto()?;
            socket.socket_mut().set_rx_buf_sz(RECEIVE_BUFFER)?;
            for group in GROUPS {
                socket.socket_mut().add_membership(group)?;
            }
            Ok(socket)
        };
        Ok(Self { socket: open().map_err(RouteError::Open)?, buffer: Vec::with_capacity(NOTICE_BYTES) })
    }

    /// Waits for something that can concern our routes, which go out by `links`; `blocked`: one of them cannot be made, and
    /// any other route's end may change that. Safe to drop at any point.
    ///
    /// # Errors
    /// [`RouteError::Notices`].
    pub async fn next(&mut self, links: &[u32], blocked: bool) -> Result<(), RouteError> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer).await {
                Ok(()) if concerns(&self.buffer, links, blocked) => return Ok(()),
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(RouteError::Notices(error)),
            }
        }
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const NLM_F_REPLACE: u16 = 0x100;
const HEADER: usize = 16;

/// Whether one of the notices can concern our routes: one of ours is gone, any was replaced, a new address came, or a link
/// that ours go out by changed (the kernel drops IPv4 routes with a link and says nothing of it).
fn concerns(mut bytes: &[u8], links: &[u32], blocked: bool) -> bool {
    let half = |at: &[u8]| at.try_into().map(u16::from_ne_bytes).unwrap_or_default();
    let word = |at: &[u8]| at.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    while bytes.len() >= HEADER + 8 {
        let length = word(&bytes[..4]) as usize;
        let (kind, flags, body) = (half(&bytes[4..6]), half(&bytes[6..8]), &bytes[HEADER..]);
        let hit = match kind {
            // struct rtmsg: the protocol is its sixth byte.
            RTM_DELROUTE => body[5] == PROTOCOL || blocked,
            RTM_NEWROUTE => flags & NLM_F_REPLACE != 0 && body[5] != PROTOCOL,
            RTM_NEWADDR => true,
            // struct ifinfomsg and ifaddrmsg: the index is the second word.
            RTM_NEWLINK | RTM_DELLINK | RTM_DELADDR => links.contains(&word(&body[4..8])),
            _ => false,
        };
        if hit {
            return true;
        }
        let step = length.next_multiple_of(4);
        if step < HEADER || step > bytes.len() {
            return false;
        }
        bytes = &bytes[step..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(kind: u16, flags: u16, body: [u8; 8]) -> Vec<u8> {
        let mut bytes = 24_u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    fn link(index: u32) -> [u8; 8] {
        let mut body = [0; 8];
        body[4..].copy_from_slice(&index.to_ne_bytes());
        body
    }

    #[test]
    fn only_what_can_concern_our_routes_wakes() {
        let ours = [2, 24, 0, 0, 254, PROTOCOL, 0, 1];
        let other = [2, 24, 0, 0, 254, 4, 0, 1];
        assert!(concerns(&notice(RTM_DELROUTE, 0, ours), &[], false));
        assert!(!concerns(&notice(RTM_DELROUTE, 0, other), &[], false));
        assert!(concerns(&notice(RTM_DELROUTE, 0, other), &[], true));
        assert!(!concerns(&notice(RTM_NEWROUTE, 0x600, ours), &[], false));
        assert!(concerns(&notice(RTM_NEWROUTE, NLM_F_REPLACE, other), &[], false));
        assert!(concerns(&notice(RTM_NEWLINK, 0, link(7)), &[3, 7], false));
        assert!(!concerns(&notice(RTM_NEWLINK, 0, link(8)), &[3, 7], false));
        assert!(concerns(&notice(RTM_NEWADDR, 0, link(8)), &[], false));
        let mut two = notice(RTM_NEWLINK, 0, link(8));
        two.extend(notice(RTM_DELROUTE, 0, ours));
        assert!(concerns(&two, &[], false));
    }

    #[test]
    fn garbled_notices_end_the_reading() {
        for length in 0..30 {
            let mut bytes = notice(RTM_NEWLINK, 0, link(1));
            bytes.truncate(length);
            assert!(!concerns(&bytes, &[], false));
        }
        let mut bytes = notice(RTM_NEWLINK, 0, link(1));
        bytes[..4].copy_from_slice(&0_u32.to_ne_bytes());
        assert!(!concerns(&bytes, &[], false));
    }
}
