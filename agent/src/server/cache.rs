//! A small map whose entries end by themselves, bounded whatever is asked.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// See the module.
pub(super) struct ExpiringCache<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
    capacity: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> ExpiringCache<K, V> {
    pub fn new(capacity: usize) -> Self {
        Self { entries: Mutex::default(), capacity }
    }

    pub fn get(&self, key: &K, now: Instant) -> Option<V> {
        let entries = self.entries.lock();
        let (value, until) = entries.get(key)?;
        (now < *until).then(|| value.clone())
    }

    /// Keeps `value` for `life`. When full, what has ended goes first, then what ends next.
    pub fn put(&self, key: K, value: V, life: Duration, now: Instant) {
        if life.is_zero() {
            return;
        }
        let mut entries = self.entries.lock();
        if entries.len() >= self.capacity && !entries.contains_key(&key) {
            entries.retain(|_, (_, until)| now < *until);
            if entries.len() >= self.capacity {
                let first = entries.iter().min_by_key(|(_, (_, until))| *until);
                if let Some(key) = first.map(|(key, _)| key.clone()) {
                    entries.remove(&key);
                }
            }
        }
        entries.insert(key, (value, now + life));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_stays_small() {
        let cache = ExpiringCache::new(3);
        let now = Instant::now();
        let life = Duration::from_secs;
        cache.put("a", 1, life(1), now);
        cache.put("none", 1, life(0), now);
        assert_eq!((cache.get(&"a", now), cache.get(&"none", now)), (Some(1), None));
        assert_eq!(cache.get(&"a", now + life(1)), None);
        cache.put("b", 2, life(9), now);
        cache.put("c", 3, life(5), now);
        cache.put("d", 4, life(9), now + life(2));
        cache.put("e", 5, life(9), now + life(2));
        let later = now + life(2);
        let left: Vec<_> = ["a", "b", "c", "d", "e"].map(|k| cache.get(&k, later)).into();
        assert_eq!(left, [None, Some(2), None, Some(4), Some(5)]);
        assert!(cache.entries.lock().len() <= 3);
    }
}
