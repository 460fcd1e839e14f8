//! The control socket of a machine: one JSON line asks, one JSON line answers.
//!
//! The socket lies in the machine's `run` folder. Its path may be longer than the 108 bytes a socket address holds, so
//! both sides go through `/proc/self/fd`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::service::{Exit, Service, State};
use crate::fsx;

/// Name of the socket in the `run` folder.
const SOCKET: &str = "control.sock";
/// How long an answer may take: a stop waits for the service.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What can be asked of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// How the services are.
    Status,
    /// Start a service that does not run.
    Start {
        /// Which one.
        service: String,
    },
    /// SIGTERM, and no restart.
    Stop {
        /// Which one.
        service: String,
    },
    /// SIGTERM, then start again.
    Restart {
        /// Which one.
        service: String,
    },
    /// A signal to its process; the supervisor starts it again when it dies of it.
    Signal {
        /// Which one.
        service: String,
        /// The number of the signal.
        signal: i32,
    },
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// All services after it.
    pub services: Vec<ServiceStatus>,
}

/// One service, for people and tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// `running`, `stopped`, `stopping` or `waiting`.
    pub state: String,
    /// Pid in the machine, 0 without a process.
    pub pid: i32,
    /// How long it has run, in milliseconds.
    pub up_ms: u64,
    /// How often it came back by itself.
    pub restarts: u32,
    /// Its latest exits, oldest first.
    pub exits: Vec<Exit>,
}

impl ServiceStatus {
    /// The state of a service at `now`.
    pub fn of(service: &Service, now: Duration) -> Self {
        let (state, since) = match service.state {
            State::Stopped => ("stopped", now),
            State::Running { since, .. } => ("running", since),
            State::Stopping { since, .. } => ("stopping", since),
            State::Waiting { .. } => ("waiting", now),
        };
        Self {
            name: service.spec.name.clone(),
            state: state.to_owned(),
            pid: service.pid().unwrap_or(0),
            up_ms: u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX),
            restarts: service.restarts,
            exits: service.exits.clone(),
        }
    }
}

/// Why a machine could not be asked. Retryable while the machine starts.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody answers at the socket.
    #[error("the machine at {} does not answer: {source}", path.display())]
    Unreachable {
        /// Its `run` folder.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The answer was no JSON of ours.
    #[error("the machine at {} answered {text:?}", path.display())]
    Garbled {
        /// Its `run` folder.
        path: PathBuf,
        /// What came.
        text: String,
    },
    /// The machine refused.
    #[error("{0}")]
    Refused(String),
}

/// Asks the machine whose `run` folder this is.
pub fn ask(run: &Path, request: &Request) -> Result<Reply, ControlError> {
    let unreachable = |source| ControlError::Unreachable { path: run.to_path_buf(), source };
    let folder = File::open(run).map_err(unreachable)?;
    let mut stream =
        UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())).map_err(unreachable)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(unreachable)?;
    let mut line = serde_json::to_string(request).unwrap_or_default();
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(unreachable)?;
    let mut text = String::new();
    BufReader::new(stream).read_line(&mut text).map_err(unreachable)?;
    let reply: Reply = serde_json::from_str(&text)
        .map_err(|_| ControlError::Garbled { path: run.to_path_buf(), text: text.clone() })?;
    match reply.error {
        Some(error) => Err(ControlError::Refused(error)),
        None => Ok(reply),
    }
}

/// Listens in this `run` folder, replacing the socket of an earlier life.
pub fn listen(run: &Path) -> Result<UnixListener, fsx::FsError> {
    let path = run.join(SOCKET);
    fsx::remove_tree(&path)?;
    let folder = File::open(run).map_err(fsx::fail("open", run))?;
    UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())).map_err(fsx::fail("listen at", &path))
}

/// Reads one request of a connection.
pub fn read_request(stream: &UnixStream) -> Option<Result<Request, String>> {
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(serde_json::from_str(&line).map_err(|error| format!("not a request: {error}"))),
    }
}

/// Answers on a connection. A client that has gone is no matter.
pub fn answer(mut stream: &UnixStream, reply: &Reply) {
    let mut line = serde_json::to_string(reply).unwrap_or_default();
    line.push('\n');
    let _ = stream.write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_own_text() {
        let request = Request::Signal { service: "agent".to_owned(), signal: 9 };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"op":"signal","service":"agent","signal":9}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }
}
