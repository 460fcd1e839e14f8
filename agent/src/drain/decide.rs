//! How long a pod that ends waits for Services to let go of it. Pure.

use std::time::Duration;

use super::{Mode, Settings};

/// Longest wait. Slices follow a deletion within a fraction of a second; what takes longer is broken, and nobody's end waits for it.
pub const LIMIT: Duration = Duration::from_secs(2);
/// How long a dataplane that takes the question may be silent before a pod that no Service selects goes on without its answer.
pub const SILENCE: Duration = Duration::from_millis(200);

/// What the dataplane has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing yet: it is being asked, or hangs.
    Silent,
    /// There is no socket: our dataplane has not run here since the node booted.
    Absent,
    /// There is a socket and nobody behind it, or it went away: it comes back, mostly.
    Away,
    /// The pod is no endpoint of any Service on this node.
    Unknown,
    /// It is at work.
    Waiting,
    /// Programmed and agreed, at this time, nanoseconds since the epoch.
    Agreed(i64),
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was to be waited for.
    None,
    /// Programmed, the slices agree, and other nodes had their time.
    Agreed,
    /// The bound came first.
    Late,
    /// The fixed wait without a dataplane is over.
    Fixed,
    /// A shorter grace, or the end of the pod's object, came first.
    Cut,
    /// Nothing of the pod runs any more.
    Ended,
}

impl Outcome {
    /// The word in metrics and in the flight recorder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Agreed => "agreed",
            Self::Late => "late",
            Self::Fixed => "fixed",
            Self::Cut => "cut",
            Self::Ended => "ended",
        }
    }
}

/// What is known of a pod that ends.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The grace of its end.
    pub grace: Duration,
    /// The grace is a second one, shorter than that with which the wait began.
    pub shortened: bool,
    /// When the wait began, nanoseconds since the epoch.
    pub since: i64,
    /// What the dataplane says.
    pub seen: Seen,
    /// Whether a Service's selector names it; true while that is not known.
    pub selected: bool,
    /// Something of it runs.
    pub runs: bool,
    /// The API has no object of it any more.
    pub forced: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on with hooks and signals.
    Over(Outcome),
    /// Wait, and decide again at this time, nanoseconds since the epoch, or when something changes.
    Until(i64),
}

/// Longest wait within a grace.
#[must_use]
pub fn bound(grace: Duration) -> Duration {
    LIMIT.min(grace / 2)
}

fn after(at: i64, time: Duration) -> i64 {
    at.saturating_add(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
}

/// Decides.
#[must_use]
pub fn decide(settings: &Settings, s: Situation, now: i64) -> Verdict {
    if settings.mode == Mode::Never {
        return Verdict::Over(Outcome::None);
    }
    if s.forced || s.grace.is_zero() {
        return Verdict::Over(if s.shortened { Outcome::Cut } else { Outcome::None });
    }
    if !s.runs {
        return Verdict::Over(Outcome::Ended);
    }
    let end = after(s.since, bound(s.grace));
    let quiet = after(s.since, SILENCE).min(end);
    let (until, outcome) = match s.seen {
        Seen::Unknown => return Verdict::Over(Outcome::None),
        Seen::Absent if settings.mode == Mode::Auto || !s.selected => return Verdict::Over(Outcome::None),
        Seen::Away if !s.selected => return Verdict::Over(Outcome::None),
        Seen::Silent if !s.selected => (quiet, Outcome::None),
        Seen::Absent => (after(s.since, settings.fixed_wait), Outcome::Fixed),
        Seen::Silent | Seen::Away | Seen::Waiting => (end, Outcome::Late),
        Seen::Agreed(at) => (after(at, settings.allowance), Outcome::Agreed),
    };
    if now < until.min(end) {
        return Verdict::Until(until.min(end));
    }
    // Agreed just before the bound is agreed, only other nodes had less time.
    Verdict::Over(if s.shortened && outcome == Outcome::Late { Outcome::Cut } else { outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    /// When the wait began.
    const T: i64 = 5_000 * MS;

    fn settings(mode: Mode) -> Settings {
        let (allowance, fixed_wait) = (Duration::from_millis(300), Duration::from_secs(1));
        Settings { mode, socket: "/x".into(), allowance, fixed_wait }
    }

    /// A pod with 30 s of grace that a Service selects.
    fn usual(seen: Seen) -> Situation {
        let grace = Duration::from_secs(30);
        Situation { grace, shortened: false, since: T, seen, selected: true, runs: true, forced: false }
    }

    /// The verdict so many milliseconds after the beginning; times are relative to it, too.
    fn at(mode: Mode, situation: Situation, ms: i64) -> Result<i64, Outcome> {
        match decide(&settings(mode), situation, T + ms * MS) {
            Verdict::Over(outcome) => Err(outcome),
            Verdict::Until(at) => Ok((at - T) / MS),
        }
    }

    #[test]
    fn what_is_waited_for() {
        use Mode::{Always, Auto, Never};
        let agreed = |ms: i64| usual(Seen::Agreed(T + ms * MS));
        let with = |grace: u64, s: Situation| Situation { grace: Duration::from_secs(grace), ..s };
        let alone = |s: Situation| Situation { selected: false, ..s };
        for (what, mode, situation, ms, expected) in [
            ("the answer", Auto, usual(Seen::Silent), 0, Ok(2000)),
            ("the slices", Auto, usual(Seen::Waiting), 700, Ok(2000)),
            ("not longer than the bound", Auto, usual(Seen::Waiting), 2000, Err(Outcome::Late)),
            ("one that hangs costs the bound", Auto, usual(Seen::Silent), 2000, Err(Outcome::Late)),
            ("one that went away costs the bound", Auto, usual(Seen::Away), 1999, Ok(2000)),
            ("one that went away costs no more", Auto, usual(Seen::Away), 2001, Err(Outcome::Late)),
            ("other nodes", Auto, agreed(40), 50, Ok(340)),
            ("other nodes, no longer", Auto, agreed(40), 340, Err(Outcome::Agreed)),
            ("other nodes within the bound", Auto, agreed(1900), 1950, Ok(2000)),
            ("agreed is agreed", Auto, agreed(1900), 2000, Err(Outcome::Agreed)),
            ("no endpoint", Auto, usual(Seen::Unknown), 1, Err(Outcome::None)),
            ("half of the grace", Auto, with(3, usual(Seen::Waiting)), 100, Ok(1500)),
            ("half of the grace, no longer", Auto, with(3, usual(Seen::Waiting)), 1500, Err(Outcome::Late)),
            ("half of the grace, for others too", Auto, with(1, agreed(400)), 450, Ok(500)),
            ("no grace", Auto, with(0, usual(Seen::Waiting)), 0, Err(Outcome::None)),
            ("no dataplane of ours", Auto, usual(Seen::Absent), 0, Err(Outcome::None)),
            ("no dataplane, configured so", Always, usual(Seen::Absent), 0, Ok(1000)),
            ("no dataplane, the time is over", Always, usual(Seen::Absent), 1000, Err(Outcome::Fixed)),
            ("no dataplane, a short grace", Always, with(1, usual(Seen::Absent)), 10, Ok(500)),
            ("no dataplane, no Service", Always, alone(usual(Seen::Absent)), 0, Err(Outcome::None)),
            ("away, no Service", Auto, alone(usual(Seen::Away)), 0, Err(Outcome::None)),
            ("silent, no Service: it may know better", Auto, alone(usual(Seen::Silent)), 0, Ok(200)),
            ("silent, no Service", Auto, alone(usual(Seen::Silent)), 200, Err(Outcome::None)),
            ("an endpoint by hand, without a selector", Auto, alone(usual(Seen::Waiting)), 300, Ok(2000)),
            ("off", Never, usual(Seen::Silent), 0, Err(Outcome::None)),
            ("nothing runs", Auto, Situation { runs: false, ..usual(Seen::Waiting) }, 9, Err(Outcome::Ended)),
            ("the object is gone", Auto, Situation { forced: true, ..usual(Seen::Waiting) }, 9, Err(Outcome::None)),
        ] {
            assert_eq!(at(mode, situation, ms), expected, "{what}");
        }
    }

    #[test]
    fn a_shorter_grace_shortens_or_ends_the_wait() {
        let shorter =
            |grace: u64| Situation { grace: Duration::from_secs(grace), shortened: true, ..usual(Seen::Waiting) };
        assert_eq!(at(Mode::Auto, shorter(10), 100), Ok(2000));
        assert_eq!(at(Mode::Auto, shorter(2), 100), Ok(1000));
        assert_eq!(at(Mode::Auto, shorter(2), 1200), Err(Outcome::Cut));
        assert_eq!(at(Mode::Auto, shorter(0), 100), Err(Outcome::Cut));
        assert_eq!(at(Mode::Auto, Situation { forced: true, ..shorter(30) }, 100), Err(Outcome::Cut));
        // What was reached counts as reached.
        let agreed = Situation { seen: Seen::Agreed(T + 10 * MS), ..shorter(2) };
        assert_eq!(at(Mode::Auto, agreed, 400), Err(Outcome::Agreed));
    }

    #[test]
    fn the_wait_never_outlasts_its_bound() {
        let all = [Seen::Silent, Seen::Absent, Seen::Away, Seen::Unknown, Seen::Waiting, Seen::Agreed(T + 1900 * MS)];
        for mode in [Mode::Auto, Mode::Always, Mode::Never] {
            for seen in all {
                for grace in [0, 1, 2, 3, 4, 5, 30, 3600] {
                    for selected in [true, false] {
                        let grace = Duration::from_secs(grace);
                        let situation = Situation { grace, selected, ..usual(seen) };
                        let most = i64::try_from(bound(grace).as_millis()).unwrap();
                        assert!(most <= 2000);
                        for ms in 0..most {
                            assert!(
                                at(mode, situation, ms).is_ok_and(|until| until <= most)
                                    || at(mode, situation, ms).is_err()
                            );
                        }
                        assert!(at(mode, situation, most).is_err(), "{mode:?} {situation:?}");
                    }
                }
            }
        }
    }
}
