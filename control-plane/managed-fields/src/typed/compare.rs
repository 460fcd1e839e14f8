//! How two values differ.

use std::collections::BTreeMap;

use serde_json::Value;

use super::validate::check_scalar;
use super::{NO_FORM, TypedErrors, UNDECLARED, item_element, items};
use crate::fieldpath::{PathElement, Set};
use crate::schema::{Forms, Relation, Type};
use crate::value;

/// The fields in which two values differ; no field is in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Only in the new value.
    pub added: Set,
    /// In both, different.
    pub modified: Set,
    /// Only in the old value.
    pub removed: Set,
}

impl Comparison {
    /// Whether the values are the same.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Without `fields` and all below them.
    #[must_use]
    pub fn without(self, fields: &Set) -> Self {
        if fields.is_empty() {
            return self;
        }
        Self {
            added: self.added.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            removed: self.removed.recursive_difference(fields),
        }
    }
}

/// Compares two values of a type.
///
/// # Errors
/// What the schema does not know.
pub fn compare<'a, T: Type<'a>>(old: &Value, new: &Value, t: T) -> Result<Comparison, TypedErrors> {
    let mut walk = Walk::default();
    let errors = walk.node(Some(old), Some(new), t);
    errors.result(walk.out)
}

#[derive(Default)]
struct Walk {
    out: Comparison,
    path: Vec<PathElement>,
}

impl Walk {
    fn node<'a, T: Type<'a>>(&mut self, old: Option<&Value>, new: Option<&Value>, t: T) -> TypedErrors {
        let mut errors = TypedErrors::default();
        if let (Some(old), Some(new)) = (old, new)
            && old == new
        {
            return errors;
        }
        let (was, is) = (t.forms().of(old), t.forms().of(new));
        let leaf = if new.is_none() {
            self.form(was, old, new, t, &mut errors)
        } else {
            if old.is_some() && was != is {
                // A node that became something else: what it was goes, what it is comes.
                self.form(was, old, new, t, &mut errors);
            }
            self.form(is, old, new, t, &mut errors)
        };
        if !leaf {
            match (old, new) {
                (None, Some(_)) => self.out.added.insert(&self.path),
                (Some(_), None) => self.out.removed.insert(&self.path),
                _ => {}
            }
        }
        errors
    }

    /// Compares in one form; answers whether the node was taken as one value.
    fn form<'a, T: Type<'a>>(
        &mut self,
        forms: Forms,
        old: Option<&Value>,
        new: Option<&Value>,
        t: T,
        errors: &mut TypedErrors,
    ) -> bool {
        if forms.map {
            let (was, is) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
            let empty = was.is_none_or(serde_json::Map::is_empty) && is.is_none_or(serde_json::Map::is_empty);
            if empty || t.is_atomic_map() {
                return self.leaf(old, new);
            }
            let added = is.into_iter().flatten().filter(|(name, _)| was.is_none_or(|was| !was.contains_key(*name)));
            let pairs = was.into_iter().flatten().map(|(name, v)| (name, Some(v), is.and_then(|is| is.get(name))));
            for (name, old, new) in pairs.chain(added.map(|(name, v)| (name, None, Some(v)))) {
                let element = PathElement::field(name);
                let Some(child) = t.child(name) else {
                    let mut undeclared = TypedErrors::default();
                    undeclared.push(UNDECLARED);
                    errors.below(&element, undeclared);
                    continue;
                };
                self.child(element, old, new, child, errors);
            }
            false
        } else if let Some(scalar) = forms.scalar {
            let mut sides = [TypedErrors::default(), TypedErrors::default()];
            for (v, side, found) in [(old, "lhs: ", 0), (new, "rhs: ", 1)] {
                if let Some(v) = v {
                    check_scalar(scalar, v, side, &mut sides[found]);
                }
            }
            if sides.iter().all(|side| !side.0.is_empty()) {
                errors.0.extend(sides.into_iter().flat_map(|side| side.0));
                return false;
            }
            self.leaf(old, new)
        } else if forms.list {
            let (was, is) = (items(old), items(new));
            let empty = was.is_none_or(<[Value]>::is_empty) && is.is_none_or(<[Value]>::is_empty);
            if empty || matches!(t.list().relation, Relation::Atomic) {
                return self.leaf(old, new);
            }
            self.list(was.unwrap_or_default(), is.unwrap_or_default(), t, errors);
            false
        } else {
            errors.push(NO_FORM);
            false
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) -> bool {
        match (old, new) {
            (None, _) => self.out.added.insert(&self.path),
            (_, None) => self.out.removed.insert(&self.path),
            (Some(old), Some(new)) if !value::equal(old, new) => self.out.modified.insert(&self.path),
            _ => {}
        }
        true
    }

    fn child<'a, T: Type<'a>>(
        &mut self,
        element: PathElement,
        old: Option<&Value>,
        new: Option<&Value>,
        t: T,
        errors: &mut TypedErrors,
    ) {
        self.path.push(element);
        let below = self.node(old, new, t);
        if let Some(element) = self.path.pop() {
            errors.below(&element, below);
        }
    }

    fn list<'a, T: Type<'a>>(&mut self, old: &[Value], new: &[Value], t: T, errors: &mut TypedErrors) {
        let list = t.list();
        let mut all: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (side, items) in [old, new].into_iter().enumerate() {
            for (i, item) in items.iter().enumerate() {
                match item_element(&list, item) {
                    Ok(element) => {
                        let sides = all.entry(element).or_default();
                        if side == 0 { sides.0.push(item) } else { sides.1.push(item) }
                    }
                    Err(message) => errors.push(format!("element {i}: {message}")),
                }
            }
        }
        for (element, (old, new)) in all {
            let mut path = self.path.clone();
            path.push(element.clone());
            match (old.as_slice(), new.as_slice()) {
                // Duplicates are one value, owned by the item alone.
                ([_, _, ..], [_, _, ..]) => {
                    if old.len() != new.len() || !old.iter().zip(&new).all(|(a, b)| value::equal(a, b)) {
                        self.out.modified.insert(&path);
                    }
                }
                ([_, _, ..], single) => {
                    if let Some(item) = single.first() {
                        self.child(element, None, Some(item), list.item, errors);
                    }
                    self.out.removed.insert(&path);
                }
                (single, [_, _, ..]) => {
                    if let Some(item) = single.first() {
                        self.child(element, Some(item), None, list.item, errors);
                    }
                    self.out.added.insert(&path);
                }
                (old, new) => {
                    self.child(element, old.first().copied(), new.first().copied(), list.item, errors);
                }
            }
        }
    }
}
