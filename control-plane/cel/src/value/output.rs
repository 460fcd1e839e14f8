//! What an evaluation gave, as JSON.

use base64::Engine;
use cel::ExecutionError;
use cel::common::types::{CelBool, CelBytes, CelDouble, CelInt, CelOptional, CelString, CelUInt, Kind};
use cel::common::value::{CowVal, Val};
use serde_json::{Map, Value};

use crate::budget::{charge, charge_text};
use crate::library::net::{CidrVal, IpVal};
use crate::library::quantity::QuantityVal;

fn unrepresentable(value: &dyn Val) -> ExecutionError {
    ExecutionError::function_error("json", format!("a value of type {} has no JSON form", value.get_type().name()))
}

/// The JSON form of a value: durations, timestamps and bytes as upstream writes them, an absent optional as `null`.
///
/// # Errors
/// For a value without one (a type, an authorizer), and when the budget ends.
pub(crate) fn to_json(value: &dyn Val) -> Result<Value, ExecutionError> {
    charge(1)?;
    let wrong = || unrepresentable(value);
    Ok(match value.get_type().kind() {
        Kind::NullType => Value::Null,
        Kind::Boolean => Value::Bool(*value.downcast_ref::<CelBool>().ok_or_else(wrong)?.inner()),
        Kind::Int => Value::from(*value.downcast_ref::<CelInt>().ok_or_else(wrong)?.inner()),
        Kind::UInt => Value::from(*value.downcast_ref::<CelUInt>().ok_or_else(wrong)?.inner()),
        Kind::Double => Value::from(*value.downcast_ref::<CelDouble>().ok_or_else(wrong)?.inner()),
        Kind::String => {
            let text = value.downcast_ref::<CelString>().ok_or_else(wrong)?.inner();
            charge_text(text.len())?;
            Value::from(text)
        }
        Kind::Bytes => {
            let bytes = value.downcast_ref::<CelBytes>().ok_or_else(wrong)?.inner();
            charge_text(bytes.len())?;
            Value::from(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
        Kind::Duration | Kind::Timestamp => Value::from(printed(value).ok_or_else(wrong)?),
        Kind::List => {
            let mut items = value.as_iterable().ok_or_else(wrong)?.iter();
            let mut out = Vec::new();
            while let Some(item) = items.next() {
                out.push(to_json(item)?);
            }
            Value::Array(out)
        }
        Kind::Map => map_to_json(value)?,
        _ => other_to_json(value)?,
    })
}

/// A duration or timestamp in the words of the `string` function.
fn printed(value: &dyn Val) -> Option<String> {
    let args = vec![CowVal::Owned(value.clone_as_boxed())];
    let op = crate::library::env().find_overload("string", &args)?;
    let text = op(args).ok()?;
    text.downcast_ref::<CelString>().map(|text| text.inner().to_owned())
}

fn map_to_json(value: &dyn Val) -> Result<Value, ExecutionError> {
    let (Some(keys), Some(indexer)) = (value.as_iterable(), value.as_indexer()) else {
        return Err(unrepresentable(value));
    };
    let mut keys = keys.iter();
    let mut out = Map::new();
    while let Some(key) = keys.next() {
        let name = match to_json(key)? {
            Value::String(name) => name,
            other => other.to_string(),
        };
        out.insert(name, to_json(indexer.get(key)?.as_ref())?);
    }
    Ok(Value::Object(out))
}

fn other_to_json(value: &dyn Val) -> Result<Value, ExecutionError> {
    if let Some(optional) = value.downcast_ref::<CelOptional>() {
        return optional.option().map_or(Ok(Value::Null), to_json);
    }
    if let Some(quantity) = value.downcast_ref::<QuantityVal>() {
        return Ok(Value::from(quantity.0.to_string()));
    }
    if let Some(ip) = value.downcast_ref::<IpVal>() {
        return Ok(Value::from(ip.0.to_string()));
    }
    if let Some(cidr) = value.downcast_ref::<CidrVal>() {
        return Ok(Value::from(cidr.0.to_string()));
    }
    Err(unrepresentable(value))
}
