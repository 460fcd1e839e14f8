//! The garbage collector: objects whose owners are gone go too; owners that wait for their dependents are let go.
//!
//! [`graph`] knows who belongs to whom (a few words per object, fed by the shared caches and by metadata watches of the
//! other kinds) and [`judge`] decides about one object; both pure. [`shell`] asks the server and acts.
//!
//! Invariants: nothing is deleted before the server itself has said that its owners are gone; nothing is deleted because
//! of an owner kind that the server does not have.
//!
//! Upstream counterpart: `pkg/controller/garbagecollector`.

pub mod graph;
pub mod judge;
pub mod shell;
