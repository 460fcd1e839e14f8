//! `x-kubernetes-validations`: the rules of a CRD's structural schema.
//!
//! Compiled once for a schema, evaluated on every create and update. Rules that read `oldSelf` run only where an old value
//! correlates: through properties, map entries and lists of `x-kubernetes-list-type: map`. What another rule refuses is a warning
//! where nothing changed (ratcheting). Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema/cel/validation.go`.

mod checks;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::budget::{Budget, POLICY_BUDGET};
use crate::compile::{Declared, Plain};
use crate::expression::{CompileError, EvalError, Expect, Expression};
use crate::variables::Variables;
use kube_common::field::FieldError;

pub use checks::validate;

/// Longest message of a `messageExpression`, in bytes.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

#[derive(Clone, Debug)]
struct Rule {
    text: String,
    message: String,
    reason: String,
    /// Where the error is reported, below the value.
    field_path: String,
    optional_old_self: bool,
    expression: Result<Expression, CompileError>,
    message_expression: Option<Expression>,
}

impl Rule {
    fn compile(rule: &Value, schema: &Value) -> Self {
        let text = |field: &str| rule[field].as_str().unwrap_or_default().trim().to_owned();
        let optional_old_self = rule["optionalOldSelf"] == true;
        let message_expression = text("messageExpression");
        Self {
            text: text("rule"),
            message: text("message"),
            reason: text("reason"),
            field_path: checks::normal_path(&text("fieldPath"), schema).unwrap_or_default(),
            optional_old_self,
            expression: compile(rule["rule"].as_str().unwrap_or_default(), schema, optional_old_self, Expect::Bool),
            message_expression: compile(&message_expression, schema, false, Expect::String).ok(),
        }
    }

    fn uses_old_self(&self) -> bool {
        self.expression.as_ref().is_ok_and(|expression| expression.reads("oldSelf"))
    }

    /// How the rule is named in errors.
    fn shown(&self) -> &str {
        if self.message.is_empty() { &self.text } else { &self.message }
    }
}

fn compile(text: &str, schema: &Value, optional: bool, expect: Expect) -> Result<Expression, CompileError> {
    let plain = if schema["x-kubernetes-int-or-string"] == true {
        Plain::Dyn
    } else {
        match schema["type"].as_str() {
            Some("boolean") => Plain::Bool,
            Some("integer") => Plain::Int,
            Some("number") => Plain::Double,
            Some("string") if schema["format"].is_null() => Plain::Text,
            _ => Plain::Unknown,
        }
    };
    let old = if optional { Plain::Unknown } else { plain.clone() };
    let variables = [Declared { name: "self", plain }, Declared { name: "oldSelf", plain: old }];
    Expression::compile_declared(text, &variables, expect)
}

#[derive(Clone, Debug, Default)]
struct Node {
    rules: Vec<Rule>,
    items: Option<Box<Node>>,
    properties: BTreeMap<String, Node>,
    additional: Option<Box<Node>>,
    /// Rules in `allOf` are about the same value.
    all_of: Vec<Node>,
}

impl Node {
    /// The rules of `validation`, which is `schema` or a part of its `allOf`; nothing if there are none.
    fn compile(validation: &Value, schema: &Value) -> Option<Self> {
        let rules = checks::rules(validation).iter().map(|rule| Rule::compile(rule, schema)).collect();
        let child = |field: &str| {
            let (validation, schema) = (validation.get(field)?, schema.get(field)?);
            Self::compile(validation, schema).map(Box::new)
        };
        let properties = validation["properties"].as_object().into_iter().flatten().filter_map(|(name, own)| {
            let schema = schema["properties"].get(name)?;
            Some((name.clone(), Self::compile(own, schema)?))
        });
        let all_of = validation["allOf"].as_array().into_iter().flatten();
        let node = Self {
            rules,
            items: child("items"),
            properties: properties.collect(),
            additional: child("additionalProperties"),
            all_of: all_of.filter_map(|own| Self::compile(own, schema)).collect(),
        };
        let is_empty = node.rules.is_empty()
            && node.items.is_none()
            && node.properties.is_empty()
            && node.additional.is_none()
            && node.all_of.is_empty();
        (!is_empty).then_some(node)
    }
}

/// The compiled rules of one schema.
#[derive(Clone, Debug)]
pub struct RuleSet {
    schema: Arc<Value>,
    root: Node,
}

/// What the rules say to a write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleOutcome {
    /// Refused fields.
    pub errors: Vec<FieldError>,
    /// `Warning` headers: what would be refused if it were new.
    pub warnings: Vec<String>,
}

impl RuleSet {
    /// Compiles the rules of a structural schema; nothing if it has none.
    #[must_use]
    pub fn compile(schema: Arc<Value>) -> Option<Self> {
        let root = Node::compile(&schema, &schema)?;
        Some(Self { schema, root })
    }

    /// Evaluates the rules on an object that is created, or updated from `old`.
    #[must_use]
    pub fn evaluate(&self, object: &Value, old: Option<&Value>) -> RuleOutcome {
        let mut walk = Walk { outcome: RuleOutcome::default(), budget: Budget::new(POLICY_BUDGET) };
        let at = Place { path: String::new(), value: object, old, parent: None };
        // The error is that the budget is spent, and has been reported.
        let _ = walk.node(&self.root, &self.schema, &at);
        walk.outcome
    }
}

/// A value in the object.
struct Place<'a> {
    path: String,
    value: &'a Value,
    /// The value that it correlates with.
    old: Option<&'a Value>,
    /// The nearest value above that correlates, and what with.
    parent: Option<(&'a Value, &'a Value)>,
}

impl<'a> Place<'a> {
    fn child(&self, path: String, value: &'a Value, old: Option<&'a Value>) -> Self {
        Self { path, value, old, parent: self.old.map(|old| (self.value, old)).or(self.parent) }
    }

    fn is_unchanged(&self) -> bool {
        match self.old {
            Some(old) => self.value == old,
            None => self.parent.is_some_and(|(new, old)| new == old),
        }
    }

    /// The path as it is reported; Go prints the root's like this.
    fn shown(&self, below: &str) -> String {
        match format!("{}{below}", self.path) {
            path if path.is_empty() => "<nil>".to_owned(),
            path => path.strip_prefix('.').map(str::to_owned).unwrap_or(path),
        }
    }
}

/// The budget is spent.
struct Spent;

struct Walk {
    outcome: RuleOutcome,
    budget: Budget,
}

impl Walk {
    fn node(&mut self, node: &Node, schema: &Value, at: &Place<'_>) -> Result<(), Spent> {
        if at.value.is_null() {
            return Ok(());
        }
        for rule in &node.rules {
            self.rule(rule, schema, at)?;
        }
        for part in &node.all_of {
            let at = Place { path: at.path.clone(), ..*at };
            self.node(part, schema, &at)?;
        }
        match at.value {
            Value::Array(items) => {
                let Some(own) = &node.items else { return Ok(()) };
                for (index, item) in items.iter().enumerate() {
                    let place = at.child(format!("{}[{index}]", at.path), item, correlated(item, at.old, schema));
                    self.node(own, &schema["items"], &place)?;
                }
            }
            Value::Object(map) => {
                for (key, value) in map {
                    let old = at.old.and_then(|old| old.get(key));
                    if let Some(own) = &node.additional {
                        let place = at.child(format!("{}[{key}]", at.path), value, old);
                        self.node(own, &schema["additionalProperties"], &place)?;
                    }
                    if let Some(own) = node.properties.get(key) {
                        let place = at.child(format!("{}.{key}", at.path), value, old);
                        self.node(own, &schema["properties"][key], &place)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn invalid(&mut self, schema: &Value, at: &Place<'_>, detail: String) {
        self.outcome.errors.push(FieldError::invalid(at.shown(""), kind(schema), detail));
    }

    fn rule(&mut self, rule: &Rule, schema: &Value, at: &Place<'_>) -> Result<(), Spent> {
        let expression = match &rule.expression {
            Ok(expression) => expression,
            Err(error) => {
                self.invalid(schema, at, format!("rule compile error: {error}"));
                return Ok(());
            }
        };
        if rule.uses_old_self() && at.old.is_none() && !rule.optional_old_self {
            return Ok(());
        }
        let variables = variables(rule.optional_old_self, schema, at);
        match expression.holds(&variables, &mut self.budget) {
            Ok(true) => Ok(()),
            Ok(false) => self.refuse(rule, schema, at),
            Err(EvalError::OutOfBudget) => {
                self.invalid(schema, at, OUT_OF_BUDGET.to_owned());
                Err(Spent)
            }
            Err(error @ (EvalError::CostLimit | EvalError::Interrupted)) => {
                let detail = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                    rule.shown()
                );
                self.invalid(schema, at, detail);
                Err(Spent)
            }
            Err(error) if error.to_string().starts_with("no such overload") => {
                let detail = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                    rule.shown()
                );
                self.invalid(schema, at, detail);
                Ok(())
            }
            Err(error) => {
                self.invalid(schema, at, format!("{error} evaluating rule: {}", rule.shown()));
                Ok(())
            }
        }
    }

    /// Reports a rule that does not hold.
    fn refuse(&mut self, rule: &Rule, schema: &Value, at: &Place<'_>) -> Result<(), Spent> {
        let mut detail = None;
        if let Some(expression) = &rule.message_expression {
            match expression.evaluate_within(&variables(false, schema, at), &mut self.budget) {
                Ok(message) => detail = message.as_str().and_then(usable_message),
                Err(EvalError::OutOfBudget) => {
                    let detail = "messageExpression evaluation failed due to running out of cost budget, no further validation \
                                  rules will be run";
                    self.invalid(schema, at, detail.to_owned());
                    return Err(Spent);
                }
                Err(_) => {}
            }
        }
        let detail = detail.unwrap_or_else(|| match rule.message.as_str() {
            "" => format!("failed rule: {}", rule.text),
            message => message.to_owned(),
        });
        let path = at.shown(&rule.field_path);
        let error = match rule.reason.as_str() {
            "FieldValueForbidden" => FieldError::forbidden(path, detail),
            "FieldValueRequired" => FieldError::required(path, detail),
            "FieldValueDuplicate" => FieldError::duplicate(path, kind(schema)),
            _ => FieldError::invalid(path, kind(schema), detail),
        };
        if !rule.uses_old_self() && at.is_unchanged() {
            self.outcome.warnings.push(error.to_string());
        } else {
            self.outcome.errors.push(error);
        }
        Ok(())
    }
}

/// The type that errors show instead of the value.
fn kind(schema: &Value) -> &str {
    schema["type"].as_str().unwrap_or_default()
}

fn variables<'v>(optional: bool, schema: &'v Value, at: &Place<'v>) -> Variables<'v> {
    let variables = Variables::new().typed("self", at.value, schema);
    match (optional, at.old) {
        (true, old) => variables.optional("oldSelf", old, schema),
        (false, Some(old)) => variables.typed("oldSelf", old, schema),
        (false, None) => variables,
    }
}

fn usable_message(message: &str) -> Option<String> {
    let message = message.trim();
    let usable = !message.is_empty() && message.len() <= MAX_MESSAGE_BYTES && !message.contains('\n');
    usable.then(|| message.to_owned())
}

/// The old item with the same keys, in a list of type map.
fn correlated<'a>(item: &Value, old: Option<&'a Value>, schema: &Value) -> Option<&'a Value> {
    if schema["x-kubernetes-list-type"] != "map" {
        return None;
    }
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"].as_array()?.iter().filter_map(Value::as_str).collect();
    old?.as_array()?.iter().find(|old| keys.iter().all(|key| item.get(key) == old.get(key)))
}
