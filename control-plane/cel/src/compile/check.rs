//! Names: every variable is declared, every function exists and may be called so, every typed literal has its place.
//!
//! Upstream counterpart: cel-go's checker, whose messages these are.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, SourceInfo, StructExpr, operators};
use cel::common::value::CowVal;

use super::depth::children;
use super::types::{self, Plain};
use super::{Declared, Issue, offset_of};
use crate::expression::Expect;
use crate::library::{self, Shape, TYPE_NAMES};

pub(super) struct Checked {
    pub issues: Vec<Issue>,
    pub plain: Plain,
    pub reads: Vec<String>,
}

struct Checker<'a> {
    source: &'a SourceInfo,
    variables: &'a [Declared<'a>],
    /// Variables of the comprehensions around.
    local: Vec<&'a str>,
    typed_literals: bool,
    issues: Vec<Issue>,
    reads: Vec<String>,
}

pub(super) fn check(ast: &IdedExpr, source: &SourceInfo, variables: &[Declared<'_>], expect: Expect) -> Checked {
    let typed_literals = matches!(expect, Expect::Object | Expect::JsonPatches | Expect::Mutation);
    let mut checker =
        Checker { source, variables, local: Vec::new(), typed_literals, issues: Vec::new(), reads: Vec::new() };
    checker.visit(ast);
    let plain = checker.plain(ast);
    let Checker { mut issues, reads, .. } = checker;
    issues.sort_by_key(|issue| issue.at);
    Checked { issues, plain, reads }
}

/// The segments of a chain of names: `a.b.c`.
pub(super) fn segments(expr: &IdedExpr) -> Option<Vec<&str>> {
    let mut out = Vec::new();
    let mut at = expr;
    loop {
        match &at.expr {
            Expr::Ident(name) => {
                out.push(name.as_str());
                out.reverse();
                return Some(out);
            }
            Expr::Select(select) if !select.test => {
                out.push(select.field.as_str());
                at = &select.operand;
            }
            _ => return None,
        }
    }
}

impl<'a> Checker<'a> {
    fn report(&mut self, id: u64, message: String) {
        self.issues.push(Issue { at: offset_of(self.source, id), message });
    }

    fn plain(&self, expr: &IdedExpr) -> Plain {
        let variable = |name: &str| {
            let root = name.split('.').next().unwrap_or(name);
            if self.local.contains(&root) {
                return Plain::Unknown;
            }
            self.variables.iter().find(|known| known.name == name).map_or(Plain::Unknown, |known| known.plain.clone())
        };
        types::of(expr, &variable)
    }

    fn visit(&mut self, expr: &'a IdedExpr) {
        match &expr.expr {
            Expr::Ident(name) => self.name(expr, &[name]),
            Expr::Select(select) => {
                // `has(a.b)` asks for a field: only `a` is a name.
                let chain = if select.test { segments(&select.operand) } else { segments(expr) };
                match chain {
                    Some(chain) => self.name(if select.test { &select.operand } else { expr }, &chain),
                    None => self.visit(&select.operand),
                }
            }
            Expr::Call(call) => self.call(expr, call),
            Expr::Comprehension(parts) => {
                self.visit(&parts.iter_range);
                self.visit(&parts.accu_init);
                self.local.push(&parts.iter_var);
                self.local.push(&parts.accu_var);
                self.visit(&parts.loop_cond);
                self.visit(&parts.loop_step);
                self.visit(&parts.result);
                self.local.truncate(self.local.len() - 2);
            }
            Expr::Struct(literal) => self.typed_literal(expr, literal),
            _ => children(expr, &mut |child| self.visit(child)),
        }
    }

    /// A name, with the fields that are selected on it.
    fn name(&mut self, expr: &IdedExpr, chain: &[&str]) {
        let root = chain[0];
        if root.starts_with('@') || self.local.contains(&root) {
            return;
        }
        let absolute = root.strip_prefix('.').unwrap_or(root);
        for length in (1..=chain.len()).rev() {
            let mut name = chain[..length].join(".");
            if let Some(rest) = name.strip_prefix('.') {
                name = rest.to_owned();
            }
            if self.variables.iter().any(|known| known.name == name) {
                if !self.reads.contains(&name) {
                    self.reads.push(name);
                }
                return;
            }
        }
        if TYPE_NAMES.contains(&absolute) {
            return;
        }
        let is_record =
            self.variables.iter().any(|known| known.name.split_once('.').is_some_and(|(own, _)| own == absolute));
        match chain.get(1) {
            Some(field) if is_record || absolute == "variables" && self.has_composition() => {
                self.report(self.second(expr, chain.len()), format!("undefined field '{field}'"));
            }
            _ => self.report(self.first(expr), format!("undeclared reference to '{absolute}' (in container '')")),
        }
    }

    fn has_composition(&self) -> bool {
        self.variables.iter().any(|known| known.name.starts_with("variables."))
    }

    /// The id of the root of a chain.
    fn first(&self, expr: &IdedExpr) -> u64 {
        match &expr.expr {
            Expr::Select(select) => self.first(&select.operand),
            _ => expr.id,
        }
    }

    /// The id of the first selection in a chain of so many names.
    fn second(&self, expr: &IdedExpr, length: usize) -> u64 {
        match &expr.expr {
            Expr::Select(select) if length > 2 => self.second(&select.operand, length - 1),
            _ => expr.id,
        }
    }

    fn call(&mut self, expr: &IdedExpr, call: &'a CallExpr) {
        let name = call.func_name.as_str();
        if let Some(target) = &call.target {
            let qualified = segments(target)
                .filter(|chain| !self.local.contains(&chain[0]))
                .map(|chain| format!("{}.{name}", chain.join(".")))
                .filter(|qualified| library::shapes(qualified).is_some());
            match qualified {
                Some(qualified) => self.function(expr, &qualified, None, call),
                None => {
                    self.visit(target);
                    self.function(expr, name, Some(target), call);
                }
            }
        } else if !self.operator(expr, call) {
            self.function(expr, name, None, call);
        }
        call.args.iter().for_each(|arg| self.visit(arg));
    }

    fn function(&mut self, expr: &IdedExpr, name: &str, target: Option<&IdedExpr>, call: &CallExpr) {
        let Some(shapes) = library::shapes(name) else {
            self.report(expr.id, format!("undeclared reference to '{name}' (in container '')"));
            return;
        };
        let shape = Shape { member: target.is_some(), arity: call.args.len() };
        if !shapes.contains(&shape) {
            let args: Vec<String> = call.args.iter().map(|arg| self.plain(arg).name()).collect();
            let receiver = target.map(|target| format!("{}.", self.plain(target).name())).unwrap_or_default();
            self.no_overload(expr.id, name, &format!("{receiver}({})", args.join(", ")));
            return;
        }
        self.literal_argument(name, target, call);
    }

    fn no_overload(&mut self, id: u64, name: &str, applied: &str) {
        self.report(id, format!("found no matching overload for '{name}' applied to '{applied}'"));
    }

    /// Bad literals are found here instead of with every evaluation.
    fn literal_argument(&mut self, name: &str, target: Option<&IdedExpr>, call: &CallExpr) {
        let at = match name {
            "matches" if target.is_none() => 1,
            "matches" | "duration" | "timestamp" => 0,
            _ => return,
        };
        let Some(arg) = call.args.get(at) else { return };
        let Expr::Literal(LiteralValue::String(text)) = &arg.expr else { return };
        let fine = if name == "matches" {
            library::regex::compile(text.inner()).is_ok()
        } else {
            let args = vec![CowVal::owned(text.clone())];
            library::env().find_overload(name, &args).is_some_and(|op| op(args).is_ok())
        };
        if !fine {
            self.report(arg.id, format!("invalid {name} argument"));
        }
    }

    /// Whether the call is an operator; reports one that cannot work.
    fn operator(&mut self, expr: &IdedExpr, call: &CallExpr) -> bool {
        let name = call.func_name.as_str();
        let plain: Vec<Plain> = call.args.iter().map(|arg| self.plain(arg)).collect();
        let wrong = match (name, plain.as_slice()) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, operands) => {
                operands.iter().any(|operand| operand.is_known() && *operand != Plain::Bool)
            }
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::ADD
                | operators::SUBSTRACT
                | operators::MULTIPLY
                | operators::DIVIDE
                | operators::MODULO,
                [left, right],
            ) => left.is_known() && right.is_known() && left != right,
            _ => false,
        };
        if wrong {
            let names: Vec<String> = plain.iter().map(Plain::name).collect();
            self.no_overload(expr.id, name, &format!("({})", names.join(", ")));
        }
        // Only operators have these signs in their names.
        name.starts_with(['_', '!', '-', '@'])
    }

    fn typed_literal(&mut self, expr: &'a IdedExpr, literal: &'a StructExpr) {
        let name = literal.type_name.as_str();
        let is_patch = name == "JSONPatch";
        let is_object = name == "Object" || name.starts_with("Object.");
        if !self.typed_literals || !(is_patch || is_object) {
            self.report(expr.id, format!("undeclared reference to '{name}' (in container '')"));
        }
        for entry in &literal.entries {
            let EntryExpr::StructField(field) = &entry.expr else { continue };
            if is_patch && !["op", "path", "from", "value"].contains(&field.field.as_str()) {
                self.report(entry.id, format!("undefined field '{}'", field.field));
            }
            if is_object {
                self.nested_type(&field.value, &format!("{name}.{}", field.field));
            }
            self.visit(&field.value);
        }
    }

    /// A typed literal in a field has the type of that field.
    fn nested_type(&mut self, value: &IdedExpr, expected: &str) {
        match &value.expr {
            Expr::Struct(literal) if literal.type_name != expected => {
                let message = format!(
                    "unexpected type name {:?}, expected {expected:?}, which matches field name path from root Object type",
                    literal.type_name
                );
                self.report(value.id, message);
            }
            Expr::List(list) => list.elements.iter().for_each(|item| self.nested_type(item, expected)),
            _ => {}
        }
    }
}
