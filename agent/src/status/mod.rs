//! What the API is told about pods: computed purely ([`pod`], [`conditions`]), sent by [`manager`].

pub mod conditions;
pub mod manager;
pub mod patch;
pub mod phase;
pub mod pod;
