//! The API server's parts, and the few operations on stored objects that all handlers share.
//!
//! A change is read from the cache, computed, and written with a compare-and-swap on the revision it was read at; a conflict waits for the
//! cache to catch up and computes again. Upstream counterpart: `GuaranteedUpdate` of `apiserver/pkg/storage`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ipnet::IpNet;
use keelson_kinds::deletion::Deletion;
use keelson_kinds::{ApiError, Reason, Resource, write};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::auth::rbac::Rbac;
use crate::auth::tokens::StaticTokens;
use crate::cache::{self, Hub, WatchCache};
use crate::http::limits::InFlight;
use crate::http::metrics::Metrics;
use crate::kubelet::KubeletClient;
use crate::pki::token::TokenKeys;
use crate::services::{self, Allocator};
use crate::store::{Expect, Op, Revision, Shared, Store, StoreError, Txn, TxnOutcome};

/// How long a handler waits for the caches to show its own write.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Conflicts in a row after which a change is given up.
pub(crate) const MAX_CONFLICTS: usize = 64;

/// What the server needs to know about its cluster.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address other machines reach this server at.
    pub advertise_address: IpAddr,
    /// Port it serves at.
    pub secure_port: u16,
    /// Range of service addresses.
    pub service_cidr: IpNet,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// DNS domain.
    pub cluster_domain: String,
    /// How long Events stay that nobody writes.
    pub event_ttl: Duration,
    /// Tokens of a file.
    pub static_tokens: StaticTokens,
    /// Records requests.
    pub audit: Option<Arc<Audit>>,
    /// Whether Services may name external addresses; upstream's DenyServiceExternalIPs when not.
    pub allow_external_ips: bool,
    /// What pods tolerate that do not say.
    pub toleration_seconds: TolerationSeconds,
}

/// How long pods that do not say otherwise stay on a node in trouble; upstream's `--default-not-ready-toleration-seconds` and
/// `--default-unreachable-toleration-seconds`.
#[derive(Clone, Copy, Debug)]
pub struct TolerationSeconds {
    /// The node is not ready.
    pub not_ready: u32,
    /// The node is silent.
    pub unreachable: u32,
}

impl Default for TolerationSeconds {
    fn default() -> Self {
        // Upstream's.
        Self { not_ready: 300, unreachable: 300 }
    }
}

/// Everything a request may need.
pub struct Server {
    /// Configuration.
    pub config: Config,
    /// The store.
    pub store: Arc<dyn Store>,
    /// The question for the newest revision, where other servers write too.
    pub newest: Shared<Result<Revision, ApiError>>,
    /// The caches.
    pub hub: Arc<Hub>,
    /// Service account tokens.
    pub tokens: TokenKeys,
    /// RBAC.
    pub rbac: Rbac,
    /// Service addresses and node ports.
    pub allocator: Allocator,
    /// The other servers over the same store.
    pub others: crate::bootstrap::servers::Others,
    /// In-flight limits.
    pub in_flight: InFlight,
    /// Health and metrics.
    pub metrics: Metrics,
    /// All kinds, custom ones included.
    pub registry: keelson_kinds::custom::Registry,
    /// Admission webhooks.
    pub webhooks: crate::admission::webhooks::Configurations,
    /// Admission policies.
    pub policies: crate::admission::policies::Policies,
    /// Quotas: whose turn it is, and what is to be counted anew.
    pub quotas: crate::quota::Quotas,
    /// Client for agents, absent in tests without a PKI.
    pub kubelet: Option<KubeletClient>,
    /// Ends long-running requests.
    pub shutdown: CancellationToken,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What a change does to an object.
#[derive(Debug)]
pub enum Change {
    /// Store this instead.
    Put(Value),
    /// Remove it; this is its last state.
    Remove(Value),
    /// Leave it as it is.
    Keep,
}

impl From<Deletion> for Change {
    fn from(deletion: Deletion) -> Self {
        match deletion {
            Deletion::Remove(value) => Self::Remove(value),
            Deletion::Update(value) => Self::Put(value),
            Deletion::Pending => Self::Keep,
        }
    }
}

/// How a change ended.
#[derive(Debug)]
pub struct Changed {
    /// The object as it is now, or was last; encoded, with its resourceVersion.
    pub json: Bytes,
    /// Whether it is gone.
    pub removed: bool,
}

/// Another object that changes together with the one that a request is about, or neither does.
#[derive(Debug, Clone)]
pub struct Also {
    /// Its storage key.
    pub key: Arc<str>,
    /// The revision it was read at; no other may be overwritten.
    pub read_at: Revision,
    /// What is to be stored; `None` when it only has to stay as it was read.
    pub object: Option<Value>,
}

/// How an insert ended.
#[derive(Debug)]
pub enum Inserted {
    /// The object as clients see it.
    Done(Bytes),
    /// The name is taken.
    Taken,
    /// What should have changed with it had changed meanwhile; the caches show how.
    Stale,
}

/// Adds changes behind the one of the object. Who sees the last of them in a cache finds the object in its cache too.
fn take_along(txn: &mut Txn, also: Vec<Also>) {
    for Also { key, read_at, object } in also {
        txn.expect.push((Arc::clone(&key), Expect::ModRevision(read_at)));
        if let Some(object) = object {
            txn.ops.push(Op::Put { key, value: cache::encode(&object) });
        }
    }
}

/// A store failure as clients see it.
#[must_use]
pub fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::TooLarge { size, limit, .. } => ApiError::new(
            Reason::RequestEntityTooLarge,
            format!("the object has {size} bytes when stored, the limit is {limit}"),
        ),
        error @ StoreError::TooMany { .. } => ApiError::new(Reason::RequestEntityTooLarge, error.to_string()),
        StoreError::Compacted { .. } => ApiError::new(
            Reason::Expired,
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        ),
        StoreError::Future { wanted, newest } => too_large_version(wanted, newest),
        StoreError::Closed => ApiError::new(Reason::ServiceUnavailable, "the server is shutting down"),
        error => {
            tracing::error!(%error, "the store failed");
            ApiError::internal(error)
        }
    }
}

/// 504 for a resourceVersion of the future, with the cause that client-go looks for.
#[must_use]
pub fn too_large_version(wanted: Revision, newest: Revision) -> ApiError {
    let mut error = ApiError::timeout(format!("Too large resource version: {wanted}, current: {newest}"), 1);
    error.causes.push(keelson_kinds::Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    });
    error
}

/// What is stored of an object; only a view's differs from what its clients see.
fn stored_form(res: &Resource, object: Value) -> Value {
    if res.storage_version { object } else { write::to_storage(res, object) }
}

/// What clients of `res` see of an encoded stored object.
fn shown_form(res: &Resource, json: Bytes, revision: Revision) -> Bytes {
    if res.storage_version {
        return json;
    }
    let mut value: Value = serde_json::from_slice(&json).unwrap_or_default();
    write::from_storage(res, &mut value, revision);
    value.to_string().into()
}

impl Server {
    /// The cache of a stored kind.
    ///
    /// # Errors
    /// 404 for kinds that are not stored.
    pub fn cache(&self, res: &Resource) -> Result<Arc<WatchCache>, ApiError> {
        self.hub.cache(res).ok_or_else(ApiError::no_such_resource)
    }

    /// One object, parsed.
    #[must_use]
    pub fn get(&self, res: &Resource, namespace: &str, name: &str) -> Option<Value> {
        self.hub.cache(res)?.get(&res.key(namespace, name)).map(|object| object.value_as(res))
    }

    async fn catch_up(&self, revision: Revision) -> Result<(), ApiError> {
        if self.hub.wait_for(revision, CATCH_UP).await {
            Ok(())
        } else {
            Err(ApiError::timeout(format!("the caches did not reach revision {revision}"), 1))
        }
    }

    /// Stores a new object, and with it what has to change at the same time.
    ///
    /// # Errors
    /// What the store says.
    pub async fn insert(
        &self,
        res: &Resource,
        namespace: &str,
        name: &str,
        object: &Value,
        also: Vec<Also>,
    ) -> Result<Inserted, ApiError> {
        let key: Arc<str> = res.key(namespace, name).into();
        let value = cache::encode(&stored_form(res, object.clone()));
        let mut txn = Txn {
            expect: vec![(Arc::clone(&key), Expect::Absent)],
            ops: vec![Op::Put { key: Arc::clone(&key), value: value.clone() }],
        };
        take_along(&mut txn, also);
        if services::is_service(res) {
            services::claim(&mut txn, &services::owner(namespace, name), None, Some(object));
        }
        match self.store.txn(txn).await.map_err(store_error)? {
            TxnOutcome::Committed { first: revision, last } => {
                self.catch_up(last).await?;
                Ok(Inserted::Done(shown_form(res, cache::with_revision(&value, revision), revision)))
            }
            TxnOutcome::Conflict { key: other, mod_revision } => {
                self.see(mod_revision).await?;
                if other == key {
                    return Ok(Inserted::Taken);
                }
                self.learn_claim(&other).await?;
                Ok(Inserted::Stale)
            }
        }
    }

    /// Notes whose an address or port is that another server has given away; nothing for any other key.
    async fn learn_claim(&self, key: &str) -> Result<(), ApiError> {
        let Some(claim) = services::Claim::from_key(key) else { return Ok(()) };
        let stored = self.store.get(key).await.map_err(store_error)?;
        self.allocator.note(claim, stored.and_then(|stored| serde_json::from_slice(&stored.value).ok()));
        Ok(())
    }

    /// Waits until the caches show all that was acknowledged before, by other servers too.
    ///
    /// # Errors
    /// What the store says; 504 when the caches do not get there.
    pub async fn fresh(&self) -> Result<(), ApiError> {
        let newest = self.newest.ask(async { self.store.revision().await.map_err(store_error) }).await?;
        self.catch_up(newest).await
    }

    /// Waits until the caches show who was faster.
    async fn see(&self, mod_revision: Option<Revision>) -> Result<(), ApiError> {
        let newest = match mod_revision {
            Some(revision) => revision,
            None => self.store.revision().await.map_err(store_error)?,
        };
        self.catch_up(newest).await
    }

    /// Changes a stored object; `change` runs again on the newer object after a conflict.
    ///
    /// # Errors
    /// 404 when it does not exist, what `change` answers, 409 after too many conflicts, what the store says.
    pub async fn change(
        &self,
        res: &Resource,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&Value) -> Result<Change, ApiError> + Send,
    ) -> Result<Changed, ApiError> {
        let mut attempts = self.attempts(res, namespace, name);
        loop {
            let current = attempts.current()?;
            let next = change(&current)?;
            if let Some(changed) = attempts.commit(next, Vec::new()).await? {
                return Ok(changed);
            }
        }
    }

    /// The steps of a change for who has to wait between them: read, compute, commit, and again after a conflict.
    #[must_use]
    pub fn attempts<'a>(&'a self, res: &'a Resource, namespace: &str, name: &'a str) -> Attempts<'a> {
        Attempts { server: self, res, name, key: res.key(namespace, name).into(), read: None, left: MAX_CONFLICTS }
    }
}

/// A change of a stored object, attempt by attempt: [`Attempts::current`], then [`Attempts::commit`], until that gives a result.
#[derive(Debug)]
pub struct Attempts<'a> {
    server: &'a Server,
    res: &'a Resource,
    name: &'a str,
    key: Arc<str>,
    read: Option<Arc<cache::Object>>,
    left: usize,
}

impl Attempts<'_> {
    /// The object as it is now.
    ///
    /// # Errors
    /// 404 when it does not exist, 409 after too many conflicts.
    pub fn current(&mut self) -> Result<Value, ApiError> {
        self.left = self.left.checked_sub(1).ok_or_else(|| ApiError::modified(self.res, self.name))?;
        let object = self.server.cache(self.res)?.get(&self.key);
        let object = object.ok_or_else(|| ApiError::not_found(self.res, self.name))?;
        let value = object.value_as(self.res);
        self.read = Some(object);
        Ok(value)
    }

    /// Commits what was made of the object that [`Attempts::current`] gave, and with it what has to change at the same time; `None` when
    /// something of it had changed meanwhile, the caches then show how.
    ///
    /// # Errors
    /// What the store says.
    pub async fn commit(&mut self, change: Change, also: Vec<Also>) -> Result<Option<Changed>, ApiError> {
        let object = self.read.take().ok_or_else(|| ApiError::internal("nothing was read before this commit"))?;
        let key = Arc::clone(&self.key);
        let kept = || Ok(Some(Changed { json: object.json_as(self.res), removed: false }));
        let (op, value, new) = match change {
            Change::Keep => return kept(),
            Change::Put(new) => {
                let new = stored_form(self.res, new);
                let value = cache::encode(&new);
                if value == cache::encode(&object.value()) {
                    return kept();
                }
                (Op::Put { key, value: value.clone() }, value, Some(new))
            }
            Change::Remove(last) => (Op::Delete { key }, cache::encode(&stored_form(self.res, last)), None),
        };
        let removed = matches!(op, Op::Delete { .. });
        let expect = vec![(Arc::clone(&self.key), Expect::ModRevision(object.revision))];
        let mut txn = Txn { expect, ops: vec![op] };
        take_along(&mut txn, also);
        if services::is_service(self.res) {
            services::claim(
                &mut txn,
                &services::owner(&object.namespace, self.name),
                Some(&object.value()),
                new.as_ref(),
            );
        }
        match self.server.store.txn(txn).await.map_err(store_error)? {
            TxnOutcome::Committed { first: revision, last } => {
                self.server.catch_up(last).await?;
                let json = shown_form(self.res, cache::with_revision(&value, revision), revision);
                Ok(Some(Changed { json, removed }))
            }
            TxnOutcome::Conflict { key, mod_revision } => {
                self.server.see(mod_revision).await?;
                self.server.learn_claim(&key).await?;
                Ok(None)
            }
        }
    }
}
