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
    let mut outer: Vec<usize> = Vec::new();
    let mut level = 0usize;
    let mut open = 0usize;
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&c) = bytes.get(at) {
        match c {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|c| *c == b'\n').unwrap_or(bytes.len() - at);
                continue;
            }
            b'\'' | b'"' | b'`' => {
                at = after_literal(bytes, at);
                continue;
            }
            b'(' | b'[' | b'{' => {
                outer.push(std::mem::take(&mut level));
                open += 1;
            }
            b')' | b']' | b'}' => {
                // The chain goes on after the brackets: `a[0][0]`.
                open = open.saturating_sub(level);
                level = outer.pop().unwrap_or(0);
            }
            b',' => open = open.saturating_sub(std::mem::take(&mut level)),
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'!' | b'<' | b'>' | b'=' | b'?' => {
                level += 1;
                open += 1;
            }
            _ => {}
        }
        if open > MAX_OPEN {
            return Err(too_deep());
        }
        at += 1;
    }
    Ok(())
}

/// Where the text or quoted name that begins at `at` has ended. One that is not closed ends with its line, as the parser has it.
fn after_literal(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let prefix = bytes[..at].iter().rev().take(2).take_while(|c| c.is_ascii_alphabetic());
    let raw = prefix.into_iter().any(|c| matches!(c, b'r' | b'R'));
    let triple = quote != b'`' && bytes[at..].starts_with(&[quote; 3]);
    let mut at = at + if triple { 3 } else { 1 };
    while let Some(&c) = bytes.get(at) {
        match c {
            b'\\' if !raw => at += 1,
            b'\n' if !triple => return at,
            _ if c == quote && !triple => return at + 1,
            _ if triple && bytes[at..].starts_with(&[quote; 3]) => return at + 3,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
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
