//! Endpoint addresses that no endpoint may have, told once: a slice is written again and again, and whoever
//! put a loopback address into it should not fill the log with it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::types::Name;

/// A slice may hold a thousand; the first ones tell what is wrong.
const SHOWN: usize = 5;

/// Addresses refused, by slice, as last seen.
#[derive(Debug, Default)]
pub(super) struct Refused(HashMap<Name, BTreeSet<IpAddr>>);

impl Refused {
    /// Takes note of what a slice was refused, and logs it unless it was refused before. Gives the number of
    /// addresses that are new.
    pub(super) fn note(&mut self, slice: &Name, refused: BTreeSet<IpAddr>) -> usize {
        if refused.is_empty() {
            self.forget(slice);
            return 0;
        }
        let known = self.0.get(slice);
        let new: Vec<&IpAddr> = refused.iter().filter(|addr| !known.is_some_and(|k| k.contains(addr))).collect();
        let count = new.len();
        if count > 0 {
            let shown = new.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                %slice,
                addresses = count,
                "endpoint addresses ignored: {shown}{}: loopback, link-local, multicast or of the wrong family; \
                 see who writes this slice",
                if count > SHOWN { ", …" } else { "" }
            );
        }
        self.0.insert(slice.clone(), refused);
        count
    }

    /// A slice is gone.
    pub(super) fn forget(&mut self, slice: &Name) {
        self.0.remove(slice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(addrs: &[&str]) -> BTreeSet<IpAddr> {
        addrs.iter().map(|a| a.parse().unwrap()).collect()
    }

    #[test]
    fn an_address_is_told_once_for_each_slice_and_again_when_it_comes_back() {
        let mut refused = Refused::default();
        let (a, b): (Name, Name) = ("default/a".into(), "default/b".into());
        assert_eq!(refused.note(&a, set(&["127.0.0.1", "fe80::1"])), 2);
        for _ in 0..100 {
            assert_eq!(refused.note(&a, set(&["127.0.0.1", "fe80::1"])), 0);
        }
        assert_eq!(refused.note(&a, set(&["127.0.0.1", "224.0.0.1"])), 1);
        assert_eq!(refused.note(&b, set(&["127.0.0.1"])), 1);
        // Mended, then wrong again: that is news.
        assert_eq!(refused.note(&a, set(&[])), 0);
        assert_eq!(refused.note(&a, set(&["127.0.0.1"])), 1);
        refused.forget(&a);
        refused.note(&b, set(&[]));
        assert!(refused.0.is_empty(), "slices that are gone cost nothing");
    }
}
