//! File and mount helpers whose errors say what was tried on which path.
//!
//! Everything the lab touches is a file, a mount or a cgroup entry: one error type with the action and the path is
//! enough for a person to see what went wrong.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// A failed action on a path. Retryable only when the cause is (a busy mount, a full disk).
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct FsError {
    /// What was tried, as it reads after "cannot".
    pub action: &'static str,
    /// The path it was tried on.
    pub path: PathBuf,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// Wraps an I/O error with its action and path.
pub fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FsError {
    move |source| FsError { action, path: path.to_path_buf(), source }
}

/// The last part of a path, for messages and names.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Makes a folder and its parents.
pub fn create_dir(path: &Path) -> Result<(), FsError> {
    fs::create_dir_all(path).map_err(fail("make folder", path))
}

/// Makes a folder with the given permission bits.
pub fn create_dir_mode(path: &Path, mode: u32) -> Result<(), FsError> {
    create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fail("set permissions of", path))
}

/// Reads a text file.
pub fn read(path: &Path) -> Result<String, FsError> {
    fs::read_to_string(path).map_err(fail("read", path))
}

/// Writes a file in place (for files of the kernel, and files nobody reads at the same time).
pub fn write(path: &Path, text: &str) -> Result<(), FsError> {
    fs::write(path, text).map_err(fail("write", path))
}

/// Writes a file so that a reader sees either the old or the new text.
pub fn write_atomic(path: &Path, text: &str) -> Result<(), FsError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.new"));
    write(&temporary, text)?;
    fs::rename(&temporary, path).map_err(fail("replace", path))
}

/// Like [`write_atomic`], for a file that only its owner may read (a key): it is never there with wider permissions.
pub fn write_private(path: &Path, text: &str) -> Result<(), FsError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.new"));
    remove_tree(&temporary)?;
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&temporary);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(fail("write", &temporary))?;
    fs::rename(&temporary, path).map_err(fail("replace", path))
}

/// Copies one file with its permission bits, replacing what is there even while it runs.
pub fn install(from: &Path, to: &Path) -> Result<(), FsError> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let temporary = to.with_file_name(format!(".{name}.new"));
    fs::copy(from, &temporary).map_err(fail("copy", from))?;
    fs::rename(&temporary, to).map_err(fail("replace", to))
}

/// Copies a folder tree: regular files, folders and links; anything else is left out.
pub fn copy_tree(from: &Path, to: &Path) -> Result<(), FsError> {
    let kind = fs::symlink_metadata(from).map_err(fail("look at", from))?;
    if kind.is_symlink() {
        let target = fs::read_link(from).map_err(fail("read link", from))?;
        return symlink(target, to).map_err(fail("make link", to));
    }
    if kind.is_file() {
        return fs::copy(from, to).map(drop).map_err(fail("copy", from));
    }
    if !kind.is_dir() {
        return Ok(());
    }
    create_dir(to)?;
    for entry in fs::read_dir(from).map_err(fail("list", from))? {
        let entry = entry.map_err(fail("list", from))?;
        copy_tree(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Removes a file or a folder tree; what is not there is no error.
pub fn remove_tree(path: &Path) -> Result<(), FsError> {
    let result = match fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Bind-mounts `from` with everything below it on `to`, which is made when it is missing.
pub fn bind(from: &Path, to: &Path) -> Result<(), FsError> {
    create_dir(to)?;
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(io::Error::from)
        .map_err(fail("bind-mount on", to))
}

/// Makes an existing mount (or, after a bind on itself, a folder) read-only.
pub fn remount_read_only(path: &Path) -> Result<(), FsError> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>)
        .map_err(io::Error::from)
        .map_err(fail("make read-only", path))
}

/// Mounts a fresh file system of the given type.
pub fn mount_fs(kind: &str, path: &Path, options: Option<&str>) -> Result<(), FsError> {
    create_dir(path)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some(kind), path, Some(kind), flags, options).map_err(io::Error::from).map_err(fail("mount", path))
}

/// Changes the propagation of a mount and everything below it.
pub fn propagation(path: &Path, flag: MsFlags) -> Result<(), FsError> {
    mount(None::<&str>, path, None::<&str>, flag | MsFlags::MS_REC, None::<&str>)
        .map_err(io::Error::from)
        .map_err(fail("change the propagation of", path))
}

/// The last `lines` lines of a file, reading at most its last 16 KiB.
pub fn tail(path: &Path, lines: usize) -> Vec<String> {
    use std::io::{Read, Seek, SeekFrom};
    const WINDOW: u64 = 16 * 1024;
    let Ok(mut file) = fs::File::open(path) else {
        return Vec::new();
    };
    let length = file.metadata().map_or(0, |data| data.len());
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(length.saturating_sub(WINDOW))).is_err() || file.read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_action_and_the_path() {
        let error = read(Path::new("/nonexistent/file")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /nonexistent/file: "), "{error}");
    }

    #[test]
    fn a_tree_is_copied_with_its_links_and_removed_again() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        create_dir(&from.join("deep")).unwrap();
        write(&from.join("deep/file"), "text").unwrap();
        symlink("deep/file", from.join("link")).unwrap();
        let to = folder.path().join("to");
        copy_tree(&from, &to).unwrap();
        assert_eq!(read(&to.join("link")).unwrap(), "text");
        remove_tree(&to).unwrap();
        remove_tree(&to).unwrap();
        assert!(!to.exists());
    }

    #[test]
    fn a_private_file_is_its_owners_also_when_it_replaces_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, "open to all").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        for text in ["one", "two"] {
            write_private(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_tail_is_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&path, 2), ["two", "three"]);
        assert!(tail(&folder.path().join("none"), 2).is_empty());
    }
}
