//! The `loopback` plugin: brings `lo` up in the container.
//!
//! Upstream counterpart: `plugins/main/loopback`. It ignores `CNI_IFNAME`: a namespace has one loopback interface, named `lo`.

use serde::Deserialize;
use serde_json::Value;

use crate::config;
use crate::error::Error;
use crate::net::{self, Net, NetNs};
use crate::skel::Request;
use crate::types::{AddResult, Interface, IpConfig};

const LOOPBACK: &str = "lo";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Conf {
    prev_result: Option<Value>,
}

/// Brings `lo` up and reports it; in a chain, passes on what came before.
pub fn add(request: &Request) -> Result<AddResult, Error> {
    let conf: Conf = config::decode(&request.config)?;
    let previous = conf.prev_result.as_ref().map(AddResult::parse).transpose()?;
    let namespace = NetNs::open(&request.netns)?;
    let (mac, addresses) = net::runtime()?.block_on(async {
        let inside = Net::inside(&namespace)?;
        let link = inside.existing_link(LOOPBACK).await?;
        inside.set_up(&link).await?;
        Ok::<_, Error>((link.mac.clone(), inside.addresses(&link).await?))
    })?;
    if let Some(previous) = previous {
        return Ok(previous);
    }
    let interface = Interface { name: LOOPBACK.to_owned(), mac, mtu: None, sandbox: request.netns.clone() };
    let ips = addresses.into_iter().map(|address| IpConfig { interface: Some(0), address, gateway: None }).collect();
    Ok(AddResult { interfaces: vec![interface], ips, ..AddResult::default() })
}

/// Takes `lo` down again, if there is still a namespace to do it in.
pub fn del(request: &Request) -> Result<(), Error> {
    if request.netns.is_empty() {
        return Ok(());
    }
    let namespace = match NetNs::open(&request.netns) {
        Err(error) if error.is_gone() => return Ok(()),
        other => other?,
    };
    let taken_down = net::runtime()?.block_on(async {
        let inside = Net::inside(&namespace)?;
        let link = inside.existing_link(LOOPBACK).await?;
        Ok::<_, Error>(inside.set_down(&link).await?)
    });
    match taken_down {
        Err(Error::NetNs(error)) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// `lo` must be up.
pub fn check(request: &Request) -> Result<(), Error> {
    let namespace = NetNs::open(&request.netns)?;
    net::runtime()?.block_on(async {
        let inside = Net::inside(&namespace)?;
        if inside.existing_link(LOOPBACK).await?.up { Ok(()) } else { Err(Error::LoopbackDown) }
    })
}
