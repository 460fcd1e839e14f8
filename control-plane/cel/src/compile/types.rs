//! What the syntax tree says about the type of an expression.
//!
//! Not a type checker: everything that is not plain is [`Plain::Unknown`], and accepted.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};

/// A type that can be told without evaluating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    /// Not plain.
    Unknown,
    /// A value that only the data has: upstream refuses it where a bool or a string must come out.
    Dyn,
    /// Nothing but `null`.
    Null,
    /// `bool`.
    Bool,
    /// `int`.
    Int,
    /// `uint`.
    Uint,
    /// `double`.
    Double,
    /// `string`.
    Text,
    /// `bytes`.
    Bytes,
    /// A list.
    List,
    /// A map.
    Map,
    /// A typed literal, by its type's name.
    Object(String),
}

impl Plain {
    /// As upstream's messages have it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Unknown | Self::Dyn => "dyn",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::List => "list(dyn)",
            Self::Map => "map(dyn, dyn)",
            Self::Object(name) => return name.clone(),
        }
        .to_owned()
    }

    /// Whether an operator can be judged by it.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown | Self::Dyn | Self::Null | Self::Object(_))
    }
}

/// Functions by what they give, however they are called.
const BOOL_FUNCTIONS: [&str; 22] = [
    "bool",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "hasValue",
    "isSorted",
    "isURL",
    "isQuantity",
    "isInteger",
    "isGreaterThan",
    "isLessThan",
    "isIP",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "isCanonical",
    "isSemver",
    "allowed",
    "errored",
    "isLoopback",
    "isUnspecified",
];
const TEXT_FUNCTIONS: [&str; 15] = [
    "string",
    "lowerAscii",
    "upperAscii",
    "trim",
    "replace",
    "join",
    "substring",
    "charAt",
    "format",
    "find",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
];
const INT_FUNCTIONS: [&str; 7] = ["int", "size", "indexOf", "lastIndexOf", "compareTo", "sign", "asInteger"];
const LIST_FUNCTIONS: [&str; 2] = ["split", "findAll"];

/// Fields of `request` and what they are.
const REQUEST_TEXT: [&str; 11] = [
    "subResource",
    "requestSubResource",
    "name",
    "namespace",
    "operation",
    "group",
    "version",
    "kind",
    "resource",
    "username",
    "uid",
];

pub(super) fn of(expr: &IdedExpr, variable: &dyn Fn(&str) -> Plain) -> Plain {
    match &expr.expr {
        Expr::Unspecified => Plain::Unknown,
        Expr::Literal(literal) => match literal {
            LiteralValue::Boolean(_) => Plain::Bool,
            LiteralValue::Bytes(_) => Plain::Bytes,
            LiteralValue::Double(_) => Plain::Double,
            LiteralValue::Int(_) => Plain::Int,
            LiteralValue::Null => Plain::Null,
            LiteralValue::String(_) => Plain::Text,
            LiteralValue::UInt(_) => Plain::Uint,
        },
        Expr::List(_) => Plain::List,
        Expr::Map(_) => Plain::Map,
        Expr::Struct(literal) => Plain::Object(literal.type_name.clone()),
        Expr::Ident(name) => variable(name),
        Expr::Select(select) if select.test => Plain::Bool,
        Expr::Select(_) => of_select(expr, variable),
        Expr::Comprehension(parts) => of_comprehension(parts),
        Expr::Call(call) => of_call(call, variable),
    }
}

fn of_select(expr: &IdedExpr, variable: &dyn Fn(&str) -> Plain) -> Plain {
    let Some(path) = super::check::segments(expr) else {
        let Expr::Select(select) = &expr.expr else { return Plain::Unknown };
        return if of(&select.operand, variable) == Plain::Dyn { Plain::Dyn } else { Plain::Unknown };
    };
    let known = variable(&path.join("."));
    if known != Plain::Unknown {
        return known;
    }
    match path.as_slice() {
        ["request", "dryRun"] => Plain::Bool,
        ["request", .., last] if path.len() <= 3 && REQUEST_TEXT.contains(last) && !is_record(&path) => Plain::Text,
        [root, ..] if variable(root) == Plain::Dyn => Plain::Dyn,
        _ => Plain::Unknown,
    }
}

/// `request.kind` and `request.resource` are records of text.
fn is_record(path: &[&str]) -> bool {
    matches!(path, ["request", "kind" | "resource"])
}

fn of_comprehension(parts: &ComprehensionExpr) -> Plain {
    match (&parts.accu_init.expr, &parts.result.expr) {
        (Expr::Literal(LiteralValue::Boolean(_)), Expr::Ident(_)) => Plain::Bool,
        (_, Expr::Call(call)) if call.func_name == operators::EQUALS => Plain::Bool,
        (Expr::List(_), Expr::Ident(_)) => Plain::List,
        _ => Plain::Unknown,
    }
}

fn of_call(call: &CallExpr, variable: &dyn Fn(&str) -> Plain) -> Plain {
    let arg = |at: usize| call.args.get(at).map_or(Plain::Unknown, |arg| of(arg, variable));
    match call.func_name.as_str() {
        operators::LOGICAL_AND
        | operators::LOGICAL_OR
        | operators::LOGICAL_NOT
        | operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS
        | operators::IN => Plain::Bool,
        operators::CONDITIONAL => match (arg(1), arg(2)) {
            (left, right) if left == right => left,
            _ => Plain::Unknown,
        },
        operators::ADD | operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO => {
            match (arg(0), arg(1)) {
                (left, right) if left == right => left,
                (known, Plain::Dyn) | (Plain::Dyn, known) if known.is_known() => known,
                _ => Plain::Unknown,
            }
        }
        operators::INDEX if arg(0) == Plain::Dyn => Plain::Dyn,
        name if BOOL_FUNCTIONS.contains(&name) => Plain::Bool,
        name if TEXT_FUNCTIONS.contains(&name) => Plain::Text,
        name if INT_FUNCTIONS.contains(&name) => Plain::Int,
        name if LIST_FUNCTIONS.contains(&name) => Plain::List,
        "double" | "asApproximateFloat" => Plain::Double,
        "uint" => Plain::Uint,
        _ => Plain::Unknown,
    }
}
