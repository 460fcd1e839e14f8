//! The hub over a log that breaks off, is compacted meanwhile, or has several changes of one revision.

use std::sync::atomic::AtomicBool;

use futures::FutureExt;
use futures::future::BoxFuture;
use keelson_kinds::{lookup, resources};
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::store::{KeyValue, Op, RangePage, SqliteStore, Txn, TxnOutcome, WatchStream};

/// A store whose log can be cut off.
struct Cut {
    inner: SqliteStore,
    away: AtomicBool,
    cut: Arc<tokio::sync::Notify>,
}

impl Store for Cut {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        self.inner.revision()
    }

    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<KeyValue>, StoreError>> {
        self.inner.get(key)
    }

    fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<Revision>,
        limit: usize,
    ) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        self.inner.range(prefix, after, revision, limit)
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        self.inner.txn(txn)
    }

    fn watch(&self, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        async move {
            if self.away.load(Ordering::Acquire) {
                return Err(StoreError::Read("away".to_owned()));
            }
            let mut stream = self.inner.watch(from).await?;
            let (sender, receiver) = mpsc::channel(1);
            let cut = Arc::clone(&self.cut);
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = cut.notified() => return,
                        batch = stream.next() => {
                            let Some(batch) = batch else { return };
                            if sender.send(batch).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            });
            Ok(WatchStream::new(receiver))
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.compact(revision)
    }
}

fn put(names: &[&str]) -> Txn {
    let op = |name: &&str| Op::Put {
        key: format!("/registry/configmaps/d/{name}").into(),
        value: encode(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "d"}})),
    };
    Txn { expect: Vec::new(), ops: names.iter().map(op).collect() }
}

async fn commit(store: &dyn Store, txn: Txn) -> Revision {
    match store.txn(txn).await.unwrap() {
        TxnOutcome::Committed { last, .. } => last,
        conflict @ TxnOutcome::Conflict { .. } => panic!("{conflict:?}"),
    }
}

fn names(cache: &WatchCache) -> Vec<String> {
    cache
        .list("/registry/configmaps/", None, &Filter::default(), 0)
        .objects
        .iter()
        .map(|o| o.name.to_string())
        .collect()
}

#[tokio::test]
async fn after_a_compaction_that_it_missed_the_caches_are_loaded_anew() {
    let folder = tempfile::tempdir().unwrap();
    let inner = SqliteStore::open(&folder.path().join("store.db")).unwrap();
    let store = Arc::new(Cut { inner, away: AtomicBool::new(false), cut: Arc::default() });
    let shutdown = CancellationToken::new();
    let _stop = shutdown.clone().drop_guard();
    let hub = Hub::start(Arc::clone(&store) as Arc<dyn Store>, resources(), shutdown).await.unwrap();
    let cache = hub.cache(lookup("", "v1", "configmaps").unwrap()).unwrap();
    let before = commit(store.as_ref(), put(&["gone", "kept"])).await;
    assert!(hub.wait_for(before, Duration::from_secs(5)).await);
    let mut watcher = cache.watch(Some(before), Arc::new(Filter::default())).unwrap();
    store.away.store(true, Ordering::Release);
    store.cut.notify_one();
    // The hub has taken note that it is cut off, so that it does not see what comes.
    tokio::time::sleep(REWATCH_DELAY * 2).await;
    commit(
        store.as_ref(),
        Txn { expect: Vec::new(), ops: vec![Op::Delete { key: "/registry/configmaps/d/gone".into() }] },
    )
    .await;
    let last = commit(store.as_ref(), put(&["new"])).await;
    store.compact(last).await.unwrap();
    assert_eq!(names(&cache), ["gone", "kept"], "as last known");
    store.away.store(false, Ordering::Release);
    assert!(hub.wait_for(last, Duration::from_secs(10)).await);
    assert_eq!(names(&cache), ["kept", "new"]);
    assert!(watcher.next().await.is_none(), "who watched has to begin again");
    let again = cache.watch(Some(before), Arc::new(Filter::default()));
    assert!(matches!(again, Err(WatchError::TooOld { .. })), "and is told that this is too late");
    let later = commit(store.as_ref(), put(&["later"])).await;
    assert!(hub.wait_for(later, Duration::from_secs(5)).await);
    assert_eq!(names(&cache), ["kept", "later", "new"]);
}

/// Several changes of one kind in one transaction of etcd.
#[test]
fn who_was_cut_off_between_changes_of_one_revision_gets_the_rest() {
    let res = lookup("", "v1", "configmaps").unwrap();
    let cache = Arc::new(WatchCache::new(res, Arc::default(), 1, &[]));
    let events: Vec<Event> = [(2, "a"), (3, "b"), (3, "c"), (4, "d")]
        .into_iter()
        .map(|(revision, name)| {
            let Op::Put { key, value } = put(&[name]).ops.remove(0) else { unreachable!("a put") };
            Event { revision, key, value: Some(value) }
        })
        .collect();
    cache.apply(&events.iter().collect::<Vec<_>>());
    for (from, wanted) in [(1, "abcd"), (2, "bcd"), (3, "cd"), (4, "")] {
        let watcher = cache.watch(Some(from), Arc::new(Filter::default())).unwrap();
        let seen: String = watcher.backlog.iter().map(|(_, event)| &*event.object.name).collect();
        assert_eq!(seen, wanted, "after {from}");
    }
}
