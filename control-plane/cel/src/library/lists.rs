//! `isSorted`, `sum`, `min`, `max`, `indexOf` and `lastIndexOf` of lists.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/lists.go`.

use std::cmp::Ordering;

use cel::ExecutionError;
use cel::common::types::{Kind, LIST_TYPE};
use cel::common::value::{CowVal, Val};

use super::operators::{checked_equal, int_val};
use super::{Args, Out, Registry, failed, out_bool, out_int};
use crate::budget::charge;

pub(super) fn register(registry: &mut Registry) {
    registry.member("isSorted", &LIST_TYPE, &[], |args| {
        let mut sorted = true;
        fold(&args, |last: Option<Box<dyn Val + '_>>, item| {
            if let Some(last) = &last {
                sorted &= compare(last.as_ref(), item)? != Ordering::Greater;
            }
            Ok(item.clone_as_boxed())
        })?;
        out_bool(sorted)
    });
    registry.member("sum", &LIST_TYPE, &[], sum);
    registry.member("min", &LIST_TYPE, &[], |args| extreme(&args, "min", Ordering::Less));
    registry.member("max", &LIST_TYPE, &[], |args| extreme(&args, "max", Ordering::Greater));
}

fn no_overload(args: &Args<'_, '_>) -> ExecutionError {
    ExecutionError::no_such_overload("", args.iter().map(|value| value.get_type().name().to_owned()).collect())
}

fn compare(left: &dyn Val, right: &dyn Val) -> Result<Ordering, ExecutionError> {
    let types = || [left, right].map(|value| value.get_type().name().to_owned()).to_vec();
    let mismatch = || ExecutionError::no_such_overload("_<_", types());
    left.as_comparer().ok_or_else(mismatch)?.compare(right).map_err(|_| mismatch())
}

/// Walks the list with what the last step gave.
fn fold<'v>(
    args: &Args<'_, 'v>,
    mut step: impl FnMut(Option<Box<dyn Val + 'v>>, &(dyn Val + 'v)) -> Result<Box<dyn Val + 'v>, ExecutionError>,
) -> Result<Option<Box<dyn Val + 'v>>, ExecutionError> {
    let mut items = args[0].as_iterable().ok_or_else(|| no_overload(args))?.iter();
    let mut last = None;
    while let Some(item) = items.next() {
        charge(1)?;
        last = Some(step(last.take(), item)?);
    }
    Ok(last)
}

fn sum<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let total = fold(&args, |total, item| {
        if !matches!(item.get_type().kind(), Kind::Int | Kind::UInt | Kind::Double | Kind::Duration) {
            return Err(no_overload(&args));
        }
        match total {
            None => Ok(item.clone_as_boxed()),
            Some(total) => Ok(total.as_adder().ok_or_else(|| no_overload(&args))?.add(item)?.into_owned()),
        }
    })?;
    Ok(CowVal::Owned(total.unwrap_or_else(|| int_val(0))))
}

fn extreme<'b, 'v>(args: &Args<'b, 'v>, name: &str, wanted: Ordering) -> Out<'b, 'v> {
    let best = fold(args, |best, item| match best {
        Some(best) if compare(item, best.as_ref())? != wanted => Ok(best),
        _ => Ok(item.clone_as_boxed()),
    })?;
    best.map(CowVal::Owned).ok_or_else(|| failed(format!("{name} called on empty list")))
}

/// The first position of a value, or -1.
pub(crate) fn index_of<'b, 'v>(args: &Args<'_, '_>) -> Out<'b, 'v> {
    positions(args, true)
}

/// The last position of a value, or -1.
pub(crate) fn last_index_of<'b, 'v>(args: &Args<'_, '_>) -> Out<'b, 'v> {
    positions(args, false)
}

fn positions<'b, 'v>(args: &Args<'_, '_>, first: bool) -> Out<'b, 'v> {
    let mut items = args[0].as_iterable().ok_or_else(|| no_overload(args))?.iter();
    let (mut at, mut found) = (0, -1);
    while let Some(item) = items.next() {
        if checked_equal(item, args[1].as_ref())? {
            found = at;
            if first {
                break;
            }
        }
        at += 1;
    }
    out_int(found)
}
