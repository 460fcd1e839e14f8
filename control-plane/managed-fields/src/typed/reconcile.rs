//! Sets that were written under an older schema.

use super::place;
use crate::fieldpath::{PathElement, Set};
use crate::schema::{Relation, Type};

/// Carries a set over to a schema in which a list or map has become one value: who owned something in it now owns all of it. The other
/// direction needs nothing. Named fields that the schema does not know stay.
#[must_use]
pub fn reconcile<'a, T: Type<'a>>(set: &Set, t: T) -> Set {
    node(Some(set), false, t).unwrap_or_default()
}

/// The set below a node; `None` if the node is one value now, and owned.
fn node<'a, T: Type<'a>>(set: Option<&Set>, only_member: bool, t: T) -> Option<Set> {
    let forms = t.forms();
    let kept = || Some(set.cloned().unwrap_or_default());
    if forms.map {
        let untyped = !t.has_fields() && t.entry().is_some_and(Type::is_deduced);
        if untyped {
            return kept();
        }
        if t.is_atomic_map() {
            return if !only_member && set.is_some_and(|set| !set.is_empty()) { None } else { kept() };
        }
        Some(walk(set, |element| match element {
            PathElement::Field(name) => t.child(name),
            _ => t.entry(),
        }))
    } else if forms.scalar.is_none() && forms.list {
        let list = t.list();
        if matches!(list.relation, Relation::Atomic) {
            return if only_member { kept() } else { None };
        }
        Some(walk(set, |_| Some(list.item)))
    } else {
        kept()
    }
}

fn walk<'a, T: Type<'a>>(set: Option<&Set>, child_type: impl Fn(&PathElement) -> Option<T>) -> Set {
    let mut out = Set::new();
    let Some(set) = set else { return out };
    for element in set.members.iter().chain(set.children.keys().filter(|element| !set.members.contains(*element))) {
        let member = set.members.contains(element);
        let below = set.children.get(element);
        let Some(t) = child_type(element) else {
            place(&mut out, element.clone(), member, below.cloned().unwrap_or_default());
            continue;
        };
        match node(below, member && below.is_none(), t) {
            Some(below) => place(&mut out, element.clone(), member, below),
            None => place(&mut out, element.clone(), true, Set::new()),
        }
    }
    out
}

/// The set with all named fields above its members, map entries and items not among them.
pub(crate) fn with_named_fields<'a, T: Type<'a>>(set: &Set, t: Option<T>) -> Set {
    let map = t.filter(|t| t.forms().map);
    let mut out = Set { members: set.members.clone(), ..Set::new() };
    for (element, child) in &set.children {
        let below = match element {
            PathElement::Field(name) => {
                if map.and_then(|map| map.field(name)).is_some() {
                    out.members.insert(element.clone());
                }
                map.and_then(|map| map.child(name))
            }
            PathElement::Key(_) => t.filter(|t| t.forms().list).map(|t| t.list().item),
            PathElement::Value(_) | PathElement::Index(_) => None,
        };
        out.children.insert(element.clone(), with_named_fields(child, below));
    }
    out
}
