//! Sets of completion indexes, as the API writes them: `1,3-5,7`. Pure.
//!
//! Upstream counterpart: `orderedIntervals` in `indexed_job_utils.go`.

use std::collections::BTreeSet;
use std::fmt;

/// First and last of a run.
type Run = (u32, u32);

/// A set of indexes, kept as runs in order, none touching the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexes {
    runs: Vec<Run>,
}

impl Indexes {
    /// Reads what is below `limit`; what cannot be read is left out.
    pub fn parse(text: &str, limit: u32) -> Self {
        let mut runs = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>())
                && first < limit
            {
                runs.push((first, last.min(limit - 1)));
            }
        }
        Self::from_runs(runs)
    }

    fn from_runs(mut runs: Vec<Run>) -> Self {
        runs.retain(|(first, last)| first <= last);
        runs.sort_unstable();
        let mut merged: Vec<Run> = Vec::new();
        for (first, last) in runs {
            match merged.last_mut() {
                Some(known) if first <= known.1.saturating_add(1) => known.1 = known.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self { runs: merged }
    }

    /// Both sets together.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::from_runs(self.runs.iter().chain(&other.runs).copied().collect())
    }

    /// With these indexes too.
    #[must_use]
    pub fn with(&self, more: &BTreeSet<u32>) -> Self {
        Self::from_runs(self.runs.iter().copied().chain(more.iter().map(|i| (*i, *i))).collect())
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.runs.iter().fold(0, |sum, (first, last)| sum.saturating_add(last - first + 1))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether this index is in the set.
    pub fn has(&self, index: u32) -> bool {
        let after = self.runs.partition_point(|(_, last)| *last < index);
        self.runs.get(after).is_some_and(|(first, _)| *first <= index)
    }

    /// How many are in both sets.
    pub fn common(&self, other: &Self) -> u32 {
        let overlap = |a: &Run, b: &Run| (a.1.min(b.1) + 1).saturating_sub(a.0.max(b.0));
        let (mut i, mut j, mut sum) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.runs.get(i), other.runs.get(j)) {
            sum += overlap(a, b);
            if a.1 <= b.1 {
                i += 1;
            } else {
                j += 1;
            }
        }
        sum
    }

    /// The lowest `count` indexes below `limit` that are not in the set.
    pub fn missing(&self, count: usize, limit: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut candidate = 0;
        for (first, last) in self.runs.iter().copied().chain([(limit, limit)]) {
            found.extend((candidate..first.min(limit)).take(count - found.len()));
            candidate = last.saturating_add(1);
            if found.len() == count || candidate >= limit {
                break;
            }
        }
        found
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.runs.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> Indexes {
        Indexes::parse(text, 100)
    }

    #[test]
    fn the_short_form() {
        assert_eq!(set("0,1,3-5,6,9").to_string(), "0,1,3-6,9");
        assert_eq!(Indexes::parse("0-9,12", 5).to_string(), "0-4");
        assert_eq!(set("x,3-,4,-1,7-5").to_string(), "4");
        assert_eq!(set("").to_string(), "");
        assert_eq!(set("1-3").common(&set("0,2-9")), 2);
        assert_eq!(set("0,2,3").missing(2, 6), [1, 4]);
        assert_eq!(set("0-5").missing(2, 6), Vec::<u32>::new());
        assert_eq!(set("").missing(2, 6), [0, 1]);
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            a in proptest::collection::btree_set(0u32..40, 0..30),
            b in proptest::collection::btree_set(0u32..40, 0..30),
            count in 0usize..10,
        ) {
            let (left, right) = (Indexes::default().with(&a), Indexes::default().with(&b));
            prop_assert_eq!(&Indexes::parse(&left.to_string(), 100), &left);
            let both: BTreeSet<u32> = a.union(&b).copied().collect();
            prop_assert_eq!(&left.union(&right), &Indexes::default().with(&both));
            prop_assert_eq!(left.common(&right) as usize, a.intersection(&b).count());
            prop_assert_eq!(left.count() as usize, a.len());
            prop_assert!((0..40).all(|i| left.has(i) == a.contains(&i)));
            let missing: Vec<u32> = (0..40).filter(|i| !a.contains(i)).take(count).collect();
            prop_assert_eq!(left.missing(count, 40), missing);
        }
    }
}
