//! What a list or watch selects: a namespace, labels, fields.

use kube_common::selector::{FieldSelector, LabelSelector, Set};

use super::{CacheEvent, EventKind, Object};

/// A namespace and selectors.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this namespace.
    pub namespace: Option<Box<str>>,
    /// Only objects whose labels match.
    pub labels: LabelSelector,
    /// Only objects whose fields match.
    pub fields: FieldSelector,
}

/// An object's labels as selectors want them.
struct Labels<'a>(&'a [(Box<str>, Box<str>)]);

impl Set for Labels<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| &**k == key).map(|(_, v)| &**v)
    }
}

impl Filter {
    /// Whether selectors narrow the result beyond the namespace.
    #[must_use]
    pub fn selects(&self) -> bool {
        !self.labels.is_everything() || !self.fields.is_everything()
    }

    /// Whether an object is selected.
    #[must_use]
    pub fn matches(&self, object: &Object) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| *wanted == object.namespace)
            && (self.fields.is_everything()
                || self
                    .fields
                    .matches(|field| object.fields.iter().find(|(name, _)| *name == field).map(|(_, v)| v.as_str())))
            && (self.labels.is_everything() || self.labels.matches(&Labels(&object.labels)))
    }

    /// What an event is to a watcher with this filter; `None` when it does not concern it.
    #[must_use]
    pub fn transition(&self, previous: Option<&Object>, event: &CacheEvent) -> Option<EventKind> {
        if self.namespace.as_ref().is_some_and(|wanted| *wanted != event.object.namespace) {
            return None;
        }
        if !self.selects() {
            return Some(event.kind);
        }
        let before = previous.is_some_and(|object| self.matches(object));
        let after = event.kind != EventKind::Deleted && self.matches(&event.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(EventKind::Added),
            (true, true) => Some(EventKind::Modified),
            (true, false) => Some(EventKind::Deleted),
        }
    }
}
