//! The type of objects without a schema: maps have parts, lists and scalars have none.

use super::{Forms, List, Relation, Type};

/// Nothing is known: maps are granular, lists atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deduced;

impl<'a> Type<'a> for Deduced {
    fn forms(self) -> Forms {
        Forms::ANY
    }

    fn list(self) -> List<'a, Self> {
        List { item: self, relation: Relation::Atomic }
    }

    fn is_atomic_map(self) -> bool {
        false
    }

    fn field(self, _: &str) -> Option<Self> {
        None
    }

    fn has_fields(self) -> bool {
        false
    }

    fn entry(self) -> Option<Self> {
        Some(self)
    }

    fn is_deduced(self) -> bool {
        true
    }
}
