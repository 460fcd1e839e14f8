//! Files of the PKI: written beside, synced and renamed, so that a crash leaves the old or the new one.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::PkiError;

const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

fn file_error(path: &Path) -> impl Fn(std::io::Error) -> PkiError + '_ {
    move |source| PkiError::File { path: path.to_owned(), source }
}

pub(super) fn create_private_dir(path: &Path) -> Result<(), PkiError> {
    if !path.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(file_error(path))?;
    }
    Ok(())
}

pub(super) fn read(path: &Path) -> Result<String, PkiError> {
    std::fs::read_to_string(path).map_err(file_error(path))
}

pub(super) fn write_public(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    write(path, content, PUBLIC)
}

/// Writes a file that only its owner may read.
///
/// # Errors
/// [`PkiError::File`].
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    write(path, content, PRIVATE)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), PkiError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let run = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(beside)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(beside, path)
    };
    run().map_err(file_error(path))
}
