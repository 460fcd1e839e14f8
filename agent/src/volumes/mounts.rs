//! The mount table and the few mount calls that volumes need.
//!
//! [`Mounter`] is the seam; [`KernelMounter`] the real thing. What is mounted is always read from
//! mountinfo, never remembered: after a crash or a foreign `umount` the table is right and a memory
//! would not be.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags};

/// Kernels from this on know tmpfs' `noswap`.
const NOSWAP_KERNEL: (u32, u32) = (6, 4);

/// A mount call or a look at the mount table that failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount table cannot be read or parsed.
    #[error("cannot read the mount table /proc/self/mountinfo: {source}")]
    Table {
        /// What went wrong.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot {action} {}: {errno}", path.display())]
    Call {
        /// The call.
        action: &'static str,
        /// The mount point.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A path below the pod folder leads through a link: somebody tries to have something else unmounted.
    #[error("refusing to unmount {}: its path leads through a symbolic link", path.display())]
    Link {
        /// The mount point.
        path: PathBuf,
    },
}

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub point: PathBuf,
    /// File system type, e.g. `tmpfs`.
    pub fs_type: String,
    /// Which part of the file system is mounted (`/` for all of it).
    pub root: PathBuf,
    /// Order in the table: later ones lie over earlier ones.
    pub order: usize,
}

/// Parses mountinfo; a line that does not parse is skipped (the kernel writes none such).
pub fn parse_mountinfo(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').enumerate().filter_map(|(order, line)| parse_line(order, line)).collect()
}

fn parse_line(order: usize, line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    Some(MountEntry {
        root: unescape(fields.get(3)?),
        point: unescape(fields.get(4)?),
        fs_type: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        order,
    })
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| byte == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        match octal {
            Some(digits) => {
                let code = digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                out.push((code & 0xff) as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The mount calls.
pub trait Mounter: Send + Sync + 'static {
    /// The mount table.
    ///
    /// # Errors
    /// [`MountError::Table`].
    fn table(&self) -> Result<Vec<MountEntry>, MountError>;

    /// Mounts a tmpfs of at most `size` bytes (`None`: the kernel's default) on `path`.
    ///
    /// # Errors
    /// [`MountError::Call`].
    fn tmpfs(&self, path: &Path, size: Option<u64>) -> Result<(), MountError>;

    /// Binds what `source` is open on (and what is mounted below it) to `target`.
    ///
    /// # Errors
    /// [`MountError::Call`].
    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path) -> Result<(), MountError>;

    /// Unmounts `path`, never through a link; a busy mount is detached.
    ///
    /// # Errors
    /// [`MountError::Call`] or [`MountError::Link`].
    fn unmount(&self, path: &Path) -> Result<(), MountError>;
}

/// The kernel.
#[derive(Debug)]
pub struct KernelMounter {
    noswap: bool,
}

impl KernelMounter {
    /// Asks the kernel for its version once.
    pub fn new() -> Self {
        let release =
            nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default();
        Self { noswap: kernel_version(&release) >= NOSWAP_KERNEL }
    }
}

impl Default for KernelMounter {
    fn default() -> Self {
        Self::new()
    }
}

fn kernel_version(release: &str) -> (u32, u32) {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn call<T>(action: &'static str, path: &Path, result: nix::Result<T>) -> Result<T, MountError> {
    result.map_err(|errno| MountError::Call { action, path: path.to_owned(), errno })
}

impl Mounter for KernelMounter {
    fn table(&self) -> Result<Vec<MountEntry>, MountError> {
        let text = std::fs::read("/proc/self/mountinfo").map_err(|source| MountError::Table { source })?;
        Ok(parse_mountinfo(&text))
    }

    fn tmpfs(&self, path: &Path, size: Option<u64>) -> Result<(), MountError> {
        let size = size.map(|bytes| format!("size={bytes}"));
        let noswap = self.noswap.then(|| "noswap".to_owned());
        let with: Vec<String> = size.iter().cloned().chain(noswap).collect();
        let mount = |options: &str| {
            let none = Some("tmpfs");
            nix::mount::mount(none, path, none, MsFlags::empty(), Some(options))
        };
        let mut result = mount(&with.join(","));
        // A kernel of that version can still lack the option (built without swap, in a namespace).
        if result == Err(Errno::EINVAL) && self.noswap {
            result = mount(size.as_deref().unwrap_or_default());
        }
        call("mount a tmpfs on", path, result)
    }

    fn bind_fd(&self, source: BorrowedFd<'_>, target: &Path) -> Result<(), MountError> {
        // The name in /proc leads to what the descriptor is open on, whatever happened to the path since.
        let source = format!("/proc/self/fd/{}", source.as_raw_fd());
        let none: Option<&str> = None;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        let result = nix::mount::mount(Some(source.as_str()), target, none, flags, none);
        call("bind-mount to", target, result)
    }

    fn unmount(&self, path: &Path) -> Result<(), MountError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return call("unmount", path, Err(Errno::EINVAL));
        };
        let parent = open_without_links(parent).map_err(|errno| match errno {
            Errno::ELOOP => MountError::Link { path: path.to_owned() },
            errno => MountError::Call { action: "open the folder of", path: path.to_owned(), errno },
        })?;
        let through_fd = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
        let mut result = nix::mount::umount2(&through_fd, MntFlags::UMOUNT_NOFOLLOW);
        if result == Err(Errno::EBUSY) {
            tracing::warn!(path = %path.display(), "mount is busy, detaching it");
            let lazy = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH;
            result = nix::mount::umount2(&through_fd, lazy);
        }
        call("unmount", path, result)
    }
}

fn open_without_links(path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(nix::fcntl::AT_FDCWD, path, how)
}

/// Mounts at or below `path`, the ones to unmount first in front.
///
/// # Errors
/// The table cannot be read.
pub fn mounts_below(mounter: &dyn Mounter, path: &Path) -> Result<Vec<MountEntry>, MountError> {
    let mut found: Vec<MountEntry> =
        mounter.table()?.into_iter().filter(|entry| entry.point.starts_with(path)).collect();
    found.sort_by_key(|entry| std::cmp::Reverse(entry.order));
    Ok(found)
}

/// The topmost mount at exactly `path`.
///
/// # Errors
/// The table cannot be read.
pub fn mount_at(mounter: &dyn Mounter, path: &Path) -> Result<Option<MountEntry>, MountError> {
    let table = mounter.table()?;
    Ok(table.into_iter().rev().find(|entry| entry.point == path))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mountinfo_lines() {
        let text = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            39 27 0:30 /a\\040b /var/lib/x\\134y rw shared:3 master:1 - tmpfs tmpfs rw,size=4k\n\
            broken line\n";
        let entries = parse_mountinfo(text);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].point, Path::new("/var/lib/x\\y"));
        assert_eq!(entries[1].root, Path::new("/a b"));
        assert_eq!(entries[1].fs_type, "tmpfs");
        assert_eq!(kernel_version("6.18.0-rc1+deb13"), (6, 18));
        assert_eq!(kernel_version(""), (0, 0));
    }

    #[test]
    fn the_real_table_has_proc() {
        let table = KernelMounter::new().table().unwrap();
        assert!(table.iter().any(|e| e.point == Path::new("/proc")));
    }

    proptest! {
        #[test]
        fn no_line_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_mountinfo(&text);
        }
    }
}
