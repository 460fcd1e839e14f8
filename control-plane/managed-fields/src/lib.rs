//! Server-side apply and `metadata.managedFields`, the pure half: no I/O and no clock.
//!
//! - [`fieldpath`]: sets of fields, and FieldsV1, their JSON form;
//! - [`schema`]: which lists and maps have parts and which are one value;
//! - [`typed`]: field sets of values, comparison, merge, removal;
//! - [`managers`]: the list of managers in an object;
//! - [`updated`] and [`applied`]: what an API server calls.
//!
//! Upstream counterparts: `sigs.k8s.io/structured-merge-diff/v6` and `apimachinery/pkg/util/managedfields`.

pub mod error;
pub mod fieldpath;
pub mod managers;
mod operations;
pub mod schema;
pub mod typed;
mod updater;
mod value;
mod versions;

pub use error::{ApplyError, Conflict, Conflicts, ConvertError, UpdateError};
pub use fieldpath::{Path, PathElement, Set};
pub use managers::{ManagerId, Managers, Operation, manager_or_user_agent};
pub use operations::{LAST_APPLIED, Request, applied, updated};
pub use schema::{Deduced, JsonSchema, Type};
pub use versions::{OneType, Versions};
