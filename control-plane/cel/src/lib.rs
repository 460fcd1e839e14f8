//! The Common Expression Language as Kubernetes uses it.
//!
//! Pure: no I/O but the injected [`Authorizer`] and parameter lookups. The parser and the interpreter are the `cel` crate's; here are
//! Kubernetes' libraries, the bound on every evaluation, and what expressions are for: match conditions of webhooks
//! ([`match_conditions`]), admission policies ([`policy`]) and the rules of CRDs ([`rules`]). Upstream counterparts:
//! `apiserver/pkg/cel`, `apiserver/pkg/admission/plugin/{cel,policy}`, `apiextensions-apiserver/pkg/apiserver/schema/cel`.

mod budget;
mod compile;
mod expression;
mod library;
pub mod match_conditions;
pub mod policy;
pub mod rules;
mod value;
mod variables;

pub use budget::{Budget, MATCH_CONDITIONS_BUDGET, MAX_DURATION, PER_CALL_LIMIT, POLICY_BUDGET};
pub use expression::{CompileError, EvalError, Expect, Expression};
pub use library::authz::{Authorizer, Check, Decision, ResourceTarget, Target};
pub use variables::{NamedExpression, Variables};
