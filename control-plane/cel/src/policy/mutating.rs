//! MutatingAdmissionPolicy and its bindings.
//!
//! An expression gives an apply configuration (`Object{...}`) or JSON patch operations (`[JSONPatch{...}]`); applying them is the
//! server's, through [`Patcher`], since merging needs the kind's schema. Upstream counterpart: `admission/plugin/policy/mutating`.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::checks;
use super::params::{self, ParamKind, ParamLookup};
use super::validating::Denial;
use super::{Attributes, Binding, ResourceKind, Scope, is_policy_resource, list, matching, text, variables};
use crate::budget::{Budget, MATCH_CONDITIONS_BUDGET, POLICY_BUDGET};
use crate::expression::{CompileError, Expect, Expression};
use crate::library::authz::Authorizer;
use crate::match_conditions::{self, FailurePolicy, MatchConditions, Matched, evaluation_error};
use crate::variables::{NamedExpression, Variables};
use kube_common::field::FieldError;

const FORBIDDEN: u16 = 403;

/// Applies what policies ask for to an object.
pub trait Patcher {
    /// Merges an apply configuration into the object, as server-side apply merges, without owners; what it would replace whole (an
    /// atomic list, map or struct) is refused.
    ///
    /// # Errors
    /// Why it does not fit the kind's schema.
    fn apply_configuration(&self, object: &Value, configuration: &Value) -> Result<Value, String>;
    /// Applies JSON patch operations; nothing if a `test` among them fails, which leaves the object as it is.
    ///
    /// # Errors
    /// Why they cannot be applied.
    fn json_patch(&self, object: &Value, operations: &Value) -> Result<Option<Value>, String>;
    /// Sets the kind's defaults after a patch.
    fn default(&self, object: Value) -> Value {
        object
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchType {
    ApplyConfiguration,
    JsonPatch,
}

#[derive(Clone, Debug)]
struct Mutation {
    patch: PatchType,
    text: String,
    expression: Result<Expression, CompileError>,
}

/// A compiled MutatingAdmissionPolicy.
#[derive(Clone, Debug)]
pub struct MutatingPolicy {
    name: String,
    constraints: Value,
    failure: FailurePolicy,
    param_kind: Option<ParamKind>,
    conditions: MatchConditions,
    variables: Vec<NamedExpression>,
    mutations: Vec<Mutation>,
    is_reinvoked: bool,
}

impl MutatingPolicy {
    /// Compiles a stored policy, once. What does not compile fails when it is evaluated, by the policy's failurePolicy.
    #[must_use]
    pub fn compile(policy: &Value) -> Self {
        let spec = &policy["spec"];
        let param_kind = ParamKind::read(&spec["paramKind"]);
        let mut scope = Scope::new(param_kind.is_some(), true, true);
        let conditions = MatchConditions::compile(&spec["matchConditions"], &scope.names);
        let variables = scope.compose(&spec["variables"]);
        let mutations = list(&spec["mutations"]).iter().map(|mutation| {
            let (patch, field, expect) = shape(mutation);
            let text = text(&mutation[field], "expression").to_owned();
            Mutation { patch, expression: scope.compile(&text, expect), text }
        });
        Self {
            name: text(&policy["metadata"], "name").to_owned(),
            constraints: spec["matchConstraints"].clone(),
            failure: FailurePolicy::read(&spec["failurePolicy"]),
            param_kind,
            conditions,
            mutations: mutations.collect(),
            variables,
            is_reinvoked: spec["reinvocationPolicy"] == "IfNeeded",
        }
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn shape(mutation: &Value) -> (PatchType, &'static str, Expect) {
    if mutation["patchType"] == "JSONPatch" {
        (PatchType::JsonPatch, "jsonPatch", Expect::JsonPatches)
    } else {
        (PatchType::ApplyConfiguration, "applyConfiguration", Expect::Object)
    }
}

/// Policy, binding, parameter's namespace and name.
type Key = (String, String, String, String);

/// Which policies run again, kept through one request's passes.
#[derive(Clone, Debug, Default)]
pub struct Reinvocation {
    is_second_pass: bool,
    /// Run with `reinvocationPolicy: IfNeeded`, and nothing changed since.
    settled: BTreeSet<Key>,
    pending: BTreeSet<Key>,
    last_output: Option<Value>,
}

impl Reinvocation {
    /// Before the second pass: whether any policy has to run again on the object as it is now.
    pub fn second_pass(&mut self, object: &Value) -> bool {
        self.is_second_pass = true;
        if self.last_output.as_ref() != Some(object) {
            self.require();
        }
        !self.pending.is_empty()
    }

    fn require(&mut self) {
        self.pending.append(&mut self.settled);
    }
}

/// What the policies did to a request's object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MutationOutcome {
    /// The object, if it changed.
    pub object: Option<Value>,
    /// Refusals: the first is the answer, all are its causes. The messages are whole, without `is forbidden`.
    pub denials: Vec<Denial>,
}

struct Invocation<'a> {
    policy: &'a MutatingPolicy,
    binding: &'a Binding,
    matched: ResourceKind,
    param: Option<Arc<Value>>,
}

impl Invocation<'_> {
    fn key(&self) -> Key {
        let part = |field: &str| {
            self.param.as_ref().map(|param| text(&param["metadata"], field).to_owned()).unwrap_or_default()
        };
        (self.policy.name.clone(), self.binding.name.clone(), part("namespace"), part("name"))
    }
}

impl MutationOutcome {
    fn refuse(&mut self, policy: &MutatingPolicy, binding: Option<&Binding>, error: &str, reason: &str) {
        if policy.failure == FailurePolicy::Ignore {
            return;
        }
        let message = match binding {
            Some(binding) => {
                format!("policy '{}' with binding '{}' denied request: {error}", policy.name, binding.name)
            }
            None => format!("policy {:?} denied request: {error}", policy.name),
        };
        self.denials.push(Denial { message, reason: reason.to_owned(), code: FORBIDDEN });
    }

    /// The policies that are for the request, as it came, with their parameters.
    fn invocations<'a>(
        &mut self,
        policies: &[(&'a MutatingPolicy, &'a [Binding])],
        attributes: &Attributes<'_>,
        lookup: &dyn ParamLookup,
    ) -> Vec<Invocation<'a>> {
        let mut invocations = Vec::new();
        for (policy, bindings) in policies {
            let matched = match matching::matches(&policy.constraints, attributes) {
                Ok(Some(matched)) => matched,
                Ok(None) => continue,
                Err(error) => {
                    self.refuse(policy, None, &format!("failed to configure policy: {error}"), "Forbidden");
                    continue;
                }
            };
            for binding in *bindings {
                let collect = || {
                    if matching::matches(&binding.match_resources, attributes)?.is_none() {
                        return Ok(Vec::new());
                    }
                    params::collect(policy.param_kind.as_ref(), &binding.param_ref, attributes.namespace, lookup)
                };
                match collect() {
                    Ok(params) => invocations.extend(params.into_iter().map(|param| Invocation {
                        policy,
                        binding,
                        matched: matched.clone(),
                        param,
                    })),
                    Err(error) => {
                        self.refuse(
                            policy,
                            Some(binding),
                            &format!("failed to configure binding: {error}"),
                            "Forbidden",
                        );
                    }
                }
            }
        }
        invocations
    }
}

/// Evaluates all policies with their bindings, in order, each on what those before it left.
pub fn evaluate(
    policies: &[(&MutatingPolicy, &[Binding])],
    attributes: &Attributes<'_>,
    lookup: &dyn ParamLookup,
    authorizer: Option<&Arc<dyn Authorizer>>,
    patcher: &dyn Patcher,
    reinvocation: &mut Reinvocation,
) -> MutationOutcome {
    let mut outcome = MutationOutcome::default();
    let (Some(original), false) = (attributes.object, is_policy_resource(attributes.resource)) else { return outcome };
    let mut object = original.clone();
    for invocation in outcome.invocations(policies, attributes, lookup) {
        let Invocation { policy, binding, .. } = invocation;
        match conditions(&invocation, &object, attributes, authorizer) {
            Matched::Yes => {}
            Matched::No(_) => continue,
            Matched::Refused(error) => {
                outcome.refuse(policy, Some(binding), &error, "Invalid");
                continue;
            }
        }
        let key = invocation.key();
        if reinvocation.is_second_pass && !reinvocation.pending.contains(&key) {
            continue;
        }
        let before = object.clone();
        for mutation in &policy.mutations {
            match mutate(&invocation, mutation, &object, attributes, authorizer, patcher) {
                Ok(changed) => object = changed,
                Err(error) => outcome.refuse(policy, Some(binding), &error, "Invalid"),
            }
        }
        if object != before {
            reinvocation.require();
        }
        if policy.is_reinvoked {
            reinvocation.settled.insert(key);
        }
    }
    reinvocation.last_output = Some(object.clone());
    if object != *original {
        outcome.object = Some(object);
    }
    outcome
}

/// The variables of an invocation, on the object as it is now.
fn bind<'v>(
    invocation: &'v Invocation<'_>,
    attributes: &Attributes<'v>,
    namespace: Option<&'v Value>,
    request: &'v Value,
    authorizer: Option<&Arc<dyn Authorizer>>,
) -> Variables<'v> {
    let params = invocation.policy.param_kind.as_ref().map(|_| invocation.param.as_deref());
    variables(attributes, namespace, request, params, authorizer)
}

/// Whether the policy is for the object as it is now.
fn conditions(
    invocation: &Invocation<'_>,
    object: &Value,
    attributes: &Attributes<'_>,
    authorizer: Option<&Arc<dyn Authorizer>>,
) -> Matched {
    let request = attributes.request(&invocation.matched);
    let attributes = Attributes { object: Some(object), ..attributes.clone() };
    let variables = bind(invocation, &attributes, attributes.variable_namespace(), &request, authorizer);
    let mut budget = Budget::new(MATCH_CONDITIONS_BUDGET);
    invocation.policy.conditions.evaluate(&variables, FailurePolicy::Fail, &mut budget)
}

fn mutate(
    invocation: &Invocation<'_>,
    mutation: &Mutation,
    object: &Value,
    attributes: &Attributes<'_>,
    authorizer: Option<&Arc<dyn Authorizer>>,
    patcher: &dyn Patcher,
) -> Result<Value, String> {
    let expression = mutation.expression.as_ref().map_err(ToString::to_string)?;
    let request = attributes.request(&invocation.matched);
    let attributes = Attributes { object: Some(object), ..attributes.clone() };
    let variables = bind(invocation, &attributes, attributes.variable_namespace(), &request, authorizer);
    let variables = variables.composed(&invocation.policy.variables);
    let result = expression.evaluate_within(&variables, &mut Budget::new(POLICY_BUDGET));
    let patch = result.map_err(|error| evaluation_error(&mutation.text, &error))?;
    let changed = match mutation.patch {
        PatchType::ApplyConfiguration => {
            let mut configuration = patch;
            for field in ["apiVersion", "kind"] {
                if !object[field].is_null() {
                    configuration[field] = object[field].clone();
                }
            }
            let changed = patcher.apply_configuration(object, &configuration);
            changed.map_err(|error| format!("error applying patch: {error}"))?
        }
        PatchType::JsonPatch => {
            let changed = patcher.json_patch(object, &operations(&patch)?);
            match changed.map_err(|error| format!("JSONPath: {error}"))? {
                Some(changed) => changed,
                None => return Ok(object.clone()),
            }
        }
    };
    Ok(patcher.default(changed))
}

/// The operations as JSON patch has them.
fn operations(patch: &Value) -> Result<Value, String> {
    const MISMATCH: &str = "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch";
    let one = |operation: &Value| {
        let mut out = Map::new();
        for field in ["op", "path", "from"] {
            match &operation[field] {
                Value::String(text) => drop(out.insert(field.to_owned(), text.as_str().into())),
                Value::Null if field == "from" => {}
                _ => return Err(MISMATCH.to_owned()),
            }
        }
        if let Some(value) = operation.get("value") {
            out.insert("value".to_owned(), value.clone());
        }
        Ok(Value::Object(out))
    };
    list(patch).iter().map(one).collect::<Result<Vec<_>, _>>().map(Value::from)
}

/// What is wrong with the spec of a MutatingAdmissionPolicy (defaults already set).
#[must_use]
pub fn validate(policy: &Value) -> Vec<FieldError> {
    let spec = &policy["spec"];
    let mut errors = Vec::new();
    checks::common(spec, &mut errors);
    let mut scope = Scope::new(spec["paramKind"].is_object(), true, true);
    errors.extend(match_conditions::validate(&spec["matchConditions"], "spec.matchConditions", &scope.names));
    checks::check_variables(&spec["variables"], &mut scope, &mut errors);
    let mutations = list(&spec["mutations"]);
    if mutations.is_empty() {
        errors.push(FieldError::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (at, mutation) in mutations.iter().enumerate() {
        let path = format!("spec.mutations[{at}]");
        match mutation["patchType"].as_str() {
            Some("ApplyConfiguration" | "JSONPatch") => {}
            Some(other) => {
                let valid = ["ApplyConfiguration", "JSONPatch"];
                errors.push(FieldError::not_supported(format!("{path}.patchType"), other, &valid));
                continue;
            }
            None => {
                errors.push(FieldError::required(format!("{path}.patchType"), ""));
                continue;
            }
        }
        let (_, field, expect) = shape(mutation);
        let expression = text(&mutation[field], "expression");
        let own = format!("{path}.{field}.expression");
        if mutation[field].is_null() {
            let detail = format!("must be specified when patchType is {}", text(mutation, "patchType"));
            errors.push(FieldError::required(format!("{path}.{field}"), detail));
        } else if expression.trim().is_empty() {
            errors.push(FieldError::required(own, "expression is not specified"));
        } else {
            checks::check_expression(scope.compile(expression, expect), expression, own, &mut errors);
        }
    }
    checks::one_of(&spec["reinvocationPolicy"], "spec.reinvocationPolicy", &["IfNeeded", "Never"], &mut errors);
    errors
}

/// What is wrong with the spec of a MutatingAdmissionPolicyBinding (defaults already set).
#[must_use]
pub fn validate_binding(binding: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    checks::check_binding(&binding["spec"], &mut errors);
    errors
}
