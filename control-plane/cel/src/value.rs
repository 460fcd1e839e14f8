//! Values of an evaluation: JSON that is borrowed, and Kubernetes' own types.

pub(crate) mod json;
pub(crate) mod opaque;
pub(crate) mod output;
