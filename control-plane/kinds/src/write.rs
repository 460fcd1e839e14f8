//! Creating and updating: the steps every kind shares, around its [`crate::Strategy`].
//!
//! Upstream counterpart: `rest.BeforeCreate` and `rest.BeforeUpdate`.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::{ApiError, FieldError};
use crate::meta;
use crate::resource::Resource;
use crate::strategy::Part;
use crate::{time, val};

/// Length of the random part of a generated name.
pub const SUFFIX_LEN: usize = 5;
/// Characters of the random part of a generated name: no vowels, nothing that looks like another.
pub const SUFFIX_ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// What the outside world lends to a write.
#[derive(Clone, Debug)]
pub struct WriteContext<'a> {
    /// Now.
    pub now: jiff::Timestamp,
    /// A fresh UUID.
    pub uid: &'a str,
    /// [`SUFFIX_LEN`] random characters of [`SUFFIX_ALPHABET`], appended to `generateName`; another call with another suffix is the
    /// retry.
    pub suffix: &'a str,
    /// Namespace of the URL, empty for cluster-scoped kinds.
    pub namespace: &'a str,
}

/// Prepares and validates a new object: metadata (name from generateName, uid, creationTimestamp, generation; resourceVersion,
/// deletionTimestamp and selfLink are dropped), status removed or initialised, then validation. Returns warnings.
///
/// # Errors
/// 400 when the namespace is not the URL's, 405 when the definition of a custom kind is being deleted, 422 with causes when the object
/// is invalid.
pub fn create(res: &Resource, obj: &mut Value, ctx: &WriteContext<'_>) -> Result<Vec<String>, ApiError> {
    if res.strategy.custom().is_some_and(|version| version.terminating()) {
        let message = "create not allowed while custom resource definition is terminating".to_owned();
        return Err(ApiError { message, ..ApiError::method_not_allowed(res, "create") });
    }
    check_namespace(res, obj, ctx)?;
    let metadata = val::child(obj, "metadata");
    if !val::text(metadata, "resourceVersion").is_empty() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    for key in ["resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        val::remove(metadata, key);
    }
    if val::text(metadata, "name").is_empty() {
        let prefix = val::text(metadata, "generateName");
        if !prefix.is_empty() {
            let name = generate(prefix, res.strategy.generate_prefix_max(), ctx.suffix);
            val::set(metadata, "name", name);
        }
    }
    val::set(metadata, "uid", ctx.uid);
    val::set(metadata, "creationTimestamp", time::seconds(ctx.now));
    if res.strategy.has_generation() {
        val::set(metadata, "generation", 1);
    } else {
        val::remove(metadata, "generation");
    }
    if res.strategy.has_status() && !res.strategy.keeps_status_on_create() {
        val::remove(obj, "status");
    }
    res.strategy.prepare_create(obj);
    let mut errors = meta::validate(res, obj);
    errors.extend(res.strategy.validate(obj));
    errors.extend(res.strategy.validate_create(obj));
    refuse(res, obj, &errors)?;
    Ok(res.strategy.warnings(obj))
}

fn generate(prefix: &str, max: usize, suffix: &str) -> String {
    let mut end = prefix.len().min(max);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &prefix[..end])
}

fn check_namespace(res: &Resource, obj: &mut Value, ctx: &WriteContext<'_>) -> Result<(), ApiError> {
    let metadata = val::child(obj, "metadata");
    let given = val::text(metadata, "namespace");
    if !res.namespaced() {
        // As upstream, a namespace in a cluster-scoped object is an error only when validated.
        return Ok(());
    }
    if given.is_empty() {
        val::set(metadata, "namespace", ctx.namespace);
    } else if given != ctx.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

fn refuse(res: &Resource, obj: &Value, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    let name = val::text(obj, "metadata.name");
    let name = if name.is_empty() { val::text(obj, "metadata.generateName") } else { name };
    Err(ApiError::invalid(res.group, res.kind, name, errors))
}

/// Prepares and validates an update of `old` (as stored) by `new`. Does not compare resourceVersions: the server does, before; the
/// stored metadata that clients may not change is carried over. Returns warnings.
///
/// # Errors
/// 400 when name or namespace are not the URL's, 409 when the uid is another's, 422 with causes when the object is invalid or changes
/// what is immutable.
pub fn update(
    res: &Resource,
    new: &mut Value,
    old: &Value,
    part: Part,
    ctx: &WriteContext<'_>,
) -> Result<Vec<String>, ApiError> {
    check_namespace(res, new, ctx)?;
    let name = val::text(old, "metadata.name");
    let metadata = val::child(new, "metadata");
    let given = val::text(metadata, "name");
    if given.is_empty() {
        val::set(metadata, "name", name);
    } else if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let (uid, old_uid) = (val::text(metadata, "uid"), val::text(old, "metadata.uid"));
    if !uid.is_empty() && uid != old_uid {
        return Err(ApiError::conflict(
            res,
            name,
            &format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}"),
        ));
    }
    carry_metadata(metadata, old);
    match part {
        Part::Main if res.strategy.has_status() => val::carry(new, old, "status"),
        // Who may add a debugger to a pod may not move it into another Service by its labels.
        Part::Other("ephemeralcontainers" | "resize") => {
            for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
                let held = old.get("metadata").and_then(|metadata| metadata.get(key)).cloned();
                let metadata = val::child(new, "metadata");
                match held {
                    Some(held) => val::set(metadata, key, held),
                    None => drop(val::remove(metadata, key)),
                }
            }
        }
        Part::Main | Part::Other(_) => {}
        Part::Status => keep_only_status(new, old),
    }
    res.strategy.prepare_update(new, old, part);
    bump_generation(res, new, old);
    // Custom kinds compare old and new themselves, value by value.
    let mut errors = if res.strategy.custom().is_some() { meta::validate(res, new) } else { rules(res, new, part) };
    if !errors.is_empty() {
        // What was accepted once stays acceptable: a rule that came later must not keep anybody from taking a finalizer away.
        let before = rules(res, old, part);
        errors.retain(|error| !before.contains(error));
    }
    errors.extend(meta::validate_update(new, old));
    errors.extend(res.strategy.validate_update(new, old, part));
    refuse(res, new, &errors)?;
    Ok(if part == Part::Main { res.strategy.warnings(new) } else { Vec::new() })
}

/// What is wrong with an object by itself.
fn rules(res: &Resource, object: &Value, part: Part) -> Vec<FieldError> {
    let mut errors = meta::validate(res, object);
    if part != Part::Status {
        errors.extend(res.strategy.validate(object));
    }
    errors
}

fn carry_metadata(metadata: &mut Value, old: &Value) {
    let Some(old_meta) = old.get("metadata") else { return };
    for key in
        ["uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName"]
    {
        val::carry(metadata, old_meta, key);
    }
    for key in ["selfLink", "resourceVersion"] {
        val::remove(metadata, key);
    }
}

/// Everything but the status (and labels and annotations' absence aside) stays as stored; upstream ignores metadata changes through
/// the status subresource for most kinds, apart from finalizers and owner references of some.
fn keep_only_status(new: &mut Value, old: &Value) {
    let status = val::remove(new, "status");
    let annotations = new.get("metadata").and_then(|m| m.get("annotations")).cloned();
    let labels = new.get("metadata").and_then(|m| m.get("labels")).cloned();
    let managers = new.get("metadata").and_then(|m| m.get("managedFields")).cloned();
    *new = old.clone();
    match status {
        Some(status) => val::set(new, "status", status),
        None => {
            val::remove(new, "status");
        }
    }
    let metadata = val::child(new, "metadata");
    for (key, value) in [("annotations", annotations), ("labels", labels), ("managedFields", managers)] {
        match value {
            Some(value) => val::set(metadata, key, value),
            None => {
                val::remove(metadata, key);
            }
        }
    }
    val::remove(metadata, "resourceVersion");
}

fn bump_generation(res: &Resource, new: &mut Value, old: &Value) {
    if !res.strategy.has_generation() {
        return;
    }
    let generation = val::int(old, "metadata.generation").unwrap_or(0);
    // A custom kind without a status subresource has no status that is apart from the rest.
    let apart = res.strategy.has_status() || res.strategy.custom().is_none();
    let body = |v: &Value| -> Vec<(String, Value)> {
        v.as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "apiVersion" | "kind"))
            .filter(|(key, _)| key.as_str() != "status" || !apart)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    // A deployment's annotations reach its replica sets, so they count as well.
    let annotations = (res.group, res.kind) == ("apps", "Deployment")
        && !val::same(val::at(new, "metadata.annotations"), val::at(old, "metadata.annotations"));
    if annotations || body(new) != body(old) {
        val::set(val::child(new, "metadata"), "generation", generation + 1);
    }
}

/// Validates again after admission changed `obj`.
///
/// # Errors
/// 422 with causes.
pub fn validate(res: &Resource, obj: &Value) -> Result<(), ApiError> {
    let mut errors = meta::validate(res, obj);
    errors.extend(res.strategy.validate(obj));
    refuse(res, obj, &errors)
}

/// Values that field selectors see: `metadata.name`, `metadata.namespace` and what the kind adds.
#[must_use]
pub fn selectable(res: &Resource, obj: &Value) -> Vec<(Cow<'static, str>, String)> {
    let mut out = vec![(Cow::Borrowed("metadata.name"), val::text(obj, "metadata.name").to_owned())];
    if res.namespaced() {
        out.push((Cow::Borrowed("metadata.namespace"), val::text(obj, "metadata.namespace").to_owned()));
    }
    out.extend(res.strategy.selectable(obj));
    out
}

/// Whether a field selector may name `field`.
///
/// # Errors
/// 400 with upstream's message.
pub fn check_selectable(res: &Resource, field: &str) -> Result<(), ApiError> {
    let known = field == "metadata.name"
        || (field == "metadata.namespace" && res.namespaced())
        || res.strategy.selectable_names().iter().any(|name| name == field);
    if known { Ok(()) } else { Err(ApiError::bad_request(format!("field label not supported: {field}"))) }
}

/// The stored form: apiVersion and kind of the storage version, no resourceVersion (the store keeps it).
#[must_use]
pub fn to_storage(res: &Resource, mut obj: Value) -> Value {
    if let Some(version) = res.strategy.custom() {
        val::set(&mut obj, "apiVersion", version.storage_api_version());
    } else if !res.storage_version {
        let stored = crate::resources().iter().find(|r| r.storage_prefix == res.storage_prefix && r.storage_version);
        if let Some(stored) = stored {
            crate::kinds::convert(stored, &mut obj);
        }
    }
    if let Some(metadata) = val::child_mut(&mut obj, "metadata") {
        val::remove(metadata, "resourceVersion");
    }
    obj
}

/// A stored object as this resource shows it: with its resourceVersion, and its own apiVersion where two resources share a storage
/// (events).
pub fn from_storage(res: &Resource, obj: &mut Value, resource_version: u64) {
    val::set(val::child(obj, "metadata"), "resourceVersion", resource_version.to_string());
    if let Some(version) = res.strategy.custom() {
        version.read_back(obj);
    } else if val::text(obj, "apiVersion") != res.api_version() {
        crate::kinds::convert(res, obj);
    }
}

/// Turns an object of another version of the same stored kind into the version of `res`.
pub fn convert(res: &Resource, obj: &mut Value) {
    crate::kinds::convert(res, obj);
}

/// Makes an empty list of a resource around `items`.
#[must_use]
pub fn list(res: &Resource, items: Vec<Value>, metadata: &Value) -> Value {
    json!({"kind": res.list_kind, "apiVersion": res.api_version(), "metadata": metadata, "items": items})
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
