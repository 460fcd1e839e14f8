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
//!
//! The base images are imported into each node before its pods start. Those of applications are pulled when a pod asks for them,
//! from a small registry on the node ([`registry`]), which has the base images too, for pods with `imagePullPolicy: Always`.

mod apps;
mod debian;
mod elf;
mod names;
mod oci;
mod packages;
mod recipes;
pub mod registry;
mod store;
mod tree;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use nix::fcntl::{Flock, FlockArg};

use store::Store;

/// Hex digits of the input hash kept in a file name: 64 bits are plenty for a folder of a dozen images.
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
    /// Every full image name that an import of the archive creates. The registry has it under more.
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

/// Folder of the base images in the form that the registry serves, below the images' folder.
const BASE_STORE: &str = "base";
/// The same for the images of applications.
const APPS_STORE: &str = "apps";

/// Makes every base image whose archive is not in `out_dir` yet, and drops the archives of earlier inputs.
///
/// Callers may overlap (labs side by side): a lock on the folder lets the second wait and then find everything made.
pub fn build_base(out_dir: &Path, inputs: &ImageInputs) -> Result<Vec<BuiltImage>, ImageError> {
    fs::create_dir_all(out_dir).map_err(ImageError::io("create", out_dir))?;
    let _lock = lock(&out_dir.join(".lock"))?;
    let store = Store::at(&out_dir.join(BASE_STORE));
    let recipes = recipes::base(inputs, &out_dir.join("debs"))?;
    let images: Vec<BuiltImage> =
        recipes.into_iter().map(|recipe| build_one(out_dir, &store, recipe)).collect::<Result<_, _>>()?;
    if images.iter().any(|image| image.rebuilt) {
        store.sweep()?;
    }
    Ok(images)
}

/// An image of an application, ready to be pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltApp {
    /// Short name.
    pub name: &'static str,
    /// How many full names it has.
    pub names: usize,
    /// False when it was there already.
    pub rebuilt: bool,
}

/// Makes the images of applications that are not there yet. Needs a folder of packages of its own, because it may run beside
/// [`build_base`].
pub fn build_apps(out_dir: &Path, busybox: &Path) -> Result<Vec<BuiltApp>, ImageError> {
    fs::create_dir_all(out_dir).map_err(ImageError::io("create", out_dir))?;
    let _lock = lock(&out_dir.join(".lock-apps"))?;
    let store = Store::at(&out_dir.join(APPS_STORE));
    let mut built = Vec::new();
    for recipe in apps::all(busybox, &out_dir.join("debs-apps"))? {
        let (name, names, key) = (recipe.name, recipe.names.len(), short_key(&recipe)?);
        let rebuilt = !store.has(name, &key);
        if rebuilt {
            store.put(name, &key, &recipe.finish()?)?;
        }
        built.push(BuiltApp { name, names, rebuilt });
    }
    if built.iter().any(|image| image.rebuilt) {
        store.sweep()?;
    }
    Ok(built)
}

fn short_key(recipe: &recipes::Recipe) -> Result<String, ImageError> {
    let mut key = recipe.key()?;
    key.truncate(KEY_DIGITS);
    Ok(key)
}

fn lock(path: &Path) -> Result<Flock<File>, ImageError> {
    let file = File::create(path).map_err(ImageError::io("create", path))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| ImageError::io("lock", path)(errno.into()))
}

fn build_one(out_dir: &Path, store: &Store, recipe: recipes::Recipe) -> Result<BuiltImage, ImageError> {
    let name = recipe.name;
    let names = names::imported(&recipe.names);
    let key = short_key(&recipe)?;
    let archive = out_dir.join(format!("{name}-{key}.tar"));
    if archive.exists() && store.has(name, &key) {
        return Ok(BuiltImage { name, archive, names, rebuilt: false });
    }
    let mut image = recipe.finish()?;
    store.put(name, &key, &image)?;
    image.names.clone_from(&names);
    let partial = out_dir.join(format!(".{name}.partial"));
    oci::write_archive(&partial, &image)?;
    fs::rename(&partial, &archive).map_err(ImageError::io("rename", &partial))?;
    stale(out_dir, name, ".tar", &archive)?;
    Ok(BuiltImage { name, archive, names, rebuilt: true })
}

/// Drops files of the same image made from earlier inputs.
fn stale(folder: &Path, name: &str, suffix: &str, keep: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(folder).map_err(ImageError::io("list", folder))? {
        let path = entry.map_err(ImageError::io("list", folder))?.path();
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let key =
            file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).and_then(|rest| rest.strip_suffix(suffix));
        let ours = key.is_some_and(|key| key.len() == KEY_DIGITS && key.bytes().all(|digit| digit.is_ascii_hexdigit()));
        if ours && path != keep {
            fs::remove_file(&path).map_err(ImageError::io("remove", &path))?;
        }
    }
    Ok(())
}
