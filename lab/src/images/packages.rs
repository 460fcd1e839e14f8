//! Layers made of Debian packages: downloaded when somebody asks, unpacked once for all images of a set.
//!
//! A layer takes from the unpacked packages what its image needs: programs, the libraries they are linked with, data. It is made at
//! most once, however many images it is in.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use super::ImageError;
use super::debian::{self, Package};
use super::recipes::Platform;
use super::tree::Tree;

/// Packages unpacked over each other into a scratch folder, which goes with this handle.
pub struct PackageSet {
    packages: Vec<Package>,
    root: PathBuf,
    unpacked: OnceCell<()>,
}

impl PackageSet {
    /// The packages `roots` and the libraries they need, kept in `folder`.
    pub fn fetch(roots: &[&str], folder: &Path) -> Result<Rc<Self>, ImageError> {
        let packages = debian::fetch(roots, folder)?;
        Ok(Rc::new(Self { packages, root: folder.join(".unpacked"), unpacked: OnceCell::new() }))
    }

    /// Digests of all packages.
    fn digests(&self) -> Vec<String> {
        self.packages.iter().map(|package| package.sha256.clone()).collect()
    }

    fn root(&self) -> Result<&Path, ImageError> {
        if self.unpacked.get().is_none() {
            remove_tree(&self.root)?;
            debian::unpack(&self.packages, &self.root)?;
            // Nobody else can have set it: the cell is not shared between threads.
            let _ = self.unpacked.set(());
        }
        Ok(&self.root)
    }
}

impl Drop for PackageSet {
    fn drop(&mut self) {
        if self.unpacked.get().is_some() {
            // What stays is removed by the next one to unpack here.
            let _ = remove_tree(&self.root);
        }
    }
}

fn remove_tree(path: &Path) -> Result<(), ImageError> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(ImageError::io("remove", path))?;
    }
    Ok(())
}

/// Takes files out of unpacked packages.
pub type Select = fn(&Unpacked<'_>) -> Result<Tree, ImageError>;

/// A layer of files from a package set.
pub struct PackageLayer {
    set: Rc<PackageSet>,
    platform: Platform,
    select: Select,
    made: OnceCell<Tree>,
}

impl PackageLayer {
    /// A layer that is not made yet.
    pub fn new(set: &Rc<PackageSet>, platform: Platform, select: Select) -> Rc<Self> {
        Rc::new(Self { set: Rc::clone(set), platform, select, made: OnceCell::new() })
    }

    /// What the layer is made of.
    pub fn inputs(&self) -> Vec<String> {
        self.set.digests()
    }

    /// The layer, made now if it is not yet.
    pub fn tree(&self) -> Result<Tree, ImageError> {
        if let Some(tree) = self.made.get() {
            return Ok(tree.clone());
        }
        let unpacked = Unpacked { root: self.set.root()?, platform: self.platform };
        let tree = (self.select)(&unpacked)?;
        Ok(self.made.get_or_init(|| tree).clone())
    }
}

/// Unpacked packages.
pub struct Unpacked<'a> {
    /// Their common root.
    pub root: &'a Path,
    platform: Platform,
}

impl Unpacked<'_> {
    /// The path of a file of the packages.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Adds a file under its own path.
    pub fn copy(&self, layer: &mut Tree, path: &str, mode: u32) -> Result<(), ImageError> {
        layer.copy(path, mode, &self.path(path))
    }

    /// Adds the loader, and every library that these programs and modules (below the root) are linked with.
    pub fn add_libraries(&self, layer: &mut Tree, programs: &[String]) -> Result<(), ImageError> {
        let Platform { triplet, loader, .. } = self.platform;
        layer.copy(loader, 0o755, &debian::loader_below(self.root, loader)?)?;
        let folders = self.library_folders();
        let mut libraries = BTreeSet::new();
        for program in programs {
            libraries.extend(debian::libraries(self.root, loader, &folders, program)?);
        }
        for library in libraries {
            let name = library.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            layer.copy(&format!("lib/{triplet}/{name}"), 0o755, &library)?;
        }
        Ok(())
    }

    fn library_folders(&self) -> [String; 2] {
        ["lib", "usr/lib"].map(|folder| format!("{folder}/{}", self.platform.triplet))
    }

    /// Runs a program of the packages with their own libraries, on this machine.
    pub fn run(&self, program: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Result<String, ImageError> {
        let path = self.library_folders().map(|folder| self.path(&folder).display().to_string()).join(":");
        let mut command = Command::new(debian::loader_below(self.root, self.platform.loader)?);
        command.args(["--inhibit-cache", "--library-path", &path]).arg(self.path(program)).args(arguments);
        command.envs(environment.iter().copied());
        debian::run(&mut command)
    }

    /// Every file below a folder, as a path below the root; links to files count as files, links to elsewhere not at all.
    pub fn files(&self, folder: &str) -> Result<Vec<String>, ImageError> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let path = self.path(&folder);
            for entry in fs::read_dir(&path).map_err(ImageError::io("list", &path))? {
                let entry = entry.map_err(ImageError::io("list", &path))?;
                let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
                let target = fs::canonicalize(entry.path()).ok().filter(|target| target.starts_with(self.root));
                if entry.path().is_dir() && !entry.path().is_symlink() {
                    folders.push(name);
                } else if target.is_some_and(|target| target.is_file()) {
                    found.push(name);
                }
            }
        }
        found.sort();
        Ok(found)
    }
}
