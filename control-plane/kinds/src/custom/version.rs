//! Definitions, compiled.
//!
//! Upstream counterparts: `getOrCreateServingInfoFor` of `apiextensions-apiserver/pkg/apiserver/customresource_handler.go`, and
//! `pkg/registry/customresource`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use keelson_cel::rules::RuleSet;
use serde_json::{Value, json};

use super::columns::Table;
use super::pattern::Patterns;
use super::scale::ScalePaths;
use super::structural::Structural;
use super::validate::Target;
use super::{default, embedded, lists, prune, validate};
use crate::error::FieldError;
use crate::resource::Scope;
use crate::strategy::Part;
use crate::{decode, val};

/// Why a definition cannot be served. Retrying does not help: the definition must change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is no storage version.
    #[error("{0}: no version is marked as storage version")]
    NoStorage(String),
    /// Objects would lie where those of a built-in kind lie.
    #[error("{0}: this is a kind of the server's own")]
    BuiltIn(String),
    /// A version has no schema, or one that is not structural.
    #[error("{name}: version {version}: {why}")]
    Schema {
        /// Name of the definition.
        name: String,
        /// The version.
        version: String,
        /// What is wrong.
        why: String,
    },
}

/// A definition, compiled.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Name of the object, `foos.company.com`.
    pub name: String,
    /// API group.
    pub group: String,
    /// Name in URLs.
    pub plural: String,
    /// Singular name.
    pub singular: String,
    /// Kind.
    pub kind: String,
    /// Kind of lists.
    pub list_kind: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories.
    pub categories: Vec<String>,
    /// Namespaced or not.
    pub scope: Scope,
    /// The versions that are served, in the order of the definition.
    pub versions: Vec<Arc<Version>>,
}

impl Definition {
    /// Compiles a definition that was validated. Names are those that were accepted, where there are any.
    ///
    /// # Errors
    /// [`CompileError`] for a definition that came past validation, from an older release say.
    pub fn compile(crd: &Value) -> Result<Self, CompileError> {
        let name = val::text(crd, "metadata.name").to_owned();
        let accepted = val::at(crd, "status.acceptedNames").filter(|names| !val::text(names, "plural").is_empty());
        let names = accepted.or_else(|| val::at(crd, "spec.names")).unwrap_or(&Value::Null);
        let text = |key: &str| val::text(names, key).to_owned();
        let strings =
            |key: &str| val::list(names, key).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
        let group = val::text(crd, "spec.group");
        let listed = val::list(crd, "spec.versions");
        let storage = listed.iter().find(|version| val::flag(version, "storage"));
        let storage =
            storage.map(|version| val::text(version, "name")).ok_or_else(|| CompileError::NoStorage(name.clone()))?;
        if is_built_in(group, val::text(names, "plural")) {
            return Err(CompileError::BuiltIn(name));
        }
        let deleted = val::at(crd, "metadata.deletionTimestamp").is_some();
        let terminating = deleted
            || val::list(crd, "status.conditions")
                .iter()
                .any(|c| val::text(c, "type") == "Terminating" && val::text(c, "status") == "True");
        let mut versions = Vec::new();
        for version in listed.iter().filter(|version| val::flag(version, "served")) {
            let about = About { group, kind: val::text(names, "kind"), storage, terminating };
            let compiled = Version::compile(version, &about).map_err(|why| CompileError::Schema {
                name: name.clone(),
                version: val::text(version, "name").to_owned(),
                why,
            })?;
            versions.push(Arc::new(compiled));
        }
        let scope = if val::text(crd, "spec.scope") == "Cluster" { Scope::Cluster } else { Scope::Namespaced };
        Ok(Self {
            group: group.to_owned(),
            plural: text("plural"),
            singular: text("singular"),
            kind: text("kind"),
            list_kind: text("listKind"),
            short_names: strings("shortNames"),
            categories: strings("categories"),
            scope,
            versions,
            name,
        })
    }
}

/// Whether a built-in kind has this place in the store.
pub(super) fn is_built_in(group: &str, plural: &str) -> bool {
    let prefix = format!("/registry/{group}/{plural}/");
    crate::resource::resources().iter().any(|res| res.storage_prefix == prefix)
}

struct About<'a> {
    group: &'a str,
    kind: &'a str,
    storage: &'a str,
    terminating: bool,
}

/// One served version of a custom kind: everything that may change while the kind stays the same.
#[derive(Debug)]
pub struct Version {
    name: String,
    api_version: String,
    storage_api_version: String,
    status: bool,
    terminating: bool,
    scale: Option<ScalePaths>,
    table: Table,
    selectable: Vec<String>,
    /// The warning that every request gets, for deprecated versions.
    deprecation: Option<String>,
    schema: Structural,
    rules: Option<RuleSet>,
    source: Arc<Value>,
    fingerprint: u64,
}

impl Version {
    fn compile(version: &Value, about: &About<'_>) -> Result<Self, String> {
        let name = val::text(version, "name");
        let source = val::at(version, "schema.openAPIV3Schema").cloned().unwrap_or_else(|| json!({}));
        let schema = Structural::parse(&source, &mut Patterns::default()).map_err(|why| why.to_string())?;
        let api_version = format!("{}/{name}", about.group);
        let warning = format!("{api_version} {} is deprecated", about.kind);
        let deprecation = val::flag(version, "deprecated").then(|| match val::text(version, "deprecationWarning") {
            "" => warning,
            given => given.to_owned(),
        });
        let selectable = val::list(version, "selectableFields").iter().map(|field| val::text(field, "jsonPath"));
        let mut hasher = DefaultHasher::new();
        source.to_string().hash(&mut hasher);
        let source = Arc::new(source);
        Ok(Self {
            name: name.to_owned(),
            storage_api_version: format!("{}/{}", about.group, about.storage),
            status: val::at(version, "subresources.status").is_some(),
            terminating: about.terminating,
            scale: val::at(version, "subresources.scale").map(ScalePaths::new),
            table: Table::new(val::list(version, "additionalPrinterColumns")),
            selectable: selectable.map(|path| path.trim_start_matches('.').to_owned()).collect(),
            deprecation,
            schema,
            rules: RuleSet::compile(Arc::clone(&source)),
            source,
            fingerprint: hasher.finish(),
            api_version,
        })
    }

    /// `v1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Group and version that objects are stored in.
    #[must_use]
    pub fn storage_api_version(&self) -> &str {
        &self.storage_api_version
    }

    /// Whether there is a status subresource.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.status
    }

    /// Whether the definition is being deleted, so that no object may be created.
    #[must_use]
    pub fn terminating(&self) -> bool {
        self.terminating
    }

    /// The scale subresource, if there is one.
    #[must_use]
    pub fn scale(&self) -> Option<&ScalePaths> {
        self.scale.as_ref()
    }

    /// Table output.
    #[must_use]
    pub fn columns(&self) -> &Table {
        &self.table
    }

    /// The warning for every request, if the version is deprecated.
    #[must_use]
    pub fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    /// Names of the fields that field selectors may name.
    #[must_use]
    pub fn selectable(&self) -> &[String] {
        &self.selectable
    }

    /// The schema as written.
    #[must_use]
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// Changes when the schema does.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Makes what was sent fit: metadata by its type, unknown fields dropped. Returns how messages tell of what was dropped.
    ///
    /// # Errors
    /// What has a wrong type that cannot be a validation error, because it is metadata.
    pub(crate) fn conform(&self, obj: &mut Value) -> Result<Vec<String>, String> {
        let mut complaints = match obj.get_mut("metadata").filter(|metadata| !metadata.is_null()) {
            Some(metadata) => decode::metadata("metadata", metadata)?,
            None => Vec::new(),
        };
        complaints.extend(embedded::coerce("", obj, &self.schema).map_err(|error| error.to_string())?);
        let unknown = prune::prune(obj, &self.schema, true);
        complaints.extend(unknown.into_iter().map(|path| format!("unknown field \"{path}\"")));
        Ok(complaints)
    }

    /// Fills in defaults.
    pub(crate) fn set_defaults(&self, obj: &mut Value) {
        default::default(obj, &self.schema);
    }

    /// A stored object as this version shows it: conversion without a webhook writes another apiVersion and nothing else, what the
    /// schema does not know is not shown, and defaults are.
    pub(crate) fn read_back(&self, obj: &mut Value) {
        val::set(obj, "apiVersion", self.api_version.as_str());
        prune::prune(obj, &self.schema, true);
        self.set_defaults(obj);
    }

    /// Validates a new object, beyond its metadata.
    pub(crate) fn validate(&self, obj: &Value) -> Vec<FieldError> {
        let mut errors = validate::validate(&self.schema, &Target { value: obj, old: None, prefix: "" });
        errors.extend(self.scale.iter().flat_map(|scale| scale.validate(obj, Part::Main)));
        errors.extend(embedded::validate("", obj, &self.schema));
        errors.extend(lists::validate("", obj, &self.schema));
        self.judge(errors, obj, None)
    }

    /// Validates an update, beyond metadata; tolerates what was wrong before and did not change.
    pub(crate) fn validate_update(&self, new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
        let mut errors = if part == Part::Status {
            match (self.schema.properties.get("status"), new.get("status")) {
                (Some(schema), Some(value)) => {
                    validate::validate(schema, &Target { value, old: old.get("status"), prefix: "status" })
                }
                _ => Vec::new(),
            }
        } else {
            validate::validate(&self.schema, &Target { value: new, old: Some(old), prefix: "" })
        };
        errors.extend(self.scale.iter().flat_map(|scale| scale.validate(new, part)));
        errors.extend(embedded::validate("", new, &self.schema));
        let repeated = lists::validate("", new, &self.schema);
        if !repeated.is_empty() && lists::validate("", old, &self.schema).is_empty() {
            errors.extend(repeated);
        }
        self.judge(errors, new, Some(old))
    }

    /// The rules in CEL have their say only about what fits the schema: they may rely on it.
    fn judge(&self, errors: Vec<FieldError>, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        match &self.rules {
            Some(rules) if errors.is_empty() => rules.evaluate(new, old).errors,
            _ => errors,
        }
    }

    /// Values of the fields that field selectors may name.
    pub(crate) fn selectable_values(&self, obj: &Value) -> Vec<(String, String)> {
        let text = |path: &str| match val::at(obj, path) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        self.selectable.iter().map(|path| (path.clone(), text(path))).collect()
    }
}
