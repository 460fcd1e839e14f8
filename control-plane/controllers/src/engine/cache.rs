//! One kind's cache: one watch in, many readers and change handlers out.
//!
//! Invariants: handlers see the changes of one kind in order, one at a time; they must only note keys (no I/O, no
//! writes through the same cache). A failed watch is started again with backoff, from where it stopped.
//!
//! Upstream counterpart: client-go's shared informer. The watch itself is kube-runtime's `watcher`.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use kube_common::backoff::WatchBackoff;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::index::{Change, Index};

/// What a cache can hold.
pub trait Cached: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Cached for K {}

/// Namespace (empty for cluster-scoped kinds) and name: the key of most queues.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl Key {
    /// A key from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object.
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}", self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// A shared, self-updating view of one kind.
pub struct Cache<K> {
    index: RwLock<Index<K>>,
    /// Held while a change is made and told, so that handlers see changes in order.
    order: Mutex<()>,
    handlers: RwLock<Vec<Handler<K>>>,
    strip: fn(&mut K),
    wanted: AtomicBool,
    synced: watch::Sender<bool>,
}

impl<K: Cached> Cache<K> {
    /// An empty cache; `strip` drops from each object what nobody here reads.
    pub fn new(strip: fn(&mut K)) -> Arc<Self> {
        Arc::new(Self {
            index: RwLock::new(Index::default()),
            order: Mutex::new(()),
            handlers: RwLock::new(Vec::new()),
            strip,
            wanted: AtomicBool::new(false),
            synced: watch::Sender::new(false),
        })
    }

    /// Calls `handler` for each change from now on. Register before the cache is started.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.want();
        self.handlers.write().push(Box::new(handler));
    }

    /// Marks the kind as used, so that it is watched.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Whether anyone uses this kind.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The object, if it is known.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.index.read().get(namespace, name).cloned()
    }

    /// The object with this key, if it is known.
    pub fn by_key(&self, key: &Key) -> Option<Arc<K>> {
        self.get(&key.namespace, &key.name)
    }

    /// The objects of one namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.index.read().in_namespace(namespace).cloned().collect()
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.index.read().iter().cloned().collect()
    }

    /// Takes in the server's answer to a write.
    pub fn written(&self, mut object: K) {
        (self.strip)(&mut object);
        self.change(|index| index.written(object));
    }

    /// Takes in that the server deleted the object for good.
    pub fn removed(&self, key: &Key, uid: &str) {
        self.change(|index| index.removed(&key.namespace, &key.name, uid));
    }

    /// Waits until the first list is in.
    pub async fn wait_synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives in self: the wait cannot fail.
        let _ = synced.wait_for(|done| *done).await;
    }

    fn change(&self, make: impl FnOnce(&mut Index<K>) -> Vec<Change<K>>) {
        let _order = self.order.lock();
        let changes = make(&mut self.index.write());
        if changes.is_empty() {
            return;
        }
        let handlers = self.handlers.read();
        for change in &changes {
            for handler in handlers.iter() {
                handler(change);
            }
        }
    }

    fn take_event(&self, event: watcher::Event<K>, list: &mut Vec<K>) {
        match event {
            watcher::Event::Init => {
                list.clear();
                self.index.write().begin_list();
            }
            watcher::Event::InitApply(mut object) => {
                (self.strip)(&mut object);
                list.push(object);
            }
            watcher::Event::InitDone => {
                let objects = std::mem::take(list);
                self.change(|index| index.replace(objects));
                self.synced.send_replace(true);
            }
            watcher::Event::Apply(mut object) => {
                (self.strip)(&mut object);
                self.change(|index| index.apply(object));
            }
            watcher::Event::Delete(object) => self.change(|index| index.delete(&object)),
        }
    }

    /// Watches until cancelled.
    pub async fn run(self: Arc<Self>, api: Api<K>, config: watcher::Config, shutdown: CancellationToken) {
        let kind = K::kind(&());
        let mut stream = std::pin::pin!(watcher(api, config).backoff(WatchBackoff::default()));
        let mut list = Vec::new();
        loop {
            let next = tokio::select! {
                () = shutdown.cancelled() => return,
                next = stream.next() => next,
            };
            match next {
                Some(Ok(event)) => self.take_event(event, &mut list),
                Some(Err(error)) if is_expired(&error) => debug!(%kind, %error, "watch expired, listing again"),
                Some(Err(error)) => warn!(%kind, %error, "watch failed, starting it again"),
                None => return,
            }
        }
    }
}

/// The watch asked for history that the server has dropped: routine, a new list follows.
fn is_expired(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(status) => status.code == 410,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}
