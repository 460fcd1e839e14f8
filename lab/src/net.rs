//! Links, addresses and routes of a lab, by route netlink in whatever network namespace they are needed.
//!
//! A namespace is entered by a thread of its own that ends there, so nothing else ever runs in a foreign namespace.
//! Every operation is an "ensure": what is there already is no error, because `up` repairs as well as makes.

use std::fs::File;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};

use futures::TryStreamExt;
use ipnet::Ipv4Net;
use nix::sched::{CloneFlags, setns};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::process::Process;

/// A failed change of the network. Retryable when a namespace was just going away.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The namespace cannot be entered.
    #[error("cannot enter the network namespace of pid {pid}: {source}")]
    Enter {
        /// Whose namespace.
        pid: i32,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// Netlink cannot be used at all.
    #[error("cannot open a netlink socket: {0}")]
    Socket(#[source] std::io::Error),
    /// The kernel refused a request.
    #[error("cannot {action}: {source}")]
    Refused {
        /// What was asked.
        action: String,
        /// What the kernel said.
        #[source]
        source: rtnetlink::Error,
    },
    /// There is no such link.
    #[error("there is no link {0}")]
    NoLink(String),
    /// The thread in the namespace died.
    #[error("the thread that worked in the network namespace died")]
    Thread,
}

impl NetError {
    /// The error number the kernel answered with.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source: rtnetlink::Error::NetlinkError(message), .. } => Some(-message.raw_code()),
            _ => None,
        }
    }
}

/// Runs `work` with a netlink handle in the namespace of `process` (or the host's, without one).
pub fn within<T, W, F>(process: Option<Process>, work: W) -> Result<T, NetError>
where
    T: Send,
    W: FnOnce(Net) -> F + Send,
    F: Future<Output = Result<T, NetError>>,
{
    let run = move || {
        if let Some(process) = process {
            let fail = |source| NetError::Enter { pid: process.pid, source };
            let namespace = File::open(process.proc().join("ns/net")).map_err(fail)?;
            setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| fail(errno.into()))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(NetError::Socket)?;
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().map_err(NetError::Socket)?;
            let connection = tokio::spawn(connection);
            let result = work(Net { handle }).await;
            connection.abort();
            result
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap_or(Err(NetError::Thread)))
}

/// Netlink in one namespace.
pub struct Net {
    handle: Handle,
}

fn refused(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> NetError {
    let action = action.into();
    |source| NetError::Refused { action, source }
}

/// Takes "it is there already" for success.
fn existing(result: Result<(), NetError>) -> Result<(), NetError> {
    match result {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

impl Net {
    /// Index and alias of a link, if there is one.
    pub async fn find(&self, name: &str) -> Result<Option<(u32, Option<String>)>, NetError> {
        let mut links = self.handle.link().get().match_name(name).execute();
        match links.try_next().await {
            Ok(Some(link)) => {
                let alias = link.attributes.iter().find_map(|attribute| match attribute {
                    LinkAttribute::IfAlias(alias) => Some(alias.clone()),
                    _ => None,
                });
                Ok(Some((link.header.index, alias)))
            }
            Ok(None) => Ok(None),
            Err(source) => {
                let error = refused(format!("look for the link {name}"))(source);
                if error.errno() == Some(libc::ENODEV) { Ok(None) } else { Err(error) }
            }
        }
    }

    async fn index(&self, name: &str) -> Result<u32, NetError> {
        let found = self.find(name).await?;
        found.map(|(index, _)| index).ok_or_else(|| NetError::NoLink(name.to_owned()))
    }

    /// A bridge of this name, up.
    pub async fn bridge(&self, name: &str) -> Result<(), NetError> {
        let message = LinkBridge::new(name).build();
        let result = self.handle.link().add(message).execute().await;
        existing(result.map_err(refused(format!("make the bridge {name}"))))
    }

    /// A pair of links, both here. Fails with `EEXIST` when `name` is taken.
    pub async fn pair(&self, name: &str, peer: &str) -> Result<(), NetError> {
        let message = LinkVeth::new(name, peer).build();
        let result = self.handle.link().add(message).execute().await;
        result.map_err(refused(format!("make the link {name}")))
    }

    /// A pair of links whose `peer`, with this hardware address, is made in another namespace.
    pub async fn pair_into(&self, name: &str, peer: &str, mac: [u8; 6], namespace: RawFd) -> Result<(), NetError> {
        let other = LinkUnspec::new_with_name(peer).address(mac.to_vec()).setns_by_fd(namespace).build();
        let message = LinkVeth::new(name, peer).set_info_data(InfoData::Veth(InfoVeth::Peer(other))).build();
        let result = self.handle.link().add(message).execute().await;
        existing(result.map_err(refused(format!("make the link {name}"))))
    }

    /// Gives a link away to another namespace.
    pub async fn give(&self, name: &str, namespace: RawFd) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_name(name).setns_by_fd(namespace).build();
        let result = self.handle.link().set(message).execute().await;
        result.map_err(refused(format!("move the link {name}")))
    }

    /// Says on a link whose it is.
    pub async fn alias(&self, name: &str, alias: &str) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_name(name).alias(alias).build();
        let result = self.handle.link().set(message).execute().await;
        result.map_err(refused(format!("name the owner of the link {name}")))
    }

    /// Switches a link on.
    pub async fn up(&self, name: &str) -> Result<(), NetError> {
        let message = LinkUnspec::new_with_name(name).up().build();
        let result = self.handle.link().set(message).execute().await;
        result.map_err(refused(format!("switch on the link {name}")))
    }

    /// Makes a link a port of a bridge, up.
    pub async fn port(&self, name: &str, bridge: &str) -> Result<(), NetError> {
        let bridge = self.index(bridge).await?;
        let message = LinkUnspec::new_with_name(name).controller(bridge).up().build();
        let result = self.handle.link().set(message).execute().await;
        result.map_err(refused(format!("make {name} a port of the bridge")))
    }

    /// An address on a link.
    pub async fn address(&self, name: &str, address: Ipv4Net) -> Result<(), NetError> {
        let index = self.index(name).await?;
        let ip = IpAddr::V4(address.addr());
        let request = self.handle.address().add(index, ip, address.prefix_len());
        let result = request.execute().await;
        existing(result.map_err(refused(format!("give {address} to {name}"))))
    }

    /// A route by a gateway, replacing one to the same place.
    pub async fn route(&self, to: Ipv4Net, gateway: Ipv4Addr) -> Result<(), NetError> {
        let message = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to.network(), to.prefix_len())
            .gateway(gateway)
            .build();
        let result = self.handle.route().add(message).replace().execute().await;
        result.map_err(refused(format!("make a route to {to} by {gateway}")))
    }

    /// Where the routes of this namespace go, the default route left out.
    pub async fn destinations(&self) -> Result<Vec<Ipv4Net>, NetError> {
        let mut found = Vec::new();
        let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let mut routes = self.handle.route().get(all).execute();
        while let Some(route) = routes.try_next().await.map_err(refused("list the routes"))? {
            let length = route.header.destination_prefix_length;
            found.extend(route.attributes.iter().filter_map(|attribute| match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(to)) => Ipv4Net::new(*to, length).ok(),
                _ => None,
            }));
        }
        Ok(found)
    }

    /// Removes a link and its peer; what is not there is no error.
    pub async fn remove(&self, name: &str) -> Result<(), NetError> {
        let Some((index, _)) = self.find(name).await? else {
            return Ok(());
        };
        let result = self.handle.link().del(index).execute().await;
        match result.map_err(refused(format!("remove the link {name}"))) {
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }
}

/// An open network namespace to give links to.
pub struct Namespace(File);

impl Namespace {
    /// The namespace of a process.
    pub fn of(process: Process) -> Result<Self, NetError> {
        let path = process.proc().join("ns/net");
        let file = File::open(path).map_err(|source| NetError::Enter { pid: process.pid, source })?;
        Ok(Self(file))
    }

    /// Its descriptor, open as long as this lives.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
