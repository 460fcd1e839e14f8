//! The store on etcd v3, for several API servers: what one of them writes, the others see in the log.
//!
//! Invariants:
//! - every revision of etcd is in the log of a watch, also what other programs write: a cache that follows it reaches every revision that a
//!   read can name, without progress requests (which etcd before 3.4.25 answers too early);
//! - a batch holds whole revisions: all changes of a transaction share one revision here;
//! - a write that may have been sent and got no answer is told as [`StoreError::Unknown`], and is never repeated by this module;
//! - keys are `/registry/…` outside and `PREFIX/…` in etcd.
//!
//! Upstream counterpart: `k8s.io/apiserver/pkg/storage/etcd3`, with its keys and its turn of compaction, not with its protobuf values.

mod endpoints;
mod watch;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{
    Event, Expect, KeyValue, MAX_VALUE_BYTES, Op, RangePage, Revision, Store, StoreError, Txn, TxnOutcome, WatchStream,
};
use endpoints::{Endpoints, Failure};
use wire::{Compare, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse};

/// What keys begin with outside, and in etcd unless told otherwise; upstream's `--etcd-prefix`.
pub const DEFAULT_PREFIX: &str = "/registry";
/// Keys read at a time at first, and at least: a slow line may not bring many large ones within the time limit of a request.
const PAGE: usize = 500;
const SMALLEST_PAGE: usize = 4;
/// Whose turn it is to compact; upstream's key, so that an upstream server at the same etcd takes part.
const COMPACT_KEY: &str = "compact_rev_key";

/// Where etcd is and how to reach it; upstream's flags of the same names.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`, at least one.
    pub servers: Vec<String>,
    /// What keys begin with in etcd.
    pub prefix: String,
    /// Certificate authorities of etcd, PEM; needed for `https`.
    pub ca_file: Option<PathBuf>,
    /// This server's certificate for etcd, PEM.
    pub cert_file: Option<PathBuf>,
    /// The key of `cert_file`, PEM.
    pub key_file: Option<PathBuf>,
}

/// Store for several servers.
#[derive(Debug)]
pub struct EtcdStore {
    names: Names,
    endpoints: Arc<Endpoints>,
    /// The version of [`COMPACT_KEY`] that this server saw last; who changes exactly that one compacts.
    compact_turn: Mutex<i64>,
}

/// Names of keys on both sides.
#[derive(Debug, Clone)]
struct Names {
    prefix: Arc<str>,
}

impl Names {
    fn outer(&self, key: &str) -> Bytes {
        match key.strip_prefix(DEFAULT_PREFIX) {
            Some(rest) => format!("{}{rest}", self.prefix).into(),
            None => Bytes::copy_from_slice(key.as_bytes()),
        }
    }

    /// Empty for a key of somebody else.
    fn inner(&self, key: &[u8]) -> Arc<str> {
        let rest = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&*self.prefix));
        match rest.filter(|rest| rest.starts_with('/')) {
            Some(rest) => format!("{DEFAULT_PREFIX}{rest}").into(),
            None => "".into(),
        }
    }
}

fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn revision_of(header: Option<&wire::Header>) -> Revision {
    header.map_or(0, |header| header.revision.cast_unsigned())
}

/// The first key after all that begin with `prefix`.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut prefix = prefix.to_vec();
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return prefix.into();
        }
    }
    Bytes::from_static(wire::ALL)
}

/// The first key after `key`.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

fn read_keys(key: Bytes) -> RangeRequest {
    RangeRequest { key, keys_only: true, ..RangeRequest::default() }
}

impl EtcdStore {
    /// A store at these servers, of which none needs to answer yet.
    ///
    /// # Errors
    /// [`StoreError::Endpoint`] for an address or a certificate that cannot be used.
    pub fn open(config: &EtcdConfig) -> Result<Self, StoreError> {
        let prefix = config.prefix.trim_end_matches('/');
        if !prefix.starts_with('/') {
            let reason = "it must begin with a slash, for instance /registry".to_owned();
            return Err(StoreError::Endpoint { endpoint: format!("prefix {:?}", config.prefix), reason });
        }
        Ok(Self {
            names: Names { prefix: prefix.into() },
            endpoints: Arc::new(Endpoints::new(config)?),
            compact_turn: Mutex::new(0),
        })
    }

    async fn read(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.endpoints
            .read(|client| {
                let request = request.clone();
                async move { client.range(request).await }
            })
            .await
    }

    async fn write(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        self.endpoints
            .write(|client| {
                let request = request.clone();
                async move { client.txn(request).await }
            })
            .await
    }

    async fn newest(&self) -> Result<Revision, StoreError> {
        // No such key: the header is the answer.
        let response = self.read(read_keys(self.names.outer(DEFAULT_PREFIX))).await;
        response
            .map(|response| revision_of(response.header.as_ref()))
            .map_err(|failure| StoreError::Read(failure.to_string()))
    }

    async fn read_error(&self, failure: Failure, wanted: Option<Revision>) -> StoreError {
        let Some(wanted) = wanted else { return StoreError::Read(failure.to_string()) };
        if failure.compacted() {
            // etcd does not say what the oldest is, only that it is younger.
            return StoreError::Compacted { wanted, oldest: wanted + 1 };
        }
        if failure.future() {
            return match self.newest().await {
                Ok(newest) => StoreError::Future { wanted, newest },
                Err(error) => error,
            };
        }
        StoreError::Read(failure.to_string())
    }

    async fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<Revision>,
        limit: usize,
    ) -> Result<RangePage, StoreError> {
        let outer = self.names.outer(prefix);
        let end = prefix_end(&outer);
        let mut start = after.map_or(outer, |key| behind(&self.names.outer(key)));
        let mut page = RangePage { items: Vec::new(), revision: revision.unwrap_or(0), more: true };
        let mut most = PAGE;
        while page.more && (limit == 0 || page.items.len() < limit) {
            let count = if limit == 0 { most } else { most.min(limit - page.items.len()) };
            let request = RangeRequest {
                key: start.clone(),
                range_end: end.clone(),
                limit: i64::try_from(count).unwrap_or(i64::MAX),
                revision: signed(page.revision),
                keys_only: false,
            };
            let response = match self.read(request).await {
                Ok(response) => response,
                Err(Failure::Silent) if count > SMALLEST_PAGE => {
                    most = (count / 5).max(SMALLEST_PAGE);
                    continue;
                }
                Err(failure) => return Err(self.read_error(failure, Some(page.revision)).await),
            };
            if page.revision == 0 {
                page.revision = revision_of(response.header.as_ref());
            }
            page.more = response.more;
            page.items.extend(response.kvs.into_iter().map(|kv| self.key_value(kv)));
            let Some(last) = page.items.last() else { break };
            start = behind(&self.names.outer(&last.key));
        }
        Ok(page)
    }

    fn key_value(&self, kv: wire::KeyValue) -> KeyValue {
        let key = self.names.inner(&kv.key);
        KeyValue { key, value: kv.value, mod_revision: kv.mod_revision.cast_unsigned() }
    }

    async fn commit(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        for op in &txn.ops {
            if let Op::Put { key, value } = op
                && value.len() > MAX_VALUE_BYTES
            {
                return Err(too_large(key, value));
            }
        }
        let response = match self.write(self.request(&txn)).await {
            Ok(response) => response,
            Err(failure) if failure.too_large() => return Err(largest(&txn)),
            Err(failure) if failure.too_many() => {
                return Err(StoreError::TooMany { keys: txn.ops.len().max(txn.expect.len()) });
            }
            Err(failure) if failure.undone() => return Err(StoreError::Commit(failure.to_string())),
            Err(failure) => return Err(StoreError::Unknown(failure.to_string())),
        };
        if response.succeeded {
            let revision = revision_of(response.header.as_ref());
            return Ok(TxnOutcome::Committed { first: revision, last: revision });
        }
        for ((key, expect), found) in txn.expect.iter().zip(&response.responses) {
            let found = found.range.as_ref().and_then(|found| found.kvs.first());
            let present = found.map(|kv| kv.mod_revision.cast_unsigned());
            let holds = match expect {
                Expect::Absent => present.is_none(),
                Expect::ModRevision(wanted) => present == Some(*wanted),
            };
            if !holds {
                return Ok(TxnOutcome::Conflict { key: Arc::clone(key), mod_revision: present });
            }
        }
        Err(StoreError::Commit("etcd refused a transaction whose expectations hold".to_owned()))
    }

    fn request(&self, txn: &Txn) -> TxnRequest {
        let compare = txn.expect.iter().map(|(key, expect)| {
            let revision = match expect {
                Expect::Absent => 0,
                Expect::ModRevision(revision) => signed(*revision),
            };
            Compare { target: 2, key: self.names.outer(key), mod_revision: Some(revision), version: None }
        });
        let success = txn.ops.iter().map(|op| match op {
            Op::Put { key, value } => {
                let put = wire::PutRequest { key: self.names.outer(key), value: value.clone() };
                RequestOp { put: Some(put), ..RequestOp::default() }
            }
            Op::Delete { key } => {
                let delete = wire::DeleteRangeRequest { key: self.names.outer(key) };
                RequestOp { delete: Some(delete), ..RequestOp::default() }
            }
        });
        let failure = txn.expect.iter().map(|(key, _)| {
            let range = read_keys(self.names.outer(key));
            RequestOp { range: Some(range), ..RequestOp::default() }
        });
        TxnRequest { compare: compare.collect(), success: success.collect(), failure: failure.collect() }
    }

    /// Whether it is this server's turn to compact: of several that ask within an interval one gets it, as upstream's scheme has it.
    async fn take_turn(&self, revision: Revision) -> Result<bool, StoreError> {
        let seen = *self.compact_turn.lock();
        let key = Bytes::from_static(COMPACT_KEY.as_bytes());
        let put = wire::PutRequest { key: key.clone(), value: revision.to_string().into() };
        let range = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare { target: 0, key, version: Some(seen), mod_revision: None }],
            success: vec![RequestOp { put: Some(put), ..RequestOp::default() }],
            failure: vec![RequestOp { range: Some(range), ..RequestOp::default() }],
        };
        let response = self.write(request).await.map_err(|failure| StoreError::Commit(failure.to_string()))?;
        let found = response.responses.first().and_then(|response| response.range.as_ref());
        let version = if response.succeeded {
            seen + 1
        } else {
            found.and_then(|found| found.kvs.first()).map_or(0, |kv| kv.version)
        };
        *self.compact_turn.lock() = version;
        Ok(response.succeeded)
    }
}

fn too_large(key: &Arc<str>, value: &Bytes) -> StoreError {
    StoreError::TooLarge { key: Arc::clone(key), size: value.len(), limit: MAX_VALUE_BYTES }
}

/// etcd counts the whole request; the largest value is what its user can do something about.
fn largest(txn: &Txn) -> StoreError {
    let values = txn.ops.iter().filter_map(|op| match op {
        Op::Put { key, value } => Some((key, value)),
        Op::Delete { .. } => None,
    });
    match values.max_by_key(|(_, value)| value.len()) {
        Some((key, value)) => too_large(key, value),
        None => StoreError::Commit("the request is too large for etcd".to_owned()),
    }
}

impl Store for EtcdStore {
    fn shared(&self) -> bool {
        true
    }

    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.newest().boxed()
    }

    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<KeyValue>, StoreError>> {
        let key = self.names.outer(key);
        async move {
            let mut response = match self.read(RangeRequest { key, ..RangeRequest::default() }).await {
                Ok(response) => response,
                Err(failure) => return Err(self.read_error(failure, None).await),
            };
            Ok(response.kvs.pop().map(|kv| self.key_value(kv)))
        }
        .boxed()
    }

    fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<Revision>,
        limit: usize,
    ) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        async move { self.page(&prefix, after.as_deref(), revision, limit).await }.boxed()
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        self.commit(txn).boxed()
    }

    fn watch(&self, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        async move {
            // A watch at a compacted revision begins and ends later; a read of what was before it tells at once.
            let before = from.saturating_sub(1).max(1);
            let request = RangeRequest { revision: signed(before), ..read_keys(self.names.outer(DEFAULT_PREFIX)) };
            if let Err(failure) = self.read(request).await {
                return Err(match self.read_error(failure, Some(before)).await {
                    StoreError::Compacted { .. } => StoreError::Compacted { wanted: from, oldest: from },
                    other => other,
                });
            }
            watch::start(Arc::clone(&self.endpoints), self.names.clone(), from).await
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let newest = self.newest().await?;
            if revision > newest {
                return Err(StoreError::Future { wanted: revision, newest });
            }
            if !self.take_turn(revision).await? {
                return Ok(());
            }
            let request = || wire::CompactionRequest { revision: signed(revision) };
            let done = self.endpoints.read(|client| async move { client.compact(request()).await }).await;
            match done {
                Err(failure) if !failure.compacted() => Err(StoreError::Commit(failure.to_string())),
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_moved_below_the_prefix_and_back() {
        let names = Names { prefix: "/clusters/a".into() };
        assert_eq!(&*names.outer("/registry/pods/d/x"), b"/clusters/a/pods/d/x");
        assert_eq!(&*names.inner(b"/clusters/a/pods/d/x"), "/registry/pods/d/x");
        for foreign in ["/registry/pods/d/x", "/clusters/ab/pods/d/x", "compact_rev_key", "/clusters/a"] {
            assert_eq!(&*names.inner(foreign.as_bytes()), "", "{foreign}");
        }
        assert_eq!(&*names.inner(b"\xff"), "");
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        assert_eq!(&*prefix_end(b"/registry/pods/"), b"/registry/pods0");
        assert_eq!(&*prefix_end(&[1, 255]), [2]);
        assert_eq!(&*prefix_end(&[255]), [0]);
    }
}
