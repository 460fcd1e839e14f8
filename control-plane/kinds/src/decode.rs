//! Bytes to checked objects.
//!
//! Upstream counterpart: the serializers of `apimachinery/pkg/runtime/serializer` with strict decoding, and the handlers'
//! `fieldValidation` parameter.

use serde_json::Value;

use crate::error::{ApiError, FieldError};
use crate::resource::Resource;
use crate::schema::schemas;
use crate::val;

mod conform;
mod json;

/// The `fieldValidation` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Unknown and duplicate fields are dropped silently.
    Ignore,
    /// They are dropped and reported as warnings: what the server does when the parameter is absent.
    #[default]
    Warn,
    /// They refuse the request.
    Strict,
}

impl FieldValidation {
    /// Parses the query parameter; empty means the default.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        match text {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => Err(ApiError::bad_request(format!("unsupported fieldValidation value {other:?}"))),
        }
    }
}

/// Body formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
}

impl Format {
    /// From a Content-Type header; absent or empty means JSON. 415 otherwise.
    pub fn from_content_type(header: Option<&str>) -> Result<Self, ApiError> {
        let media = header.unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match media.as_str() {
            "" | "*/*" | "application/json" => Ok(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Self::Yaml),
            _ => Err(ApiError::unsupported_media_type(&["application/json", "application/yaml"])),
        }
    }
}

/// A checked object.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// Pruned of unknown fields, quantities canonical, defaults set.
    pub object: Value,
    /// Messages for `Warning` headers.
    pub warnings: Vec<String>,
}

/// A parsed body and the fields that occurred twice in it (the last one counts, as upstream).
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    /// The value.
    pub(crate) value: Value,
    /// Paths of duplicate fields.
    pub(crate) duplicates: Vec<String>,
}

/// Parses a body into a plain value, without a schema (delete options, patches).
///
/// # Errors
/// 400 for what is not JSON or YAML.
pub fn parse(bytes: &[u8], format: Format) -> Result<Value, ApiError> {
    parse_tracked(bytes, format).map(|parsed| parsed.value)
}

fn parse_tracked(bytes: &[u8], format: Format) -> Result<Parsed, ApiError> {
    match format {
        Format::Json => {
            json::parse(bytes).map_err(|e| ApiError::bad_request(format!("unable to parse the body as JSON: {e}")))
        }
        Format::Yaml => {
            let bad =
                |e: &dyn std::fmt::Display| ApiError::bad_request(format!("error converting YAML to JSON: yaml: {e}"));
            let text = std::str::from_utf8(bytes).map_err(|e| bad(&e))?;
            let documents = kube_common::yaml::parse_documents(text).map_err(|e| bad(&e))?;
            let value = documents.first().map_or(Value::Null, kube_common::yaml::Node::to_json);
            Ok(Parsed { value, duplicates: Vec::new() })
        }
    }
}

/// Decodes the body of a create or update of `res` (or of its subresource `sub`, whose kind then counts): apiVersion and kind must fit
/// the URL (absent ones are filled in), types must fit the schema, unknown fields are dropped, defaults are set.
pub fn body(
    res: &Resource,
    sub: Option<&str>,
    bytes: &[u8],
    format: Format,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    parsed_body(res, sub, parse_tracked(bytes, format)?, validation)
}

/// As [`body`], for a value that is already parsed.
///
/// # Errors
/// As [`body`].
pub fn object(
    res: &Resource,
    sub: Option<&str>,
    value: Value,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    parsed_body(res, sub, Parsed { value, duplicates: Vec::new() }, validation)
}

fn parsed_body(
    res: &Resource,
    sub: Option<&str>,
    parsed: Parsed,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let target = Target::of(res, sub);
    let found = check_kind(&target, &parsed.value)?;
    let refuse = |why: &str| ApiError::bad_request(format!("{found} cannot be handled as a {}: {why}", target.kind));
    let mut object = parsed.value;
    let mut strict: Vec<String> = parsed.duplicates.iter().map(|path| format!("duplicate field {path:?}")).collect();
    let dropped = match res.strategy.custom().filter(|_| target.main) {
        Some(version) => version.conform(&mut object),
        None => conform(&target, &mut object),
    };
    strict.extend(dropped.map_err(|why| refuse(&why))?);
    let warnings = match validation {
        FieldValidation::Strict if !strict.is_empty() => {
            return Err(refuse(&format!("strict decoding error: {}", strict.join(", "))));
        }
        FieldValidation::Warn => strict,
        FieldValidation::Strict | FieldValidation::Ignore => Vec::new(),
    };
    finish(res, &target, &mut object);
    Ok(Decoded { object, warnings })
}

/// The kind that a body must have.
pub(crate) struct Target {
    group: &'static str,
    version: &'static str,
    pub(crate) kind: &'static str,
    /// Definition name.
    pub(crate) schema: String,
    /// Whether the object is the resource itself.
    main: bool,
}

impl Target {
    pub(crate) fn of(res: &Resource, sub: Option<&str>) -> Self {
        let main =
            Self { group: res.group, version: res.version, kind: res.kind, schema: res.schema.to_owned(), main: true };
        match sub.and_then(|name| res.subresource(name)) {
            Some(sub) if sub.kind != res.kind => Self {
                group: sub.group,
                version: sub.version,
                kind: sub.kind,
                schema: definition_name(sub.group, sub.version, sub.kind),
                main: false,
            },
            _ => main,
        }
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// The definition of a kind of Kubernetes' own groups.
pub(crate) fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let short = if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) };
    format!("io.k8s.api.{short}.{version}.{kind}")
}

/// Checks apiVersion and kind, returns how messages call what was sent: `Pod in version "v1"`.
fn check_kind(target: &Target, value: &Value) -> Result<String, ApiError> {
    if !value.is_object() {
        let found = format!("{} in version {:?}", target.kind, target.version);
        let what = json_kind(value);
        return Err(ApiError::bad_request(format!(
            "{found} cannot be handled as a {}: json: cannot unmarshal {what} into Go value of type {}.{}",
            target.kind, target.version, target.kind
        )));
    }
    let api_version = Some(val::text(value, "apiVersion")).filter(|v| !v.is_empty());
    let kind = Some(val::text(value, "kind")).filter(|v| !v.is_empty()).unwrap_or(target.kind);
    let expected = target.api_version();
    let given = api_version.unwrap_or(&expected);
    let version = given.rsplit('/').next().unwrap_or(given);
    let found = format!("{kind} in version {version:?}");
    if kind != target.kind {
        let why = format!("no kind {kind:?} of version {given:?} is accepted here, expected {:?}", target.kind);
        return Err(ApiError::bad_request(format!("{found} cannot be handled as a {}: {why}", target.kind)));
    }
    if given != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({given}) does not match the expected API version ({expected})"
        )));
    }
    Ok(found)
}

fn conform(target: &Target, object: &mut Value) -> Result<Vec<String>, String> {
    let table = schemas();
    let Some(root) = table.get(&target.schema) else { return Ok(Vec::new()) };
    let mut walk = conform::Walk::new(table);
    walk.root(root, object)?;
    Ok(walk.into_complaints())
}

/// Makes metadata fit its type, and returns the unknown fields that were dropped; messages call it `path`.
///
/// # Errors
/// Why it does not fit, in Go's words.
pub(crate) fn metadata(path: &str, value: &mut Value) -> Result<Vec<String>, String> {
    conform::Walk::metadata(schemas(), path, value)
}

/// Brings an object whose types are right into the form that the server would store, and returns the values that are malformed.
pub(crate) fn malformed(res: &Resource, object: &mut Value) -> Vec<FieldError> {
    let table = schemas();
    let Some(root) = table.get(res.schema) else { return Vec::new() };
    let mut walk = conform::Walk::gathering(table);
    let wrong = walk.root(root, object).err();
    let mut faults = walk.into_faults();
    faults.extend(wrong.map(|why| FieldError::invalid("", Value::Null, why)));
    faults
}

fn finish(res: &Resource, target: &Target, object: &mut Value) {
    val::set(object, "apiVersion", target.api_version());
    val::set(object, "kind", target.kind);
    if target.main {
        res.strategy.set_defaults(object);
    }
}

pub(crate) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
