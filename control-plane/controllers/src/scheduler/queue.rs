//! Which pod is next: ready ones by priority and age, failed ones later, hopeless ones when something changed. Pure: time
//! is a duration since some start, given from outside.
//!
//! Upstream counterpart: `pkg/scheduler/backend/queue` (active, backoff and unschedulable).

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::model::PodInfo;
use crate::engine::Key;
use crate::engine::queue::backoff;

/// Wait after the first failed attempt (upstream's `podInitialBackoffSeconds`).
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// Longest wait (upstream's `podMaxBackoffSeconds`).
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A pod that fits nowhere is tried again after this time even if nothing changed (upstream's 5 min).
const FORGOTTEN: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// To be decided for.
    Active(u64),
    /// To be decided for from this time on.
    Backoff(Duration),
    /// Fits nowhere, since this time.
    Waiting(Duration),
    /// Taken out by [`Queue::pop`], its outcome is open.
    Taken,
    /// May not be scheduled yet.
    Gated,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    place: Place,
    attempts: u32,
    /// When the last attempt failed.
    failed: Duration,
    /// The pod changed while it was taken: a failure is then worth another look.
    changed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    active: BTreeSet<(Reverse<i32>, u64, Key)>,
    later: BTreeSet<(Duration, Key)>,
    sequence: u64,
}

impl Queue {
    /// A pod without a node that is new or changed.
    pub fn offer(&mut self, pod: PodInfo, now: Duration) {
        let key = pod.key.clone();
        if let Some(entry) = self.entries.get_mut(&key) {
            if *entry.pod == pod {
                return;
            }
            let same = entry.pod.uid == pod.uid;
            if same && entry.place == Place::Taken {
                entry.pod = Arc::new(pod);
                entry.changed = true;
                return;
            }
            if same && entry.pod.is_gated == pod.is_gated {
                let (attempts, failed) = (entry.attempts, entry.failed);
                self.detach(&key);
                self.insert(pod, attempts, failed);
                return self.ready(&key, now);
            }
            self.withdraw(&key);
        }
        self.insert(pod, 0, Duration::ZERO);
        self.ready(&key, now);
    }

    /// A pod that is gone or has a node.
    pub fn withdraw(&mut self, key: &Key) {
        self.detach(key);
        self.entries.remove(key);
    }

    /// The next pod to decide for. Its outcome is told by [`Self::withdraw`] or [`Self::hopeless`].
    pub fn pop(&mut self, now: Duration) -> Option<Arc<PodInfo>> {
        while let Some((_, key)) = self.later.first().filter(|(at, _)| *at <= now).cloned() {
            self.activate(&key);
        }
        let (_, _, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.place = Place::Taken;
        entry.attempts += 1;
        entry.changed = false;
        Some(Arc::clone(&entry.pod))
    }

    /// The pod fits nowhere: it waits until [`Self::wake`].
    pub fn hopeless(&mut self, key: &Key, now: Duration) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.failed = now;
        entry.place = Place::Waiting(now);
        let changed = entry.changed;
        if changed {
            self.wake(key, now);
        } else {
            self.later.insert((now + FORGOTTEN, key.clone()));
        }
    }

    /// Its binding failed, `attempts` in a row: it is tried again after a backoff.
    pub fn retry(&mut self, pod: PodInfo, attempts: u32, now: Duration) {
        let key = pod.key.clone();
        self.withdraw(&key);
        self.insert(pod, attempts, now);
        self.ready(&key, now);
    }

    /// Something changed that helps this pod.
    pub fn wake(&mut self, key: &Key, now: Duration) {
        self.detach(key);
        self.ready(key, now);
    }

    /// Pods that fit nowhere.
    pub fn waiting(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.entries.values().filter(|e| matches!(e.place, Place::Waiting(_))).map(|e| &e.pod)
    }

    /// When [`Self::pop`] may have something that it has not now.
    pub fn due(&self) -> Option<Duration> {
        self.later.first().map(|(at, _)| *at)
    }

    /// How many pods are (active, in backoff, waiting, gated).
    #[cfg(test)]
    pub fn counts(&self) -> [usize; 4] {
        let count = |test: fn(&Place) -> bool| self.entries.values().filter(|e| test(&e.place)).count();
        [
            count(|p| matches!(p, Place::Active(_) | Place::Taken)),
            count(|p| matches!(p, Place::Backoff(_))),
            count(|p| matches!(p, Place::Waiting(_))),
            count(|p| matches!(p, Place::Gated)),
        ]
    }

    fn insert(&mut self, pod: PodInfo, attempts: u32, failed: Duration) {
        let entry = Entry { place: Place::Taken, attempts, failed, changed: false, pod: Arc::new(pod) };
        self.entries.insert(entry.pod.key.clone(), entry);
    }

    fn ready(&mut self, key: &Key, now: Duration) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.pod.is_gated {
            entry.place = Place::Gated;
            return;
        }
        let until = if entry.attempts == 0 {
            Duration::ZERO
        } else {
            entry.failed + backoff(entry.attempts, FIRST_BACKOFF, MAX_BACKOFF)
        };
        if until > now {
            entry.place = Place::Backoff(until);
            self.later.insert((until, key.clone()));
        } else {
            self.activate(key);
        }
    }

    fn activate(&mut self, key: &Key) {
        self.detach(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.sequence += 1;
        entry.place = Place::Active(self.sequence);
        self.active.insert((Reverse(entry.pod.priority), self.sequence, key.clone()));
    }

    /// Takes the pod out of the orders, not out of the queue.
    fn detach(&mut self, key: &Key) {
        let Some(entry) = self.entries.get(key) else { return };
        match entry.place {
            Place::Active(sequence) => {
                self.active.remove(&(Reverse(entry.pod.priority), sequence, key.clone()));
            }
            Place::Backoff(at) => {
                self.later.remove(&(at, key.clone()));
            }
            Place::Waiting(since) => {
                self.later.remove(&(since + FORGOTTEN, key.clone()));
            }
            Place::Taken | Place::Gated => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    const S: Duration = Duration::from_secs(1);

    fn pod(name: &str, priority: i32, gated: bool, cpu: &str) -> PodInfo {
        let gates = if gated { json!([{"name": "g"}]) } else { json!([]) };
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority,
            "schedulingGates": gates, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}))
            .unwrap();
        PodInfo::read(&pod)
    }

    fn popped(queue: &mut Queue, now: Duration) -> Option<String> {
        queue.pop(now).map(|p| p.key.name.clone())
    }

    #[test]
    fn priority_then_age() {
        let mut queue = Queue::default();
        for (name, priority) in [("low", 0), ("old", 5), ("new", 5)] {
            queue.offer(pod(name, priority, false, "1"), S);
        }
        let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue, S)).collect();
        assert_eq!(order, ["old", "new", "low"]);
    }

    #[test]
    fn a_hopeless_pod_waits_for_a_change_and_for_its_backoff() {
        let mut queue = Queue::default();
        queue.offer(pod("p", 0, false, "1"), S);
        let key = queue.pop(S).unwrap().key.clone();
        queue.hopeless(&key, S);
        assert_eq!(popped(&mut queue, S * 100), None);
        queue.wake(&key, S + S / 2);
        assert_eq!(popped(&mut queue, S + S / 2), None);
        assert_eq!(queue.due(), Some(S * 2));
        assert_eq!(popped(&mut queue, S * 2), Some("p".to_owned()));
        queue.hopeless(&key, S * 2);
        queue.wake(&key, S * 3);
        assert_eq!(queue.due(), Some(S * 4));
        assert_eq!(popped(&mut queue, S * 4), Some("p".to_owned()));
        queue.hopeless(&key, S * 4);
        assert_eq!(popped(&mut queue, S * 303), None);
        assert_eq!(popped(&mut queue, S * 304), Some("p".to_owned()));
    }

    #[test]
    fn an_update_that_changes_nothing_for_scheduling_does_not_wake() {
        let mut queue = Queue::default();
        queue.offer(pod("p", 0, false, "1"), S);
        let key = queue.pop(S).unwrap().key.clone();
        queue.hopeless(&key, S);
        queue.offer(pod("p", 0, false, "1"), S * 50);
        assert_eq!(popped(&mut queue, S * 50), None);
        queue.offer(pod("p", 0, false, "2"), S * 50);
        assert_eq!(popped(&mut queue, S * 50), Some("p".to_owned()));
    }

    #[test]
    fn a_change_during_the_decision_is_not_lost() {
        let mut queue = Queue::default();
        queue.offer(pod("p", 0, false, "1"), S);
        let key = queue.pop(S).unwrap().key.clone();
        queue.offer(pod("p", 0, false, "2"), S);
        queue.hopeless(&key, S);
        assert_eq!(popped(&mut queue, S * 3), Some("p".to_owned()));
    }

    #[test]
    fn gated_pods_stay_out_until_the_gates_are_gone() {
        let mut queue = Queue::default();
        queue.offer(pod("p", 0, true, "1"), S);
        assert_eq!(popped(&mut queue, S), None);
        assert_eq!(queue.counts(), [0, 0, 0, 1]);
        queue.offer(pod("p", 0, false, "1"), S);
        assert_eq!(popped(&mut queue, S), Some("p".to_owned()));
        queue.withdraw(&Key::new("", "p"));
        assert_eq!(queue.counts(), [0; 4]);
    }
}
