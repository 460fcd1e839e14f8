//! Watch caches: every read and every watch is served from memory, fed by the store's one ordered log.
//!
//! Invariants:
//! - [`Hub`] applies the log in order, so a cache that shows revision R shows every change of its kind up to R;
//! - a handler that wrote revision R waits for [`Hub::wait_for`] before it answers: a client reads what it wrote;
//! - an event is encoded once per representation and the bytes are shared by all watchers;
//! - a watcher that does not read is dropped, its queue is bounded; the client lists or watches again.
//!
//! Upstream counterpart: `k8s.io/apiserver/pkg/storage/cacher`.

mod derived;
mod filter;
mod object;
#[cfg(test)]
mod tests;
mod watch_cache;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keelson_kinds::Resource;
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::store::{Event, Revision, Store, StoreError};

pub use derived::Derived;
pub use filter::Filter;
pub use object::{DecodeError, Object, encode, with_revision};
pub use watch_cache::{CacheEvent, Snapshot, WatchCache, WatchError, Watcher};
pub(crate) use watch_cache::{error_line, line};

/// What happened to an object, from a watcher's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It is new, or new to the watcher's selector.
    Added,
    /// It changed.
    Modified,
    /// It is gone, or left the watcher's selector.
    Deleted,
}

impl EventKind {
    /// As in a watch event's `type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    /// The encoded watch event up to its object.
    pub(crate) const fn line_start(self) -> &'static [u8] {
        match self {
            Self::Added => b"{\"type\":\"ADDED\",\"object\":",
            Self::Modified => b"{\"type\":\"MODIFIED\",\"object\":",
            Self::Deleted => b"{\"type\":\"DELETED\",\"object\":",
        }
    }
}

type Caches = BTreeMap<&'static str, Arc<WatchCache>>;

/// All caches and the task that feeds them.
pub struct Hub {
    /// Replaced as a whole when a kind comes or goes, so that readers hold no lock.
    caches: RwLock<Arc<Caches>>,
    /// Held while a batch of the log is applied, and while a cache is loaded: no event falls between the two.
    feeding: Mutex<()>,
    store: Arc<dyn Store>,
    /// The newest revision every cache has applied.
    applied: Arc<AtomicU64>,
    progress: watch::Sender<Revision>,
    listener: OnceLock<Listener>,
}

/// Hears of each namespace in which something changed, once the caches show it.
type Listener = Box<dyn Fn(&str) + Send + Sync>;

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("caches", &self.caches().len())
            .field("applied", &self.applied)
            .finish_non_exhaustive()
    }
}

/// The pause before the log is watched again after a failure, doubled up to [`REWATCH_DELAY_MAX`] while it goes on.
const REWATCH_DELAY: Duration = Duration::from_millis(100);
const REWATCH_DELAY_MAX: Duration = Duration::from_secs(2);

impl Hub {
    /// Loads every stored kind and starts to follow the log.
    ///
    /// # Errors
    /// [`StoreError`] when the first load fails.
    pub async fn start(
        store: Arc<dyn Store>,
        resources: &'static [&'static Resource],
        shutdown: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let revision = store.revision().await?;
        let applied = Arc::new(AtomicU64::new(revision));
        let mut caches = BTreeMap::new();
        for resource in resources.iter().copied().filter(|r| r.stored() && r.storage_version) {
            let page = store.range(resource.storage_prefix, None, Some(revision), 0).await?;
            let cache = WatchCache::new(resource, Arc::clone(&applied), revision, &page.items);
            caches.insert(resource.storage_prefix, Arc::new(cache));
        }
        let (progress, _) = watch::channel(revision);
        let hub = Arc::new(Self {
            caches: RwLock::new(Arc::new(caches)),
            feeding: Mutex::default(),
            store,
            applied,
            progress,
            listener: OnceLock::new(),
        });
        let task = Arc::clone(&hub);
        tokio::spawn(async move {
            tokio::select! {
                () = task.follow(revision) => {}
                () = shutdown.cancelled() => {}
            }
            for cache in task.caches().values() {
                cache.close_watchers();
            }
        });
        Ok(hub)
    }

    /// The cache of a kind; views share the cache of the stored kind.
    #[must_use]
    pub fn cache(&self, resource: &Resource) -> Option<Arc<WatchCache>> {
        self.caches().get(resource.storage_prefix).cloned()
    }

    /// Every cache, by storage prefix.
    #[must_use]
    pub fn caches(&self) -> Arc<Caches> {
        Arc::clone(&self.caches.read())
    }

    /// Loads a kind that was not there at the start, or loads it anew as another entry of the table shows it: what watched it before
    /// has to begin again.
    ///
    /// # Errors
    /// [`StoreError`] when the load fails; the kind is as it was then.
    pub async fn add(&self, resource: &'static Resource) -> Result<(), StoreError> {
        let _nothing_moves = self.feeding.lock().await;
        let revision = self.revision();
        let page = self.store.range(resource.storage_prefix, None, Some(revision), 0).await?;
        let cache = WatchCache::new(resource, Arc::clone(&self.applied), revision, &page.items);
        self.replace(|caches| caches.insert(resource.storage_prefix, Arc::new(cache)));
        Ok(())
    }

    /// Forgets the kind with this storage prefix; what watches it ends.
    pub async fn remove(&self, storage_prefix: &str) {
        let _nothing_moves = self.feeding.lock().await;
        self.replace(|caches| caches.remove(storage_prefix));
    }

    /// Tells of each new revision that the caches show.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<Revision> {
        self.progress.subscribe()
    }

    fn replace(&self, change: impl FnOnce(&mut Caches) -> Option<Arc<WatchCache>>) {
        let mut caches = Caches::clone(&self.caches());
        let before = change(&mut caches);
        *self.caches.write() = Arc::new(caches);
        if let Some(before) = before {
            before.close_watchers();
        }
    }

    /// The newest revision all caches show.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.applied.load(Ordering::Acquire)
    }

    /// Waits until every cache shows `revision`; false when that took longer than `limit`.
    pub async fn wait_for(&self, revision: Revision, limit: Duration) -> bool {
        if self.revision() >= revision {
            return true;
        }
        let mut progress = self.progress.subscribe();
        let reached = progress.wait_for(|applied| *applied >= revision);
        matches!(tokio::time::timeout(limit, reached).await, Ok(Ok(_)))
    }

    /// Calls `listener` with each namespace in which something changed, after the caches show it. One listener only: a second is ignored.
    pub fn on_change(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    async fn follow(&self, loaded: Revision) {
        let mut next = loaded + 1;
        let mut pause = REWATCH_DELAY;
        loop {
            let failed = match self.store.watch(next).await {
                Ok(mut stream) => {
                    while let Some(batch) = stream.next().await {
                        let _nothing_is_loaded = self.feeding.lock().await;
                        if let Some(last) = self.apply(&batch, next) {
                            next = last + 1;
                            pause = REWATCH_DELAY;
                        }
                    }
                    None
                }
                Err(StoreError::Closed) => return,
                // Away for longer than the log is kept: what happened between is not known any more.
                Err(StoreError::Compacted { .. }) => match self.reload().await {
                    Ok(revision) => {
                        tracing::warn!(
                            missed_from = next,
                            revision,
                            "the log was compacted; the caches were loaded anew"
                        );
                        next = revision + 1;
                        continue;
                    }
                    Err(error) => Some(error),
                },
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                tracing::error!(%error, revision = next - 1, "cannot follow the store's log; reads show this revision");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REWATCH_DELAY_MAX);
        }
    }

    /// Loads every cache anew at one revision, which is then applied; watchers have to begin again.
    async fn reload(&self) -> Result<Revision, StoreError> {
        let _nothing_moves = self.feeding.lock().await;
        let revision = self.store.revision().await?;
        let caches = self.caches();
        let mut loaded = Vec::with_capacity(caches.len());
        for (prefix, cache) in &*caches {
            loaded.push((cache, self.store.range(prefix, None, Some(revision), 0).await?));
        }
        for (cache, page) in loaded {
            cache.reload(revision, &page.items);
        }
        self.applied.store(revision, Ordering::Release);
        self.progress.send_replace(revision);
        if let Some(listener) = self.listener.get() {
            let namespaces: BTreeSet<String> = caches.values().flat_map(|cache| cache.namespaces()).collect();
            namespaces.iter().for_each(|namespace| listener(namespace));
        }
        Ok(revision)
    }

    fn apply(&self, batch: &[Event], next: Revision) -> Option<Revision> {
        let caches = self.caches();
        let mut per_cache: HashMap<&'static str, Vec<&Event>> = HashMap::new();
        for event in batch.iter().filter(|e| e.revision >= next) {
            if let Some(prefix) = prefix_of(&caches, &event.key) {
                per_cache.entry(prefix).or_default().push(event);
            }
        }
        for (prefix, events) in &per_cache {
            caches[prefix].apply(events);
        }
        let last = batch.last()?.revision;
        self.applied.store(last, Ordering::Release);
        self.progress.send_replace(last);
        if let Some(listener) = self.listener.get() {
            for (prefix, events) in per_cache.iter().filter(|(prefix, _)| caches[*prefix].resource().namespaced()) {
                let namespaces: BTreeSet<&str> =
                    events.iter().filter_map(|event| event.key.strip_prefix(prefix)?.split('/').next()).collect();
                namespaces.into_iter().for_each(listener);
            }
        }
        Some(last)
    }
}

fn prefix_of(caches: &Caches, key: &str) -> Option<&'static str> {
    let (prefix, _) = caches.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
    key.starts_with(prefix).then_some(*prefix)
}
