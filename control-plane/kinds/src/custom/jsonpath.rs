//! JSONPath as printer columns use it: fields, quoted keys, indices, slices, unions, wildcards, recursive descent and filters.
//!
//! A path that runs into something that is not there finds nothing; one that indexes what is no list, or out of bounds, fails.
//! Upstream counterpart: `client-go/util/jsonpath` with `AllowMissingKeys`.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Value, json};

/// Deepest nesting of unions and filters.
const MAX_NESTING: usize = 16;
/// Most values that one step may find: recursive descents multiply.
const MAX_FOUND: usize = 10_000;

/// A parsed path.
#[derive(Clone, Debug)]
pub(crate) struct JsonPath(Vec<Node>);

#[derive(Clone, Debug)]
enum Node {
    Field(String),
    Wildcard,
    Recursive,
    Slice { start: Option<i64>, end: End, step: Option<i64> },
    Union(Vec<Vec<Node>>),
    Filter { left: Vec<Node>, operator: String, right: Vec<Node> },
    Literal(Value),
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// One item: the one at the start.
    Derived,
    Open,
    At(i64),
}

/// Why a path is none, or finds nothing that could be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("{0}")]
    Syntax(String),
    #[error("{0} is not array or slice")]
    NotAList(&'static str),
    #[error("array index out of bounds: index {0}, length {1}")]
    OutOfBounds(i64, usize),
    #[error("can only compare one element at a time")]
    Several,
    #[error("incompatible types for comparison")]
    Incomparable,
    #[error("more than {MAX_FOUND} values")]
    TooMany,
}

fn syntax<T>(why: impl Into<String>) -> Result<T, PathError> {
    Err(PathError::Syntax(why.into()))
}

impl JsonPath {
    /// Parses what stands between the braces of a template.
    pub(crate) fn parse(text: &str) -> Result<Self, PathError> {
        parse(text, 0).map(Self)
    }

    /// What the path finds in a value.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Result<Vec<Cow<'a, Value>>, PathError> {
        walk(&self.0, vec![Cow::Borrowed(value)])
    }
}

fn parse(text: &str, depth: usize) -> Result<Vec<Node>, PathError> {
    if depth > MAX_NESTING {
        return syntax("nested too deeply");
    }
    let mut nodes = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("[?(") {
            rest = filter(after, depth, &mut nodes)?;
            continue;
        }
        if let Some(after) = rest.strip_prefix("..") {
            if matches!(nodes.last(), Some(Node::Recursive)) {
                return syntax("invalid multiple recursive descent");
            }
            nodes.push(Node::Recursive);
            rest = if after.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                field(after, &mut nodes)
            } else {
                after
            };
            continue;
        }
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '}' => break,
            ' ' | '@' | '$' => after,
            '\r' | '\n' => return syntax("unclosed action"),
            '[' => {
                let Some(end) = after.find(']') else { return syntax("unterminated array") };
                list(&after[..end], depth, &mut nodes)?;
                &after[end + 1..]
            }
            '"' | '\'' => {
                let (literal, after) = quoted(after, c)?;
                nodes.push(Node::Literal(json!(literal)));
                after
            }
            '.' => field(after, &mut nodes),
            '+' | '-' | '0'..='9' => number(rest, &mut nodes)?,
            c if c == '_' || c.is_alphanumeric() => {
                let end = rest.find(is_terminator).unwrap_or(rest.len());
                match &rest[..end] {
                    "true" => nodes.push(Node::Literal(json!(true))),
                    "false" => nodes.push(Node::Literal(json!(false))),
                    other => return syntax(format!("unrecognized identifier {other}")),
                }
                &rest[end..]
            }
            other => return syntax(format!("unrecognized character in action: {other:?}")),
        };
    }
    Ok(nodes)
}

fn is_terminator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// A field's name, in which a backslash takes the next character as it is; returns what is behind it.
fn field<'a>(text: &'a str, nodes: &mut Vec<Node>) -> &'a str {
    let mut end = text.len();
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if is_terminator(c) {
            end = i;
            break;
        }
    }
    let name = text[..end].replace('\\', "");
    nodes.push(if name == "*" { Node::Wildcard } else { Node::Field(name) });
    &text[end..]
}

fn quoted(text: &str, quote: char) -> Result<(String, &str), PathError> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            c if c == quote => return Ok((out, &text[i + c.len_utf8()..])),
            '\n' => break,
            '\\' => out.extend(chars.next().map(|(_, c)| match c {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            })),
            c => out.push(c),
        }
    }
    syntax("unterminated quoted string")
}

fn number<'a>(text: &'a str, nodes: &mut Vec<Node>) -> Result<&'a str, PathError> {
    let sign = usize::from(text.starts_with(['+', '-']));
    let end = text[sign..].find(|c: char| c != '.' && !c.is_ascii_digit()).map_or(text.len(), |end| end + sign);
    let literal = &text[..end];
    let value = match (literal.parse::<i64>(), literal.parse::<f64>()) {
        (Ok(int), _) => json!(int),
        (_, Ok(float)) => json!(float),
        _ => return syntax(format!("cannot parse number {literal}")),
    };
    nodes.push(Node::Literal(value));
    Ok(&text[end..])
}

/// What stands in brackets.
fn list(text: &str, depth: usize, nodes: &mut Vec<Node>) -> Result<(), PathError> {
    let text = if text == "*" { ":" } else { text };
    if text.contains(',') {
        let parts = text.split(',').map(|part| parse(&format!("[{}]", part.trim_matches(' ')), depth + 1));
        nodes.push(Node::Union(parts.collect::<Result<_, _>>()?));
        return Ok(());
    }
    let key = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).filter(|key| !key.contains('\''));
    if let Some(key) = key {
        nodes.extend(parse(&format!(".{key}"), depth + 1)?);
        return Ok(());
    }
    let bound = |part: &str| -> Result<Option<i64>, PathError> {
        if part.is_empty() {
            return Ok(None);
        }
        part.parse().map(Some).map_err(|_| PathError::Syntax(format!("invalid array index {text}")))
    };
    let parts: Vec<&str> = text.split(':').collect();
    let node = match parts.as_slice() {
        [""] => return syntax("invalid array index "),
        [only] => Node::Slice { start: bound(only)?, end: End::Derived, step: None },
        [start, end] | [start, end, _] => {
            let step = parts.get(2).map_or(Ok(None), |step| bound(step))?;
            Node::Slice { start: bound(start)?, end: bound(end)?.map_or(End::Open, End::At), step }
        }
        _ => return syntax(format!("invalid array index {text}")),
    };
    nodes.push(node);
    Ok(())
}

/// The filter behind `[?(`; returns what is behind its `)]`.
fn filter<'a>(text: &'a str, depth: usize, nodes: &mut Vec<Node>) -> Result<&'a str, PathError> {
    let mut quote = None;
    let mut escaped = false;
    let mut end = None;
    for (i, c) in text.char_indices() {
        match (c, quote) {
            ('\n', _) => break,
            (c, Some(q)) if c == q && !escaped => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (')', None) => {
                end = Some(i);
                break;
            }
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    let Some(end) = end else { return syntax("unterminated filter") };
    let Some(after) = text[end + 1..].strip_prefix(']') else { return syntax("unclosed array expect ]") };
    let inner = &text[..end];
    let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
    let node = match inner.find(is_operator).filter(|at| *at > 0) {
        None => Node::Filter { left: parse(inner, depth + 1)?, operator: "exists".to_owned(), right: Vec::new() },
        Some(at) => {
            let behind = inner[at..].find(|c| !is_operator(c)).map_or(inner.len(), |len| at + len);
            let operator = &inner[at..behind];
            if !matches!(operator, "<" | ">" | "==" | "!=" | "<=" | ">=") {
                return syntax(format!("unrecognized filter operator {operator}"));
            }
            Node::Filter {
                left: parse(&inner[..at], depth + 1)?,
                operator: operator.to_owned(),
                right: parse(&inner[behind..], depth + 1)?,
            }
        }
    };
    nodes.push(node);
    Ok(after)
}

type Found<'a> = Vec<Cow<'a, Value>>;

fn walk<'a>(nodes: &[Node], mut values: Found<'a>) -> Result<Found<'a>, PathError> {
    for node in nodes {
        values = step(node, values)?;
        if values.len() > MAX_FOUND {
            return Err(PathError::TooMany);
        }
    }
    Ok(values)
}

fn step<'a>(node: &Node, values: Found<'a>) -> Result<Found<'a>, PathError> {
    match node {
        Node::Literal(literal) => Ok(values.iter().map(|_| Cow::Owned(literal.clone())).collect()),
        Node::Field(name) => Ok(values.into_iter().filter_map(|value| get(value, name)).collect()),
        Node::Wildcard => Ok(values.into_iter().flat_map(children).collect()),
        Node::Recursive => {
            let mut out = Vec::new();
            values.into_iter().try_for_each(|value| descend(value, &mut out))?;
            Ok(out)
        }
        Node::Union(parts) => {
            let mut out = Vec::new();
            for part in parts {
                out.extend(walk(part, values.clone())?);
            }
            Ok(out)
        }
        Node::Slice { start, end, step } => {
            let mut out = Vec::new();
            for value in values.into_iter().filter(|value| !value.is_null()) {
                out.extend(slice(value, *start, *end, *step)?);
            }
            Ok(out)
        }
        Node::Filter { left, operator, right } => {
            let mut out = Vec::new();
            for value in values {
                if !value.is_array() {
                    return Err(PathError::NotAList(crate::decode::json_kind(&value)));
                }
                for item in children(value) {
                    if passes(&item, left, operator, right)? {
                        out.push(item);
                    }
                }
            }
            Ok(out)
        }
    }
}

fn get<'a>(value: Cow<'a, Value>, name: &str) -> Option<Cow<'a, Value>> {
    match value {
        Cow::Borrowed(value) => value.as_object()?.get(name).map(Cow::Borrowed),
        Cow::Owned(value) => value.as_object()?.get(name).cloned().map(Cow::Owned),
    }
}

fn children(value: Cow<'_, Value>) -> Found<'_> {
    match value {
        Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Object(map)) => map.values().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
        Cow::Owned(Value::Object(map)) => map.into_iter().map(|(_, value)| Cow::Owned(value)).collect(),
        _ => Vec::new(),
    }
}

fn descend<'a>(value: Cow<'a, Value>, out: &mut Found<'a>) -> Result<(), PathError> {
    let inner = children(value.clone());
    if inner.is_empty() {
        return Ok(());
    }
    out.push(value);
    if out.len() > MAX_FOUND {
        return Err(PathError::TooMany);
    }
    inner.into_iter().try_for_each(|value| descend(value, out))
}

fn slice<'a>(value: Cow<'a, Value>, start: Option<i64>, end: End, step: Option<i64>) -> Result<Found<'a>, PathError> {
    let Some(len) = value.as_array().map(Vec::len) else {
        return Err(PathError::NotAList(crate::decode::json_kind(&value)));
    };
    let signed = i64::try_from(len).unwrap_or(i64::MAX);
    let from_end = |n: i64| if n < 0 { n.saturating_add(signed) } else { n };
    let first = from_end(start.unwrap_or(0));
    let last = match end {
        End::Derived => first.saturating_add(1),
        End::Open => signed,
        End::At(end) => from_end(end),
    };
    if first != last && (first >= signed || first < 0) {
        return Err(PathError::OutOfBounds(first, len));
    }
    if last > signed {
        return Err(PathError::OutOfBounds(last - 1, len));
    }
    let step = match step {
        None => 1,
        Some(step) => usize::try_from(step)
            .ok()
            .filter(|step| *step > 0)
            .ok_or_else(|| PathError::Syntax("step must be > 0".into()))?,
    };
    let (first, last) = (usize::try_from(first).unwrap_or(0), usize::try_from(last).unwrap_or(0));
    Ok(children(value).into_iter().take(last).skip(first).step_by(step).collect())
}

fn passes(item: &Value, left: &[Node], operator: &str, right: &[Node]) -> Result<bool, PathError> {
    let lefts = walk(left, vec![Cow::Borrowed(item)]);
    if operator == "exists" {
        return Ok(lefts.is_ok_and(|lefts| !lefts.is_empty()));
    }
    let (lefts, rights) = (lefts?, walk(right, vec![Cow::Borrowed(item)])?);
    match (lefts.as_slice(), rights.as_slice()) {
        ([], _) => Ok(false),
        ([left], [right]) => compare(left, operator, right),
        _ => Err(PathError::Several),
    }
}

fn compare(left: &Value, operator: &str, right: &Value) -> Result<bool, PathError> {
    let ordering = match (left, right) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) if matches!(operator, "==" | "!=") => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) if a.is_f64() == b.is_f64() => a.as_f64().partial_cmp(&b.as_f64()),
        _ => None,
    };
    let ordering = ordering.ok_or(PathError::Incomparable)?;
    Ok(match operator {
        "<" => ordering == Ordering::Less,
        ">" => ordering == Ordering::Greater,
        "==" => ordering == Ordering::Equal,
        "!=" => ordering != Ordering::Equal,
        "<=" => ordering != Ordering::Greater,
        _ => ordering != Ordering::Less,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> Value {
        json!({
            "metadata": {"name": "n", "labels": {"a.b/c": "x"}},
            "spec": {"list": [{"n": "a", "v": 1, "ok": true}, {"n": "b", "v": 2}, {"n": "c", "v": 3}], "nil": null},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}]},
        })
    }

    fn found(path: &str) -> Vec<Value> {
        JsonPath::parse(path).expect(path).find(&value()).expect(path).into_iter().map(Cow::into_owned).collect()
    }

    fn fails(path: &str) -> String {
        let value = value();
        match JsonPath::parse(path) {
            Ok(parsed) => parsed.find(&value).expect_err(path).to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn paths_find_what_they_name() {
        assert_eq!(found(".metadata.name"), [json!("n")]);
        assert_eq!(found("$.metadata['name']"), [json!("n")]);
        assert_eq!(found(".metadata.labels.a\\.b/c"), [json!("x")]);
        assert_eq!(found(".metadata.labels['a\\.b/c']"), [json!("x")]);
        assert_eq!(found(".spec.missing.more"), Vec::<Value>::new());
        assert_eq!(found(".spec.nil"), [Value::Null]);
        assert_eq!(found(".spec.list[0].n"), [json!("a")]);
        assert_eq!(found(".spec.list[-1].n"), [json!("c")]);
        assert_eq!(found(".spec.list[1:].n"), [json!("b"), json!("c")]);
        assert_eq!(found(".spec.list[0:3:2].n"), [json!("a"), json!("c")]);
        assert_eq!(found(".spec.list[*].v"), [json!(1), json!(2), json!(3)]);
        assert_eq!(found(".spec.list[0,2].v"), [json!(1), json!(3)]);
        assert_eq!(found("..status"), [value()["status"].clone(), json!("True"), json!("False")]);
        assert_eq!(found(".metadata.*").len(), 2);
    }

    #[test]
    fn filters_compare() {
        assert_eq!(found(r#".status.conditions[?(@.type=="Ready")].status"#), [json!("True")]);
        assert_eq!(found(".status.conditions[?(@.type!='Ready')].status"), [json!("False")]);
        assert_eq!(found(".spec.list[?(@.v>=2)].n"), [json!("b"), json!("c")]);
        assert_eq!(found(".spec.list[?(@.ok)].n"), [json!("a")]);
        assert_eq!(found(".spec.list[?(@.ok==true)].n"), [json!("a")]);
        assert_eq!(found(r#".status.conditions[?(@.type=="a)b")].status"#), Vec::<Value>::new());
        assert_eq!(fails(".spec.list[?(@.v=='x')].n"), "incompatible types for comparison");
        assert_eq!(fails(".spec[?(@.v==1)]"), "object is not array or slice");
    }

    #[test]
    fn wrong_paths_fail() {
        assert_eq!(fails(".spec.list[3]"), "array index out of bounds: index 3, length 3");
        assert_eq!(fails(".metadata[0]"), "object is not array or slice");
        assert_eq!(fails(".a[x]"), "invalid array index x");
        assert_eq!(fails(".a[0"), "unterminated array");
        assert_eq!(fails("...."), "invalid multiple recursive descent");
        assert_eq!(fails(".a[?(@.b==1]"), "unterminated filter");
        assert_eq!(fails("range"), "unrecognized identifier range");
    }

    #[test]
    fn descents_do_not_multiply_without_end() {
        let deep = (0..60).fold(json!({"a": 1}), |inner, _| json!({ "a": inner }));
        let path = JsonPath::parse("..a..a..a..a").expect("parses");
        assert_eq!(path.find(&deep).expect_err("too many"), PathError::TooMany);
        assert!(JsonPath::parse(&"[?(".repeat(1000)).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(path in "[.a-c\\[\\]?()@'\"=!<>0-3:,*$ \\\\-]{0,24}") {
            if let Ok(path) = JsonPath::parse(&path) {
                let _ = path.find(&json!({"a": [{"b": 1}, {"c": "x"}], "b": {"a": null}}));
            }
        }
    }
}
