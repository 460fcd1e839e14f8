//! The nftables backend: constant rules, everything else is map elements (spec section 3).
//!
//! [`layout`] names the maps and writes the rules; [`state`] is what the kernel holds as far as we
//! know; [`table`] brings it from one state to another. Upstream counterpart:
//! `pkg/proxy/nftables`, which makes chains and rules for each service instead.

pub mod codec;
pub mod layout;
pub mod probe;
pub mod state;
pub mod table;
