//! Taking fields away, or all others.

use serde_json::{Map, Value};

use super::{item_element, to_field_set};
use crate::fieldpath::{PathElement, Set};
use crate::schema::{List, Relation, Type};

/// What stands where nothing is left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptied {
    /// Null, by which the field still counts as set.
    Null,
    /// Nothing, as when upstream reads the result into a Go struct.
    Nothing,
}

/// The value without the fields of a set; null stands where nothing is left.
#[must_use]
pub fn remove_items<'a, T: Type<'a>>(v: &Value, set: &Set, t: T) -> Value {
    remove(v, set, t, Emptied::Null).unwrap_or(Value::Null)
}

/// The value without the fields of a set, and without what is empty for that.
pub(crate) fn prune_items<'a, T: Type<'a>>(v: &Value, set: &Set, t: T) -> Value {
    remove(v, set, t, Emptied::Nothing).unwrap_or_else(|| Value::Object(Map::new()))
}

fn remove<'a, T: Type<'a>>(v: &Value, set: &Set, t: T, emptied: Emptied) -> Option<Value> {
    let forms = t.forms().of(Some(v));
    if forms.map {
        let Value::Object(fields) = v else { return None };
        if fields.is_empty() || t.is_atomic_map() {
            return None;
        }
        let mut out = Map::new();
        let mut kept = false;
        for (name, v) in fields {
            let element = PathElement::field(name);
            if set.members.contains(&element) {
                continue;
            }
            kept = true;
            match below(v, &element, set, t.child(name), emptied) {
                Some(v) => drop(out.insert(name.clone(), v)),
                None if emptied == Emptied::Null => drop(out.insert(name.clone(), Value::Null)),
                None => {}
            }
        }
        kept.then_some(Value::Object(out))
    } else if forms.scalar.is_some() {
        Some(v.clone())
    } else if forms.list {
        let Value::Array(items) = v else { return None };
        let list = t.list();
        if items.is_empty() || matches!(list.relation, Relation::Atomic) {
            return None;
        }
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            let Ok(element) = item_element(&list, item) else {
                out.push(item.clone());
                continue;
            };
            if set.members.contains(&element) {
                continue;
            }
            match below(item, &element, set, Some(list.item), emptied) {
                Some(v) => out.push(v),
                None if emptied == Emptied::Null => out.push(Value::Null),
                None => {}
            }
        }
        (!out.is_empty()).then_some(Value::Array(out))
    } else {
        None
    }
}

fn below<'a, T: Type<'a>>(
    v: &Value,
    element: &PathElement,
    set: &Set,
    t: Option<T>,
    emptied: Emptied,
) -> Option<Value> {
    match (set.with_prefix(element), t) {
        (Some(subset), Some(t)) => remove(v, subset, t, emptied),
        _ => Some(v.clone()),
    }
}

/// Only the fields of a set. With `keys`, items of keyed lists keep the fields that tell them apart. An item or map that is in the set
/// only by itself comes with nothing in it but its keys.
#[must_use]
pub fn extract_items<'a, T: Type<'a>>(v: &Value, set: &Set, t: T, keys: bool) -> Value {
    if !keys {
        return extract(v, set, t).unwrap_or(Value::Null);
    }
    let mut with_keys = set.clone();
    if let Ok(present) = to_field_set(v, t) {
        set.for_each(&mut |path| {
            if !present.has(path) {
                return;
            }
            for (i, element) in path.iter().enumerate() {
                let PathElement::Key(fields) = element else { continue };
                for (name, _) in fields {
                    let mut key = path[..=i].to_vec();
                    key.push(PathElement::Field(name.clone()));
                    with_keys.insert(&key);
                }
            }
        });
    }
    extract(v, &with_keys, t).unwrap_or(Value::Null)
}

fn extract<'a, T: Type<'a>>(v: &Value, set: &Set, t: T) -> Option<Value> {
    let forms = t.forms().of(Some(v));
    if forms.map {
        let Value::Object(fields) = v else { return None };
        if fields.is_empty() {
            return None;
        }
        if t.is_atomic_map() {
            return Some(v.clone());
        }
        let mut out = Map::new();
        for (name, v) in fields {
            let element = PathElement::field(name);
            let Some(child) = t.child(name) else { continue };
            if let Some(v) = part(v, &element, set, child) {
                out.insert(name.clone(), v);
            }
        }
        (!out.is_empty()).then_some(Value::Object(out))
    } else if forms.scalar.is_some() {
        Some(v.clone())
    } else if forms.list {
        extract_list(v, set, &t.list())
    } else {
        None
    }
}

fn extract_list<'a, T: Type<'a>>(v: &Value, set: &Set, list: &List<'a, T>) -> Option<Value> {
    let Value::Array(items) = v else { return None };
    if items.is_empty() {
        return None;
    }
    if matches!(list.relation, Relation::Atomic) {
        return Some(v.clone());
    }
    let out: Vec<Value> = items
        .iter()
        .filter_map(|item| {
            let element = item_element(list, item).ok()?;
            part(item, &element, set, list.item)
        })
        .collect();
    (!out.is_empty()).then_some(Value::Array(out))
}

/// A part of a value, if the set has it or something in it.
fn part<'a, T: Type<'a>>(v: &Value, element: &PathElement, set: &Set, t: T) -> Option<Value> {
    match set.with_prefix(element) {
        Some(subset) => extract(v, subset, t),
        None if set.members.contains(element) => Some(extract(v, &Set::new(), t).unwrap_or(Value::Null)),
        None => None,
    }
}
