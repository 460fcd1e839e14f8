//! What a kind does with its objects on the way in: the [`Strategy`] trait, and [`Rules`], its table form that the kinds fill in.
//!
//! Every rule has a default that suits a plain stored kind, so a new kind names only what is special. Upstream counterpart:
//! `rest.RESTCreateStrategy`, `RESTUpdateStrategy` and `RESTDeleteStrategy`.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::custom::Version;
use crate::error::FieldError;
use crate::names;

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
    fn set_defaults(&self, obj: &mut Value);
    /// Clears what a client may not set on create. The shared part (metadata, generation, status removal) has already run.
    fn prepare_create(&self, obj: &mut Value);
    /// Copies over from `old` what this part of an update may not change. The shared part has already run.
    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part);
    /// Validates a complete object, beyond its metadata.
    fn validate(&self, obj: &Value) -> Vec<FieldError>;
    /// Validates what only a new object may not have; [`Strategy::validate`] runs as well.
    fn validate_create(&self, obj: &Value) -> Vec<FieldError>;
    /// Validates what may not change; [`Strategy::validate`] runs as well.
    fn validate_update(&self, new: &Value, old: &Value, part: Part) -> Vec<FieldError>;
    /// Messages for `Warning` headers.
    fn warnings(&self, obj: &Value) -> Vec<String>;
    /// Whether `status` is only written through its subresource.
    fn has_status(&self) -> bool;
    /// Whether a new object may carry a status (nodes).
    fn keeps_status_on_create(&self) -> bool;
    /// Whether `metadata.generation` counts changes of the spec.
    fn has_generation(&self) -> bool;
    /// Whether PUT of a name that does not exist creates it.
    fn allow_create_on_update(&self) -> bool;
    /// Whether PUT without a resourceVersion is accepted.
    fn allow_unconditional_update(&self) -> bool;
    /// Whether deletion passes through a grace period (pods).
    fn graceful(&self) -> bool;
    /// Fields that field selectors may name, besides `metadata.name` and `metadata.namespace`, with this object's values.
    fn selectable(&self, obj: &Value) -> Vec<(Cow<'static, str>, String)>;
    /// Names of the fields of [`Strategy::selectable`].
    fn selectable_names(&self) -> Vec<Cow<'static, str>>;
    /// Checks the name. Returns upstream's messages.
    fn validate_name(&self, name: &str) -> Vec<String>;
    /// Longest prefix that `generateName` keeps: the longest name less five random characters.
    fn generate_prefix_max(&self) -> usize {
        // Upstream cuts at the length of a DNS label for every kind.
        names::LABEL_MAX - crate::write::SUFFIX_LEN
    }
    /// The present definition of a custom kind; none for kinds that are compiled in. With one, [`Strategy::validate_update`] does all
    /// of what [`Strategy::validate`] does, and tolerates what was there before.
    fn custom(&self) -> Option<Arc<Version>> {
        None
    }
}

/// Computes what field selectors see of an object.
pub type SelectableValues = fn(&Value) -> Vec<(&'static str, String)>;

/// A [`Strategy`] as data.
pub struct Rules {
    /// See [`Strategy::set_defaults`].
    pub defaults: fn(&mut Value),
    /// See [`Strategy::prepare_create`].
    pub create: fn(&mut Value),
    /// See [`Strategy::prepare_update`].
    pub update: fn(&mut Value, &Value, Part),
    /// See [`Strategy::validate`].
    pub validate: fn(&Value) -> Vec<FieldError>,
    /// See [`Strategy::validate_create`].
    pub validate_create: fn(&Value) -> Vec<FieldError>,
    /// See [`Strategy::validate_update`].
    pub validate_update: fn(&Value, &Value, Part) -> Vec<FieldError>,
    /// See [`Strategy::warnings`].
    pub warnings: fn(&Value) -> Vec<String>,
    /// See [`Strategy::has_status`].
    pub status: bool,
    /// See [`Strategy::keeps_status_on_create`].
    pub status_on_create: bool,
    /// See [`Strategy::has_generation`].
    pub generation: bool,
    /// See [`Strategy::allow_create_on_update`].
    pub create_on_update: bool,
    /// See [`Strategy::allow_unconditional_update`].
    pub unconditional_update: bool,
    /// See [`Strategy::graceful`].
    pub graceful: bool,
    /// Field selector name and the dotted path of its value.
    pub selectable: &'static [&'static str],
    /// Computes the values where they are not simply at the path that their name says.
    pub selectable_values: Option<SelectableValues>,
    /// See [`Strategy::validate_name`].
    pub name: fn(&str) -> Vec<String>,
}

impl Rules {
    /// A kind without a status whose name is a DNS-1123 subdomain.
    pub const PLAIN: Self = Self {
        defaults: |_| {},
        create: |_| {},
        update: |_, _, _| {},
        validate: |_| Vec::new(),
        validate_create: |_| Vec::new(),
        validate_update: |_, _, _| Vec::new(),
        warnings: |_| Vec::new(),
        status: false,
        status_on_create: false,
        generation: false,
        create_on_update: false,
        unconditional_update: true,
        graceful: false,
        selectable: &[],
        selectable_values: None,
        name: names::dns1123_subdomain,
    };

    /// A kind with spec, status and generation.
    pub const SPEC: Self = Self { status: true, generation: true, ..Self::PLAIN };
}

impl Strategy for Rules {
    fn set_defaults(&self, obj: &mut Value) {
        (self.defaults)(obj);
    }

    fn prepare_create(&self, obj: &mut Value) {
        (self.create)(obj);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part) {
        (self.update)(new, old, part);
    }

    fn validate(&self, obj: &Value) -> Vec<FieldError> {
        (self.validate)(obj)
    }

    fn validate_create(&self, obj: &Value) -> Vec<FieldError> {
        (self.validate_create)(obj)
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
        (self.validate_update)(new, old, part)
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        (self.warnings)(obj)
    }

    fn has_status(&self) -> bool {
        self.status
    }

    fn keeps_status_on_create(&self) -> bool {
        self.status_on_create
    }

    fn has_generation(&self) -> bool {
        self.generation
    }

    fn allow_create_on_update(&self) -> bool {
        self.create_on_update
    }

    fn allow_unconditional_update(&self) -> bool {
        self.unconditional_update
    }

    fn graceful(&self) -> bool {
        self.graceful
    }

    fn selectable(&self, obj: &Value) -> Vec<(Cow<'static, str>, String)> {
        if let Some(values) = self.selectable_values {
            return values(obj).into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
        }
        self.selectable
            .iter()
            .map(|path| {
                let value = match crate::val::at(obj, path) {
                    Some(Value::String(s)) => s.clone(),
                    Some(other) => other.to_string(),
                    None => String::new(),
                };
                (Cow::Borrowed(*path), value)
            })
            .collect()
    }

    fn selectable_names(&self) -> Vec<Cow<'static, str>> {
        self.selectable.iter().copied().map(Cow::Borrowed).collect()
    }

    fn validate_name(&self, name: &str) -> Vec<String> {
        (self.name)(name)
    }
}
