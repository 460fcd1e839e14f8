//! The bundled control plane: store, watch caches, API server and PKI; the program runs scheduler and controllers beside them.
//!
//! A request goes `http` (identity, path, authorization, limits) → `api` (verb) → `keelson_kinds` (pure rules) → `server` (compare and
//! swap) → `store`; a change comes back `store` (log) → `cache` → watchers. Upstream counterpart: `kube-apiserver`.

#![allow(
    clippy::result_large_err,
    reason = "ApiError is what a handler answers with; it is built once per refused request, never on the way of a good one"
)]

pub mod admission;
pub mod api;
pub mod audit;
pub mod auth;
pub mod bootstrap;
pub mod cache;
pub mod custom;
pub mod events;
pub mod http;
pub mod kubelet;
pub mod pki;
pub mod protobuf;
pub mod quota;
pub mod run;
pub mod server;
pub mod services;
pub mod store;
