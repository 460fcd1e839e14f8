//! Refused fields, in the words of `k8s.io/apimachinery/pkg/util/validation/field`.

use std::fmt;

use serde_json::Value;

use crate::json::go_quote;

/// Which rule a field breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The value is malformed.
    Invalid,
    /// The value is missing.
    Required,
    /// The value occurs twice.
    Duplicate,
    /// The value may not be given here.
    Forbidden,
}

impl FieldErrorKind {
    const fn words(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid value",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
        }
    }
}

/// One refused field. Not retryable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct FieldError {
    /// Path as upstream writes it: `spec.hard[pods]`.
    pub field: String,
    /// Which rule.
    pub kind: FieldErrorKind,
    /// The value that was refused, where it is shown.
    pub value: Option<Value>,
    /// Upstream's explanation.
    pub detail: String,
}

impl FieldError {
    pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        let kind = FieldErrorKind::Invalid;
        Self { field: field.into(), kind, value: Some(value.into()), detail: detail.into() }
    }

    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Required, value: None, detail: detail.into() }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        let kind = FieldErrorKind::Duplicate;
        Self { field: field.into(), kind, value: Some(value.into()), detail: String::new() }
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), kind: FieldErrorKind::Forbidden, value: None, detail: detail.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.kind.words())?;
        match &self.value {
            Some(Value::String(text)) => write!(f, ": {}", go_quote(text))?,
            Some(value) => write!(f, ": {value}")?,
            None => {}
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}
