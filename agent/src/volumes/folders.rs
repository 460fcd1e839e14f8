//! Where a pod's things lie on disk, and the folders and tmpfs mounts behind its volumes.
//!
//! The layout is upstream's, so that a node changes hands between a stock kubelet and this agent
//! without a pod noticing. All functions block.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_common::quantity::Quantity;

use super::error::VolumeCause;
use super::mounts::{Mounter, mount_at};
use super::ownership::Ownership;

/// Plugin folder of emptyDir volumes.
pub const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
/// Plugin folder of configMap volumes.
pub const CONFIG_MAP: &str = "kubernetes.io~configmap";
/// Plugin folder of secret volumes.
pub const SECRET: &str = "kubernetes.io~secret";
/// Plugin folder of downwardAPI volumes.
pub const DOWNWARD_API: &str = "kubernetes.io~downward-api";
/// Plugin folder of projected volumes.
pub const PROJECTED: &str = "kubernetes.io~projected";

/// Mode of the folders that only the agent uses.
const PRIVATE_DIR: u32 = 0o750;
/// Mode of an emptyDir: any container user may write.
const EMPTY_DIR_MODE: u32 = 0o777;

/// The folder of one pod and what lies in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDir(PathBuf);

impl PodDir {
    /// The folder of pod `uid` below `root` (e.g. `/var/lib/kubelet`); `None` for a UID that is no
    /// file name, which a hand-written manifest can have.
    pub fn new(root: &Path, uid: &str) -> Option<Self> {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let ok = (1..=253).contains(&uid.len()) && uid.chars().all(fine) && !uid.starts_with('.');
        ok.then(|| Self(root.join("pods").join(uid)))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All volumes.
    pub fn volumes(&self) -> PathBuf {
        self.0.join("volumes")
    }

    /// One volume.
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.0.join("volumes").join(plugin).join(name)
    }

    /// The subPath mounts.
    pub fn sub_paths(&self) -> PathBuf {
        self.0.join("volume-subpaths")
    }

    /// Marks of the plugins.
    pub fn plugins(&self) -> PathBuf {
        self.0.join("plugins")
    }

    /// A container's own files (termination message).
    pub fn container(&self, name: &str) -> PathBuf {
        self.0.join("containers").join(name)
    }

    /// The file that says that an emptyDir (or the one inside another volume) is complete.
    fn ready(&self, name: &str) -> PathBuf {
        self.plugins().join(EMPTY_DIR).join(name).join("ready")
    }

    /// Makes the pod's folders.
    ///
    /// # Errors
    /// [`VolumeCause::Folder`].
    pub fn create(&self) -> Result<(), VolumeCause> {
        make_dir(&self.volumes(), PRIVATE_DIR)?;
        make_dir(&self.plugins(), PRIVATE_DIR)
    }
}

/// What an emptyDir, or the folder inside another volume, is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Medium {
    /// The node's disk.
    Disk,
    /// A tmpfs of at most so many bytes.
    Memory(Option<u64>),
}

fn folder<T>(action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, VolumeCause> {
    result.map_err(|source| VolumeCause::Folder { action, path: path.to_owned(), source })
}

fn make_dir(path: &Path, mode: u32) -> Result<(), VolumeCause> {
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    folder("make the folder", path, made)
}

/// Sets up the emptyDir `name`. What a container wrote there stays: a complete one is not touched.
///
/// # Errors
/// [`VolumeCause`].
pub fn set_up_empty_dir(
    mounter: &dyn Mounter,
    pod: &PodDir,
    name: &str,
    medium: &Medium,
    mode: Option<u32>,
    owner: Ownership,
) -> Result<(), VolumeCause> {
    let path = pod.volume(EMPTY_DIR, name);
    let ready = pod.ready(name);
    let mounted = mount_at(mounter, &path)?.is_some();
    if ready.exists() && path.is_dir() && (mounted || *medium == Medium::Disk) {
        return Ok(());
    }
    set_up_folder(mounter, &path, medium, mode.unwrap_or(EMPTY_DIR_MODE), mounted)?;
    if let Some(gid) = owner.fs_group {
        let meta = folder("look at", &path, fs::metadata(&path))?;
        let want = owner.writable_dir(meta.mode() & 0o7777);
        let chown = std::os::unix::fs::chown(&path, None, Some(gid));
        folder("set the group of", &path, chown)?;
        set_mode(&path, want.mode)?;
    }
    mark_ready(&ready)
}

/// Sets up the folder that the atomic writer fills. On restart it is found as it was.
///
/// # Errors
/// [`VolumeCause`].
pub fn set_up_wrapper(
    mounter: &dyn Mounter,
    pod: &PodDir,
    path: &Path,
    name: &str,
    medium: &Medium,
    owner: Ownership,
) -> Result<(), VolumeCause> {
    let ready = pod.ready(&format!("wrapped_{name}"));
    let mounted = mount_at(mounter, path)?.is_some();
    if ready.exists() && path.is_dir() && (mounted || *medium == Medium::Disk) {
        return Ok(());
    }
    set_up_folder(mounter, path, medium, EMPTY_DIR_MODE, mounted)?;
    if let Some(gid) = owner.fs_group {
        let meta = folder("look at", path, fs::metadata(path))?;
        let chown = std::os::unix::fs::chown(path, None, Some(gid));
        folder("set the group of", path, chown)?;
        let grouped = owner.read_only_dir().mode & 0o7000;
        set_mode(path, meta.mode() & 0o7777 | grouped)?;
    }
    mark_ready(&ready)
}

fn set_up_folder(
    mounter: &dyn Mounter,
    path: &Path,
    medium: &Medium,
    mode: u32,
    mounted: bool,
) -> Result<(), VolumeCause> {
    if let Some(plugin) = path.parent() {
        make_dir(plugin, PRIVATE_DIR)?;
    }
    if mounted {
        return Ok(());
    }
    make_dir(path, EMPTY_DIR_MODE)?;
    set_mode(path, mode)?;
    if let Medium::Memory(size) = medium {
        mounter.tmpfs(path, *size)?;
        if mode != EMPTY_DIR_MODE {
            set_mode(path, mode)?;
        }
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeCause> {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    folder("set the mode of", path, set)
}

fn mark_ready(ready: &Path) -> Result<(), VolumeCause> {
    if let Some(parent) = ready.parent() {
        make_dir(parent, PRIVATE_DIR)?;
    }
    folder("write", ready, fs::write(ready, ""))
}

/// The size of a memory volume: the smallest of the node's allocatable memory, the pod's memory
/// limit and the volume's own limit; `None` if none is known.
pub fn memory_size(pod: &Pod, size_limit: Option<&ApiQuantity>, allocatable: Option<&ApiQuantity>) -> Option<u64> {
    let bytes = |q: &ApiQuantity| {
        let value = Quantity::parse(&q.0).ok()?.value();
        u64::try_from(value).ok().filter(|v| *v > 0)
    };
    [allocatable.and_then(bytes), pod_memory_limit(pod, bytes), size_limit.and_then(bytes)].into_iter().flatten().min()
}

/// The limit of the pod's memory cgroup: only if the pod has one, or every container has.
fn pod_memory_limit(pod: &Pod, bytes: impl Fn(&ApiQuantity) -> Option<u64>) -> Option<u64> {
    let spec = pod.spec.as_ref()?;
    let memory = |limits: Option<&std::collections::BTreeMap<String, ApiQuantity>>| {
        limits.and_then(|l| l.get("memory")).and_then(&bytes)
    };
    let of_pod = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    if let Some(limit) = memory(of_pod) {
        return Some(limit);
    }
    let of = |c: &k8s_openapi::api::core::v1::Container| memory(c.resources.as_ref().and_then(|r| r.limits.as_ref()));
    let mut running: u64 =
        spec.containers.iter().map(of).try_fold(0u64, |sum, limit| Some(sum.saturating_add(limit?)))?;
    let mut starting = 0;
    for init in spec.init_containers.iter().flatten() {
        let limit = of(init)?;
        if init.restart_policy.as_deref() == Some("Always") {
            running = running.saturating_add(limit);
        } else {
            starting = starting.max(limit);
        }
    }
    Some(running.max(starting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_stay_inside() {
        let root = Path::new("/r");
        assert!(PodDir::new(root, "0a-b.c_d").is_some());
        for bad in ["", ".", "..", "../x", "a/b", "a\0"] {
            assert!(PodDir::new(root, bad).is_none(), "{bad:?}");
        }
    }

    fn q(text: &str) -> ApiQuantity {
        ApiQuantity(text.into())
    }

    #[test]
    fn the_smallest_limit_counts() {
        let pod = |containers: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {}, "spec": {"containers": containers}})).unwrap()
        };
        let limited = pod(serde_json::json!([
            {"name": "a", "resources": {"limits": {"memory": "1Mi"}}},
            {"name": "b", "resources": {"limits": {"memory": "2Mi"}}}]));
        let open = pod(serde_json::json!([
            {"name": "a", "resources": {"limits": {"memory": "1Mi"}}}, {"name": "b"}]));
        let node = q("8Mi");
        assert_eq!(memory_size(&limited, None, Some(&node)), Some(3 << 20));
        assert_eq!(memory_size(&open, None, Some(&node)), Some(8 << 20));
        assert_eq!(memory_size(&open, Some(&q("4Mi")), Some(&node)), Some(4 << 20));
        assert_eq!(memory_size(&limited, Some(&q("4Mi")), None), Some(3 << 20));
        assert_eq!(memory_size(&open, Some(&q("0")), None), None);
    }
}
