//! What every store must do, written against the trait, and the implementations it runs on.

use std::sync::Arc;
use std::time::Duration;

use super::{
    DEFAULT_PREFIX, EtcdConfig, EtcdStore, Event, Expect, Op, Revision, SqliteStore, Store, StoreError, Txn, TxnOutcome,
};

#[path = "../../tests/common/etcd.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod process;

fn put(key: &str, value: &str, expect: Option<Expect>) -> Txn {
    let key: Arc<str> = key.into();
    Txn {
        expect: expect.map(|e| (Arc::clone(&key), e)).into_iter().collect(),
        ops: vec![Op::Put { key, value: value.as_bytes().to_vec().into() }],
    }
}

fn delete(key: &str) -> Txn {
    Txn { expect: Vec::new(), ops: vec![Op::Delete { key: key.into() }] }
}

async fn commit(store: &dyn Store, txn: Txn) -> Revision {
    match store.txn(txn).await.expect("txn") {
        TxnOutcome::Committed { last, .. } => last,
        TxnOutcome::Conflict { key, mod_revision } => panic!("conflict on {key} at {mod_revision:?}"),
    }
}

async fn collect(store: &dyn Store, from: Revision, count: usize) -> Vec<Event> {
    let mut stream = store.watch(from).await.expect("watch");
    let mut events = Vec::new();
    while events.len() < count {
        let batch = tokio::time::timeout(Duration::from_secs(10), stream.next()).await.expect("in time");
        events.extend(batch.expect("stream goes on").iter().cloned());
    }
    events
}

async fn compare_and_swap(store: &dyn Store) {
    let first = commit(store, put("/registry/a/x", "1", Some(Expect::Absent))).await;
    let again = store.txn(put("/registry/a/x", "2", Some(Expect::Absent))).await.unwrap();
    assert_eq!(again, TxnOutcome::Conflict { key: "/registry/a/x".into(), mod_revision: Some(first) });
    let second = commit(store, put("/registry/a/x", "2", Some(Expect::ModRevision(first)))).await;
    assert!(second > first);
    let stale = store.txn(put("/registry/a/x", "3", Some(Expect::ModRevision(first)))).await.unwrap();
    assert_eq!(stale, TxnOutcome::Conflict { key: "/registry/a/x".into(), mod_revision: Some(second) });
    let absent = store.txn(put("/registry/a/y", "3", Some(Expect::ModRevision(1)))).await.unwrap();
    assert_eq!(absent, TxnOutcome::Conflict { key: "/registry/a/y".into(), mod_revision: None });
    let got = store.get("/registry/a/x").await.unwrap().unwrap();
    assert_eq!((got.value.as_ref(), got.mod_revision), (b"2".as_ref(), second));
    assert_eq!(store.get("/registry/a/y").await.unwrap(), None);
}

async fn all_or_nothing(store: &dyn Store) {
    let txn = Txn {
        expect: vec![("/registry/b/1".into(), Expect::Absent), ("/registry/b/2".into(), Expect::ModRevision(77))],
        ops: vec![Op::Put { key: "/registry/b/1".into(), value: "v".into() }],
    };
    assert!(matches!(store.txn(txn).await.unwrap(), TxnOutcome::Conflict { .. }));
    assert_eq!(store.get("/registry/b/1").await.unwrap(), None);
}

/// One revision or one for each change, but next to each other, in order, and told as they are in the log.
async fn a_group_has_a_first_and_a_last_revision(store: &dyn Store) {
    let old = commit(store, put("/registry/g/old", "1", None)).await;
    let ops = ["/registry/g/1", "/registry/g/2"].map(|key| Op::Put { key: key.into(), value: "v".into() });
    let absent = Op::Delete { key: "/registry/g/absent".into() };
    let ops = [ops.to_vec(), vec![absent, Op::Delete { key: "/registry/g/old".into() }]].concat();
    let expect = vec![("/registry/g/old".into(), Expect::ModRevision(old)), ("/registry/g/1".into(), Expect::Absent)];
    let outcome = store.txn(Txn { expect, ops }).await.unwrap();
    let TxnOutcome::Committed { first, last } = outcome else { panic!("{outcome:?}") };
    assert_eq!(store.revision().await.unwrap(), last);
    let events = collect(store, old + 1, 3).await;
    let seen: Vec<_> = events.iter().map(|e| (e.key.as_ref(), e.value.is_some())).collect();
    assert_eq!(seen, [("/registry/g/1", true), ("/registry/g/2", true), ("/registry/g/old", false)]);
    assert_eq!((events[0].revision, events[2].revision), (first, last));
    assert!(first == last || last == first + 2, "{first} {last}");
    let got = store.get("/registry/g/1").await.unwrap().unwrap();
    assert_eq!(got.mod_revision, first);
    let nothing = Txn { expect: Vec::new(), ops: vec![Op::Delete { key: "/registry/g/absent".into() }] };
    assert_eq!(store.txn(nothing).await.unwrap(), TxnOutcome::Committed { first: last, last });
}

async fn ranges(store: &dyn Store) {
    for name in ["a", "b", "c", "d"] {
        commit(store, put(&format!("/registry/r/{name}"), name, None)).await;
    }
    commit(store, put("/registry/rx/other", "x", None)).await;
    let at = store.revision().await.unwrap();
    commit(store, delete("/registry/r/b")).await;
    commit(store, put("/registry/r/c", "new", None)).await;
    let page = store.range("/registry/r/", None, Some(at), 2).await.unwrap();
    assert!(page.more);
    let names = |items: &[super::KeyValue]| {
        items.iter().map(|i| String::from_utf8_lossy(&i.value).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page.items), ["a", "b"]);
    let rest = store.range("/registry/r/", Some("/registry/r/b"), Some(at), 2).await.unwrap();
    assert!(!rest.more);
    assert_eq!(names(&rest.items), ["c", "d"]);
    let now = store.range("/registry/r/", None, None, 0).await.unwrap();
    assert_eq!(names(&now.items), ["a", "new", "d"]);
    let future = store.range("/registry/r/", None, Some(now.revision + 100), 0).await;
    assert!(matches!(future, Err(StoreError::Future { .. })));
}

async fn watches(store: &dyn Store) {
    let start = store.revision().await.unwrap();
    commit(store, put("/registry/w/a", "1", None)).await;
    commit(store, delete("/registry/w/a")).await;
    commit(store, delete("/registry/w/a")).await;
    commit(store, put("/registry/w/b", "2", None)).await;
    let events = collect(store, start + 1, 3).await;
    let seen: Vec<_> = events.iter().map(|e| (e.key.as_ref(), e.value.as_deref())).collect();
    assert_eq!(
        seen,
        [("/registry/w/a", Some(b"1".as_ref())), ("/registry/w/a", None), ("/registry/w/b", Some(b"2".as_ref()))]
    );
    assert!(events.windows(2).all(|w| w[0].revision < w[1].revision));
}

async fn watch_neither_loses_nor_repeats(store: &Arc<dyn Store>) {
    let start = store.revision().await.unwrap();
    let mut stream = store.watch(start + 1).await.unwrap();
    let writers: Vec<_> = (0..8)
        .map(|w| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                for i in 0..50 {
                    commit(store.as_ref(), put(&format!("/registry/m/{w}-{i}"), "v", Some(Expect::Absent))).await;
                }
            })
        })
        .collect();
    let mut seen = Vec::new();
    while seen.len() < 400 {
        let batch = tokio::time::timeout(Duration::from_secs(20), stream.next()).await.unwrap().unwrap();
        seen.extend(batch.iter().map(|e| e.revision));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(seen.windows(2).all(|w| w[1] == w[0] + 1), "gap or repeat in {seen:?}");
    let replayed = collect(store.as_ref(), start + 1, 400).await;
    assert_eq!(replayed.iter().map(|e| e.revision).collect::<Vec<_>>(), seen);
}

async fn compaction(store: &dyn Store) {
    let first = commit(store, put("/registry/c/a", "1", None)).await;
    commit(store, put("/registry/c/a", "2", None)).await;
    commit(store, put("/registry/c/b", "1", None)).await;
    let last = commit(store, delete("/registry/c/b")).await;
    store.compact(last).await.unwrap();
    let old = store.range("/registry/c/", None, Some(first), 0).await;
    assert!(matches!(old, Err(StoreError::Compacted { .. })), "{old:?}");
    assert!(matches!(store.watch(first).await, Err(StoreError::Compacted { .. })));
    let now = store.range("/registry/c/", None, Some(last), 0).await.unwrap();
    assert_eq!(now.items.len(), 1);
    assert_eq!(now.items[0].value.as_ref(), b"2");
    assert!(matches!(store.compact(last + 10).await, Err(StoreError::Future { .. })));
}

async fn too_large(store: &dyn Store) {
    let big = "x".repeat(super::MAX_VALUE_BYTES + 1);
    assert!(matches!(store.txn(put("/registry/big/a", &big, None)).await, Err(StoreError::TooLarge { .. })));
}

/// More keys than any implementation reads at a time.
async fn long_ranges(store: &dyn Store) {
    for chunk in 0..12 {
        let ops = (0..100).map(|i| Op::Put { key: format!("/registry/l/{chunk:02}{i:02}").into(), value: "v".into() });
        commit(store, Txn { expect: Vec::new(), ops: ops.collect() }).await;
    }
    let all = store.range("/registry/l/", None, None, 0).await.unwrap();
    assert_eq!((all.items.len(), all.more), (1200, false));
    assert!(all.items.windows(2).all(|w| w[0].key < w[1].key));
    let most = store.range("/registry/l/", None, None, 1199).await.unwrap();
    assert_eq!((most.items.len(), most.more), (1199, true));
}

async fn conforms(store: Arc<dyn Store>) {
    assert_eq!(store.revision().await.unwrap(), 1, "an empty store has a revision too");
    assert!(store.range("/registry/", None, Some(1), 0).await.unwrap().items.is_empty());
    compare_and_swap(store.as_ref()).await;
    all_or_nothing(store.as_ref()).await;
    a_group_has_a_first_and_a_last_revision(store.as_ref()).await;
    ranges(store.as_ref()).await;
    long_ranges(store.as_ref()).await;
    watches(store.as_ref()).await;
    watch_neither_loses_nor_repeats(&store).await;
    compaction(store.as_ref()).await;
    too_large(store.as_ref()).await;
}

#[tokio::test]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    conforms(Arc::new(SqliteStore::open(&folder.path().join("store.db")).unwrap())).await;
}

fn etcd(servers: &[String], prefix: &str) -> EtcdStore {
    let servers = servers.to_vec();
    let config = EtcdConfig { servers, prefix: prefix.into(), ca_file: None, cert_file: None, key_file: None };
    EtcdStore::open(&config).unwrap()
}

#[tokio::test]
async fn etcd_conforms() {
    let Some(process) = process::Etcd::start("etcd_conforms") else { return };
    conforms(Arc::new(etcd(&[process.url()], DEFAULT_PREFIX))).await;
}

#[tokio::test]
async fn etcd_tells_of_revisions_of_others() {
    let Some(process) = process::Etcd::start("etcd_tells_of_revisions_of_others") else { return };
    let (ours, others) = (etcd(&[process.url()], DEFAULT_PREFIX), etcd(&[process.url()], "/others"));
    let start = commit(&ours, put("/registry/a", "1", None)).await;
    let theirs = commit(&others, put("/registry/a", "2", Some(Expect::Absent))).await;
    let events = collect(&ours, start + 1, 1).await;
    assert_eq!(events, [Event { revision: theirs, key: "".into(), value: None }]);
    let events = collect(&others, start, 2).await;
    assert_eq!((&*events[0].key, &*events[1].key), ("", "/registry/a"));
    assert_eq!(ours.range("/registry/", None, None, 0).await.unwrap().items[0].value, "1");
    assert_eq!(others.range("/registry/", None, None, 0).await.unwrap().items[0].value, "2");
}

#[tokio::test]
async fn one_of_several_servers_compacts() {
    let Some(process) = process::Etcd::start("one_of_several_servers_compacts") else { return };
    let stores = [etcd(&[process.url()], DEFAULT_PREFIX), etcd(&[process.url()], DEFAULT_PREFIX)];
    let first = commit(&stores[0], put("/registry/a", "1", None)).await;
    let mut last = first;
    for round in 0..3 {
        last = commit(&stores[0], put("/registry/a", "2", None)).await;
        let before = stores[0].revision().await.unwrap();
        for store in &stores {
            store.compact(last).await.unwrap();
        }
        // Who takes the turn writes that down; the other one only looks.
        assert_eq!(stores[0].revision().await.unwrap(), before + 1, "in round {round}");
    }
    assert!(matches!(stores[1].watch(first).await, Err(StoreError::Compacted { .. })));
    assert_eq!(stores[1].range("/registry/a", None, Some(last), 0).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn another_etcd_server_is_used_when_one_is_away() {
    let Some(process) = process::Etcd::start("another_etcd_server_is_used_when_one_is_away") else { return };
    // Nobody listens at the first; a write that was not even sent may go to the next.
    let away = "http://127.0.0.1:1".to_owned();
    let store = etcd(&[away.clone(), process.url()], DEFAULT_PREFIX);
    commit(&store, put("/registry/a", "1", Some(Expect::Absent))).await;
    let lonely = etcd(&[away], DEFAULT_PREFIX);
    let failed = lonely.txn(put("/registry/a", "2", None)).await.unwrap_err();
    assert!(matches!(failed, StoreError::Commit(_)), "it is certain that nothing was written: {failed}");
    assert!(failed.retryable());
    assert!(matches!(lonely.revision().await, Err(StoreError::Read(_))));
}

#[test]
fn etcd_addresses_and_certificates_are_checked() {
    let open = |servers: &[&str], prefix: &str| {
        let servers = servers.iter().map(|s| (*s).to_owned()).collect();
        let config = EtcdConfig { servers, prefix: prefix.into(), ca_file: None, cert_file: None, key_file: None };
        EtcdStore::open(&config).map(|_| ()).unwrap_err().to_string()
    };
    assert!(open(&[], "/registry").contains("at least one server"));
    assert!(open(&["https://a:2379"], "/registry").contains("https needs --etcd-cafile"));
    assert!(open(&["a:2379"], "/registry").contains("http"), "{}", open(&["a:2379"], "/registry"));
    assert!(open(&["http://a:2379"], "registry").contains("must begin with a slash"));
}

#[tokio::test]
async fn sqlite_restart_keeps_data_and_revision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.revision().await.unwrap(), 1);
    commit(&store, put("/registry/a", "1", None)).await;
    let last = commit(&store, delete("/registry/a")).await;
    store.compact(last).await.unwrap();
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.revision().await.unwrap(), last, "a compacted deletion must not take the revision back");
    assert!(commit(&store, put("/registry/a", "2", None)).await > last);
}

#[test]
fn sqlite_file_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let _store = SqliteStore::open(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}
