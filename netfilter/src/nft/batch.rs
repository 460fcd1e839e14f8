//! A transaction as encoded bytes: one `NFNL_MSG_BATCH_BEGIN … END` that the kernel applies whole
//! or not at all.
//!
//! Invariants: elements of one set written one after the other share a message, whose nested list
//! stays below the 64 KiB that an attribute can hold; every message has its own sequence number,
//! so that an error can be traced to what caused it. The caller bounds the size: see
//! [`Batch::len`] and [`MAX_BATCH_BYTES`].

use crate::nft::expr::{Expr, Reg, Verdict, data_value, data_verdict};
use crate::nft::set::{Maps, SetDecl};
use crate::uapi::*;
use crate::wire::{Attrs, Messages, Open, Writer};

/// Above this many bytes a caller should commit and begin the next transaction: some 3,000 elements.
/// The kernel copies the buffer, allocates about as much again for its transaction records, and, where
/// anybody listens to nf_tables' notifications, a message of 8 KiB for each element until the commit
/// (6.1; seen: half a gigabyte for 65,000 elements, and a node of 768 MiB that ran out of memory).
pub const MAX_BATCH_BYTES: usize = 256 << 10;

/// Elements are packed into messages up to this size.
const MAX_LIST_BYTES: usize = 48 * 1024;

/// The pattern by which the kernel names anonymous maps.
const ANONYMOUS_MAP: &str = "__map%d";

/// Address family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// `table ip`.
    Ipv4 = 2,
    /// `table ip6`.
    Ipv6 = 10,
}

impl Family {
    /// nft's word for the family.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip6",
        }
    }
}

/// Netfilter hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// Where a base chain is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseChain {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The hook.
    pub hook: Hook,
    /// Priority: lower runs earlier.
    pub priority: i32,
}

/// The value of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementData<'a> {
    /// None: a member of a set.
    None,
    /// None, and the key is the end of an interval (exclusive).
    IntervalEnd,
    /// None, and the key is the first of a range up to this key (inclusive): for concatenations with
    /// intervals.
    RangeTo(&'a [u8]),
    /// Bytes, for a map.
    Value(&'a [u8]),
    /// `goto chain`, for a verdict map.
    Goto(&'a str),
    /// `drop`, for a verdict map.
    Drop,
}

#[derive(Debug)]
struct OpenElements {
    kind: u16,
    set: String,
    message: Open,
    list: Open,
}

/// A transaction being written for one table.
#[derive(Debug)]
pub struct Batch {
    writer: Writer,
    family: Family,
    table: String,
    seq: u32,
    first_seq: u32,
    next_set_id: u32,
    open: Option<OpenElements>,
    elements: usize,
    begin_len: usize,
}

impl Batch {
    /// An empty transaction on a table.
    #[must_use]
    pub fn new(family: Family, table: &str) -> Self {
        let mut batch = Self {
            writer: Writer::new(),
            family,
            table: table.to_owned(),
            seq: 1,
            first_seq: 1,
            next_set_id: 1,
            open: None,
            elements: 0,
            begin_len: 0,
        };
        batch.begin();
        batch
    }

    fn begin(&mut self) {
        let open = self.writer.begin(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, self.seq, 0, NFNL_SUBSYS_NFTABLES);
        self.writer.end(open);
        self.begin_len = self.writer.len();
    }

    /// Starts anew for the next transaction, keeping the buffer.
    pub fn reset(&mut self) {
        self.open = None;
        self.writer.clear();
        self.elements = 0;
        self.seq += 1;
        self.first_seq = self.seq;
        self.begin();
    }

    /// The family of the table.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Size in bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// Whether nothing would change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writer.len() == self.begin_len
    }

    /// Element additions and deletions written so far.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Closes the transaction and gives its bytes, from `BATCH_BEGIN` to `BATCH_END`.
    pub fn finish(&mut self) -> &[u8] {
        self.close_elements();
        self.seq += 1;
        let end = self.writer.begin(NFNL_MSG_BATCH_END, NLM_F_REQUEST, self.seq, 0, NFNL_SUBSYS_NFTABLES);
        self.writer.end(end);
        self.writer.as_bytes()
    }

    /// Closes the last message but writes no end mark: the kernel then checks the transaction and
    /// gives it up.
    pub(crate) fn finish_unmarked(&mut self) {
        self.close_elements();
    }

    /// The bytes written so far; the whole transaction after [`Batch::finish`].
    #[must_use]
    pub fn finished(&self) -> &[u8] {
        self.writer.as_bytes()
    }

    fn message(&mut self, kind: u16, flags: u16) -> Open {
        self.close_elements();
        self.raw_message(kind, flags)
    }

    fn raw_message(&mut self, kind: u16, flags: u16) -> Open {
        self.seq += 1;
        let kind = (NFNL_SUBSYS_NFTABLES << 8) | kind;
        let open = self.writer.begin(kind, NLM_F_REQUEST | flags, self.seq, self.family as u8, 0);
        // The table's name is attribute 1 in every nf_tables message.
        self.writer.attr_str(1, &self.table);
        open
    }

    /// Creates the table if it is not there.
    pub fn add_table(&mut self) {
        let m = self.message(NFT_MSG_NEWTABLE, NLM_F_CREATE);
        self.writer.attr_u32(NFTA_TABLE_FLAGS, 0);
        self.writer.end(m);
    }

    /// Deletes the table with all that is in it.
    pub fn delete_table(&mut self) {
        let m = self.message(NFT_MSG_DELTABLE, 0);
        self.writer.end(m);
    }

    /// Creates a chain; no error if it is there.
    pub fn add_chain(&mut self, name: &str, base: Option<BaseChain>) {
        let m = self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE);
        self.writer.attr_str(NFTA_CHAIN_NAME, name);
        if let Some(base) = base {
            let hook = self.writer.nest(NFTA_CHAIN_HOOK);
            self.writer.attr_u32(NFTA_HOOK_HOOKNUM, base.hook as u32);
            self.writer.attr(NFTA_HOOK_PRIORITY, &base.priority.to_be_bytes());
            self.writer.end_nest(hook);
            self.writer.attr_u32(NFTA_CHAIN_POLICY, NF_ACCEPT as u32);
            self.writer.attr_str(NFTA_CHAIN_TYPE, base.kind);
        }
        self.writer.end(m);
    }

    /// Deletes a chain, which must be without rules and references.
    pub fn delete_chain(&mut self, name: &str) {
        let m = self.message(NFT_MSG_DELCHAIN, 0);
        self.writer.attr_str(NFTA_CHAIN_NAME, name);
        self.writer.end(m);
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        let m = self.message(NFT_MSG_DELRULE, 0);
        self.writer.attr_str(NFTA_RULE_CHAIN, name);
        self.writer.end(m);
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: &str, exprs: &[Expr]) {
        let m = self.message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
        self.writer.attr_str(NFTA_RULE_CHAIN, chain);
        let list = self.writer.nest(NFTA_RULE_EXPRESSIONS);
        for expr in exprs {
            expr.write(&mut self.writer);
        }
        self.writer.end_nest(list);
        self.writer.end(m);
    }

    /// Creates a set or map; no error if it is there with the same shape.
    pub fn add_set(&mut self, decl: &SetDecl) {
        let mut flags = 0;
        if decl.interval {
            flags |= NFT_SET_INTERVAL;
        }
        let concatenation = decl.interval && decl.key.len() > 1;
        if concatenation {
            flags |= NFT_SET_CONCAT;
        }
        if decl.maps != Maps::Nothing {
            flags |= NFT_SET_MAP;
        }
        if decl.dynamic.is_some() {
            flags |= NFT_SET_TIMEOUT | NFT_SET_EVAL;
        }
        let m = self.message(NFT_MSG_NEWSET, NLM_F_CREATE);
        let (key_type, key_len) = decl.key_numbers();
        self.writer.attr_str(NFTA_SET_NAME, &decl.name);
        self.writer.attr_u32(NFTA_SET_FLAGS, flags);
        self.writer.attr_u32(NFTA_SET_KEY_TYPE, key_type);
        self.writer.attr_u32(NFTA_SET_KEY_LEN, key_len);
        if let Some((data_type, data_len)) = decl.data_numbers() {
            self.writer.attr_u32(NFTA_SET_DATA_TYPE, data_type);
            self.writer.attr_u32(NFTA_SET_DATA_LEN, data_len);
        }
        self.writer.attr_u32(NFTA_SET_ID, self.next_set_id);
        self.next_set_id += 1;
        if concatenation {
            // The kernel matches field by field, and asks how long each is.
            let desc = self.writer.nest(NFTA_SET_DESC);
            let fields = self.writer.nest(NFTA_SET_DESC_CONCAT);
            for field in &decl.key {
                let element = self.writer.nest(NFTA_LIST_ELEM);
                self.writer.attr_u32(NFTA_SET_FIELD_LEN, field.exact_len() as u32);
                self.writer.end_nest(element);
            }
            self.writer.end_nest(fields);
            self.writer.end_nest(desc);
        }
        if let Some(dynamic) = decl.dynamic {
            self.writer.attr_u64(NFTA_SET_TIMEOUT, dynamic.timeout_ms);
            let desc = self.writer.nest(NFTA_SET_DESC);
            self.writer.attr_u32(NFTA_SET_DESC_SIZE, dynamic.size);
            self.writer.end_nest(desc);
        }
        self.writer.attr(NFTA_SET_USERDATA, &decl.udata());
        self.writer.end(m);
    }

    /// Appends a rule whose last instruction looks a random index below `targets.len()` up in an
    /// anonymous verdict map: an even choice between chains, as `numgen random mod N vmap { … }`.
    pub fn add_random_goto_rule(&mut self, chain: &str, targets: &[String]) {
        let id = self.next_set_id;
        self.next_set_id += 1;
        let m = self.message(NFT_MSG_NEWSET, NLM_F_CREATE);
        self.writer.attr_str(NFTA_SET_NAME, ANONYMOUS_MAP);
        self.writer.attr_u32(NFTA_SET_FLAGS, NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | NFT_SET_MAP);
        self.writer.attr_u32(NFTA_SET_KEY_TYPE, crate::nft::Field::Index.datatype());
        self.writer.attr_u32(NFTA_SET_KEY_LEN, 4);
        self.writer.attr_u32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT);
        self.writer.attr_u32(NFTA_SET_DATA_LEN, 0);
        self.writer.attr_u32(NFTA_SET_ID, id);
        let desc = self.writer.nest(NFTA_SET_DESC);
        self.writer.attr_u32(NFTA_SET_DESC_SIZE, targets.len() as u32);
        self.writer.end_nest(desc);
        self.writer.attr(NFTA_SET_USERDATA, &crate::nft::set::anonymous_index_udata());
        self.writer.end(m);
        let m = self.raw_message(NFT_MSG_NEWSETELEM, NLM_F_CREATE);
        self.writer.attr_str(NFTA_SET_ELEM_LIST_SET, ANONYMOUS_MAP);
        self.writer.attr_u32(NFTA_SET_ELEM_LIST_SET_ID, id);
        let list = self.writer.nest(NFTA_SET_ELEM_LIST_ELEMENTS);
        for (index, target) in (0u32..).zip(targets) {
            let element = self.writer.nest(NFTA_LIST_ELEM);
            data_value(&mut self.writer, NFTA_SET_ELEM_KEY, &index.to_ne_bytes());
            data_verdict(&mut self.writer, NFTA_SET_ELEM_DATA, NFT_GOTO, Some(target));
            self.writer.end_nest(element);
        }
        self.writer.end_nest(list);
        self.writer.end(m);
        let modulus = targets.len() as u32;
        self.add_rule(
            chain,
            &[
                Expr::Random { modulus, into: Reg(0) },
                Expr::LookupAnonymousVerdict { set: ANONYMOUS_MAP.to_owned(), id, key: Reg(0) },
            ],
        );
    }

    /// Deletes a set, which must not be referenced by a rule.
    pub fn delete_set(&mut self, name: &str) {
        let m = self.message(NFT_MSG_DELSET, 0);
        self.writer.attr_str(NFTA_SET_NAME, name);
        self.writer.end(m);
    }

    /// Adds an element. An identical one is no error, one with other data is.
    pub fn add_element(&mut self, set: &str, key: &[u8], data: ElementData<'_>) {
        self.element(NFT_MSG_NEWSETELEM, NLM_F_CREATE, set, key, data);
    }

    /// Deletes an element, which must exist.
    pub fn delete_element(&mut self, set: &str, key: &[u8], interval_end: bool) {
        let data = if interval_end { ElementData::IntervalEnd } else { ElementData::None };
        self.element(NFT_MSG_DELSETELEM, 0, set, key, data);
    }

    /// Deletes a range of a concatenation with intervals, which must exist as it is.
    pub fn delete_range(&mut self, set: &str, key: &[u8], end: &[u8]) {
        self.element(NFT_MSG_DELSETELEM, 0, set, key, ElementData::RangeTo(end));
    }

    fn element(&mut self, kind: u16, flags: u16, set: &str, key: &[u8], data: ElementData<'_>) {
        self.open_elements(kind, flags, set);
        self.elements += 1;
        let w = &mut self.writer;
        let element = w.nest(NFTA_LIST_ELEM);
        data_value(w, NFTA_SET_ELEM_KEY, key);
        match data {
            ElementData::None => {}
            ElementData::IntervalEnd => w.attr_u32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END),
            ElementData::RangeTo(end) => data_value(w, NFTA_SET_ELEM_KEY_END, end),
            ElementData::Value(value) => data_value(w, NFTA_SET_ELEM_DATA, value),
            ElementData::Goto(chain) => data_verdict(w, NFTA_SET_ELEM_DATA, NFT_GOTO, Some(chain)),
            ElementData::Drop => data_verdict(w, NFTA_SET_ELEM_DATA, NF_DROP, None),
        }
        w.end_nest(element);
    }

    fn open_elements(&mut self, kind: u16, flags: u16, set: &str) {
        if let Some(open) = &self.open
            && open.kind == kind
            && open.set == set
            && self.writer.since(open.list) < MAX_LIST_BYTES
        {
            return;
        }
        self.close_elements();
        let message = self.raw_message(kind, flags);
        self.writer.attr_str(NFTA_SET_ELEM_LIST_SET, set);
        let list = self.writer.nest(NFTA_SET_ELEM_LIST_ELEMENTS);
        self.open = Some(OpenElements { kind, set: set.to_owned(), message, list });
    }

    fn close_elements(&mut self) {
        if let Some(open) = self.open.take() {
            self.writer.end_nest(open.list);
            self.writer.end(open.message);
        }
    }

    /// Whether a sequence number is one of this transaction's.
    pub(crate) fn covers(&self, seq: u32) -> bool {
        seq.wrapping_sub(self.first_seq) <= self.seq.wrapping_sub(self.first_seq)
    }

    /// Says in words which message a sequence number belongs to, for error texts.
    #[must_use]
    pub fn describe(&self, seq: u32) -> String {
        let Some(message) = Messages(self.writer.as_bytes()).find(|m| m.seq == seq) else {
            return format!("message {} of the transaction", seq.wrapping_sub(self.first_seq));
        };
        let attrs = message.attrs();
        let name = |kind| attrs.str(kind).unwrap_or("?").to_owned();
        match message.kind & 0xff {
            NFT_MSG_NEWTABLE => "creating the table".to_owned(),
            NFT_MSG_DELTABLE => "deleting the table".to_owned(),
            NFT_MSG_NEWCHAIN => format!("creating chain {}", name(NFTA_CHAIN_NAME)),
            NFT_MSG_DELCHAIN => format!("deleting chain {}", name(NFTA_CHAIN_NAME)),
            NFT_MSG_NEWRULE => {
                format!("adding rule [{}] to chain {}", expr_names(attrs), name(NFTA_RULE_CHAIN))
            }
            NFT_MSG_DELRULE => format!("flushing chain {}", name(NFTA_RULE_CHAIN)),
            NFT_MSG_NEWSET => format!("creating set {}", name(NFTA_SET_NAME)),
            NFT_MSG_DELSET => format!("deleting set {}", name(NFTA_SET_NAME)),
            NFT_MSG_NEWSETELEM => format!("adding elements to {}", name(NFTA_SET_ELEM_LIST_SET)),
            NFT_MSG_DELSETELEM => format!("deleting elements of {}", name(NFTA_SET_ELEM_LIST_SET)),
            _ => "committing".to_owned(),
        }
    }
}

fn expr_names(rule: Attrs<'_>) -> String {
    let names: Vec<&str> =
        rule.nested(NFTA_RULE_EXPRESSIONS).filter_map(|(_, expr)| Attrs(expr).str(NFTA_EXPR_NAME)).collect();
    names.join(" ")
}

/// The value of an element as read from bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnedData {
    /// A member of a set.
    None,
    /// The end of an interval.
    IntervalEnd,
    /// A range up to this key (inclusive).
    RangeTo(Vec<u8>),
    /// A map's value.
    Value(Vec<u8>),
    /// A verdict map's value.
    Verdict(Verdict),
}

/// An element as read from the kernel or from a batch, borrowed from the message.
#[derive(Debug, Clone, Copy)]
pub struct ElementRef<'a> {
    /// The key.
    pub key: &'a [u8],
    attrs: Attrs<'a>,
}

impl<'a> ElementRef<'a> {
    /// Reads one list element.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let attrs = Attrs(bytes);
        let key = attrs.nested(NFTA_SET_ELEM_KEY).get(NFTA_DATA_VALUE)?;
        Some(Self { key, attrs })
    }

    /// The plain value, for maps.
    #[must_use]
    pub fn value(&self) -> Option<&'a [u8]> {
        self.attrs.nested(NFTA_SET_ELEM_DATA).get(NFTA_DATA_VALUE)
    }

    /// The verdict as (code, chain), for verdict maps.
    #[must_use]
    pub fn verdict(&self) -> Option<(i32, Option<&'a str>)> {
        let verdict = self.attrs.nested(NFTA_SET_ELEM_DATA).nested(NFTA_DATA_VERDICT);
        Some((verdict.u32(NFTA_VERDICT_CODE)? as i32, verdict.str(NFTA_VERDICT_CHAIN)))
    }

    /// Whether the key ends an interval.
    #[must_use]
    pub fn interval_end(&self) -> bool {
        self.attrs.u32(NFTA_SET_ELEM_FLAGS).unwrap_or(0) & NFT_SET_ELEM_INTERVAL_END != 0
    }

    /// The last key of a range, for concatenations with intervals.
    #[must_use]
    pub fn range_to(&self) -> Option<&'a [u8]> {
        self.attrs.nested(NFTA_SET_ELEM_KEY_END).get(NFTA_DATA_VALUE)
    }

    /// The value, owned.
    #[must_use]
    pub fn data(&self) -> OwnedData {
        if let Some((code, chain)) = self.verdict()
            && let Some(verdict) = Verdict::from_code(code, chain)
        {
            OwnedData::Verdict(verdict)
        } else if let Some(value) = self.value() {
            OwnedData::Value(value.to_vec())
        } else if let Some(end) = self.range_to() {
            OwnedData::RangeTo(end.to_vec())
        } else if self.interval_end() {
            OwnedData::IntervalEnd
        } else {
            OwnedData::None
        }
    }
}
