//! The lab's own cgroups, `/keelson-NAME-N/MACHINE`, in every hierarchy of the host.
//!
//! With v1 (or hybrid) that is one folder per controller, with v2 a single one; the node programs find their own place
//! below by the path. Invariant: nothing outside `keelson-…` is ever changed, except that v2 controllers are switched on
//! for the children of the root where they are off.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::fsx::{self, FsError};
use crate::process::Process;

/// Where hierarchies are mounted.
const MOUNT_INFO: &str = "/proc/self/mountinfo";
/// How long removal waits for the kernel to let go of dead processes.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub path: PathBuf,
    /// Whether it is cgroup v2.
    pub unified: bool,
    /// Whether the v1 `cpuset` controller is here: it needs its cpus and mems copied from the parent.
    pub cpuset: bool,
}

/// Every hierarchy mounted on this machine.
pub fn hierarchies() -> Result<Vec<Hierarchy>, FsError> {
    Ok(parse_mounts(&fsx::read(Path::new(MOUNT_INFO))?))
}

fn parse_mounts(text: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let fields: Vec<&str> = left.split(' ').collect();
        let kind: Vec<&str> = right.split(' ').collect();
        // Only whole hierarchies: a bind mount of a part of one has another root.
        let (Some(&root), Some(&path), Some(&fs_type)) = (fields.get(3), fields.get(4), kind.first()) else {
            continue;
        };
        if root != "/" || !fs_type.starts_with("cgroup") || !path.starts_with("/sys/fs/cgroup") {
            continue;
        }
        let options = kind.get(2).copied().unwrap_or_default();
        found.push(Hierarchy {
            path: PathBuf::from(path),
            unified: fs_type == "cgroup2",
            cpuset: fs_type == "cgroup" && options.split(',').any(|option| option == "cpuset"),
        });
    }
    found.dedup();
    found
}

/// Makes `group` (a relative path) in every hierarchy. In v2 the controllers are enabled on the way down, except in the
/// last part, which holds processes.
pub fn create(group: &Path) -> Result<(), FsError> {
    for hierarchy in hierarchies()? {
        let mut path = hierarchy.path.clone();
        for part in group.components() {
            if hierarchy.unified {
                enable_controllers(&path);
            }
            let parent = path.clone();
            path.push(part);
            if !path.exists() {
                fsx::create_dir(&path)?;
            }
            if hierarchy.cpuset {
                inherit_cpuset(&parent, &path)?;
            }
        }
    }
    Ok(())
}

/// Switches on for the children of `path` what `path` has. Best effort: a controller held by v1 cannot be had.
fn enable_controllers(path: &Path) {
    let Ok(controllers) = fs::read_to_string(path.join("cgroup.controllers")) else {
        return;
    };
    for controller in controllers.split_ascii_whitespace() {
        if fs::write(path.join("cgroup.subtree_control"), format!("+{controller}")).is_err() {
            eprintln!("lab: the cgroup controller {controller} cannot be used below {}", path.display());
        }
    }
}

/// A new v1 cpuset is empty and takes no process until it has cpus and mems.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<(), FsError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let target = child.join(file);
        if fsx::read(&target)?.trim().is_empty() {
            fsx::write(&target, fsx::read(&parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

/// Puts a process into `group` in every hierarchy.
pub fn enter(group: &Path, pid: u32) -> Result<(), FsError> {
    for hierarchy in hierarchies()? {
        fsx::write(&hierarchy.path.join(group).join("cgroup.procs"), &pid.to_string())?;
    }
    Ok(())
}

/// Every process in `group` and below.
pub fn processes(group: &Path) -> Result<Vec<i32>, FsError> {
    let mut pids = Vec::new();
    for hierarchy in hierarchies()? {
        for folder in folders(&hierarchy.path.join(group)) {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            // 0 is a process that this pid namespace cannot see.
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1));
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// Kills whatever is left in `group` and removes it everywhere. What is not there is no error.
pub fn remove(group: &Path) -> Result<(), FsError> {
    let end = Instant::now() + REMOVE_LIMIT;
    loop {
        for pid in processes(group)? {
            if let Some(process) = Process::of(pid) {
                // A process that may not be signalled shows again as the folder that stays busy.
                let _ = process.signal(Signal::SIGKILL);
            }
        }
        match remove_once(group) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn remove_once(group: &Path) -> Result<(), FsError> {
    for hierarchy in hierarchies()? {
        for folder in folders(&hierarchy.path.join(group)).iter().rev() {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(fsx::fail("remove cgroup", folder)(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// A folder and those below it, parents first; empty when it does not exist.
fn folders(top: &Path) -> Vec<PathBuf> {
    if !top.is_dir() {
        return Vec::new();
    }
    let mut found = vec![top.to_path_buf()];
    let mut next = 0;
    while let Some(folder) = found.get(next).cloned() {
        next += 1;
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        found.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_hierarchies_are_found_and_parts_are_not() {
        let text = "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                    31 30 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                    32 30 0:28 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
                    33 30 0:27 /part /sys/fs/cgroup/part rw - cgroup cgroup rw,cpuset\n";
        let found = parse_mounts(text);
        assert_eq!(found.len(), 2);
        assert!(found[0].cpuset && !found[0].unified);
        assert!(found[1].unified);
    }
}
