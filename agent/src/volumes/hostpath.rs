//! hostPath volumes: nothing is mounted by the agent, the path is only checked or made.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A path that is not what the pod says it is. Retryable: the path may appear.
#[derive(Debug, thiserror::Error)]
pub enum HostPathError {
    /// Nothing there.
    #[error("hostPath {} doesn't exist", .0.display())]
    Missing(PathBuf),
    /// Something else there.
    #[error("hostPath type check failed: {} is not a {want}, it's a {found}", path.display())]
    Type {
        /// The path.
        path: PathBuf,
        /// What the pod wants.
        want: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A type that does not exist.
    #[error("{0} is an invalid volume type")]
    UnknownType(String),
    /// `..` in the path.
    #[error("invalid HostPath `{0}`: must not contain '..'")]
    Backstep(String),
    /// It cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Make {
        /// The path.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

/// Checks `path` against `kind` (the volume's `type`); makes it for the `…OrCreate` kinds.
///
/// # Errors
/// [`HostPathError`].
pub fn check(path: &str, kind: &str) -> Result<(), HostPathError> {
    if path.split('/').any(|part| part == "..") {
        return Err(HostPathError::Backstep(path.into()));
    }
    let place = Path::new(path);
    match kind {
        "" => Ok(()),
        "DirectoryOrCreate" if !place.exists() => {
            let mut builder = fs::DirBuilder::new();
            made(place, builder.recursive(true).mode(0o755).create(place))
        }
        "FileOrCreate" if !place.exists() => {
            let mut options = fs::OpenOptions::new();
            let open = options.write(true).create(true).truncate(false).mode(0o644);
            made(place, open.open(place).map(drop))
        }
        "DirectoryOrCreate" | "Directory" => expect(place, "Directory", "directory"),
        "FileOrCreate" | "File" => expect(place, "File", "file"),
        "Socket" => expect(place, "Socket", "socket file"),
        "CharDevice" => expect(place, "CharDevice", "character device"),
        "BlockDevice" => expect(place, "BlockDevice", "block device"),
        other => Err(HostPathError::UnknownType(other.into())),
    }
}

fn made(path: &Path, result: io::Result<()>) -> Result<(), HostPathError> {
    result.map_err(|source| HostPathError::Make { path: path.to_owned(), source })
}

fn expect(path: &Path, kind: &str, want: &'static str) -> Result<(), HostPathError> {
    let Ok(meta) = fs::metadata(path) else {
        return Err(HostPathError::Missing(path.to_owned()));
    };
    let found = file_kind(meta.file_type());
    if found == kind {
        return Ok(());
    }
    Err(HostPathError::Type { path: path.to_owned(), want, found })
}

fn file_kind(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "Directory"
    } else if kind.is_socket() {
        "Socket"
    } else if kind.is_char_device() {
        "CharDevice"
    } else if kind.is_block_device() {
        "BlockDevice"
    } else if kind.is_fifo() {
        "FIFO"
    } else {
        "File"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::write(at("file"), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("sock")).unwrap();
        assert!(check(&at("none"), "").is_ok());
        assert!(!Path::new(&at("none")).exists());
        check(&at("new/dir"), "DirectoryOrCreate").unwrap();
        check(&at("new/dir"), "Directory").unwrap();
        check(&at("new/file"), "FileOrCreate").unwrap();
        check(&at("new/file"), "File").unwrap();
        check(&at("sock"), "Socket").unwrap();
        check("/dev/null", "CharDevice").unwrap();
        let error = |path: &str, kind| check(path, kind).unwrap_err().to_string();
        assert_eq!(error("/nowhere", "Directory"), "hostPath /nowhere doesn't exist");
        assert_eq!(
            error("/dev/null", "File"),
            "hostPath type check failed: /dev/null is not a file, it's a CharDevice"
        );
        assert!(check(&at("file"), "DirectoryOrCreate").is_err());
        assert!(check(&at("none/f"), "FileOrCreate").is_err());
        assert!(check("/a/../b", "").is_err());
        assert_eq!(error("/x", "Dir"), "Dir is an invalid volume type");
    }
}
