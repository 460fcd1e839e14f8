//! Deployments: one ReplicaSet per pod template, and the way from one to the next.
//!
//! [`template`] tells templates apart and makes new sets, [`sizes`] holds the arithmetic of surge and availability,
//! [`plan`] decides one step, [`status`] reports; all pure. [`shell`] reads caches and acts.
//!
//! Invariants (property-tested in [`plan`]): a rolling update never lets the sum of wished replicas exceed
//! `replicas + maxSurge`, and never takes an available pod away below `replicas - maxUnavailable`.
//!
//! Upstream counterpart: `pkg/controller/deployment`.

pub mod history;
pub mod plan;
pub mod shell;
#[cfg(test)]
mod simulation;
pub mod sizes;
pub mod status;
pub mod template;
