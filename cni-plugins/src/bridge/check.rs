//! CHECK: is everything still as the ADD has left it?

use super::CheckFailure;
use super::conf::Conf;
use super::gateways::next_hop;
use crate::error::Error;
use crate::ipam;
use crate::net::{self, InstalledRoute, Link, Net, NetNs};
use crate::skel::Request;
use crate::types::{AddResult, Interface};

/// Compares the kernel's state with `prevResult`.
pub fn check(request: &Request) -> Result<(), Error> {
    let conf = Conf::load(request)?;
    let namespace = NetNs::open(&request.netns)?;
    if let Some(plugin) = &conf.ipam {
        ipam::call(plugin, request)?;
    }
    let previous = AddResult::parse(conf.prev_result.as_ref().ok_or(CheckFailure::NoPrevResult)?)?;
    net::runtime()?.block_on(async {
        let host = Net::here()?;
        let inside = Net::inside(&namespace)?;
        let bridge = check_bridge(&host, &conf, &previous).await?;
        let container = check_container(&inside, request, &previous).await?;
        check_pair(&host, &bridge, &container, &previous).await?;
        check_addresses(&inside, &container, &previous).await
    })
}

async fn check_bridge(host: &Net, conf: &Conf, previous: &AddResult) -> Result<Link, Error> {
    let listed = previous.interfaces.iter().find(|one| one.name == conf.bridge && one.sandbox.is_empty());
    let listed = listed.ok_or_else(|| CheckFailure::NotListed(conf.bridge.clone()))?;
    let link = find(host, listed, "bridge").await?;
    // Only IFF_PROMISC, which is what the key sets: somebody's tcpdump is not a broken attachment.
    if link.promiscuous != conf.promiscuous {
        return Err(CheckFailure::Promiscuous { name: link.name, wanted: conf.promiscuous }.into());
    }
    Ok(link)
}

async fn check_container(inside: &Net, request: &Request, previous: &AddResult) -> Result<Link, Error> {
    let listed = previous.interfaces.iter().find(|one| one.name == request.ifname && one.sandbox == request.netns);
    let listed = listed.ok_or_else(|| CheckFailure::NotListed(request.ifname.clone()))?;
    find(inside, listed, "veth").await
}

/// One of the listed host interfaces must be the container's other end, and plugged into the bridge.
async fn check_pair(host: &Net, bridge: &Link, container: &Link, previous: &AddResult) -> Result<(), Error> {
    for listed in previous.interfaces.iter().filter(|one| one.sandbox.is_empty() && one.name != bridge.name) {
        let Some(link) = host.link(&listed.name).await? else { continue };
        let paired = link.peer == Some(container.index) && container.peer == Some(link.index);
        if link.is_veth() && paired && link.controller == Some(bridge.index) {
            return Ok(compare_mac(&link, listed)?);
        }
    }
    Err(CheckFailure::Unplugged(bridge.name.clone()).into())
}

async fn find(net: &Net, listed: &Interface, kind: &'static str) -> Result<Link, Error> {
    let link = net.link(&listed.name).await?.ok_or_else(|| CheckFailure::Missing(listed.name.clone()))?;
    if link.kind != kind {
        return Err(CheckFailure::Kind { name: link.name, kind }.into());
    }
    compare_mac(&link, listed)?;
    Ok(link)
}

fn compare_mac(link: &Link, listed: &Interface) -> Result<(), CheckFailure> {
    if listed.mac.is_empty() || listed.mac.eq_ignore_ascii_case(&link.mac) {
        return Ok(());
    }
    let (name, found, wanted) = (link.name.clone(), link.mac.clone(), listed.mac.clone());
    Err(CheckFailure::Mac { name, found, wanted })
}

async fn check_addresses(inside: &Net, link: &Link, previous: &AddResult) -> Result<(), Error> {
    let addresses = inside.addresses(link).await?;
    if let Some(ip) = previous.ips.iter().find(|ip| !addresses.contains(&ip.address)) {
        return Err(CheckFailure::Address { name: link.name.clone(), address: ip.address }.into());
    }
    let installed = inside.routes().await?;
    for route in &previous.routes {
        // A route without a next hop was given the gateway's by ADD (the reference's own CHECK stumbles over that).
        let gw = next_hop(route, &previous.ips);
        let dst = route.dst.trunc();
        let matches = |found: &InstalledRoute| {
            found.dst == dst && found.gw == gw && route.table.is_none_or(|table| table == found.table)
        };
        if !installed.iter().any(matches) {
            return Err(CheckFailure::Route(route.dst).into());
        }
    }
    Ok(())
}
