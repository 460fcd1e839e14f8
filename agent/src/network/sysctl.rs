//! Kernel settings that routed pods need, and the MTU that they can use.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use tracing::warn;

/// What Ethernet has; the kernel's default for a bridge and its ports.
const USUAL_MTU: u32 = 1500;
/// Kernel settings: path below /proc/sys, whether pods work without it, what it is for.
const SYSCTLS: [(&str, &str); 3] = [
    ("net/ipv4/ip_forward", "without it pods reach nobody outside their node"),
    ("net/bridge/bridge-nf-call-iptables", "without it Services do not work between pods of one node"),
    ("net/ipv6/conf/all/forwarding", "without it IPv6 pods reach nobody outside their node"),
];

/// Turns on what the kernel must do for pods; says clearly what is missing.
pub fn enable_forwarding(ranges: &[IpNet]) {
    let v6 = ranges.iter().any(|r| matches!(r, IpNet::V6(_)));
    for (name, why) in SYSCTLS {
        let path = Path::new("/proc/sys").join(name);
        if (name.contains("ipv6") && !v6) || std::fs::read_to_string(&path).is_ok_and(|v| v.trim() == "1") {
            continue;
        }
        if name.contains("bridge-nf") && !path.exists() {
            // No br_netfilter: the kernel has it built in per namespace or not at all.
            warn!("{} is missing (load br_netfilter); {why}", path.display());
            continue;
        }
        if let Err(error) = std::fs::write(&path, "1") {
            warn!("cannot set {} to 1 ({error}); {why}", path.display());
        }
    }
}

/// The MTU of the link that has one of these addresses, unless it is the usual one: pods must not send more than the node
/// can pass on.
#[must_use]
pub fn uplink_mtu(addresses: &[IpAddr]) -> Option<u32> {
    let links = nix::ifaddrs::getifaddrs().ok()?;
    let ours = |storage: &nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        let v6 = storage.as_sockaddr_in6().map(|a| IpAddr::from(a.ip()));
        v4.or(v6).is_some_and(|ip| addresses.contains(&ip))
    };
    let link = links.into_iter().find(|link| link.address.as_ref().is_some_and(ours))?.interface_name;
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(link).join("mtu")).ok()?;
    text.trim().parse().ok().filter(|mtu| *mtu != USUAL_MTU)
}
