//! Strategic merge patches.
//!
//! Maps merge key by key, null removes, lists merge by their merge key where the type says so and are replaced elsewhere. Directives:
//! `$patch` (`delete`, `replace`, `merge`), `$retainKeys`, `$setElementOrder/LIST`, `$deleteFromPrimitiveList/LIST`. The order of a
//! merged list: what the patch names keeps the patch's order, the rest keeps the object's, and where the two are free the object's order
//! decides.
//!
//! Upstream counterpart: `strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta`.

use serde_json::{Map, Value};

use crate::merge_keys::Merge;
use crate::schema::{Schemas, Shape, Struct};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Why a patch cannot be applied. Never retryable: the patch must change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StrategicError {
    /// An unknown value of `$patch`.
    #[error("unknown patch type found: {0}")]
    Directive(String),
    /// `$retainKeys` is not a list of strings, or the patch sets a key that it does not retain.
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    /// `$setElementOrder` is not a list, or contradicts the list it orders.
    #[error("invalid patch format of setElementOrder list")]
    SetOrder,
    /// `$deleteFromPrimitiveList` is not a list.
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    /// An element of a merged list lacks the merge key.
    #[error("map: {element} does not contain declared merge key: {key}")]
    NoMergeKey {
        /// The element.
        element: String,
        /// The key it should have.
        key: String,
    },
}

impl StrategicError {
    /// Whether the patch itself is malformed (400), as opposed to not fitting the object (422).
    pub(super) fn is_format(&self) -> bool {
        !matches!(self, Self::NoMergeKey { .. })
    }
}

type Result<T> = std::result::Result<T, StrategicError>;

/// Where in the types a value stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    table: &'a Schemas,
    owner: Option<&'a Struct>,
}

impl<'a> Place<'a> {
    /// The strategy of a field, and the place of its value (of its elements, for a list).
    fn field(self, key: &str) -> (Merge, Self) {
        let Some(field) = self.owner.and_then(|s| s.field(key)) else {
            return (Merge::Default, Self { owner: None, ..self });
        };
        let mut shape = &field.shape;
        while let Shape::List(inner) | Shape::Map(inner) = shape {
            shape = inner;
        }
        let owner = if let Shape::Ref(i) = shape { Some(self.table.at(*i)) } else { None };
        // Values of a map field are one level further down.
        let owner = if matches!(field.shape, Shape::Map(_)) { None } else { owner };
        (field.merge, Self { owner, ..self })
    }
}

/// Applies `patch` to `original`, an object of the type `root`.
pub(super) fn merge(table: &Schemas, root: Option<&Struct>, original: Value, patch: Value) -> Result<Value> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(StrategicError::RetainKeys);
    };
    merge_map(original, patch, Place { table, owner: root }).map(Value::Object)
}

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    place: Place<'_>,
) -> Result<Map<String, Value>> {
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(s)) if s == "replace" => return Ok(without_directives(patch)),
        Some(Value::String(s)) if s == "delete" => return Ok(Map::new()),
        Some(Value::String(s)) if s == "merge" => {}
        Some(other) => return Err(StrategicError::Directive(other.to_string())),
    }
    retain_keys(&mut original, &mut patch)?;
    set_orders(&mut original, &mut patch, place)?;
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            let Value::Array(gone) = value else { return Err(StrategicError::PrimitiveList) };
            if let Some(Value::Array(items)) = original.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let Some(slot) = original.get_mut(&key) else {
            if let Some(value) = strip(value) {
                original.insert(key, value);
            }
            continue;
        };
        let (strategy, inner) = place.field(&key);
        let before = std::mem::take(slot);
        *slot = match (before, value) {
            (Value::Object(before), Value::Object(value)) => Value::Object(merge_map(before, value, inner)?),
            (Value::Array(before), Value::Array(value)) => Value::Array(merge_list(before, value, strategy, inner)?),
            (before, value) => strip(value).unwrap_or(before),
        };
    }
    Ok(original)
}

/// Drops from the object what `$retainKeys` does not name.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<()> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = directive else { return Err(StrategicError::RetainKeys) };
    let retained: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
    let all_named =
        patch.iter().all(|(key, value)| value.is_null() || key.starts_with('$') || retained.contains(&key.as_str()));
    if retained.len() != keys.len() || !all_named {
        return Err(StrategicError::RetainKeys);
    }
    original.retain(|key, _| retained.contains(&key.as_str()));
    Ok(())
}

/// Merges the lists for which the patch gives an order.
fn set_orders(original: &mut Map<String, Value>, patch: &mut Map<String, Value>, place: Place<'_>) -> Result<()> {
    let lists: Vec<String> = patch.keys().filter_map(|key| key.strip_prefix(SET_ORDER)).map(str::to_owned).collect();
    for name in lists {
        let Some(Value::Array(order)) = patch.remove(&format!("{SET_ORDER}{name}")) else {
            return Err(StrategicError::SetOrder);
        };
        let (strategy, inner) = place.field(&name);
        // Merge keys of what the type does not know cannot be had, then the list is replaced anyway.
        let key = strategy.key();
        let patched = match patch.remove(&name) {
            None => None,
            Some(Value::Array(items)) => Some(items),
            Some(other) => {
                patch.insert(name, other);
                continue;
            }
        };
        if let Some(items) = &patched {
            check_order(items, &order, key)?;
        }
        let before = match original.get(&name) {
            Some(Value::Array(items)) => Some(items.clone()),
            _ => None,
        };
        let merged = match (before.clone(), patched) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(items)) => strip_list(items),
            (Some(before), Some(items)) => merge_list(before, items, strategy, inner)?,
        };
        let (named, rest) = partition(merged, &order, key);
        let server = before.unwrap_or_default();
        original.insert(name, Value::Array(arrange(named, rest, &order, &server, key)));
    }
    Ok(())
}

/// The patched elements must occur in the order list, in its order.
fn check_order(items: &[Value], order: &[Value], key: Option<&str>) -> Result<()> {
    let mut from = 0;
    for item in items {
        if item.get(PATCH).is_some_and(|d| d == "delete" || d == "replace") {
            continue;
        }
        match order[from..].iter().position(|o| same(o, item, key)) {
            Some(found) => from += found + 1,
            None => return Err(StrategicError::SetOrder),
        }
    }
    Ok(())
}

fn merge_list(before: Vec<Value>, patch: Vec<Value>, strategy: Merge, inner: Place<'_>) -> Result<Vec<Value>> {
    match strategy {
        Merge::Key(key) | Merge::KeyRetain(key) => merge_keyed(before, patch, key, inner),
        Merge::Primitive => {
            let mut merged = before.clone();
            for item in &patch {
                if !merged.contains(item) {
                    merged.push(item.clone());
                }
            }
            let (named, rest) = partition(merged, &patch, None);
            Ok(arrange(named, rest, &patch, &before, None))
        }
        Merge::Default | Merge::Retain => Ok(strip_list(patch)),
    }
}

fn merge_keyed(before: Vec<Value>, patch: Vec<Value>, key: &str, inner: Place<'_>) -> Result<Vec<Value>> {
    let server = before.clone();
    let mut merged = before;
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    for mut item in patch {
        let directive = item.as_object_mut().and_then(|m| m.remove(PATCH));
        match directive.as_ref().map(|d| d.as_str().unwrap_or("")) {
            None => plain.push(item),
            Some("delete") => {
                let value = key_of(&item, key)?;
                merged.retain(|m| m.get(key) != Some(&value));
            }
            Some("replace") => {
                replace = true;
                // An element that says no more than the directive is not part of the list.
                if item.as_object().is_some_and(|m| !m.is_empty()) {
                    plain.push(item);
                }
            }
            Some("merge") => plain.push(item),
            Some(other) => return Err(StrategicError::Directive(other.to_owned())),
        }
    }
    if replace {
        return Ok(strip_list(plain));
    }
    let order = plain.clone();
    for item in plain {
        let value = key_of(&item, key)?;
        match merged.iter_mut().find(|m| m.get(key) == Some(&value)) {
            Some(slot) => {
                let (Value::Object(old), Value::Object(new)) = (std::mem::take(slot), item) else {
                    return Err(StrategicError::NoMergeKey { element: value.to_string(), key: key.to_owned() });
                };
                *slot = Value::Object(merge_map(old, new, inner)?);
            }
            None => merged.extend(strip(item)),
        }
    }
    let (named, rest) = partition(merged, &order, Some(key));
    Ok(arrange(named, rest, &order, &server, Some(key)))
}

fn key_of(item: &Value, key: &str) -> Result<Value> {
    item.get(key).cloned().ok_or_else(|| StrategicError::NoMergeKey { element: item.to_string(), key: key.to_owned() })
}

/// Whether two list elements are the same one.
fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) if a.is_object() && b.is_object() => a.get(key).is_some() && a.get(key) == b.get(key),
        _ => a == b,
    }
}

fn index(list: &[Value], item: &Value, key: Option<&str>) -> Option<usize> {
    list.iter().position(|other| same(other, item, key))
}

/// Splits into what `order` names and what it does not.
fn partition(items: Vec<Value>, order: &[Value], key: Option<&str>) -> (Vec<Value>, Vec<Value>) {
    items.into_iter().partition(|item| index(order, item, key).is_some())
}

/// Puts the elements that only the server had among those that the patch orders: both keep their order, the server's order decides
/// where they meet.
fn arrange(
    mut named: Vec<Value>,
    mut rest: Vec<Value>,
    order: &[Value],
    server: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    named.sort_by_key(|item| index(order, item, key));
    rest.sort_by_key(|item| index(server, item, key));
    let (mut named, mut rest) = (named.into_iter().peekable(), rest.into_iter().peekable());
    let mut out = Vec::new();
    loop {
        let rest_first = match (rest.peek(), named.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => match (index(server, l, key), index(server, r, key)) {
                (Some(l), Some(r)) => l < r,
                _ => false,
            },
        };
        out.extend(if rest_first { rest.next() } else { named.next() });
    }
}

/// A value of the patch that is taken as it is: nulls and directives go; `None` if nothing is meant to be left.
fn strip(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            if map.get(PATCH).is_some_and(|d| d == "delete") {
                return None;
            }
            Some(Value::Object(without_directives(map)))
        }
        Value::Array(items) => Some(Value::Array(strip_list(items))),
        other => Some(other),
    }
}

fn without_directives(map: Map<String, Value>) -> Map<String, Value> {
    map.into_iter()
        .filter(|(key, value)| !value.is_null() && !is_directive(key))
        .filter_map(|(key, value)| strip(value).map(|value| (key, value)))
        .collect()
}

fn is_directive(key: &str) -> bool {
    key == PATCH || key == RETAIN_KEYS || key.starts_with(SET_ORDER) || key.starts_with(DELETE_PRIMITIVES)
}

fn strip_list(items: Vec<Value>) -> Vec<Value> {
    items.into_iter().filter_map(strip).collect()
}

#[cfg(test)]
#[path = "strategic_tests.rs"]
mod tests;
