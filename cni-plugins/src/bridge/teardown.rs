//! DEL, and the commands that only concern the IPAM plugin.

use super::conf::Conf;
use crate::error::Error;
use crate::ipam;
use crate::net::{self, Net, NetNs};
use crate::skel::Request;

/// Detaches a container: interface, then addresses. Both are tried; the first error is reported.
pub fn del(request: &Request) -> Result<(), Error> {
    // Deliberately not the whole configuration: a key that ADD refuses must not keep a container from being deleted.
    let plugin = ipam::plugin_of(&request.config)?;
    let interface = delete_interface(request);
    let addresses = match plugin {
        Some(plugin) => ipam::call(&plugin, request).map_err(Error::from),
        None => Ok(()),
    };
    interface.and(addresses)
}

fn delete_interface(request: &Request) -> Result<(), Error> {
    if request.netns.is_empty() {
        return Ok(());
    }
    let namespace = match NetNs::open(&request.netns) {
        Err(error) if error.is_gone() => return Ok(()),
        other => other?,
    };
    let deleted = net::runtime()?.block_on(async {
        let inside = Net::inside(&namespace)?;
        match inside.link(&request.ifname).await? {
            Some(link) => Ok(inside.delete_link(&link).await?),
            None => Ok(()),
        }
    });
    match deleted {
        Err(Error::NetNs(error)) if error.is_gone() => Ok(()),
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
