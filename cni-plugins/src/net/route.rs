//! Routes of a namespace.

use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope};
use rtnetlink::RouteMessageBuilder;

use super::{Link, Net, NetError};
use crate::types::Route;

const EEXIST: i32 = 17;
const ENETUNREACH: i32 = 101;
const MAIN_TABLE: u32 = 254;

/// A route as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledRoute {
    /// Destination.
    pub dst: IpNet,
    /// Next hop.
    pub gw: Option<IpAddr>,
    /// Routing table.
    pub table: u32,
}

impl Net {
    /// Adds a route through an interface. The first of two with the same destination wins, as in the reference.
    pub async fn add_route(&self, link: &Link, route: &Route, gateway: Option<IpAddr>) -> Result<(), NetError> {
        let action = || match gateway {
            Some(gateway) => format!("add route {} via {gateway} dev {}", route.dst, link.name),
            None => format!("add route {} dev {}", route.dst, link.name),
        };
        let odd = |reason: String| NetError::Answer { action: action(), reason };
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(route.dst.network(), route.dst.prefix_len())
            .map_err(|error| odd(error.to_string()))?
            .output_interface(link.index)
            .protocol(RouteProtocol::Boot)
            .scope(scope(route, gateway))
            .table_id(route.table.unwrap_or(MAIN_TABLE));
        if let Some(gateway) = gateway {
            builder = builder.gateway(gateway).map_err(|error| odd(error.to_string()))?;
        }
        if let Some(priority) = route.priority {
            builder = builder.priority(priority);
        }
        let mut message = builder.build();
        let metrics: Vec<RouteMetric> =
            [route.mtu.map(RouteMetric::Mtu), route.advmss.map(RouteMetric::Advmss)].into_iter().flatten().collect();
        if !metrics.is_empty() {
            message.attributes.push(RouteAttribute::Metrics(metrics));
        }
        let added = self.handle.route().add(message).execute().await;
        match added.map_err(|error| NetError::refused(action(), error)) {
            Err(error) if error.errno() == Some(EEXIST) => Ok(()),
            other => other,
        }
    }

    /// Name of the interface that leads to an address; none without a route.
    pub async fn link_towards(&self, address: IpAddr) -> Result<Option<String>, NetError> {
        let message = match address {
            IpAddr::V4(ip) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().destination_prefix(ip, 32).build(),
            IpAddr::V6(ip) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().destination_prefix(ip, 128).build(),
        };
        let action = || format!("look for the route to {address}");
        let found = match self.handle.route().get(message).execute().try_next().await {
            Ok(found) => found,
            Err(error) => {
                let error = NetError::refused(action(), error);
                return if error.errno() == Some(ENETUNREACH) { Ok(None) } else { Err(error) };
            }
        };
        let index = found.and_then(|message| {
            message.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            })
        });
        let name = index.and_then(|index| nix::net::if_::if_indextoname(index).ok());
        Ok(name.map(|name| name.to_string_lossy().into_owned()))
    }

    /// All unicast routes of both families.
    pub async fn routes(&self) -> Result<Vec<InstalledRoute>, NetError> {
        let mut found = Vec::new();
        for message in [
            RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
            RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
        ] {
            let messages: Result<Vec<RouteMessage>, _> = self.handle.route().get(message).execute().try_collect().await;
            let messages = messages.map_err(|error| NetError::refused("list the routes", error))?;
            found.extend(messages.iter().filter_map(installed));
        }
        Ok(found)
    }
}

/// Without a next hop the destination is on the link (IPv6 has no scopes, the kernel ignores it there).
fn scope(route: &Route, gateway: Option<IpAddr>) -> RouteScope {
    match (route.scope, gateway) {
        (Some(scope), _) => RouteScope::from(scope),
        (None, Some(_)) => RouteScope::Universe,
        (None, None) => RouteScope::Link,
    }
}

fn installed(message: &RouteMessage) -> Option<InstalledRoute> {
    let mut destination = None;
    let mut gw = None;
    let mut table = u32::from(message.header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Gateway(address) => gw = ip(address),
            RouteAttribute::Table(id) => table = *id,
            _ => {}
        }
    }
    let unspecified = match message.header.address_family {
        netlink_packet_route::AddressFamily::Inet => IpAddr::from([0; 4]),
        netlink_packet_route::AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let dst = IpNet::new(destination.unwrap_or(unspecified), message.header.destination_prefix_length).ok()?;
    Some(InstalledRoute { dst, gw, table })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
