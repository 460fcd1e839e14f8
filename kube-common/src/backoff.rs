//! How long a broken watch waits before it is started again.
//!
//! kube-runtime's default doubles from 0.8 to 30 s and adds as much again by chance: after an outage of five minutes a node did not
//! hear of a deleted pod for more than a minute. A refused connection costs next to nothing, so each watch knocks every few seconds.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use rand::RngExt;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(4);

/// Doubling waits with jitter (half to the whole), so that watches do not knock all at once.
#[derive(Debug, Default)]
pub struct WatchBackoff {
    failures: u32,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let whole = FIRST.saturating_mul(1 << self.failures.min(8)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        Some(whole.mul_f64(rand::rng().random_range(0.5..1.0)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_bounded() {
        let mut backoff = WatchBackoff::default();
        let waits: Vec<Duration> = backoff.by_ref().take(20).collect();
        assert!(waits[0] <= FIRST && waits[19] >= LONGEST / 2);
        assert!(waits.iter().all(|wait| *wait <= LONGEST));
        backoff.reset();
        assert!(backoff.next() <= Some(FIRST));
    }
}
