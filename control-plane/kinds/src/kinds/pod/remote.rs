//! Validation of volumes that come over a network: upstream's old kinds, which the API still knows.
//!
//! Upstream counterpart: `validateISCSIVolumeSource` and its like.

use serde_json::Value;

use super::check;
use crate::error::FieldError;
use crate::{names, val};

const MAX_TENANT: usize = 64;

/// Fields that a kind of volume has to have.
fn needed(kind: &str) -> &'static [&'static str] {
    match kind {
        "gitRepo" => &["repository"],
        "gcePersistentDisk" => &["pdName"],
        "awsElasticBlockStore" | "cinder" | "portworxVolume" => &["volumeID"],
        "nfs" => &["server", "path"],
        "iscsi" => &["targetPortal", "iqn"],
        "glusterfs" => &["endpoints", "path"],
        "rbd" => &["monitors", "image"],
        "cephfs" => &["monitors"],
        "quobyte" => &["volume"],
        "flexVolume" => &["driver"],
        "azureFile" => &["secretName", "shareName"],
        "azureDisk" => &["diskName", "diskURI"],
        "vsphereVolume" => &["volumePath"],
        "photonPersistentDisk" => &["pdID"],
        "storageos" => &["volumeName"],
        "scaleIO" => &["gateway", "system", "volumeName"],
        _ => &[],
    }
}

/// Validates a volume of one of the old kinds.
pub(super) fn validate(kind: &str, source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let f = |name: &str| format!("{at}.{name}");
    for key in needed(kind) {
        if val::same(val::at(source, key), None) {
            errors.push(FieldError::required(f(key), ""));
        }
    }
    match kind {
        "gitRepo" => check::local_path(val::text(source, "directory"), &f("directory"), errors),
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let partition = val::int(source, "partition").unwrap_or(0);
            // Upstream's words say 1, its check says 0.
            if !(0..=255).contains(&partition) {
                let message = "must be between 1 and 255, inclusive";
                errors.push(FieldError::invalid(f("partition"), partition, message));
            }
        }
        "nfs" => {
            let path = val::text(source, "path");
            if !path.starts_with('/') {
                errors.push(FieldError::invalid(f("path"), path, "must be an absolute path"));
            }
        }
        "iscsi" => iscsi(source, at, errors),
        "flocker" => flocker(source, at, errors),
        "quobyte" => quobyte(source, at, errors),
        "fc" => fibre_channel(source, at, errors),
        "flexVolume" => {
            for (key, _) in val::entries(source, "options") {
                let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
                if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
                    let message = "kubernetes.io and k8s.io namespaces are reserved";
                    errors.push(FieldError::invalid(f(&format!("options[{key}]")), key.as_str(), message));
                }
            }
        }
        "azureDisk" => azure_disk(source, at, errors),
        "storageos" => {
            check::optional(val::text(source, "volumeName"), &f("volumeName"), names::dns1123_label, errors);
            check::optional(val::text(source, "volumeNamespace"), &f("volumeNamespace"), names::dns1123_label, errors);
            secret(source, at, errors);
        }
        "cinder" => secret(source, at, errors),
        _ => {}
    }
}

fn secret(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(secret) = val::at(source, "secretRef") {
        check::required(val::text(secret, "name"), &format!("{at}.secretRef.name"), errors);
    }
}

fn iscsi(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let iqn = val::text(source, "iqn");
    if !iqn.is_empty() {
        initiator(iqn, &format!("{at}.iqn"), errors);
    }
    check::within(val::int(source, "lun").unwrap_or(0), 0, 255, &format!("{at}.lun"), errors);
    let has_secret = val::at(source, "secretRef").is_some();
    if (val::flag(source, "chapAuthDiscovery") || val::flag(source, "chapAuthSession")) && !has_secret {
        errors.push(FieldError::required(format!("{at}.secretRef"), ""));
    }
    if let Some(name) = check::present(source, "initiatorName") {
        initiator(name, &format!("{at}.initiatorname"), errors);
    }
}

/// A name in one of iSCSI's three forms.
fn initiator(name: &str, at: &str, errors: &mut Vec<FieldError>) {
    let is_good = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => is_code(name, 16),
        Some("naa") => is_code(name, 32),
        _ => {
            let message = "must be valid format starting with iqn, eui, or naa";
            errors.push(FieldError::invalid(at, name, message));
            return;
        }
    };
    if !is_good {
        errors.push(FieldError::invalid(at, name, "must be valid format"));
    }
}

/// `iqn.2001-04.com.example:storage`.
fn is_iqn(name: &str) -> bool {
    let Some((authority, own)) = name.split_once(':') else { return false };
    let Some(rest) = authority.strip_prefix("iqn.") else { return false };
    let Some((date, domain)) = rest.split_once('.') else { return false };
    let bytes = date.as_bytes();
    let is_date =
        bytes.len() == 7 && bytes.iter().enumerate().all(|(i, b)| if i == 4 { *b == b'-' } else { b.is_ascii_digit() });
    is_date
        && !domain.is_empty()
        && domain.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
        && !own.is_empty()
        && !own.chars().any(|c| matches!(c, ',' | ';' | '*' | '&' | '$' | '|') || c.is_ascii_whitespace())
}

/// Three letters, any character, and a code of so many letters and digits.
fn is_code(name: &str, length: usize) -> bool {
    let code: Vec<char> = name.chars().skip(4).collect();
    code.len() == length && code.iter().all(char::is_ascii_alphanumeric)
}

fn flocker(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let (name, uuid) = (val::text(source, "datasetName"), val::text(source, "datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errors.push(FieldError::required(at, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let message = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(at, "resource", message));
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(format!("{at}.datasetName"), name, "must not contain '/'"));
    }
}

fn quobyte(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = val::text(source, "registry");
    let registry_at = format!("{at}.registry");
    if registry.is_empty() {
        errors.push(FieldError::required(registry_at, PAIRS));
    } else if val::text(source, "tenant").len() > MAX_TENANT {
        let message = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(format!("{at}.tenant"), message));
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_and_port(pair)) {
            errors.push(FieldError::invalid(registry_at.as_str(), registry, PAIRS));
        }
    }
}

/// As Go's `net.SplitHostPort` takes it.
fn is_host_and_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = inner.unwrap_or(host);
    !host.contains(['[', ']']) && !port.contains(['[', ']']) && (inner.is_some() || !host.contains(':'))
}

fn fibre_channel(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let (names, ids) = (val::list(source, "targetWWNs"), val::list(source, "wwids"));
    let names_at = format!("{at}.targetWWNs");
    if names.is_empty() && ids.is_empty() {
        errors.push(FieldError::required(names_at.as_str(), "must specify either targetWWNs or wwids, but not both"));
    }
    if names.is_empty() {
        return;
    }
    if !ids.is_empty() {
        let message = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(FieldError::invalid(names_at, Value::Array(names.to_vec()), message));
    }
    match val::int(source, "lun") {
        None => {
            errors.push(FieldError::required(format!("{at}.lun"), "lun is required if targetWWNs is specified"));
        }
        Some(lun) => check::within(lun, 0, 255, &format!("{at}.lun"), errors),
    }
}

fn azure_disk(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    if let Some(caching) = check::present(source, "cachingMode") {
        check::supported(caching, &["None", "ReadOnly", "ReadWrite"], &format!("{at}.cachingMode"), errors);
    }
    let Some(kind) = check::present(source, "kind") else { return };
    check::supported(kind, &["Dedicated", "Managed", "Shared"], &format!("{at}.kind"), errors);
    let uri = val::text(source, "diskURI");
    let (prefix, form) = if kind == "Managed" { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if !uri.starts_with(prefix) {
        errors.push(FieldError::not_supported(format!("{at}.diskURI"), uri, &[form]));
    }
}
