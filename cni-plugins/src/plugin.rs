//! The plugins by name, and what each does with a request.

use crate::error::Error;
use crate::skel::{Command, Request};
use crate::types::AddResult;
use crate::{bridge, host_local, loopback, portmap};

/// A plugin of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// Brings `lo` up.
    Loopback,
    /// A veth pair into a Linux bridge.
    Bridge,
    /// Address management in a local folder.
    HostLocal,
    /// Ports of the host that lead into the container.
    Portmap,
}

impl Plugin {
    /// Every plugin.
    pub const ALL: [Self; 4] = [Self::Loopback, Self::Bridge, Self::HostLocal, Self::Portmap];

    /// The name that conflists and links use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Bridge => "bridge",
            Self::HostLocal => "host-local",
            Self::Portmap => "portmap",
        }
    }

    /// The plugin of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == name)
    }

    /// Does what the request asks; only ADD has a result.
    pub fn call(self, request: &Request) -> Result<Option<AddResult>, Error> {
        match (self, request.command) {
            (_, Command::Version) => Ok(None),
            (Self::Loopback, Command::Add) => loopback::add(request).map(Some),
            (Self::Loopback, Command::Del) => loopback::del(request).map(|()| None),
            (Self::Loopback, Command::Check) => loopback::check(request).map(|()| None),
            // Nothing is kept anywhere, and nothing can be missing.
            (Self::Loopback, Command::Gc | Command::Status) => Ok(None),
            (Self::Bridge, Command::Add) => bridge::add(request).map(Some),
            (Self::Bridge, Command::Del) => bridge::del(request).map(|()| None),
            (Self::Bridge, Command::Check) => bridge::check(request).map(|()| None),
            (Self::Bridge, Command::Gc | Command::Status) => bridge::delegate(request).map(|()| None),
            (Self::HostLocal, Command::Add) => Ok(Some(host_local::add(request)?)),
            (Self::HostLocal, Command::Del) => Ok(host_local::del(request).map(|()| None)?),
            (Self::HostLocal, Command::Check) => Ok(host_local::check(request).map(|()| None)?),
            (Self::HostLocal, Command::Gc) => Ok(host_local::gc(request).map(|()| None)?),
            (Self::Portmap, Command::Add) => portmap::add(request).map(Some),
            (Self::Portmap, Command::Del) => portmap::del(request).map(|()| None),
            (Self::Portmap, Command::Check) => portmap::check(request).map(|()| None),
            (Self::Portmap, Command::Gc) => portmap::gc(request).map(|()| None),
            (Self::Portmap, Command::Status) => portmap::status(request).map(|()| None),
            (Self::HostLocal, Command::Status) => Ok(host_local::status(request).map(|()| None)?),
        }
    }
}
