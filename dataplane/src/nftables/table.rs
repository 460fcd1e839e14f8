//! One family's table: adopts what the kernel holds, then applies changes with the fewest
//! element writes, in the order that loses no packet.
//!
//! Order of a sync (spec section 3): (1) new chains, new list elements and source ranges, (2) verdicts
//! and set members, (3) what nothing leads to any more, in later transactions: verdicts of second
//! look-ups, then list elements, source ranges and chains.
//! Steps 1 and 2 share a transaction when they fit and step 1 has no new chain or range: a packet that began
//! under the old rules meets the new verdicts at its look-up, and goes through their chains as those
//! were under the old rules. A step that is too large is cut between elements; step 2 never starts
//! before step 1 is committed.
//!
//! After any error the committed state is forgotten: the next sync lists the kernel's and brings
//! it to what is wanted. Nothing is ever flushed with traffic on it.

mod adopt;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;
use keelson_netfilter::nft::{Batch, ElementData, Family as NftFamily, MAX_BATCH_BYTES, Nft, NftError, borders};

use super::codec;
use super::layout::{LIST_MAPS, Layout, ListMap, Pick, SET_CLUSTER_IPS, SET_HAIRPIN, TABLE, VERDICT_MAPS, VerdictMap};
use super::state::{Committed, ListChange, Sources, V, apply_list, diff_list, sticky_chain, sticky_endpoint};
use crate::model::types::{Ep, Family, Protocol};
use crate::model::{FrontendKey, Target};
use crate::planner::{Changes, Class, Group, Wanted};

/// Listing is tried again this often when somebody keeps changing the table.
const LIST_ATTEMPTS: u32 = 5;
/// Verdict changes are written in portions of this many, so that a change of one key (delete and
/// add) never falls into two transactions.
const VERDICT_PORTION: usize = 10_000;

/// What a sync did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Elements added or deleted.
    pub elements: usize,
    /// Transactions committed.
    pub transactions: usize,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.elements += other.elements;
        self.transactions += other.transactions;
    }
}

/// Ranges for the interval sets, by set name.
pub type Ranges = BTreeMap<&'static str, Vec<IpNet>>;

/// See the module's text.
pub struct Table {
    family: Family,
    layout: Layout,
    nft: Box<dyn Nft>,
    committed: Option<Committed>,
    batch: Batch,
    stats: Stats,
    connectionless: BTreeSet<FrontendKey>,
}

#[derive(Debug, Clone, Copy)]
struct VerdictChange {
    map: VerdictMap,
    key: FrontendKey,
    old: Option<V>,
    new: Option<V>,
}

/// What the later steps of a sync need to know from the first.
#[derive(Debug, Default)]
struct Later {
    verdicts: Vec<VerdictChange>,
    deletes: Vec<(ListMap, FrontendKey, ListChange)>,
    /// Verdicts of second look-ups that nothing leads to once the first ones are written.
    second: Vec<VerdictChange>,
    sources: Vec<(FrontendKey, Sources)>,
    old_groups: Vec<OldGroup>,
    /// Whether step 1 makes what a verdict may lead to and a packet under way would not find in time: a chain, or
    /// source ranges, which the kernel shows only at the end of a commit and verdicts at its beginning.
    apart: bool,
    /// Affinity groups that lost an endpoint, or may have lost one before this program saw them.
    shrunk: BTreeSet<u64>,
}

fn count(list: &[Ep]) -> u16 {
    u16::try_from(list.len()).unwrap_or(u16::MAX)
}

/// Verdicts by map, and lists by map.
type Elements<'a> = (Vec<(VerdictMap, V)>, Vec<(ListMap, &'a [Ep])>);

/// The verdicts and lists that a frontend needs.
fn elements_of(wanted: Option<&Wanted>) -> Elements<'_> {
    let Some(wanted) = wanted else { return (Vec::new(), Vec::new()) };
    let choose = |class, list: &[Ep]| match wanted.affinity {
        Some(id) => V::Sticky(id, class),
        None => V::Pick(class, count(list)),
    };
    let (mut verdicts, mut lists) = match &wanted.target {
        Target::Reject => (vec![(VerdictMap::NoEndpoints, V::Refuse)], vec![]),
        Target::Drop => (vec![(VerdictMap::NoEndpoints, V::Drop)], vec![]),
        Target::Cluster(list) => {
            (vec![(VerdictMap::Services, choose(Class::Cluster, list))], vec![(ListMap::All, &list[..])])
        }
        Target::External(list) => {
            (vec![(VerdictMap::Services, choose(Class::External, list))], vec![(ListMap::All, &list[..])])
        }
        Target::ExternalLocal { all, local } => {
            let mut verdicts = vec![(VerdictMap::Services, V::ExtLocal)];
            if !all.is_empty() {
                verdicts.push((VerdictMap::Inside, choose(Class::Inside, all)));
            }
            verdicts.push(if local.is_empty() {
                (VerdictMap::NoEndpoints, V::Drop)
            } else {
                (VerdictMap::Local, choose(Class::Local, local))
            });
            (verdicts, vec![(ListMap::All, &all[..]), (ListMap::Local, &local[..])])
        }
    };
    if wanted.affinity.is_some() {
        lists.clear();
    }
    if !wanted.sources.is_empty() {
        // Also without endpoints: who may not come is not even told that there are none.
        for (map, _) in verdicts.iter_mut().filter(|(map, _)| *map == VerdictMap::Services) {
            *map = VerdictMap::Guarded;
        }
        verdicts.push((VerdictMap::Services, V::Guarded));
    }
    // The index of an element is 16 bits wide.
    for (_, list) in &mut lists {
        *list = &list[..list.len().min(usize::from(u16::MAX))];
    }
    (verdicts, lists)
}

impl Table {
    /// A table behind an [`Nft`]; nothing is touched before the first [`Table::apply`].
    #[must_use]
    pub fn new(layout: Layout, nft: Box<dyn Nft>) -> Self {
        let family = layout.family().into();
        let batch = Batch::new(layout.family(), TABLE);
        Self { family, layout, nft, committed: None, batch, stats: Stats::default(), connectionless: BTreeSet::new() }
    }

    /// UDP and SCTP frontends that lost an endpoint, came or went since the last call: conntrack
    /// may still send their flows elsewhere.
    pub fn take_connectionless(&mut self) -> BTreeSet<FrontendKey> {
        std::mem::take(&mut self.connectionless)
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether the kernel's state must be listed before anything is written; changes must then be
    /// full.
    #[must_use]
    pub fn needs_full(&self) -> bool {
        self.committed.is_none()
    }

    /// Forgets what the kernel holds: after a foreign change.
    pub fn forget(&mut self) {
        self.committed = None;
    }

    /// Forgets, and writes the constant part anew from other options.
    pub fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.committed = None;
    }

    /// The generation of the whole rule set.
    ///
    /// # Errors
    /// See [`NftError`].
    pub fn generation(&mut self) -> Result<u32, NftError> {
        self.nft.generation()
    }

    /// What the kernel holds, as far as known.
    #[must_use]
    pub fn committed(&self) -> Option<&Committed> {
        self.committed.as_ref()
    }

    /// Lists the kernel's state if it is not known; nothing but the constant part is written.
    ///
    /// # Errors
    /// See [`NftError`].
    pub fn adopt(&mut self) -> Result<Stats, NftError> {
        self.stats = Stats::default();
        if self.committed.is_none() {
            self.batch = Batch::new(self.layout.family(), TABLE);
            self.committed = Some(self.list()?);
        }
        Ok(self.stats)
    }

    /// Reads what the kernel holds without writing anything; `None` when there is no table.
    ///
    /// # Errors
    /// See [`NftError`].
    pub fn read(&mut self) -> Result<Option<Committed>, NftError> {
        if self.nft.names(self.layout.family(), TABLE)?.is_none() {
            return Ok(None);
        }
        let mut committed = Committed::default();
        self.list_whole(&mut committed)?;
        Ok(Some(committed))
    }

    /// Brings the kernel to what is wanted. With [`Table::needs_full`] the changes must be full.
    /// Changes of other families are ignored.
    ///
    /// # Errors
    /// See [`NftError`]; the committed state is then unknown and the next changes must be full.
    pub fn apply(&mut self, changes: &Changes, ranges: &Ranges) -> Result<Stats, NftError> {
        let adopted = self.adopt()?;
        // Taken out, so that an error on the way leaves it unknown.
        let Some(mut committed) = self.committed.take() else { return Ok(adopted) };
        self.stats = adopted;
        self.batch = Batch::new(self.layout.family(), TABLE);
        self.run(&mut committed, changes, ranges)?;
        self.committed = Some(committed);
        Ok(self.stats)
    }

    fn run(&mut self, committed: &mut Committed, changes: &Changes, ranges: &Ranges) -> Result<(), NftError> {
        let family = self.family;
        let mut later = Later::default();
        // Before the frontends, which ask what their groups lost.
        for ((_, id), group) in changes.groups.iter().filter(|((of, _), _)| *of == family) {
            self.write_group(committed, *id, group.as_ref(), &mut later)?;
        }
        if changes.full {
            let gone: Vec<u64> = committed.groups.keys().copied().collect();
            for id in gone.into_iter().filter(|id| !changes.groups.contains_key(&(family, *id))) {
                self.write_group(committed, id, None, &mut later)?;
            }
        }
        for (key, wanted) in changes.frontends.iter().filter(|(key, _)| key.family() == family) {
            self.write_frontend(committed, *key, wanted.as_ref(), &mut later)?;
        }
        if changes.full {
            for key in unwanted(committed, changes) {
                self.write_frontend(committed, key, None, &mut later)?;
            }
        }
        let Later { verdicts, deletes, second, sources, mut old_groups, apart, .. } = later;
        if !verdicts.is_empty() && (apart || self.batch.len() > MAX_BATCH_BYTES / 2) {
            self.commit()?;
        }
        self.write_verdicts(committed, &verdicts)?;
        self.write_members(committed, changes)?;
        self.write_ranges(committed, ranges);
        self.commit()?;
        self.write_verdicts(committed, &second)?;
        self.commit()?;
        self.delete_sources(&sources)?;
        for (map, key, change) in &deletes {
            for index in &change.delete {
                self.batch.delete_element(map.name(key.is_node_port()), codec::indexed(key, *index).get(), false);
            }
            self.commit_if_large()?;
        }
        self.commit()?;
        if changes.full {
            old_groups.push(OldGroup {
                chains: std::mem::take(&mut committed.stray_sticky_chains).into_iter().collect(),
                sets: std::mem::take(&mut committed.stray_sticky_sets).into_iter().collect(),
            });
        }
        self.delete_groups(&old_groups)
    }

    fn commit(&mut self) -> Result<(), NftError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.stats.elements += self.batch.elements();
        self.stats.transactions += 1;
        self.nft.commit(&mut self.batch)
    }

    fn commit_if_large(&mut self) -> Result<(), NftError> {
        if self.batch.len() > MAX_BATCH_BYTES { self.commit() } else { Ok(()) }
    }

    fn write_frontend(
        &mut self,
        committed: &mut Committed,
        key: FrontendKey,
        wanted: Option<&Wanted>,
        later: &mut Later,
    ) -> Result<(), NftError> {
        let (want_verdicts, want_lists) = elements_of(wanted);
        self.write_sources(committed, key, wanted, later);
        let stuck = VERDICT_MAPS.iter().any(|map| match committed.verdicts.get(&(*map, key)) {
            Some(V::Sticky(id, _)) => later.shrunk.contains(id) || !committed.groups.contains_key(id),
            _ => false,
        });
        if stuck && key.protocol != Protocol::Tcp {
            self.connectionless.insert(key);
        }
        for map in LIST_MAPS {
            let want = want_lists.iter().find(|(m, _)| *m == map).map_or(&[][..], |(_, list)| *list);
            let old = committed.lists.get(&(map, key)).map_or(&[][..], Vec::as_slice);
            let change = diff_list(old, want);
            self.write_list(map, &key, &change);
            if change.set.is_empty() && change.delete.is_empty() {
                continue;
            }
            // An endpoint that is overwritten or deleted is gone (or moved, which does no harm).
            let lost = !change.delete.is_empty() || change.set.iter().any(|(_, held, _)| *held);
            if lost && key.protocol != Protocol::Tcp {
                self.connectionless.insert(key);
            }
            let list = committed.lists.entry((map, key)).or_default();
            apply_list(list, &change);
            if list.is_empty() {
                committed.lists.remove(&(map, key));
            }
            if !change.delete.is_empty() {
                later.deletes.push((map, key, change));
            }
        }
        for map in VERDICT_MAPS {
            let new = want_verdicts.iter().find(|(m, _)| *m == map).map(|(_, v)| *v);
            let old = committed.verdicts.get(&(map, key)).copied();
            if old == new {
                continue;
            }
            if key.protocol != Protocol::Tcp && (old.is_none() || new.is_none()) {
                self.connectionless.insert(key);
            }
            if let Some(V::Pick(class, count)) = new {
                later.apart |= self.need_pick(committed, Pick { class, node_port: key.is_node_port(), count });
            }
            let changes = if new.is_none() && map.is_second() { &mut later.second } else { &mut later.verdicts };
            changes.push(VerdictChange { map, key, old, new });
        }
        self.commit_if_large()
    }

    fn write_list(&mut self, map: ListMap, key: &FrontendKey, change: &ListChange) {
        let name = map.name(key.is_node_port());
        for (index, _, _) in change.set.iter().filter(|(_, held, _)| *held) {
            self.batch.delete_element(name, codec::indexed(key, *index).get(), false);
        }
        for (index, _, ep) in &change.set {
            let value = codec::endpoint(ep);
            self.batch.add_element(name, codec::indexed(key, *index).get(), ElementData::Value(value.get()));
        }
    }

    /// Says whether the chain had to be made.
    fn need_pick(&mut self, committed: &mut Committed, pick: Pick) -> bool {
        let new = committed.picks.insert(pick);
        if new {
            let name = pick.name();
            self.batch.add_chain(&name, None);
            self.batch.flush_chain(&name);
            for rule in self.layout.pick_rules(&pick) {
                self.batch.add_rule(&name, &rule);
            }
        }
        new
    }

    fn write_verdicts(&mut self, committed: &mut Committed, changes: &[VerdictChange]) -> Result<(), NftError> {
        for portion in changes.chunks(VERDICT_PORTION) {
            let mut names: HashMap<(V, bool), Option<String>> = HashMap::new();
            let mut sorted: Vec<&VerdictChange> = portion.iter().collect();
            sorted.sort_by_key(|c| (c.map, c.key.is_node_port()));
            for change in sorted.iter().filter(|c| c.old.is_some()) {
                let set = change.map.name(change.key.is_node_port());
                self.batch.delete_element(set, codec::key(&change.key).get(), false);
            }
            for change in sorted {
                let node_port = change.key.is_node_port();
                let Some(new) = change.new else {
                    committed.verdicts.remove(&(change.map, change.key));
                    continue;
                };
                let chain = names.entry((new, node_port)).or_insert_with(|| new.chain(node_port));
                let data = chain.as_deref().map_or(ElementData::Drop, ElementData::Goto);
                self.batch.add_element(change.map.name(node_port), codec::key(&change.key).get(), data);
                committed.verdicts.insert((change.map, change.key), new);
            }
            self.commit_if_large()?;
        }
        Ok(())
    }

    fn write_members(&mut self, committed: &mut Committed, changes: &Changes) -> Result<(), NftError> {
        let family = self.family;
        let sets = [
            (SET_CLUSTER_IPS, &mut committed.cluster_ips, &changes.cluster_ips),
            (SET_HAIRPIN, &mut committed.hairpin, &changes.hairpin),
        ];
        for (name, held, changed) in sets {
            let mut add = Vec::new();
            let mut delete = Vec::new();
            for (ip, wanted) in changed.iter().filter(|(ip, _)| Family::of(**ip) == family) {
                match (*wanted, held.contains(ip)) {
                    (true, false) => add.push(*ip),
                    (false, true) => delete.push(*ip),
                    _ => {}
                }
            }
            if changes.full {
                delete.extend(held.iter().filter(|ip| !changed.contains_key(ip)));
            }
            let key = |ip| if name == SET_HAIRPIN { codec::hairpin_key(ip) } else { codec::address(ip).get().to_vec() };
            for ip in delete {
                self.batch.delete_element(name, &key(ip), false);
                held.remove(&ip);
            }
            for ip in add {
                self.batch.add_element(name, &key(ip), ElementData::None);
                held.insert(ip);
            }
            self.commit_if_large()?;
        }
        Ok(())
    }

    fn write_ranges(&mut self, committed: &mut Committed, ranges: &Ranges) {
        for (name, nets) in ranges {
            let wanted: BTreeSet<(Vec<u8>, bool)> = borders(nets, self.batch.family()).into_iter().collect();
            let held = committed.ranges.entry(name).or_default();
            if *held == wanted {
                continue;
            }
            // An interval is one thing to the kernel: borders are not changed one by one.
            for (key, end) in held.iter() {
                self.batch.delete_element(name, key, *end);
            }
            for (key, end) in &wanted {
                let data = if *end { ElementData::IntervalEnd } else { ElementData::None };
                self.batch.add_element(name, key, data);
            }
            *held = wanted;
        }
    }

    fn write_group(
        &mut self,
        committed: &mut Committed,
        id: u64,
        group: Option<&Group>,
        later: &mut Later,
    ) -> Result<(), NftError> {
        let held = committed.groups.get(&id);
        if held == group {
            return Ok(());
        }
        // What a group found at start once held is not known: its flows are looked at, too.
        if held.is_none_or(|held| lost_any(held, group)) {
            later.shrunk.insert(id);
        }
        let eps = |group: Option<&Group>| -> BTreeSet<Ep> {
            group.iter().flat_map(|g| g.lists.values()).flatten().copied().collect()
        };
        let (old_eps, new_eps) = (eps(held), eps(group));
        if let Some(group) = group {
            for ep in new_eps.difference(&old_eps) {
                let name = sticky_endpoint(id, ep);
                committed.stray_sticky_chains.remove(&name);
                committed.stray_sticky_sets.remove(&name);
                self.batch.add_set(&self.layout.sticky_set(&name, group.seconds));
                self.batch.add_chain(&name, None);
                self.batch.flush_chain(&name);
                for rule in self.layout.sticky_endpoint_rules(&name, group.protocol, ep) {
                    self.batch.add_rule(&name, &rule);
                }
            }
            for (class, list) in &group.lists {
                if held.and_then(|h| h.lists.get(class)) != Some(list) {
                    committed.stray_sticky_chains.remove(&sticky_chain(id, *class));
                    later.apart |= held.is_none_or(|h| !h.lists.contains_key(class));
                    self.write_sticky_class(id, *class, list);
                }
            }
        }
        let mut old = OldGroup::default();
        for class in held.iter().flat_map(|h| h.lists.keys()) {
            if group.is_none_or(|g| !g.lists.contains_key(class)) {
                old.chains.push(sticky_chain(id, *class));
            }
        }
        for ep in old_eps.difference(&new_eps) {
            old.chains.push(sticky_endpoint(id, ep));
            old.sets.push(sticky_endpoint(id, ep));
        }
        later.old_groups.push(old);
        match group {
            Some(group) => committed.groups.insert(id, group.clone()),
            None => committed.groups.remove(&id),
        };
        self.commit_if_large()
    }

    fn write_sticky_class(&mut self, id: u64, class: Class, list: &[Ep]) {
        let chain = sticky_chain(id, class);
        self.batch.add_chain(&chain, None);
        self.batch.flush_chain(&chain);
        for rule in Layout::class_rules(class) {
            self.batch.add_rule(&chain, &rule);
        }
        let targets: Vec<String> = list.iter().map(|ep| sticky_endpoint(id, ep)).collect();
        for target in &targets {
            self.batch.add_rule(&chain, &self.layout.stuck_rule(target, target));
        }
        self.batch.add_random_goto_rule(&chain, &targets);
    }

    /// First the rules, then the chains and sets: before 6.2 a chain that just lost its last
    /// reference could not be deleted in the same transaction.
    fn delete_groups(&mut self, groups: &[OldGroup]) -> Result<(), NftError> {
        for chain in groups.iter().flat_map(|g| &g.chains) {
            self.batch.flush_chain(chain);
        }
        self.commit()?;
        for group in groups {
            for chain in &group.chains {
                self.batch.delete_chain(chain);
            }
            for set in &group.sets {
                self.batch.delete_set(set);
            }
        }
        self.commit()
    }
}

#[derive(Debug, Default)]
struct OldGroup {
    chains: Vec<String>,
    sets: Vec<String>,
}

/// Whether a class of a group loses an endpoint.
fn lost_any(held: &Group, wanted: Option<&Group>) -> bool {
    held.lists.iter().any(|(class, old)| {
        let new: BTreeSet<&Ep> = wanted.and_then(|g| g.lists.get(class)).into_iter().flatten().collect();
        old.iter().any(|ep| !new.contains(ep))
    })
}

/// Frontends that the kernel holds and nobody wants.
fn unwanted(committed: &Committed, changes: &Changes) -> BTreeSet<FrontendKey> {
    committed
        .verdicts
        .keys()
        .map(|(_, key)| *key)
        .chain(committed.lists.keys().map(|(_, key)| *key))
        .chain(committed.sources.keys().copied())
        .filter(|key| !changes.frontends.contains_key(key))
        .collect()
}

/// Deletes our table of a family, if it is there. Says whether it was.
///
/// # Errors
/// See [`NftError`].
pub fn delete_table(nft: &mut dyn Nft, family: NftFamily) -> Result<bool, NftError> {
    if nft.names(family, TABLE)?.is_none() {
        return Ok(false);
    }
    let mut batch = Batch::new(family, TABLE);
    batch.delete_table();
    nft.commit(&mut batch)?;
    Ok(true)
}
