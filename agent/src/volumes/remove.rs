//! Removes a folder tree that a container could write to: never through a link, never across a
//! mount.
//!
//! Every folder is opened by its name in its parent's descriptor with `RESOLVE_NO_XDEV |
//! RESOLVE_NO_SYMLINKS`, so that neither a link nor a mount (a bind mount of the same file system
//! included) is ever entered, whatever a container swaps meanwhile. Depth costs no stack and few
//! descriptors: what lies deeper than [`MAX_OPEN`] is first moved up. Folders with millions of
//! entries are emptied in batches.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Folders open at once; deeper trees are moved up.
const MAX_OPEN: usize = 48;
/// Entries read at once.
const BATCH: usize = 1024;

/// Why a tree is still there. Retryable, except that a mount has to go first.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// Something is mounted inside: unmount it first.
    #[error("not removing {}: {name:?} in it is a mount point or a link; unmount it first", root.display())]
    Crossing {
        /// The tree.
        root: PathBuf,
        /// The entry.
        name: String,
    },
    /// The kernel refused.
    #[error("cannot {action} {name:?} in {}: {source}", root.display())]
    Call {
        /// The call.
        action: &'static str,
        /// The tree.
        root: PathBuf,
        /// The entry.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

struct Remover<'a> {
    root: &'a Path,
    moved: u64,
}

/// Removes `path` and everything in it. Nothing there is fine.
///
/// # Errors
/// [`RemoveError`]; what could be removed is gone.
pub fn remove_tree(path: &Path) -> Result<(), RemoveError> {
    let mut remover = Remover { root: path, moved: 0 };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(remover.failed("remove", c".", Errno::EINVAL));
    };
    let name = CString::new(name.as_bytes()).map_err(|_| remover.failed("remove", c".", Errno::EINVAL))?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let parent = match openat2(nix::fcntl::AT_FDCWD, parent, how) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(remover.failed("open the parent of", &name, errno)),
    };
    match unlinkat(&parent, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(remover.failed("remove", &name, errno)),
    }
    let top = remover.open(parent.as_fd(), &name)?;
    remover.empty(top)?;
    remover.remove_dir(parent.as_fd(), &name)
}

impl Remover<'_> {
    fn failed(&self, action: &'static str, name: &CStr, errno: Errno) -> RemoveError {
        RemoveError::Call { action, root: self.root.to_owned(), name: lossy(name), source: errno.into() }
    }

    /// Opens a folder in `parent`, refusing links and mounts.
    fn open(&self, parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, RemoveError> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
        openat2(parent, name, how).map_err(|errno| match errno {
            Errno::EXDEV | Errno::ELOOP => RemoveError::Crossing { root: self.root.to_owned(), name: lossy(name) },
            errno => self.failed("open", name, errno),
        })
    }

    fn remove_dir(&self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), RemoveError> {
        match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EBUSY) => Err(RemoveError::Crossing { root: self.root.to_owned(), name: lossy(name) }),
            Err(errno) => Err(self.failed("remove", name, errno)),
        }
    }

    /// Empties the folder open as `top`.
    fn empty(&mut self, top: OwnedFd) -> Result<(), RemoveError> {
        let mut stack: Vec<(OwnedFd, CString)> = vec![(top, c".".into())];
        while let Some(at) = stack.len().checked_sub(1) {
            let folder = stack[at].0.as_fd();
            let entries = self.batch(folder)?;
            if entries.is_empty() {
                let Some((_, name)) = stack.pop() else { break };
                if let Some((parent, _)) = stack.last() {
                    self.remove_dir(parent.as_fd(), &name)?;
                }
                continue;
            }
            let mut descend = None;
            for (name, may_be_dir) in entries {
                if !may_be_dir {
                    match unlinkat(folder, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                        Ok(()) | Err(Errno::ENOENT) => continue,
                        Err(Errno::EISDIR | Errno::EPERM) => {}
                        Err(errno) => return Err(self.failed("remove", &name, errno)),
                    }
                }
                // Most folders are empty or soon will be; the others are entered one by one.
                match unlinkat(folder, name.as_c_str(), UnlinkatFlags::RemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => continue,
                    Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                    Err(Errno::ENOTDIR) => {
                        // Swapped for a file since it was listed.
                        match unlinkat(folder, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                            Ok(()) | Err(Errno::ENOENT) => continue,
                            Err(errno) => return Err(self.failed("remove", &name, errno)),
                        }
                    }
                    Err(Errno::EBUSY) => {
                        return Err(RemoveError::Crossing { root: self.root.to_owned(), name: lossy(&name) });
                    }
                    Err(errno) => return Err(self.failed("remove", &name, errno)),
                }
                if at + 1 < MAX_OPEN {
                    descend = Some(name);
                    break;
                }
                self.move_up(&stack, folder, &name)?;
            }
            if let Some(name) = descend {
                let child = self.open(folder, &name)?;
                stack.push((child, name));
            }
        }
        Ok(())
    }

    /// Moves a folder that lies too deep to the top, where it is found again.
    fn move_up(
        &mut self,
        stack: &[(OwnedFd, CString)],
        folder: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(), RemoveError> {
        let top = &stack[0].0;
        loop {
            self.moved += 1;
            let to = format!(".removing-{}-{}", std::process::id(), self.moved);
            match renameat(folder, name, top, to.as_str()) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                // That name is taken by something the container made.
                Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
                Err(errno) => return Err(self.failed("move", name, errno)),
            }
        }
    }

    /// Some entries of a folder, and whether each may be a folder.
    fn batch(&self, folder: BorrowedFd<'_>) -> Result<Vec<(CString, bool)>, RemoveError> {
        let again = self.open(folder, c".")?;
        let mut dir = Dir::from_fd(again).map_err(|e| self.failed("list", c".", e))?;
        let mut entries = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(|e| self.failed("list", c".", e))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let may_be_dir = matches!(entry.file_type(), None | Some(Type::Directory));
            entries.push((name.to_owned(), may_be_dir));
            if entries.len() == BATCH {
                break;
            }
        }
        Ok(entries)
    }
}

fn lossy(name: &CStr) -> String {
    OsStr::from_bytes(name.to_bytes()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_links_and_folders() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir_all(outside.join("keep")).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        for i in 0..2500 {
            fs::write(tree.join(format!("a/{i}")), "").unwrap();
        }
        symlink(&outside, tree.join("a/link")).unwrap();
        symlink(outside.join("file"), tree.join("a/b/file")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("keep").exists() && outside.join("file").exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn a_link_itself_is_removed_not_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::create_dir(&target).unwrap();
        symlink(&target, dir.path().join("link")).unwrap();
        remove_tree(&dir.path().join("link")).unwrap();
        assert!(target.exists() && !dir.path().join("link").exists());
    }

    #[test]
    fn very_deep_trees() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut at =
            nix::fcntl::open(&tree, OFlag::O_PATH | OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty()).unwrap();
        for _ in 0..3000 {
            nix::sys::stat::mkdirat(&at, "d", nix::sys::stat::Mode::S_IRWXU).unwrap();
            nix::sys::stat::mkdirat(&at, "e", nix::sys::stat::Mode::S_IRWXU).unwrap();
            at = nix::fcntl::openat(&at, "d", OFlag::O_PATH | OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty())
                .unwrap();
        }
        drop(at);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
