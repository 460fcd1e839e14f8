//! What quotas hold, counted anew: when something was deleted or shrank, when a quota is new, and every few minutes.
//!
//! It lives with the API server because only there all kinds are seen at one revision: a count belongs to the revision of the quota it is
//! written over, and a charge that comes in between makes the write fail and the count begin again. So a count is never wrong, not even
//! for a moment. Upstream counterpart: `pkg/controller/resourcequota`, which corrects itself in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use keelson_admission::quota::{Listing, concerns, recompute};
use keelson_kinds::{ApiError, Resource};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use crate::admission::quota;
use crate::server::{Change, Server};

/// Changes of a moment are counted together.
const GATHER: Duration = Duration::from_millis(20);
/// Everything is counted anew this often (upstream's `--resource-quota-sync-period`).
const RESYNC: Duration = Duration::from_secs(300);
/// Counting takes at most this share of the time: a pause of so many times as long as it took.
const PAUSE_FACTOR: u32 = 10;
/// Caches show a revision that was read from one of them after this at the latest.
const CATCH_UP: Duration = Duration::from_secs(10);

/// Whose turn it is, and which namespaces are to be counted.
#[derive(Debug, Default)]
pub struct Quotas {
    turns: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
    touched: Mutex<BTreeSet<String>>,
    news: Notify,
}

impl Quotas {
    /// Waits for the turn of a request in a namespace.
    pub(crate) async fn turn(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            match turns.get(namespace).and_then(Weak::upgrade) {
                Some(turn) => turn,
                None => {
                    let turn = Arc::new(tokio::sync::Mutex::new(()));
                    turns.insert(namespace.to_owned(), Arc::downgrade(&turn));
                    turn
                }
            }
        };
        turn.lock_owned().await
    }

    /// Something in a namespace changed.
    fn touch(&self, namespace: &str) {
        if self.touched.lock().insert(namespace.to_owned()) {
            self.news.notify_one();
        }
    }
}

/// Keeps the quotas right until the server stops.
pub async fn keep(server: Arc<Server>, shutdown: CancellationToken) {
    let touching = Arc::clone(&server);
    server.hub.on_change(move |namespace| touching.quotas.touch(namespace));
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = count_for_ever(&server) => {}
    }
}

async fn count_for_ever(server: &Arc<Server>) {
    let mut all_at = Instant::now();
    let mut pause = GATHER;
    loop {
        let namespaces = if Instant::now() >= all_at {
            all_at = Instant::now() + RESYNC;
            limited(server)
        } else {
            let touched = std::mem::take(&mut *server.quotas.touched.lock());
            let limited = limited(server);
            touched.intersection(&limited).cloned().collect()
        };
        let begun = Instant::now();
        for namespace in namespaces {
            count(server, &namespace).await;
        }
        pause = (begun.elapsed() * PAUSE_FACTOR).max(GATHER).min(pause * 2 + GATHER);
        tokio::time::sleep(pause).await;
        tokio::select! {
            () = server.quotas.news.notified() => {}
            () = tokio::time::sleep_until(all_at.into()) => {}
        }
    }
}

/// The namespaces with quotas.
fn limited(server: &Server) -> BTreeSet<String> {
    let cache = quota::resource().and_then(|res| server.hub.cache(res));
    let Some(cache) = cache.filter(|cache| !cache.is_empty()) else { return BTreeSet::new() };
    cache.objects(None).iter().map(|object| object.namespace.to_string()).collect()
}

async fn count(server: &Server, namespace: &str) {
    let Some(res) = quota::resource() else { return };
    for object in quota::of(server, namespace) {
        if let Err(error) = count_one(server, res, namespace, &object.name).await {
            tracing::warn!(quota = %object.name, %namespace, %error, "a quota could not be counted, its old numbers stay");
        }
    }
}

async fn count_one(server: &Server, res: &Resource, namespace: &str, name: &str) -> Result<(), ApiError> {
    let mut attempts = server.attempts(res, namespace, name);
    loop {
        let Some(quota) = attempts.current().ok().filter(|quota| quota["metadata"]["deletionTimestamp"].is_null())
        else {
            return Ok(());
        };
        let read_at = quota["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        // What was charged with this revision of the quota is in the caches then.
        if !server.hub.wait_for(read_at, CATCH_UP).await {
            return Err(ApiError::timeout("the caches are behind", 1));
        }
        let Some(status) = counted(server, namespace, &quota) else { return Ok(()) };
        let mut new = quota;
        new["status"] = status;
        if attempts.commit(Change::Put(new), Vec::new()).await?.is_some() {
            return Ok(());
        }
    }
}

/// The status that a quota should have, if it has another.
fn counted(server: &Server, namespace: &str, quota: &Value) -> Option<Value> {
    let caches = server.hub.caches();
    let kinds: Vec<(&Resource, Vec<Value>)> = caches
        .values()
        .filter(|cache| {
            cache.resource().namespaced() && concerns(quota, cache.resource().group, cache.resource().plural)
        })
        .map(|cache| (cache.resource(), cache.values(Some(namespace))))
        .collect();
    let listings: Vec<Listing<'_>> =
        kinds.iter().map(|(res, objects)| Listing { group: res.group, resource: res.plural, objects }).collect();
    recompute(quota, &listings, jiff::Timestamp::now().as_second())
}
