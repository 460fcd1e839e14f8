//! Kubernetes quantities.
//!
//! Upstream counterpart: `apiserver/pkg/cel/library/quantity.go`.

use std::cmp::Ordering;

use cel::ExecutionError;
use cel::common::types::{CelInt, INT_TYPE, STRING_TYPE};
use cel::common::value::CowVal;
use kube_common::quantity::Quantity;

use super::{Args, Out, Registry, arg, failed, out_bool, out_double, out_int, text};
use crate::value::opaque::opaque;

opaque!(
    /// A quantity.
    QuantityVal(Quantity), QUANTITY, "kubernetes.Quantity"
);

pub(super) fn register(registry: &mut Registry) {
    registry.named_type(&QUANTITY);
    registry.global("quantity", &[&STRING_TYPE], |args| {
        let quantity = Quantity::parse(text(&args, 0)?).map_err(failed)?;
        Ok(CowVal::owned(QuantityVal(quantity)))
    });
    registry.global("isQuantity", &[&STRING_TYPE], |args| out_bool(Quantity::parse(text(&args, 0)?).is_ok()));
    registry.member("isInteger", &QUANTITY, &[], |args| out_bool(quantity(&args, 0)?.is_integer()));
    registry.member("asInteger", &QUANTITY, &[], |args| {
        let quantity = quantity(&args, 0)?;
        if quantity.is_integer() { out_int(quantity.value()) } else { Err(failed("cannot convert value to integer")) }
    });
    registry.member("asApproximateFloat", &QUANTITY, &[], |args| out_double(quantity(&args, 0)?.as_f64()));
    registry.member("sign", &QUANTITY, &[], |args| out_int(order(quantity(&args, 0)?.cmp(&Quantity::ZERO))));
    let both = [&QUANTITY];
    registry.member("isGreaterThan", &QUANTITY, &both, |args| out_bool(quantity(&args, 0)? > quantity(&args, 1)?));
    registry.member("isLessThan", &QUANTITY, &both, |args| out_bool(quantity(&args, 0)? < quantity(&args, 1)?));
    registry
        .member("compareTo", &QUANTITY, &both, |args| out_int(order(quantity(&args, 0)?.cmp(&quantity(&args, 1)?))));
    for operand in [&QUANTITY, &INT_TYPE] {
        registry.member("add", &QUANTITY, &[operand], |args| combined(&args, |left, right| left + right));
        registry.member("sub", &QUANTITY, &[operand], |args| combined(&args, |left, right| left - right));
    }
}

fn quantity(args: &Args<'_, '_>, at: usize) -> Result<Quantity, ExecutionError> {
    arg::<QuantityVal>(args, at).map(|value| value.0)
}

fn combined<'b, 'v>(args: &Args<'_, '_>, operation: fn(Quantity, Quantity) -> Quantity) -> Out<'b, 'v> {
    let right = match args[1].as_ref().downcast_ref::<CelInt>() {
        Some(whole) => Quantity::from_value(*whole.inner()),
        None => quantity(args, 1)?,
    };
    Ok(CowVal::owned(QuantityVal(operation(quantity(args, 0)?, right))))
}

/// A comparison as CEL's libraries give it: -1, 0 or 1.
pub(super) fn order(order: Ordering) -> i64 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}
