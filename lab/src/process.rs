//! Processes by identity: a pid alone may be reused, so the start time from `/proc/PID/stat` goes with it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// How often a dying process is looked at.
const POLL: Duration = Duration::from_millis(10);

/// A process that can be told from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The pid as the host sees it.
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub started: u64,
}

impl Process {
    /// The process that has this pid now.
    pub fn of(pid: i32) -> Option<Self> {
        let (_, started) = stat(pid)?;
        Some(Self { pid, started })
    }

    /// Whether it still runs (a zombie does not).
    pub fn alive(self) -> bool {
        stat(self.pid).is_some_and(|(state, started)| started == self.started && state != 'Z' && state != 'X')
    }

    /// Sends a signal; a process that is gone is no error.
    pub fn signal(self, signal: Signal) -> Result<(), Errno> {
        if !self.alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Err(Errno::ESRCH) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until it is gone; false when it is still there after `limit`.
    pub fn wait_gone(self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.alive() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// Its entry in `/proc`.
    pub fn proc(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.pid))
    }
}

/// State and start time of a pid.
fn stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command name may hold spaces and parentheses, so fields count from the last `)`.
fn parse_stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let text = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_stat(text), Some(('S', 4242)));
    }

    #[test]
    fn this_process_is_alive_and_a_reused_pid_is_not() {
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.alive());
        let other = Process { started: own.started + 1, ..own };
        assert!(!other.alive());
    }
}
