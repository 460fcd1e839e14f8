//! Commands in containers that end as a whole.
//!
//! The runtime kills the process of a timed-out exec and nothing that it started (k/k 110070, 124226). Here each one gets a cgroup
//! of its own below the container's as soon as the runtime's event tells its process, so that children, double forks and new sessions
//! stay inside; a timeout kills the cgroup. What had left the family before the event was here (some 10 ms) is known by the command's output
//! pipes, where nobody else of the container has them, and by its session; who has left all three is not found. It needs containerd's
//! events and a cgroup v2 tree (a hybrid's is enough); without them it is as with upstream.
//!
//! Which event is whose: by the command's arguments; a process is given to one command only. Commands that put another in their place at
//! once (`sh -c 'exec x'`) have other arguments: theirs is the only event in question when nobody else can have caused one.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tracing::debug;

/// Events that may wait for a reader.
const EVENTS: usize = 64;
/// How long an event with other arguments waits for one with the right ones.
const MATCH: Duration = Duration::from_millis(300);
/// How long a stream that was asked for may take to start its process.
const STREAM_START: Duration = Duration::from_secs(30);
/// Rounds of moving what was started meanwhile.
const ROUNDS: usize = 5;
/// Rounds of waiting until killed processes are gone.
const GONE_ROUNDS: u32 = 50;
/// Pause between them.
const GONE_PAUSE: Duration = Duration::from_millis(2);
/// Where cgroup v2 is: alone, and beside v1.
const TREES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Places of numbers in `/proc/PID/stat`, counted after the command's name: session, start (in clock ticks since boot).
const SESSION: usize = 3;
const START_TIME: usize = 19;
/// How the names of our cgroups begin.
const NAME: &str = "exec-";

/// A process that the runtime has started in a container beside its first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecStarted {
    /// The container.
    pub container: String,
    /// The process.
    pub pid: u32,
}

#[derive(Default)]
struct Book {
    /// Commands that wait for their event, by container.
    pending: HashMap<String, usize>,
    /// When a stream into a container was asked for last.
    streams: HashMap<String, Instant>,
    /// Processes that belong to a command.
    claimed: HashSet<u32>,
}

/// Commands and their processes.
pub struct Execs {
    tree: Option<PathBuf>,
    events: broadcast::Sender<ExecStarted>,
    book: Arc<Mutex<Book>>,
}

impl Default for Execs {
    /// With the cgroup v2 tree of this machine, if it has one.
    fn default() -> Self {
        let tree = TREES.iter().map(PathBuf::from).find(|tree| tree.join("cgroup.controllers").exists());
        Self { tree, events: broadcast::Sender::new(EVENTS), book: Arc::default() }
    }
}

/// A command that waits for its event.
struct Pending<'a> {
    book: &'a Mutex<Book>,
    container: &'a str,
}

impl<'a> Pending<'a> {
    fn new(book: &'a Mutex<Book>, container: &'a str) -> Self {
        *book.lock().pending.entry(container.to_owned()).or_default() += 1;
        Self { book, container }
    }

    /// Whether nobody else that this agent knows of starts a process in the container.
    fn alone(&self) -> bool {
        let book = self.book.lock();
        let streams = book.streams.get(self.container).is_some_and(|at| at.elapsed() < STREAM_START);
        !streams && book.pending.get(self.container) == Some(&1)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut book = self.book.lock();
        if let Some(count) = book.pending.get_mut(self.container) {
            *count -= 1;
            if *count == 0 {
                book.pending.remove(self.container);
            }
        }
    }
}

impl Execs {
    /// Where events of started processes go.
    #[must_use]
    pub fn events(&self) -> broadcast::Sender<ExecStarted> {
        self.events.clone()
    }

    /// Somebody has asked for a stream into a container, which will start a process.
    pub(super) fn stream(&self, container: &str) {
        let mut book = self.book.lock();
        book.streams.retain(|_, at| at.elapsed() < STREAM_START);
        book.streams.insert(container.to_owned(), Instant::now());
    }

    /// The cgroup of a command that is about to start in a container, once the runtime's event has told its process. Dropped when the command has
    /// ended before.
    pub(super) async fn scope(&self, id: &str, command: &[String]) -> Option<ExecScope> {
        let tree = self.tree.as_deref()?;
        let mut events = self.events.subscribe();
        let pending = Pending::new(&self.book, id);
        let mut other: Option<(ExecStarted, Instant)> = None;
        let started = loop {
            let next = match &other {
                Some((_, seen)) => tokio::time::timeout_at(*seen + MATCH, events.recv()).await,
                None => Ok(events.recv().await),
            };
            match next {
                Ok(Ok(started)) if started.container != id => {}
                Ok(Ok(started)) if runs(started.pid, command) => {
                    if self.claim(&started) {
                        break started;
                    }
                }
                Ok(Ok(started)) if other.is_none() && pending.alone() => other = Some((started, Instant::now())),
                // Two in question are none.
                Ok(Ok(_)) => other = None,
                Ok(Err(broadcast::error::RecvError::Lagged(_))) => {}
                Ok(Err(broadcast::error::RecvError::Closed)) => return None,
                Err(_) => {
                    let (started, _) = other.take()?;
                    if pending.alone() && self.claim(&started) {
                        break started;
                    }
                }
            }
        };
        let entered = ExecScope::enter(tree, &started, self.book.clone());
        if entered.is_err() {
            self.book.lock().claimed.remove(&started.pid);
        }
        entered.inspect_err(|error| debug!("no cgroup for an exec in {id}: {error}")).ok()
    }

    /// A process belongs to one command.
    fn claim(&self, started: &ExecStarted) -> bool {
        self.book.lock().claimed.insert(started.pid)
    }
}

/// Whether the process runs this command; an interpreter's name may stand before it.
fn runs(pid: u32, command: &[String]) -> bool {
    let mut wanted = command.join("\0").into_bytes();
    wanted.push(0);
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(&wanted))
}

/// A command's cgroup; dropped before [`ExecScope::release`], it is killed.
pub(super) struct ExecScope {
    folder: PathBuf,
    /// The command's process, which the runtime makes a session's leader.
    leader: u32,
    /// What its output goes to, and nobody else's in the container.
    pipes: Vec<PathBuf>,
    book: Arc<Mutex<Book>>,
    released: bool,
}

impl ExecScope {
    /// Puts a process of a container, and what it has started, into a cgroup of its own.
    ///
    /// # Errors
    /// When it is gone already, is none of this container's, or the kernel refuses.
    fn enter(tree: &Path, started: &ExecStarted, book: Arc<Mutex<Book>>) -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pid = started.pid;
        let memberships = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let own = memberships.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        // Also what tells a foreign process of the same number apart.
        if !own.contains(&started.container) {
            return Err(std::io::Error::other(format!("its cgroup is /{own}, which is not its container's")));
        }
        let parent: PathBuf = tree.join(own.split('/').take_while(|part| !part.starts_with(NAME)).collect::<PathBuf>());
        // A command may write where the container's first process writes: what somebody older has is not the command's own.
        let begun = stat(pid, START_TIME);
        let older = pids(&parent).into_iter().filter(|other| stat(*other, START_TIME) < begun);
        let others: HashSet<PathBuf> = older.flat_map(outputs).collect();
        let pipes = outputs(pid).filter(|to| is_pipe(to) && !others.contains(to)).collect();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{NAME}{pid}-{number}"));
        std::fs::create_dir(&folder)?;
        let scope = Self { folder, leader: pid, pipes, book, released: false };
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
        container.retain(|pid| {
            outputs(*pid).any(|to| self.pipes.contains(&to)) || stat(*pid, SESSION) == Some(u64::from(self.leader))
        });
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
    pub(super) async fn kill(mut self) {
        self.take(|| self.strays());
        for _ in 0..GONE_ROUNDS {
            self.signal();
            if std::fs::remove_dir(&self.folder).is_ok() {
                self.released = true;
                return;
            }
            tokio::time::sleep(GONE_PAUSE).await;
        }
        debug!("{} cannot be emptied: its processes do not end", self.folder.display());
    }

    /// The command ended in time: what it left running is the container's, as without this.
    pub(super) fn release(mut self) {
        self.released = true;
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

impl Drop for ExecScope {
    fn drop(&mut self) {
        self.book.lock().claimed.remove(&self.leader);
        if !self.released {
            self.take(|| self.strays());
            self.signal();
            let _ = std::fs::remove_dir(&self.folder);
        }
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

/// A number that the kernel tells of a process, by its place after the command's name.
fn stat(pid: u32, place: usize) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(place)?.parse().ok()
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

    #[tokio::test(start_paused = true)]
    async fn an_event_belongs_to_one_command_and_a_doubtful_one_to_none() {
        const CONTAINER: &str = "no-such-container";
        let execs = Execs { tree: Some("/nowhere".into()), ..Execs::default() };
        let me = ExecStarted { container: CONTAINER.into(), pid: std::process::id() };
        let send = || {
            let (events, me) = (execs.events(), me.clone());
            async move {
                while events.send(me.clone()).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        };
        let other = vec!["other".to_owned()];
        // Its process is in no such container, so no cgroup is made; what counts is that it is looked for.
        let (found, ()) = tokio::join!(execs.scope(CONTAINER, &other), send());
        assert!(found.is_none() && execs.book.lock().claimed.is_empty() && execs.book.lock().pending.is_empty());
        // With a stream under way the event may be the stream's.
        execs.stream(CONTAINER);
        let waited = async { tokio::join!(execs.scope(CONTAINER, &other), send()).0 };
        assert!(tokio::time::timeout(Duration::from_secs(5), waited).await.is_err());
        tokio::time::sleep(STREAM_START).await;
        // Two commands wait: the event may be either's.
        let both = async { tokio::join!(execs.scope(CONTAINER, &other), execs.scope(CONTAINER, &other), send()) };
        assert!(tokio::time::timeout(Duration::from_secs(5), both).await.is_err());
        assert!(execs.claim(&me) && !execs.claim(&me));
    }

    #[test]
    fn who_shares_output_or_session_is_found() {
        let me = std::process::id();
        assert_eq!(stat(me, SESSION), Some(u64::from(nix::unistd::getsid(None).unwrap().as_raw().cast_unsigned())));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pipes: Vec<PathBuf> = outputs(child.id()).filter(|to| is_pipe(to)).collect();
        assert!(!pipes.is_empty() && family(me).contains(&child.id()));
        assert!(stat(me, START_TIME).unwrap() <= stat(child.id(), START_TIME).unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_pipe(Path::new("/dev/null")));
    }

    #[test]
    fn a_process_of_another_cgroup_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let started = ExecStarted { container: "no such container".into(), pid: std::process::id() };
        assert!(ExecScope::enter(folder.path(), &started, Arc::default()).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
