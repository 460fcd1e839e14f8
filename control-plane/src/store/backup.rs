//! Copies of the `SQLite` store: one is taken while the server works, and brought back where none is.
//!
//! A copy is one consistent state, the newest at its beginning. A restored store goes on at a revision far above all that were given out
//! since the copy was made: clients that know newer ones list again instead of missing changes (etcd's `--bump-revision --mark-compacted`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, params};

use super::Revision;
use super::sqlite::{SCHEMA_VERSION, positions};

/// How far revisions jump at a restore; etcd's advice, more than a cluster writes in years.
const REVISION_JUMP: Revision = 1_000_000_000;

/// Why a copy could not be made or brought back. Not retryable, unless the disk was full.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target is there already.
    #[error("{0} exists already and is not overwritten: move it away, or choose another name")]
    Exists(PathBuf),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The database refused.
    #[error("{path}: {source}")]
    Database {
        /// Its file.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
    /// It is no store, or a damaged one.
    #[error("{path} is no Keelson store that can be used: {reason}")]
    Unusable {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> BackupError + '_ {
    |source| BackupError::File { path: path.to_owned(), source }
}

fn database(path: &Path) -> impl FnOnce(rusqlite::Error) -> BackupError + '_ {
    |source| BackupError::Database { path: path.to_owned(), source }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Copies the store `from`, which may be in use, to the file `to`; the revision of the copy.
///
/// # Errors
/// [`BackupError`]; `to` is not there then.
pub fn backup(from: &Path, to: &Path) -> Result<Revision, BackupError> {
    copy(from, to, |_| Ok(()))
}

/// Brings a copy back as the store `to`, which must not be there; the revision that it goes on at.
///
/// # Errors
/// [`BackupError`]; `to` is not there then.
pub fn restore(from: &Path, to: &Path) -> Result<Revision, BackupError> {
    // The log of a store that was moved away would be taken for this one's.
    for present in [to.to_owned(), beside(to, "-wal"), beside(to, "-shm")] {
        if present.exists() {
            return Err(BackupError::Exists(present));
        }
    }
    copy(from, to, |connection| {
        let (revision, _) = positions(connection)?;
        let jumped = (revision + REVISION_JUMP).cast_signed();
        connection.execute("UPDATE position SET revision = ?1, compacted = ?1", params![jumped]).map(drop)
    })
}

/// Copies, checks and changes under another name, so that `to` is whole or not there.
fn copy(
    from: &Path,
    to: &Path,
    change: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<Revision, BackupError> {
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    // Opening a database that is not there would say less.
    File::open(from).map_err(file(from))?;
    // Of this process alone: another that copies to the same name takes nothing away here.
    let partial = beside(to, &format!(".partial.{}", std::process::id()));
    let _ = std::fs::remove_file(&partial);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial).map_err(file(&partial))?;
    let copied = copy_to(from, &partial, change).and_then(|revision| {
        File::open(&partial).and_then(|f| f.sync_all()).map_err(file(&partial))?;
        std::fs::rename(&partial, to).map_err(file(to))?;
        let folder = to.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|f| f.sync_all()).map_err(file(folder))?;
        Ok(revision)
    });
    if copied.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    copied
}

fn copy_to(
    from: &Path,
    partial: &Path,
    change: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<Revision, BackupError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(from, flags).map_err(database(from))?;
    source.execute_batch("PRAGMA busy_timeout=5000;").map_err(database(from))?;
    check(&source, from)?;
    let name = partial.to_str().ok_or_else(|| BackupError::File {
        path: partial.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidInput, "the database takes names in UTF-8 only"),
    })?;
    source.execute("VACUUM INTO ?1", params![name]).map_err(database(partial))?;
    let copy = Connection::open_with_flags(partial, flags).map_err(database(partial))?;
    let answer: String = copy.query_row("PRAGMA quick_check", [], |row| row.get(0)).map_err(database(partial))?;
    if answer != "ok" {
        return Err(BackupError::Unusable { path: from.to_owned(), reason: answer });
    }
    change(&copy).map_err(database(partial))?;
    let (revision, _) = positions(&copy).map_err(database(partial))?;
    copy.close().map_err(|(_, source)| BackupError::Database { path: partial.to_owned(), source })?;
    Ok(revision)
}

fn check(store: &Connection, path: &Path) -> Result<(), BackupError> {
    let unusable = |reason: String| BackupError::Unusable { path: path.to_owned(), reason };
    let version: i64 =
        store.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(|e| unusable(e.to_string()))?;
    if version != SCHEMA_VERSION {
        return Err(unusable(format!("its layout is version {version}, this program knows {SCHEMA_VERSION}")));
    }
    positions(store).map(drop).map_err(|e| unusable(e.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{Op, SqliteStore, Store, StoreError, Txn, TxnOutcome};
    use super::*;

    async fn put(store: &SqliteStore, key: &str) -> Revision {
        let txn = Txn { expect: Vec::new(), ops: vec![Op::Put { key: key.into(), value: "v".into() }] };
        match store.txn(txn).await.unwrap() {
            TxnOutcome::Committed { last, .. } => last,
            conflict @ TxnOutcome::Conflict { .. } => panic!("{conflict:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_of_a_busy_store_is_whole_and_goes_on_above_all_revisions() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (path, to) = (folder.path().join("store.db"), folder.path().join("copy.db"));
        let store = Arc::new(SqliteStore::open(&path).unwrap());
        for i in 0..200 {
            put(&store, &format!("/registry/before/{i}")).await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let writer = tokio::spawn({
            let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
            async move {
                let mut i = 0;
                while !stop.load(Ordering::Relaxed) {
                    put(&store, &format!("/registry/during/{i:06}")).await;
                    i += 1;
                }
            }
        });
        let (from, target) = (path.clone(), to.clone());
        let copied = tokio::task::spawn_blocking(move || backup(&from, &target)).await.unwrap().unwrap();
        stop.store(true, Ordering::Relaxed);
        writer.await.unwrap();
        let newest = put(&store, "/registry/after").await;
        assert!(copied < newest);
        assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(backup(&path, &to), Err(BackupError::Exists(_))));
        let restored = folder.path().join("restored.db");
        let revision = restore(&to, &restored).unwrap();
        assert!(revision > newest);
        let store = SqliteStore::open(&restored).unwrap();
        assert_eq!(store.revision().await.unwrap(), revision);
        let before = store.range("/registry/before/", None, None, 0).await.unwrap();
        assert_eq!(before.items.len(), 200);
        let during = store.range("/registry/during/", None, None, 0).await.unwrap().items;
        // A state of one moment: what was written later is missing, nothing in between.
        let last = during.last().map_or(0, |item| item.key.rsplit('/').next().unwrap().parse::<usize>().unwrap() + 1);
        assert_eq!(during.len(), last);
        assert!(store.get("/registry/after").await.unwrap().is_none());
        assert!(matches!(store.watch(newest).await, Err(StoreError::Compacted { .. })));
        assert!(put(&store, "/registry/more").await > revision);
    }

    #[test]
    fn what_is_no_store_is_neither_copied_nor_brought_back() {
        let folder = tempfile::tempdir().unwrap();
        let (other, to) = (folder.path().join("other"), folder.path().join("to.db"));
        assert!(matches!(backup(&other, &to), Err(BackupError::File { .. })));
        std::fs::write(&other, "no database at all, but longer than a header of one hundred bytes ".repeat(9)).unwrap();
        assert!(matches!(restore(&other, &to), Err(BackupError::Unusable { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
        std::fs::write(beside(&to, "-wal"), "").unwrap();
        assert!(matches!(restore(&other, &to), Err(BackupError::Exists(_))));
    }
}
