//! The life of one supervised service, as a pure state machine: (state, event, now) to actions.
//!
//! Invariants: at most one process per service; a service that is wanted comes back after every exit, later and later
//! while it keeps failing; every exit is recorded. The counterpart is a systemd unit with `Restart=always`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::ServiceSpec;

/// First delay before a restart.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// Longest delay before a restart.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A service that ran this long starts again from the first delay.
const BACKOFF_RESET: Duration = Duration::from_secs(30);
/// How long a service may take to end after SIGTERM before it is killed.
pub const STOP_LIMIT: Duration = Duration::from_secs(20);
/// How many exits are kept for each service.
const EXITS_KEPT: usize = 20;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// One exit of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Its pid in the machine.
    pub pid: i32,
    /// How it ended.
    pub ended: Ended,
    /// Whether the lab itself had asked it to.
    pub asked: bool,
    /// How long it had run, in milliseconds.
    pub ran_ms: u64,
    /// Its last lines of output.
    pub last_lines: Vec<String>,
}

/// Where a service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum State {
    /// Not wanted, or not yet.
    Stopped,
    /// Its process runs.
    Running {
        /// Pid in the machine.
        pid: i32,
        /// Since when, on the supervisor's clock.
        since: Duration,
    },
    /// Asked to end.
    Stopping {
        /// Pid in the machine.
        pid: i32,
        /// Since when it ran.
        since: Duration,
        /// When it will be killed.
        kill_at: Duration,
    },
    /// Waits for its next start.
    Waiting {
        /// When that is.
        until: Duration,
    },
}

/// What the caller must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the process and report [`Service::started`] or [`Service::start_failed`].
    Spawn,
    /// Send this signal to this pid.
    Signal(i32, i32),
}

/// A service and what became of it.
#[derive(Clone, Debug)]
pub struct Service {
    /// What it is.
    pub spec: ServiceSpec,
    /// Where it stands.
    pub state: State,
    /// Whether it is to run.
    pub wanted: bool,
    /// How often it was started again without being asked to.
    pub restarts: u32,
    /// Its latest exits, oldest first.
    pub exits: Vec<Exit>,
    backoff: Duration,
}

impl Service {
    /// A service that does not run yet.
    pub fn new(spec: ServiceSpec) -> Self {
        Self { spec, state: State::Stopped, wanted: false, restarts: 0, exits: Vec::new(), backoff: BACKOFF_FIRST }
    }

    /// The pid of its process, if it has one.
    pub fn pid(&self) -> Option<i32> {
        match self.state {
            State::Running { pid, .. } | State::Stopping { pid, .. } => Some(pid),
            State::Stopped | State::Waiting { .. } => None,
        }
    }

    /// It shall run.
    pub fn start(&mut self) -> Option<Action> {
        self.wanted = true;
        match self.state {
            State::Stopped | State::Waiting { .. } => Some(Action::Spawn),
            State::Running { .. } | State::Stopping { .. } => None,
        }
    }

    /// It shall not run.
    pub fn stop(&mut self, now: Duration) -> Option<Action> {
        self.wanted = false;
        self.end(now)
    }

    /// It shall end and run again.
    pub fn restart(&mut self, now: Duration) -> Option<Action> {
        self.wanted = true;
        match self.state {
            State::Running { .. } => self.end(now),
            State::Stopping { .. } => None,
            State::Stopped | State::Waiting { .. } => Some(Action::Spawn),
        }
    }

    fn end(&mut self, now: Duration) -> Option<Action> {
        match self.state {
            State::Running { pid, since } => {
                let kill_at = now + STOP_LIMIT;
                self.state = State::Stopping { pid, since, kill_at };
                Some(Action::Signal(pid, libc::SIGTERM))
            }
            State::Waiting { .. } => {
                self.state = State::Stopped;
                None
            }
            State::Stopped | State::Stopping { .. } => None,
        }
    }

    /// Its process was started.
    pub fn started(&mut self, pid: i32, now: Duration) {
        self.state = State::Running { pid, since: now };
    }

    /// Its process could not be started.
    pub fn start_failed(&mut self, why: String, at_ms: u64, now: Duration) {
        self.record(Exit { at_ms, pid: 0, ended: Ended::Code(127), asked: false, ran_ms: 0, last_lines: vec![why] });
        self.wait(now);
    }

    /// Its process ended.
    pub fn exited(&mut self, ended: Ended, last_lines: Vec<String>, at_ms: u64, now: Duration) -> Option<Action> {
        let (pid, since, asked) = match self.state {
            State::Running { pid, since } => (pid, since, false),
            State::Stopping { pid, since, .. } => (pid, since, true),
            State::Stopped | State::Waiting { .. } => return None,
        };
        let ran = now.saturating_sub(since);
        self.record(Exit {
            at_ms,
            pid,
            ended,
            asked,
            ran_ms: u64::try_from(ran.as_millis()).unwrap_or(u64::MAX),
            last_lines,
        });
        if ran >= BACKOFF_RESET {
            self.backoff = BACKOFF_FIRST;
        }
        if !self.wanted {
            self.state = State::Stopped;
            return None;
        }
        if asked {
            self.state = State::Stopped;
            return Some(Action::Spawn);
        }
        self.restarts += 1;
        self.wait(now);
        None
    }

    fn wait(&mut self, now: Duration) {
        self.state = State::Waiting { until: now + self.backoff };
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
    }

    fn record(&mut self, exit: Exit) {
        self.exits.push(exit);
        let extra = self.exits.len().saturating_sub(EXITS_KEPT);
        self.exits.drain(..extra);
    }

    /// When [`Service::tick`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Stopping { kill_at, .. } => Some(kill_at),
            State::Stopped | State::Running { .. } => None,
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Option<Action> {
        match self.state {
            State::Waiting { until } if now >= until => Some(Action::Spawn),
            State::Stopping { pid, since, kill_at } if now >= kill_at => {
                let kill_at = now + STOP_LIMIT;
                self.state = State::Stopping { pid, since, kill_at };
                Some(Action::Signal(pid, libc::SIGKILL))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(value: u64) -> Duration {
        Duration::from_secs(value)
    }

    fn service() -> Service {
        Service::new(ServiceSpec {
            name: "agent".to_owned(),
            command: vec!["agent".to_owned()],
            environment: std::collections::BTreeMap::new(),
        })
    }

    #[test]
    fn a_service_that_keeps_failing_waits_longer_and_longer() {
        let mut service = service();
        assert_eq!(service.start(), Some(Action::Spawn));
        let mut delays = Vec::new();
        for _ in 0..8 {
            service.started(5, seconds(0));
            assert_eq!(service.exited(Ended::Code(1), Vec::new(), 0, seconds(0)), None);
            let until = service.deadline().unwrap();
            delays.push(until.as_millis());
            assert_eq!(service.tick(until), Some(Action::Spawn));
        }
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(service.restarts, 8);
    }

    #[test]
    fn a_service_that_ran_long_starts_again_soon() {
        let mut service = service();
        service.backoff = BACKOFF_MAX;
        service.start();
        service.started(5, seconds(0));
        service.exited(Ended::Signal(9), Vec::new(), 0, seconds(31));
        assert_eq!(service.deadline(), Some(seconds(31) + BACKOFF_FIRST));
        assert!(!service.exits[0].asked);
    }

    #[test]
    fn a_restart_ends_the_process_and_starts_it_at_once() {
        let mut service = service();
        service.start();
        service.started(5, seconds(0));
        assert_eq!(service.restart(seconds(1)), Some(Action::Signal(5, libc::SIGTERM)));
        assert_eq!(service.tick(seconds(2)), None);
        assert_eq!(service.exited(Ended::Code(0), Vec::new(), 0, seconds(2)), Some(Action::Spawn));
        assert_eq!(service.restarts, 0);
        assert!(service.exits[0].asked);
    }

    #[test]
    fn a_service_that_does_not_end_is_killed() {
        let mut service = service();
        service.start();
        service.started(5, seconds(0));
        service.stop(seconds(0));
        assert_eq!(service.tick(STOP_LIMIT), Some(Action::Signal(5, libc::SIGKILL)));
        assert_eq!(service.exited(Ended::Signal(9), Vec::new(), 0, STOP_LIMIT), None);
        assert_eq!(service.state, State::Stopped);
    }

    #[test]
    fn only_the_latest_exits_are_kept() {
        let mut service = service();
        for number in 0..50 {
            service.start_failed(number.to_string(), 0, seconds(0));
        }
        assert_eq!(service.exits.len(), EXITS_KEPT);
        assert_eq!(service.exits[EXITS_KEPT - 1].last_lines, ["49"]);
    }
}
