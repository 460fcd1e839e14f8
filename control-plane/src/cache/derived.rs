//! What is computed from whole caches, and computed anew only when one of them changed.

use std::sync::Arc;

use parking_lot::Mutex;

/// A value of the caches at the revisions `K` of their last changes. One computes at a time, the others wait for what it makes.
#[derive(Debug)]
pub struct Derived<K, T>(Mutex<Option<(K, Arc<T>)>>);

impl<K, T> Default for Derived<K, T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<K: PartialEq, T> Derived<K, T> {
    /// The value at `now`, made by `make` unless it is known.
    pub fn get(&self, now: K, make: impl FnOnce() -> T) -> Arc<T> {
        let mut known = self.0.lock();
        if let Some((at, value)) = known.as_ref()
            && *at == now
        {
            return Arc::clone(value);
        }
        let value = Arc::new(make());
        *known = Some((now, Arc::clone(&value)));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_for_each_revision() {
        let (derived, mut made) = (Derived::default(), 0);
        let mut at = |revision: u64| {
            *derived.get(revision, || {
                made += 1;
                made
            })
        };
        assert_eq!([at(1), at(1), at(2), at(2), at(1)], [1, 1, 2, 2, 3]);
    }
}
