//! `lab-guest`: the guest's end of the command channel. It runs in a virtual machine, started by systemd from the unit that the
//! initrd left in `/run`, so that nothing of it is in the machine's own file system.
//!
//! Every port is served by a thread of its own and has one session at a time: a command or a connection. When the host goes away the
//! command's process group is killed.

mod arrival;
mod wire;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use arrival::{Arrivals, Signals};
use wire::{Kind, MAX_PAYLOAD, Request};

/// Where the kernel lists the ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// How the names of ours begin.
const PREFIX: &str = "keelson.";
/// How often a port without a host is looked at besides, should the kernel's word have been missed.
const IDLE: Duration = Duration::from_secs(10);
/// A host is gone when a port has said so for so long.
const GONE_AFTER: Duration = Duration::from_secs(2);
/// What a command has left in its pipes is waited for so long after its end: a daemon that it has started may keep them open.
const DRAIN: Duration = Duration::from_secs(2);

type Port = Arc<Mutex<File>>;

fn main() {
    // Before any other thread is there: all of them shall leave the signal to this one.
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("lab-guest: {error}");
            return;
        }
    };
    let arrivals = Arrivals::default();
    for (_, path) in ports() {
        let arrivals = arrivals.clone();
        thread::spawn(move || {
            if let Err(error) = serve(&path, arrivals) {
                eprintln!("lab-guest: {}: {error}", path.display());
            }
        });
    }
    loop {
        signals.wait();
        arrivals.announce();
    }
}

/// The device files of our ports. The driver may still be adding them: waits until there are some and no more come.
fn ports() -> Vec<(usize, PathBuf)> {
    let mut before = Vec::new();
    loop {
        let mut found: Vec<(usize, PathBuf)> = fs::read_dir(PORTS)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = fs::read_to_string(entry.path().join("name")).ok()?;
                let number = name.trim().strip_prefix(PREFIX)?.parse().ok()?;
                Some((number, PathBuf::from("/dev").join(entry.file_name())))
            })
            .filter(|(_, path)| path.exists())
            .collect();
        found.sort();
        if !found.is_empty() && found == before {
            return found;
        }
        before = found;
        thread::sleep(Duration::from_millis(100));
    }
}

/// What runs for the present session of a port.
struct Session {
    number: u32,
    input: Option<Input>,
    group: Option<Pid>,
}

enum Input {
    Command(ChildStdin),
    Connection(TcpStream),
}

impl Session {
    fn take(&mut self, bytes: &[u8]) {
        let result = match &mut self.input {
            Some(Input::Command(pipe)) => pipe.write_all(bytes),
            Some(Input::Connection(stream)) => stream.write_all(bytes),
            None => Ok(()),
        };
        // Who does not read its input any more says the rest by its exit code.
        if result.is_err() {
            self.input = None;
        }
    }

    fn end_input(&mut self) {
        if let Some(Input::Connection(stream)) = &self.input {
            let _ = stream.shutdown(Shutdown::Write);
        } else {
            self.input = None;
        }
    }

    fn kill(self) {
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGKILL);
        }
        if let Some(Input::Connection(stream)) = self.input {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A port whose end is an end only when it lasts. The kernel tells of a host that went and one that came by messages of their own, which
/// may be behind the new host's first bytes: a session would seem to be over right after its beginning.
struct Patient {
    port: File,
    arrivals: Arrivals,
    /// Whether bytes have come since the last end: only then an end may be none.
    lively: bool,
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Counted from the first end: before that the read may have waited for bytes for hours.
        let mut ended: Option<Instant> = None;
        loop {
            let seen = self.arrivals.count();
            let length = self.port.read(buffer)?;
            if length > 0 {
                self.lively = true;
                return Ok(length);
            }
            if self.lively && ended.get_or_insert_with(Instant::now).elapsed() >= GONE_AFTER {
                self.lively = false;
                return Ok(0);
            }
            self.arrivals.wait_beyond(seen, if self.lively { GONE_AFTER } else { IDLE });
        }
    }
}

fn serve(path: &PathBuf, arrivals: Arrivals) -> io::Result<()> {
    let port = OpenOptions::new().read(true).write(true).open(path)?;
    arrival::ask_for_signals(&port)?;
    let mut reader = Patient { port: port.try_clone()?, arrivals, lively: false };
    let port: Port = Arc::new(Mutex::new(port));
    send(&port, 0, Kind::Booted, &[]);
    let mut session: Option<Session> = None;
    let mut last = None;
    loop {
        let Some(frame) = wire::read(&mut reader)? else {
            if let Some(gone) = session.take() {
                gone.kill();
            }
            continue;
        };
        match frame.kind {
            // A host that was not answered soon enough has asked again: that is not another session.
            Kind::Hello if last == Some(frame.session) => {}
            Kind::Hello => {
                last = Some(frame.session);
                if let Some(old) = session.take() {
                    old.kill();
                }
                session = begin(&port, frame.session, &frame.payload);
            }
            Kind::Input => {
                if let Some(session) = session.as_mut().filter(|session| session.number == frame.session) {
                    session.take(&frame.payload);
                }
            }
            Kind::InputEnd => {
                if let Some(session) = session.as_mut().filter(|session| session.number == frame.session) {
                    session.end_input();
                }
            }
            Kind::Welcome | Kind::Output | Kind::Errors | Kind::Exit | Kind::Refused | Kind::Booted => {}
        }
    }
}

fn send(port: &Port, session: u32, kind: Kind, payload: &[u8]) {
    if let Ok(mut file) = port.lock() {
        // A host that is gone reads nothing any more.
        let _ = wire::write(&mut *file, session, kind, payload);
    }
}

fn begin(port: &Port, number: u32, payload: &[u8]) -> Option<Session> {
    send(port, number, Kind::Welcome, &[]);
    let begun = match serde_json::from_slice(payload) {
        Ok(Request::Run { command }) => run(port, number, &command).map_err(|error| format!("{command:?}: {error}")),
        Ok(Request::Connect { address }) => connect(port, number, &address).map_err(|e| format!("{address}: {e}")),
        Err(error) => Err(format!("no request that this guest knows: {error}")),
    };
    match begun {
        Ok(session) => Some(session),
        Err(reason) => {
            send(port, number, Kind::Refused, reason.as_bytes());
            None
        }
    }
}

fn run(port: &Port, number: u32, command: &[String]) -> io::Result<Session> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("HOME", "/root")
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/keelson/bin")
        .current_dir("/root")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let group = i32::try_from(child.id()).ok().map(Pid::from_raw);
    let input = child.stdin.take().map(Input::Command);
    let (done, ended) = channel();
    for (pipe, kind) in [
        (child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>), Kind::Output),
        (child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>), Kind::Errors),
    ] {
        let (Some(pipe), port, done) = (pipe, Arc::clone(port), done.clone()) else { continue };
        thread::spawn(move || {
            copy(pipe, &port, number, kind);
            let _ = done.send(());
        });
    }
    drop(done);
    let port = Arc::clone(port);
    thread::spawn(move || finish(child, &ended, &port, number));
    Ok(Session { number, input, group })
}

fn copy(mut from: impl Read, port: &Port, number: u32, kind: Kind) {
    let mut buffer = vec![0; MAX_PAYLOAD];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            return;
        }
        send(port, number, kind, &buffer[..length]);
    }
}

fn finish(mut child: Child, ended: &Receiver<()>, port: &Port, number: u32) {
    let code = child.wait().map_or(255, |status| status.code().unwrap_or(128 + status.signal().unwrap_or_default()));
    // Both copies end, or what is left belongs to a daemon.
    while ended.recv_timeout(DRAIN).is_ok() {}
    send(port, number, Kind::Exit, &code.to_le_bytes());
}

fn connect(port: &Port, number: u32, address: &str) -> io::Result<Session> {
    let stream = TcpStream::connect(address)?;
    let (reader, port) = (stream.try_clone()?, Arc::clone(port));
    thread::spawn(move || {
        copy(reader, &port, number, Kind::Output);
        send(&port, number, Kind::Exit, &0i32.to_le_bytes());
    });
    Ok(Session { number, input: Some(Input::Connection(stream)), group: None })
}
