//! How long the replacement of a failing pod waits. Pure: time comes from outside.
//!
//! Upstream counterpart: `failedPodsBackoff`, client-go's `flowcontrol.Backoff`.

use std::collections::HashMap;
use std::time::Duration;

/// After the first failure on a node (upstream's value).
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait (upstream's value).
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// (UID of the set, node).
type Place = (String, String);

#[derive(Debug, Clone, Copy)]
struct Entry {
    wait: Duration,
    since: Duration,
}

/// One wait per set and node.
#[derive(Debug, Default)]
pub struct Backoff {
    entries: HashMap<Place, Entry>,
}

impl Backoff {
    /// A pod of this set failed on this node: how long its deletion must still wait; `None` means that it may go, which
    /// is noted and makes the next wait longer. `now` is the time since some fixed moment.
    pub fn check(&mut self, set: &str, node: &str, now: Duration) -> Option<Duration> {
        // An entry older than twice the longest wait is forgotten: the node did well in between.
        self.entries.retain(|_, entry| now.saturating_sub(entry.since) < LONGEST * 2);
        let place = (set.to_owned(), node.to_owned());
        let Some(entry) = self.entries.get_mut(&place) else {
            self.entries.insert(place, Entry { wait: FIRST, since: now });
            return None;
        };
        let left = entry.wait.saturating_sub(now.saturating_sub(entry.since));
        if !left.is_zero() {
            return Some(left);
        }
        *entry = Entry { wait: (entry.wait * 2).min(LONGEST), since: now };
        None
    }

    /// The set is gone.
    pub fn forget(&mut self, set: &str) {
        self.entries.retain(|(uid, _), _| uid != set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_per_node_and_are_forgotten_after_a_quiet_time() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.check("d", "n", S), None);
        assert_eq!(backoff.check("d", "n", S), Some(S));
        assert_eq!(backoff.check("d", "m", S), None);
        assert_eq!(backoff.check("d", "n", S * 2), None);
        assert_eq!(backoff.check("d", "n", S * 3), Some(S));
        assert_eq!(backoff.check("d", "n", S * 4), None);
        assert_eq!(backoff.check("d", "n", S * 5), Some(S * 3));
        assert_eq!(backoff.check("d", "n", S * 2000), None);
        assert_eq!(backoff.check("d", "n", S * 2000), Some(S));
        backoff.forget("d");
        assert_eq!(backoff.check("d", "n", S * 2000), None);
    }
}
