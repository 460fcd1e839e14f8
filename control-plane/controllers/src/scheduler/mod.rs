//! The scheduler: which node gets which pod.
//!
//! [`resources`] reads requests, [`model`] holds what is known of nodes and pods, [`affinity`], [`filter`] and
//! [`score`] judge one node for one pod, [`decide`] picks the node, [`queue`] says which pod is next; all pure.
//! [`shell`] feeds the model from the caches and sends bindings.
//!
//! Invariants: a pod that was decided for counts on its node at once ("assumed"), before the API server says so; a pod
//! that fits nowhere is only looked at again when a node changed so that its filters pass there.
//!
//! Upstream counterpart: `pkg/scheduler`; names, weights and messages of its default profile.

pub mod affinity;
pub mod brain;
pub mod decide;
pub mod filter;
pub mod model;
pub mod queue;
pub mod resources;
pub mod score;
pub mod shell;
