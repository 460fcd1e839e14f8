//! Network namespaces by path.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

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
    path: PathBuf,
}

impl NetNs {
    /// Opens the namespace of a container, which must not be that of the caller.
    pub fn open(path: &str) -> Result<Self, NetNsError> {
        let path = PathBuf::from(path);
        let file = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => NetNsError::Missing(path.clone()),
            _ => NetNsError::Refused { action: "open", path: path.clone(), source },
        })?;
        let namespace = Self { file, path };
        if namespace.is_own()? {
            return Err(NetNsError::Own(namespace.path));
        }
        Ok(namespace)
    }

    fn is_own(&self) -> Result<bool, NetNsError> {
        let refused = |source| NetNsError::Refused { action: "look at", path: self.path.clone(), source };
        let theirs = self.file.metadata().map_err(refused)?;
        let ours = fs::metadata("/proc/thread-self/ns/net").map_err(refused)?;
        Ok(theirs.dev() == ours.dev() && theirs.ino() == ours.ino())
    }

    /// Runs a closure on a thread of its own inside the namespace.
    ///
    /// The closure is synchronous and the thread ends with it: nothing can be left behind in a foreign namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetNsError> {
        let refused = |action, source| NetNsError::Refused { action, path: self.path.clone(), source };
        thread::scope(|scope| {
            let spawned = thread::Builder::new().spawn_scoped(scope, || {
                setns(&self.file, CloneFlags::CLONE_NEWNET).map(|()| work()).map_err(|errno| match errno {
                    Errno::EINVAL => NetNsError::NotOne(self.path.clone()),
                    other => refused("enter", other.into()),
                })
            });
            let thread = spawned.map_err(|source| refused("start a thread for", source))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
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
