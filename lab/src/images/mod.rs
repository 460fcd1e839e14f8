//! Container images made on this machine, without a registry and without docker.
//!
//! A lab has no registry to pull from, so every image that its pods use is put together here from Debian packages and from
//! programs of ours, and written as an OCI image-layout archive that `ctr images import` takes. The archive names its image under
//! every name that public manifests use, so that such manifests run unchanged.
//!
//! Invariants:
//! - an archive is a function of its inputs: same inputs, same bytes (sorted entries, epoch timestamps, owner root);
//! - its file name carries a hash of those inputs, so an unchanged image is never built twice and a changed one is never missed;
//! - a file under its final name is complete (written beside it, then renamed).

mod debian;
mod elf;
mod names;
mod oci;
mod recipes;
mod tree;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use nix::fcntl::{Flock, FlockArg};

/// Hex digits of the input hash kept in a file name: 64 bits are plenty for a folder of four images.
const KEY_DIGITS: usize = 16;

/// What the images are made of besides Debian's archive.
#[derive(Debug, Clone)]
pub struct ImageInputs {
    /// The static `pause` program (`cargo rustc -p keelson-lab --bin pause -- -C target-feature=+crt-static`).
    pub pause: PathBuf,
    /// The static `test-server` program, linked in the same way.
    pub test_server: PathBuf,
    /// A static busybox; Debian's `busybox-static` puts it at `/bin/busybox`.
    pub busybox: PathBuf,
}

/// One archive, ready for `ctr -n k8s.io images import`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltImage {
    /// Short name: `pause`, `busybox`, `nginx` or `test-server`.
    pub name: &'static str,
    /// The OCI archive.
    pub archive: PathBuf,
    /// Every full image name that an import of the archive creates.
    pub names: Vec<String>,
    /// False when an archive of the same inputs was there already.
    pub rebuilt: bool,
}

/// Why the images could not be made. Only [`ImageError::Command`] (apt without a network) is worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file could not be read, written or locked.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A program would need a dynamic loader, which its image does not have.
    #[error(
        "{} is not a static program (its loader would be {interpreter}): link it with `cargo rustc … -- -C target-feature=+crt-static`",
        path.display()
    )]
    NotStatic {
        /// The program.
        path: PathBuf,
        /// The loader it asks for.
        interpreter: String,
    },
    /// A program is not an ELF file of 64 bits.
    #[error("{} is not a 64-bit ELF program: {reason}", path.display())]
    NotElf {
        /// The file.
        path: PathBuf,
        /// What is wrong with its headers.
        reason: &'static str,
    },
    /// An external tool (apt-get, apt-cache, dpkg-deb, the loader, busybox) could not be started.
    #[error("cannot run `{command}`: {source}")]
    Spawn {
        /// The command line.
        command: String,
        /// The system's reason.
        source: io::Error,
    },
    /// An external tool failed. Retryable when it needs the network.
    #[error("`{command}` failed with {status}: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// An external tool answered something that this version does not understand.
    #[error("`{command}` answered unexpectedly: {what}")]
    Answer {
        /// The command line.
        command: String,
        /// What was missing or odd.
        what: String,
    },
    /// Images are only described for architectures whose OCI name is known.
    #[error("no image can be made for the architecture {0}: only x86_64 and aarch64 are known")]
    Architecture(&'static str),
    /// Neither apt nor the folder of earlier downloads has a package.
    #[error(
        "Debian package {package} is neither to be had from apt ({apt}) nor kept in {}: run `apt-get update` with a network once",
        kept.display()
    )]
    Package {
        /// The package.
        package: String,
        /// Why apt could not help.
        apt: String,
        /// Where earlier downloads are kept.
        kept: PathBuf,
    },
}

impl ImageError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// Makes every image whose archive is not in `out_dir` yet, and drops the archives of earlier inputs.
///
/// Callers may overlap (labs side by side): a lock on the folder lets the second wait and then find everything made.
pub fn build_all(out_dir: &Path, inputs: &ImageInputs) -> Result<Vec<BuiltImage>, ImageError> {
    fs::create_dir_all(out_dir).map_err(ImageError::io("create", out_dir))?;
    let _lock = lock(&out_dir.join(".lock"))?;
    let recipes = recipes::all(inputs, &out_dir.join("debs"))?;
    recipes.into_iter().map(|recipe| build_one(out_dir, recipe)).collect()
}

fn lock(path: &Path) -> Result<Flock<File>, ImageError> {
    let file = File::create(path).map_err(ImageError::io("create", path))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| ImageError::io("lock", path)(errno.into()))
}

fn build_one(out_dir: &Path, recipe: recipes::Recipe) -> Result<BuiltImage, ImageError> {
    let name = recipe.name;
    let names = recipe.names.clone();
    let key = recipe.key()?;
    let archive = out_dir.join(format!("{name}-{}.tar", &key[..KEY_DIGITS]));
    if archive.exists() {
        return Ok(BuiltImage { name, archive, names, rebuilt: false });
    }
    let image = recipe.finish()?;
    let partial = out_dir.join(format!(".{name}.partial"));
    oci::write_archive(&partial, &image)?;
    fs::rename(&partial, &archive).map_err(ImageError::io("rename", &partial))?;
    remove_stale(out_dir, name, &archive)?;
    Ok(BuiltImage { name, archive, names, rebuilt: true })
}

/// Drops archives of the same image made from earlier inputs.
fn remove_stale(out_dir: &Path, name: &str, keep: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(out_dir).map_err(ImageError::io("list", out_dir))? {
        let path = entry.map_err(ImageError::io("list", out_dir))?.path();
        let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        let key =
            file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).and_then(|rest| rest.strip_suffix(".tar"));
        let ours = key.is_some_and(|key| key.len() == KEY_DIGITS && key.bytes().all(|digit| digit.is_ascii_hexdigit()));
        if ours && path != keep {
            fs::remove_file(&path).map_err(ImageError::io("remove", &path))?;
        }
    }
    Ok(())
}
