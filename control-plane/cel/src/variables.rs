//! The variables of an evaluation, borrowed; those of a policy (`variables.x`) are evaluated when they are read, and once.
//!
//! Upstream counterpart: `admission/plugin/cel/activation.go` and `composition.go`.

use std::sync::{Arc, OnceLock};

use cel::common::types::CelOptional;
use cel::common::value::Val;
use cel::{Context, ExecutionError};
use serde_json::Value;

use crate::expression::{Expression, failure};
use crate::library::authz::{self, Authorizer, ResourceTarget};
use crate::value::json::{Fields, FieldsVal, NullVal, wrap};

/// A named expression of a policy's `variables`.
#[derive(Clone, Debug)]
pub struct NamedExpression {
    /// `x` of `variables.x`.
    pub name: String,
    /// What it is; the error is told when it is read.
    pub expression: Result<Expression, crate::expression::CompileError>,
}

/// The variables of one request.
#[derive(Clone, Debug, Default)]
pub struct Variables<'v> {
    bindings: Vec<(&'static str, Box<dyn Val + 'v>)>,
    composed: Option<Arc<Composed<'v>>>,
}

impl<'v> Variables<'v> {
    /// No variables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn bind(mut self, name: &'static str, value: Box<dyn Val + 'v>) -> Self {
        self.bindings.retain(|(bound, _)| *bound != name);
        self.bindings.push((name, value));
        self
    }

    /// A variable that is JSON; absent JSON is `null`.
    #[must_use]
    pub fn json(self, name: &'static str, value: Option<&'v Value>) -> Self {
        let value = value.map_or_else(|| Box::new(NullVal) as Box<dyn Val + 'v>, |value| wrap(value, None));
        self.bind(name, value)
    }

    /// A variable that is JSON of a structural schema.
    #[must_use]
    pub fn typed(self, name: &'static str, value: &'v Value, schema: &'v Value) -> Self {
        self.bind(name, wrap(value, Some(schema)))
    }

    /// A variable that is an optional: JSON of a structural schema, or nothing.
    #[must_use]
    pub fn optional(self, name: &'static str, value: Option<&'v Value>, schema: &'v Value) -> Self {
        let optional = value.map_or_else(CelOptional::none, |value| CelOptional::of(wrap(value, Some(schema))));
        self.bind(name, Box::new(optional))
    }

    /// `authorizer` and `authorizer.requestResource`.
    #[must_use]
    pub fn authorizer(self, authorizer: &Arc<dyn Authorizer>, resource: ResourceTarget) -> Self {
        let own = authz::authorizer_value(Arc::clone(authorizer));
        let resource = authz::resource_value(Arc::clone(authorizer), resource);
        self.bind("authorizer", own).bind("authorizer.requestResource", resource)
    }

    /// A policy's `variables`. Each may read those before it, and what is bound now.
    #[must_use]
    pub fn composed(mut self, expressions: &'v [NamedExpression]) -> Self {
        let cells = expressions.iter().map(|expression| (expression, OnceLock::new())).collect();
        self.composed = Some(Arc::new(Composed { base: self.bindings.clone(), cells }));
        self
    }

    /// The levels that evaluating a variable may add to the stack.
    pub(crate) fn depth(&self) -> usize {
        let cells = self.composed.iter().flat_map(|composed| &composed.cells);
        cells.filter_map(|(named, _)| named.expression.as_ref().ok()).map(Expression::depth).max().unwrap_or(0)
    }

    pub(crate) fn context(&self) -> Context<'v, 'v> {
        context(&self.bindings, self.composed.as_ref().map(|composed| (composed, composed.cells.len())))
    }
}

fn context<'v>(
    bindings: &[(&'static str, Box<dyn Val + 'v>)],
    composed: Option<(&Arc<Composed<'v>>, usize)>,
) -> Context<'v, 'v> {
    let mut context = Context::with_env(Arc::clone(crate::library::env()));
    for (name, value) in bindings {
        context.add_variable_as_val(*name, value.clone());
    }
    if let Some((composed, visible)) = composed {
        let fields = Visible { composed: Arc::clone(composed), visible };
        context.add_variable_as_val("variables", Box::new(FieldsVal(Arc::new(fields))));
    }
    context
}

type Cell<'v> = OnceLock<Result<Box<dyn Val + 'v>, String>>;

#[derive(Debug)]
struct Composed<'v> {
    base: Vec<(&'static str, Box<dyn Val + 'v>)>,
    cells: Vec<(&'v NamedExpression, Cell<'v>)>,
}

impl Composed<'_> {
    /// The variables to evaluate for one, in order and itself last. With those that it reads evaluated before it, a chain of variables
    /// takes no more stack than two.
    fn needed(&self, at: usize) -> Vec<usize> {
        let mut needed = vec![false; at + 1];
        needed[at] = true;
        for later in (0..=at).rev().filter(|later| self.cells[*later].1.get().is_none()) {
            let (true, Ok(expression)) = (needed[later], &self.cells[later].0.expression) else { continue };
            for name in expression.read_names().iter().filter_map(|name| name.strip_prefix("variables.")) {
                if let Some(earlier) = self.cells[..later].iter().rposition(|(named, _)| named.name == name) {
                    needed[earlier] = true;
                }
            }
        }
        (0..=at).filter(|index| needed[*index]).collect()
    }
}

/// The first variables: one cannot read itself or a later one, so evaluation ends and no cell waits for itself.
#[derive(Debug)]
struct Visible<'v> {
    composed: Arc<Composed<'v>>,
    visible: usize,
}

impl<'v> Fields<'v> for Visible<'v> {
    fn field(&self, name: &str) -> Option<Result<Box<dyn Val + 'v>, ExecutionError>> {
        let earlier = &self.composed.cells[..self.visible];
        // The last of a name counts, as in upstream's map.
        let at = earlier.iter().rposition(|(named, _)| named.name == name)?;
        for needed in self.composed.needed(at) {
            let (named, cell) = &self.composed.cells[needed];
            cell.get_or_init(|| evaluate(&self.composed, needed, named));
        }
        Some(match self.composed.cells[at].1.get()? {
            Ok(value) => Ok(value.clone()),
            Err(message) => Err(ExecutionError::function_error("variables", message)),
        })
    }
}

fn evaluate<'v>(composed: &Arc<Composed<'v>>, at: usize, named: &NamedExpression) -> Result<Box<dyn Val + 'v>, String> {
    let expression = named
        .expression
        .as_ref()
        .map_err(|error| format!("composited variable {:?} fails to compile: {error}", named.name))?;
    let context = context(&composed.base, Some((composed, at)));
    let value = cel::Value::resolve_val(expression.ast(), &context);
    let value = value
        .map_err(|error| format!("composited variable {:?} fails to evaluate: {}", named.name, failure(&error)))?;
    Ok(value.into_owned())
}
