//! Whether a value is of a type.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{NO_FORM, TypedErrors, UNDECLARED, item_element};
use crate::fieldpath::PathElement;
use crate::schema::{Relation, Scalar, Type};
use crate::value;

/// Whether items of a set or keyed list may be there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// What is stored may have them.
    Allowed,
    /// What is applied may not.
    Refused,
}

/// Checks that a value has only declared fields, of the declared types, and no item twice.
///
/// # Errors
/// All that is wrong, with paths.
pub fn validate<'a, T: Type<'a>>(v: &Value, t: T, duplicates: Duplicates) -> Result<(), TypedErrors> {
    let errors = node(v, t, duplicates);
    errors.result(())
}

fn node<'a, T: Type<'a>>(v: &Value, t: T, duplicates: Duplicates) -> TypedErrors {
    let mut errors = TypedErrors::default();
    let forms = t.forms().of(Some(v));
    if forms.map {
        match v {
            Value::Null => {}
            Value::Object(fields) => fields_of(fields, t, duplicates, &mut errors),
            other => errors.push(format!("expected map, got &{{{}}}", value::go_value(other))),
        }
    } else if let Some(scalar) = forms.scalar {
        check_scalar(scalar, v, "", &mut errors);
    } else if forms.list {
        match v {
            Value::Null => {}
            Value::Array(items) => items_of(items, t, duplicates, &mut errors),
            other => errors.push(format!("expected list, got &{{{}}}", value::go_value(other))),
        }
    } else {
        errors.push(NO_FORM);
    }
    errors
}

fn fields_of<'a, T: Type<'a>>(
    fields: &serde_json::Map<String, Value>,
    t: T,
    duplicates: Duplicates,
    errors: &mut TypedErrors,
) {
    for (name, v) in fields {
        let below = match t.child(name) {
            Some(child) => node(v, child, duplicates),
            None => {
                let mut undeclared = TypedErrors::default();
                undeclared.push(UNDECLARED);
                undeclared
            }
        };
        errors.below(&PathElement::field(name), below);
    }
}

fn items_of<'a, T: Type<'a>>(items: &[Value], t: T, duplicates: Duplicates, errors: &mut TypedErrors) {
    let list = t.list();
    let mut seen = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let element = if matches!(list.relation, Relation::Atomic) {
            PathElement::Index(i64::try_from(i).unwrap_or(i64::MAX))
        } else {
            match item_element(&list, item) {
                Ok(element) => element,
                Err(message) => return errors.push(format!("element {i}: {message}")),
            }
        };
        let below = node(item, list.item, duplicates);
        errors.below(&element, below);
        if duplicates == Duplicates::Refused && seen.contains(&element) {
            errors.push(format!("duplicate entries for key {element}"));
        }
        seen.insert(element);
    }
}

/// Whether a value is such a scalar, or null.
pub(super) fn check_scalar(scalar: Scalar, v: &Value, side: &str, errors: &mut TypedErrors) {
    let fits = matches!(
        (scalar, v),
        (_, Value::Null)
            | (Scalar::Numeric | Scalar::Untyped, Value::Number(_))
            | (Scalar::String | Scalar::Untyped, Value::String(_))
            | (Scalar::Boolean | Scalar::Untyped, Value::Bool(_))
    );
    if fits {
        return;
    }
    errors.push(match scalar {
        Scalar::Numeric => format!("{side}expected numeric (int or float), got {}", value::go_type(v)),
        Scalar::String => {
            format!("{side}expected string, got &value.valueUnstructured{{Value:{}}}", value::go_syntax(v))
        }
        Scalar::Boolean => format!("{side}expected boolean, got &{{{}}}", value::go_value(v)),
        Scalar::Untyped => format!("{side}expected any scalar, got &{{{}}}", value::go_value(v)),
    });
}
