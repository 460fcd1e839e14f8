//! Jobs: pods that run to their end, until enough have succeeded or too many failed.
//!
//! [`indexes`] are sets of completion indexes in the API's short form, [`policy`] the rules for failures and success,
//! [`backoff`] how long a failed pod's replacement waits, [`view`] what the pods say, [`decide`] what follows from it,
//! [`pods`] what a job's pod looks like, [`track`] how ended pods are counted; all pure. [`shell`] reads caches and acts.
//!
//! Invariants (property-tested in [`track`]): each pod is counted exactly once, however often a pass is cut off: a pod
//! keeps the tracking finalizer until its UID (or index) is in the status, and its UID stays there until the finalizer is
//! gone. A job is only called finished when none of its pods waits to be counted or to end.
//!
//! Upstream counterpart: `pkg/controller/job`.

pub mod backoff;
pub mod conditions;
pub mod decide;
pub mod indexes;
pub mod pods;
pub mod policy;
pub mod shell;
#[cfg(test)]
mod simulation;
pub mod track;
pub mod view;
