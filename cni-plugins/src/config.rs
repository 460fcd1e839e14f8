//! Reading configurations: JSON, then a typed view of it, with the key named in every error.
//!
//! Unknown keys are ignored, as the specification demands; a wrong type is an error; `null` is as good as absent, as in Go.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What is wrong with a configuration. Never worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("the network configuration is not JSON: {0}")]
    Syntax(serde_json::Error),
    /// A key has the wrong type or form.
    #[error("network configuration: `{key}`: {reason}")]
    Type {
        /// Where: `ipam.ranges[0][1].subnet`.
        key: String,
        /// What was expected.
        reason: String,
    },
    /// A key has a value that makes no sense.
    #[error("network configuration: `{key}`: {reason}")]
    Invalid {
        /// Where.
        key: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// A key asks for something that this program cannot do.
    #[error("network configuration: `{key}` = {value} is not supported: {reason}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Why, and what can be done instead.
        reason: &'static str,
    },
}

impl ConfigError {
    /// A value that makes no sense.
    pub fn invalid(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { key: key.into(), reason: reason.into() }
    }
}

/// Parses a configuration and drops members that are null.
pub fn parse(bytes: &[u8]) -> Result<Value, ConfigError> {
    let mut value = serde_json::from_slice(bytes).map_err(ConfigError::Syntax)?;
    drop_nulls(&mut value);
    Ok(value)
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The typed view of a configuration.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let key = if path == "." { "(top level)".to_owned() } else { path };
        ConfigError::Type { key, reason: error.into_inner().to_string() }
    })
}

/// The `ipam` member as a plugin sees it that only delegates.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IpamRef {
    /// Name of the IPAM plugin; none for a layer 2 attachment.
    #[serde(rename = "type")]
    pub plugin: String,
}
