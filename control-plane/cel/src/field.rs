//! Refused fields, with upstream's words.
//!
//! Upstream counterpart: `apimachinery/pkg/util/validation/field`. The shape is that of `keelson_kinds::error::FieldError`, into which a
//! server turns these one to one.

use std::fmt;

use serde_json::Value;

/// Which rule a field breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The value is malformed.
    Invalid,
    /// The value is missing.
    Required,
    /// The value is not one of the supported ones.
    NotSupported,
    /// The value occurs twice.
    Duplicate,
    /// The value may not be given here.
    Forbidden,
    /// The list has too many items.
    TooMany,
    /// The server failed.
    Internal,
}

/// One refused field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// Path as upstream writes it: `spec.validations[0].expression`.
    pub field: String,
    /// Which rule.
    pub kind: FieldErrorKind,
    /// The value that was refused, if it is shown.
    pub value: Option<Value>,
    /// The explanation.
    pub detail: String,
}

impl FieldError {
    fn new(field: impl Into<String>, kind: FieldErrorKind, value: Option<Value>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind, value, detail: detail.into() }
    }
    pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(field, FieldErrorKind::Invalid, Some(value.into()), detail)
    }
    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(field, FieldErrorKind::Required, None, detail)
    }
    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(field, FieldErrorKind::Forbidden, None, detail)
    }
    pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(field, FieldErrorKind::Duplicate, Some(value.into()), "")
    }
    pub(crate) fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(field, FieldErrorKind::Internal, None, detail)
    }
    pub(crate) fn too_many(field: impl Into<String>, actual: usize, limit: usize) -> Self {
        Self::new(field, FieldErrorKind::TooMany, Some(actual.into()), format!("must have at most {limit} items"))
    }
    pub(crate) fn not_supported(field: impl Into<String>, value: impl Into<Value>, valid: &[&str]) -> Self {
        let quoted: Vec<String> = valid.iter().map(|v| format!("{v:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        Self::new(field, FieldErrorKind::NotSupported, Some(value.into()), detail)
    }

    /// The message without the field's path.
    #[must_use]
    pub fn body(&self) -> String {
        let words = match self.kind {
            FieldErrorKind::Invalid => "Invalid value",
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::NotSupported => "Unsupported value",
            FieldErrorKind::Duplicate => "Duplicate value",
            FieldErrorKind::Forbidden => "Forbidden",
            FieldErrorKind::TooMany => "Too many",
            FieldErrorKind::Internal => "Internal error",
        };
        let mut out = words.to_owned();
        if let Some(value) = &self.value {
            out.push_str(": ");
            match value {
                Value::String(text) => out.push_str(&go_quote(text)),
                other => out.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Go's `%q` for text.
pub(crate) fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
