//! One expression: compiled once, evaluated often.
//!
//! Upstream counterpart: `apiserver/pkg/admission/plugin/cel` (`compile.go`, `activation.go`).

use cel::{ExecutionError, IdedExpr};
use serde_json::Value;

use crate::budget::{Budget, PER_CALL_LIMIT, Stop, metered};
use crate::compile::{self, Declared, Plain};
use crate::value::output::to_json;
use crate::variables::Variables;

/// What an expression must evaluate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// `true` or `false`.
    Bool,
    /// Text.
    String,
    /// Text or `null` (audit annotations).
    StringOrNull,
    /// A typed literal `Object{...}` (apply configurations).
    Object,
    /// A list of `JSONPatch{...}`.
    JsonPatches,
    /// Anything.
    Any,
    /// Anything, with typed literals (variables of mutating policies).
    Mutation,
}

impl Expect {
    pub(crate) fn admits(self, plain: &Plain) -> bool {
        match (self, plain) {
            (Self::Any | Self::Mutation, _) | (_, Plain::Unknown) => true,
            (Self::Bool, found) => *found == Plain::Bool,
            (Self::String, found) => *found == Plain::Text,
            (Self::StringOrNull, found) => matches!(found, Plain::Text | Plain::Null),
            (Self::Object, found) => *found == Plain::Object("Object".to_owned()),
            (Self::JsonPatches, found) => *found == Plain::List,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::String => "string",
            Self::StringOrNull => "one of [string null_type]",
            Self::Object => "Object",
            Self::JsonPatches => "list(JSONPatch)",
            Self::Any | Self::Mutation => "any",
        }
    }

    fn admits_value(self, value: &Value) -> bool {
        match self {
            Self::Bool => value.is_boolean(),
            Self::String => value.is_string(),
            Self::StringOrNull => value.is_string() || value.is_null(),
            Self::Object => value.is_object(),
            Self::JsonPatches => value.is_array(),
            Self::Any | Self::Mutation => true,
        }
    }
}

/// Why a text is not an expression. Not retryable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The text is wrong: syntax, unknown names, functions that do not take what they get.
    #[error("compilation failed: {0}")]
    Invalid(String),
    /// It plainly evaluates to something else.
    #[error("must evaluate to {expected} but got {found}")]
    WrongType {
        /// What was asked for.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// It is too long.
    #[error(
        "compilation failed: ERROR: <input>:-1:0: expression code point size exceeds limit: size: {length}, limit {limit}"
    )]
    TooLong {
        /// Its length in characters.
        length: usize,
        /// The most.
        limit: usize,
    },
    /// It nests too deep to be evaluated.
    #[error("compilation failed: ERROR: <input>:-1:0: expression recursion limit exceeded: {limit}")]
    TooDeep {
        /// The most.
        limit: usize,
    },
    /// The compiler failed.
    #[error("unexpected compilation error: {0}")]
    Internal(String),
}

/// Why an expression has no value. The words are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// It failed: an absent field, a division by zero, an operand of a wrong type.
    #[error("{0}")]
    Failed(String),
    /// It used more than one expression may.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// The expressions together used more than they may.
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    OutOfBudget,
    /// It ran too long.
    #[error("operation interrupted")]
    Interrupted,
    /// It evaluated to something else than was asked for.
    #[error("must evaluate to {expected}")]
    WrongType {
        /// What was asked for.
        expected: &'static str,
    },
}

impl EvalError {
    /// Whether nothing else may be evaluated under the same budget.
    #[must_use]
    pub fn ends_everything(&self) -> bool {
        matches!(self, Self::OutOfBudget)
    }
}

/// The words of an interpreter's error, as cel-go would have put it.
pub(crate) fn failure(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::UndeclaredReference(name) => format!("no such attribute(s): {name}"),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(cel::Value::Int(at)) => format!("index out of bounds: {at}"),
        ExecutionError::IndexOutOfBounds(_) => "index out of bounds".to_owned(),
        ExecutionError::DuplicateKey(_) => "Failed with repeated key".to_owned(),
        ExecutionError::NoSuchOverload(overload) => {
            let name = overload.function();
            if name.is_empty() || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return "no such overload".to_owned();
            }
            let types = overload.argument_types();
            match types.split_first() {
                Some((receiver, rest)) if overload.is_member_function() => {
                    format!("no such overload: {receiver}.{name}({})", rest.join(", "))
                }
                _ => format!("no such overload: {name}({})", types.join(", ")),
            }
        }
        ExecutionError::InternalError(message) => message.clone(),
        _ => "no such overload".to_owned(),
    }
}

/// Levels of a tree that every stack has room for: one takes up to 25 KiB without optimization.
const SHALLOW: usize = 24;
/// The stack for deeper ones. It is reserved, not used.
const LARGE_STACK: usize = 32 << 20;

fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, EvalError> {
    let failed = |why: String| EvalError::Failed(format!("no stack for the evaluation: {why}"));
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("cel-evaluate".to_owned()).stack_size(LARGE_STACK);
        let running = builder.spawn_scoped(scope, work).map_err(|error| failed(error.to_string()))?;
        running.join().map_err(|_| failed("the evaluation panicked".to_owned()))
    })
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    ast: IdedExpr,
    depth: usize,
    expect: Expect,
    plain: Plain,
    reads: Vec<String>,
}

/// Names whose values only the data knows: upstream declares them as `dyn`.
const DYNAMIC: [&str; 3] = ["object", "oldObject", "params"];

impl Expression {
    /// Compiles `text`, which may read the named variables (`object`, `authorizer.requestResource`, `variables.x`).
    ///
    /// # Errors
    /// [`CompileError`], with upstream's words.
    pub fn compile(text: &str, variables: &[&str], expect: Expect) -> Result<Self, CompileError> {
        let declared: Vec<Declared<'_>> = variables.iter().map(|name| declared(name)).collect();
        Self::compile_declared(text, &declared, expect)
    }

    pub(crate) fn compile_declared(
        text: &str,
        variables: &[Declared<'_>],
        expect: Expect,
    ) -> Result<Self, CompileError> {
        let compiled = compile::compile(text, variables, expect)?;
        let compile::Compiled { ast, depth, plain, reads } = compiled;
        Ok(Self { text: text.to_owned(), ast, depth, expect, plain, reads })
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it reads the variable.
    #[must_use]
    pub fn reads(&self, variable: &str) -> bool {
        self.reads.iter().any(|name| name == variable)
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The variables that it reads.
    pub(crate) fn read_names(&self) -> &[String] {
        &self.reads
    }

    pub(crate) fn plain(&self) -> &Plain {
        &self.plain
    }

    pub(crate) fn ast(&self) -> &IdedExpr {
        &self.ast
    }

    /// Evaluates it, within the cost and time that one expression may use.
    ///
    /// # Errors
    /// [`EvalError`].
    pub fn evaluate(&self, variables: &Variables<'_>) -> Result<Value, EvalError> {
        self.evaluate_within(variables, &mut Budget::new(PER_CALL_LIMIT))
    }

    /// Evaluates it as one of several that share a budget.
    ///
    /// # Errors
    /// [`EvalError`].
    pub fn evaluate_within(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<Value, EvalError> {
        if budget.remaining() == 0 {
            return Err(EvalError::OutOfBudget);
        }
        let mut work = || {
            metered(budget, || {
                let context = variables.context();
                let value = cel::Value::resolve_val(&self.ast, &context)?;
                to_json(value.as_ref())
            })
        };
        let (result, stopped) = if self.depth + variables.depth() <= SHALLOW { work() } else { on_large_stack(work)? };
        match stopped {
            Some(Stop::Call) => return Err(EvalError::CostLimit),
            Some(Stop::Total) => return Err(EvalError::OutOfBudget),
            Some(Stop::Time) => return Err(EvalError::Interrupted),
            None => {}
        }
        let value = result.map_err(|error| EvalError::Failed(failure(&error)))?;
        if self.expect.admits_value(&value) {
            Ok(value)
        } else {
            Err(EvalError::WrongType { expected: self.expect.words() })
        }
    }

    /// [`Self::evaluate_within`] for an expression that must be true or false.
    ///
    /// # Errors
    /// [`EvalError`].
    pub fn holds(&self, variables: &Variables<'_>, budget: &mut Budget) -> Result<bool, EvalError> {
        self.evaluate_within(variables, budget)?
            .as_bool()
            .ok_or(EvalError::WrongType { expected: Expect::Bool.words() })
    }
}

pub(crate) fn declared(name: &str) -> Declared<'_> {
    Declared { name, plain: if DYNAMIC.contains(&name) { Plain::Dyn } else { Plain::Unknown } }
}
