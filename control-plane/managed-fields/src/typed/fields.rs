//! The fields that a value has.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{NO_FORM, TypedErrors, UNDECLARED, item_element, place};
use crate::fieldpath::{PathElement, Set};
use crate::schema::{Relation, Type};

/// The set of a value's leaves, of its list items and map entries, and of its empty maps.
///
/// # Errors
/// What the schema does not know.
pub fn to_field_set<'a, T: Type<'a>>(v: &Value, t: T) -> Result<Set, TypedErrors> {
    let mut set = Set::new();
    let mut errors = TypedErrors::default();
    node(v, t, &mut set, &mut errors);
    errors.result(set)
}

/// Adds what is below a node; answers whether the node itself is a field.
fn node<'a, T: Type<'a>>(v: &Value, t: T, set: &mut Set, errors: &mut TypedErrors) -> bool {
    let forms = t.forms().of(Some(v));
    if forms.map {
        if t.is_atomic_map() {
            return true;
        }
        if let Value::Object(fields) = v {
            fields_of(fields, t, set, errors);
        }
        false
    } else if forms.scalar.is_some() {
        true
    } else if forms.list {
        let list = t.list();
        if matches!(list.relation, Relation::Atomic) {
            return true;
        }
        let Value::Array(items) = v else { return false };
        let elements: Vec<_> = items.iter().map(|item| item_element(&list, item).ok()).collect();
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<_> = elements.iter().flatten().filter(|element| !seen.insert(*element)).collect();
        for (item, element) in items.iter().zip(&elements) {
            let Some(element) = element else { continue };
            let mut below = Set::new();
            if !twice.contains(element) {
                let mut inner = TypedErrors::default();
                node(item, list.item, &mut below, &mut inner);
                errors.below(element, inner);
            }
            place(set, element.clone(), true, below);
        }
        false
    } else {
        errors.push(NO_FORM);
        false
    }
}

fn fields_of<'a, T: Type<'a>>(fields: &serde_json::Map<String, Value>, t: T, set: &mut Set, errors: &mut TypedErrors) {
    for (name, v) in fields {
        let element = PathElement::field(name);
        let mut below = Set::new();
        let mut inner = TypedErrors::default();
        let leaf = match t.child(name) {
            Some(child) => node(v, child, &mut below, &mut inner),
            None => {
                inner.push(UNDECLARED);
                false
            }
        };
        errors.below(&element, inner);
        let empty = v.is_null() || v.as_object().is_some_and(serde_json::Map::is_empty);
        place(set, element, leaf || empty || t.field(name).is_none(), below);
    }
}
