//! The store: one ordered log of changes under `/registry/`, as etcd gives it to upstream's API server.
//!
//! Invariants every implementation keeps (the conformance tests in [`conformance`] check them against the trait):
//! - revisions only grow, also across restarts and crashes;
//! - a transaction takes one revision for all its changes (etcd) or one for each (`SQLite`); its changes are next to each other in the log;
//! - a transaction that was acknowledged survives kill -9 and power loss;
//! - a change is published to watchers only after it is durable, in revision order, without gaps or repeats;
//! - a group of transactions that fails to commit fails whole, and no watcher sees any of it.
//!
//! Upstream counterpart: `k8s.io/apiserver/pkg/storage/etcd3`.

pub mod backup;
#[cfg(test)]
mod conformance;
mod etcd;
mod shared;
mod sqlite;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

pub use etcd::{DEFAULT_PREFIX, EtcdConfig, EtcdStore};
pub use shared::Shared;
pub use sqlite::SqliteStore;

/// A position in the log. The first write has revision 2, so that an empty store answers lists with the valid revision 1.
pub type Revision = u64;

/// One key as it stood at some revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Full key, for instance `/registry/pods/default/web-0`.
    pub key: Arc<str>,
    /// The stored bytes.
    pub value: Bytes,
    /// Revision of the write that produced `value`.
    pub mod_revision: Revision,
}

/// A page of keys at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangePage {
    /// Keys in byte order.
    pub items: Vec<KeyValue>,
    /// The revision the page shows.
    pub revision: Revision,
    /// Whether keys remain after the last item.
    pub more: bool,
}

/// What must hold of a key for a transaction to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The key must not exist.
    Absent,
    /// The key's last write must have this revision.
    ModRevision(Revision),
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Write a value.
    Put {
        /// Full key.
        key: Arc<str>,
        /// Bytes to store.
        value: Bytes,
    },
    /// Remove the key; removing an absent key changes nothing.
    Delete {
        /// Full key.
        key: Arc<str>,
    },
}

/// A compare-and-swap transaction: all expectations hold and all operations happen, or nothing does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// Keys and what must hold of them.
    pub expect: Vec<(Arc<str>, Expect)>,
    /// Changes, each of a key of its own; each may take a revision of its own. etcd takes at most 128 by default.
    pub ops: Vec<Op>,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TxnOutcome {
    /// Applied and durable. Both are the present revision when there was nothing to change.
    Committed {
        /// The revision of its first change.
        first: Revision,
        /// The revision of its last change; the same as the first's where a transaction has one revision.
        last: Revision,
    },
    /// An expectation did not hold: the key and its present revision, if it exists.
    Conflict {
        /// The key whose expectation failed.
        key: Arc<str>,
        /// Its present revision, `None` when it does not exist.
        mod_revision: Option<Revision>,
    },
}

/// One change in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Revision of the change; changes of one transaction may share it and are in one batch then.
    pub revision: Revision,
    /// The changed key; empty for a change of what is not ours, told because it took a revision.
    pub key: Arc<str>,
    /// The new value, `None` when the key was deleted.
    pub value: Option<Bytes>,
}

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database could not be opened or has a foreign layout. Not retryable.
    #[error("cannot open the store {path}: {reason}; is it a Keelson store, and may this user write there?")]
    Open {
        /// Database file.
        path: PathBuf,
        /// What the database said.
        reason: String,
    },
    /// A server of the store, or what is needed to reach it, cannot be used. Not retryable.
    #[error("cannot use etcd at {endpoint}: {reason}")]
    Endpoint {
        /// Its address.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// The store was asked to write and gave no answer: it may have happened. Retryable, as a conflict tells then.
    #[error("the store did not say whether it wrote: {0}")]
    Unknown(String),
    /// The group of writes could not be made durable; nothing of it happened. Retryable.
    #[error("cannot commit to the store: {0}; nothing was written, the write may be retried")]
    Commit(String),
    /// A read failed. Retryable.
    #[error("cannot read from the store: {0}")]
    Read(String),
    /// The revision asked for was compacted away. Not retryable: list again.
    #[error("revision {wanted} was compacted, the oldest is {oldest}")]
    Compacted {
        /// The revision asked for.
        wanted: Revision,
        /// The oldest revision still readable.
        oldest: Revision,
    },
    /// The revision lies in the future. Retryable later.
    #[error("revision {wanted} was not reached yet, the newest is {newest}")]
    Future {
        /// The revision asked for.
        wanted: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The value is larger than the store takes.
    #[error("the value of {key} has {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Full key.
        key: Arc<str>,
        /// Size in bytes.
        size: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// The transaction touches more keys than the store takes at once. Not retryable.
    #[error("a change touches {keys} keys at once, more than the store takes (etcd's --max-txn-ops, 128 by default)")]
    TooMany {
        /// How many.
        keys: usize,
    },
    /// The store was shut down.
    #[error("the store is shut down")]
    Closed,
}

impl StoreError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Commit(_) | Self::Unknown(_) | Self::Read(_) | Self::Future { .. })
    }
}

/// etcd's request limit; kept so that what is stored here can move to etcd.
pub const MAX_VALUE_BYTES: usize = 1_572_864;

/// A stream of event batches, in revision order.
///
/// It ends (`None`) when the store shuts down or when the reader fell too far behind; a reader that wants more watches
/// again from the revision after the last one it saw.
#[derive(Debug)]
pub struct WatchStream {
    receiver: mpsc::Receiver<Arc<[Event]>>,
}

impl WatchStream {
    pub(crate) fn new(receiver: mpsc::Receiver<Arc<[Event]>>) -> Self {
        Self { receiver }
    }

    /// The next batch of changes.
    pub async fn next(&mut self) -> Option<Arc<[Event]>> {
        self.receiver.recv().await
    }
}

/// The seam between the API server and what keeps its objects.
pub trait Store: Send + Sync + 'static {
    /// Whether other servers may write to it as well.
    fn shared(&self) -> bool {
        false
    }

    /// The newest durable revision.
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// The key's present value.
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<KeyValue>, StoreError>>;

    /// Keys that begin with `prefix`, after the key `after`, at `revision` (`None`: now), at most `limit` (0: all).
    fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<Revision>,
        limit: usize,
    ) -> BoxFuture<'_, Result<RangePage, StoreError>>;

    /// Applies a transaction and answers when it is durable.
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>>;

    /// Every change with a revision of `from` or later.
    fn watch(&self, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>>;

    /// Forgets what was overwritten or deleted before `revision`, which stays readable itself. Of several servers that ask within an
    /// interval one does it.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>>;
}
