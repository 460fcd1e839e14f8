//! The machinery under every controller: caches, queues, writes, events.
//!
//! What for: controllers contain decisions, not plumbing. One watch per kind feeds one [`cache::Cache`]; the caches
//! tell the controllers which keys to look at; a [`queue::Queue`] merges repeats and backs off on errors; every
//! write goes through [`writes::Kind`], which puts the server's answer into the cache at once.
//!
//! Invariants: a key is never reconciled twice at the same time; a key whose reconcile fails is tried again;
//! after a write returned, this process never sees the object as it was before that write.
//!
//! Upstream counterpart: client-go's informers, workqueue and event recorder.

pub mod cache;
pub mod caches;
pub mod discovery;
pub mod error;
pub mod events;
pub mod index;
pub mod queue;
pub mod writes;

pub use cache::Key;
pub use caches::Caches;
pub use error::ReconcileError;
pub use events::Events;
pub use queue::{Outcome, Queue, Reconcile};
pub use writes::Kind;
