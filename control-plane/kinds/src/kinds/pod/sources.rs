//! Validation of a pod's volumes.
//!
//! Upstream counterpart: `ValidateVolumes`.

use kube_common::quantity::Quantity;
use serde_json::Value;

use crate::error::FieldError;
use crate::{names, val};

/// Largest mode of a file.
const MAX_MODE: i64 = 0o777;

/// Validates `spec.volumes` and returns the volumes' names.
pub(super) fn validate<'a>(spec: &'a Value, at: &str, errors: &mut Vec<FieldError>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for (i, volume) in val::list(spec, "volumes").iter().enumerate() {
        let at = format!("{at}.volumes[{i}]");
        let name = val::text(volume, "name");
        source(volume, &at, errors);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
            continue;
        }
        errors
            .extend(names::dns1123_label(name).into_iter().map(|m| FieldError::invalid(format!("{at}.name"), name, m)));
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        seen.push(name);
    }
    seen
}

fn source(volume: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut kinds = volume.as_object().into_iter().flatten().filter(|(key, v)| *key != "name" && !v.is_null());
    let Some((kind, source)) = kinds.next() else {
        errors.push(FieldError::required(at, "must specify a volume type"));
        return;
    };
    for (other, _) in kinds {
        errors.push(FieldError::forbidden(format!("{at}.{other}"), "may not specify more than 1 volume type"));
    }
    let at = format!("{at}.{kind}");
    let require = |key: &str, errors: &mut Vec<FieldError>| {
        if val::text(source, key).is_empty() {
            errors.push(FieldError::required(format!("{at}.{key}"), ""));
        }
    };
    match kind.as_str() {
        "hostPath" => {
            require("path", errors);
            no_backsteps(val::text(source, "path"), &format!("{at}.path"), errors);
            let kind = val::text(source, "type");
            let valid =
                ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
            if !valid.contains(&kind) {
                errors.push(FieldError::not_supported(format!("{at}.type"), kind, &valid));
            }
        }
        "secret" => require("secretName", errors),
        "configMap" => require("name", errors),
        "persistentVolumeClaim" => require("claimName", errors),
        "csi" => require("driver", errors),
        "emptyDir" => {
            if let Ok(limit) = Quantity::parse(val::text(source, "sizeLimit"))
                && limit.is_negative()
            {
                errors.push(FieldError::forbidden(
                    format!("{at}.sizeLimit"),
                    "SizeLimit field must be a valid resource quantity",
                ));
            }
            let medium = val::text(source, "medium");
            if !(matches!(medium, "" | "Memory" | "HugePages") || medium.starts_with("HugePages-")) {
                errors.push(FieldError::not_supported(format!("{at}.medium"), medium, &["", "HugePages", "Memory"]));
            }
        }
        "projected" => projected(source, &at, errors),
        "image" => require("reference", errors),
        "nfs" => {
            require("server", errors);
            require("path", errors);
        }
        _ => {}
    }
    if let Some(mode) = val::int(source, "defaultMode") {
        file_mode(mode, &format!("{at}.defaultMode"), errors);
    }
    items(source, &at, kind == "downwardAPI", errors);
}

fn file_mode(mode: i64, at: &str, errors: &mut Vec<FieldError>) {
    if !(0..=MAX_MODE).contains(&mode) {
        errors.push(FieldError::invalid(at, mode, "must be a number between 0 and 0777 (octal), both inclusive"));
    }
}

fn no_backsteps(path: &str, at: &str, errors: &mut Vec<FieldError>) {
    if path.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(at, path, "must not contain '..'"));
    }
}

/// Checks a path that must stay inside its volume.
pub(super) fn local_path(path: &str, at: &str, errors: &mut Vec<FieldError>) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(at, path, "must be a relative path"));
    }
    no_backsteps(path, at, errors);
}

fn items(source: &Value, at: &str, downward: bool, errors: &mut Vec<FieldError>) {
    for (i, item) in val::list(source, "items").iter().enumerate() {
        let f = |name: &str| format!("{at}.items[{i}].{name}");
        if !downward && val::text(item, "key").is_empty() {
            errors.push(FieldError::required(f("key"), ""));
        }
        let path = val::text(item, "path");
        if path.is_empty() {
            errors.push(FieldError::required(f("path"), ""));
        } else {
            local_path(path, &f("path"), errors);
            if path.starts_with("..") && !path.starts_with("../") {
                errors.push(FieldError::invalid(f("path"), path, "must not start with '..'"));
            }
        }
        if let Some(mode) = val::int(item, "mode") {
            file_mode(mode, &f("mode"), errors);
        }
    }
}

fn projected(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (i, projection) in val::list(source, "sources").iter().enumerate() {
        let at = format!("{at}.sources[{i}]");
        let kinds: Vec<&String> = projection.as_object().into_iter().flatten().map(|(key, _)| key).collect();
        if kinds.len() > 1 {
            errors.push(FieldError::forbidden(at.as_str(), "may not specify more than 1 volume type"));
        }
        for kind in ["secret", "configMap"] {
            if let Some(inner) = projection.get(kind) {
                if val::text(inner, "name").is_empty() {
                    errors.push(FieldError::required(format!("{at}.{kind}.name"), ""));
                }
                items(inner, &format!("{at}.{kind}"), false, errors);
            }
        }
        if let Some(token) = projection.get("serviceAccountToken") {
            let seconds = val::int(token, "expirationSeconds").unwrap_or(0);
            if seconds < 600 {
                errors.push(FieldError::invalid(
                    format!("{at}.serviceAccountToken.expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                ));
            } else if seconds > 1 << 32 {
                errors.push(FieldError::invalid(
                    format!("{at}.serviceAccountToken.expirationSeconds"),
                    seconds,
                    "may not specify a duration larger than 2^32 seconds",
                ));
            }
            if val::text(token, "path").is_empty() {
                errors.push(FieldError::required(format!("{at}.serviceAccountToken.path"), ""));
            }
        }
        if let Some(downward) = projection.get("downwardAPI") {
            items(downward, &format!("{at}.downwardAPI"), true, errors);
        }
    }
}
