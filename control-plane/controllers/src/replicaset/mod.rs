//! ReplicaSets and ReplicationControllers: as many pods of a template as wished.
//!
//! [`owner`] is what both kinds have in common, [`plan`] says how many pods to make and which to delete, [`status`] what
//! to report; all pure. [`shell`] reads the caches, asks them, and acts.
//!
//! Invariants: an object is never owned twice; no pod is made twice however late events come (the cache takes the
//! answer of each write, see `engine::index`); a burst that fails stops early (slow start).
//!
//! Upstream counterpart: `pkg/controller/replicaset` and `pkg/controller/replication`.

#[cfg(test)]
mod delay;
pub mod owner;
pub mod plan;
pub mod shell;
pub mod status;
