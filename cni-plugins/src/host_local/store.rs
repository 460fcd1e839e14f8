//! Addresses on disk, in the reference's format, so that the two can take over from each other.
//!
//! `DATADIR/NETWORK/ADDRESS` holds `CONTAINER\r\nIFNAME`; `last_reserved_ip.SET` the address handed out last; `lock` is locked
//! with flock(2) by whoever reads or writes there.
//!
//! A reservation appears complete or not at all: written to a file without a name, which is then linked. Where the file system
//! cannot do that, it is written in place like the reference does; the empty file that a kill may leave then is recognised, because
//! nobody else can be writing while the lock is held, and removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::libc;
use nix::unistd::linkat;

/// Between container and interface, also on Linux.
const LINE_BREAK: &str = "\r\n";
const FILE_MODE: u32 = 0o600;
const LOCK_MODE: u32 = 0o640;

/// The folder could not be used. Retryable once the disk or its rights are in order.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StoreError {
    fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

/// Who an address belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The container's ID.
    pub container: String,
    /// The interface; empty in files of very old versions.
    pub ifname: String,
}

impl Owner {
    /// An owner.
    pub fn new(container: &str, ifname: &str) -> Self {
        Self { container: container.trim().to_owned(), ifname: ifname.to_owned() }
    }

    fn parse(contents: &str) -> Self {
        let contents = contents.trim();
        let (container, ifname) = contents.split_once(LINE_BREAK).unwrap_or((contents, ""));
        Self::new(container, ifname)
    }

    fn to_contents(&self) -> String {
        format!("{}{LINE_BREAK}{}", self.container, self.ifname)
    }

    /// The reservation of this owner is that attachment's; old files name no interface.
    pub fn same(&self, attachment: &Self) -> bool {
        self.container == attachment.container && (self.ifname.is_empty() || self.ifname == attachment.ifname)
    }
}

/// The folder of one network, locked.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    _lock: Flock<File>,
}

/// The folder of one network after the lock was given up: only good for waiting for the disk.
#[derive(Debug)]
pub struct Unlocked {
    directory: PathBuf,
}

impl Store {
    /// Makes the folder where needed, and waits for its lock.
    pub fn open(data_dir: &Path, network: &str) -> Result<Self, StoreError> {
        let directory = data_dir.join(network);
        fs::create_dir_all(&directory).map_err(StoreError::new("create", &directory))?;
        let path = directory.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(LOCK_MODE);
        let file = options.open(&path).map_err(StoreError::new("open", &path))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| StoreError::new("lock", &path)(errno.into()))?;
        Ok(Self { directory, _lock: lock })
    }

    /// Every reserved address with its owner. Leftovers of killed writers are removed on the way.
    pub fn reservations(&self) -> Result<Vec<(IpAddr, Owner)>, StoreError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(StoreError::new("list", &self.directory))? {
            let entry = entry.map_err(StoreError::new("list", &self.directory))?;
            let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()) else { continue };
            let path = entry.path();
            let bytes = fs::read(&path).map_err(StoreError::new("read", &path))?;
            let contents = String::from_utf8_lossy(&bytes);
            if contents.trim().is_empty() {
                fs::remove_file(&path).map_err(StoreError::new("remove", &path))?;
                continue;
            }
            found.push((ip, Owner::parse(&contents)));
        }
        Ok(found)
    }

    /// Writes a reservation. The address must be free.
    pub fn reserve(&self, ip: IpAddr, owner: &Owner) -> Result<(), StoreError> {
        let path = self.path(ip);
        let contents = owner.to_contents();
        match self.reserve_unnamed(&path, contents.as_bytes()) {
            // Old kernels and some network file systems.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {
                let mut options = OpenOptions::new();
                let mut file = options
                    .write(true)
                    .create_new(true)
                    .mode(FILE_MODE)
                    .open(&path)
                    .map_err(StoreError::new("create", &path))?;
                file.write_all(contents.as_bytes()).map_err(StoreError::new("write", &path))
            }
            other => other.map_err(StoreError::new("create", &path)),
        }
    }

    fn reserve_unnamed(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).custom_flags(libc::O_TMPFILE).mode(FILE_MODE).open(&self.directory)?;
        file.write_all(contents)?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(AT_FDCWD, unnamed.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?;
        Ok(())
    }

    /// Removes a reservation.
    pub fn remove(&self, ip: IpAddr) -> Result<(), StoreError> {
        let path = self.path(ip);
        fs::remove_file(&path).map_err(StoreError::new("remove", &path))
    }

    /// The address of a range set that was handed out last, if that is known.
    pub fn last(&self, set: usize) -> Option<IpAddr> {
        // Only a hint for the round robin: anything unreadable means "from the start".
        fs::read_to_string(self.last_path(set)).ok()?.trim().parse().ok()
    }

    /// Remembers the address handed out last.
    pub fn set_last(&self, set: usize, ip: IpAddr) -> Result<(), StoreError> {
        let path = self.last_path(set);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        let written = options.open(&path).and_then(|mut file| file.write_all(ip.to_string().as_bytes()));
        written.map_err(StoreError::new("write", &path))
    }

    /// Gives up the lock.
    pub fn unlock(self) -> Unlocked {
        Unlocked { directory: self.directory }
    }

    fn path(&self, ip: IpAddr) -> PathBuf {
        self.directory.join(ip.to_string())
    }

    fn last_path(&self, set: usize) -> PathBuf {
        self.directory.join(format!("last_reserved_ip.{set}"))
    }
}

impl Unlocked {
    /// Waits until reservations, and their names, are on disk.
    pub fn sync(&self, addresses: &[IpAddr]) -> Result<(), StoreError> {
        for ip in addresses {
            let path = self.directory.join(ip.to_string());
            File::open(&path).and_then(|file| file.sync_all()).map_err(StoreError::new("sync", &path))?;
        }
        let directory = &self.directory;
        File::open(directory).and_then(|folder| folder.sync_all()).map_err(StoreError::new("sync", directory))
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
