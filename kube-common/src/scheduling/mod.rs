//! What a scheduler and a node decide alike: amounts of resources, selectors, taints. Pure.

pub mod affinity;
pub mod resources;
