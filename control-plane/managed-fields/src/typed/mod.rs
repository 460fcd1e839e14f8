//! What a schema makes of values: which fields they have, how two differ, and how one is merged into another.
//!
//! Upstream counterpart: `structured-merge-diff/typed`. An object may hold duplicates in a set or a keyed list (it may have been
//! written before the list was one); those are owned together, by the item alone, and never merged.

mod compare;
mod fields;
mod merge;
mod reconcile;
mod remove;
mod validate;

use std::fmt;

use serde_json::Value;

use crate::fieldpath::{PathElement, Set};
use crate::schema::{List, Relation, Type};
use crate::value;

pub use compare::{Comparison, compare};
pub use fields::to_field_set;
pub use merge::merge;
pub use reconcile::reconcile;
pub(crate) use reconcile::with_named_fields;
pub(crate) use remove::prune_items;
pub use remove::{extract_items, remove_items};
pub use validate::{Duplicates, validate};

/// Something in a value that its schema does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedError {
    /// Where, `.spec.containers[name="x"]`; empty for the whole value.
    pub path: String,
    /// What.
    pub message: String,
}

impl fmt::Display for TypedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// All that a schema does not allow. Not retryable: the value has to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedErrors(pub Vec<TypedError>);

impl TypedErrors {
    fn push(&mut self, message: impl Into<String>) {
        self.0.push(TypedError { path: String::new(), message: message.into() });
    }

    /// Takes over what went wrong below `element`.
    fn below(&mut self, element: &PathElement, errors: Self) {
        if errors.0.is_empty() {
            return;
        }
        let prefix = element.to_string();
        self.0.extend(errors.0.into_iter().map(|e| TypedError { path: format!("{prefix}{}", e.path), ..e }));
    }

    fn result<T>(self, ok: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(ok) } else { Err(self) }
    }
}

impl fmt::Display for TypedErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|e| write!(f, "\n  {e}"))
    }
}

impl std::error::Error for TypedErrors {}

const UNDECLARED: &str = "field not declared in schema";
const NO_FORM: &str = "schema error: invalid atom: inlined";

/// The items of a list; null is a list without any.
fn items(v: Option<&Value>) -> Option<&[Value]> {
    v.and_then(Value::as_array).map(Vec::as_slice)
}

/// How an item of a list is told apart from the others.
fn item_element<'a, T: Type<'a>>(list: &List<'a, T>, item: &Value) -> Result<PathElement, String> {
    match &list.relation {
        Relation::Atomic => Err("invalid indexing of non-associative list".to_owned()),
        Relation::Set => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(PathElement::value(item)),
        },
        Relation::Keyed(keys) => {
            let fields = match item {
                Value::Object(fields) => fields,
                Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
                _ => return Err("associative list with keys may not have non-map elements".to_owned()),
            };
            let found: Vec<_> =
                keys.iter().filter_map(|key| Some((key.name, fields.get(key.name).or(key.default)?.clone()))).collect();
            if found.is_empty() {
                let names: Vec<_> = keys.iter().map(|key| value::quote(key.name)).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    names.join(" ")
                ));
            }
            Ok(PathElement::key(found))
        }
    }
}

/// Adds to a set that is used as a set of path elements of one node.
fn place(set: &mut Set, element: PathElement, member: bool, below: Set) {
    if !below.is_empty() {
        set.children.entry(element.clone()).or_default().extend(&below);
    }
    if member {
        set.members.insert(element);
    }
}

#[cfg(test)]
mod tests;
