//! Adopting what the kernel holds: the constant part is written only where it differs, elements are
//! only read. What cannot be read as ours (a verdict to a chain that this program never makes)
//! becomes something that differs from everything wanted, and so is replaced.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use keelson_netfilter::nft::{ElementRef, Expr, Listed, NftError, TableNames, read_rule};

use super::{LIST_ATTEMPTS, Table};
use crate::model::FrontendKey;
use crate::nftables::codec;
use crate::nftables::layout::{
    LAYOUT_PREFIX, LIST_MAPS, ListMap, Pick, SET_CLUSTER_IPS, SET_HAIRPIN, SET_LOCAL_SOURCES, SET_NODEPORT_ADDRESSES,
    SET_SERVICE_CIDRS, SET_SOURCE_RANGES, TABLE, VerdictMap,
};
use crate::nftables::state::{AFFINITY, Committed, V};
use crate::planner::Class;

/// Whether a list is shorter than the verdict that leads to it says, or nothing leads to it: a sign, where the kernel does not count, that the
/// listing left something out. Or that somebody deleted elements: hence it is made again a few times only.
fn has_gaps(committed: &Committed) -> bool {
    let length = |map, key: &FrontendKey| {
        let list = committed.lists.get(&(map, *key)).map_or(&[][..], Vec::as_slice);
        list.iter().flatten().count()
    };
    let mut led_to: HashSet<&FrontendKey> = HashSet::new();
    for ((_, key), verdict) in &committed.verdicts {
        led_to.insert(key);
        if let V::Pick(class, count) = verdict {
            let list = if *class == Class::Local { ListMap::Local } else { ListMap::All };
            if length(list, key) < usize::from(*count) {
                return true;
            }
        }
    }
    committed.lists.keys().any(|(_, key)| !led_to.contains(key))
}

/// Whether a chain holds these rules. Their number is not enough: `nft replace rule` keeps it.
fn same(held: &[Vec<u8>], wanted: &[Vec<Expr>]) -> bool {
    held.len() == wanted.len()
        && held.iter().zip(wanted).all(|(held, wanted)| read_rule(held).is_ok_and(|exprs| exprs == *wanted))
}

/// So often, and after such a pause, a listing with gaps is made again. Together well below the second in which foreign changes are repaired.
const GAP_ATTEMPTS: u32 = 5;
const GAP_PAUSE: Duration = Duration::from_millis(60);

/// What was read of a set, whatever the order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Digest {
    elements: u64,
    sum: u64,
}

impl Digest {
    fn add(&mut self, element: &ElementRef<'_>) {
        let mut hasher = DefaultHasher::new();
        (element.key, element.range_to(), element.value(), element.verdict(), element.interval_end()).hash(&mut hasher);
        self.elements += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

impl Table {
    /// Makes sure of the constant part, then reads all elements.
    pub(super) fn list(&mut self) -> Result<Committed, NftError> {
        let mut committed = Committed::default();
        let names = self.nft.names(self.layout.family(), TABLE)?;
        self.ensure_constant_part(names, &mut committed)?;
        self.list_whole(&mut committed)?;
        Ok(committed)
    }

    /// Reads all elements, again and again until that is all of them.
    pub(super) fn list_whole(&mut self, committed: &mut Committed) -> Result<(), NftError> {
        let (mut interrupted, mut gaps) = (0, 0);
        loop {
            match self.list_elements(committed) {
                Err(NftError::Interrupted { .. }) if interrupted < LIST_ATTEMPTS => interrupted += 1,
                Err(NftError::Partial { .. }) => {}
                Err(error) => return Err(error),
                Ok(Listed::Unknown) if gaps < GAP_ATTEMPTS && has_gaps(committed) => {
                    gaps += 1;
                    std::thread::sleep(GAP_PAUSE);
                }
                Ok(Listed::Part) => {
                    tracing::warn!(
                        "the kernel lists fewer elements than it counts; what was left out is written again"
                    );
                    return Ok(());
                }
                Ok(_) => return Ok(()),
            }
        }
    }

    fn ensure_constant_part(&mut self, names: Option<TableNames>, committed: &mut Committed) -> Result<(), NftError> {
        let (expected, fingerprint) = self.layout.expected();
        let names = names.unwrap_or_default();
        let same_layout = names.chains.contains_key(&fingerprint);
        let whole = same_layout
            && expected.iter().all(|(chain, rules)| names.chains.get(*chain).is_some_and(|held| same(held, rules)))
            && self.layout.sets().iter().all(|set| names.sets.contains(&set.name));
        if !whole {
            self.layout.write(&mut self.batch);
            self.batch.add_chain(&fingerprint, None);
            for old in names.chains.keys().filter(|c| c.starts_with(LAYOUT_PREFIX) && **c != fingerprint) {
                self.batch.delete_chain(old);
            }
        }
        for (name, rules) in &names.chains {
            if let Some(pick) = Pick::parse(name) {
                if !(same_layout && same(rules, &self.layout.pick_rules(&pick))) {
                    self.need_pick(committed, pick);
                }
                committed.picks.insert(pick);
            } else if name.starts_with(AFFINITY) {
                committed.stray_sticky_chains.insert(name.clone());
            }
        }
        committed.stray_sticky_sets.extend(names.sets.into_iter().filter(|s| s.starts_with(AFFINITY)));
        self.commit()
    }

    fn list_elements(&mut self, committed: &mut Committed) -> Result<Listed, NftError> {
        let mut worst = Listed::Whole;
        committed.verdicts.clear();
        committed.lists.clear();
        let family = self.family;
        for node_port in [false, true] {
            for map in VerdictMap::all(node_port) {
                let listed = self.each(map.name(node_port), &mut |e| {
                    let Some((key, _)) = codec::read_key(family, node_port, e.key) else { return };
                    let v = match e.verdict() {
                        Some((_, Some(chain))) => V::of_chain(chain, node_port),
                        Some((0, None)) => V::Drop,
                        _ => V::Foreign,
                    };
                    committed.verdicts.insert((map, key), v);
                })?;
                worst = worst.max(listed);
            }
            for map in LIST_MAPS {
                let listed = self.each(map.name(node_port), &mut |e| {
                    let Some((key, rest)) = codec::read_key(family, node_port, e.key) else { return };
                    let (Some(index), Some(ep)) =
                        (codec::read_index(rest), e.value().and_then(|v| codec::read_endpoint(family, v)))
                    else {
                        return;
                    };
                    let list = committed.lists.entry((map, key)).or_default();
                    if list.len() <= usize::from(index) {
                        list.resize(usize::from(index) + 1, None);
                    }
                    list[usize::from(index)] = Some(ep);
                })?;
                worst = worst.max(listed);
            }
        }
        for list in committed.lists.values_mut() {
            list.shrink_to_fit();
        }
        committed.sources.clear();
        let sources = &mut committed.sources;
        self.each(SET_SOURCE_RANGES, &mut |e| {
            let read = |bytes| {
                let (key, rest) = codec::read_key(family, false, bytes)?;
                Some((key, codec::read_address(family, rest)?))
            };
            let (Some((key, first)), Some((_, last))) = (read(e.key), read(e.range_to().unwrap_or(e.key))) else {
                return;
            };
            sources.entry(key).or_default().insert((first, last));
        })?;
        committed.cluster_ips.clear();
        let ips = &mut committed.cluster_ips;
        self.each(SET_CLUSTER_IPS, &mut |e| ips.extend(codec::read_address(family, e.key)))?;
        committed.hairpin.clear();
        let ips = &mut committed.hairpin;
        self.each(SET_HAIRPIN, &mut |e| ips.extend(codec::read_address(family, e.key)))?;
        committed.ranges.clear();
        for name in [SET_LOCAL_SOURCES, SET_SERVICE_CIDRS, SET_NODEPORT_ADDRESSES] {
            let borders = committed.ranges.entry(name).or_default();
            self.each(name, &mut |e| {
                borders.insert((e.key.to_vec(), e.interval_end()));
            })?;
        }
        Ok(worst)
    }

    /// Reads one set. The kernel calls a listing interrupted when anybody commits anything to any table
    /// meanwhile; where others never stop, a set that reads the same twice in a row is taken for what it is.
    fn each(&mut self, set: &str, each: &mut dyn FnMut(ElementRef<'_>)) -> Result<Listed, NftError> {
        let mut before = None;
        loop {
            let mut seen = Digest::default();
            let outcome = self.nft.elements(self.layout.family(), TABLE, set, &mut |element| {
                seen.add(&element);
                each(element);
            });
            match outcome {
                Err(NftError::Interrupted { .. }) if before.is_none() => before = Some(seen),
                Err(NftError::Interrupted { .. }) if before == Some(seen) => return Ok(Listed::Unknown),
                other => return other,
            }
        }
    }
}
