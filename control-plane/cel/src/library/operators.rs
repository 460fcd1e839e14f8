//! Operators that know borrowed JSON, and the metering that rewritten expressions call.
//!
//! Equality is by value across representations: a list literal equals a JSON array with the same items, as cel-go's heterogeneous
//! equality has it.

use cel::ExecutionError;
use cel::common::types::{CelInt, CelList, CelMap, CelOptional, CelString, Kind};
use cel::common::value::{CowVal, Val};

use super::{Args, Out, Registry, out_bool, whole};
use crate::budget::{charge, charge_text, text_units};

pub(crate) const EQUAL: &str = "@eq";
pub(crate) const NOT_EQUAL: &str = "@ne";
pub(crate) const IN: &str = "@member";
pub(crate) const ADD: &str = "@add";
pub(crate) const TICK: &str = "@tick";
pub(crate) const KEEP: &str = "@keep";
pub(crate) const CHARGE: &str = "@charge";

pub(super) fn register(registry: &mut Registry) {
    registry.hidden_dyn(EQUAL, 2, |args| out_bool(checked_equal(args[0].as_ref(), args[1].as_ref())?));
    registry.hidden_dyn(NOT_EQUAL, 2, |args| out_bool(!checked_equal(args[0].as_ref(), args[1].as_ref())?));
    registry.hidden_dyn(IN, 2, |args| out_bool(contains(args[1].as_ref(), args[0].as_ref())?));
    registry.hidden_dyn(ADD, 2, add);
    registry.hidden_dyn(TICK, 1, |args| {
        charge(u64::try_from(whole(&args, 0)?).unwrap_or(1))?;
        out_bool(true)
    });
    registry.hidden_dyn(KEEP, 1, |mut args| {
        charge(if is_borrowed(args[0].as_ref()) { 1 } else { weight(args[0].as_ref()) })?;
        Ok(args.remove(0))
    });
    registry.hidden_dyn(CHARGE, 1, |mut args| {
        charge(weight(args[0].as_ref()))?;
        Ok(args.remove(0))
    });
}

/// Whether a copy of the value copies no bytes.
fn is_borrowed(value: &dyn Val) -> bool {
    value.downcast_ref::<CelString>().is_some_and(|text| text.as_borrowed().is_some())
}

/// The cost of a copy of a value.
fn weight(value: &dyn Val) -> u64 {
    if let Some(text) = value.downcast_ref::<CelString>() {
        text_units(text.inner().len())
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        list.iter().map(|item| weight(item.as_ref())).fold(1, u64::saturating_add)
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        map.values().map(|item| weight(item.as_ref()).saturating_add(1)).fold(1, u64::saturating_add)
    } else if let Some(optional) = value.downcast_ref::<CelOptional>() {
        optional.option().map_or(1, weight)
    } else {
        let size = value.as_sizer().map_or(0, |sizer| *sizer.size().inner());
        u64::try_from(size).unwrap_or(0).saturating_add(1)
    }
}

fn add<'b, 'v>(args: Args<'b, 'v>) -> Out<'b, 'v> {
    let (left, right) = (args[0].as_ref(), args[1].as_ref());
    if matches!(left.get_type().kind(), Kind::String | Kind::Bytes | Kind::List) {
        charge(weight(left).saturating_add(weight(right)))?;
    }
    let types = || [left, right].map(|value| value.get_type().name().to_owned()).to_vec();
    let adder = left.as_adder().ok_or_else(|| ExecutionError::no_such_overload("_+_", types()))?;
    Ok(CowVal::Owned(adder.add(right)?.into_owned()))
}

/// `item in container`.
fn contains(container: &dyn Val, item: &dyn Val) -> Result<bool, ExecutionError> {
    let types = || vec![item.get_type().name().to_owned(), container.get_type().name().to_owned()];
    let mismatch = || ExecutionError::no_such_overload("@in", types());
    if container.get_type().kind() != Kind::List {
        return container.as_container().ok_or_else(mismatch)?.contains(item).map_err(|_| mismatch());
    }
    let mut items = container.as_iterable().ok_or_else(mismatch)?.iter();
    while let Some(candidate) = items.next() {
        if checked_equal(candidate, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Equality that counts its work.
pub(crate) fn checked_equal(left: &dyn Val, right: &dyn Val) -> Result<bool, ExecutionError> {
    charge(1)?;
    match (left.get_type().kind(), right.get_type().kind()) {
        (Kind::List, Kind::List) => equal_lists(left, right),
        (Kind::Map, Kind::Map) => equal_maps(left, right),
        (Kind::NullType, Kind::NullType) => Ok(true),
        // Borrowed JSON compares through this function.
        (Kind::List | Kind::Map, _) => Ok(false),
        (Kind::String, Kind::String) => {
            let (Some(left), Some(right)) = (left.downcast_ref::<CelString>(), right.downcast_ref::<CelString>())
            else {
                return Ok(false);
            };
            if left.inner().len() == right.inner().len() {
                charge_text(left.inner().len())?;
            }
            Ok(left.inner() == right.inner())
        }
        _ => match (left.downcast_ref::<CelOptional>(), right.downcast_ref::<CelOptional>()) {
            (Some(left), Some(right)) => match (left.option(), right.option()) {
                (Some(left), Some(right)) => checked_equal(left, right),
                (left, right) => Ok(left.is_none() && right.is_none()),
            },
            _ => Ok(left.equals(right)),
        },
    }
}

fn equal_lists(left: &dyn Val, right: &dyn Val) -> Result<bool, ExecutionError> {
    let (Some(left), Some(right)) = (left.as_iterable(), right.as_iterable()) else { return Ok(false) };
    let (mut left, mut right) = (left.iter(), right.iter());
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ok(true),
            (Some(left), Some(right)) if checked_equal(left, right)? => {}
            _ => return Ok(false),
        }
    }
}

fn equal_maps(left: &dyn Val, right: &dyn Val) -> Result<bool, ExecutionError> {
    let size = |map: &dyn Val| map.as_sizer().map(|sizer| *sizer.size().inner());
    if size(left) != size(right) {
        return Ok(false);
    }
    let (Some(keys), Some(left), Some(right)) = (left.as_iterable(), left.as_indexer(), right.as_indexer()) else {
        return Ok(false);
    };
    let mut keys = keys.iter();
    while let Some(key) = keys.next() {
        let (Ok(left), Ok(right)) = (left.get(key), right.get(key)) else { return Ok(false) };
        if !checked_equal(left.as_ref(), right.as_ref())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// [`checked_equal`], where an error cannot be told: a spent budget fails the next charge too.
pub(crate) fn equal(left: &dyn Val, right: &dyn Val) -> bool {
    checked_equal(left, right).unwrap_or(false)
}

/// A whole number as a value.
pub(crate) fn int_val<'v>(value: i64) -> Box<dyn Val + 'v> {
    Box::new(CelInt::from(value))
}
