//! JSON values as Go sees them: their order, their equality and how messages print them.
//!
//! Upstream counterpart: `structured-merge-diff/value`. Numbers are equal when they are numerically equal, whatever their JSON form.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Number, Value};

/// Below this, `encoding/json` writes a float with an exponent.
const SMALLEST_PLAIN_FLOAT: f64 = 1e-6;
/// From this on, `encoding/json` writes a float with an exponent.
const LARGEST_PLAIN_FLOAT: f64 = 1e21;
/// Whole floats up to here are integers without loss.
const EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

fn rank(v: &Value) -> u8 {
    match v {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn integer(n: &Number) -> Option<i128> {
    n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from))
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
    }
}

/// A total order over all values.
pub(crate) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let different = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
            different.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let different = a.iter().zip(b).map(|(a, b)| a.0.cmp(b.0).then_with(|| compare(a.1, b.1)));
            different.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Whether two values are the same.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    a == b || compare(a, b).is_eq()
}

/// Whole floats as integers: the form in which keys are written.
pub(crate) fn normal(v: &Value) -> Value {
    if let Value::Number(n) = v
        && n.is_f64()
        && let Some(float) = n.as_f64()
        && float.fract() == 0.0
        && float.abs() <= EXACT_INTEGER
    {
        return Value::from(float as i64);
    }
    v.clone()
}

/// A number as Go writes it in JSON.
pub(crate) fn write_number(out: &mut String, n: &Number) {
    if integer(n).is_some() {
        let _ = write!(out, "{n}");
        return;
    }
    let float = n.as_f64().unwrap_or(0.0);
    let size = float.abs();
    if size == 0.0 || (SMALLEST_PLAIN_FLOAT..LARGEST_PLAIN_FLOAT).contains(&size) {
        let _ = write!(out, "{float}");
    } else if size < 1.0 {
        let _ = write!(out, "{float:e}");
    } else {
        out.push_str(&format!("{float:e}").replacen('e', "e+", 1));
    }
}

/// A string as jsoniter writes it; values also escape what HTML would read.
pub(crate) fn write_string(out: &mut String, s: &str, html: bool) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if html => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A value as jsoniter writes it inside a path element.
pub(crate) fn write_value(out: &mut String, v: &Value) {
    match v {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => write_number(out, n),
        Value::String(s) => write_string(out, s, true),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(out, key, true);
                out.push(':');
                write_value(out, item);
            }
            out.push('}');
        }
    }
}

/// Go's `%q`.
pub(crate) fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c < ' ' || c == '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// How a path shows a key's value.
pub(crate) fn display(v: &Value) -> String {
    match v {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => {
            let mut out = String::new();
            write_number(&mut out, n);
            out
        }
        Value::String(s) => quote(s),
        Value::Array(items) => format!("[{}]", items.iter().map(display).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map.iter().map(|(key, v)| format!("{key}={}", display(v))).collect(),
    }
}

/// Go's `%v`.
pub(crate) fn go_value(v: &Value) -> String {
    match v {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let fields: Vec<_> = map.iter().map(|(key, v)| format!("{key}:{}", go_value(v))).collect();
            format!("map[{}]", fields.join(" "))
        }
        Value::Bool(_) | Value::Number(_) => display(v),
    }
}

/// Go's `%#v`.
pub(crate) fn go_syntax(v: &Value) -> String {
    match v {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let fields: Vec<_> = map.iter().map(|(key, v)| format!("{}:{}", quote(key), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
        Value::String(_) | Value::Bool(_) | Value::Number(_) => display(v),
    }
}

/// Go's `%T`.
pub(crate) fn go_type(v: &Value) -> &'static str {
    match v {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_compare_by_size_and_before_strings() {
        assert!(equal(&json!(80), &json!(80.0)));
        assert_eq!(compare(&json!(80), &json!(443)), Ordering::Less);
        assert_eq!(compare(&json!(1e30), &json!("a")), Ordering::Less);
        assert_eq!(compare(&json!([1, 2]), &json!([1])), Ordering::Greater);
    }

    #[test]
    fn numbers_are_written_as_go_does() {
        for (value, text) in [
            (json!(80), "80"),
            (json!(0.5), "0.5"),
            (json!(0.00001), "0.00001"),
            (json!(1e-7), "1e-7"),
            (json!(1e21), "1e+21"),
            (normal(&json!(80.0)), "80"),
        ] {
            let mut out = String::new();
            write_value(&mut out, &value);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn strings_in_values_are_safe_in_html() {
        let mut out = String::new();
        write_value(&mut out, &json!("a<b>&\u{8}\n\"é"));
        assert_eq!(out, "\"a\\u003cb\\u003e\\u0026\\u0008\\n\\\"é\"");
    }

    #[test]
    fn messages_show_values_as_go_does() {
        assert_eq!(go_value(&json!({"b": [1, "x"], "a": null})), "map[a:<nil> b:[1 x]]");
        assert_eq!(go_syntax(&json!({"a": [1]})), "map[string]interface {}{\"a\":[]interface {}{1}}");
        assert_eq!(quote("a\"\n\u{1}"), "\"a\\\"\\n\\x01\"");
    }
}
