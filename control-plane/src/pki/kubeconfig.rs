//! Kubeconfig files with embedded certificates.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::Pair;

/// A kubeconfig for one user of one cluster. JSON, which every reader of YAML takes.
#[must_use]
pub fn kubeconfig(server: &str, ca_pem: &str, user: &str, pair: &Pair) -> String {
    let context = format!("{user}@keelson");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "keelson", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(ca_pem),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&pair.cert_pem),
            "client-key-data": STANDARD.encode(&pair.key_pem),
        }}],
        "contexts": [{"name": context, "context": {"cluster": "keelson", "user": user}}],
        "current-context": context,
    });
    let mut text = serde_json::to_string_pretty(&config).unwrap_or_default();
    text.push('\n');
    text
}
