//! How long a broken watch waits before it is started again.
//!
//! kube-runtime's default doubles from 0.8 to 30 s: after an outage of a minute a cluster would stand still for half a
//! minute more. One local server can take fifty watches that each knock every few seconds.

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
        self.failures = self.failures.saturating_add(1);
        let wait = super::queue::backoff(self.failures, FIRST, LONGEST);
        Some(wait.mul_f64(rand::rng().random_range(0.5..1.0)))
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
        let waits: Vec<Duration> = WatchBackoff::default().take(20).collect();
        assert!(waits[0] <= FIRST && waits[19] >= LONGEST / 2);
        assert!(waits.iter().all(|w| *w <= LONGEST));
    }
}
