//! Replaces what must be metered or must know borrowed JSON: operators, some functions on text, and the turns of comprehensions.
//!
//! The interpreter builds the result of `map` and `filter` in place when it recognises their shape (`result + [x]`, perhaps guarded,
//! with a constant condition), so that shape is kept and the meter is put inside; every other comprehension has it in its condition,
//! where an error ends the loop at once.

use cel::IdedExpr;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, LiteralValue, MapEntryExpr, MapExpr, operators,
};

use super::depth::size;
use crate::library::{operators as ours, regex, strings};

/// Functions that copy their receiver.
const COPIERS: [&str; 8] = ["charAt", "lowerAscii", "upperAscii", "trim", "reverse", "substring", "split", "getQuery"];
/// Conversions that copy their argument.
const CONVERTERS: [&str; 2] = ["string", "bytes"];

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn literal(value: LiteralValue) -> IdedExpr {
    node(Expr::Literal(value))
}

fn take(expr: &mut IdedExpr) -> IdedExpr {
    std::mem::take(expr)
}

pub(super) fn rewrite(expr: &mut IdedExpr) {
    match &mut expr.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
        Expr::Call(call) => rewrite_call(call),
        Expr::Comprehension(parts) => rewrite_comprehension(parts),
        Expr::List(list) => list.elements.iter_mut().for_each(rewrite),
        Expr::Select(select) => rewrite(&mut select.operand),
        Expr::Map(map) => rewrite_entries(&mut map.entries),
        Expr::Struct(literal) => {
            let mut entries = std::mem::take(&mut literal.entries);
            entries.iter_mut().for_each(name_as_key);
            rewrite_entries(&mut entries);
            expr.expr = Expr::Map(MapExpr { entries });
        }
    }
}

/// A field of `Object{field: x}` becomes an entry of a map.
fn name_as_key(entry: &mut IdedEntryExpr) {
    if let EntryExpr::StructField(field) = &mut entry.expr {
        let name = crate::value::json::unescape(&field.field).into_owned();
        let key = literal(LiteralValue::String(name.into()));
        entry.expr = EntryExpr::MapEntry(MapEntryExpr { key, value: take(&mut field.value), optional: field.optional });
    }
}

fn rewrite_entries(entries: &mut [IdedEntryExpr]) {
    for entry in entries {
        match &mut entry.expr {
            EntryExpr::StructField(field) => rewrite(&mut field.value),
            EntryExpr::MapEntry(entry) => {
                rewrite(&mut entry.key);
                rewrite(&mut entry.value);
            }
        }
    }
}

fn rewrite_call(called: &mut CallExpr) {
    if let Some(target) = &mut called.target {
        rewrite(target);
    }
    called.args.iter_mut().for_each(rewrite);
    let Some(target) = &mut called.target else {
        let ours = match (called.func_name.as_str(), called.args.len()) {
            (operators::EQUALS, 2) => ours::EQUAL,
            (operators::NOT_EQUALS, 2) => ours::NOT_EQUAL,
            (operators::IN, 2) => ours::IN,
            (operators::ADD, 2) => ours::ADD,
            ("matches", 2) => regex::MATCHES,
            (name, 1) if CONVERTERS.contains(&name) => {
                called.args[0] = call(ours::CHARGE, vec![take(&mut called.args[0])]);
                return;
            }
            _ => return,
        };
        ours.clone_into(&mut called.func_name);
        return;
    };
    let ours = match (called.func_name.as_str(), called.args.len()) {
        ("matches", 1) => regex::MATCHES,
        ("indexOf", 1 | 2) => strings::INDEX_OF,
        ("lastIndexOf", 1 | 2) => strings::LAST_INDEX_OF,
        ("replace", 2 | 3) => strings::REPLACE,
        ("join", 0 | 1) => strings::JOIN,
        ("format", 1) => {
            **target = call(strings::TEMPLATE, vec![take(target)]);
            called.args[0] = call(ours::CHARGE, vec![take(&mut called.args[0])]);
            return;
        }
        (name, _) if COPIERS.contains(&name) => {
            **target = call(ours::CHARGE, vec![take(target)]);
            return;
        }
        _ => return,
    };
    ours.clone_into(&mut called.func_name);
    let target = *called.target.take().expect("it was there");
    called.args.insert(0, target);
}

/// `tick(cost) ? expr : otherwise`.
fn ticked(cost: i64, expr: IdedExpr, otherwise: LiteralValue) -> IdedExpr {
    let tick = call(ours::TICK, vec![literal(LiteralValue::Int(cost.into()))]);
    call(operators::CONDITIONAL, vec![tick, expr, literal(otherwise)])
}

fn rewrite_comprehension(parts: &mut ComprehensionExpr) {
    let cost = size(&parts.loop_step);
    rewrite(&mut parts.iter_range);
    rewrite(&mut parts.accu_init);
    rewrite(&mut parts.result);
    let constant = matches!(parts.loop_cond.expr, Expr::Literal(_));
    if constant && let Some((guard, item)) = append_shape(&mut parts.loop_step, &parts.accu_var) {
        rewrite(item);
        let kept = call(ours::KEEP, vec![take(item)]);
        *item = kept;
        match guard {
            Some(guard) => {
                rewrite(guard);
                *guard = ticked(cost, take(guard), LiteralValue::Boolean(false.into()));
            }
            None => *item = ticked(cost, take(item), LiteralValue::Null),
        }
        return;
    }
    rewrite(&mut parts.loop_step);
    rewrite(&mut parts.loop_cond);
    parts.loop_cond = ticked(cost, take(&mut parts.loop_cond), LiteralValue::Boolean(false.into()));
}

/// The guard and the item of `accu + [item]` or `guard ? accu + [item] : accu`.
fn append_shape<'e>(step: &'e mut IdedExpr, accu: &str) -> Option<(Option<&'e mut IdedExpr>, &'e mut IdedExpr)> {
    let is_conditional = matches!(&step.expr, Expr::Call(call) if call.func_name == operators::CONDITIONAL);
    if !is_conditional {
        return appended(step, accu).map(|item| (None, item));
    }
    let Expr::Call(call) = &mut step.expr else { return None };
    match call.args.as_mut_slice() {
        [guard, step, otherwise] if is_ident(otherwise, accu) => appended(step, accu).map(|item| (Some(guard), item)),
        _ => None,
    }
}

fn is_ident(expr: &IdedExpr, name: &str) -> bool {
    matches!(&expr.expr, Expr::Ident(ident) if ident == name)
}

/// The item of `accu + [item]`.
fn appended<'e>(step: &'e mut IdedExpr, accu: &str) -> Option<&'e mut IdedExpr> {
    let Expr::Call(add) = &mut step.expr else { return None };
    if add.func_name != operators::ADD {
        return None;
    }
    match add.args.as_mut_slice() {
        [list, IdedExpr { expr: Expr::List(items), .. }] if is_ident(list, accu) => match items.elements.as_mut_slice()
        {
            [item] => Some(item),
            _ => None,
        },
        _ => None,
    }
}
