//! How deep an expression may nest: evaluation recurses over the tree.
//!
//! Upstream has the parser's recursion limit and the cost estimate for this; a chain like `a + a + a` is deep in the tree without
//! being deep in the grammar, so it is counted as well.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr};

use crate::expression::CompileError;

/// The deepest tree.
pub(super) const MAX_DEPTH: usize = 100;
/// The most that may stand open before parsing: a bound on the tree that costs no recursion. It counts too much rather than too
/// little (each sign of an operator on a level counts, also where the operators are balanced).
const MAX_OPEN: usize = 2_000;

fn too_deep() -> CompileError {
    CompileError::TooDeep { limit: MAX_DEPTH }
}

/// Refuses what would be far too deep, before the parser recurses over it.
pub(super) fn check(text: &str) -> Result<(), CompileError> {
    let mut levels: Vec<usize> = vec![0];
    let mut open = 0usize;
    let mut quote = None;
    let mut escaped = false;
    for c in text.chars() {
        if let Some(end) = quote {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == end {
                quote = None;
            }
            continue;
        }
        match c {
            '\'' | '"' | '`' => quote = Some(c),
            '(' | '[' | '{' => {
                levels.push(0);
                open += 1;
            }
            ')' | ']' | '}' => {
                // The chain goes on after the brackets: `a[0][0]`.
                let inside = if levels.len() > 1 { levels.pop().unwrap_or(0) } else { 0 };
                open = open.saturating_sub(inside);
            }
            ',' => {
                let level = levels.last_mut().expect("there is always a level");
                open -= std::mem::take(level);
            }
            '.' | '+' | '-' | '*' | '/' | '%' | '!' | '<' | '>' | '=' | '?' => {
                *levels.last_mut().expect("there is always a level") += 1;
                open += 1;
            }
            _ => {}
        }
        if open > MAX_OPEN {
            return Err(too_deep());
        }
    }
    Ok(())
}

/// The depth of a tree; refuses one that evaluation could not walk.
pub(super) fn of_tree(expr: &IdedExpr) -> Result<usize, CompileError> {
    let depth = depth(expr, 1);
    if depth > MAX_DEPTH { Err(too_deep()) } else { Ok(depth) }
}

fn depth(expr: &IdedExpr, at: usize) -> usize {
    let mut deepest = at;
    children(expr, &mut |child| deepest = deepest.max(depth(child, at + 1)));
    deepest
}

/// Calls `visit` with each part of an expression.
pub(super) fn children<'e>(expr: &'e IdedExpr, visit: &mut dyn FnMut(&'e IdedExpr)) {
    match &expr.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => {
            if let Some(target) = &call.target {
                visit(target);
            }
            call.args.iter().for_each(visit);
        }
        Expr::Comprehension(parts) => {
            visit(&parts.iter_range);
            visit(&parts.accu_init);
            visit(&parts.loop_cond);
            visit(&parts.loop_step);
            visit(&parts.result);
        }
        Expr::List(list) => list.elements.iter().for_each(visit),
        Expr::Select(select) => visit(&select.operand),
        Expr::Map(map) => entries(map.entries.iter().map(|entry| &entry.expr), visit),
        Expr::Struct(literal) => entries(literal.entries.iter().map(|entry| &entry.expr), visit),
    }
}

fn entries<'e>(entries: impl Iterator<Item = &'e EntryExpr>, visit: &mut dyn FnMut(&'e IdedExpr)) {
    for entry in entries {
        match entry {
            EntryExpr::StructField(field) => visit(&field.value),
            EntryExpr::MapEntry(entry) => {
                visit(&entry.key);
                visit(&entry.value);
            }
        }
    }
}

/// How many parts an expression has.
pub(super) fn size(expr: &IdedExpr) -> i64 {
    let mut total = 1;
    children(expr, &mut |child| total += size(child));
    total
}
