//! Paths to fields and sets of them.
//!
//! Upstream counterpart: `structured-merge-diff/fieldpath`.

mod serial;
mod set;

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

use crate::value;

pub use serial::ParseError;
pub use set::Set;

/// One step from a value to a part of it.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of a struct or an entry of a map.
    Field(Box<str>),
    /// The item of a keyed list whose fields have these values; sorted by name.
    Key(Vec<(Box<str>, Value)>),
    /// The item of a set.
    Value(Value),
    /// The item at a position.
    Index(i64),
}

impl PathElement {
    /// The field `name`.
    #[must_use]
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The item with these key fields, in any order.
    #[must_use]
    pub fn key<'k>(fields: impl IntoIterator<Item = (&'k str, Value)>) -> Self {
        let mut fields: Vec<(Box<str>, Value)> =
            fields.into_iter().map(|(name, v)| (Box::from(name), value::normal(&v))).collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self::Key(fields)
    }

    /// The item of a set.
    #[must_use]
    pub fn value(v: &Value) -> Self {
        Self::Value(value::normal(v))
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let fields = a.iter().zip(b).map(|(a, b)| a.0.cmp(&b.0).then_with(|| value::compare(&a.1, &b.1)));
                fields.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            (Self::Value(a), Self::Value(b)) => value::compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// As error messages show it: `.name`, `[name="x"]`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                let fields: Vec<_> = fields.iter().map(|(name, v)| format!("{name}={}", value::display(v))).collect();
                write!(f, "[{}]", fields.join(","))
            }
            Self::Value(v) => write!(f, "[={}]", value::display(v)),
            Self::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// The way to a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathElement>);

impl Path {
    /// A path of field names.
    #[must_use]
    pub fn fields(names: &[&str]) -> Self {
        Self(names.iter().map(|name| PathElement::field(name)).collect())
    }
}

/// As error messages show it: `.spec.containers[name="x"].image`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_shown_as_upstream_shows_them() {
        let mut path = Path::fields(&["spec", "ports"]);
        path.0.push(PathElement::key([("protocol", json!("TCP")), ("port", json!(80.0))]));
        path.0.push(PathElement::value(&json!("a\"b")));
        path.0.push(PathElement::Index(3));
        assert_eq!(path.to_string(), r#".spec.ports[port=80,protocol="TCP"][="a\"b"][3]"#);
    }

    #[test]
    fn elements_are_ordered_by_kind_then_content() {
        let mut elements = [
            PathElement::Index(0),
            PathElement::value(&json!("a")),
            PathElement::key([("port", json!(443))]),
            PathElement::key([("port", json!(80)), ("protocol", json!("TCP"))]),
            PathElement::key([("port", json!(80))]),
            PathElement::field("b"),
            PathElement::field("a"),
        ];
        elements.sort();
        let shown: Vec<_> = elements.iter().map(ToString::to_string).collect();
        assert_eq!(shown, [".a", ".b", "[port=80]", "[port=80,protocol=\"TCP\"]", "[port=443]", "[=\"a\"]", "[0]"]);
    }
}
