//! The drain: a pod that ends gets no new connections from this node, before its signal, and before the slices say so.
//!
//! The node agent asks over a local socket ([`protocol`], [`client`]); [`server`] takes the questions, [`book`] keeps them beside the loop that owns
//! the model, and [`crate::model::drain`] is the override itself. docs/drain.md has the whole story. No upstream counterpart.

pub mod book;
pub mod client;
pub mod protocol;
pub mod server;
