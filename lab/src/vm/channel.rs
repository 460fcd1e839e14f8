//! The host's end of the command channel: commands, files and connections, each over a port of its own.
//!
//! A port is taken by a lock on its socket's lock file; the first free one is used. The guest answers as soon as its `lab-guest` runs,
//! which is early in its boot, and does not answer while it is paused.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::wire::{self, Kind, MAX_PAYLOAD, Request};
use super::{VmError, qemu};
use crate::fsx;

/// How long a guest that runs may take to begin a session; one that is booting may take much longer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// More zeros than a frame is long: they end one that somebody has begun.
const PADDING: usize = MAX_PAYLOAD + 1024;
/// Then the request is sent again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What a command printed, and its exit code.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Exit code; 128 and the signal's number when one ended it.
    pub code: i32,
    /// Standard output.
    pub output: Vec<u8>,
    /// Standard error.
    pub errors: Vec<u8>,
}

/// A session with a guest.
pub struct Session {
    stream: UnixStream,
    number: u32,
    _port: Flock<File>,
}

impl Session {
    /// Begins a session with the machine in `folder` within `limit`.
    pub fn open(folder: &Path, request: &Request, limit: Duration) -> Result<Self, VmError> {
        let end = Instant::now() + limit;
        let silent = || VmError::Silent {
            machine: fsx::name(folder),
            seconds: limit.as_secs(),
            serial: folder.join(qemu::SERIAL),
        };
        let (port, mut stream) = loop {
            match free_port(folder)? {
                Some(found) => break found,
                None if Instant::now() >= end => return Err(silent()),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let number = number();
        let payload = serde_json::to_vec(request).unwrap_or_default();
        let wire_error = |source| VmError::Channel { folder: folder.to_path_buf(), source };
        stream.set_write_timeout(Some(limit)).map_err(wire_error)?;
        wire::write(&mut stream, number, Kind::Hello, &payload).map_err(wire_error)?;
        let mut asked = Instant::now();
        loop {
            match next(&mut stream, Duration::from_millis(500)).map_err(wire_error)? {
                Some(frame) if frame.session == number && frame.kind == Kind::Welcome => break,
                Some(frame) if frame.session == number && frame.kind == Kind::Refused => {
                    return Err(VmError::Refused(String::from_utf8_lossy(&frame.payload).into_owned()));
                }
                Some(_) => {}
                None if Instant::now() >= end => return Err(silent()),
                // The guest may hold half a frame of somebody who was killed.
                None if asked.elapsed() >= ASK_AGAIN => {
                    stream.write_all(&vec![0; PADDING]).map_err(wire_error)?;
                    wire::write(&mut stream, number, Kind::Hello, &payload).map_err(wire_error)?;
                    asked = Instant::now();
                }
                None => {}
            }
        }
        stream.set_read_timeout(None).map_err(wire_error)?;
        stream.set_write_timeout(None).map_err(wire_error)?;
        Ok(Self { stream, number, _port: port })
    }

    /// The writing end, for another thread.
    pub fn writer(&self) -> io::Result<Input> {
        Ok(Input { stream: self.stream.try_clone()?, number: self.number })
    }

    /// Hands what comes back to `output` and `errors` until the end; gives the exit code.
    pub fn drain(&mut self, output: &mut dyn Write, errors: &mut dyn Write) -> Result<i32, VmError> {
        loop {
            let frame = wire::read(&mut self.stream).map_err(VmError::Lost)?;
            let Some(frame) = frame else { return Err(VmError::Lost(io::ErrorKind::UnexpectedEof.into())) };
            if frame.kind == Kind::Booted {
                return Err(VmError::Lost(io::ErrorKind::ConnectionReset.into()));
            }
            if frame.session != self.number {
                continue;
            }
            match frame.kind {
                Kind::Output => {
                    output.write_all(&frame.payload).and_then(|()| output.flush()).map_err(VmError::Local)?;
                }
                Kind::Errors => {
                    errors.write_all(&frame.payload).and_then(|()| errors.flush()).map_err(VmError::Local)?;
                }
                Kind::Exit => {
                    let code = frame.payload.as_slice().try_into().map_or(255, i32::from_le_bytes);
                    return Ok(code);
                }
                Kind::Refused => return Err(VmError::Refused(String::from_utf8_lossy(&frame.payload).into_owned())),
                Kind::Hello | Kind::Welcome | Kind::Input | Kind::InputEnd | Kind::Booted => {}
            }
        }
    }
}

/// The next frame within `limit`.
fn next(stream: &mut UnixStream, limit: Duration) -> io::Result<Option<wire::Frame>> {
    stream.set_read_timeout(Some(limit))?;
    match wire::read(stream) {
        Ok(Some(frame)) => Ok(Some(frame)),
        Ok(None) => Err(io::ErrorKind::ConnectionReset.into()),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is sent into a session. Ends the input when it is closed.
pub struct Input {
    stream: UnixStream,
    number: u32,
}

impl Input {
    /// No more.
    pub fn close(mut self) -> io::Result<()> {
        wire::write(&mut self.stream, self.number, Kind::InputEnd, &[])
    }
}

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(MAX_PAYLOAD);
        wire::write(&mut self.stream, self.number, Kind::Input, &bytes[..length])?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sessions of one port have different numbers, also those of processes that were started in the same moment.
fn number() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32
}

fn free_port(folder: &Path) -> Result<Option<(Flock<File>, UnixStream)>, VmError> {
    for number in 0..qemu::PORTS {
        let name = qemu::port(number);
        let path = folder.join(format!("{name}.lock"));
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(fsx::fail("open", &path))?;
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
        let stream =
            connect(folder, &name).map_err(|source| VmError::Channel { folder: folder.to_path_buf(), source })?;
        return Ok(Some((lock, stream)));
    }
    Ok(None)
}

/// Connects to a socket by a short path: the folder's own may be longer than a socket's address.
pub fn connect(folder: &Path, name: &str) -> io::Result<UnixStream> {
    let folder = File::open(folder)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

fn request(command: &[&str]) -> Request {
    Request::Run { command: command.iter().map(ToString::to_string).collect() }
}

/// Runs a command in a guest and collects what it prints.
pub fn ask(folder: &Path, command: &[&str], input: &[u8], limit: Duration) -> Result<Outcome, VmError> {
    let mut session = Session::open(folder, &request(command), limit)?;
    let mut writer = session.writer().map_err(VmError::Local)?;
    let input = input.to_vec();
    let sender = std::thread::spawn(move || {
        // A command that does not read its input says why by its exit code.
        let _ = writer.write_all(&input);
        let _ = writer.close();
    });
    let mut outcome = Outcome::default();
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    outcome.code = session.drain(&mut output, &mut errors)?;
    (outcome.output, outcome.errors) = (output, errors);
    drop(session);
    let _ = sender.join();
    Ok(outcome)
}

/// Runs a command that must succeed; its output.
pub fn checked(folder: &Path, command: &[&str]) -> Result<String, VmError> {
    let outcome = ask(folder, command, &[], ANSWER_LIMIT)?;
    let text = String::from_utf8_lossy(&outcome.output).into_owned();
    if outcome.code == 0 {
        return Ok(text);
    }
    Err(VmError::InGuest {
        machine: fsx::name(folder),
        command: command.join(" "),
        code: outcome.code,
        output: format!("{text}{}", String::from_utf8_lossy(&outcome.errors)).trim().to_owned(),
    })
}

/// Runs a command with this process's input and output.
pub fn attach(folder: &Path, command: &[String]) -> Result<i32, VmError> {
    let request = Request::Run { command: command.to_vec() };
    let mut session = Session::open(folder, &request, ANSWER_LIMIT)?;
    let mut writer = session.writer().map_err(VmError::Local)?;
    // It may wait for a person for ever; the process ends without it.
    std::thread::spawn(move || {
        let mut buffer = vec![0; MAX_PAYLOAD];
        let mut input = io::stdin().lock();
        while let Ok(length) = input.read(&mut buffer) {
            if length == 0 || writer.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = writer.close();
    });
    session.drain(&mut io::stdout(), &mut io::stderr())
}

/// Unpacks files in a folder of the guest: `entries` adds them to an archive.
pub fn unpack(
    folder: &Path,
    to: &str,
    entries: impl FnOnce(&mut tar::Builder<&mut dyn Write>) -> io::Result<()>,
) -> Result<(), VmError> {
    let script = "mkdir -p \"$1\" && exec tar -x -C \"$1\" -f -";
    let mut session = Session::open(folder, &request(&["/bin/sh", "-c", script, "sh", to]), ANSWER_LIMIT)?;
    let writer = session.writer().map_err(VmError::Local)?;
    let (mut output, mut errors) = (io::sink(), Vec::new());
    // What tar says is read beside the writing: neither shall wait for the other.
    let reading = std::thread::spawn(move || session.drain(&mut output, &mut errors).map(|code| (code, errors)));
    let mut buffered = io::BufWriter::with_capacity(MAX_PAYLOAD, writer);
    let mut builder = tar::Builder::new(&mut buffered as &mut dyn Write);
    let written = entries(&mut builder).and_then(|()| builder.finish());
    drop(builder);
    let written = written.and_then(|()| buffered.into_inner().map_err(io::IntoInnerError::into_error)?.close());
    let (code, errors) = reading.join().map_err(|_| VmError::Lost(io::ErrorKind::Other.into()))??;
    written.map_err(VmError::Local)?;
    if code == 0 {
        return Ok(());
    }
    Err(VmError::InGuest {
        machine: fsx::name(folder),
        command: format!("tar -x -C {to}"),
        code,
        output: String::from_utf8_lossy(&errors).into_owned(),
    })
}

/// Leads every connection to `listener` to an address of the guest, as long as this process lives.
pub fn forward(listener: TcpListener, folder: &Path, address: &str) {
    let (folder, request) = (folder.to_path_buf(), Request::Connect { address: address.to_owned() });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folder, request) = (folder.clone(), request.clone());
            std::thread::spawn(move || {
                let Ok(session) = Session::open(&folder, &request, ANSWER_LIMIT) else { return };
                let _ = splice(session, stream);
            });
        }
    });
}

/// Makes one of a client's connection and a session that leads to a connection of the guest, until one of them ends.
pub fn splice(mut session: Session, stream: TcpStream) -> io::Result<()> {
    let (mut writer, mut from, mut to) = (session.writer()?, stream.try_clone()?, stream);
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut writer);
        let _ = writer.close();
    });
    let _ = session.drain(&mut to, &mut io::sink());
    to.shutdown(Shutdown::Both)
}
