//! The end of a pod's cgroup: whatever still lives in it is killed, then its folders go.
//!
//! To be called only when the runtime shows nothing of the pod that lives: what is left then are processes that nobody
//! owns, such as a `runc init` whose containerd was killed in the middle of a creation. Upstream counterpart:
//! `podContainerManagerImpl.Destroy`.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::CgroupError;

/// How long a removal tries: a killed process is gone within milliseconds unless it hangs in the kernel.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// Pause between two tries.
const REMOVE_PAUSE: Duration = Duration::from_millis(10);
/// Most processes named in an error.
const NAMED: usize = 10;

/// Removes the cgroups at `paths`, one per tree, with everything below and in them.
pub(super) fn destroy(paths: &[PathBuf]) -> Result<(), CgroupError> {
    let until = Instant::now() + REMOVE_LIMIT;
    loop {
        // A process may fork between a look and its end, so every try kills anew.
        paths.iter().for_each(|path| kill_all(path));
        let mut failed = paths.iter().filter_map(|path| remove_tree(path).err());
        let Some(mut error) = failed.next() else { return Ok(()) };
        if Instant::now() >= until {
            let left: BTreeSet<i32> = paths.iter().flat_map(|path| processes(path)).collect();
            if !left.is_empty() {
                error.action = format!("remove (still used by process {})", named(&left));
            }
            return Err(error);
        }
        std::thread::sleep(REMOVE_PAUSE);
    }
}

fn kill_all(path: &Path) {
    // cgroup v2 since Linux 5.14: the whole tree at once, forks included.
    let all = std::fs::OpenOptions::new().write(true).open(path.join("cgroup.kill"));
    if all.and_then(|mut file| file.write_all(b"1")).is_ok() {
        return;
    }
    let pids = processes(path);
    for pid in &pids {
        // Gone already, or not ours: the removal tells.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    if !pids.is_empty() {
        thaw(path);
    }
}

/// A frozen v1 cgroup keeps even killed processes.
fn thaw(path: &Path) {
    for folder in folders(path) {
        let state = folder.join("freezer.state");
        if state.is_file() {
            let _ = std::fs::write(state, "THAWED");
        }
    }
}

/// A folder and all below it, children first.
fn folders(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut out: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .flat_map(|entry| folders(&entry.path()))
        .collect();
    out.push(path.to_owned());
    out
}

/// The processes in a tree of cgroups, without those of another process namespace (which show as 0) and this one.
fn processes(path: &Path) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    folders(path)
        .iter()
        .filter_map(|folder| std::fs::read_to_string(folder.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<i32>>())
        .filter(|pid| *pid > 1 && *pid != own)
        .collect()
}

fn named(pids: &BTreeSet<i32>) -> String {
    let name = |pid: &i32| match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("{pid} ({})", comm.trim()),
        Err(_) => pid.to_string(),
    };
    let mut out: Vec<String> = pids.iter().take(NAMED).map(name).collect();
    if pids.len() > NAMED {
        out.push(format!("{} more", pids.len() - NAMED));
    }
    out.join(", ")
}

fn remove_tree(path: &Path) -> Result<(), CgroupError> {
    for folder in folders(path) {
        match std::fs::remove_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(super::fail("remove", &folder)(error)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::cgroup::{Cgroups, Layout};
    use crate::config::kubelet::CgroupDriver;

    /// Real cgroups of this test alone, and what to do with them at its end.
    struct Real {
        cgroups: Cgroups,
        root: String,
        layout: Layout,
    }

    impl Real {
        fn new(test: &str) -> Option<Self> {
            let layout = Layout::detect();
            let root = format!("keelson-test-{test}-{}", std::process::id());
            let cgroups = Cgroups::new(layout.clone(), &root, CgroupDriver::Cgroupfs, true);
            let real = Self { cgroups, root, layout };
            let folder = Path::new(&real.root).join("kubepods/besteffort/podu-1/inner");
            for (controller, mount) in real.trees() {
                let wanted = ["", "cpu", "memory", "pids", super::super::HYBRID].contains(&controller.as_str());
                if wanted && std::fs::create_dir_all(mount.join(&folder)).is_err() {
                    println!("SKIPPED {test}: no cgroup can be made below {}", mount.display());
                    return None;
                }
            }
            Some(real)
        }

        fn trees(&self) -> Vec<(String, PathBuf)> {
            match &self.layout {
                Layout::Unified(root) => vec![(String::new(), root.clone())],
                Layout::PerController(list) => list.clone(),
            }
        }

        fn pod_folders(&self) -> Vec<PathBuf> {
            let pod = Path::new(&self.root).join("kubepods/besteffort/podu-1");
            self.trees().iter().map(|(_, mount)| mount.join(&pod)).filter(|p| p.is_dir()).collect()
        }
    }

    impl Drop for Real {
        fn drop(&mut self) {
            for (_, mount) in self.trees() {
                let _ = destroy(&[mount.join(&self.root)]);
            }
        }
    }

    fn sleeper() -> Child {
        // Ignores what can be ignored, as a hung `runc init` may.
        Command::new("sh").args(["-c", "trap '' TERM INT HUP; exec sleep 1000"]).spawn().unwrap()
    }

    #[test]
    fn orphans_are_killed_and_the_cgroup_goes() {
        let Some(real) = Real::new("orphans_are_killed_and_the_cgroup_goes") else { return };
        let mut child = sleeper();
        for folder in real.pod_folders() {
            std::fs::write(folder.join("inner/cgroup.procs"), child.id().to_string()).unwrap();
        }
        assert!(!real.pod_folders().is_empty());
        let removed = real.cgroups.remove("u-1");
        let until = Instant::now() + REMOVE_LIMIT;
        let mut ended = false;
        while !ended && Instant::now() < until {
            ended = child.try_wait().unwrap().is_some();
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        let _ = child.wait();
        removed.unwrap();
        assert!(ended, "the orphan lives on");
        assert_eq!(real.pod_folders(), Vec::<PathBuf>::new());
    }

    #[test]
    fn one_container_of_a_pod_can_be_ended_alone() {
        let Some(real) = Real::new("one_container_of_a_pod_can_be_ended_alone") else { return };
        let (lost, kept) = ("a".repeat(64), format!("cri-containerd-{}.scope", "b".repeat(64)));
        let mut child = sleeper();
        for folder in real.pod_folders() {
            std::fs::create_dir(folder.join(&lost)).unwrap();
            std::fs::create_dir(folder.join(&kept)).unwrap();
            std::fs::write(folder.join(&lost).join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        assert_eq!(real.cgroups.containers("u-1"), BTreeSet::from([lost.clone(), "b".repeat(64)]));
        let removed = real.cgroups.remove_container("u-1", &lost);
        let _ = child.kill();
        let signal = std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap());
        removed.unwrap();
        assert_eq!(signal, Some(9));
        assert_eq!(real.cgroups.containers("u-1"), BTreeSet::from(["b".repeat(64)]));
    }

    #[test]
    fn what_cannot_be_killed_is_named() {
        // No cgroup file system: the "process" stays whatever is done, and the folder is not empty.
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("cpu/kubepods/podu-1");
        std::fs::create_dir_all(&pod).unwrap();
        let mut child = sleeper();
        std::fs::write(pod.join("cgroup.procs"), format!("0\n{}\n", child.id())).unwrap();
        let layout = Layout::PerController(vec![("cpu".into(), dir.path().join("cpu"))]);
        let cgroups = Cgroups::new(layout, "", CgroupDriver::Cgroupfs, true);
        let error = cgroups.remove("u-1").unwrap_err().to_string();
        let _ = child.wait();
        assert!(error.contains(&format!("process {}", child.id())), "{error}");
        assert!(error.contains("kubepods/podu-1"), "{error}");
    }

    #[test]
    fn nothing_to_remove_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::Unified(dir.path().to_owned());
        Cgroups::new(layout, "", CgroupDriver::Cgroupfs, true).remove("u-1").unwrap();
    }
}
