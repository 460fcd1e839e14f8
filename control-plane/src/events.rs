//! Events do not stay: one that nobody has written for its time to live goes.
//!
//! Upstream counterpart: `--event-ttl`, there by leases of etcd that each write renews. Here all servers look from time to time; who is
//! second finds an Event gone, or written anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use keelson_kinds::lookup;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::cache::Object;
use crate::server::Server;
use crate::store::{Expect, Op, Revision, Txn, TxnOutcome};

/// Upstream's default.
pub const DEFAULT_TTL: Duration = Duration::from_secs(3600);
/// All are looked at this often, or ten times within a short time to live.
const LOOK: Duration = Duration::from_secs(60);
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
/// Deletes under way at once: the store commits them together.
const AT_ONCE: usize = 16;

/// Removes old Events until the server stops.
pub async fn expire(server: Arc<Server>, shutdown: CancellationToken) {
    let Some(cache) = lookup("", "v1", "events").and_then(|res| server.hub.cache(res)) else { return };
    let ttl = server.config.event_ttl;
    let mut ticks = tokio::time::interval((ttl / 10).clamp(SHORTEST_LOOK, LOOK));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut written = HashMap::new();
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let objects = cache.objects(None);
        let before = SignedDuration::try_from(ttl).ok().and_then(|ttl| Timestamp::now().checked_sub(ttl).ok());
        let old = before.map(|before| old(&objects, &mut written, before)).unwrap_or_default();
        let removed = futures::stream::iter(old).map(|event| remove(&server, event)).buffer_unordered(AT_ONCE);
        let count = removed.filter(|removed| std::future::ready(*removed)).count().await;
        if count > 0 {
            tracing::debug!(count, "events have expired");
        }
    }
}

/// Those that were last written before a time. What is known of the others is kept, so that each write of one is parsed once.
fn old(
    objects: &[Arc<Object>],
    written: &mut HashMap<Arc<str>, (Revision, Timestamp)>,
    before: Timestamp,
) -> Vec<Arc<Object>> {
    let mut known = HashMap::with_capacity(objects.len());
    let mut old = Vec::new();
    for object in objects {
        let at = match written.get(&object.key) {
            Some((revision, at)) if *revision == object.revision => *at,
            // One that tells no time is as old as our acquaintance.
            _ => last_written(&object.value()).unwrap_or_else(Timestamp::now),
        };
        if at < before {
            old.push(Arc::clone(object));
        }
        known.insert(Arc::clone(&object.key), (object.revision, at));
    }
    *written = known;
    old
}

/// When an object was written last: the server notes that for each of its managers.
fn last_written(object: &Value) -> Option<Timestamp> {
    let metadata = &object["metadata"];
    let managers = metadata["managedFields"].as_array().into_iter().flatten().map(|entry| &entry["time"]);
    let times = managers.chain([&metadata["creationTimestamp"]]).filter_map(|time| time.as_str()?.parse().ok());
    times.max()
}

/// Whether it was as it was seen, and is gone.
async fn remove(server: &Server, event: Arc<Object>) -> bool {
    let expect = vec![(Arc::clone(&event.key), Expect::ModRevision(event.revision))];
    let txn = Txn { expect, ops: vec![Op::Delete { key: Arc::clone(&event.key) }] };
    match server.store.txn(txn).await {
        Ok(outcome) => matches!(outcome, TxnOutcome::Committed { .. }),
        Err(error) => {
            tracing::warn!(%error, "an old event stays for now");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_manager_tells_when() {
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let made = json!({"metadata": {"creationTimestamp": "2026-12-01T00:00:00Z"}});
        assert_eq!(last_written(&made), time("2026-12-01T00:00:00Z"));
        let managers = json!([{"time": "2026-12-01T00:00:05Z"}, {"time": "2026-12-01T00:00:03Z"}, {}]);
        let changed = json!({"metadata": {"creationTimestamp": "2026-12-01T00:00:00Z", "managedFields": managers}});
        assert_eq!(last_written(&changed), time("2026-12-01T00:00:05Z"));
        assert_eq!(last_written(&json!({})), None);
    }
}
