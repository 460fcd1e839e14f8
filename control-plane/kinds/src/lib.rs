//! The API server's pure half: what every kind is, and what may be done to its objects.
//!
//! No I/O and no clock: time, unique ids and random suffixes are passed in through [`WriteContext`]. Objects are
//! `serde_json::Value`s whose shape is checked against the schemas of the `k8s-openapi` types, so that a value is kept as it was sent
//! and only what the schema does not know is dropped. Upstream counterparts: `pkg/registry` (strategies), `pkg/apis/*` (defaults and
//! validation), `apimachinery` (decoding, patches, Status errors, tables) and `kube-openapi`.
//!
//! How a server uses it, for one write:
//! 1. [`lookup`] finds the [`Resource`] for the URL;
//! 2. [`decode::body`] turns the bytes into a checked, pruned and defaulted object;
//! 3. [`write::create`] or [`write::update`] prepares it (metadata, status split, generation) and validates it;
//! 4. the server allocates what only it can (service addresses), stores it under [`Resource::key`] and answers, perhaps as a
//!    [`table`].
//!
//! Custom kinds are resources like these once their definition is registered: a server with a [`custom::Registry`] asks it in place of
//! [`lookup`], [`by_kind`] and [`resources`] wherever a client names the kind.
//!
//! A patch goes through [`patch::apply`], then [`decode::object`], then [`write::update`]. A delete asks [`deletion::begin`].

pub mod custom;
pub mod decode;
pub mod deletion;
pub mod discovery;
pub mod error;
pub mod kinds;
mod list_types;
mod merge_keys;
mod meta;
pub mod openapi;
pub mod ownership;
pub mod patch;
pub mod resource;
pub mod resource_names;
pub mod scale;
pub mod schema;
pub mod static_pod;
pub mod strategy;
pub mod table;
pub mod time;
mod val;
pub mod write;

pub use kube_common::names;

pub use error::{ApiError, Cause, CauseKind, FieldError, Reason};
pub use resource::{Resource, Scope, Subresource, Verb, by_kind, lookup, resources};
pub use strategy::Strategy;
pub use write::WriteContext;
