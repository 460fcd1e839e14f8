//! A machine of the lab: namespaces of its own (network, mounts, PIDs, host name, IPC), held by a small supervisor that
//! is PID 1 there.
//!
//! `lab machine --spec FILE` makes the namespaces, starts PID 1 in them, writes its identity down and ends;
//! `lab machine-init --spec FILE` is that PID 1. Others enter with [`enter`].

pub mod control;
pub mod root;
pub mod service;
pub mod spec;
pub mod supervise;

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::cgroup;
use crate::fsx::{self, FsError};
use crate::process::Process;
use spec::MachineSpec;

/// Open files of a machine's programs: what the smallest machine we know allows.
const MAX_OPEN_FILES: u64 = 20_000;
/// The machine's `run` folder, inside.
pub const RUN_INSIDE: &str = "/run/keelson";
/// The machine's `log` folder, inside.
pub const LOG_INSIDE: &str = "/var/log/keelson";
/// Part of the machine's cgroup that its services are in; pods have their own beside it.
pub const SYSTEM_GROUP: &str = "system";

/// Why a machine could not be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file or mount.
    #[error(transparent)]
    File(#[from] FsError),
    /// The file with its description is not one.
    #[error("{} does not describe a machine: {source}", path.display())]
    Spec {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The kernel gave no namespaces; root is needed.
    #[error("cannot make namespaces (is this root, and may it?): {0}")]
    Unshare(#[source] Errno),
    /// A namespace of a running machine cannot be entered.
    #[error("cannot enter the {kind} namespace of {}: {source}", machine.display())]
    Enter {
        /// Which namespace.
        kind: &'static str,
        /// The machine's folder.
        machine: PathBuf,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// The machine has no process that could be entered.
    #[error("the machine at {} does not run", .0.display())]
    NotRunning(PathBuf),
    /// Signals cannot be set up.
    #[error("cannot set up signals: {0}")]
    Signals(#[source] std::io::Error),
    /// PID 1 could not be started.
    #[error("cannot start PID 1 of the machine: {0}")]
    Start(#[source] std::io::Error),
}

fn load(path: &Path) -> Result<MachineSpec, MachineError> {
    serde_json::from_str(&fsx::read(path)?).map_err(|source| MachineError::Spec { path: path.to_path_buf(), source })
}

/// `lab machine`: namespaces, PID 1, done. Must run before this process has threads.
pub fn launch(path: &Path) -> Result<(), MachineError> {
    let spec = load(path)?;
    // Away from the terminal and the session of whoever typed `up`.
    let _ = nix::unistd::setsid();
    let group = spec.group.join(SYSTEM_GROUP);
    cgroup::create(&group)?;
    cgroup::enter(&group, std::process::id())?;
    limit_files();
    let mut flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    if spec.rooted {
        flags |= CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    }
    let own = std::env::current_exe().map_err(MachineError::Start)?;
    fsx::create_dir(&spec.run())?;
    fsx::create_dir(&spec.folder.join("log"))?;
    let log_path = spec.log("machine");
    let log = OpenOptions::new().create(true).append(true).open(&log_path).map_err(fsx::fail("open", &log_path))?;
    let second = log.try_clone().map_err(MachineError::Start)?;
    unshare(flags).map_err(MachineError::Unshare)?;
    let child = Command::new(own)
        .arg("machine-init")
        .arg("--spec")
        .arg(path)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .spawn()
        .map_err(MachineError::Start)?;
    let identity = i32::try_from(child.id()).ok().and_then(Process::of);
    let text = serde_json::to_string(&identity).unwrap_or_default();
    fsx::write_atomic(&pid_file(&spec.folder), &text)?;
    Ok(())
}

/// `lab machine-init`: PID 1 of a machine.
pub fn init(path: &Path) -> Result<(), MachineError> {
    let spec = load(path)?;
    if !spec.rooted {
        return supervise::run(&spec, &spec.run(), &spec.folder.join("log"));
    }
    // A write to this file goes to the writer's UTS namespace; it must come before the machine's /proc, where kernel
    // settings are read-only.
    fsx::write(Path::new("/proc/sys/kernel/hostname"), &spec.hostname)?;
    root::enter(&spec)?;
    supervise::run(&spec, Path::new(RUN_INSIDE), Path::new(LOG_INSIDE))
}

fn limit_files() {
    let hard = getrlimit(Resource::RLIMIT_NOFILE).map_or(MAX_OPEN_FILES, |(_, hard)| hard);
    let limit = hard.min(MAX_OPEN_FILES);
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, limit, limit) {
        eprintln!("lab: cannot set the limit of open files to {limit}: {error}");
    }
}

fn pid_file(folder: &Path) -> PathBuf {
    folder.join("run/pid.json")
}

/// PID 1 of the machine in this folder, if it runs.
pub fn running(folder: &Path) -> Option<Process> {
    let text = std::fs::read_to_string(pid_file(folder)).ok()?;
    let process: Option<Process> = serde_json::from_str(&text).ok()?;
    process.filter(|process| process.alive())
}

/// Moves this process, which must have no threads, into the machine of `folder`, cgroups included. Children are in its
/// PID namespace; this process itself cannot be.
pub fn enter(folder: &Path) -> Result<(), MachineError> {
    let process = running(folder).ok_or_else(|| MachineError::NotRunning(folder.to_path_buf()))?;
    let spec = load(&folder.join("spec.json"))?;
    cgroup::enter(&spec.group.join(SYSTEM_GROUP), std::process::id())?;
    let kinds = [
        ("pid", CloneFlags::CLONE_NEWPID),
        ("net", CloneFlags::CLONE_NEWNET),
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ];
    let mut open = Vec::new();
    for (kind, flag) in kinds {
        let path = process.proc().join("ns").join(kind);
        open.push((kind, flag, File::open(&path).map_err(fsx::fail("open", &path))?));
    }
    for (kind, flag, file) in open {
        setns(&file, flag).map_err(|source| MachineError::Enter { kind, machine: folder.to_path_buf(), source })?;
    }
    Ok(())
}

/// Runs a command in the machine of `folder` and gives its exit code (128 + signal when a signal ended it).
pub fn execute(folder: &Path, command: &[String]) -> Result<i32, MachineError> {
    use std::os::unix::process::ExitStatusExt;
    enter(folder)?;
    let (program, arguments) = command
        .split_first()
        .ok_or(MachineError::Start(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no command given")))?;
    let status = Command::new(program)
        .args(arguments)
        .arg0(program)
        .env("PATH", supervise::PATH)
        .current_dir("/")
        .status()
        .map_err(|source| {
            let text = format!("{program}: {source}");
            MachineError::Start(std::io::Error::new(source.kind(), text))
        })?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}
