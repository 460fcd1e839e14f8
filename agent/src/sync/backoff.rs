//! Exponential delays between restarts and between pulls, as pure state.
//!
//! Rules as in upstream's `flowcontrol.Backoff`: the first repetition waits the initial delay, each further one
//! twice as long up to a limit; a quiet time of twice the limit forgets everything.

use std::time::Duration;

/// First delay (upstream `BackOffPeriod` for containers and images).
pub const INITIAL: Duration = Duration::from_secs(10);
/// Longest delay (upstream `MaxContainerBackOff`).
pub const MAXIMUM: Duration = Duration::from_secs(300);
/// A container that ran this long starts over with the initial delay, whatever the longest delay is.
pub const RESET_AFTER: Duration = Duration::from_secs(600);

/// What is remembered between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay now in force.
    pub delay: Duration,
    /// When the last attempt began, nanoseconds since the epoch.
    pub updated_at: i64,
}

/// Bounds of the delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// First delay.
    pub initial: Duration,
    /// Longest delay.
    pub maximum: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { initial: INITIAL, maximum: MAXIMUM }
    }
}

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

fn expired(event: i64, state: Backoff) -> bool {
    event.saturating_sub(state.updated_at) > nanos(RESET_AFTER)
}

/// When the next attempt may begin after an end at `event`; `None` when it may begin at once.
#[must_use]
pub fn ready_at(state: Option<Backoff>, event: i64, now: i64) -> Option<i64> {
    let state = state.filter(|s| !expired(event, *s))?;
    let at = event.saturating_add(nanos(state.delay));
    (now < at).then_some(at)
}

/// The state after an attempt that begins at `now`, following an end at `event`.
#[must_use]
pub fn next(state: Option<Backoff>, event: i64, now: i64, limits: Limits) -> Backoff {
    let delay = match state {
        Some(s) if !expired(event, s) => s.delay.saturating_mul(2).min(limits.maximum),
        _ => limits.initial.min(limits.maximum),
    };
    Backoff { delay, updated_at: now }
}

/// A duration as Go prints it: `10s`, `1m20s`, `5m0s`.
#[must_use]
pub fn go_text(d: Duration) -> String {
    kube_common::duration::GoDuration(d).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn doubles_to_the_limit_and_resets() {
        let limits = Limits::default();
        let mut state = None;
        let mut now = 0;
        let mut delays = Vec::new();
        for _ in 0..7 {
            let end = now + S;
            let at = ready_at(state, end, end);
            delays.push(at.map_or(0, |at| (at - end) / S));
            now = at.unwrap_or(end);
            state = Some(next(state, end, now, limits));
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300]);
        assert_eq!(ready_at(state, now + 601 * S, now + 601 * S), None);
        assert_eq!(next(state, now + 601 * S, now + 601 * S, limits).delay, INITIAL);
    }

    #[test]
    fn go_texts() {
        for (secs, text) in [(10, "10s"), (80, "1m20s"), (300, "5m0s")] {
            assert_eq!(go_text(Duration::from_secs(secs)), text);
        }
    }
}
