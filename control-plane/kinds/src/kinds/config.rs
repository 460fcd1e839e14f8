//! Config maps, secrets, service accounts.
//!
//! Upstream counterparts: `pkg/apis/core/v1/defaults.go`, `pkg/apis/core/validation` and their registries.

use base64::Engine;
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::resource::{Subresource, Verb};
use crate::strategy::{Part, Rules};
use crate::table::{AGE, Columns, NAME, age_of, name_of, number, text};
use crate::{names, val};

/// Upstream's `MaxSecretSize`, for config maps as well: 1 MiB.
const MAX_DATA: usize = 1024 * 1024;

static CONFIG_MAP_RULES: Rules =
    Rules { validate: validate_config_map, validate_update: config_map_update, ..Rules::PLAIN };

fn keys(obj: &Value, field: &str, errors: &mut Vec<FieldError>) {
    for (key, _) in val::entries(obj, field) {
        for msg in names::config_key(key) {
            errors.push(FieldError::invalid(format!("{field}[{key}]"), key.as_str(), msg));
        }
    }
}

/// Decoded length of base64 text.
fn decoded_len(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

fn validate_config_map(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    keys(obj, "data", &mut errors);
    for (key, _) in val::entries(obj, "binaryData") {
        for msg in names::config_key(key) {
            errors.push(FieldError::invalid(format!("binaryData[{key}]"), key.as_str(), msg));
        }
        if val::map(obj, "data").is_some_and(|data| data.contains_key(key)) {
            errors.push(FieldError::invalid(
                format!("data[{key}]"),
                key.as_str(),
                "duplicate of key present in binaryData",
            ));
        }
    }
    let size: usize = val::entries(obj, "data").map(|(_, v)| v.as_str().map_or(0, str::len)).sum::<usize>()
        + val::entries(obj, "binaryData").map(|(_, v)| v.as_str().map_or(0, decoded_len)).sum::<usize>();
    if size > MAX_DATA {
        errors.push(FieldError::too_long("", MAX_DATA));
    }
    errors
}

fn config_map_update(new: &Value, old: &Value, _: Part) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if val::flag(old, "immutable") {
        if !val::flag(new, "immutable") {
            errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
        for field in ["data", "binaryData"] {
            if !val::same(new.get(field), old.get(field)) {
                errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
    }
    errors
}

fn data_len(obj: &Value) -> usize {
    val::map(obj, "data").map_or(0, serde_json::Map::len)
}

static CONFIG_MAP_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Data"), AGE],
    cells: |obj, now| {
        let binary = val::map(obj, "binaryData").map_or(0, serde_json::Map::len);
        vec![name_of(obj), json!(data_len(obj) + binary), age_of(obj, now)]
    },
};

kind!(CONFIG_MAPS: "core" "" "v1" "ConfigMap", "configmaps" "configmap", Namespaced "/registry/configmaps/", core::ConfigMap,
    CONFIG_MAP_RULES, CONFIG_MAP_COLUMNS, short_names: &["cm"]);

static SECRET_RULES: Rules = Rules {
    defaults: |obj| {
        val::default(obj, "type", "Opaque");
        merge_string_data(obj);
    },
    validate: validate_secret,
    validate_update: |new, old, _| {
        let mut errors = super::immutable(new, old, &["type"]);
        if val::flag(old, "immutable") {
            if !val::flag(new, "immutable") {
                errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
            }
            if !val::same(new.get("data"), old.get("data")) {
                errors.push(FieldError::forbidden("data", "field is immutable when `immutable` is set"));
            }
        }
        errors
    },
    selectable: &["type"],
    ..Rules::PLAIN
};

/// `stringData` is write-only: it becomes `data`.
fn merge_string_data(obj: &mut Value) {
    let Some(Value::Object(strings)) = val::remove(obj, "stringData") else { return };
    if strings.is_empty() {
        return;
    }
    let data = val::child(obj, "data");
    for (key, value) in strings {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or(""));
        val::set(data, &key, encoded);
    }
}

/// Keys that a secret of a known type must have.
fn required_keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    }
}

fn validate_secret(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    keys(obj, "data", &mut errors);
    let size: usize = val::entries(obj, "data").map(|(_, v)| v.as_str().map_or(0, decoded_len)).sum();
    if size > MAX_DATA {
        errors.push(FieldError::too_long("data", MAX_DATA));
    }
    let kind = val::text(obj, "type");
    let data = val::map(obj, "data");
    let has = |key: &str| data.is_some_and(|d| d.contains_key(key));
    match kind {
        "kubernetes.io/service-account-token" => {
            let account = val::map(obj, "metadata.annotations")
                .and_then(|a| a.get("kubernetes.io/service-account.name"))
                .and_then(Value::as_str)
                .unwrap_or("");
            if account.is_empty() {
                errors.push(FieldError::required("metadata.annotations[kubernetes.io/service-account.name]", ""));
            }
        }
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            errors.push(FieldError::required("data[username]", ""));
            errors.push(FieldError::required("data[password]", ""));
        }
        _ => {}
    }
    for key in required_keys(kind) {
        if !has(key) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    }
    for key in [".dockercfg", ".dockerconfigjson"] {
        let bad = required_keys(kind).contains(&key)
            && data.and_then(|d| d.get(key)).and_then(Value::as_str).is_some_and(|text| !is_json(text));
        if bad {
            errors.push(FieldError::invalid(
                format!("data[{key}]"),
                "<secret contents redacted>",
                "invalid character in JSON",
            ));
        }
    }
    errors
}

fn is_json(encoded: &str) -> bool {
    base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .is_ok_and(|bytes| serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok())
}

static SECRET_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Type"), number("Data"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::text(obj, "type")), json!(data_len(obj)), age_of(obj, now)],
};

kind!(SECRETS: "core" "" "v1" "Secret", "secrets" "secret", Namespaced "/registry/secrets/", core::Secret, SECRET_RULES,
    SECRET_COLUMNS);

static ACCOUNT_RULES: Rules = Rules { ..Rules::PLAIN };

static ACCOUNT_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Secrets"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::list(obj, "secrets").len()), age_of(obj, now)],
};

kind!(SERVICE_ACCOUNTS: "core" "" "v1" "ServiceAccount", "serviceaccounts" "serviceaccount", Namespaced
"/registry/serviceaccounts/", core::ServiceAccount, ACCOUNT_RULES, ACCOUNT_COLUMNS, short_names: &["sa"],
subresources: &[Subresource {
    name: "token",
    group: "authentication.k8s.io",
    version: "v1",
    kind: "TokenRequest",
    verbs: &[Verb::Create],
}]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_data_becomes_data_and_wins() {
        let mut secret = json!({"data": {"a": "b2xk", "b": "Yg=="}, "stringData": {"a": "new"}});
        SECRETS.strategy.set_defaults(&mut secret);
        assert_eq!(secret, json!({"data": {"a": "bmV3", "b": "Yg=="}, "type": "Opaque"}));
    }

    #[test]
    fn an_immutable_config_map_stays() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        let new = json!({"immutable": true, "data": {"a": "2"}});
        let errors = config_map_update(&new, &old, Part::Main);
        assert_eq!(errors[0].to_string(), "data: Forbidden: field is immutable when `immutable` is set");
        assert!(config_map_update(&old, &old, Part::Main).is_empty());
    }

    #[test]
    fn secret_types_want_their_keys() {
        let errors = validate_secret(&json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}));
        assert_eq!(errors[0].to_string(), "data[tls.key]: Required value");
        let errors = validate_secret(&json!({"type": "Opaque", "data": {"a b": ""}}));
        assert!(errors[0].to_string().starts_with("data[a b]: Invalid value: \"a b\": a valid config key must"));
    }
}
