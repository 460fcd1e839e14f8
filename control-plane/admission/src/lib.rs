//! The pure half of three admission plugins: pod security, limit ranges and resource quotas.
//!
//! Everything here is a function of objects, given as JSON; nothing reads a store, a clock or the network. What an object
//! does not set, and what has the wrong type, counts as not set: whoever calls decodes and defaults before.
//! Texts that clients see are upstream's.
//!
//! Upstream counterparts: `k8s.io/pod-security-admission`, `plugin/pkg/admission/{limitranger,resourcequota}`, `pkg/quota/v1`,
//! `pkg/controller/resourcequota`.

mod json;
pub mod limit_ranger;
pub mod pod_security;
pub mod quota;
pub mod resources;

use serde_json::Value;

/// A write of one object.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// There was none.
    Create(&'a Value),
    /// There was one.
    Update {
        /// As it is to be stored.
        new: &'a Value,
        /// As it is stored.
        old: &'a Value,
    },
}

impl<'a> Change<'a> {
    /// The object as it is to be stored.
    #[must_use]
    pub const fn object(self) -> &'a Value {
        match self {
            Self::Create(new) | Self::Update { new, .. } => new,
        }
    }

    /// The object as it is stored, if it is.
    #[must_use]
    pub const fn old(self) -> Option<&'a Value> {
        match self {
            Self::Create(_) => None,
            Self::Update { old, .. } => Some(old),
        }
    }
}
