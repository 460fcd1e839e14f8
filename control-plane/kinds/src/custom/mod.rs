//! Custom kinds: CustomResourceDefinitions, and the objects that they define.
//!
//! A definition is validated as any object ([`definition`]), compiled ([`Definition`]: per served version a [`Version`] with its
//! structural schema) and registered ([`Registry`]: one leaked [`crate::Resource`] per identity, whose compiled content is swapped in
//! place when the definition changes). From then on a custom kind is a [`crate::Resource`] like any other; what is special hangs off
//! [`crate::Strategy::custom`]. Not done here: conversion by webhooks
//! ([`unenforced`] says so).
//!
//! Upstream counterpart: `apiextensions-apiserver`.

mod columns;
mod default;
mod defaults;
pub mod definition;
mod embedded;
mod format;
mod invariants;
mod jsonpath;
mod keywords;
mod kind;
mod lists;
mod number;
pub(crate) mod openapi;
mod pattern;
mod prune;
mod registry;
mod scale;
mod status;
mod structural;
mod validate;
mod version;

pub use columns::Table;
pub use definition::unenforced;
pub use kind::Kind;
pub use registry::Registry;
pub use scale::ScalePaths;
pub use status::{CLEANUP_FINALIZER, Terminating, begin_deletion, established, status, terminating};
pub use version::{CompileError, Definition, Version};

#[cfg(test)]
mod tests;
