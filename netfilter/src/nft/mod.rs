//! nf_tables over netlink: transactions, listing, and the seam behind which the kernel or a fake
//! stands.
//!
//! A transaction is a [`Batch`] of encoded bytes; [`Nft::commit`] applies it whole or not at all.
//! Listing goes by set, calling back for each element, so that a large map is never held twice.

mod batch;
mod expr;
mod fake;
mod interval;
mod kernel;
mod monitor;
mod read;
mod set;
mod table_state;
pub mod walk;

pub use batch::{BaseChain, Batch, ElementData, ElementRef, Family, Hook, MAX_BATCH_BYTES, OwnedData};
pub use expr::{Base, Cmp, Ct, Expr, Meta, Reg, Reject, Verdict};
pub use fake::FakeNft;
pub use interval::{borders, ranges};
pub use kernel::KernelNft;
pub use monitor::{Change, Monitor};
pub use read::read_rule;
pub use set::{Dynamic, Field, Maps, SetDecl};
pub use table_state::{Elements, SetShape, TableState};

use std::collections::BTreeMap;
use std::io;

/// Why talking to nf_tables failed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// No netlink socket could be had.
    #[error("opening a netfilter netlink socket: {source}; nf_tables needs root (CAP_NET_ADMIN)")]
    Open {
        /// The cause.
        source: io::Error,
    },
    /// The kernel did not take the message.
    #[error("sending {bytes} bytes to nf_tables: {source}")]
    Send {
        /// Size of the transaction.
        bytes: usize,
        /// The cause.
        source: io::Error,
    },
    /// The kernel's answer could not be read.
    #[error("reading the answer of nf_tables: {source}")]
    Receive {
        /// The cause.
        source: io::Error,
    },
    /// More answers than the socket's buffer holds: what was applied is not known.
    #[error("the kernel's answers overran the socket buffer (ENOBUFS); the table must be listed again")]
    Overrun,
    /// The kernel refused the transaction; nothing of it was applied.
    #[error("nf_tables refused the transaction while {what}: {source}{}", detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused {
        /// The message at fault, in words.
        what: String,
        /// The kernel's error number.
        source: io::Error,
        /// The kernel's own text, where it gave one.
        detail: Option<String>,
    },
    /// A set was listed with another number of elements than the kernel counts (see [`Listed`]); to be listed again.
    #[error("{listed} elements of set {set} were listed, the kernel counts {expected}")]
    Partial {
        /// The set.
        set: String,
        /// Elements listed.
        listed: usize,
        /// Elements counted.
        expected: usize,
    },
    /// A list changed under the dump too often.
    #[error("table {table} changed while it was listed, {attempts} times in a row")]
    Interrupted {
        /// The table.
        table: String,
        /// Number of attempts.
        attempts: u32,
    },
}

impl NftError {
    /// Whether listing the table and trying again can help.
    #[must_use]
    pub fn retryable(&self) -> bool {
        !matches!(self, Self::Open { .. })
    }

    /// The kernel's error number, if it refused.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// What a table holds but for its elements: chains with their rules, and the names of sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableNames {
    /// Chains by name, with their rules' expression lists.
    pub chains: BTreeMap<String, Vec<Vec<u8>>>,
    /// Named sets and maps; anonymous ones are left out.
    pub sets: Vec<String>,
}

/// Whether a listing of a set was all of it.
///
/// The kernel lists a hash by counting its way through it. While its worker moves elements to a larger or smaller one (for seconds, where
/// processors are busy) some are passed over, or come twice, and nothing says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listed {
    /// As many elements as the kernel counts.
    Whole,
    /// The kernel does not tell how many there are: it is too old, or they are intervals.
    Unknown,
    /// Another number than the kernel counts, time after time.
    Part,
}

/// What the dataplane needs of nf_tables.
pub trait Nft: Send {
    /// Applies a transaction whole or not at all, and resets the batch on success.
    ///
    /// # Errors
    /// See [`NftError`].
    fn commit(&mut self, batch: &mut Batch) -> Result<(), NftError>;

    /// Names in a table; none if there is no such table.
    ///
    /// # Errors
    /// See [`NftError`].
    fn names(&mut self, family: Family, table: &str) -> Result<Option<TableNames>, NftError>;

    /// Calls back for each element of a set. After an error what was seen is void;
    /// [`NftError::Interrupted`] and [`NftError::Partial`] are to be tried again, the latter as often as they come.
    ///
    /// # Errors
    /// See [`NftError`].
    fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(ElementRef<'_>),
    ) -> Result<Listed, NftError>;

    /// All that a table holds; none if there is no such table. After [`NftError::Interrupted`] it may be tried again.
    ///
    /// # Errors
    /// See [`NftError`].
    fn dump(&mut self, family: Family, table: &str) -> Result<Option<TableState>, NftError>;

    /// The generation of the rule set: it grows by one with each transaction of anyone.
    ///
    /// # Errors
    /// See [`NftError`].
    fn generation(&mut self) -> Result<u32, NftError>;
}
