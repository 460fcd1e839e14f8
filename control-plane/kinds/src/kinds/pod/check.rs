//! The small checks that rules of pods are made of: each adds upstream's error for one value, if it has one.

use serde_json::Value;

use crate::error::FieldError;
use crate::{names, val};

/// A check of [`names`].
pub(super) type Check = fn(&str) -> Vec<String>;

pub(super) const MORE_THAN_ONE_VOLUME: &str = "may not specify more than 1 volume type";
/// Largest mode of a file.
const MAX_MODE: i64 = 0o777;

/// The string at a dotted path, even if it is empty: where upstream has a pointer, empty is not absent.
pub(super) fn present<'a>(v: &'a Value, path: &str) -> Option<&'a str> {
    val::at(v, path).and_then(Value::as_str)
}

/// A text that `check` has to pass.
pub(super) fn text(value: &str, at: &str, check: Check, errors: &mut Vec<FieldError>) {
    errors.extend(check(value).into_iter().map(|message| FieldError::invalid(at, value, message)));
}

/// A text that is checked unless it is empty.
pub(super) fn optional(value: &str, at: &str, check: Check, errors: &mut Vec<FieldError>) {
    if !value.is_empty() {
        text(value, at, check, errors);
    }
}

/// A text that may not be empty.
pub(super) fn required(value: &str, at: &str, errors: &mut Vec<FieldError>) {
    if value.is_empty() {
        errors.push(FieldError::required(at, ""));
    }
}

/// A text that may not be empty and has to pass `check`.
pub(super) fn required_text(value: &str, at: &str, check: Check, errors: &mut Vec<FieldError>) {
    if value.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else {
        text(value, at, check, errors);
    }
}

/// A text out of a fixed set.
pub(super) fn supported(value: &str, valid: &[&str], at: &str, errors: &mut Vec<FieldError>) {
    if !valid.contains(&value) {
        errors.push(FieldError::not_supported(at, value, valid));
    }
}

/// A text out of a fixed set, which may not be empty.
pub(super) fn one_of(value: &str, valid: &[&str], at: &str, errors: &mut Vec<FieldError>) {
    if value.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else {
        supported(value, valid, at, errors);
    }
}

/// A number within bounds.
pub(super) fn within(value: i64, low: i64, high: i64, at: &str, errors: &mut Vec<FieldError>) {
    if !(low..=high).contains(&value) {
        errors.push(FieldError::invalid(at, value, format!("must be between {low} and {high}, inclusive")));
    }
}

/// The user or group at a dotted path.
pub(super) fn identity(v: &Value, path: &str, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(id) = val::int(v, path) {
        within(id, 0, i64::from(i32::MAX), at, errors);
    }
}

/// The mode of a file at `key`.
pub(super) fn mode(v: &Value, key: &str, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(mode) = val::int(v, key)
        && !(0..=MAX_MODE).contains(&mode)
    {
        let message = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(format!("{at}.{key}"), mode, message));
    }
}

/// Whether a path has a `..` in it.
pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// A path without `..`.
pub(super) fn no_backsteps(path: &str, at: &str, errors: &mut Vec<FieldError>) {
    if has_backsteps(path) {
        errors.push(FieldError::invalid(at, path, "must not contain '..'"));
    }
}

/// A path that must stay inside its volume.
pub(super) fn local_path(path: &str, at: &str, errors: &mut Vec<FieldError>) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(at, path, "must be a relative path"));
    }
    no_backsteps(path, at, errors);
}

/// A local path that leaves the names of the atomic writer alone.
pub(super) fn not_reserved(path: &str, at: &str, errors: &mut Vec<FieldError>) {
    local_path(path, at, errors);
    if path.starts_with("..") && !path.starts_with("../") {
        errors.push(FieldError::invalid(at, path, "must not start with '..'"));
    }
}

/// A port by number or by name.
pub(super) fn port_or_name(v: &Value, at: &str, errors: &mut Vec<FieldError>) {
    match v.get("port") {
        Some(Value::String(name)) => text(name, at, names::port_name, errors),
        port => port_number(port.and_then(Value::as_i64).unwrap_or(0), at, errors),
    }
}

/// A port by number.
pub(super) fn port_number(number: i64, at: &str, errors: &mut Vec<FieldError>) {
    errors.extend(names::port_number(number).into_iter().map(|message| FieldError::invalid(at, number, message)));
}

/// The three lists of containers in upstream's order of visits, each container with its path.
pub(super) fn containers<'a>(spec: &'a Value, at: &str) -> Vec<(String, &'a Value)> {
    let mut all = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let each = val::list(spec, list).iter().enumerate();
        all.extend(each.map(|(i, container)| (format!("{at}.{list}[{i}]"), container)));
    }
    all
}
