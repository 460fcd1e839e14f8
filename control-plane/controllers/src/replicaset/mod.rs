//! ReplicaSets: as many pods of a template as wished.
//!
//! [`claim`] says whose pods are whose, [`plan`] how many to make and which to delete, [`status`] what to report; all
//! three are pure. [`shell`] reads the caches, asks them, and acts.
//!
//! Invariants: an object is never owned twice; no pod is made twice however late events come (the cache takes the
//! answer of each write, see `engine::index`); a burst that fails stops early (slow start).
//!
//! Upstream counterpart: `pkg/controller/replicaset`.

pub mod claim;
#[cfg(test)]
mod delay;
pub mod plan;
pub mod shell;
pub mod status;
