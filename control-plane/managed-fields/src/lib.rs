//! Server-side apply and `metadata.managedFields`, the pure half: no I/O and no clock.
//!
//! - [`fieldpath`]: sets of fields, and FieldsV1, their JSON form;
//! - [`schema`]: which lists and maps have parts and which are one value;
//! - [`typed`]: field sets of values, comparison, merge, removal.
//!
//! Upstream counterpart: `sigs.k8s.io/structured-merge-diff/v6`.

pub mod fieldpath;
pub mod schema;
pub mod typed;
mod value;

pub use fieldpath::{Path, PathElement, Set};
pub use schema::{Deduced, JsonSchema, Type};
