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

use super::{Batch, ElementRef, Family, Nft, NftError, OwnedData, TableNames, Verdict};
use crate::uapi::*;
use crate::wire::{Attrs, Message, Messages, Writer};

/// One table of the fake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeTable {
    /// Expression lists of each chain's rules.
    pub chains: BTreeMap<String, Vec<Vec<u8>>>,
    /// Elements of each set, by key and "ends an interval".
    pub sets: BTreeMap<String, BTreeMap<(Vec<u8>, bool), OwnedData>>,
}

#[derive(Debug, Default)]
struct State {
    tables: BTreeMap<(Family, String), FakeTable>,
    generation: u32,
    /// Errors to answer the next commits with.
    failures: Vec<i32>,
    committed_elements: Vec<usize>,
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
    pub fn table(&self, family: Family, table: &str) -> Option<FakeTable> {
        self.state().tables.get(&(family, table.to_owned())).cloned()
    }

    /// Changes a table behind the backend's back, as a foreign hand would.
    pub fn tamper(&self, family: Family, table: &str, change: impl FnOnce(&mut FakeTable)) {
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

fn apply(tables: &mut BTreeMap<(Family, String), FakeTable>, message: Message<'_>) -> Result<(), i32> {
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
            Ok(())
        }
        NFT_MSG_DELCHAIN => table.delete_chain(attrs.str(NFTA_CHAIN_NAME).ok_or(libc::EINVAL)?),
        NFT_MSG_NEWRULE => table.add_rule(attrs),
        NFT_MSG_DELRULE => {
            let name = attrs.str(NFTA_RULE_CHAIN).ok_or(libc::EINVAL)?;
            table.chains.get_mut(name).ok_or(libc::ENOENT)?.clear();
            Ok(())
        }
        NFT_MSG_NEWSET => {
            let name = attrs.str(NFTA_SET_NAME).ok_or(libc::EINVAL)?;
            if attrs.u32(NFTA_SET_FLAGS).unwrap_or(0) & NFT_SET_ANONYMOUS == 0 {
                table.sets.entry(name.to_owned()).or_default();
            }
            Ok(())
        }
        NFT_MSG_DELSET => {
            let name = attrs.str(NFTA_SET_NAME).ok_or(libc::EINVAL)?;
            if table.chains.values().flatten().any(|rule| references(rule, name)) {
                return Err(libc::EBUSY);
            }
            table.sets.remove(name).map(|_| ()).ok_or(libc::ENOENT)
        }
        NFT_MSG_NEWSETELEM | NFT_MSG_DELSETELEM => table.elements(attrs, kind == NFT_MSG_NEWSETELEM),
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

impl FakeTable {
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
        Ok(())
    }

    fn add_rule(&mut self, attrs: Attrs<'_>) -> Result<(), i32> {
        let rule = attrs.get(NFTA_RULE_EXPRESSIONS).unwrap_or(&[]);
        for (_, expr) in Attrs(rule) {
            let data = Attrs(expr).nested(NFTA_EXPR_DATA);
            let missing = match Attrs(expr).str(NFTA_EXPR_NAME) {
                Some("lookup" | "dynset") => {
                    data.str(1).is_some_and(|set| !set.contains('%') && !self.sets.contains_key(set))
                }
                Some("immediate") => data
                    .nested(2)
                    .nested(NFTA_DATA_VERDICT)
                    .str(NFTA_VERDICT_CHAIN)
                    .is_some_and(|chain| !self.chains.contains_key(chain)),
                _ => false,
            };
            if missing {
                return Err(libc::ENOENT);
            }
        }
        let chain = attrs.str(NFTA_RULE_CHAIN).ok_or(libc::EINVAL)?;
        self.chains.get_mut(chain).ok_or(libc::ENOENT)?.push(rule.to_vec());
        Ok(())
    }

    fn elements(&mut self, attrs: Attrs<'_>, add: bool) -> Result<(), i32> {
        let name = attrs.str(NFTA_SET_ELEM_LIST_SET).ok_or(libc::EINVAL)?;
        for (_, bytes) in attrs.nested(NFTA_SET_ELEM_LIST_ELEMENTS) {
            let element = ElementRef::parse(bytes).ok_or(libc::EINVAL)?;
            let data = element.data();
            if let OwnedData::Verdict(Verdict::Goto(chain)) = &data
                && !self.chains.contains_key(chain)
            {
                return Err(libc::ENOENT);
            }
            if name.contains('%') {
                continue;
            }
            let set = self.sets.get_mut(name).ok_or(libc::ENOENT)?;
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
        let mut tables = state.tables.clone();
        for message in Messages(batch.finished()) {
            if message.kind >> 8 == NFNL_SUBSYS_NFTABLES {
                apply(&mut tables, message).map_err(|errno| refused(batch, message.seq, errno))?;
            }
        }
        state.tables = tables;
        state.generation += 1;
        state.committed_elements.push(batch.elements());
        batch.reset();
        Ok(())
    }

    fn names(&mut self, family: Family, table: &str) -> Result<Option<TableNames>, NftError> {
        Ok(self.table(family, table).map(|t| TableNames {
            chains: t.chains.iter().map(|(name, rules)| (name.clone(), rules.len())).collect(),
            sets: t.sets.keys().cloned().collect(),
        }))
    }

    fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(ElementRef<'_>),
    ) -> Result<(), NftError> {
        let Some(elements) = self.table(family, table).and_then(|mut t| t.sets.remove(set)) else {
            return Ok(());
        };
        let mut w = Writer::new();
        for ((key, _), data) in &elements {
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
        let mut state = self.state();
        if state.interruptions > 0 {
            state.interruptions -= 1;
            return Err(NftError::Interrupted { table: table.to_owned(), attempts: 1 });
        }
        Ok(())
    }

    fn generation(&mut self) -> Result<u32, NftError> {
        Ok(self.state().generation)
    }
}
