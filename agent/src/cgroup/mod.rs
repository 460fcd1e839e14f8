//! Pod cgroups: names, limits, creation and removal, on cgroup v1 (and hybrid) and v2 hosts.
//!
//! [`resources`] is pure; [`Cgroups`] writes files below the mount points it is given. Upstream counterpart:
//! `pkg/kubelet/cm`.

pub mod node;
mod remove;
pub mod resources;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::config::kubelet::CgroupDriver;
use crate::pod::{self, Qos};
use resources::PodResources;

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// Name of the v2 tree of a hybrid host in the list of trees.
const HYBRID: &str = "unified";
/// Controllers on v1 in which the agent makes pod cgroups; the runtime makes the rest below them.
const V1_LIMITS: [&str; 3] = ["cpu", "memory", "pids"];

/// Why a cgroup could not be made or removed. Retryable: the kernel may still be busy.
#[derive(Debug, thiserror::Error)]
#[error("cgroup {}: {action}: {source}", path.display())]
pub struct CgroupError {
    /// What was tried.
    pub action: String,
    /// The folder or file.
    pub path: PathBuf,
    /// The kernel's answer.
    pub source: io::Error,
}

fn fail(action: impl Into<String>, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let (action, path) = (action.into(), path.to_owned());
    move |source| CgroupError { action, path, source }
}

/// How the host mounts cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One tree.
    Unified(PathBuf),
    /// One tree per controller: (controller, mount point).
    PerController(Vec<(String, PathBuf)>),
}

impl Layout {
    /// Looks at the host's mounts.
    #[must_use]
    pub fn detect() -> Self {
        let root = Path::new(MOUNT);
        if std::fs::read_to_string(root.join("cgroup.controllers")).is_ok_and(|c| !c.trim().is_empty()) {
            return Self::Unified(root.to_owned());
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self::PerController(parse_v1_mounts(&mounts))
    }

    /// Whether this is cgroup v1 or hybrid.
    #[must_use]
    pub fn is_v1(&self) -> bool {
        matches!(self, Self::PerController(_))
    }
}

fn parse_v1_mounts(mountinfo: &str) -> Vec<(String, PathBuf)> {
    let mut out: Vec<(String, PathBuf)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        let mut tail = tail.split(' ');
        match tail.next() {
            Some("cgroup") => {}
            // Hybrid: the v2 tree has no controllers, but runc makes the pods' cgroups there too, and they must go.
            Some("cgroup2") => {
                out.extend(head.split(' ').nth(4).map(|point| (HYBRID.to_owned(), PathBuf::from(point))));
                continue;
            }
            _ => continue,
        }
        let (Some(point), Some(options)) = (head.split(' ').nth(4), tail.nth(1)) else { continue };
        for controller in options.split(',') {
            let known = [
                "cpu",
                "cpuacct",
                "cpuset",
                "memory",
                "pids",
                "blkio",
                "devices",
                "freezer",
                "hugetlb",
                "net_cls",
                "net_prio",
                "perf_event",
                "rdma",
                "misc",
            ];
            let fresh = !out.iter().any(|(c, _)| c == controller);
            if (known.contains(&controller) || controller == "name=systemd") && fresh {
                out.push((controller.to_owned(), PathBuf::from(point)));
            }
        }
    }
    out
}

/// The node's pod cgroups.
#[derive(Clone, Debug)]
pub struct Cgroups {
    layout: Layout,
    root: String,
    driver: CgroupDriver,
    enabled: bool,
}

impl Cgroups {
    /// Pod cgroups below `root` (`/` or a path of the operator's choice).
    #[must_use]
    pub fn new(layout: Layout, root: &str, driver: CgroupDriver, enabled: bool) -> Self {
        Self { layout, root: root.trim_matches('/').to_owned(), driver, enabled }
    }

    /// Whether pods get cgroups at all.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Whether the host has cgroup v1.
    #[must_use]
    pub fn is_v1(&self) -> bool {
        self.layout.is_v1()
    }

    fn segments(&self, qos: Qos, uid: Option<&str>) -> Vec<String> {
        let mut parts: Vec<String> = self.root.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect();
        parts.push("kubepods".into());
        match qos {
            Qos::Guaranteed => {}
            Qos::Burstable => parts.push("burstable".into()),
            Qos::BestEffort => parts.push("besteffort".into()),
        }
        parts.extend(uid.map(|uid| format!("pod{uid}")));
        parts
    }

    /// The name to give the runtime as a sandbox's parent.
    #[must_use]
    pub fn parent(&self, pod: &Pod) -> String {
        self.named(&self.segments(Qos::of(pod), Some(pod::uid(pod))))
    }

    /// The folder of a cgroup below a mount point.
    fn folder(&self, parts: &[String]) -> PathBuf {
        match self.driver {
            CgroupDriver::Cgroupfs => parts.iter().collect(),
            CgroupDriver::Systemd => (1..=parts.len()).map(|n| slice(&parts[..n])).collect(),
        }
    }

    fn trees(&self) -> Vec<(&str, &Path)> {
        match &self.layout {
            Layout::Unified(root) => vec![("", root.as_path())],
            Layout::PerController(list) => list.iter().map(|(c, p)| (c.as_str(), p.as_path())).collect(),
        }
    }

    /// Makes a pod's cgroup with its limits.
    ///
    /// # Errors
    /// What the kernel refuses, with the file.
    pub fn ensure(&self, pod: &Pod, resources: &PodResources) -> Result<(), CgroupError> {
        if !self.enabled {
            return Ok(());
        }
        let parts = self.segments(Qos::of(pod), Some(checked(pod::uid(pod))?));
        let folder = self.folder(&parts);
        for (controller, mount) in self.trees() {
            if self.is_v1() && !V1_LIMITS.contains(&controller) {
                continue;
            }
            let path = mount.join(&folder);
            if !path.is_dir() {
                self.make(mount, &folder)?;
            }
            for (file, value) in resources.files(controller) {
                write(&path.join(file), &value)?;
            }
        }
        Ok(())
    }

    /// The name of the cgroup of all pods.
    #[must_use]
    pub fn all(&self) -> String {
        self.named(&self.segments(Qos::Guaranteed, None))
    }

    fn named(&self, parts: &[String]) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", parts.join("/")),
            CgroupDriver::Systemd => slice(parts),
        }
    }

    /// Makes the cgroup of all pods with what they may use together.
    ///
    /// # Errors
    /// What the kernel refuses: a memory limit below what is in use, for example.
    pub fn limit_all(&self, resources: &PodResources) -> Result<(), CgroupError> {
        if !self.enabled {
            return Ok(());
        }
        let folder = self.folder(&self.segments(Qos::Guaranteed, None));
        for (controller, mount) in self.trees() {
            if self.is_v1() && !V1_LIMITS.contains(&controller) {
                continue;
            }
            self.make(mount, &folder)?;
            for (file, value) in resources.files(controller) {
                write(&mount.join(&folder).join(file), &value)?;
            }
        }
        Ok(())
    }

    /// Sets the CPU weight of the Burstable class to the sum of its pods' requests and of BestEffort to the least.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn set_classes(&self, burstable_milli: i64) -> Result<(), CgroupError> {
        if !self.enabled {
            return Ok(());
        }
        for (qos, milli) in [(Qos::Burstable, burstable_milli), (Qos::BestEffort, 0)] {
            let folder = self.folder(&self.segments(qos, None));
            let resources = PodResources { cpu_shares: Some(resources::shares(milli)), ..PodResources::default() };
            for (controller, mount) in self.trees() {
                let path = mount.join(&folder);
                if (self.is_v1() && controller != "cpu") || !path.is_dir() {
                    continue;
                }
                for (file, value) in resources.files(controller) {
                    write(&path.join(file), &value)?;
                }
            }
        }
        Ok(())
    }

    fn make(&self, mount: &Path, folder: &Path) -> Result<(), CgroupError> {
        let mut path = mount.to_owned();
        for part in folder {
            if !self.is_v1() {
                enable_controllers(&path);
            }
            path.push(part);
            match std::fs::create_dir(&path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail("create", &path)(e)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a pod's cgroup with everything below and in it, in every class (a pod's class never changes, but an
    /// agent of another version may have seen it otherwise). Kills every process in it: only for a pod of which the
    /// runtime shows nothing that lives. Blocks for at most a few seconds.
    ///
    /// # Errors
    /// When a process in it cannot be ended, with the processes.
    pub fn remove(&self, uid: &str) -> Result<(), CgroupError> {
        remove::destroy(&self.folders_of(uid)?)
    }

    /// A pod's folders in all classes and trees.
    fn folders_of(&self, uid: &str) -> Result<Vec<PathBuf>, CgroupError> {
        let mut paths = Vec::new();
        for qos in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
            let folder = self.folder(&self.segments(qos, Some(checked(uid)?)));
            paths.extend(self.trees().iter().map(|(_, mount)| mount.join(&folder)).filter(|path| path.is_dir()));
        }
        Ok(paths)
    }

    /// IDs of what has a cgroup within a pod's: its containers and sandboxes.
    #[must_use]
    pub fn containers(&self, uid: &str) -> BTreeSet<String> {
        self.container_folders(uid).unwrap_or_default().into_iter().map(|(id, _)| id).collect()
    }

    /// Removes the cgroup of one container of a pod, and kills what is in it: only for one that the runtime does not know.
    /// Blocks for at most a few seconds.
    ///
    /// # Errors
    /// When a process in it cannot be ended, with the processes.
    pub fn remove_container(&self, uid: &str, id: &str) -> Result<(), CgroupError> {
        let own = self.container_folders(uid)?.into_iter().filter(|(other, _)| other == id);
        remove::destroy(&own.map(|(_, path)| path).collect::<Vec<_>>())
    }

    /// The folders within a pod's, in all trees, with the IDs in their names.
    fn container_folders(&self, uid: &str) -> Result<Vec<(String, PathBuf)>, CgroupError> {
        let folders = self.folders_of(uid)?;
        let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let named = |entry: std::fs::DirEntry| {
            let id = container_id(&entry.file_name().to_string_lossy())?.to_owned();
            Some((id, entry.path()))
        };
        Ok(entries.filter_map(named).collect())
    }

    /// UIDs of the pods that have a cgroup.
    #[must_use]
    pub fn pods(&self) -> Vec<String> {
        let mut found = BTreeSet::new();
        for qos in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
            let folder = self.folder(&self.segments(qos, None));
            for (_, mount) in self.trees() {
                let Ok(entries) = std::fs::read_dir(mount.join(&folder)) else { continue };
                for entry in entries.flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    let uid = match self.driver {
                        CgroupDriver::Cgroupfs => name.strip_prefix("pod").map(str::to_owned),
                        CgroupDriver::Systemd => name
                            .strip_suffix(".slice")
                            .and_then(|n| n.rsplit_once("-pod"))
                            .map(|(_, uid)| uid.replace('_', "-")),
                    };
                    found.extend(uid.filter(|_| entry.path().is_dir()));
                }
            }
        }
        found.into_iter().collect()
    }
}

/// Hexadecimal digits of a container's ID.
const ID_DIGITS: usize = 64;

/// The ID in the name of a container's cgroup: `ID`, or `RUNTIME-ID.scope` where systemd makes them.
fn container_id(name: &str) -> Option<&str> {
    let id = name.strip_suffix(".scope").and_then(|name| name.rsplit_once('-')).map_or(name, |(_, id)| id);
    (id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// A UID that names one folder and nothing else: no other may become part of a path.
fn checked(uid: &str) -> Result<&str, CgroupError> {
    if uid.is_empty() || uid.contains(['/', '\0']) || uid.starts_with('.') {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the pod's UID is no folder name");
        return Err(CgroupError { action: format!("name it after UID {uid:?}"), path: "kubepods".into(), source });
    }
    Ok(uid)
}

/// systemd's name of a slice: the parts joined by `-`, with dashes inside a part replaced.
fn slice(parts: &[String]) -> String {
    let joined: Vec<String> = parts.iter().map(|p| p.trim_end_matches(".slice").replace('-', "_")).collect();
    format!("{}.slice", joined.join("-"))
}

/// Hands the controllers of a v2 folder down to its children; those that cannot be are left out by the kernel.
fn enable_controllers(path: &Path) {
    for controller in ["cpu", "memory", "pids", "cpuset", "io", "hugetlb"] {
        let _ = std::fs::write(path.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    if std::fs::read_to_string(path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    std::fs::write(path, value).map_err(fail(format!("write {value:?}"), path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn guaranteed() -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "a-b"}, "spec": {"containers": [
            {"name": "m", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]}}))
        .unwrap()
    }

    #[test]
    fn names_follow_the_driver() {
        let layout = || Layout::Unified("/x".into());
        let fs = Cgroups::new(layout(), "/lab/n1", CgroupDriver::Cgroupfs, true);
        assert_eq!(fs.parent(&guaranteed()), "/lab/n1/kubepods/poda-b");
        let sd = Cgroups::new(layout(), "/", CgroupDriver::Systemd, true);
        assert_eq!(sd.parent(&guaranteed()), "kubepods-poda_b.slice");
        assert_eq!(
            sd.folder(&sd.segments(Qos::Burstable, Some("a-b"))),
            Path::new("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice")
        );
    }

    #[test]
    fn mounts_of_a_hybrid_host() {
        let text = "30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                    31 24 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n\
                    32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let mounts = parse_v1_mounts(text);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[3], (HYBRID.into(), "/sys/fs/cgroup/unified".into()));
        assert_eq!(mounts[1], ("cpuacct".into(), "/sys/fs/cgroup/cpu,cpuacct".into()));
    }

    #[test]
    fn limits_are_written_and_folders_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mounts: Vec<_> = ["cpu", "memory", "pids"].map(|c| (c.to_owned(), dir.path().join(c))).into();
        for (_, m) in &mounts {
            std::fs::create_dir(m).unwrap();
        }
        let cgroups = Cgroups::new(Layout::PerController(mounts), "", CgroupDriver::Cgroupfs, true);
        let pod = guaranteed();
        cgroups.ensure(&pod, &resources::of_pod(&pod, true, std::time::Duration::from_millis(100), -1)).unwrap();
        let base = dir.path().join("cpu/kubepods/poda-b");
        assert_eq!(std::fs::read_to_string(base.join("cpu.cfs_quota_us")).unwrap(), "100000");
        assert_eq!(cgroups.pods(), ["a-b"]);
        // A cgroup file system drops files with their folder; a plain one does not.
        for c in ["cpu", "memory", "pids"] {
            for f in std::fs::read_dir(dir.path().join(c).join("kubepods/poda-b")).unwrap().flatten() {
                std::fs::remove_file(f.path()).unwrap();
            }
        }
        cgroups.remove("a-b").unwrap();
        assert!(cgroups.pods().is_empty());
    }

    #[test]
    fn a_uid_cannot_lead_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::new(Layout::Unified(dir.path().join("fs")), "", CgroupDriver::Cgroupfs, true);
        let mut pod = guaranteed();
        pod.metadata.uid = Some("/../../../x".into());
        let error = cgroups.ensure(&pod, &PodResources::default()).unwrap_err().to_string();
        assert!(error.contains("UID \"/../../../x\""), "{error}");
        assert!(cgroups.remove("/../../../x").is_err() && cgroups.remove("").is_err());
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }
}
