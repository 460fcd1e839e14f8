//! ValidatingAdmissionPolicy and its bindings.
//!
//! Upstream counterpart: `admission/plugin/policy/validating` (`validator.go`, `dispatcher.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::params::{self, ParamKind, ParamLookup};
use super::{Attributes, Binding, ResourceKind, Scope, is_policy_resource, list, matching, text, variables};
use crate::budget::{Budget, MATCH_CONDITIONS_BUDGET, POLICY_BUDGET};
use crate::expression::{CompileError, EvalError, Expect, Expression};
use crate::library::authz::Authorizer;
use crate::match_conditions::{FailurePolicy, MatchConditions, Matched, evaluation_error};
use crate::variables::{NamedExpression, Variables};

pub use super::checks::{validate, validate_binding};

/// Longest message of a `messageExpression`, in bytes (upstream's `MaxEvaluatedMessageExpressionSizeBytes`).
const MAX_MESSAGE_BYTES: usize = 5 * 1024;
/// Longest value of an audit annotation, in bytes.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;
/// The annotation that tells of failed validations under the action `Audit`.
const FAILURE_ANNOTATION: &str = "validation.policy.admission.k8s.io/validation_failure";

type Compiled = Result<Expression, CompileError>;

#[derive(Clone, Debug)]
struct Validation {
    text: String,
    expression: Compiled,
    message: String,
    message_expression: Option<Compiled>,
    reason: Option<String>,
}

#[derive(Clone, Debug)]
struct AuditAnnotation {
    key: String,
    text: String,
    expression: Compiled,
}

/// A compiled ValidatingAdmissionPolicy.
#[derive(Clone, Debug)]
pub struct ValidatingPolicy {
    name: String,
    constraints: Value,
    failure: FailurePolicy,
    param_kind: Option<ParamKind>,
    conditions: MatchConditions,
    variables: Vec<NamedExpression>,
    validations: Vec<Validation>,
    annotations: Vec<AuditAnnotation>,
}

impl ValidatingPolicy {
    /// Compiles a stored policy, once. What does not compile fails when it is evaluated, by the policy's failurePolicy.
    #[must_use]
    pub fn compile(policy: &Value) -> Self {
        let spec = &policy["spec"];
        let param_kind = ParamKind::read(&spec["paramKind"]);
        let mut scope = Scope::new(param_kind.is_some(), true, false);
        let conditions = MatchConditions::compile(&spec["matchConditions"], &scope.names);
        let composed = scope.compose(&spec["variables"]);
        let messages = scope.without_authorizer();
        let validations = list(&spec["validations"]).iter().map(|validation| {
            let message_expression = text(validation, "messageExpression");
            Validation {
                text: text(validation, "expression").to_owned(),
                expression: scope.compile(text(validation, "expression"), Expect::Bool),
                message: text(validation, "message").trim().to_owned(),
                message_expression: (!message_expression.is_empty())
                    .then(|| messages.compile(message_expression, Expect::String)),
                reason: validation["reason"].as_str().map(str::to_owned),
            }
        });
        let annotations = list(&spec["auditAnnotations"]).iter().map(|annotation| AuditAnnotation {
            key: text(annotation, "key").to_owned(),
            text: text(annotation, "valueExpression").to_owned(),
            expression: scope.compile(text(annotation, "valueExpression").trim(), Expect::StringOrNull),
        });
        Self {
            name: text(&policy["metadata"], "name").to_owned(),
            constraints: spec["matchConstraints"].clone(),
            failure: FailurePolicy::read(&spec["failurePolicy"]),
            param_kind,
            conditions,
            variables: composed.clone(),
            validations: validations.collect(),
            annotations: annotations.collect(),
        }
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// What the status says after `is forbidden: `, and in its cause.
    pub message: String,
    /// The status' reason.
    pub reason: String,
    /// The status' code.
    pub code: u16,
}

/// What the policies say to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Refusals: the first is the answer.
    pub denials: Vec<Denial>,
    /// `Warning` headers.
    pub warnings: Vec<String>,
    /// Annotations of the audit event.
    pub audit_annotations: BTreeMap<String, String>,
}

/// A decision about one validation.
struct Decision {
    message: String,
    reason: Option<String>,
}

/// What one evaluation with one parameter gave: refusals by the number of the validation, and annotations.
#[derive(Default)]
struct Evaluated {
    refusals: Vec<(usize, Decision)>,
    annotations: Vec<(String, Result<String, String>)>,
}

/// Evaluates all policies with their bindings.
pub fn evaluate(
    policies: &[(&ValidatingPolicy, &[Binding])],
    attributes: &Attributes<'_>,
    lookup: &dyn ParamLookup,
    authorizer: Option<&Arc<dyn Authorizer>>,
) -> Outcome {
    let mut outcome = Outcome::default();
    if is_policy_resource(attributes.resource) {
        return outcome;
    }
    for (policy, bindings) in policies {
        let matched = match matching::matches(&policy.constraints, attributes) {
            Ok(Some(matched)) => matched,
            Ok(None) => continue,
            Err(error) => {
                outcome.refuse_configuration(policy, None, &error);
                continue;
            }
        };
        let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for binding in *bindings {
            let result = evaluate_binding(policy, binding, &matched, attributes, lookup, authorizer);
            match result {
                Err(error) => outcome.refuse_configuration(policy, Some(binding), &error),
                Ok(evaluated) => outcome.apply(policy, binding, evaluated, &mut annotations),
            }
        }
        for (key, values) in annotations {
            outcome.audit_annotations.insert(format!("{}/{key}", policy.name), values.join(", "));
        }
    }
    outcome
}

fn evaluate_binding(
    policy: &ValidatingPolicy,
    binding: &Binding,
    matched: &ResourceKind,
    attributes: &Attributes<'_>,
    lookup: &dyn ParamLookup,
    authorizer: Option<&Arc<dyn Authorizer>>,
) -> Result<Vec<Evaluated>, String> {
    if matching::matches(&binding.match_resources, attributes)?.is_none() {
        return Ok(Vec::new());
    }
    let params = params::collect(policy.param_kind.as_ref(), &binding.param_ref, attributes.namespace, lookup)?;
    let request = attributes.request(matched);
    let evaluate = |param: &Option<Arc<Value>>| {
        let namespace = attributes.variable_namespace();
        let params = policy.param_kind.as_ref().map(|_| param.as_deref());
        policy.evaluate(&variables(attributes, namespace, &request, params, authorizer))
    };
    Ok(params.iter().map(evaluate).collect())
}

impl ValidatingPolicy {
    fn refusal(&self, at: usize, message: String) -> Option<(usize, Decision)> {
        (self.failure == FailurePolicy::Fail).then_some((at, Decision { message, reason: None }))
    }

    fn evaluate<'v>(&'v self, variables: &Variables<'v>) -> Evaluated {
        let mut conditions_budget = Budget::new(MATCH_CONDITIONS_BUDGET);
        match self.conditions.evaluate(variables, FailurePolicy::Fail, &mut conditions_budget) {
            Matched::Yes => {}
            Matched::No(_) => return Evaluated::default(),
            Matched::Refused(error) => {
                return Evaluated { refusals: self.refusal(0, error).into_iter().collect(), ..Evaluated::default() };
            }
        }
        let variables = variables.clone().composed(&self.variables);
        let mut evaluated = Evaluated::default();
        let mut budget = Budget::new(POLICY_BUDGET);
        for (at, validation) in self.validations.iter().enumerate() {
            match self.judge(at, validation, &variables, &mut budget) {
                Ok(refusal) => evaluated.refusals.extend(refusal),
                Err(out_of_budget) => {
                    evaluated.refusals = self.refusal(0, out_of_budget.to_string()).into_iter().collect();
                    return evaluated;
                }
            }
        }
        let mut budget = Budget::new(POLICY_BUDGET);
        for annotation in &self.annotations {
            match annotation.value(&variables, &mut budget) {
                Ok(Some(value)) => evaluated.annotations.push((annotation.key.clone(), Ok(value))),
                Err(error) if self.failure == FailurePolicy::Fail => {
                    evaluated.annotations.push((annotation.key.clone(), Err(error)));
                }
                Ok(None) | Err(_) => {}
            }
        }
        evaluated
    }

    /// What one validation says. The error ends the evaluation.
    fn judge(
        &self,
        at: usize,
        validation: &Validation,
        variables: &Variables<'_>,
        budget: &mut Budget,
    ) -> Result<Option<(usize, Decision)>, EvalError> {
        let expression = match &validation.expression {
            Ok(expression) => expression,
            Err(error) => return Ok(self.refusal(at, format!("compilation error: {error}"))),
        };
        match expression.holds(variables, budget) {
            Ok(true) => Ok(None),
            Ok(false) => {
                let decision = match validation.failure_message(variables, budget) {
                    Ok(message) => {
                        let reason = validation.reason.clone().unwrap_or_else(|| "Invalid".to_owned());
                        Some((at, Decision { message, reason: Some(reason) }))
                    }
                    Err(error) => self.refusal(at, format!("failed messageExpression: {error}")),
                };
                Ok(decision)
            }
            Err(error) if error.ends_everything() => Err(error),
            Err(error) => Ok(self.refusal(at, evaluation_error(&validation.text, &error))),
        }
    }
}

impl Validation {
    /// The message of a validation that is false: the message expression's, the message, the expression. The error is a spent budget.
    fn failure_message(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<String, EvalError> {
        let mut message = String::new();
        if let Some(Ok(expression)) = &self.message_expression {
            match expression.evaluate_within(variables, budget) {
                Ok(value) => value.as_str().unwrap_or_default().trim().clone_into(&mut message),
                Err(error) if error.ends_everything() => return Err(error),
                Err(_) => {}
            }
            if message.len() > MAX_MESSAGE_BYTES || message.contains('\n') {
                message.clear();
            }
        }
        if message.is_empty() {
            message.clone_from(&self.message);
        }
        if message.is_empty() {
            message = format!("failed expression: {}", self.text.trim());
        }
        Ok(message)
    }
}

impl AuditAnnotation {
    fn value(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<Option<String>, String> {
        let expression = self.expression.as_ref().map_err(|error| format!("compilation error: {error}"))?;
        match expression.evaluate_within(variables, budget) {
            Ok(value) => Ok(value.as_str().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())),
            Err(EvalError::WrongType { .. }) => Err(format!(
                "valueExpression '{}' resulted in unsupported return type: dyn. Return type must be either string or null.",
                self.text
            )),
            Err(error) => Err(evaluation_error(&self.text, &error)),
        }
    }
}

impl Outcome {
    fn refuse_configuration(&mut self, policy: &ValidatingPolicy, binding: Option<&Binding>, error: &str) {
        if policy.failure == FailurePolicy::Ignore {
            return;
        }
        let what = if binding.is_some() { "binding" } else { "policy" };
        let message = format!("failed to configure {what}: {error}");
        self.refuse(policy, binding, Decision { message, reason: None });
    }

    fn refuse(&mut self, policy: &ValidatingPolicy, binding: Option<&Binding>, decision: Decision) {
        let bound = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let reason = decision.reason.unwrap_or_else(|| "Invalid".to_owned());
        self.denials.push(Denial {
            message: format!("ValidatingAdmissionPolicy '{}'{bound} denied request: {}", policy.name, decision.message),
            code: code_of(&reason),
            reason,
        });
    }

    fn apply(
        &mut self,
        policy: &ValidatingPolicy,
        binding: &Binding,
        evaluated: Vec<Evaluated>,
        annotations: &mut BTreeMap<String, Vec<String>>,
    ) {
        for Evaluated { refusals, annotations: own } in evaluated {
            for (at, decision) in refusals {
                self.act(policy, binding, at, &decision);
            }
            for (key, value) in own {
                match value {
                    Ok(mut value) => {
                        let end = (0..=MAX_ANNOTATION_BYTES.min(value.len())).rfind(|end| value.is_char_boundary(*end));
                        value.truncate(end.unwrap_or(0));
                        let values = annotations.entry(key).or_default();
                        if !values.contains(&value) {
                            values.push(value);
                        }
                    }
                    Err(message) => self.refuse(policy, Some(binding), Decision { message, reason: None }),
                }
            }
        }
    }

    /// Does what the binding says to do about a refusal.
    fn act(&mut self, policy: &ValidatingPolicy, binding: &Binding, at: usize, decision: &Decision) {
        for action in &binding.actions {
            match action.as_str() {
                "Deny" => {
                    let decision = Decision { message: decision.message.clone(), reason: decision.reason.clone() };
                    self.refuse(policy, Some(binding), decision);
                }
                "Warn" => self.warnings.push(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                    policy.name, binding.name, decision.message
                )),
                "Audit" => {
                    let failure = json!([{
                        "message": decision.message,
                        "policy": binding.policy,
                        "binding": binding.name,
                        "expressionIndex": at,
                        "validationActions": binding.actions,
                    }]);
                    // The first failure is kept: an annotation is written once.
                    self.audit_annotations.entry(FAILURE_ANNOTATION.to_owned()).or_insert_with(|| failure.to_string());
                }
                _ => {}
            }
        }
    }
}

/// The HTTP status of a reason.
fn code_of(reason: &str) -> u16 {
    match reason {
        "Unauthorized" => 401,
        "Forbidden" => 403,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    }
}
