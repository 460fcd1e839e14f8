//! UDP flows that point at the wrong container. UDP has no end that the kernel could see: a client that goes on sending keeps
//! its entry, and with it the container that had the port before, or the host itself. Entries are deleted one by one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use keelson_netfilter::conntrack::{Conntrack, ConntrackError, Entry, KernelConntrack};
use keelson_netfilter::nft::Family;

use super::conf::{Mapping, Protocol};

/// Which flows are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// Those to the ports that are answered by anyone but the container: after an ADD.
    OfOthers,
    /// Those that the container answers: after a DEL.
    Own,
}

/// Ends flows to the UDP ports among `mappings`; how many.
pub fn forget(mappings: &[Mapping], container: IpAddr, flows: Flows) -> Result<usize, ConntrackError> {
    let udp: Vec<&Mapping> =
        mappings.iter().filter(|m| m.protocol == Protocol::Udp && m.is_for(container.is_ipv4())).collect();
    if udp.is_empty() {
        return Ok(0);
    }
    let family = if container.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let own = own_addresses();
    let mut conntrack = KernelConntrack::open()?;
    let mut found = Vec::new();
    conntrack.list(family, Protocol::Udp.number(), &mut |entry| {
        if concerns(&udp, container, flows, &own, &entry) {
            found.push(entry);
        }
    })?;
    let mut count = 0;
    for entry in &found {
        count += usize::from(conntrack.delete(entry)?);
    }
    Ok(count)
}

/// Addresses of this host; an empty set when they cannot be told.
fn own_addresses() -> BTreeSet<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let ip = |storage: nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    };
    all.filter_map(|one| one.address.and_then(ip)).collect()
}

/// A flow counts when it began at one of the ports on an address of this host: others pass by.
fn concerns(udp: &[&Mapping], container: IpAddr, flows: Flows, own: &BTreeSet<IpAddr>, entry: &Entry) -> bool {
    let (to, port) = (entry.orig.dst, entry.orig.dst_port);
    let local = own.contains(&to) || to.is_loopback();
    local
        && udp.iter().any(|mapping| {
            let here = mapping.host_ip.is_none_or(|ip| ip.is_unspecified() || ip == to);
            let answered = entry.reply.src == container && entry.reply.src_port == mapping.container_port;
            mapping.host_port == port && here && (answered == (flows == Flows::Own))
        })
}

#[cfg(test)]
mod tests {
    use keelson_netfilter::conntrack::Tuple;

    use super::*;

    fn entry(to: [u8; 4], port: u16, by: [u8; 4], by_port: u16) -> Entry {
        let client: IpAddr = [192, 0, 2, 9].into();
        let tuple = |src: IpAddr, src_port, dst: IpAddr, dst_port| Tuple { src, dst, proto: 17, src_port, dst_port };
        Entry {
            orig: tuple(client, 999, to.into(), port),
            reply: tuple(by.into(), by_port, client, 999),
            id: None,
            zone: 0,
        }
    }

    #[test]
    fn only_flows_at_the_ports_of_this_host_are_ended() {
        let mapping = Mapping { protocol: Protocol::Udp, host_ip: None, host_port: 53, container_port: 5353 };
        let pinned = Mapping { host_ip: Some([192, 0, 2, 2].into()), host_port: 54, ..mapping.clone() };
        let udp = [&mapping, &pinned];
        let own = BTreeSet::from([IpAddr::from([192, 0, 2, 1]), [192, 0, 2, 2].into()]);
        let (me, pod): (IpAddr, [u8; 4]) = ([10, 0, 0, 7].into(), [10, 0, 0, 7]);
        let hit = |flows, entry: &Entry| concerns(&udp, me, flows, &own, entry);
        let old = entry([192, 0, 2, 1], 53, [10, 0, 0, 5], 5353);
        let host = entry([192, 0, 2, 1], 53, [192, 0, 2, 1], 53);
        let mine = entry([192, 0, 2, 1], 53, pod, 5353);
        let passing = entry([198, 51, 100, 1], 53, [198, 51, 100, 1], 53);
        let elsewhere = entry([192, 0, 2, 1], 54, [10, 0, 0, 5], 5353);
        assert_eq!(
            [&old, &host, &mine, &passing, &elsewhere].map(|e| hit(Flows::OfOthers, e)),
            [true, true, false, false, false]
        );
        assert_eq!(
            [&old, &host, &mine, &passing, &elsewhere].map(|e| hit(Flows::Own, e)),
            [false, false, true, false, false]
        );
    }
}
