//! Match conditions of webhooks and policies: whether a request is for them at all.
//!
//! Upstream counterpart: `admission/plugin/webhook/matchconditions` and `validateMatchConditions` of
//! `pkg/apis/admissionregistration/validation`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::budget::Budget;
use crate::expression::{CompileError, EvalError, Expect, Expression};
use crate::variables::Variables;
use kube_common::field::FieldError;
use kube_common::names;

/// What a webhook's conditions may read.
pub const WEBHOOK_VARIABLES: [&str; 6] =
    ["object", "oldObject", "request", "namespaceObject", "authorizer", "authorizer.requestResource"];
/// The most conditions.
const MAX_CONDITIONS: usize = 64;

/// What an error means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is refused.
    #[default]
    Fail,
    /// The webhook or policy is passed over.
    Ignore,
}

impl FailurePolicy {
    /// Reads `failurePolicy`; anything but `Ignore` fails.
    #[must_use]
    pub fn read(value: &Value) -> Self {
        if value.as_str() == Some("Ignore") { Self::Ignore } else { Self::Fail }
    }
}

/// Whether a webhook or policy is for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// It is.
    Yes,
    /// It is not; the condition that is false, or none if an error is ignored.
    No(Option<String>),
    /// An error, under [`FailurePolicy::Fail`]: the request is refused (403 with upstream's `is forbidden: ` and this text).
    Refused(String),
}

#[derive(Clone, Debug)]
struct Condition {
    name: String,
    text: String,
    expression: Result<Expression, CompileError>,
}

/// The compiled conditions of one webhook or policy.
#[derive(Clone, Debug, Default)]
pub struct MatchConditions {
    conditions: Vec<Condition>,
}

impl MatchConditions {
    /// Compiles `matchConditions`. What does not compile fails when it is evaluated: such a list was stored by another server.
    #[must_use]
    pub fn compile(conditions: &Value, variables: &[&str]) -> Self {
        let conditions = conditions.as_array().into_iter().flatten().map(|condition| {
            let text = condition["expression"].as_str().unwrap_or_default().to_owned();
            let expression = Expression::compile(text.trim(), variables, Expect::Bool);
            Condition { name: condition["name"].as_str().unwrap_or_default().to_owned(), text, expression }
        });
        Self { conditions: conditions.collect() }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// One false condition decides, whatever the others do; else one error does.
    pub fn evaluate(&self, variables: &Variables<'_>, failure: FailurePolicy, budget: &mut Budget) -> Matched {
        let mut errors: Vec<String> = Vec::new();
        for condition in &self.conditions {
            match condition.expression.as_ref().map(|expression| expression.holds(variables, budget)) {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Matched::No(Some(condition.name.clone())),
                Ok(Err(error)) if error.ends_everything() => {
                    errors = vec![error.to_string()];
                    break;
                }
                Ok(Err(error)) => errors.push(evaluation_error(&condition.text, &error)),
                Err(error) => errors.push(format!("compilation error: {error}")),
            }
        }
        errors.dedup();
        match (errors.as_slice(), failure) {
            ([], _) => Matched::Yes,
            (_, FailurePolicy::Ignore) => Matched::No(None),
            ([error], FailurePolicy::Fail) => Matched::Refused(error.clone()),
            (errors, FailurePolicy::Fail) => Matched::Refused(format!("[{}]", errors.join(", "))),
        }
    }
}

/// How upstream reports an expression that failed.
pub(crate) fn evaluation_error(text: &str, error: &EvalError) -> String {
    format!("expression '{text}' resulted in error: {error}")
}

/// What is wrong with `matchConditions`, which may read `variables`.
#[must_use]
pub fn validate(conditions: &Value, path: &str, variables: &[&str]) -> Vec<FieldError> {
    let conditions = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut errors = Vec::new();
    if conditions.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(path, conditions.len(), MAX_CONDITIONS));
    }
    let mut names_seen = BTreeSet::new();
    for (at, condition) in conditions.iter().enumerate() {
        let text = condition["expression"].as_str().unwrap_or_default().trim();
        let field = format!("{path}[{at}].expression");
        if text.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if let Err(error) = Expression::compile(text, variables, Expect::Bool) {
            errors.push(FieldError::invalid(field, text, error.to_string()));
        }
        let name = condition["name"].as_str().unwrap_or_default();
        let field = format!("{path}[{at}].name");
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
            continue;
        }
        for message in names::qualified_name(name) {
            errors.push(FieldError::invalid(field.clone(), name, message));
        }
        if !names_seen.insert(name) {
            errors.push(FieldError::duplicate(field, name));
        }
    }
    errors
}
