//! Persistent volumes, claims and the kinds of storage.k8s.io.
//!
//! Upstream counterparts: `pkg/apis/core/v1/defaults.go`, `pkg/apis/storage`, their registries.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use kube_common::quantity::Quantity;
use serde_json::{Value, json};

use super::{immutable, one_of, status};
use crate::error::FieldError;
use crate::strategy::{Part, Rules};
use crate::table::{AGE, CREATED_AT, Columns, NAME, age_of, name_of, text, text_or, wide};
use crate::{meta, names, val};

const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let modes = val::list(spec, "accessModes");
    let at = format!("{at}.accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(at.as_str(), "at least 1 access mode is required"));
    }
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        modes.iter().filter_map(Value::as_str).partition(|m| ACCESS_MODES.contains(m));
    errors.extend(unknown.into_iter().map(|mode| FieldError::not_supported(at.as_str(), mode, ACCESS_MODES)));
    if known.contains(&"ReadWriteOncePod") && known.iter().any(|mode| *mode != "ReadWriteOncePod") {
        errors.push(FieldError::forbidden(at, "may not use ReadWriteOncePod with other access modes"));
    }
}

/// Validates the spec of a claim, which may also stand in a pod's ephemeral volume.
pub(crate) fn claim_spec(spec: &Value, at: &str, errors: &mut Vec<FieldError>) {
    access_modes(spec, at, errors);
    errors.extend(meta::selector(val::at(spec, "selector"), &format!("{at}.selector")));
    let storage_at = format!("{at}.resources[storage]");
    match Quantity::parse(val::text(spec, "resources.requests.storage")) {
        Err(_) => errors.push(FieldError::required(storage_at, "")),
        Ok(amount) if amount <= Quantity::ZERO => {
            errors.push(FieldError::invalid(storage_at, amount.to_string(), "must be greater than zero"));
        }
        Ok(_) => {}
    }
    for key in ["storageClassName", "volumeAttributesClassName"] {
        let class = val::text(spec, key);
        if !class.is_empty() {
            let wrong = names::dns1123_subdomain(class).into_iter();
            errors.extend(wrong.map(|message| FieldError::invalid(format!("{at}.{key}"), class, message)));
        }
    }
    if let Some(mode) = val::at(spec, "volumeMode").and_then(Value::as_str)
        && !VOLUME_MODES.contains(&mode)
    {
        errors.push(FieldError::not_supported(format!("{at}.volumeMode"), mode, VOLUME_MODES));
    }
    for key in ["dataSource", "dataSourceRef"] {
        if let Some(source) = val::at(spec, key) {
            data_source(source, &format!("{at}.{key}"), errors);
        }
    }
    let (source, reference) = (val::at(spec, "dataSource"), val::at(spec, "dataSourceRef"));
    if let (Some(source), Some(reference)) = (source, reference) {
        let message = if !val::text(reference, "namespace").is_empty() {
            "may not be specified when dataSourceRef.namespace is specified"
        } else if ["apiGroup", "kind", "name"].iter().any(|key| val::text(source, key) != val::text(reference, key)) {
            "must match dataSourceRef"
        } else {
            return;
        };
        errors.push(FieldError::invalid(at, format!("{at}.dataSource"), message));
    }
}

/// Validates what a claim is filled from.
fn data_source(source: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut text = |key: &str, check: fn(&str) -> Vec<String>| {
        let value = val::text(source, key);
        if !value.is_empty() {
            let wrong = check(value).into_iter();
            errors.extend(wrong.map(|message| FieldError::invalid(format!("{at}.{key}"), value, message)));
        }
    };
    text("apiGroup", names::dns1123_subdomain);
    text("namespace", names::dns1123_label);
    for key in ["name", "kind"] {
        if val::text(source, key).is_empty() {
            errors.push(FieldError::required(format!("{at}.{key}"), ""));
        }
    }
    let kind = val::text(source, "kind");
    if val::text(source, "apiGroup").is_empty() && kind != "PersistentVolumeClaim" {
        let message = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(at, kind, message));
    }
}

/// Access modes in upstream's short form, in its order.
fn modes_text(obj: &Value, path: &str) -> String {
    let modes = val::list(obj, path);
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
        .iter()
        .filter(|(long, _)| modes.iter().any(|m| m == long))
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

fn phase(obj: &Value) -> &str {
    if val::at(obj, "metadata.deletionTimestamp").is_some() { "Terminating" } else { val::text(obj, "status.phase") }
}

static VOLUME_RULES: Rules = Rules {
    status: true,
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "persistentVolumeReclaimPolicy", "Retain");
        val::default(spec, "volumeMode", "Filesystem");
        if let Some(host) = val::child_mut(spec, "hostPath") {
            val::set_if_absent(host, "type", "");
        }
    },
    create: |obj| val::set(obj, "status", json!({"phase": "Pending"})),
    validate: |obj| {
        let mut errors = Vec::new();
        access_modes(obj.get("spec").unwrap_or(&json!({})), "spec", &mut errors);
        let capacity = val::map(obj, "spec.capacity");
        if capacity.is_none_or(serde_json::Map::is_empty) {
            errors.push(FieldError::required("spec.capacity", ""));
        } else if capacity.is_some_and(|c| !c.contains_key("storage")) {
            errors.push(FieldError::not_supported(
                "spec.capacity",
                val::at(obj, "spec.capacity").cloned().unwrap_or(Value::Null),
                &["storage"],
            ));
        }
        errors.extend(one_of(obj, "spec.persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"]));
        errors.extend(one_of(obj, "spec.volumeMode", VOLUME_MODES));
        errors
    },
    validate_update: |new, old, _| immutable(new, old, &["spec.volumeMode"]),
    ..Rules::PLAIN
};

static VOLUME_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Capacity"),
        text("Access Modes"),
        text("Reclaim Policy"),
        text("Status"),
        text("Claim"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        text("Reason"),
        AGE,
        wide("VolumeMode"),
    ],
    cells: |obj, now| {
        let claim = match val::at(obj, "spec.claimRef") {
            Some(claim) => format!("{}/{}", val::text(claim, "namespace"), val::text(claim, "name")),
            None => String::new(),
        };
        vec![
            name_of(obj),
            json!(val::text(obj, "spec.capacity.storage")),
            json!(modes_text(obj, "spec.accessModes")),
            json!(val::text(obj, "spec.persistentVolumeReclaimPolicy")),
            json!(phase(obj)),
            json!(claim),
            json!(val::text(obj, "spec.storageClassName")),
            text_or(obj, "spec.volumeAttributesClassName", "<unset>"),
            json!(val::text(obj, "status.reason")),
            age_of(obj, now),
            text_or(obj, "spec.volumeMode", "<unset>"),
        ]
    },
};

kind!(VOLUMES: "core" "" "v1" "PersistentVolume", "persistentvolumes" "persistentvolume", Cluster "/registry/persistentvolumes/",
    core::PersistentVolume, VOLUME_RULES, VOLUME_COLUMNS, short_names: &["pv"],
    subresources: &[status("", "v1", "PersistentVolume")]);

static CLAIM_RULES: Rules = Rules {
    status: true,
    defaults: |obj| val::default(val::child(obj, "spec"), "volumeMode", "Filesystem"),
    create: |obj| val::set(obj, "status", json!({"phase": "Pending"})),
    validate: |obj| {
        let mut errors = Vec::new();
        claim_spec(obj.get("spec").unwrap_or(&json!({})), "spec", &mut errors);
        errors
    },
    validate_update: claim_update,
    ..Rules::PLAIN
};

fn claim_update(new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
    if part != Part::Main {
        return Vec::new();
    }
    let fixed = |v: &Value| {
        let mut spec = v.get("spec").cloned().unwrap_or_else(|| json!({}));
        val::remove(val::child(&mut spec, "resources"), "requests");
        val::remove(&mut spec, "volumeAttributesClassName");
        // Binding fills the volume's name in.
        if val::text(old, "spec.volumeName").is_empty() {
            val::remove(&mut spec, "volumeName");
        }
        // The default class may be assigned once.
        if val::at(old, "spec.storageClassName").is_none() {
            val::remove(&mut spec, "storageClassName");
        }
        spec
    };
    if fixed(new) == fixed(old) {
        return Vec::new();
    }
    vec![FieldError::forbidden(
        "spec",
        "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
    )]
}

static CLAIM_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Status"),
        text("Volume"),
        text("Capacity"),
        text("Access Modes"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        AGE,
        wide("VolumeMode"),
    ],
    cells: |obj, now| {
        let bound = !val::text(obj, "spec.volumeName").is_empty();
        let (capacity, modes) = if bound {
            (val::text(obj, "status.capacity.storage"), modes_text(obj, "status.accessModes"))
        } else {
            ("", String::new())
        };
        vec![
            name_of(obj),
            json!(phase(obj)),
            json!(val::text(obj, "spec.volumeName")),
            json!(capacity),
            json!(modes),
            json!(val::text(obj, "spec.storageClassName")),
            text_or(obj, "spec.volumeAttributesClassName", "<unset>"),
            age_of(obj, now),
            text_or(obj, "spec.volumeMode", "<unset>"),
        ]
    },
};

kind!(CLAIMS: "core" "" "v1" "PersistentVolumeClaim", "persistentvolumeclaims" "persistentvolumeclaim", Namespaced
    "/registry/persistentvolumeclaims/", core::PersistentVolumeClaim, CLAIM_RULES, CLAIM_COLUMNS, short_names: &["pvc"],
    subresources: &[status("", "v1", "PersistentVolumeClaim")]);

static CLASS_RULES: Rules = Rules {
    defaults: |obj| {
        val::default(obj, "reclaimPolicy", "Delete");
        val::default(obj, "volumeBindingMode", "Immediate");
    },
    validate: |obj| {
        let mut errors = Vec::new();
        if val::text(obj, "provisioner").is_empty() {
            errors.push(FieldError::required("provisioner", ""));
        }
        errors.extend(one_of(obj, "reclaimPolicy", &["Delete", "Retain"]));
        errors.extend(one_of(obj, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]));
        errors
    },
    validate_update: |new, old, _| {
        ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"]
            .iter()
            .filter(|key| !val::same(new.get(**key), old.get(**key)))
            .map(|key| FieldError::forbidden(*key, format!("updates to {key} are forbidden.")))
            .collect()
    },
    ..Rules::PLAIN
};

/// Annotations that make a class the default one.
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

static CLASS_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("Provisioner"),
        text("ReclaimPolicy"),
        text("VolumeBindingMode"),
        text("AllowVolumeExpansion"),
        AGE,
    ],
    cells: |obj, now| {
        let annotations = val::map(obj, "metadata.annotations");
        let is_default =
            DEFAULT_CLASS.iter().any(|key| annotations.and_then(|a| a.get(*key)).is_some_and(|v| v == "true"));
        let name = val::text(obj, "metadata.name");
        vec![
            json!(if is_default { format!("{name} (default)") } else { name.to_owned() }),
            json!(val::text(obj, "provisioner")),
            text_or(obj, "reclaimPolicy", "Delete"),
            text_or(obj, "volumeBindingMode", "<unset>"),
            json!(val::flag(obj, "allowVolumeExpansion")),
            age_of(obj, now),
        ]
    },
};

kind!(STORAGE_CLASSES: "storage" "storage.k8s.io" "v1" "StorageClass", "storageclasses" "storageclass", Cluster
    "/registry/storageclasses/", storage::StorageClass, CLASS_RULES, CLASS_COLUMNS, short_names: &["sc"]);

static DRIVER_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        for (key, value) in [
            ("attachRequired", true),
            ("podInfoOnMount", false),
            ("storageCapacity", false),
            ("requiresRepublish", false),
            ("seLinuxMount", false),
        ] {
            val::default(spec, key, value);
        }
        val::default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if val::list(spec, "volumeLifecycleModes").is_empty() {
            val::set(spec, "volumeLifecycleModes", json!(["Persistent"]));
        }
    },
    ..Rules::PLAIN
};

static DRIVER_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        text("AttachRequired"),
        text("PodInfoOnMount"),
        text("StorageCapacity"),
        text("TokenRequests"),
        text("RequiresRepublish"),
        text("Modes"),
        AGE,
    ],
    cells: |obj, now| {
        let join = |path: &str, key: Option<&str>| {
            let parts: Vec<&str> = val::list(obj, path)
                .iter()
                .filter_map(|v| key.map_or_else(|| v.as_str(), |k| Some(val::text(v, k))))
                .collect();
            json!(if parts.is_empty() { "<unset>".to_owned() } else { parts.join(",") })
        };
        let flag = |key: &str| json!(val::flag(obj, &format!("spec.{key}")));
        vec![
            name_of(obj),
            flag("attachRequired"),
            flag("podInfoOnMount"),
            flag("storageCapacity"),
            join("spec.tokenRequests", Some("audience")),
            flag("requiresRepublish"),
            join("spec.volumeLifecycleModes", None),
            age_of(obj, now),
        ]
    },
};

kind!(CSI_DRIVERS: "storage" "storage.k8s.io" "v1" "CSIDriver", "csidrivers" "csidriver", Cluster "/registry/csidrivers/",
    storage::CSIDriver, DRIVER_RULES, DRIVER_COLUMNS);

static PLAIN_RULES: Rules = Rules::PLAIN;

static CSI_NODE_COLUMNS: Columns = Columns {
    columns: &[NAME, crate::table::number("Drivers"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::list(obj, "spec.drivers").len()), age_of(obj, now)],
};

kind!(CSI_NODES: "storage" "storage.k8s.io" "v1" "CSINode", "csinodes" "csinode", Cluster "/registry/csinodes/", storage::CSINode,
    PLAIN_RULES, CSI_NODE_COLUMNS);

kind!(CSI_CAPACITIES: "storage" "storage.k8s.io" "v1" "CSIStorageCapacity", "csistoragecapacities" "csistoragecapacity", Namespaced
    "/registry/csistoragecapacities/", storage::CSIStorageCapacity, PLAIN_RULES, CREATED_AT);

/// `attached` is no pointer in upstream's type, so it is always told.
fn attached(obj: &mut Value) {
    val::set_if_absent(val::child(obj, "status"), "attached", false);
}

static ATTACHMENT_RULES: Rules = Rules {
    status: true,
    defaults: attached,
    // After what a client sent as status has been dropped.
    create: attached,
    validate_update: |new, old, _| immutable(new, old, &["spec"]),
    ..Rules::PLAIN
};

static ATTACHMENT_COLUMNS: Columns = Columns {
    columns: &[NAME, wide("Attacher"), wide("PV"), wide("Node"), wide("Attached"), AGE],
    cells: |obj, now| {
        vec![
            name_of(obj),
            json!(val::text(obj, "spec.attacher")),
            json!(val::text(obj, "spec.source.persistentVolumeName")),
            json!(val::text(obj, "spec.nodeName")),
            json!(val::flag(obj, "status.attached")),
            age_of(obj, now),
        ]
    },
};

kind!(ATTACHMENTS: "storage" "storage.k8s.io" "v1" "VolumeAttachment", "volumeattachments" "volumeattachment", Cluster
    "/registry/volumeattachments/", storage::VolumeAttachment, ATTACHMENT_RULES, ATTACHMENT_COLUMNS,
    subresources: &[status("storage.k8s.io", "v1", "VolumeAttachment")]);

static ATTRIBUTES_RULES: Rules = Rules {
    validate: |obj| {
        if val::text(obj, "driverName").is_empty() { vec![FieldError::required("driverName", "")] } else { Vec::new() }
    },
    validate_update: |new, old, _| immutable(new, old, &["driverName", "parameters"]),
    ..Rules::PLAIN
};

static ATTRIBUTES_COLUMNS: Columns = Columns {
    columns: &[NAME, text("DriverName"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::text(obj, "driverName")), age_of(obj, now)],
};

kind!(ATTRIBUTES_CLASSES: "storage" "storage.k8s.io" "v1" "VolumeAttributesClass", "volumeattributesclasses"
    "volumeattributesclass", Cluster "/registry/volumeattributesclasses/", storage::VolumeAttributesClass, ATTRIBUTES_RULES,
    ATTRIBUTES_COLUMNS, short_names: &["vac"]);
