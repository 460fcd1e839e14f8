//! Which addresses the bridge gets, and which routes the container. Pure.

use std::net::IpAddr;

use ipnet::IpNet;

use super::conf::Conf;
use crate::types::{AddResult, IpConfig, Route};

/// Index of the container's interface in the result: after the bridge and the host's end.
pub const CONTAINER_INTERFACE: usize = 2;

/// Completes addresses and routes of an IPAM result, and lists the addresses that the bridge must have.
pub fn complete(result: &mut AddResult, conf: &Conf) -> Vec<IpNet> {
    let mut gateways = Vec::new();
    let mut defaults = [false; 2];
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER_INTERFACE);
        if !conf.is_gateway {
            continue;
        }
        let gateway = *ip.gateway.get_or_insert_with(|| first_host(ip.address));
        if conf.is_default_gateway {
            let any = default_net(gateway);
            let done = &mut defaults[usize::from(gateway.is_ipv6())];
            *done = *done || result.routes.iter().any(|route| route.gw.is_some() && route.dst == any);
            if !*done {
                result.routes.push(Route::new(any, Some(gateway)));
                *done = true;
            }
        }
        if let Ok(address) = IpNet::new(gateway, ip.address.prefix_len()) {
            gateways.push(address);
        }
    }
    gateways
}

/// The next hop of a route that names none: the first gateway of its family.
pub fn next_hop(route: &Route, ips: &[IpConfig]) -> Option<IpAddr> {
    let v4 = route.dst.addr().is_ipv4();
    route.gw.or_else(|| ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4))
}

fn default_net(gateway: IpAddr) -> IpNet {
    let unspecified: IpAddr = match gateway {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    IpNet::new_assert(unspecified, 0)
}

/// By convention the gateway is the first host of a subnet.
fn first_host(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_add(1).into()),
    }
}

#[cfg(test)]
#[path = "gateways_tests.rs"]
mod tests;
