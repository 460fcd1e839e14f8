//! Who may call the HTTPS server, and what they may do: upstream's `authentication` and `authorization`.

use std::path::PathBuf;

use kube_common::duration::GoDuration;
use serde::{Deserialize, Serialize};

/// Who may call the HTTPS server.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Authentication {
    /// Client certificates.
    pub x509: X509,
    /// Tokens checked by the API server.
    pub webhook: WebhookAuthentication,
    /// Callers without credentials.
    pub anonymous: Anonymous,
}

/// Client certificates.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct X509 {
    /// Certificates of the authorities that sign clients.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
}

/// Tokens checked by the API server.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookAuthentication {
    /// Whether tokens are accepted.
    pub enabled: bool,
    /// How long an answer holds.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

impl Default for WebhookAuthentication {
    fn default() -> Self {
        Self { enabled: true, cache_ttl: GoDuration::from_secs(120) }
    }
}

/// Callers without credentials.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Anonymous {
    /// Whether they are let in.
    pub enabled: bool,
}

/// What a caller may do.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Authorization {
    /// `Webhook` asks the API server, `AlwaysAllow` asks nobody.
    pub mode: AuthorizationMode,
    /// Answers of the API server.
    pub webhook: WebhookAuthorization,
}

/// How callers are authorised.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Ask the API server.
    #[default]
    Webhook,
    /// Ask nobody.
    AlwaysAllow,
}

/// How long the API server's answers hold.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct WebhookAuthorization {
    /// A yes.
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    /// A no.
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for WebhookAuthorization {
    fn default() -> Self {
        Self { cache_authorized_ttl: GoDuration::from_secs(300), cache_unauthorized_ttl: GoDuration::from_secs(30) }
    }
}
