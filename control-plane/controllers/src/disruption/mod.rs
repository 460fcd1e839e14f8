//! Disruption budgets: how many pods of an application may be evicted right now.
//!
//! The eviction subresource spends what this controller grants. Upstream counterpart: `pkg/controller/disruption`.

mod plan;
pub mod shell;
