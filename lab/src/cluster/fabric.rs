//! The lab's network: the host's link, the switch, and a link for each machine.
//!
//! The switch is a namespace with a bridge and nothing else. It is the gateway of all machines and has no way out of the
//! lab. It knows nothing of pods: as in any network around a cluster, only the nodes' own routes lead to them, and
//! those of the control plane's machine, whose API server proxies to pods.

use ipnet::Ipv4Net;

use super::LabError;
use super::plan::{self, BRIDGE, LINK, Plan};
use crate::net::{Namespace, NetError, within};
use crate::process::Process;

/// Name of the host link's other end while it is still on the host.
fn far_end(number: u8) -> String {
    format!("{}p", plan::host_link(number))
}

/// Finds a free number for a lab and makes the host's link, whose name reserves it.
pub fn reserve(owner: &str) -> Result<u8, LabError> {
    let owner = owner.to_owned();
    let number = within(None, |net| async move {
        let routes = net.destinations().await?;
        for number in plan::free_numbers(&routes) {
            let link = plan::host_link(number);
            match net.pair(&link, &far_end(number)).await {
                Ok(()) => {
                    net.alias(&link, &owner).await?;
                    return Ok(Some(number));
                }
                Err(error) if error.errno() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    })?;
    number.ok_or(LabError::NoNetwork)
}

/// The number of the lab whose host link carries this owner, when its folder was lost.
pub fn find(owner: &str) -> Result<Option<u8>, LabError> {
    let owner = owner.to_owned();
    Ok(within(None, |net| async move {
        for number in 1..=250 {
            if let Some((_, Some(alias))) = net.find(&plan::host_link(number)).await?
                && alias == owner
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    })?)
}

/// Joins the host and the switch and gives both their addresses.
pub fn join_host(plan: &Plan, owner: &str, switch: Process) -> Result<(), LabError> {
    let link = plan.host_link();
    let far = far_end(plan.number);
    within(Some(switch), |net| async move {
        net.up("lo").await?;
        net.bridge(BRIDGE).await?;
        net.address(BRIDGE, plan.with_length(plan.gateway())).await?;
        net.up(BRIDGE).await
    })?;
    let namespace = Namespace::of(switch)?;
    let joined = within(Some(switch), |net| {
        let far = far.clone();
        async move { Ok(net.find(&far).await?.is_some()) }
    })?;
    within(None, |net| {
        let (link, far) = (link.clone(), far.clone());
        async move {
            if !joined {
                // A link left over from a switch that died has lost its other end, so it is gone too; one left over
                // from an `up` that was killed still has it here.
                if net.find(&link).await?.is_none() {
                    net.pair(&link, &far).await?;
                    net.alias(&link, owner).await?;
                }
                net.give(&far, namespace.fd()).await?;
            }
            net.address(&link, plan.with_length(plan.host())).await?;
            net.up(&link).await
        }
    })?;
    within(Some(switch), |net| async move { net.port(&far, BRIDGE).await })?;
    settings(switch)?;
    Ok(())
}

/// The switch routes, as a gateway does; and it must not tell machines of shorter ways.
fn settings(switch: Process) -> Result<(), NetError> {
    within(Some(switch), |_| async move {
        for (key, value) in [("ip_forward", "1"), ("conf/all/send_redirects", "0"), ("conf/br0/send_redirects", "0")] {
            // These files are those of the network namespace of the thread that opens them.
            if let Err(error) = std::fs::write(format!("/proc/sys/net/ipv4/{key}"), value) {
                eprintln!("lab: the switch's setting {key} cannot be changed: {error}");
            }
        }
        Ok(())
    })
}

/// A machine's link on the side of the switch.
fn port(address: std::net::Ipv4Addr) -> String {
    format!("port{}", address.octets()[3])
}

/// A machine keeps its hardware address when it is started again, as real ones do: its neighbours remember it for some
/// seconds, and would send to nobody. Locally administered, and the machine's IP address in it.
fn mac(address: std::net::Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x6c, a, b, c, d]
}

/// Takes the link of a machine away, both ends. The kernel would do it by itself, but only some time after the last
/// process has left the machine's namespace.
pub fn unplug(switch: Process, address: std::net::Ipv4Addr) -> Result<(), LabError> {
    Ok(within(Some(switch), |net| async move { net.remove(&port(address)).await })?)
}

/// Gives a machine its link to the switch, its address and its default route.
pub fn join(plan: &Plan, switch: Process, machine: Process, address: std::net::Ipv4Addr) -> Result<(), LabError> {
    let port = port(address);
    let namespace = Namespace::of(machine)?;
    within(Some(switch), |net| async move {
        if net.find(&port).await?.is_none() {
            net.pair_into(&port, LINK, mac(address), namespace.fd()).await?;
        }
        net.port(&port, BRIDGE).await
    })?;
    within(Some(machine), |net| async move {
        net.up("lo").await?;
        net.address(LINK, plan.with_length(address)).await?;
        net.up(LINK).await?;
        net.route(Ipv4Net::default(), plan.gateway()).await
    })?;
    Ok(())
}

/// Tells a machine where a node's pods are.
pub fn route_pods(machine: Process, pods: Ipv4Net, node: std::net::Ipv4Addr) -> Result<(), LabError> {
    Ok(within(Some(machine), |net| async move { net.route(pods, node).await })?)
}

/// Removes the host's link, unless it is another's.
pub fn remove(number: u8, owner: &str) -> Result<(), LabError> {
    let link = plan::host_link(number);
    let owner = owner.to_owned();
    Ok(within(None, |net| async move {
        match net.find(&link).await? {
            Some((_, Some(alias))) if alias != owner => Ok(()),
            Some(_) => net.remove(&link).await,
            None => Ok(()),
        }
    })?)
}
