//! FieldsV1: the JSON form of a set.
//!
//! A node is an object whose names are path elements (`f:NAME`, `k:{…}`, `v:…`, `i:N`); an empty object is a member, and `.` marks a
//! member that also has something below it. Kinds of elements that are not known are left out.

use serde_json::{Map, Value};

use super::{PathElement, Set};
use crate::value;

/// Deeper sets are refused; objects cannot be as deep, since `serde_json` stops at 128.
const MAX_DEPTH: usize = 256;
/// The name that makes a node a member of its parent.
const SELF: &str = ".";

/// Text that is no FieldsV1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// It is no JSON, or goes on after it.
    #[error("not a FieldsV1 document: {0}")]
    Json(String),
    /// A node is neither an object nor null.
    #[error("expected an object in managed fields, got {0}")]
    Node(&'static str),
    /// The name of a node is too short.
    #[error("key must be 2 characters long: {0:?}")]
    Short(String),
    /// The name of a node has no kind.
    #[error("missing colon: {0}")]
    Colon(String),
    /// What follows the kind is no value, object or number.
    #[error("parsing key as path element {element:?}: {message}")]
    Element {
        /// The name.
        element: String,
        /// What is wrong with it.
        message: String,
    },
    /// Too deep.
    #[error("managed fields are more than {MAX_DEPTH} levels deep")]
    Deep,
}

impl PathElement {
    /// The element in FieldsV1.
    #[must_use]
    pub fn serialise(&self) -> String {
        let mut out = String::new();
        match self {
            Self::Field(name) => {
                out.push_str("f:");
                out.push_str(name);
            }
            Self::Key(fields) => {
                out.push_str("k:{");
                for (i, (name, v)) in fields.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    value::write_string(&mut out, name, false);
                    out.push(':');
                    value::write_value(&mut out, v);
                }
                out.push('}');
            }
            Self::Value(v) => {
                out.push_str("v:");
                value::write_value(&mut out, v);
            }
            Self::Index(i) => {
                out.push_str("i:");
                out.push_str(&i.to_string());
            }
        }
        out
    }

    /// Reads an element; `None` for a kind that is not known.
    ///
    /// # Errors
    /// When the text cannot be of any kind.
    pub fn parse(text: &str) -> Result<Option<Self>, ParseError> {
        let bad = |message: String| ParseError::Element { element: text.to_owned(), message };
        let (Some(kind), Some(separator)) = (text.as_bytes().first(), text.as_bytes().get(1)) else {
            return Err(ParseError::Short(text.to_owned()));
        };
        if *separator != b':' {
            return Err(ParseError::Colon(text.to_owned()));
        }
        let rest = &text[2..];
        Ok(Some(match kind {
            b'f' => Self::field(rest),
            b'v' => Self::value(&first_value(rest).map_err(bad)?),
            b'k' => match first_value(rest).map_err(bad)? {
                Value::Object(fields) => Self::key(fields.iter().map(|(name, v)| (name.as_str(), v.clone()))),
                Value::Null => Self::Key(Vec::new()),
                other => return Err(bad(format!("expected an object, got {}", value::go_type(&other)))),
            },
            b'i' => Self::Index(rest.parse().map_err(|e: std::num::ParseIntError| bad(e.to_string()))?),
            _ => return Ok(None),
        }))
    }
}

/// The first JSON value of a text; as upstream, what follows it is not looked at.
fn first_value(text: &str) -> Result<Value, String> {
    match serde_json::Deserializer::from_str(text).into_iter::<Value>().next() {
        Some(Ok(v)) => Ok(v),
        Some(Err(e)) => Err(e.to_string()),
        None => Err("no value".to_owned()),
    }
}

impl Set {
    /// Reads FieldsV1 text.
    ///
    /// # Errors
    /// When the text is not FieldsV1.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let v: Value = serde_json::from_str(text).map_err(|e| ParseError::Json(e.to_string()))?;
        Self::from_value(&v)
    }

    /// Reads a FieldsV1 object; null is the empty set.
    ///
    /// # Errors
    /// When the value is not FieldsV1.
    pub fn from_value(v: &Value) -> Result<Self, ParseError> {
        Ok(node(v, 0)?.0)
    }

    /// FieldsV1 text, byte for byte what upstream writes.
    #[must_use]
    pub fn serialise(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, false);
        out
    }

    fn write(&self, out: &mut String, member: bool) {
        out.push('{');
        let mut first = true;
        let mut name = |out: &mut String, text: &str| {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            value::write_string(out, text, false);
            out.push(':');
        };
        if member {
            name(out, SELF);
            out.push_str("{}");
        }
        let mut members = self.members.iter().peekable();
        for (element, child) in &self.children {
            while let Some(leaf) = members.next_if(|m| *m < element) {
                name(out, &leaf.serialise());
                out.push_str("{}");
            }
            let is_member = members.next_if_eq(&element).is_some();
            name(out, &element.serialise());
            child.write(out, is_member);
        }
        for leaf in members {
            name(out, &leaf.serialise());
            out.push_str("{}");
        }
        out.push('}');
    }

    /// FieldsV1 as an object. Its names are in the order that `serde_json` keeps, which is not always that of [`Set::serialise`].
    #[must_use]
    pub fn to_value(&self) -> Value {
        Value::Object(self.to_map(false))
    }

    fn to_map(&self, member: bool) -> Map<String, Value> {
        let mut out = Map::new();
        if member {
            out.insert(SELF.to_owned(), Value::Object(Map::new()));
        }
        for leaf in self.members.iter().filter(|m| !self.children.contains_key(*m)) {
            out.insert(leaf.serialise(), Value::Object(Map::new()));
        }
        for (element, child) in &self.children {
            out.insert(element.serialise(), Value::Object(child.to_map(self.members.contains(element))));
        }
        out
    }
}

/// The set below a node, and whether the node itself is a member.
fn node(v: &Value, depth: usize) -> Result<(Set, bool), ParseError> {
    if depth > MAX_DEPTH {
        return Err(ParseError::Deep);
    }
    let fields = match v {
        Value::Null => return Ok((Set::new(), true)),
        Value::Object(fields) => fields,
        other => return Err(ParseError::Node(value::go_type(other))),
    };
    let mut set = Set::new();
    let mut member = false;
    for (name, below) in fields {
        if name == SELF {
            member = true;
            continue;
        }
        let Some(element) = PathElement::parse(name)? else { continue };
        let (child, is_member) = node(below, depth + 1)?;
        if is_member {
            set.members.insert(element.clone());
        }
        if !child.is_empty() {
            set.children.entry(element).or_default().extend(&child);
        }
    }
    let member = member || set.is_empty();
    Ok((set, member))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Written by upstream's API server.
    const DEPLOYMENT: &str = r#"{"f:metadata":{"f:annotations":{".":{},"f:deployment.kubernetes.io/revision":{}},"f:finalizers":{".":{},"v:\"a/b\"":{}}},"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:image":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}},"k:{\"containerPort\":443,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}}}"#;

    #[test]
    fn upstreams_bytes_come_back() {
        for text in [DEPLOYMENT, "{}", r#"{"i:0":{},"i:7":{".":{},"f:a":{}}}"#, r#"{"v:1":{},"v:true":{}}"#] {
            assert_eq!(Set::parse(text).expect(text).serialise(), text);
        }
    }

    #[test]
    fn order_and_spelling_are_made_upstreams() {
        let set = Set::parse(r#"{ "k:{\"b\":1.0,\"a\":\"x<\"}": {"f:z":null,"f:a":{}, ".":null} }"#).expect("set");
        assert_eq!(set.serialise(), r#"{"k:{\"a\":\"x\\u003c\",\"b\":1}":{".":{},"f:a":{},"f:z":{}}}"#);
    }

    #[test]
    fn unknown_kinds_are_left_out() {
        let set = Set::parse(r#"{"x:new":{"f:a":{}},"f:b":{"y:z":{}}}"#).expect("set");
        assert_eq!(set, Set::of_fields(&[&["b"]]));
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for text in [
            "",
            "[]",
            "1",
            "{}x",
            r#"{"f":{}}"#,
            r#"{"":{}}"#,
            r#"{"fa":{}}"#,
            r#"{"é:":{}}"#,
            r#"{"v:":{}}"#,
            r#"{"v:{":{}}"#,
            r#"{"k:1":{}}"#,
            r#"{"i:x":{}}"#,
            r#"{"f:a":[]}"#,
            r#"{"f:a":"b"}"#,
        ] {
            assert!(Set::parse(text).is_err(), "{text}");
        }
        let deep = format!("{}{}", r#"{"f:a":"#.repeat(100_000), "{}");
        assert!(Set::parse(&deep).is_err());
    }

    #[test]
    fn depth_is_bounded_for_values_made_elsewhere() {
        let mut v = json!({});
        for _ in 0..=MAX_DEPTH {
            v = json!({ "f:a": v });
        }
        assert_eq!(Set::from_value(&v), Err(ParseError::Deep));
    }

    #[test]
    fn the_object_says_the_same_as_the_text() {
        let set = Set::parse(DEPLOYMENT).expect("set");
        let text: Value = serde_json::from_str(DEPLOYMENT).expect("json");
        assert_eq!(set.to_value(), text);
    }
}
