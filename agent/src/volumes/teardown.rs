//! Unmount, verify, remove. And: what a run before this one left behind.
//!
//! Nothing below a pod's folder is removed while anything is mounted there, whoever mounted it;
//! what is mounted comes from mountinfo. All functions block.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::error::TeardownError;
use super::folders::PodDir;
use super::mounts::{Mounter, mounts_below};
use super::remove::remove_tree;

/// Rounds of unmounting: mounts on mounts, and some that appear meanwhile.
const ROUNDS: usize = 3;

/// A pod as found on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPod {
    /// Its UID (the folder's name).
    pub uid: String,
    /// Its volumes, as `<plugin>/<name>`.
    pub volumes: BTreeSet<String>,
    /// How many mounts are below its folder.
    pub mounts: usize,
}

/// Unmounts everything below the pod's folder and removes volumes, subPath mounts and marks.
///
/// # Errors
/// [`TeardownError`]; nothing is removed while something is mounted.
pub fn volumes(mounter: &dyn Mounter, dir: &PodDir) -> Result<(), TeardownError> {
    unmount_all(mounter, dir.path())?;
    remove_tree(&dir.sub_paths())?;
    remove_tree(&dir.volumes())?;
    remove_tree(&dir.plugins())?;
    Ok(())
}

/// Removes the pod's folder with what is left in it.
///
/// # Errors
/// [`TeardownError`].
pub fn folder(mounter: &dyn Mounter, dir: &PodDir) -> Result<(), TeardownError> {
    unmount_all(mounter, dir.path())?;
    Ok(remove_tree(dir.path())?)
}

fn unmount_all(mounter: &dyn Mounter, path: &Path) -> Result<(), TeardownError> {
    // mountinfo has real paths; the root may be reached by a link.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..ROUNDS {
        let mounts = mounts_below(mounter, &real)?;
        if mounts.is_empty() {
            return Ok(());
        }
        for mount in mounts {
            mounter.unmount(&mount.point)?;
        }
    }
    match mounts_below(mounter, &real)?.into_iter().next() {
        None => Ok(()),
        Some(left) => Err(TeardownError::StillMounted { path: left.point }),
    }
}

/// The pods below `<root>/pods`, with one look at the mount table.
pub fn on_disk(mounter: &dyn Mounter, root: &Path) -> Vec<DiskPod> {
    let pods = root.join("pods");
    let real = fs::canonicalize(&pods).unwrap_or_else(|_| pods.clone());
    let mounts = mounts_below(mounter, &real).unwrap_or_default();
    let entries = fs::read_dir(&pods).into_iter().flatten().flatten();
    let uids = entries
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok());
    let found = uids.filter_map(|uid| {
        let dir = PodDir::new(root, &uid)?;
        let below = real.join(&uid);
        let mounts = mounts.iter().filter(|mount| mount.point.starts_with(&below)).count();
        Some(DiskPod { volumes: volumes_of(&dir), mounts, uid })
    });
    found.collect()
}

fn volumes_of(dir: &PodDir) -> BTreeSet<String> {
    let plugins = fs::read_dir(dir.volumes()).into_iter().flatten().flatten();
    plugins
        .flat_map(|plugin| {
            let name = plugin.file_name().to_string_lossy().into_owned();
            fs::read_dir(plugin.path())
                .into_iter()
                .flatten()
                .flatten()
                .map(move |volume| format!("{name}/{}", volume.file_name().to_string_lossy()))
                .collect::<Vec<_>>()
        })
        .collect()
}
