//! DaemonSets: one pod on each node that the template may run on.
//!
//! [`place`] says which nodes those are and what a node's pod looks like, [`plan`] what to make and delete, [`update`] how
//! a new template replaces an old one, [`status`] what to report, [`backoff`] how long a failing pod's replacement
//! waits; all pure. [`shell`] reads caches and acts. The scheduler binds the pods: each names its node by affinity.
//!
//! Invariants (property-tested in [`update`]): a rolling update never takes an available pod away below
//! `maxUnavailable`, and never has more than `maxSurge` nodes with two pods.
//!
//! Upstream counterpart: `pkg/controller/daemon`.

pub mod backoff;
pub mod place;
pub mod plan;
pub mod shell;
pub mod status;
pub mod update;
