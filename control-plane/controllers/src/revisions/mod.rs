//! The history of DaemonSets and StatefulSets: one ControllerRevision per pod template.
//!
//! [`plan`] compares and numbers revisions and is pure; [`shell`] makes, renumbers and deletes them.
//!
//! Invariant: a revision's data never changes, and the template that the owner has now is the revision of the highest
//! number: going back to an old template gives its revision a new number, as `kubectl rollout history` shows it.
//!
//! Upstream counterpart: `pkg/controller/history` and `constructHistory` of the DaemonSet controller.

pub mod plan;
pub mod shell;
