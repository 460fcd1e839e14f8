//! Merging a partial object into another.
//!
//! No field is lost by a merge. Items of lists come in the order of the partial object where it names them; the others keep their
//! place between the items that both have.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::{NO_FORM, TypedErrors, UNDECLARED, item_element, items};
use crate::fieldpath::PathElement;
use crate::schema::{Forms, List, Relation, Type};

/// Merges `config` into `live`: where both have a leaf, that of `config` is kept.
///
/// # Errors
/// What the schema does not know, and items that `config` names twice.
pub fn merge<'a, T: Type<'a>>(live: &Value, config: &Value, t: T) -> Result<Value, TypedErrors> {
    let mut errors = TypedErrors::default();
    let out = node(Some(live), Some(config), t, &mut errors);
    errors.result(out.unwrap_or(Value::Null))
}

fn node<'a, T: Type<'a>>(
    live: Option<&Value>,
    config: Option<&Value>,
    t: T,
    errors: &mut TypedErrors,
) -> Option<Value> {
    let forms = t.forms().of(if config.is_some() { config } else { live });
    form(forms, live, config, t, errors)
}

/// One value: that of `config` if it has one.
fn whole(live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    config.or(live).cloned()
}

fn form<'a, T: Type<'a>>(
    forms: Forms,
    live: Option<&Value>,
    config: Option<&Value>,
    t: T,
    errors: &mut TypedErrors,
) -> Option<Value> {
    if forms.map {
        let (old, new) = (live.and_then(Value::as_object), config.and_then(Value::as_object));
        let empty = old.is_none_or(Map::is_empty) && new.is_none_or(Map::is_empty);
        if empty || t.is_atomic_map() {
            return whole(live, config);
        }
        let mut out = Map::new();
        let names: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
        for name in names {
            let mut below = TypedErrors::default();
            match t.child(name) {
                Some(child) => {
                    let (old, new) = (old.and_then(|m| m.get(name)), new.and_then(|m| m.get(name)));
                    if let Some(v) = node(old, new, child, &mut below) {
                        out.insert(name.clone(), v);
                    }
                }
                None => below.push(UNDECLARED),
            }
            errors.below(&PathElement::field(name), below);
        }
        (!out.is_empty()).then_some(Value::Object(out))
    } else if forms.scalar.is_some() {
        whole(live, config)
    } else if forms.list {
        let (old, new) = (items(live), items(config));
        let empty = old.is_none_or(<[Value]>::is_empty) && new.is_none_or(<[Value]>::is_empty);
        let list = t.list();
        if empty || matches!(list.relation, Relation::Atomic) {
            return whole(live, config);
        }
        let out = merge_lists(&list, old.unwrap_or_default(), new.unwrap_or_default(), errors);
        (!out.is_empty()).then_some(Value::Array(out))
    } else {
        errors.push(NO_FORM);
        None
    }
}

/// One side of a list: its elements in order, and the item of each; null for an item that is there more than once.
struct Side<'v> {
    order: Vec<(PathElement, &'v Value)>,
    by_element: BTreeMap<PathElement, &'v Value>,
}

impl<'v> Side<'v> {
    fn of<'a, T: Type<'a>>(list: &List<'a, T>, items: &'v [Value], twice: bool, errors: &mut TypedErrors) -> Self {
        let mut side = Self { order: Vec::with_capacity(items.len()), by_element: BTreeMap::new() };
        for (i, item) in items.iter().enumerate() {
            let element = match item_element(list, item) {
                Ok(element) => element,
                Err(message) => {
                    errors.push(format!("element {i}: {message}"));
                    continue;
                }
            };
            if side.by_element.contains_key(&element) {
                if !twice {
                    errors.push(format!("duplicate entries for key {element}"));
                    continue;
                }
                side.by_element.insert(element.clone(), &Value::Null);
            } else {
                side.by_element.insert(element.clone(), item);
            }
            side.order.push((element, item));
        }
        side
    }

    fn has(&self, element: &PathElement) -> bool {
        self.by_element.contains_key(element)
    }
}

fn merge_lists<'a, T: Type<'a>>(
    list: &List<'a, T>,
    live: &[Value],
    config: &[Value],
    errors: &mut TypedErrors,
) -> Vec<Value> {
    let before = errors.0.len();
    let new = Side::of(list, config, false, errors);
    let old = Side::of(list, live, true, errors);
    if errors.0.len() > before {
        return Vec::new();
    }
    let mut shared: VecDeque<&PathElement> =
        new.order.iter().map(|(element, _)| element).filter(|element| old.has(element)).collect();
    let mut next = shared.pop_front();
    let mut done = BTreeSet::new();
    let mut out = Vec::with_capacity(old.order.len().max(new.order.len()));
    let mut add = |element: &PathElement, old: Option<&Value>, new: Option<&Value>| {
        let mut below = TypedErrors::default();
        out.extend(node(old, new, list.item, &mut below));
        errors.below(element, below);
    };
    let (mut l, mut r) = (0, 0);
    while l < old.order.len() || r < new.order.len() {
        if let Some((element, item)) = old.order.get(l) {
            if let Some((wanted, _)) = new.order.get(r)
                && wanted != element
                && new.has(element)
                && next.is_some_and(|next| next != element)
            {
                // Both have it, but its turn comes later.
                l += 1;
                continue;
            }
            if !new.has(element) {
                add(element, Some(*item), None);
                l += 1;
                continue;
            }
            if new.order.get(r).is_some_and(|(wanted, _)| wanted == element) || done.contains(element) {
                l += 1;
            }
        }
        if let Some((element, item)) = new.order.get(r) {
            done.insert(element);
            add(element, old.by_element.get(element).copied(), Some(*item));
            r += 1;
            if next == Some(element) {
                next = shared.pop_front();
            }
        }
    }
    out
}
