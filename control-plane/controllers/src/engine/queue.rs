//! A queue of keys with merging, delays and exponential backoff, and the workers that empty it.
//!
//! Invariants:
//! - A key waits at most once and is worked on by at most one worker; a key added while it is worked on is worked on
//!   again afterwards. So the queue holds at most one entry per key and cannot grow without bound.
//! - A key whose reconcile fails (or panics) comes back, later each time.
//!
//! Upstream counterpart: client-go's `workqueue` (5 ms doubling; the cap there is 1000 s, see [`MAX_BACKOFF`]).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::{Debug, Display};
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use super::error::ReconcileError;

/// Delay after the first failure (client-go's value).
const MIN_BACKOFF: Duration = Duration::from_millis(5);
/// Longest delay between tries. Upstream waits up to 1000 s, which users read as "stuck"; one try a minute is cheap.
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Failures before a warning is logged: the first few are mostly conflicts that heal at once.
const QUIET_FAILURES: u32 = 3;

/// What a successful reconcile wishes for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Done,
    /// Look again after this time.
    After(Duration),
}

impl Outcome {
    /// `After` the delay if there is one.
    pub fn after(delay: Option<Duration>) -> Self {
        delay.map_or(Self::Done, Self::After)
    }
}

/// A controller's shell: brings the world of one key to what it should be.
pub trait Reconcile: Send + Sync + 'static {
    /// What the queue holds.
    type Key: Clone + Eq + Hash + Display + Debug + Send + Sync + 'static;
    /// For logs.
    const NAME: &'static str;
    /// One pass; called again after an error.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Outcome, ReconcileError>> + Send;
}

struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    working: HashSet<K>,
    again: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    delayed_at: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    sequence: u64,
}

impl<K: Clone + Eq + Hash> State<K> {
    fn push(&mut self, key: K) -> bool {
        if self.working.contains(&key) {
            self.again.insert(key);
            return false;
        }
        if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
            return true;
        }
        false
    }

    /// Keeps the earlier of two wishes for the same key.
    fn push_at(&mut self, key: K, at: Instant) {
        if let Some(known) = self.delayed_at.get(&key).copied() {
            if known.0 <= at {
                return;
            }
            self.delayed.remove(&known);
        }
        self.sequence += 1;
        let slot = (at, self.sequence);
        self.delayed.insert(slot, key.clone());
        self.delayed_at.insert(key, slot);
    }

    fn release_due(&mut self, now: Instant) -> usize {
        let mut released = 0;
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.delayed_at.remove(&key);
            released += usize::from(self.push(key));
        }
        released
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }
}

/// The delay after the `failures`-th failure in a row.
pub fn backoff(failures: u32, min: Duration, max: Duration) -> Duration {
    min.saturating_mul(1u32 << failures.saturating_sub(1).min(24)).min(max)
}

/// A queue of keys; see the module.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                queued: HashSet::new(),
                working: HashSet::new(),
                again: HashSet::new(),
                delayed: BTreeMap::new(),
                delayed_at: HashMap::new(),
                failures: HashMap::new(),
                sequence: 0,
            }),
            wake: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Wants the key looked at now.
    pub fn add(&self, key: K) {
        if self.state.lock().push(key) {
            self.wake.notify_one();
        }
    }

    /// Wants the key looked at after `delay`, or earlier if asked for earlier.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state.lock().push_at(key, Instant::now() + delay);
        self.wake.notify_one();
    }

    /// The next key; each must be given back with [`Self::finish`].
    pub async fn next(&self) -> K {
        loop {
            let wake = self.wake.notified();
            let due = {
                let mut state = self.state.lock();
                state.release_due(Instant::now());
                if let Some(key) = state.take() {
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.delayed.keys().next().map(|slot| slot.0)
            };
            match due {
                Some(at) => {
                    tokio::select! {
                        () = wake => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => wake.await,
            }
        }
    }

    /// Gives a key back. `None` means that its reconcile failed. Returns the failures in a row.
    pub fn finish(&self, key: K, outcome: Option<Outcome>) -> u32 {
        let mut state = self.state.lock();
        state.working.remove(&key);
        let failures = match outcome {
            Some(outcome) => {
                state.failures.remove(&key);
                if let Outcome::After(delay) = outcome {
                    state.push_at(key.clone(), Instant::now() + delay);
                }
                0
            }
            None => {
                let count = state.failures.entry(key.clone()).or_insert(0);
                *count += 1;
                let count = *count;
                state.push_at(key.clone(), Instant::now() + backoff(count, MIN_BACKOFF, MAX_BACKOFF));
                count
            }
        };
        if state.again.remove(&key) {
            state.push(key);
        }
        drop(state);
        self.wake.notify_one();
        failures
    }
}

/// Starts `workers` workers that empty `queue` until cancelled.
pub fn run<R: Reconcile>(
    tracker: &TaskTracker,
    reconciler: &Arc<R>,
    queue: &Arc<Queue<R::Key>>,
    workers: usize,
    shutdown: &CancellationToken,
) {
    for _ in 0..workers {
        let (reconciler, queue, shutdown) = (Arc::clone(reconciler), Arc::clone(queue), shutdown.clone());
        tracker.spawn(async move {
            loop {
                let key = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    key = queue.next() => key,
                };
                work(reconciler.as_ref(), &queue, key).await;
            }
        });
    }
}

async fn work<R: Reconcile>(reconciler: &R, queue: &Queue<R::Key>, key: R::Key) {
    let result = AssertUnwindSafe(reconciler.reconcile(&key)).catch_unwind().await;
    let outcome = match &result {
        Ok(Ok(outcome)) => Some(*outcome),
        Ok(Err(_)) | Err(_) => None,
    };
    let failures = queue.finish(key.clone(), outcome);
    match result {
        Ok(Ok(_)) => {}
        Ok(Err(error)) if error.is_routine() || failures < QUIET_FAILURES => {
            debug!(controller = R::NAME, %key, %error, failures, "reconcile failed, trying again");
        }
        Ok(Err(error)) => warn!(controller = R::NAME, %key, %error, failures, "reconcile failed, trying again"),
        Err(_) => error!(controller = R::NAME, %key, failures, "reconcile panicked, trying again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn try_next(queue: &Queue<&'static str>) -> Option<&'static str> {
        tokio::time::timeout(Duration::from_millis(1), queue.next()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_are_merged_and_a_busy_key_comes_again_afterwards() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(try_next(&queue).await, Some("a"));
        queue.add("a");
        queue.add("a");
        assert_eq!(try_next(&queue).await, None);
        queue.finish("a", Some(Outcome::Done));
        assert_eq!(try_next(&queue).await, Some("a"));
        queue.finish("a", Some(Outcome::Done));
        assert_eq!(try_next(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_key_comes_back_later_each_time() {
        let queue = Queue::default();
        queue.add("a");
        let mut waits = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            let key = queue.next().await;
            waits.push(start.elapsed());
            queue.finish(key, None);
        }
        assert_eq!(waits[1..], [5, 10, 20].map(Duration::from_millis));
        let key = queue.next().await;
        assert_eq!(queue.finish(key, Some(Outcome::Done)), 0);
        assert_eq!(backoff(100, MIN_BACKOFF, MAX_BACKOFF), MAX_BACKOFF);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_wishes_wins() {
        let queue = Queue::default();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(5));
        let start = Instant::now();
        queue.next().await;
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        queue.finish("a", Some(Outcome::Done));
        assert_eq!(try_next(&queue).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn every_key_is_worked_on_by_some_worker() {
        struct Count(Mutex<HashMap<u32, u32>>);
        impl Reconcile for Count {
            type Key = u32;
            const NAME: &'static str = "count";
            async fn reconcile(&self, key: &u32) -> Result<Outcome, ReconcileError> {
                tokio::time::sleep(Duration::from_millis(3)).await;
                let mut seen = self.0.lock();
                let count = seen.entry(*key).or_insert(0);
                *count += 1;
                assert!(*key != 7 || *count > 1, "the first try of 7 panics");
                Ok(Outcome::Done)
            }
        }
        let (tracker, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let (count, queue) = (Arc::new(Count(Mutex::default())), Arc::new(Queue::default()));
        run(&tracker, &count, &queue, 3, &shutdown);
        for key in 0..100 {
            queue.add(key);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        shutdown.cancel();
        tracker.close();
        tracker.wait().await;
        let seen = count.0.lock();
        assert_eq!(seen.len(), 100);
        assert!(seen.iter().all(|(key, n)| *n == if *key == 7 { 2 } else { 1 }));
    }
}
