//! Validates values by a schema.
//!
//! On an update, what is wrong is tolerated where the value is the one that was there before, found by field name or by the keys of a
//! list map. Upstream counterparts: `kube-openapi/pkg/validation/validate` with its messages, the way they become field errors in
//! `apiextensions-apiserver/pkg/apiserver/validation`, and `CRDValidationRatcheting` there.

use serde_json::{Map, Number, Value, json};

use super::lists::key_of;
use super::structural::{Additional, Structural, Values};
use super::{format, number};
use crate::error::{CauseKind, FieldError, go_quote};

/// Most errors that are gathered from one list or map; upstream has no limit.
const MAX_ERRORS: usize = 200;
/// How messages call the place of an error that has none.
const NOWHERE: &str = "<nil>";

/// What is validated, and where.
pub(crate) struct Target<'a> {
    /// The value.
    pub(crate) value: &'a Value,
    /// The value before the update, if there was one.
    pub(crate) old: Option<&'a Value>,
    /// What field paths start with; not part of the messages. Empty for whole objects.
    pub(crate) prefix: &'a str,
}

/// Validates a value.
pub(crate) fn validate(schema: &Structural, target: &Target<'_>) -> Vec<FieldError> {
    let walk = Walk { prefix: target.prefix };
    walk.node(schema, Some(schema), target.value, target.old, "").errors
}

/// What came of validating one value by one schema.
#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    /// How much fitted; tells which of several alternatives came closest.
    matched: usize,
}

impl Outcome {
    fn merge(&mut self, other: Self) {
        for error in other.errors {
            self.push(error);
        }
        self.matched += other.matched;
    }

    fn push(&mut self, error: FieldError) {
        let known = self.errors.iter().take(MAX_ERRORS).any(|e| e.detail == error.detail && e.field == error.field);
        if !known {
            self.errors.push(error);
        }
    }

    fn full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// One more validator that applied.
    fn step(&mut self, fits: bool) {
        self.matched += 1 + usize::from(fits);
    }
}

struct Walk<'a> {
    prefix: &'a str,
}

impl Walk<'_> {
    /// The field path of an error that messages say is at `name`.
    fn at(&self, name: &str) -> String {
        let name = name.strip_prefix('.').unwrap_or(name);
        match (self.prefix, name) {
            ("", "") => NOWHERE.to_owned(),
            ("", name) => name.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, name) => format!("{prefix}.{name}"),
        }
    }

    /// The field path of an error that is about several fields.
    fn nowhere(&self) -> String {
        self.at("")
    }

    /// Validates `value` by `schema`; `main` is the structural schema of the place, which says how old and new values belong together,
    /// and which is `schema` itself outside of alternatives.
    fn node(
        &self,
        schema: &Structural,
        main: Option<&Structural>,
        value: &Value,
        old: Option<&Value>,
        name: &str,
    ) -> Outcome {
        let out = self.fresh(schema, main, value, old, name);
        if !out.errors.is_empty() && old.is_some_and(|old| unchanged(main, value, old)) {
            return Outcome { errors: Vec::new(), matched: out.matched };
        }
        out
    }

    /// As [`Walk::node`], without regard to whether the value itself is the old one.
    fn fresh(
        &self,
        schema: &Structural,
        main: Option<&Structural>,
        value: &Value,
        old: Option<&Value>,
        name: &str,
    ) -> Outcome {
        let mut out = Outcome::default();
        if let Some(error) = self.kind(schema, value, name) {
            out.push(error);
        } else {
            out.step(true);
        }
        if !value.is_null() {
            self.junctors(&schema.values, main, (value, old), name, &mut out);
            match value {
                Value::String(text) => self.text(schema, text, name, &mut out),
                Value::Number(n) => self.number(schema, n, name, &mut out),
                Value::Array(items) => self.array(schema, main, (items, old), name, &mut out),
                _ => {}
            }
        }
        let values = &schema.values;
        if !values.enumeration.is_empty() && !values.enumeration.iter().any(|one| equal(one, value)) {
            let shown: Vec<String> =
                values.enumeration.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
            let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
            out.push(FieldError::not_supported(self.at(name), value.clone(), &shown));
        }
        if let Value::Object(map) = value {
            self.object(schema, main, (map, old), name, &mut out);
        }
        out.matched += 1;
        out
    }

    fn kind(&self, schema: &Structural, value: &Value, name: &str) -> Option<FieldError> {
        let kinds: &[&str] = if schema.int_or_string { &["integer", "string"] } else { &[schema.kind.as_str()] };
        let format = checked_format(schema);
        if kinds == [""] && format.is_empty() {
            return None;
        }
        let refuse = |wanted: &str, found: &str| {
            let detail = format!("{name} in body must be of type {wanted}: {}", go_quote(found));
            Some(type_error(self.at(name), json!(found), detail))
        };
        if value.is_null() {
            return if kinds == [""] || schema.nullable { None } else { refuse(&kinds.join(","), "null") };
        }
        let (found, found_format) = match value {
            Value::Number(n) if number::is_int(n) => ("integer", "int64"),
            Value::Number(_) => ("number", "float64"),
            other => (json_type(other), ""),
        };
        let numeric = kinds.iter().any(|kind| matches!(*kind, "integer" | "number"));
        let fits = kinds.contains(&found)
            || (found == "integer" && kinds.contains(&"number"))
            || (found == "number" && kinds.contains(&"integer") && value.as_f64().is_some_and(|f| f.fract() == 0.0));
        if !format.is_empty() && found != "string" && found != "array" && !fits {
            return refuse(format, found_format);
        }
        if fits || (!numeric && !format.is_empty() && found == "string") {
            return None;
        }
        refuse(&kinds.join(","), found)
    }

    fn junctors(
        &self,
        values: &Values,
        main: Option<&Structural>,
        (value, old): (&Value, Option<&Value>),
        name: &str,
        out: &mut Outcome,
    ) {
        let run = |schema: &Structural| self.fresh(schema, main, value, old, name);
        // What is tolerated would count as a fit where a fit may be a fault.
        let strict = |schema: &Structural| self.fresh(schema, main, value, None, name);
        let quoted = go_quote(name);
        let refuse = |detail: String| FieldError::invalid(self.nowhere(), "", detail);
        if !values.any_of.is_empty() {
            match closest(values.any_of.iter().map(run), |_| true) {
                (0, best) => {
                    out.push(refuse(format!("{quoted} must validate at least one schema (anyOf)")));
                    out.merge(best.unwrap_or_default());
                }
                _ => out.matched += 1,
            }
        }
        if !values.one_of.is_empty() {
            let (count, best) = match closest(values.one_of.iter().map(strict), |_| false) {
                (0, _) if old.is_some() => closest(values.one_of.iter().map(run), |_| false),
                found => found,
            };
            match (count, best) {
                (1, _) => out.matched += 1,
                (0, best) => {
                    out.push(refuse(format!(
                        "{quoted} must validate one and only one schema (oneOf). Found none valid"
                    )));
                    out.merge(best.unwrap_or_default());
                }
                (n, _) => {
                    let why = format!("Found {n} valid alternatives");
                    out.push(refuse(format!("{quoted} must validate one and only one schema (oneOf). {why}")));
                }
            }
        }
        let mut valid = 0;
        for schema in &values.all_of {
            let result = run(schema);
            valid += usize::from(result.errors.is_empty());
            out.merge(result);
        }
        if valid != values.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            out.push(refuse(format!("{quoted} must validate all the schemas (allOf){none}")));
        }
        if values.not.as_deref().is_some_and(|schema| strict(schema).errors.is_empty()) {
            out.push(refuse(format!("{quoted} must not validate the schema (not)")));
        }
        out.step(true);
    }

    fn text(&self, schema: &Structural, text: &str, name: &str, out: &mut Outcome) {
        let v = &schema.values;
        let len = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let invalid = |why: String| FieldError::invalid(self.at(name), text, format!("{name} in body should {why}"));
        if let Some(max) = v.max_length.filter(|max| len > *max) {
            out.push(FieldError::too_long(self.at(name), usize::try_from(max).unwrap_or(0)));
        } else if let Some(min) = v.min_length.filter(|min| len < *min) {
            out.push(invalid(format!("be at least {min} chars long")));
        } else if let Some(pattern) = v.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            out.push(invalid(format!("match '{}'", pattern.source)));
        }
        out.step(false);
        let format = checked_format(schema);
        if !format.is_empty() && !matches!(format, "int32" | "int64" | "float" | "double") {
            if format::check(format, text) == Some(false) {
                let detail = format!("{name} in body must be of type {format}: {}", go_quote(text));
                out.push(type_error(self.at(name), json!(text), detail));
            }
            out.step(false);
        }
    }

    fn number(&self, schema: &Structural, n: &Number, name: &str, out: &mut Outcome) {
        let v = &schema.values;
        let format = checked_format(schema);
        if !number::in_range(n, &schema.kind, format) {
            let kind = &schema.kind;
            let detail = format!("Checked value must be of type {kind} with format {format} in {name}");
            out.push(FieldError::invalid(self.nowhere(), "", detail));
        }
        let mut invalid = |why: String| {
            out.push(FieldError::invalid(self.at(name), n.clone(), format!("{name} in body should {why}")));
        };
        if let Some(factor) = v.multiple_of.filter(|factor| !number::is_multiple(n, *factor)) {
            invalid(format!("be a multiple of {}", number::limit(n, factor)));
        }
        if let Some(min) = v.minimum.filter(|min| number::below(n, *min, v.exclusive_minimum)) {
            let or_equal = if v.exclusive_minimum { "" } else { " or equal to" };
            invalid(format!("be greater than{or_equal} {}", number::limit(n, min)));
        }
        if let Some(max) = v.maximum.filter(|max| number::above(n, *max, v.exclusive_maximum)) {
            let or_equal = if v.exclusive_maximum { "" } else { " or equal to" };
            invalid(format!("be less than{or_equal} {}", number::limit(n, max)));
        }
        out.step(true);
    }

    fn array(
        &self,
        schema: &Structural,
        main: Option<&Structural>,
        (items, old): (&[Value], Option<&Value>),
        name: &str,
        out: &mut Outcome,
    ) {
        if let Some(inner) = schema.items.as_deref() {
            let inner_main = main.and_then(|m| m.items.as_deref());
            for (i, item) in items.iter().enumerate() {
                let before = main.and_then(|m| correlated(m, item, old));
                out.merge(self.node(inner, inner_main, item, before, &format!("{name}[{i}]")));
                if out.full() {
                    return;
                }
            }
        }
        let v = &schema.values;
        let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(min) = v.min_items.filter(|min| len < *min) {
            out.push(FieldError::invalid(
                self.at(name),
                len,
                format!("{name} in body should have at least {min} items"),
            ));
        }
        if let Some(max) = v.max_items.filter(|max| len > *max) {
            out.push(FieldError::too_many(self.at(name), items.len(), usize::try_from(max).unwrap_or(0)));
        }
        if v.unique_items && (1..items.len()).any(|i| items[..i].contains(&items[i])) {
            out.push(FieldError::invalid(self.at(name), "", format!("{name} in body shouldn't contain duplicates")));
        }
        out.step(true);
    }

    fn object(
        &self,
        schema: &Structural,
        main: Option<&Structural>,
        (map, old): (&Map<String, Value>, Option<&Value>),
        name: &str,
        out: &mut Outcome,
    ) {
        let v = &schema.values;
        let len = i64::try_from(map.len()).unwrap_or(i64::MAX);
        if let Some(min) = v.min_properties.filter(|min| len < *min) {
            let detail = format!("{name} in body should have at least {min} properties");
            out.push(FieldError::invalid(self.at(name), len, detail));
            return;
        }
        if let Some(max) = v.max_properties.filter(|max| len > *max) {
            out.push(FieldError::too_many(self.at(name), map.len(), usize::try_from(max).unwrap_or(0)));
            return;
        }
        let before = |key: &str| {
            // The type of a whole object is not what was stored, and is not compared.
            let typed = name.is_empty() && self.prefix.is_empty() && matches!(key, "apiVersion" | "kind");
            old.filter(|_| !typed && main.is_some_and(|m| m.field(key).is_some())).and_then(|old| old.get(key))
        };
        let mut check = |key: &String, value: &Value, inner: &Structural, at: String| {
            out.merge(self.node(inner, main.and_then(|m| m.field(key)), value, before(key), &at));
            out.full()
        };
        for (key, value) in map.iter().filter(|(key, _)| !schema.properties.contains_key(*key)) {
            if let Some(inner) = schema.additional_schema()
                && check(key, value, inner, format!("{name}.{key}"))
            {
                return;
            }
        }
        for (key, inner) in &schema.properties {
            let at = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
            if let Some(value) = map.get(key)
                && check(key, value, inner, at)
            {
                return;
            }
        }
        if schema.additional == Some(Additional::Any(false)) {
            for key in map.keys().filter(|key| !schema.properties.contains_key(*key)) {
                let detail = format!("{name}.{key} in body is a forbidden property");
                out.push(FieldError::invalid(self.at(name), key.as_str(), detail));
            }
        }
        for key in v.required.iter().filter(|key| !map.contains_key(*key)) {
            out.push(FieldError::required(self.at(&format!("{name}.{key}")), ""));
        }
        out.step(false);
    }
}

/// Number of alternatives that fit, and the closest one if none does. `enough` may end the search at the first that fits.
fn closest(results: impl Iterator<Item = Outcome>, enough: impl Fn(usize) -> bool) -> (usize, Option<Outcome>) {
    let mut valid = 0;
    let mut best: Option<Outcome> = None;
    for result in results {
        if result.errors.is_empty() {
            valid += 1;
            if enough(valid) {
                break;
            }
        } else if best.as_ref().is_none_or(|best| result.matched > best.matched) {
            best = Some(result);
        }
    }
    (valid, best.filter(|_| valid == 0))
}

fn type_error(field: String, value: Value, detail: String) -> FieldError {
    FieldError { field, kind: CauseKind::TypeInvalid, value: Some(value), detail }
}

/// The format of a schema if it is one that is checked for its type; empty otherwise.
fn checked_format(schema: &Structural) -> &str {
    let format = schema.values.format.as_str();
    let kept = match schema.kind.as_str() {
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        "" | "string" => !schema.int_or_string && format::check(format, "").is_some(),
        _ => false,
    };
    if kept { format } else { "" }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a value is one of an enumeration; numbers are compared by what they are worth.
fn equal(one: &Value, value: &Value) -> bool {
    match (one, value) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Null, Value::Null) => false,
        _ => one == value,
    }
}

/// The item of the old list that is the same as `item` of the new one: only list maps tell.
fn correlated<'a>(list: &Structural, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    if list.list_type.as_deref() != Some("map") || !item.is_object() {
        return None;
    }
    let key = key_of(item, list);
    old?.as_array()?.iter().find(|before| before.is_object() && key_of(before, list) == key)
}

/// Whether nothing changed, as far as old and new belong together: fields that no schema knows count as changed.
fn unchanged(schema: Option<&Structural>, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| {
                    let inner = schema.and_then(|s| s.field(key));
                    inner.is_some() && b.get(key).is_some_and(|before| unchanged(inner, value, before))
                })
        }
        (Value::Array(a), Value::Array(b)) => {
            let Some(list) = schema.filter(|s| s.list_type.as_deref() == Some("map")) else { return a == b };
            let inner = list.items.as_deref();
            a.len() == b.len()
                && a.iter()
                    .all(|item| correlated(list, item, Some(old)).is_some_and(|before| unchanged(inner, item, before)))
        }
        _ => new == old,
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
