//! StatefulSets: pods with a number, a name and claims of their own, made and ended in order.
//!
//! [`identity`] says what the pod of a number looks like and which claims it has, [`plan`] what to do next, [`status`]
//! what to report; all pure. [`shell`] reads caches and acts.
//!
//! Invariants (property-tested in [`plan`]): there is never a second pod of a number; with `OrderedReady` a pod is only
//! made when all of lower numbers are available, and only one pod of a set is on its way at any time.
//!
//! Upstream counterpart: `pkg/controller/statefulset`.

pub mod identity;
pub mod plan;
pub mod shell;
pub mod status;
