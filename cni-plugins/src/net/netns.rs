//! Network namespaces by path.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

/// Why a namespace cannot be used. Never worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum NetNsError {
    /// Nothing at that path.
    #[error("CNI_NETNS {} does not exist", .0.display())]
    Missing(PathBuf),
    /// Something else at that path: the usual leftover of an unmounted namespace is an empty file.
    #[error("CNI_NETNS {} is not a network namespace", .0.display())]
    NotOne(PathBuf),
    /// The namespace is the one this program runs in.
    #[error("CNI_NETNS {} is the host's own network namespace", .0.display())]
    Own(PathBuf),
    /// It could not be opened or entered.
    #[error("cannot {action} CNI_NETNS {}: {source}", path.display())]
    Refused {
        /// What was being done.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl NetNsError {
    /// The container's namespace is gone, so nothing can be left in it. A path that leads to the host's own namespace counts too
    /// (a process ID used again): whatever is there is not the container's.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::NotOne(_) | Self::Own(_))
    }
}

/// An open network namespace.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    home: File,
    path: PathBuf,
}

/// Takes the thread back to where it came from, also when the work panics.
struct Return<'a>(&'a File);

impl Drop for Return<'_> {
    fn drop(&mut self) {
        if setns(self.0, CloneFlags::CLONE_NEWNET).is_err() {
            // Whatever this program did next would happen to the wrong interfaces.
            std::process::abort();
        }
    }
}

impl NetNs {
    /// Opens the namespace of a container, which must not be that of the caller.
    pub fn open(path: &str) -> Result<Self, NetNsError> {
        let path = PathBuf::from(path);
        let refused = |source| NetNsError::Refused { action: "open", path: path.clone(), source };
        let file = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => NetNsError::Missing(path.clone()),
            _ => refused(source),
        })?;
        let home = File::open("/proc/thread-self/ns/net").map_err(refused)?;
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        if identity(&file).map_err(refused)? == identity(&home).map_err(refused)? {
            return Err(NetNsError::Own(path));
        }
        Ok(Self { file, home, path })
    }

    /// Enters the namespace, runs a closure, and leaves.
    ///
    /// The closure is synchronous: nothing can await, and so nothing else can run, in a foreign namespace. A thread of its own would
    /// do as well, but on a busy machine its two switches take longer than the work.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, NetNsError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EINVAL => NetNsError::NotOne(self.path.clone()),
            other => NetNsError::Refused { action: "enter", path: self.path.clone(), source: other.into() },
        })?;
        let _return = Return(&self.home);
        Ok(work())
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor, for a netlink message that names the namespace.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
