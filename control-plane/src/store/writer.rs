//! The writer thread: takes what waits, applies it in one `SQLite` transaction, syncs, publishes, then answers.
//!
//! Group commit is what turns one fsync per write into one per group: while a group is being synced the next one
//! gathers. Order within a group is arrival order, so a later transaction sees what an earlier one of its group did.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

use super::sqlite::{Shared, current};
use super::{Event, Expect, Op, Revision, StoreError, Txn, TxnOutcome};

/// Transactions in one group: bounds how long a waiting write can be delayed by those before it.
const GROUP_LIMIT: usize = 512;
/// Batches a watcher may fall behind before it is dropped and has to replay from the log.
const WATCH_QUEUE: usize = 256;
/// Rows deleted per step of a compaction, so that writers never wait for a whole one.
const COMPACT_STEP: i64 = 500;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked.
#[derive(Debug)]
pub(super) enum Command {
    Txn { txn: Txn, reply: Reply<TxnOutcome> },
    Subscribe { reply: oneshot::Sender<(Revision, mpsc::Receiver<Arc<[Event]>>)> },
    Compact { revision: Revision, reply: Reply<()> },
}

/// Joins the thread when the store is dropped, after the command channel closed.
#[derive(Debug)]
pub(super) struct WriterHandle {
    thread: Option<JoinHandle<()>>,
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        // Field order of `SqliteStore` closes the channel first; a thread that still runs ends by itself.
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
        {
            let _ = thread.join();
        }
    }
}

pub(super) fn spawn(
    connection: Connection,
    commands: mpsc::Receiver<Command>,
    shared: Arc<Shared>,
) -> std::io::Result<WriterHandle> {
    let thread = std::thread::Builder::new().name("store-writer".into()).spawn(move || {
        Writer { connection, commands, shared, watchers: Vec::new(), compaction: None }.run();
    })?;
    Ok(WriterHandle { thread: Some(thread) })
}

struct Compaction {
    revision: Revision,
    cursor: Revision,
    reply: Reply<()>,
}

struct Writer {
    connection: Connection,
    commands: mpsc::Receiver<Command>,
    shared: Arc<Shared>,
    watchers: Vec<mpsc::Sender<Arc<[Event]>>>,
    compaction: Option<Compaction>,
}

impl Writer {
    fn run(mut self) {
        let mut group = Vec::new();
        loop {
            let first = if self.compaction.is_some() {
                match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(mpsc::error::TryRecvError::Empty) => None,
                    Err(mpsc::error::TryRecvError::Disconnected) => return,
                }
            } else {
                match self.commands.blocking_recv() {
                    Some(command) => Some(command),
                    None => return,
                }
            };
            let mut next = first;
            while let Some(command) = next {
                match command {
                    Command::Txn { txn, reply } => group.push((txn, reply)),
                    Command::Subscribe { reply } => {
                        // Writes taken before it must be in the log it replays from.
                        self.commit(&mut group);
                        self.subscribe(reply);
                    }
                    Command::Compact { revision, reply } => self.start_compaction(revision, reply),
                }
                next = if group.len() < GROUP_LIMIT { self.commands.try_recv().ok() } else { None };
            }
            self.commit(&mut group);
            self.compact_step();
        }
    }

    fn subscribe(&mut self, reply: oneshot::Sender<(Revision, mpsc::Receiver<Arc<[Event]>>)>) {
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        if reply.send((self.shared.revision.load(Ordering::Acquire), receiver)).is_ok() {
            self.watchers.push(sender);
        }
    }

    fn commit(&mut self, group: &mut Vec<(Txn, Reply<TxnOutcome>)>) {
        if group.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(group.len());
        match self.write_group(group, &mut events) {
            Ok(outcomes) => {
                if let Some(last) = events.last() {
                    self.shared.revision.store(last.revision, Ordering::Release);
                }
                self.publish(events);
                for ((_, reply), outcome) in group.drain(..).zip(outcomes) {
                    let _ = reply.send(Ok(outcome));
                }
            }
            Err(error) => {
                if !self.connection.is_autocommit() {
                    let _ = self.connection.execute_batch("ROLLBACK");
                }
                tracing::error!(%error, writes = group.len(), "a group of writes failed");
                for (_, reply) in group.drain(..) {
                    let _ = reply.send(Err(StoreError::Commit(error.to_string())));
                }
            }
        }
    }

    fn write_group(
        &self,
        group: &[(Txn, Reply<TxnOutcome>)],
        events: &mut Vec<Event>,
    ) -> rusqlite::Result<Vec<TxnOutcome>> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut revision = self.shared.revision.load(Ordering::Acquire);
        let mut outcomes = Vec::with_capacity(group.len());
        for (txn, _) in group {
            outcomes.push(self.apply(txn, &mut revision, events)?);
        }
        self.connection.execute_batch("COMMIT")?;
        Ok(outcomes)
    }

    fn apply(&self, txn: &Txn, revision: &mut Revision, events: &mut Vec<Event>) -> rusqlite::Result<TxnOutcome> {
        for (key, expect) in &txn.expect {
            let present = self.present_revision(key)?;
            let holds = match expect {
                Expect::Absent => present.is_none(),
                Expect::ModRevision(wanted) => present == Some(*wanted),
            };
            if !holds {
                return Ok(TxnOutcome::Conflict { key: Arc::clone(key), mod_revision: present });
            }
        }
        let mut first = None;
        for op in &txn.ops {
            let (key, value) = match op {
                Op::Put { key, value } => (key, Some(value)),
                Op::Delete { key } => {
                    if current(&self.connection, key)?.is_none() {
                        continue;
                    }
                    (key, None)
                }
            };
            *revision += 1;
            first.get_or_insert(*revision);
            self.connection
                .prepare_cached("INSERT INTO log (rev, key, value) VALUES (?1, ?2, ?3)")?
                .execute(params![revision.cast_signed(), key.as_ref(), value.map(AsRef::<[u8]>::as_ref)])?;
            events.push(Event { revision: *revision, key: Arc::clone(key), value: value.cloned() });
        }
        Ok(TxnOutcome::Committed { first: first.unwrap_or(*revision), last: *revision })
    }

    fn present_revision(&self, key: &str) -> rusqlite::Result<Option<Revision>> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT rev, value IS NULL FROM log WHERE key = ?1 ORDER BY rev DESC LIMIT 1")?;
        let mut rows = statement.query(params![key])?;
        Ok(match rows.next()? {
            Some(row) if !row.get::<_, bool>(1)? => Some(row.get::<_, i64>(0)?.cast_unsigned()),
            _ => None,
        })
    }

    fn publish(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let batch: Arc<[Event]> = events.into();
        self.watchers.retain(|watcher| match watcher.try_send(Arc::clone(&batch)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                tracing::warn!("a reader of the store's log fell behind and was dropped; it will replay");
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }

    fn start_compaction(&mut self, revision: Revision, reply: Reply<()>) {
        let done = self.shared.compacted.load(Ordering::Acquire);
        if revision <= done || self.compaction.is_some() {
            let _ = reply.send(Ok(()));
            return;
        }
        let newest = self.shared.revision.load(Ordering::Acquire);
        let recorded = self.connection.execute(
            "UPDATE position SET compacted = ?1, revision = max(revision, ?2)",
            params![revision.cast_signed(), newest.cast_signed()],
        );
        if let Err(error) = recorded {
            let _ = reply.send(Err(StoreError::Commit(error.to_string())));
            return;
        }
        self.shared.compacted.store(revision, Ordering::Release);
        self.compaction = Some(Compaction { revision, cursor: 0, reply });
    }

    fn compact_step(&mut self) {
        let Some(mut compaction) = self.compaction.take() else { return };
        let step = self.delete_hidden(compaction.cursor, compaction.revision);
        match step {
            Ok(None) => {
                let _ = compaction.reply.send(Ok(()));
            }
            Ok(Some(cursor)) => {
                compaction.cursor = cursor;
                self.compaction = Some(compaction);
            }
            Err(error) => {
                let _ = compaction.reply.send(Err(StoreError::Commit(error.to_string())));
            }
        }
    }

    /// Deletes hidden rows among the next [`COMPACT_STEP`] rows after `cursor`; answers the new cursor, `None` at the end.
    fn delete_hidden(&self, cursor: Revision, limit: Revision) -> rusqlite::Result<Option<Revision>> {
        let (cursor, limit) = (cursor.cast_signed(), limit.cast_signed());
        let last: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT max(rev) FROM (SELECT rev FROM log WHERE rev > ?1 AND rev <= ?2 ORDER BY rev LIMIT ?3)",
            )?
            .query_row(params![cursor, limit, COMPACT_STEP], |row| row.get(0))?;
        let Some(last) = last else { return Ok(None) };
        self.connection
            .prepare_cached(
                "DELETE FROM log WHERE rev > ?1 AND rev <= ?2 AND (value IS NULL OR EXISTS
                   (SELECT 1 FROM log AS n WHERE n.key = log.key AND n.rev > log.rev AND n.rev <= ?3))",
            )?
            .execute(params![cursor, last, limit])?;
        Ok(Some(last.cast_unsigned()))
    }
}
