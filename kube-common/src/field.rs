//! Refused fields, with upstream's words.
//!
//! Upstream counterpart: `apimachinery/pkg/util/validation/field`.

use std::fmt;

use serde_json::Value;

/// Why one field was refused: the `reason` of a `StatusCause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseKind {
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
    /// The string, in bytes, is too long.
    TooLong,
    /// The list or map has too many items.
    TooMany,
    /// What the value refers to does not exist.
    NotFound,
    /// The value has the wrong type.
    TypeInvalid,
    /// The server failed.
    Internal,
}

impl CauseKind {
    /// The reason as it is written in a `StatusCause`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Required => "FieldValueRequired",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::TypeInvalid => "Invalid value",
            Self::Internal => "Internal error",
        }
    }
}

/// One refused field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// Path as upstream writes it: `spec.containers[0].image`, `metadata.labels`, `data[key]`.
    pub field: String,
    /// Which rule.
    pub kind: CauseKind,
    /// The value that was refused, if it is shown.
    pub value: Option<Value>,
    /// Upstream's explanation.
    pub detail: String,
}

impl FieldError {
    /// A malformed value.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: CauseKind::Invalid, value: Some(value.into()), detail: detail.into() }
    }

    /// A missing value.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: CauseKind::Required, value: None, detail: detail.into() }
    }

    /// A value that may not be given.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: CauseKind::Forbidden, value: None, detail: detail.into() }
    }

    /// A value that occurs twice.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { field: field.into(), kind: CauseKind::Duplicate, value: Some(value.into()), detail: String::new() }
    }

    /// A value outside a fixed set; `valid` is listed in the message in the order given.
    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, valid: &[&str]) -> Self {
        let detail = if valid.is_empty() {
            String::new()
        } else {
            let quoted: Vec<String> = valid.iter().map(|v| format!("{v:?}")).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self { field: field.into(), kind: CauseKind::NotSupported, value: Some(value.into()), detail }
    }

    /// A string longer than `max` bytes.
    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        Self {
            field: field.into(),
            kind: CauseKind::TooLong,
            value: None,
            detail: format!("may not be more than {max} bytes"),
        }
    }

    /// A list with more than `max` items.
    pub fn too_many(field: impl Into<String>, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self {
            field: field.into(),
            kind: CauseKind::TooMany,
            value: Some(actual.into()),
            detail: format!("must have at most {max} {items}"),
        }
    }

    /// A reference to something that does not exist.
    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { field: field.into(), kind: CauseKind::NotFound, value: Some(value.into()), detail: String::new() }
    }

    /// A failure of the server's own.
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: CauseKind::Internal, value: None, detail: detail.into() }
    }

    /// The message of the cause, without the field path.
    #[must_use]
    pub fn body(&self) -> String {
        let words = self.kind.words();
        let mut out = match (&self.value, self.kind) {
            (_, CauseKind::Required | CauseKind::Forbidden | CauseKind::TooLong | CauseKind::Internal) | (None, _) => {
                words.to_owned()
            }
            (Some(value), _) => format!("{words}: {}", show(value)),
        };
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

/// A bad value as upstream prints it: strings quoted as Go's `%q`, everything else as JSON.
fn show(value: &Value) -> String {
    match value {
        Value::String(s) => go_quote(s),
        // Go prints the text that it puts in place of nothing.
        Value::Null => "\"null\"".to_owned(),
        other => other.to_string(),
    }
}

/// Go's `strconv.Quote` for the strings that occur in objects.
#[must_use]
pub fn go_quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
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

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}
