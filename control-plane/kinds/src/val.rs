//! Small reads and writes on `serde_json::Value` objects; absent, null and wrong-typed all read as "not there".
//!
//! Invariant: nothing here panics on any value, whatever its shape.

use serde_json::{Map, Value, json};

/// The value at a dotted path of map keys.
pub(crate) fn at<'a>(v: &'a Value, path: &str) -> Option<&'a Value> {
    let found = path.split('.').try_fold(v, |v, key| v.get(key))?;
    (!found.is_null()).then_some(found)
}

/// The string at a dotted path, empty if absent.
pub(crate) fn text<'a>(v: &'a Value, path: &str) -> &'a str {
    at(v, path).and_then(Value::as_str).unwrap_or("")
}

/// The integer at a dotted path.
pub(crate) fn int(v: &Value, path: &str) -> Option<i64> {
    at(v, path).and_then(Value::as_i64)
}

/// The boolean at a dotted path, false if absent.
pub(crate) fn flag(v: &Value, path: &str) -> bool {
    at(v, path).and_then(Value::as_bool).unwrap_or(false)
}

/// The list at a dotted path, empty if absent.
pub(crate) fn list<'a>(v: &'a Value, path: &str) -> &'a [Value] {
    at(v, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The map at a dotted path.
pub(crate) fn map<'a>(v: &'a Value, path: &str) -> Option<&'a Map<String, Value>> {
    at(v, path).and_then(Value::as_object)
}

/// Entries of the map at a dotted path, none if absent.
pub(crate) fn entries<'a>(v: &'a Value, path: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    map(v, path).into_iter().flatten()
}

/// The mutable list at `key`.
pub(crate) fn list_mut<'a>(v: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    v.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The map at `key`, made if absent; a value that is not a map is replaced.
pub(crate) fn child<'a>(v: &'a mut Value, key: &str) -> &'a mut Value {
    if !v.is_object() {
        *v = json!({});
    }
    let slot = &mut v[key];
    if !slot.is_object() {
        *slot = json!({});
    }
    slot
}

/// The map at `key`, if there is one.
pub(crate) fn child_mut<'a>(v: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    v.get_mut(key).filter(|c| c.is_object())
}

/// Sets `key` unless it has a value (null and, for strings, empty count as none).
pub(crate) fn default(v: &mut Value, key: &str, value: impl Into<Value>) {
    let absent = match v.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(_) => false,
    };
    if absent && let Some(m) = v.as_object_mut() {
        m.insert(key.to_owned(), value.into());
    }
}

/// Sets `key` unless it is there, even if empty.
pub(crate) fn set_if_absent(v: &mut Value, key: &str, value: impl Into<Value>) {
    if v.get(key).is_none() {
        set(v, key, value);
    }
}

/// Sets `key`.
pub(crate) fn set(v: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(m) = v.as_object_mut() {
        m.insert(key.to_owned(), value.into());
    }
}

/// Removes `key`.
pub(crate) fn remove(v: &mut Value, key: &str) -> Option<Value> {
    v.as_object_mut().and_then(|m| m.remove(key))
}

/// Makes `new[key]` what `old[key]` is.
pub(crate) fn carry(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => set(new, key, value.clone()),
        None => {
            remove(new, key);
        }
    }
}

/// Whether two optional values are the same, with absent, null, empty string, empty list and empty map alike.
pub(crate) fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    fn empty(v: Option<&Value>) -> bool {
        match v {
            None | Some(Value::Null) => true,
            Some(Value::String(s)) => s.is_empty(),
            Some(Value::Array(a)) => a.is_empty(),
            Some(Value::Object(m)) => m.is_empty(),
            Some(Value::Bool(_) | Value::Number(_)) => false,
        }
    }
    (empty(a) && empty(b)) || a == b
}

/// Copies `v[from]` to `v[to]`.
pub(crate) fn carry_as(v: &mut Value, from: &str, to: &str) {
    if let Some(value) = v.get(from).cloned() {
        set(v, to, value);
    }
}
