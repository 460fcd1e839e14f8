//! The store on one `SQLite` file: WAL, `synchronous=FULL`, one writer thread with group commit, one reader connection.
//!
//! Table `log` holds every change, its row id being its revision; the newest row of a key is its present state, a row
//! without a value is a deletion. Compaction deletes rows that a newer row at or below the compacted revision hides.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use tokio::sync::{mpsc, oneshot};

use super::writer::{self, Command, WriterHandle};
use super::{
    Event, KeyValue, MAX_VALUE_BYTES, Op, RangePage, Revision, Store, StoreError, Txn, TxnOutcome, WatchStream,
};

/// Commands that may wait for the writer; more and callers wait in turn.
const COMMAND_QUEUE: usize = 1024;
/// Layout version in `PRAGMA user_version`.
pub(super) const SCHEMA_VERSION: i64 = 1;
/// The revision of a store nothing was written to.
pub(super) const FIRST_REVISION: Revision = 1;

/// Embedded store for a single server.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    commands: mpsc::Sender<Command>,
    reader: Arc<Mutex<Connection>>,
    shared: Arc<Shared>,
    _writer: WriterHandle,
}

/// Numbers the writer publishes to readers.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) revision: AtomicU64,
    pub(super) compacted: AtomicU64,
}

impl SqliteStore {
    /// Opens or creates the database file, with mode 0600.
    ///
    /// # Errors
    /// [`StoreError::Open`] when the file cannot be opened or was written by a later version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |reason: String| StoreError::Open { path: path.to_owned(), reason };
        create_private(path).map_err(|e| fail(e.to_string()))?;
        let connection = Connection::open(path).map_err(|e| fail(e.to_string()))?;
        prepare(&connection).map_err(fail)?;
        let (revision, compacted) = positions(&connection).map_err(|e| fail(e.to_string()))?;
        let reader =
            Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
                .and_then(|c| c.execute_batch("PRAGMA cache_size=-512;").map(|()| c))
                .map_err(|e| fail(e.to_string()))?;
        let shared = Arc::new(Shared { revision: AtomicU64::new(revision), compacted: AtomicU64::new(compacted) });
        let (commands, receiver) = mpsc::channel(COMMAND_QUEUE);
        let writer = writer::spawn(connection, receiver, Arc::clone(&shared)).map_err(|e| fail(e.to_string()))?;
        Ok(Self { path: path.to_owned(), commands, reader: Arc::new(Mutex::new(reader)), shared, _writer: writer })
    }

    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let reader = Arc::clone(&self.reader);
        tokio::task::spawn_blocking(move || job(&reader.lock())).await.map_err(|e| StoreError::Read(e.to_string()))?
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.commands.send(command(sender)).await.map_err(|_| StoreError::Closed)?;
        receiver.await.map_err(|_| StoreError::Closed)
    }

    fn check_revision(&self, wanted: Revision) -> Result<(), StoreError> {
        let newest = self.shared.revision.load(Ordering::Acquire);
        let oldest = self.shared.compacted.load(Ordering::Acquire);
        if wanted > newest {
            return Err(StoreError::Future { wanted, newest });
        }
        if wanted < oldest {
            return Err(StoreError::Compacted { wanted, oldest });
        }
        Ok(())
    }
}

fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map(drop)
}

fn prepare(connection: &Connection) -> Result<(), String> {
    let run = |sql: &str| connection.execute_batch(sql).map_err(|e| e.to_string());
    run("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-2048; PRAGMA temp_store=MEMORY; \
         PRAGMA wal_autocheckpoint=1000; PRAGMA journal_size_limit=8388608; PRAGMA busy_timeout=5000;")?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(|e| e.to_string())?;
    if version > SCHEMA_VERSION {
        return Err(format!("its layout is version {version}, this program knows up to {SCHEMA_VERSION}"));
    }
    run("BEGIN;
         CREATE TABLE IF NOT EXISTS log (rev INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB);
         CREATE INDEX IF NOT EXISTS log_key ON log (key, rev);
         CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 0), revision INTEGER NOT NULL, compacted INTEGER NOT NULL);
         INSERT OR IGNORE INTO position VALUES (0, 1, 0);
         PRAGMA user_version=1;
         COMMIT;")
}

/// The last revision survives compaction of a deleted last key because `position` records it too.
pub(super) fn positions(connection: &Connection) -> rusqlite::Result<(Revision, Revision)> {
    let (recorded, compacted): (i64, i64) =
        connection.query_row("SELECT revision, compacted FROM position", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let newest: Option<i64> = connection.query_row("SELECT max(rev) FROM log", [], |row| row.get(0))?;
    let revision = newest.unwrap_or(0).max(recorded).cast_unsigned().max(FIRST_REVISION);
    Ok((revision, compacted.cast_unsigned()))
}

/// The first key after every key that begins with `prefix`.
fn prefix_end(prefix: &str) -> String {
    // No key contains U+10FFFF: names are DNS labels or URL-safe segments.
    format!("{prefix}\u{10FFFF}")
}

pub(super) fn current(connection: &Connection, key: &str) -> rusqlite::Result<Option<KeyValue>> {
    let row = connection
        .prepare_cached("SELECT rev, value FROM log WHERE key = ?1 ORDER BY rev DESC LIMIT 1")?
        .query_row(params![key], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<Vec<u8>>>(1)?)))
        .optional()?;
    Ok(row.and_then(|(rev, value)| {
        value.map(|value| KeyValue { key: key.into(), value: value.into(), mod_revision: rev.cast_unsigned() })
    }))
}

fn range_at(
    connection: &Connection,
    prefix: &str,
    after: Option<&str>,
    revision: Revision,
    limit: usize,
) -> rusqlite::Result<RangePage> {
    let wanted = if limit == 0 { i64::MAX } else { i64::try_from(limit).unwrap_or(i64::MAX - 1) + 1 };
    let start = after.map_or_else(|| prefix.to_owned(), |key| format!("{key}\0"));
    let mut statement = connection.prepare_cached(
        "SELECT key, rev, value FROM log AS l WHERE key >= ?1 AND key < ?2 AND value IS NOT NULL
         AND rev = (SELECT max(rev) FROM log WHERE key = l.key AND rev <= ?3) ORDER BY key LIMIT ?4",
    )?;
    let mut items = statement
        .query_map(params![start, prefix_end(prefix), revision.cast_signed(), wanted], |row| {
            Ok(KeyValue {
                key: row.get::<_, String>(0)?.into(),
                mod_revision: row.get::<_, i64>(1)?.cast_unsigned(),
                value: Bytes::from(row.get::<_, Vec<u8>>(2)?),
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let more = limit != 0 && items.len() > limit;
    if more {
        items.truncate(limit);
    }
    Ok(RangePage { items, revision, more })
}

/// Events of `from..=to`, at most `limit`.
pub(super) fn events(
    connection: &Connection,
    from: Revision,
    to: Revision,
    limit: usize,
) -> rusqlite::Result<Vec<Event>> {
    connection
        .prepare_cached("SELECT rev, key, value FROM log WHERE rev >= ?1 AND rev <= ?2 ORDER BY rev LIMIT ?3")?
        .query_map(params![from.cast_signed(), to.cast_signed(), i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
            Ok(Event {
                revision: row.get::<_, i64>(0)?.cast_unsigned(),
                key: row.get::<_, String>(1)?.into(),
                value: row.get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from),
            })
        })?
        .collect()
}

/// Events replayed to a new watcher at a time.
const REPLAY_CHUNK: usize = 256;

impl Store for SqliteStore {
    fn revision(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        std::future::ready(Ok(self.shared.revision.load(Ordering::Acquire))).boxed()
    }

    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<KeyValue>, StoreError>> {
        let key = key.to_owned();
        self.read(move |c| current(c, &key).map_err(|e| StoreError::Read(e.to_string()))).boxed()
    }

    fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
        revision: Option<Revision>,
        limit: usize,
    ) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        async move {
            let revision = revision.unwrap_or_else(|| self.shared.revision.load(Ordering::Acquire));
            self.check_revision(revision)?;
            let page = self
                .read(move |c| {
                    range_at(c, &prefix, after.as_deref(), revision, limit).map_err(|e| StoreError::Read(e.to_string()))
                })
                .await?;
            // A compaction may have run between the check and the read; then the page may lack keys.
            self.check_revision(revision)?;
            Ok(page)
        }
        .boxed()
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, StoreError>> {
        async move {
            for op in &txn.ops {
                if let Op::Put { key, value } = op
                    && value.len() > MAX_VALUE_BYTES
                {
                    return Err(StoreError::TooLarge {
                        key: Arc::clone(key),
                        size: value.len(),
                        limit: MAX_VALUE_BYTES,
                    });
                }
            }
            self.ask(|reply| Command::Txn { txn, reply }).await?
        }
        .boxed()
    }

    fn watch(&self, from: Revision) -> BoxFuture<'_, Result<WatchStream, StoreError>> {
        async move {
            let (up_to, mut live) = self.ask(|reply| Command::Subscribe { reply }).await?;
            let oldest = self.shared.compacted.load(Ordering::Acquire);
            if from <= oldest && oldest > 0 {
                return Err(StoreError::Compacted { wanted: from, oldest });
            }
            if from > up_to {
                return Ok(WatchStream::new(live));
            }
            let (sender, receiver) = mpsc::channel(4);
            let reader = Arc::clone(&self.reader);
            tokio::spawn(async move {
                let mut next = from;
                while next <= up_to {
                    let reader = Arc::clone(&reader);
                    let chunk =
                        tokio::task::spawn_blocking(move || events(&reader.lock(), next, up_to, REPLAY_CHUNK)).await;
                    let Ok(Ok(chunk)) = chunk else { return };
                    let Some(last) = chunk.last() else { break };
                    next = last.revision + 1;
                    if sender.send(chunk.into()).await.is_err() {
                        return;
                    }
                }
                while let Some(batch) = live.recv().await {
                    if sender.send(batch).await.is_err() {
                        return;
                    }
                }
            });
            Ok(WatchStream::new(receiver))
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let newest = self.shared.revision.load(Ordering::Acquire);
            if revision > newest {
                return Err(StoreError::Future { wanted: revision, newest });
            }
            self.ask(|reply| Command::Compact { revision, reply }).await?
        }
        .boxed()
    }
}
