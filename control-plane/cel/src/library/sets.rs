//! `sets.contains`, `sets.equivalent` and `sets.intersects`.
//!
//! Upstream counterpart: cel-go's `ext.Sets`.

use cel::ExecutionError;
use cel::common::types::LIST_TYPE;
use cel::common::value::Val;

use super::operators::checked_equal;
use super::{Registry, out_bool};

pub(super) fn register(registry: &mut Registry) {
    let lists = [&LIST_TYPE, &LIST_TYPE];
    registry.global("sets.contains", &lists, |args| out_bool(covers(args[0].as_ref(), args[1].as_ref())?));
    registry.global("sets.equivalent", &lists, |args| {
        out_bool(covers(args[0].as_ref(), args[1].as_ref())? && covers(args[1].as_ref(), args[0].as_ref())?)
    });
    registry
        .global("sets.intersects", &lists, |args| out_bool(any(args[1].as_ref(), |item| has(args[0].as_ref(), item))?));
}

fn any(list: &dyn Val, mut test: impl FnMut(&dyn Val) -> Result<bool, ExecutionError>) -> Result<bool, ExecutionError> {
    let Some(items) = list.as_iterable() else { return Ok(false) };
    let mut items = items.iter();
    while let Some(item) = items.next() {
        if test(item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has(list: &dyn Val, wanted: &dyn Val) -> Result<bool, ExecutionError> {
    any(list, |item| checked_equal(item, wanted))
}

fn covers(list: &dyn Val, part: &dyn Val) -> Result<bool, ExecutionError> {
    Ok(!any(part, |item| Ok(!has(list, item)?))?)
}
