//! Taking a node over from a stock kubelet without a restart of a container, and what that would do: `agent adopt --dry-run`.
//!
//! Nothing has to be converted. Names, labels, annotations, hashes, cgroups and paths are upstream's ([`crate::runtime::identity`]), so that the agent
//! finds a kubelet's pods as it finds its own. Two things are not in these records and are looked after here: the UID of a static pod, which
//! a kubelet computes from its own data types ([`statics`]), and container hashes of kubelets before 1.31
//! ([`crate::sync`] compares the image that the pod named as well).

pub mod command;
pub mod judge;
pub mod node;
pub mod statics;
