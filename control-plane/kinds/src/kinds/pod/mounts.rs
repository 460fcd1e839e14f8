//! Validation of what containers mount.
//!
//! Upstream counterpart: `ValidateVolumeMounts`, `ValidateVolumeDevices`. Some of its paths leave the index out.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::check;
use super::sources::Volumes;
use crate::error::FieldError;
use crate::val;

const PROPAGATIONS: &[&str] = &["Bidirectional", "HostToContainer", "None"];
const RECURSIONS: &[&str] = &["Disabled", "Enabled", "IfPossible"];

/// The names of a list with the path that goes with each; the last one of a name counts.
fn paths<'a>(c: &'a Value, list: &str, key: &str) -> HashMap<&'a str, &'a str> {
    val::list(c, list).iter().map(|v| (val::text(v, "name"), val::text(v, key))).collect()
}

/// Validates `volumeMounts` and `volumeDevices` of a container.
pub(super) fn validate(c: &Value, at: &str, volumes: &Volumes<'_>, errors: &mut Vec<FieldError>) {
    let devices = paths(c, "volumeDevices", "devicePath");
    let device_paths: HashSet<&str> = devices.values().copied().collect();
    let mut seen = HashSet::new();
    let list = format!("{at}.volumeMounts");
    for (i, mount) in val::list(c, "volumeMounts").iter().enumerate() {
        let f = |name: &str| format!("{list}[{i}].{name}");
        let name = val::text(mount, "name");
        check::required(name, &f("name"), errors);
        if !volumes.contains_key(name) {
            errors.push(FieldError::not_found(f("name"), name));
        }
        let path = val::text(mount, "mountPath");
        check::required(path, &f("mountPath"), errors);
        if !seen.insert(path) {
            errors.push(FieldError::invalid(f("mountPath"), path, "must be unique"));
        }
        if devices.contains_key(name) {
            errors.push(FieldError::invalid(f("name"), name, "must not already exist in volumeDevices"));
        }
        if device_paths.contains(path) {
            let message = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(f("mountPath"), path, message));
        }
        sub_paths(mount, &list, &f("subPathExpr"), errors);
        if let Some(propagation) = check::present(mount, "mountPropagation") {
            let at = format!("{list}.mountPropagation");
            check::supported(propagation, PROPAGATIONS, &at, errors);
            if propagation == "Bidirectional" && !val::flag(c, "securityContext.privileged") {
                let message = "Bidirectional mount propagation is available only to privileged containers";
                errors.push(FieldError::forbidden(at, message));
            }
        }
        recursion(mount, &format!("{list}.recursiveReadOnly"), errors);
    }
    self::devices(c, at, volumes, errors);
}

fn sub_paths(mount: &Value, list: &str, expression_at: &str, errors: &mut Vec<FieldError>) {
    let (path, expression) = (val::text(mount, "subPath"), val::text(mount, "subPathExpr"));
    check::local_path(path, &format!("{list}.subPath"), errors);
    if expression.is_empty() {
        return;
    }
    if !path.is_empty() {
        let message = "subPathExpr and subPath are mutually exclusive";
        errors.push(FieldError::invalid(expression_at, expression, message));
    }
    check::local_path(expression, &format!("{list}.subPathExpr"), errors);
}

fn recursion(mount: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(recursion) = check::present(mount, "recursiveReadOnly") else { return };
    check::supported(recursion, RECURSIONS, at, errors);
    if !matches!(recursion, "Enabled" | "IfPossible") {
        return;
    }
    if !val::flag(mount, "readOnly") {
        errors.push(FieldError::forbidden(at, "may only be specified when readOnly is true"));
    }
    if check::present(mount, "mountPropagation").is_some_and(|propagation| propagation != "None") {
        let message = "may only be specified when mountPropagation is None or not specified";
        errors.push(FieldError::forbidden(at, message));
    }
}

fn devices(c: &Value, at: &str, volumes: &Volumes<'_>, errors: &mut Vec<FieldError>) {
    let mounts = paths(c, "volumeMounts", "mountPath");
    let mount_paths: HashSet<&str> = mounts.values().copied().collect();
    let (mut names, mut device_paths) = (HashSet::new(), HashSet::new());
    for (i, device) in val::list(c, "volumeDevices").iter().enumerate() {
        let f = |name: &str| format!("{at}.volumeDevices[{i}].{name}");
        let (name, path) = (val::text(device, "name"), val::text(device, "devicePath"));
        check::required(name, &f("name"), errors);
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::invalid(f("name"), name, "must be unique"));
        }
        match volumes.get(name) {
            None => errors.push(FieldError::not_found(f("name"), name)),
            Some(kind) if !matches!(*kind, "persistentVolumeClaim" | "ephemeral") => {
                let message = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(f("name"), name, message));
            }
            Some(_) => {}
        }
        check::required(path, &f("devicePath"), errors);
        if device_paths.contains(path) {
            errors.push(FieldError::invalid(f("devicePath"), path, "must be unique"));
        }
        if check::has_backsteps(path) {
            errors.push(FieldError::invalid(f("devicePath"), path, "can not contain backsteps ('..')"));
        } else {
            device_paths.insert(path);
        }
        if mounts.contains_key(name) {
            errors.push(FieldError::invalid(f("name"), name, "must not already exist in volumeMounts"));
        }
        if mount_paths.contains(path) {
            let message = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(f("devicePath"), path, message));
        }
    }
}
