//! `subPath`: a part of a volume, mounted without ever leaving the volume.
//!
//! The path inside the volume belongs to containers, which may swap any part of it for a link at
//! any moment. So nothing here goes by path twice: the part is opened with `openat2`
//! (`RESOLVE_BENEATH`, checked by the kernel on every step), and what was opened is bind-mounted by
//! descriptor to a folder that only the agent writes,
//! `<pod>/volume-subpaths/<volume>/<container>/<index>` (upstream's layout). A link that leads
//! out of the volume is an error, as upstream; an absolute link that leads back into the volume is
//! allowed, as upstream: it is resolved once, and the outcome is opened without following any link.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};

use super::mounts::{MountError, Mounter, mount_at};

/// Why a subPath cannot be mounted. Details of the host stay out of what users see
/// ([`SubPathError::public`]).
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// An absolute path.
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    /// A path with `..`.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backstep(String),
    /// A step leads out of the volume.
    #[error("subPath {0:?} leads out of the volume")]
    Escapes(String),
    /// It is missing and cannot be made.
    #[error("cannot make the folder of subPath {path:?}: {errno}")]
    Make {
        /// The subPath.
        path: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// It cannot be opened.
    #[error("cannot open {path:?}: {errno}")]
    Open {
        /// The subPath.
        path: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The place where it is mounted cannot be prepared.
    #[error("cannot prepare {}: {source}", target.display())]
    Target {
        /// The mount point.
        target: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
}

impl SubPathError {
    /// The text for the pod's events, which must not tell about the host's file system.
    pub fn public(&self, mount: &str, container: &str) -> String {
        match self {
            Self::Absolute(_) | Self::Backstep(_) => self.to_string(),
            Self::Make { .. } => {
                format!("failed to create subPath directory for volumeMount {mount:?} of container {container:?}")
            }
            _ => format!("failed to prepare subPath for volumeMount {mount:?} of container {container:?}"),
        }
    }
}

/// Refuses absolute paths and `..`.
///
/// # Errors
/// [`SubPathError::Absolute`] or [`SubPathError::Backstep`].
pub fn validate(sub_path: &str) -> Result<(), SubPathError> {
    if sub_path.starts_with('/') {
        return Err(SubPathError::Absolute(sub_path.into()));
    }
    if sub_path.split('/').any(|part| part == "..") {
        return Err(SubPathError::Backstep(sub_path.into()));
    }
    Ok(())
}

/// Opens `sub_path` inside `volume` (as a place, not for reading), making missing folders with the
/// mode of the volume's top folder.
///
/// # Errors
/// [`SubPathError`].
pub fn open_in_volume(volume: &Path, sub_path: &str) -> Result<OwnedFd, SubPathError> {
    validate(sub_path)?;
    let failed = |errno| SubPathError::Open { path: sub_path.into(), errno };
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    let root = openat2(nix::fcntl::AT_FDCWD, volume, how).map_err(failed)?;
    match open_beneath(&root, Path::new(sub_path), ResolveFlag::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::ENOENT) => make_and_open(&root, sub_path),
        Err(Errno::EXDEV) => open_absolute_link(&root, volume, sub_path),
        Err(errno) => Err(failed(errno)),
    }
}

fn open_beneath(root: &OwnedFd, path: &Path, more: ResolveFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | more);
    // EAGAIN: a rename or mount elsewhere made the kernel unsure; it asks to try again.
    for _ in 0..64 {
        match openat2(root, path, how) {
            Err(Errno::EAGAIN) => {}
            result => return result,
        }
    }
    Err(Errno::EAGAIN)
}

/// A step was an absolute link, or went up too far. Resolved by path once to learn where it leads;
/// if that is inside the volume, that place is opened without following anything.
fn open_absolute_link(root: &OwnedFd, volume: &Path, sub_path: &str) -> Result<OwnedFd, SubPathError> {
    let escapes = || SubPathError::Escapes(sub_path.into());
    let base = fs::canonicalize(volume).map_err(|_| escapes())?;
    let full = fs::canonicalize(volume.join(sub_path)).map_err(|_| escapes())?;
    let inside = full.strip_prefix(&base).map_err(|_| escapes())?;
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    open_beneath(root, inside, ResolveFlag::RESOLVE_NO_SYMLINKS).map_err(|_| escapes())
}

/// Makes the missing folders one by one, each in the descriptor of the one before.
fn make_and_open(root: &OwnedFd, sub_path: &str) -> Result<OwnedFd, SubPathError> {
    let failed = |errno| SubPathError::Make { path: sub_path.into(), errno };
    let mode = Mode::from_bits_truncate(fstat(root).map_err(failed)?.st_mode & 0o7777);
    let mut done = PathBuf::new();
    let mut at = open_beneath(root, Path::new("."), ResolveFlag::empty()).map_err(failed)?;
    for part in Path::new(sub_path).components() {
        let Component::Normal(name) = part else {
            continue;
        };
        done.push(name);
        at = match open_beneath(root, &done, ResolveFlag::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => {
                mkdirat(&at, name, mode).map_err(failed)?;
                let no_links = ResolveFlag::RESOLVE_NO_SYMLINKS;
                let fresh = open_beneath(&at, Path::new(name), no_links).map_err(failed)?;
                set_mode(&fresh, mode).map_err(failed)?;
                fresh
            }
            Err(Errno::EXDEV) => return Err(SubPathError::Escapes(sub_path.into())),
            Err(errno) => return Err(failed(errno)),
        };
    }
    Ok(at)
}

/// The umask cut the mode at creation; an O_PATH descriptor has to be opened properly to set it.
fn set_mode(place: &OwnedFd, mode: Mode) -> nix::Result<()> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let folder = openat2(place, Path::new("."), how)?;
    fchmod(folder, mode)
}

/// Where the subPath mounts of one container's mount go.
pub fn target(pod_dir: &Path, volume: &str, container: &str, index: usize) -> PathBuf {
    pod_dir.join("volume-subpaths").join(volume).join(container).join(index.to_string())
}

/// Mounts `sub_path` of `volume` on `target` and returns `target`. What is mounted there already
/// stays if it is the same, so that a restarted container sees no difference.
///
/// # Errors
/// [`SubPathError`].
pub fn prepare(mounter: &dyn Mounter, volume: &Path, sub_path: &str, target: &Path) -> Result<(), SubPathError> {
    let source = open_in_volume(volume, sub_path)?;
    let stat = fstat(&source).map_err(|errno| SubPathError::Open { path: sub_path.into(), errno })?;
    let prepare = |source| SubPathError::Target { target: target.to_owned(), source };
    if mount_at(mounter, target)?.is_some() {
        let there = fs::symlink_metadata(target).map_err(prepare)?;
        if (there.dev(), there.ino()) == (stat.st_dev, stat.st_ino) {
            return Ok(());
        }
        while mount_at(mounter, target)?.is_some() {
            mounter.unmount(target)?;
        }
    }
    let is_dir = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    make_target(target, is_dir).map_err(prepare)?;
    mounter.bind_fd(source.as_fd(), target)?;
    Ok(())
}

/// A folder to mount a folder on, an empty file for anything else.
fn make_target(target: &Path, is_dir: bool) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
    }
    match fs::symlink_metadata(target) {
        Ok(meta) if meta.is_dir() == is_dir => return Ok(()),
        Ok(meta) if meta.is_dir() => fs::remove_dir(target)?,
        Ok(_) => fs::remove_file(target)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if is_dir {
        fs::DirBuilder::new().mode(0o750).create(target)
    } else {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o640);
        options.open(target).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use nix::fcntl::{RenameFlags, renameat2};

    use super::*;

    fn ino(fd: &OwnedFd) -> u64 {
        fstat(fd).unwrap().st_ino
    }

    fn path_ino(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn inside_outside_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/file"), "x").unwrap();
        fs::create_dir(dir.path().join("secret")).unwrap();
        symlink("a", volume.join("rel")).unwrap();
        symlink(volume.join("a"), volume.join("abs-in")).unwrap();
        symlink(dir.path().join("secret"), volume.join("abs-out")).unwrap();
        symlink("../secret", volume.join("up-out")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();

        let open = |path: &str| open_in_volume(&volume, path);
        assert_eq!(ino(&open("a/b").unwrap()), path_ino(&volume.join("a/b")));
        assert_eq!(ino(&open("rel/file").unwrap()), path_ino(&volume.join("a/file")));
        assert_eq!(ino(&open("abs-in").unwrap()), path_ino(&volume.join("a")));
        for path in ["abs-out", "up-out", "magic", "abs-out/new", "up-out/new"] {
            assert!(matches!(open(path), Err(SubPathError::Escapes(_))), "{path}");
        }
        assert!(matches!(open("dangling"), Err(SubPathError::Make { .. })));
        assert!(matches!(open("/a"), Err(SubPathError::Absolute(_))));
        assert!(matches!(open("a/../../x"), Err(SubPathError::Backstep(_))));
        assert!(fs::read_dir(dir.path().join("secret")).unwrap().next().is_none());
    }

    #[test]
    fn missing_folders_get_the_mode_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let mode = fs::Permissions::from_mode(0o2777);
        fs::set_permissions(dir.path(), mode).unwrap();
        open_in_volume(dir.path(), "x/y").unwrap();
        for path in ["x", "x/y"] {
            let meta = fs::metadata(dir.path().join(path)).unwrap();
            assert_eq!(meta.mode() & 0o7777, 0o2777, "{path}");
        }
    }

    /// CVE-2017-1002101, CVE-2021-25741: links are swapped while the path is opened.
    #[test]
    fn a_swapped_link_never_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("sub")).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (sub, link) = (volume.join("sub"), volume.join("link"));
                let (cwd, swap) = (nix::fcntl::AT_FDCWD, RenameFlags::RENAME_EXCHANGE);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    renameat2(cwd, &sub, cwd, &link, swap).unwrap();
                }
            });
            for _ in 0..3000 {
                if let Ok(fd) = open_in_volume(&volume, "sub/new") {
                    assert_ne!(ino(&fd), path_ino(&outside));
                }
                let _ = fs::remove_dir(volume.join("sub/new"));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let leaked = fs::read_dir(&outside).unwrap().next();
        assert!(leaked.is_none(), "made {leaked:?} outside the volume");
    }
}
