//! Commands in containers that end as a whole.
//!
//! The runtime kills the process of a timed-out exec and nothing that it started (k/k 110070, 124226). Here each one gets a cgroup
//! of its own below the container's as soon as the runtime's event tells its process, so that children, double forks and new sessions
//! stay inside; a timeout kills the cgroup. What had left the family before the event was here (some 10 ms) is known by the command's output
//! pipes and by its session; who has left all three is not found. It needs containerd's events and a cgroup v2 tree (a hybrid's is
//! enough); without them it is as with upstream.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::debug;

/// Rounds of moving what was started meanwhile.
const ROUNDS: usize = 5;
/// Rounds of waiting until killed processes are gone.
const GONE_ROUNDS: u32 = 50;
/// Pause between them.
const GONE_PAUSE: Duration = Duration::from_millis(2);
/// Where cgroup v2 is: alone, and beside v1.
const TREES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A process that the runtime has started in a container beside its first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecStarted {
    /// The container.
    pub container: String,
    /// The process.
    pub pid: u32,
}

/// The cgroup v2 tree of this machine, if it has one.
#[must_use]
pub fn tree() -> Option<PathBuf> {
    TREES.iter().map(PathBuf::from).find(|tree| tree.join("cgroup.controllers").exists())
}

/// A command's cgroup; dropped early, it is killed.
pub(super) struct ExecScope {
    folder: PathBuf,
    /// The command's process, which the runtime makes a session's leader.
    leader: u32,
    /// What its output goes to.
    pipes: Vec<PathBuf>,
}

/// Whether the process runs this command; an interpreter's name may stand before it.
pub(super) fn runs(pid: u32, command: &[String]) -> bool {
    let mut wanted = command.join("\0").into_bytes();
    wanted.push(0);
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(&wanted))
}

impl ExecScope {
    /// Puts a process of a container, and what it has started, into a cgroup of its own.
    ///
    /// # Errors
    /// When it is gone already, is none of this container's, or the kernel refuses.
    pub(super) fn enter(tree: &Path, started: &ExecStarted) -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pid = started.pid;
        let memberships = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let parent = memberships.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        // Also what tells a foreign process of the same number apart.
        if !parent.contains(&started.container) {
            return Err(std::io::Error::other(format!("its cgroup is /{parent}, which is not its container's")));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = tree.join(parent).join(format!("exec-{pid}-{number}"));
        let scope = Self { folder, leader: pid, pipes: outputs(pid).filter(|to| is_pipe(to)).collect() };
        std::fs::create_dir(&scope.folder)?;
        scope.take(|| vec![pid]);
        Ok(scope)
    }

    /// Moves processes and their descendants in, until nobody of them is outside.
    fn take(&self, heads: impl Fn() -> Vec<u32>) {
        for _ in 0..ROUNDS {
            let inside = pids(&self.folder);
            let mut outside: Vec<u32> = heads().into_iter().flat_map(family).collect();
            outside.retain(|pid| !inside.contains(pid));
            if outside.is_empty() {
                return;
            }
            for pid in outside {
                // Those that have ended meanwhile cannot be moved.
                let _ = std::fs::write(self.folder.join("cgroup.procs"), pid.to_string());
            }
        }
    }

    /// Who had left the command's family before it had a cgroup, and still has its output or session.
    fn strays(&self) -> Vec<u32> {
        let mut container = pids(self.folder.parent().unwrap_or(Path::new("/")));
        container.retain(|pid| outputs(*pid).any(|to| self.pipes.contains(&to)) || session(*pid) == Some(self.leader));
        container
    }

    fn signal(&self) {
        if std::fs::write(self.folder.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        // Before Linux 5.14.
        for pid in pids(&self.folder) {
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// Ends everything in it.
    pub(super) async fn kill(self) {
        self.take(|| self.strays());
        for _ in 0..GONE_ROUNDS {
            self.signal();
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            tokio::time::sleep(GONE_PAUSE).await;
        }
        debug!("{} cannot be emptied: its processes do not end", self.folder.display());
    }

    /// The command ended in time: what it left running is the container's, as without this.
    pub(super) fn release(self) {
        for _ in 0..ROUNDS {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            let parent = self.folder.parent().unwrap_or(Path::new("/")).join("cgroup.procs");
            for pid in pids(&self.folder) {
                let _ = std::fs::write(&parent, pid.to_string());
            }
        }
        // A process that has ended and was not waited for yet keeps it; it goes with the container.
        debug!("{} stays until its container ends", self.folder.display());
    }
}

/// The processes of a cgroup, without those of cgroups below it.
fn pids(folder: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// What a process's standard output and error are.
fn outputs(pid: u32) -> impl Iterator<Item = PathBuf> {
    [1, 2].into_iter().filter_map(move |fd| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok())
}

/// Whether this is a pipe of its own: its name holds its number.
fn is_pipe(target: &Path) -> bool {
    target.to_str().is_some_and(|name| name.starts_with("pipe:["))
}

/// The session of a process.
fn session(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name in brackets may hold anything; after it: state, parent, group, session.
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}

/// A process and its descendants.
fn family(pid: u32) -> Vec<u32> {
    let (mut all, mut next) = (vec![pid], 0);
    while let Some(parent) = all.get(next).copied() {
        // A child is its parent's thread's.
        for thread in std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        next += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_by_its_arguments() {
        let text = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut child = std::process::Command::new("sleep").arg("12.5").spawn().unwrap();
        let pid = child.id();
        while !runs(pid, &text(&["sleep", "12.5"])) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(runs(pid, &text(&["12.5"])) && !runs(pid, &text(&["sleep"])));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_shares_output_or_session_is_found() {
        let me = std::process::id();
        assert_eq!(session(me), Some(nix::unistd::getsid(None).unwrap().as_raw().cast_unsigned()));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pipes: Vec<PathBuf> = outputs(child.id()).filter(|to| is_pipe(to)).collect();
        assert!(!pipes.is_empty() && family(me).contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_pipe(Path::new("/dev/null")));
    }

    #[test]
    fn a_process_of_another_cgroup_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let started = ExecStarted { container: "no such container".into(), pid: std::process::id() };
        assert!(ExecScope::enter(folder.path(), &started).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
