//! Nodes that fall silent: their conditions, their taints, and the pods that must leave.
//!
//! [`health`] decides about conditions and taints of one node, [`eviction`] when a pod must leave; both pure. [`shell`]
//! keeps the time of each node's last sign of life (status or lease) by its own clock, so clocks of nodes do not matter.
//!
//! Upstream counterpart: `pkg/controller/nodelifecycle` and `pkg/controller/tainteviction`. Zones are not told apart yet.

pub mod eviction;
pub mod health;
pub mod shell;
