//! PID 1 of a machine: reaps every orphan, keeps the services running, answers on the control socket.
//!
//! One loop owns all state; a thread for signals and one for connections only send it messages. The supervisor shall
//! cost almost nothing. When it dies, the kernel ends every process of the machine.

use std::fs::{File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use super::MachineError;
use super::control::{self, Reply, Request, ServiceStatus};
use super::service::{Action, Ended, Service};
use super::spec::MachineSpec;
use crate::fsx;

/// How many of a service's last lines go with the record of its exit.
const LAST_LINES: usize = 5;
/// A log that is longer than this when its service starts is set aside once.
const LOG_MAX: u64 = 64 << 20;
/// How long the services of one machine may take together to end when the machine is shut down.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
/// Messages waiting for the loop; senders wait when it is full.
const QUEUE: usize = 64;
/// `PATH` of every service.
pub const PATH: &str = "/opt/keelson/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

enum Event {
    Child,
    Shutdown,
    Ask(UnixStream, Result<Request, String>),
}

/// The supervisor's state.
struct Supervisor {
    services: Vec<Service>,
    /// Stops that somebody waits for: the service and who asked.
    waiting: Vec<(String, UnixStream)>,
    logs: PathBuf,
    state_file: PathBuf,
    clock: Instant,
}

/// Runs until the machine is shut down. `run` and `logs` are paths as this process sees them.
pub fn run(spec: &MachineSpec, run: &Path, logs: &Path) -> Result<(), MachineError> {
    let (sender, receiver) = sync_channel(QUEUE);
    watch_signals(sender.clone())?;
    listen(run, sender)?;
    let mut supervisor = Supervisor {
        services: spec.services.iter().cloned().map(Service::new).collect(),
        waiting: Vec::new(),
        logs: logs.to_path_buf(),
        state_file: run.join("state.json"),
        clock: Instant::now(),
    };
    supervisor.save();
    supervisor.turn(&receiver);
    supervisor.shut_down(&receiver);
    Ok(())
}

/// Turns signals into events. By handlers, not by a signal mask: services would inherit a mask and be deaf to SIGTERM.
fn watch_signals(sender: SyncSender<Event>) -> Result<(), MachineError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(MachineError::Signals)?;
    let open = |kind| runtime.block_on(async { signal(kind) }).map_err(MachineError::Signals);
    let mut child = open(SignalKind::child())?;
    let mut terminate = open(SignalKind::terminate())?;
    let mut interrupt = open(SignalKind::interrupt())?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let event = tokio::select! {
                    _ = child.recv() => Event::Child,
                    _ = terminate.recv() => Event::Shutdown,
                    _ = interrupt.recv() => Event::Shutdown,
                };
                // Nothing else runs on this thread, so waiting for room in the queue stops nothing.
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

fn listen(run: &Path, sender: SyncSender<Event>) -> Result<(), MachineError> {
    let listener = control::listen(run)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that sends nothing must not keep the next one waiting.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            if let Some(request) = control::read_request(&stream)
                && sender.send(Event::Ask(stream, request)).is_err()
            {
                return;
            }
        }
    });
    Ok(())
}

impl Supervisor {
    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// The loop, until somebody asks for the end.
    fn turn(&mut self, receiver: &Receiver<Event>) {
        loop {
            match self.next(receiver) {
                Some(Event::Child) => self.reap(),
                Some(Event::Ask(stream, request)) => self.ask(stream, request),
                Some(Event::Shutdown) => return,
                None => {}
            }
            let now = self.now();
            for index in 0..self.services.len() {
                let action = self.services[index].tick(now);
                self.act(index, action);
            }
        }
    }

    /// The next event, or nothing when a deadline of a service has come.
    fn next(&self, receiver: &Receiver<Event>) -> Option<Event> {
        let deadline = self.services.iter().filter_map(Service::deadline).min();
        let Some(deadline) = deadline else {
            return receiver.recv().ok();
        };
        match receiver.recv_timeout(deadline.saturating_sub(self.now())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Shutdown),
        }
    }

    fn reap(&mut self) {
        loop {
            let (pid, ended) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), Ended::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), Ended::Signal(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => {
                    eprintln!("machine: cannot wait for children: {error}");
                    return;
                }
            };
            self.ended(pid, ended);
        }
    }

    fn ended(&mut self, pid: i32, ended: Ended) {
        let Some(index) = self.services.iter().position(|service| service.pid() == Some(pid)) else {
            return;
        };
        let lines = fsx::tail(&self.log(index), LAST_LINES);
        let now = self.now();
        let action = self.services[index].exited(ended, lines, wall_ms(), now);
        let name = self.services[index].spec.name.clone();
        eprintln!("machine: {name} (pid {pid}) ended: {ended:?}");
        self.act(index, action);
        self.save();
        let (done, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|(service, _)| *service == name);
        self.waiting = rest;
        let done: Vec<(String, UnixStream)> = done;
        for (_, stream) in done {
            control::answer(&stream, &self.reply(None));
        }
    }

    fn ask(&mut self, stream: UnixStream, request: Result<Request, String>) {
        let now = self.now();
        let request = match request {
            Ok(request) => request,
            Err(error) => return control::answer(&stream, &self.reply(Some(error))),
        };
        let name = match &request {
            Request::Status => return control::answer(&stream, &self.reply(None)),
            Request::Start { service }
            | Request::Stop { service }
            | Request::Restart { service }
            | Request::Signal { service, .. } => service.clone(),
        };
        let Some(index) = self.services.iter().position(|service| service.spec.name == name) else {
            let names: Vec<&str> = self.services.iter().map(|service| service.spec.name.as_str()).collect();
            let error = format!("no service {name:?} here; there are: {}", names.join(", "));
            return control::answer(&stream, &self.reply(Some(error)));
        };
        let had_process = self.services[index].pid().is_some();
        let (action, wait) = match request {
            Request::Start { .. } => (self.services[index].start(), false),
            Request::Stop { .. } => (self.services[index].stop(now), had_process),
            Request::Restart { .. } => (self.services[index].restart(now), had_process),
            Request::Signal { signal, .. } => match self.services[index].pid() {
                Some(pid) => (Some(Action::Signal(pid, signal)), false),
                None => {
                    let error = format!("{name} does not run");
                    return control::answer(&stream, &self.reply(Some(error)));
                }
            },
            Request::Status => (None, false),
        };
        self.act(index, action);
        self.save();
        if wait {
            self.waiting.push((name, stream));
        } else {
            control::answer(&stream, &self.reply(None));
        }
    }

    fn act(&mut self, index: usize, action: Option<Action>) {
        match action {
            Some(Action::Spawn) => {
                let now = self.now();
                match self.spawn(index) {
                    Ok(pid) => self.services[index].started(pid, now),
                    Err(error) => self.services[index].start_failed(error, wall_ms(), now),
                }
                self.save();
            }
            Some(Action::Signal(pid, signal)) => {
                let signal = Signal::try_from(signal).ok();
                if let Err(error) = kill(Pid::from_raw(pid), signal) {
                    eprintln!("machine: cannot signal pid {pid}: {error}");
                }
            }
            None => {}
        }
    }

    fn log(&self, index: usize) -> PathBuf {
        self.logs.join(format!("{}.log", self.services[index].spec.name))
    }

    fn spawn(&self, index: usize) -> Result<i32, String> {
        let spec = &self.services[index].spec;
        let (program, arguments) = spec.command.split_first().ok_or("the command is empty")?;
        let log = open_log(&self.log(index)).map_err(|error| error.to_string())?;
        let second = log.try_clone().map_err(|error| format!("cannot use the log twice: {error}"))?;
        // Not waited for through this handle: the loop reaps every child itself.
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/root")
            .env("LANG", "C.UTF-8")
            .envs(&spec.environment)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        i32::try_from(child.id()).map_err(|_| "a pid out of range".to_owned())
    }

    fn reply(&self, error: Option<String>) -> Reply {
        let now = self.now();
        Reply { error, services: self.services.iter().map(|service| ServiceStatus::of(service, now)).collect() }
    }

    /// Writes the state file; it is what is left to read when the machine has died.
    fn save(&self) {
        let text = serde_json::to_string_pretty(&self.reply(None)).unwrap_or_default();
        if let Err(error) = fsx::write_atomic(&self.state_file, &text) {
            eprintln!("machine: {error}");
        }
    }

    /// Ends the services in reverse order, then whatever is left.
    fn shut_down(&mut self, receiver: &Receiver<Event>) {
        let end = self.now() + SHUTDOWN_LIMIT;
        for index in (0..self.services.len()).rev() {
            let now = self.now();
            let action = self.services[index].stop(now);
            self.act(index, action);
            while self.services[index].pid().is_some() && self.now() < end {
                match receiver.recv_timeout(end.saturating_sub(self.now())) {
                    Ok(Event::Child) => self.reap(),
                    Ok(Event::Ask(stream, _)) => {
                        control::answer(&stream, &self.reply(Some("the machine shuts down".to_owned())));
                    }
                    Ok(Event::Shutdown) => {}
                    Err(_) => break,
                }
            }
        }
        // PID 1 is about to end, which kills the rest; asking first lets nothing be cut off in the middle of a write.
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        self.save();
    }
}

fn open_log(path: &Path) -> Result<File, fsx::FsError> {
    if std::fs::metadata(path).is_ok_and(|data| data.len() > LOG_MAX) {
        let old = path.with_extension("log.1");
        std::fs::rename(path, &old).map_err(fsx::fail("set aside", path))?;
    }
    OpenOptions::new().create(true).append(true).open(path).map_err(fsx::fail("open", path))
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
