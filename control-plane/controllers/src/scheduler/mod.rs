//! The scheduler: which node gets which pod.
//!
//! [`model`] holds what is known of nodes and pods, [`filter`] and [`score`] judge one node for one pod (with
//! `kube_common::scheduling`, which the node agent's admission shares), [`decide`] picks the node, [`queue`] says which pod is next; all pure.
//! [`shell`] feeds the model from the caches and sends bindings.
//!
//! Invariants: a pod that was decided for counts on its node at once ("assumed"), before the API server says so; a pod
//! that fits nowhere is only looked at again when a node changed so that its filters pass there.
//!
//! Upstream counterpart: `pkg/scheduler`; names, weights and messages of its default profile.

pub mod brain;
pub mod decide;
pub mod filter;
pub mod model;
pub mod queue;
pub mod score;
pub mod shell;
