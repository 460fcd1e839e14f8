//! What a kind does with its objects on the way in: the [`Strategy`] trait and the parts that most kinds share.
//!
//! Every method has a default that suits a plain stored kind, so a new kind overrides only what is special. Upstream counterpart:
//! `rest.RESTCreateStrategy`, `RESTUpdateStrategy` and `RESTDeleteStrategy`.

use serde_json::Value;

use crate::error::FieldError;

/// Which part of the object an update may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object itself (everything but status, where status is a subresource).
    Main,
    /// The status subresource.
    Status,
    /// Any other subresource that stores through the object (`resize`, `ephemeralcontainers`, `finalize`, `approval`).
    Other(&'static str),
}

/// Rules of one kind. All methods are pure; `obj` has been pruned and its types checked.
pub trait Strategy: Sync {
    /// Fills in defaults. Idempotent; also run on objects read back, so that stored objects of an older release get new defaults.
    fn set_defaults(&self, obj: &mut Value) {
        let _ = obj;
    }

    /// Clears what a client may not set on create. The shared part (metadata, generation, status removal) has already run.
    fn prepare_create(&self, obj: &mut Value) {
        let _ = obj;
    }

    /// Copies over from `old` what this part of an update may not change. The shared part has already run.
    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part) {
        let _ = (new, old, part);
    }

    /// Validates a complete object, beyond its metadata.
    fn validate(&self, obj: &Value) -> Vec<FieldError> {
        let _ = obj;
        Vec::new()
    }

    /// Validates what may not change; [`Strategy::validate`] runs as well.
    fn validate_update(&self, new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
        let _ = (new, old, part);
        Vec::new()
    }

    /// Messages for `Warning` headers.
    fn warnings(&self, obj: &Value) -> Vec<String> {
        let _ = obj;
        Vec::new()
    }

    /// Whether `status` is only written through its subresource.
    fn has_status(&self) -> bool {
        false
    }

    /// Whether `metadata.generation` counts changes of the spec.
    fn has_generation(&self) -> bool {
        false
    }

    /// Whether PUT of a name that does not exist creates it.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Whether PUT without a resourceVersion is accepted.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// Whether deletion passes through a grace period (pods).
    fn graceful(&self) -> bool {
        false
    }

    /// Fields that field selectors may name, besides `metadata.name` and `metadata.namespace`, with this object's values.
    fn selectable(&self, obj: &Value) -> Vec<(&'static str, String)> {
        let _ = obj;
        Vec::new()
    }

    /// Names of the fields of [`Strategy::selectable`].
    fn selectable_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Checks the name; the default is a DNS-1123 subdomain. Returns upstream's messages.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        let _ = (name, prefix);
        Vec::new()
    }
}
