//! Validation of a pod's volumes.
//!
//! Upstream counterpart: `ValidateVolumes`.

use std::collections::{HashMap, HashSet};

use kube_common::quantity::Quantity;
use serde_json::Value;

use super::{check, projected, remote};
use crate::error::FieldError;
use crate::kinds::volume;
use crate::{meta, names, val};

/// The good volumes of a pod: the kind of each by its name.
pub(super) type Volumes<'a> = HashMap<&'a str, &'a str>;

/// The kinds of volumes in the order in which upstream looks at them: the first one counts.
const KINDS: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];
const HOST_PATHS: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
/// Longest `<volume name>:<portal>` that an iSCSI initiator of its own name leaves room for.
const MAX_INITIATOR: usize = 64;
const MAX_DRIVER: usize = 63;

/// Validates `spec.volumes` of a pod with this name (if it has one) and returns the volumes that are good.
pub(super) fn validate<'a>(spec: &'a Value, pod: Option<&str>, at: &str, errors: &mut Vec<FieldError>) -> Volumes<'a> {
    let mut good = Volumes::new();
    let volumes = val::list(spec, "volumes");
    // Claims that will be made for this pod.
    let made: HashSet<String> = volumes
        .iter()
        .filter(|volume| val::at(volume, "ephemeral").is_some())
        .filter_map(|volume| Some(format!("{}-{}", pod?, val::text(volume, "name"))))
        .collect();
    for (i, volume) in volumes.iter().enumerate() {
        let at = format!("{at}.volumes[{i}]");
        let name = val::text(volume, "name");
        let before = errors.len();
        let kind = source(volume, name, pod, &at, errors);
        check::required_text(name, &format!("{at}.name"), names::dns1123_label, errors);
        if good.contains_key(name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        if errors.len() == before {
            good.insert(name, kind);
        }
        let claim = val::text(volume, "persistentVolumeClaim.claimName");
        if made.contains(claim) {
            let message = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(FieldError::invalid(format!("{at}.persistentVolumeClaim.claimName"), claim, message));
        }
    }
    good
}

/// Validates what a volume is made of; returns its kind.
fn source(volume: &Value, name: &str, pod: Option<&str>, at: &str, errors: &mut Vec<FieldError>) -> &'static str {
    let mut found = "";
    for kind in KINDS {
        let Some(source) = val::at(volume, kind) else { continue };
        if !found.is_empty() {
            // Upstream's names of two of them.
            let shown = match *kind {
                "cephfs" => "cephFS",
                "downwardAPI" => "downwarAPI",
                kind => kind,
            };
            errors.push(FieldError::forbidden(format!("{at}.{shown}"), check::MORE_THAN_ONE_VOLUME));
            continue;
        }
        found = kind;
        let shown = if *kind == "gcePersistentDisk" { "persistentDisk" } else { kind };
        one(kind, source, &format!("{at}.{shown}"), errors);
        if *kind == "ephemeral"
            && let Some(pod) = pod
            && !name.is_empty()
        {
            let claim = format!("{pod}-{name}");
            for message in names::dns1123_subdomain(&claim) {
                let message = format!("PVC name {}: {message}", crate::error::go_quote(&claim));
                errors.push(FieldError::invalid(format!("{at}.name"), name, message));
            }
        }
    }
    let portal = val::text(volume, "iscsi.targetPortal");
    if check::present(volume, "iscsi.initiatorName").is_some() && name.len() + 1 + portal.len() > MAX_INITIATOR {
        let message = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                       iscsi.initiatorName is specified.";
        errors.push(FieldError::invalid(format!("{at}.name"), name, message));
    }
    if found.is_empty() {
        errors.push(FieldError::required(at, "must specify a volume type"));
    }
    found
}

fn one(kind: &str, source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let f = |name: &str| format!("{at}.{name}");
    match kind {
        "emptyDir" => {
            let limit = Quantity::parse(val::text(source, "sizeLimit"));
            if limit.is_ok_and(|limit| limit.is_negative()) {
                let message = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(f("sizeLimit"), message));
            }
        }
        "hostPath" => {
            let path = val::text(source, "path");
            if path.is_empty() {
                errors.push(FieldError::required(f("path"), ""));
                return;
            }
            check::no_backsteps(path, &f("path"), errors);
            check::supported(val::text(source, "type"), HOST_PATHS, &f("type"), errors);
        }
        "secret" | "configMap" => {
            let key = if kind == "secret" { "secretName" } else { "name" };
            check::required(val::text(source, key), &f(key), errors);
            check::mode(source, "defaultMode", at, errors);
            projected::items(source, at, errors);
        }
        "persistentVolumeClaim" => check::required(val::text(source, "claimName"), &f("claimName"), errors),
        "downwardAPI" => {
            check::mode(source, "defaultMode", at, errors);
            for file in val::list(source, "items") {
                projected::downward(file, at, errors);
            }
        }
        "projected" => projected::validate(source, at, errors),
        "csi" => csi(source, at, errors),
        "ephemeral" => match val::at(source, "volumeClaimTemplate") {
            None => errors.push(FieldError::required(f("volumeClaimTemplate"), "")),
            Some(template) => claim_template(template, &f("volumeClaimTemplate"), errors),
        },
        "image" => {
            check::required(val::text(source, "reference"), &f("reference"), errors);
            let policy = val::text(source, "pullPolicy");
            check::one_of(policy, super::container::PULL_POLICIES, &f("pullPolicy"), errors);
        }
        _ => remote::validate(kind, source, at, errors),
    }
}

fn csi(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let driver = val::text(source, "driver");
    let driver_at = format!("{at}.driver");
    check::required(driver, &driver_at, errors);
    if driver.len() > MAX_DRIVER {
        errors.push(FieldError::too_long(driver_at.as_str(), MAX_DRIVER));
    }
    let wrong = names::dns1123_subdomain(&driver.to_lowercase()).into_iter();
    errors.extend(wrong.map(|message| FieldError::invalid(driver_at.as_str(), driver, message)));
    if let Some(secret) = val::at(source, "nodePublishSecretRef") {
        let name = val::text(secret, "name");
        check::required(name, &format!("{at}.nodePublishSecretRef.name"), errors);
        check::optional(name, &format!("{at}.name"), names::dns1123_subdomain, errors);
    }
}

/// Validates the claim that is made for an ephemeral volume: it has labels and annotations, and nothing else of metadata.
fn claim_template(template: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(metadata) = val::at(template, "metadata") {
        errors.extend(meta::annotations_at(val::map(metadata, "annotations"), &format!("{at}.metadata.annotations")));
        errors.extend(meta::labels_at(val::map(metadata, "labels"), &format!("{at}.metadata.labels")));
        for (key, value) in metadata.as_object().into_iter().flatten() {
            let is_set = !val::same(Some(value), None);
            if is_set && key != "annotations" && key != "labels" {
                errors.push(FieldError::forbidden(format!("{at}.metadata.{key}"), "cannot be set"));
            }
        }
    }
    let empty = serde_json::json!({});
    volume::claim_spec(template.get("spec").unwrap_or(&empty), &format!("{at}.spec"), errors);
}
