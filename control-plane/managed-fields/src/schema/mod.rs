//! What a node of an object may be, as far as ownership cares: which lists and maps are one value and which have parts.
//!
//! Upstream counterpart: `structured-merge-diff/schema`, and `kube-openapi/pkg/schemaconv`, which makes it of OpenAPI.

mod deduced;
mod json;
mod metadata;

use serde_json::Value;

pub use deduced::Deduced;
pub use json::JsonSchema;

/// What a scalar may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// An integer or a float.
    Numeric,
    /// A string.
    String,
    /// A boolean.
    Boolean,
    /// Any of them.
    Untyped,
}

/// Which forms a node may take; several for nodes without a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// A scalar.
    pub scalar: Option<Scalar>,
    /// A list.
    pub list: bool,
    /// A map or a struct.
    pub map: bool,
}

impl Forms {
    /// Only a scalar.
    #[must_use]
    pub const fn scalar(scalar: Scalar) -> Self {
        Self { scalar: Some(scalar), list: false, map: false }
    }

    /// Only a list.
    pub const LIST: Self = Self { scalar: None, list: true, map: false };
    /// Only a map.
    pub const MAP: Self = Self { scalar: None, list: false, map: true };
    /// Anything.
    pub const ANY: Self = Self { scalar: Some(Scalar::Untyped), list: true, map: true };

    /// Those forms of a node that a value has; all of them if it has none, for a later step to say so.
    pub(crate) fn of(self, value: Option<&Value>) -> Self {
        match value {
            Some(Value::Number(_) | Value::String(_) | Value::Bool(_)) if self.scalar.is_some() => {
                Self { scalar: self.scalar, ..Self::default() }
            }
            Some(Value::Array(_)) if self.list => Self::LIST,
            Some(Value::Object(_)) if self.map => Self::MAP,
            _ => self,
        }
    }
}

/// A key field of a list of maps.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// Field of the items.
    pub name: &'a str,
    /// Its value in items that leave it out.
    pub default: Option<&'a Value>,
}

/// How the items of a list are told apart.
#[derive(Clone, Debug)]
pub enum Relation<'a> {
    /// Not at all: the list is one value.
    Atomic,
    /// By their value.
    Set,
    /// By these fields.
    Keyed(Vec<Key<'a>>),
}

/// A list.
#[derive(Clone, Debug)]
pub struct List<'a, T> {
    /// Type of the items.
    pub item: T,
    /// How they are told apart.
    pub relation: Relation<'a>,
}

/// The type of a node: a cheap handle into some schema.
pub trait Type<'a>: Copy {
    /// The forms that the node may take.
    fn forms(self) -> Forms;

    /// What it is as a list; asked only if [`Forms::list`].
    fn list(self) -> List<'a, Self>;

    /// Whether, as a map, it is one value.
    fn is_atomic_map(self) -> bool;

    /// Type of a field that the schema names.
    fn field(self, name: &str) -> Option<Self>;

    /// Whether the schema names any field.
    fn has_fields(self) -> bool;

    /// Type of the entries that the schema does not name; `None` if there may be none.
    fn entry(self) -> Option<Self>;

    /// Whether nothing is known about the node.
    fn is_deduced(self) -> bool;

    /// Type of a field or entry.
    fn child(self, name: &str) -> Option<Self> {
        self.field(name).or_else(|| self.entry())
    }
}
