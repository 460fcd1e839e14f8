//! The [`Strategy`] of custom kinds.
//!
//! Upstream counterpart: `apiextensions-apiserver/pkg/registry/customresource/strategy.go` and `status_strategy.go`.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use super::version::Version;
use crate::error::FieldError;
use crate::strategy::{Part, Strategy};
use crate::{names, val};

/// Finalizers without a domain that are Kubernetes' own.
const STANDARD_FINALIZERS: &[&str] = &["orphan", "foregroundDeletion", "kubernetes"];

/// A custom kind in one version, whose definition may change.
#[derive(Debug)]
pub struct Kind {
    current: RwLock<Arc<Version>>,
}

impl Kind {
    pub(crate) fn new(version: Arc<Version>) -> Self {
        Self { current: RwLock::new(version) }
    }

    /// The present definition.
    #[must_use]
    pub fn current(&self) -> Arc<Version> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on the definition is another. What has begun ends with the old one.
    pub fn replace(&self, version: Arc<Version>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = version;
    }
}

impl Strategy for Kind {
    fn set_defaults(&self, obj: &mut Value) {
        self.current().set_defaults(obj);
    }

    fn prepare_create(&self, _: &mut Value) {}

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part) {
        // The status of a custom object comes without its metadata.
        if part == Part::Status
            && let (Some(metadata), Some(before)) = (val::child_mut(new, "metadata"), old.get("metadata"))
        {
            for key in ["labels", "annotations"] {
                val::carry(metadata, before, key);
            }
        }
    }

    fn validate(&self, obj: &Value) -> Vec<FieldError> {
        self.current().validate(obj)
    }

    fn validate_create(&self, _: &Value) -> Vec<FieldError> {
        Vec::new()
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
        self.current().validate_update(new, old, part)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let mut out: Vec<String> = self.current().deprecation().map(str::to_owned).into_iter().collect();
        let finalizers = val::list(obj, "metadata.finalizers").iter().filter_map(Value::as_str);
        out.extend(finalizers.filter(|name| !name.contains('/') && !STANDARD_FINALIZERS.contains(name)).map(|name| {
            format!(
                "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts \
                 with other finalizer writers"
            )
        }));
        out
    }

    fn has_status(&self) -> bool {
        self.current().has_status()
    }

    fn keeps_status_on_create(&self) -> bool {
        false
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn allow_create_on_update(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn graceful(&self) -> bool {
        false
    }

    fn selectable(&self, obj: &Value) -> Vec<(Cow<'static, str>, String)> {
        let values = self.current().selectable_values(obj);
        values.into_iter().map(|(name, value)| (Cow::Owned(name), value)).collect()
    }

    fn selectable_names(&self) -> Vec<Cow<'static, str>> {
        self.current().selectable().iter().cloned().map(Cow::Owned).collect()
    }

    fn validate_name(&self, name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn custom(&self) -> Option<Arc<Version>> {
        Some(self.current())
    }
}
