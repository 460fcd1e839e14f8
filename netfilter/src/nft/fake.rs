//! nf_tables in memory, fed with the encoded bytes of a [`Batch`]: what tests of the dataplane
//! run on.
//!
//! It keeps the kernel's promises that a backend relies on: a transaction applies whole or not at
//! all; an element added twice with other data is `EEXIST`, deleted when absent `ENOENT`; a range
//! that overlaps another is `ENOTEMPTY`; a
//! verdict or rule that names a missing chain or set is `ENOENT`; a chain or set still referenced
//! cannot be deleted (`EBUSY`). Rules are kept as the bytes of their expression lists.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::table_state::{Elements, SetShape, TableState, is_anonymous, read_hook};
use super::{Batch, ElementRef, Expr, Family, Listed, Nft, NftError, OwnedData, TableNames, Verdict};
use crate::uapi::*;
use crate::wire::{Attrs, Message, Messages, Writer};

type Tables = BTreeMap<(Family, String), TableState>;

/// Anonymous sets of a transaction, by their number in it.
type Anonymous = BTreeMap<u32, (SetShape, Elements)>;

#[derive(Debug, Default)]
struct State {
    tables: Tables,
    generation: u32,
    /// Errors to answer the next commits with.
    failures: Vec<i32>,
    committed_elements: Vec<usize>,
    /// Listings that leave elements out, and whether they say so.
    partial: (u32, bool),
    /// Listings to call interrupted, though they are whole.
    interruptions: usize,
}

/// The fake; clones share one state, so that a test can look in while a backend writes.
#[derive(Debug, Clone, Default)]
pub struct FakeNft(Arc<Mutex<State>>);

impl FakeNft {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of a table.
    #[must_use]
    pub fn table(&self, family: Family, table: &str) -> Option<TableState> {
        self.state().tables.get(&(family, table.to_owned())).cloned()
    }

    /// Changes a table behind the backend's back, as a foreign hand would.
    pub fn tamper(&self, family: Family, table: &str, change: impl FnOnce(&mut TableState)) {
        if let Some(table) = self.state().tables.get_mut(&(family, table.to_owned())) {
            change(table);
        }
    }

    /// Deletes a table behind the backend's back.
    pub fn drop_table(&self, family: Family, table: &str) {
        self.state().tables.remove(&(family, table.to_owned()));
    }

    /// Lets the next commit fail with an error number.
    pub fn fail_next(&self, errno: i32) {
        self.state().failures.push(errno);
    }

    /// Lets the next listings of sets with several elements leave some out, as the kernel's do while it enlarges a hash. `told`: as on kernels that
    /// count.
    pub fn list_partially(&self, times: u32, told: bool) {
        self.state().partial = (times, told);
    }

    /// Calls the next listings of sets interrupted, as the kernel does when somebody commits anything meanwhile.
    pub fn interrupt_next(&self, listings: usize) {
        self.state().interruptions = listings;
    }

    /// Number of element changes in each transaction committed so far, and forgets them.
    #[must_use]
    pub fn take_commits(&self) -> Vec<usize> {
        std::mem::take(&mut self.state().committed_elements)
    }
}

fn apply(tables: &mut Tables, anonymous: &mut Anonymous, message: Message<'_>) -> Result<(), i32> {
    let family = if message.family() == Family::Ipv6 as u8 { Family::Ipv6 } else { Family::Ipv4 };
    let attrs = message.attrs();
    let key = (family, attrs.str(NFTA_TABLE_NAME).ok_or(libc::EINVAL)?.to_owned());
    let kind = message.kind & 0xff;
    match kind {
        NFT_MSG_NEWTABLE => {
            tables.entry(key).or_default();
            return Ok(());
        }
        NFT_MSG_DELTABLE => return tables.remove(&key).map(|_| ()).ok_or(libc::ENOENT),
        _ => {}
    }
    let table = tables.get_mut(&key).ok_or(libc::ENOENT)?;
    match kind {
        NFT_MSG_NEWCHAIN => {
            let name = attrs.str(NFTA_CHAIN_NAME).ok_or(libc::EINVAL)?;
            table.chains.entry(name.to_owned()).or_default();
            table.hooks.extend(read_hook(attrs).map(|hook| (name.to_owned(), hook)));
            Ok(())
        }
        NFT_MSG_DELCHAIN => table.delete_chain(attrs.str(NFTA_CHAIN_NAME).ok_or(libc::EINVAL)?),
        NFT_MSG_NEWRULE => table.add_rule(attrs, anonymous),
        NFT_MSG_DELRULE => {
            let name = attrs.str(NFTA_RULE_CHAIN).ok_or(libc::EINVAL)?;
            table.chains.get_mut(name).ok_or(libc::ENOENT)?.clear();
            Ok(())
        }
        NFT_MSG_NEWSET => {
            let name = attrs.str(NFTA_SET_NAME).ok_or(libc::EINVAL)?;
            if !is_anonymous(attrs) {
                table.sets.entry(name.to_owned()).or_default();
                table.shapes.insert(name.to_owned(), SetShape::read(attrs));
            } else {
                let id = attrs.u32(NFTA_SET_ID).ok_or(libc::EINVAL)?;
                anonymous.insert(id, (SetShape::read(attrs), Elements::new()));
            }
            Ok(())
        }
        NFT_MSG_DELSET => {
            let name = attrs.str(NFTA_SET_NAME).ok_or(libc::EINVAL)?;
            if table.chains.values().flatten().any(|rule| references(rule, name)) {
                return Err(libc::EBUSY);
            }
            table.shapes.remove(name);
            table.sets.remove(name).map(|_| ()).ok_or(libc::ENOENT)
        }
        NFT_MSG_NEWSETELEM | NFT_MSG_DELSETELEM => table.change(attrs, anonymous, kind == NFT_MSG_NEWSETELEM),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Whether an expression list names a chain or set.
fn references(rule: &[u8], name: &str) -> bool {
    Attrs(rule).any(|(_, expr)| {
        let data = Attrs(expr).nested(NFTA_EXPR_DATA);
        match Attrs(expr).str(NFTA_EXPR_NAME) {
            Some("lookup" | "dynset") => data.str(1) == Some(name),
            Some("immediate") => data.nested(2).nested(NFTA_DATA_VERDICT).str(NFTA_VERDICT_CHAIN) == Some(name),
            _ => false,
        }
    })
}

/// Ranges of one concatenation, whose fields but the last are equal in both borders.
fn overlaps(new: (&[u8], &[u8]), held: (&[u8], &OwnedData)) -> bool {
    matches!(held.1, OwnedData::RangeTo(to) if new.0 <= to.as_slice() && held.0 <= new.1)
}

impl TableState {
    fn delete_chain(&mut self, name: &str) -> Result<(), i32> {
        let goes_there =
            |data: &OwnedData| matches!(data, OwnedData::Verdict(Verdict::Goto(c) | Verdict::Jump(c)) if c == name);
        if !self.chains.get(name).ok_or(libc::ENOENT)?.is_empty()
            || self.chains.values().flatten().any(|rule| references(rule, name))
            || self.sets.values().flat_map(BTreeMap::values).any(goes_there)
        {
            return Err(libc::EBUSY);
        }
        self.chains.remove(name);
        self.hooks.remove(name);
        Ok(())
    }

    fn add_rule(&mut self, attrs: Attrs<'_>, anonymous: &mut Anonymous) -> Result<(), i32> {
        let mut rule = Writer::new();
        for (kind, element) in attrs.nested(NFTA_RULE_EXPRESSIONS) {
            let expr = Expr::read(element);
            let there = match &expr {
                Some(Expr::LookupAnonymousVerdict { id, key, .. }) => {
                    let (shape, elements) = anonymous.remove(id).ok_or(libc::ENOENT)?;
                    // Named by what it holds, so that equal rules are equal bytes.
                    let set = anonymous_name(&elements);
                    self.shapes.insert(set.clone(), shape);
                    self.anonymous.insert(set.clone(), elements);
                    Expr::LookupVerdict { set, key: *key }.write(&mut rule);
                    continue;
                }
                Some(
                    Expr::Lookup { set, .. }
                    | Expr::LookupMap { set, .. }
                    | Expr::LookupVerdict { set, .. }
                    | Expr::SetUpdate { set, .. },
                ) => self.sets.contains_key(set),
                Some(Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => self.chains.contains_key(chain),
                _ => true,
            };
            if !there {
                return Err(libc::ENOENT);
            }
            rule.attr(kind, element);
        }
        let chain = attrs.str(NFTA_RULE_CHAIN).ok_or(libc::EINVAL)?;
        self.chains.get_mut(chain).ok_or(libc::ENOENT)?.push(rule.as_bytes().to_vec());
        Ok(())
    }

    /// Anonymous sets go with their rule.
    fn drop_unused_anonymous(&mut self) {
        let chains = &self.chains;
        self.anonymous.retain(|name, _| chains.values().flatten().any(|rule| references(rule, name)));
        let (sets, anonymous) = (&self.sets, &self.anonymous);
        self.shapes.retain(|name, _| sets.contains_key(name) || anonymous.contains_key(name));
    }

    fn change(&mut self, attrs: Attrs<'_>, anonymous: &mut Anonymous, add: bool) -> Result<(), i32> {
        let name = attrs.str(NFTA_SET_ELEM_LIST_SET).ok_or(libc::EINVAL)?;
        let id = attrs.u32(NFTA_SET_ELEM_LIST_SET_ID);
        let set = match id.and_then(|id| anonymous.get_mut(&id)) {
            Some((_, elements)) => elements,
            None => self.sets.get_mut(name).ok_or(libc::ENOENT)?,
        };
        for (_, bytes) in attrs.nested(NFTA_SET_ELEM_LIST_ELEMENTS) {
            let element = ElementRef::parse(bytes).ok_or(libc::EINVAL)?;
            let data = element.data();
            if let OwnedData::Verdict(Verdict::Goto(chain)) = &data
                && !self.chains.contains_key(chain)
            {
                return Err(libc::ENOENT);
            }
            let key = (element.key.to_vec(), element.interval_end());
            if add {
                // Of two ranges that overlap the kernel takes neither for the other, whatever they end at.
                if let OwnedData::RangeTo(end) = &data
                    && set.iter().any(|(held, to)| *held != key && overlaps((&key.0, end), (&held.0, to)))
                {
                    return Err(libc::ENOTEMPTY);
                }
                if set.get(&key).is_some_and(|old| *old != data) {
                    return Err(libc::EEXIST);
                }
                set.insert(key, data);
            } else {
                set.remove(&key).ok_or(libc::ENOENT)?;
            }
        }
        Ok(())
    }
}

/// A name that begins as the kernel's names of anonymous maps do.
fn anonymous_name(elements: &Elements) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    for ((key, end), data) in elements {
        (key, end, format!("{data:?}")).hash(&mut hasher);
    }
    format!("__map{:x}", hasher.finish())
}

impl Nft for FakeNft {
    fn commit(&mut self, batch: &mut Batch) -> Result<(), NftError> {
        let mut state = self.state();
        let refused = |batch: &Batch, seq, errno| NftError::Refused {
            what: batch.describe(seq),
            source: io::Error::from_raw_os_error(errno),
            detail: None,
        };
        batch.finish();
        if let Some(errno) = state.failures.pop() {
            return Err(refused(batch, 0, errno));
        }
        let (mut tables, mut anonymous) = (state.tables.clone(), Anonymous::new());
        for message in Messages(batch.finished()) {
            if message.kind >> 8 == NFNL_SUBSYS_NFTABLES {
                apply(&mut tables, &mut anonymous, message).map_err(|errno| refused(batch, message.seq, errno))?;
            }
        }
        tables.values_mut().for_each(TableState::drop_unused_anonymous);
        state.tables = tables;
        state.generation += 1;
        state.committed_elements.push(batch.elements());
        batch.reset();
        Ok(())
    }

    fn names(&mut self, family: Family, table: &str) -> Result<Option<TableNames>, NftError> {
        Ok(self.table(family, table).map(|t| TableNames { chains: t.chains, sets: t.sets.keys().cloned().collect() }))
    }

    fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(ElementRef<'_>),
    ) -> Result<Listed, NftError> {
        let Some(elements) = self.table(family, table).and_then(|mut t| t.sets.remove(set)) else {
            return Ok(Listed::Whole);
        };
        let partial = {
            let (times, told) = &mut self.state().partial;
            let now = *times > 0 && elements.len() > 2;
            *times -= u32::from(now);
            now.then_some(*told)
        };
        let mut w = Writer::new();
        for ((key, _), data) in elements.iter().skip(if partial.is_some() { 2 } else { 0 }) {
            w.clear();
            super::expr::data_value(&mut w, NFTA_SET_ELEM_KEY, key);
            match data {
                OwnedData::None => {}
                OwnedData::IntervalEnd => w.attr_u32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END),
                OwnedData::RangeTo(end) => super::expr::data_value(&mut w, NFTA_SET_ELEM_KEY_END, end),
                OwnedData::Value(value) => super::expr::data_value(&mut w, NFTA_SET_ELEM_DATA, value),
                OwnedData::Verdict(verdict) => {
                    let (code, chain) = verdict.code();
                    super::expr::data_verdict(&mut w, NFTA_SET_ELEM_DATA, code, chain);
                }
            }
            if let Some(element) = ElementRef::parse(w.as_bytes()) {
                each(element);
            }
        }
        {
            let mut state = self.state();
            if state.interruptions > 0 {
                state.interruptions -= 1;
                return Err(NftError::Interrupted { table: table.to_owned(), attempts: 1 });
            }
        }
        match partial {
            Some(true) => {
                let (listed, expected) = (elements.len() - 2, elements.len());
                Err(NftError::Partial { set: set.to_owned(), listed, expected })
            }
            Some(false) => Ok(Listed::Unknown),
            None => Ok(Listed::Whole),
        }
    }

    fn dump(&mut self, family: Family, table: &str) -> Result<Option<TableState>, NftError> {
        Ok(self.table(family, table))
    }

    fn generation(&mut self) -> Result<u32, NftError> {
        Ok(self.state().generation)
    }
}
