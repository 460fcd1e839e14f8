//! Source ranges: from where a destination may be reached.
//!
//! Ranges that come are committed before the verdict that looks at them (the kernel shows new ranges at the
//! end of a commit and new verdicts at its beginning: in one transaction packets between the two were dropped), ranges that go are deleted after it,
//! so that a source which may come before and after a change is let in throughout. The kernel takes no two
//! ranges that overlap: where a new one overlaps one that goes, both are written in one transaction.

use std::net::IpAddr;

use keelson_netfilter::nft::{ElementData, NftError, ranges};

use super::{Committed, FrontendKey, Later, Table, Wanted};
use crate::nftables::codec;
use crate::nftables::layout::SET_SOURCE_RANGES;
use crate::nftables::state::Sources;

type Range = (IpAddr, IpAddr);

fn overlap(a: &Range, b: &Range) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

impl Table {
    /// Writes the ranges of a frontend that are missing, and puts off the deletion of those nobody wants.
    pub(super) fn write_sources(
        &mut self,
        committed: &mut Committed,
        key: FrontendKey,
        wanted: Option<&Wanted>,
        later: &mut Later,
    ) {
        let nets = wanted.map_or(&[][..], |w| &w.sources);
        if nets.is_empty() && !committed.sources.contains_key(&key) {
            return;
        }
        let wanted: Sources = ranges(nets, self.layout.family()).into_iter().collect();
        let held = committed.sources.remove(&key).unwrap_or_default();
        let new: Vec<&Range> = wanted.difference(&held).collect();
        let (now, then): (Sources, Sources) =
            held.difference(&wanted).partition(|old| new.iter().any(|new| overlap(old, new)));
        later.apart |= !new.is_empty();
        self.delete_ranges(&key, &now);
        for (first, last) in new {
            let (first, last) = (codec::sourced(&key, *first), codec::sourced(&key, *last));
            self.batch.add_element(SET_SOURCE_RANGES, first.get(), ElementData::RangeTo(last.get()));
        }
        if !then.is_empty() {
            later.sources.push((key, then));
        }
        if !wanted.is_empty() {
            committed.sources.insert(key, wanted);
        }
    }

    fn delete_ranges(&mut self, key: &FrontendKey, sources: &Sources) {
        for (first, last) in sources {
            let (first, last) = (codec::sourced(key, *first), codec::sourced(key, *last));
            self.batch.delete_range(SET_SOURCE_RANGES, first.get(), last.get());
        }
    }

    /// Deletes ranges that nothing looks at any more.
    pub(super) fn delete_sources(&mut self, gone: &[(FrontendKey, Sources)]) -> Result<(), NftError> {
        for (key, sources) in gone {
            self.delete_ranges(key, sources);
            self.commit_if_large()?;
        }
        Ok(())
    }
}
