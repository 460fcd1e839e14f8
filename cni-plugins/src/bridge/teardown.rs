//! DEL, and the commands that only concern the IPAM plugin.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::conf::Conf;
use crate::config::{self, IpamRef};
use crate::error::Error;
use crate::ipam;
use crate::masquerade;
use crate::net::{self, Net, NetNs};
use crate::skel::Request;
use crate::types::AddResult;

/// Detaches a container: interface, masquerading, addresses. Each is tried; the first error is reported.
pub fn del(request: &Request) -> Result<(), Error> {
    // Deliberately not the whole configuration: a key that ADD refuses must not keep a container from being deleted.
    let conf: DelConf = config::decode(&request.config)?;
    let (interface, mut addresses) = match delete_interface(request) {
        Ok(addresses) => (Ok(()), addresses),
        Err(error) => (Err(error), Vec::new()),
    };
    let masquerading = if conf.ip_masq {
        // The runtime's copy of the result knows the addresses when the namespace is gone.
        let previous = conf.prev_result.as_ref().and_then(|value| AddResult::parse(value).ok()).unwrap_or_default();
        addresses.extend(previous.ips.iter().map(|ip| ip.address.addr()));
        // Before they are free: else a new owner's could be hit.
        masquerade::remove(&addresses).map_err(Error::from)
    } else {
        Ok(())
    };
    let released = match conf.ipam.plugin.as_str() {
        "" => Ok(()),
        plugin => ipam::call(plugin, request).map_err(Error::from),
    };
    interface.and(masquerading).and(released)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DelConf {
    ipam: IpamRef,
    ip_masq: bool,
    prev_result: Option<Value>,
}

/// Deletes the interface and returns the addresses it had.
fn delete_interface(request: &Request) -> Result<Vec<IpAddr>, Error> {
    if request.netns.is_empty() {
        return Ok(Vec::new());
    }
    let namespace = match NetNs::open(&request.netns) {
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        other => other?,
    };
    let deleted = net::runtime()?.block_on(async {
        let inside = Net::inside(&namespace)?;
        let Some(link) = inside.link(&request.ifname).await? else { return Ok(Vec::new()) };
        let addresses = inside.addresses(&link).await?;
        inside.delete_link(&link).await?;
        Ok(addresses.iter().map(IpNet::addr).collect())
    });
    match deleted {
        Err(Error::NetNs(error)) if error.is_gone() => Ok(Vec::new()),
        other => other,
    }
}

/// GC and STATUS: the configuration must be right; the rest is the IPAM plugin's business. A pair whose container is gone needs no
/// collecting, the kernel takes it away with the namespace.
pub fn delegate(request: &Request) -> Result<(), Error> {
    let conf = Conf::load(request)?;
    if let Some(plugin) = &conf.ipam {
        ipam::call(plugin, request)?;
    }
    Ok(())
}
