//! The bound on an evaluation: cost units, and a deadline for what the units do not see.
//!
//! Cost is counted where work can multiply: each turn of a comprehension costs the size of its body, each string or list that is built
//! costs its length. The interpreter calls plain functions, so the running evaluation's meter is a thread local; [`metered`] installs
//! it, and evaluations nested in one (variables of a policy) share it. Upstream counterpart: `apis/cel/config.go` and cel-go's cost
//! tracker, whose units these are like, not equal to.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use cel::ExecutionError;

/// Cost units that one expression may use (upstream's `PerCallLimit`).
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Cost units for all expressions of one policy or CRD write (upstream's `RuntimeCELCostBudget`).
pub const POLICY_BUDGET: u64 = 10_000_000;
/// Cost units for the match conditions of one webhook (upstream's `RuntimeCELCostBudgetMatchConditions`).
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// How long one expression may run. Upstream has the request's deadline instead.
pub const MAX_DURATION: Duration = Duration::from_secs(1);
/// An expression that runs longer than this costs its time, a unit for each microsecond, so that slow ones end together too.
const SLOW: Duration = Duration::from_millis(100);
/// The clock is read once in so many charges.
const CLOCK_EVERY: u32 = 64;
/// Bytes of text for one cost unit (upstream's `StringTraversalCostFactor` of 0.1).
const BYTES_PER_UNIT: usize = 10;

/// What several expressions may use together.
#[derive(Clone, Debug)]
pub struct Budget {
    remaining: u64,
}

impl Budget {
    /// A budget of so many cost units.
    #[must_use]
    pub const fn new(units: u64) -> Self {
        Self { remaining: units }
    }

    /// Cost units left.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }
}

/// Why a meter stopped an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// One expression used more than its limit.
    Call,
    /// The expressions together used more than their budget.
    Total,
    /// The deadline passed.
    Time,
}

struct Meter {
    left: u64,
    limit_is_total: bool,
    deadline: Instant,
    until_clock: u32,
    stopped: Option<Stop>,
}

thread_local! {
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// Takes the meter away again, also when the evaluation unwinds.
struct Uninstall;

impl Drop for Uninstall {
    fn drop(&mut self) {
        METER.with_borrow_mut(|meter| *meter = None);
    }
}

/// Runs `work` under `budget`; says what stopped it, if anything did.
pub(crate) fn metered<T>(budget: &mut Budget, work: impl FnOnce() -> T) -> (T, Option<Stop>) {
    if METER.with_borrow(Option::is_some) {
        return (work(), None);
    }
    let limit = budget.remaining.min(PER_CALL_LIMIT);
    METER.with_borrow_mut(|meter| {
        *meter = Some(Meter {
            left: limit,
            limit_is_total: budget.remaining < PER_CALL_LIMIT,
            deadline: Instant::now() + MAX_DURATION,
            until_clock: CLOCK_EVERY,
            stopped: None,
        });
    });
    let uninstall = Uninstall;
    let begin = Instant::now();
    let result = work();
    let elapsed = begin.elapsed();
    let (left, stopped) =
        METER.with_borrow(|meter| meter.as_ref().map_or((0, None), |meter| (meter.left, meter.stopped)));
    drop(uninstall);
    budget.remaining = budget.remaining.saturating_sub(spent(limit - left, elapsed));
    (result, stopped)
}

/// What an evaluation takes from a budget. Even a constant costs something, so that a long list of expressions ends.
fn spent(used: u64, elapsed: Duration) -> u64 {
    let time = if elapsed > SLOW { u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX) } else { 1 };
    used.max(time)
}

/// Counts `units` of work.
///
/// # Errors
/// When the evaluation has to end. It keeps failing from then on.
pub(crate) fn charge(units: u64) -> Result<(), ExecutionError> {
    METER.with_borrow_mut(|meter| {
        let Some(meter) = meter else { return Ok(()) };
        if meter.stopped.is_none() {
            if units > meter.left {
                meter.left = 0;
                meter.stopped = Some(if meter.limit_is_total { Stop::Total } else { Stop::Call });
            } else {
                meter.left -= units;
                meter.until_clock -= 1;
                if meter.until_clock == 0 {
                    meter.until_clock = CLOCK_EVERY;
                    if Instant::now() >= meter.deadline {
                        meter.stopped = Some(Stop::Time);
                    }
                }
            }
        }
        match meter.stopped {
            None => Ok(()),
            Some(_) => Err(ExecutionError::function_error("budget", "operation cancelled: actual cost limit exceeded")),
        }
    })
}

/// Counts a text of `bytes` that is built or read.
pub(crate) fn charge_text(bytes: usize) -> Result<(), ExecutionError> {
    charge(text_units(bytes))
}

/// The cost of a text.
pub(crate) fn text_units(bytes: usize) -> u64 {
    u64::try_from(bytes / BYTES_PER_UNIT).unwrap_or(u64::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_at_its_limit_and_the_budget_at_its_own() {
        let mut budget = Budget::new(POLICY_BUDGET);
        let (result, stop) = metered(&mut budget, || charge(PER_CALL_LIMIT + 1));
        assert!(result.is_err());
        assert_eq!(stop, Some(Stop::Call));
        assert!(budget.remaining() <= POLICY_BUDGET - PER_CALL_LIMIT);

        let mut budget = Budget::new(10);
        assert_eq!(metered(&mut budget, || charge(7)).1, None);
        // Less if this thread had to wait: time is counted too.
        assert!(budget.remaining() <= 3);
        assert_eq!(metered(&mut budget, || charge(4)).1, Some(Stop::Total));
        assert_eq!(budget.remaining(), 0);
    }

    #[test]
    fn slow_evaluations_cost_their_time() {
        for (used, elapsed, expected) in [
            (0, Duration::ZERO, 1),
            (7, SLOW, 7),
            (7, Duration::from_millis(200), 200_000),
            (900_000, SLOW * 2, 900_000),
        ] {
            assert_eq!(spent(used, elapsed), expected);
        }
    }

    #[test]
    fn an_evaluation_inside_another_shares_its_meter() {
        let mut budget = Budget::new(100);
        let (_, stop) = metered(&mut budget, || {
            let mut inner = Budget::new(POLICY_BUDGET);
            metered(&mut inner, || charge(60)).0?;
            metered(&mut inner, || charge(60)).0
        });
        assert_eq!(stop, Some(Stop::Total));
    }
}
