//! Netfilter over netlink: nf_tables transactions ([`nft`]) and conntrack entries ([`conntrack`]).
//!
//! The messages are encoded here rather than through a general crate: [`wire`] says why. Nothing
//! in this crate knows Kubernetes.

pub mod conntrack;
pub mod nft;
mod uapi;
pub mod wire;
