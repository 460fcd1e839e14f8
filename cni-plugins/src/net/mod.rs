//! Links, addresses and routes of one network namespace, by netlink.
//!
//! A [`Net`] is a netlink socket, and a socket belongs for ever to the namespace it was opened in: so the one thread enters the
//! container's namespace only to open a socket there, or to write settings under /proc/sys.

mod address;
mod link;
mod netns;
mod route;
pub mod sysctl;

pub use link::{Link, PeerSpec, PortOptions, parse_mac, random_host_name, random_mac};
pub use netns::{NetNs, NetNsError};
pub use route::InstalledRoute;

use std::io;

use rtnetlink::Handle;
use tokio::runtime::{Builder, Runtime};

/// What the kernel would not do. Retryable only after the cause is gone.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No runtime or socket.
    #[error("cannot {action}: {source}")]
    Setup {
        /// What was being done.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A request was refused.
    #[error("cannot {action}: {source}")]
    Refused {
        /// What was being done, with names and values.
        action: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A request was answered with something odd.
    #[error("cannot {action}: {reason}")]
    Answer {
        /// What was being done.
        action: String,
        /// What the answer was.
        reason: String,
    },
    /// An interface that should be there is not.
    #[error("there is no interface {0:?}")]
    NoLink(String),
    /// The kernel keeps such settings under /proc/sys.
    #[error("cannot set {key} to {value:?}: {source}")]
    Sysctl {
        /// Path below /proc/sys.
        key: String,
        /// The value.
        value: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl NetError {
    /// The kernel's error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Setup { source, .. } | Self::Refused { source, .. } | Self::Sysctl { source, .. } => {
                source.raw_os_error()
            }
            Self::Answer { .. } | Self::NoLink(_) => None,
        }
    }

    fn refused(action: impl Into<String>, error: rtnetlink::Error) -> Self {
        let action = action.into();
        match error {
            rtnetlink::Error::NetlinkError(message) => {
                Self::Refused { action, source: io::Error::from_raw_os_error(message.raw_code().abs()) }
            }
            other => Self::Answer { action, reason: other.to_string() },
        }
    }
}

/// A netlink socket in one namespace.
#[derive(Debug, Clone)]
pub struct Net {
    handle: Handle,
}

impl Net {
    /// A socket in the namespace of the calling thread. Needs the runtime's context.
    pub fn here() -> Result<Self, NetError> {
        let (connection, handle, _) = rtnetlink::new_connection()
            .map_err(|source| NetError::Setup { action: "open a netlink socket", source })?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// A socket in another namespace. Needs the runtime's context.
    pub fn inside(namespace: &NetNs) -> Result<Self, NetNsOrNet> {
        let opened = namespace.run(rtnetlink::new_connection)?;
        let (connection, handle, _) =
            opened.map_err(|source| NetError::Setup { action: "open a netlink socket in the container", source })?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }
}

/// Either of the two ways in which opening a socket inside can fail.
#[derive(Debug, thiserror::Error)]
pub enum NetNsOrNet {
    /// The namespace.
    #[error(transparent)]
    NetNs(#[from] NetNsError),
    /// The socket.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl From<NetNsOrNet> for crate::error::Error {
    fn from(error: NetNsOrNet) -> Self {
        match error {
            NetNsOrNet::NetNs(error) => error.into(),
            NetNsOrNet::Net(error) => error.into(),
        }
    }
}

/// A runtime on the calling thread: one call makes a dozen requests, more threads would only cost their start.
pub fn runtime() -> Result<Runtime, NetError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| NetError::Setup { action: "start the runtime", source })
}
