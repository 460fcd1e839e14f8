//! Deployments, replica sets, daemon sets, stateful sets, replication controllers, controller revisions.
//!
//! Upstream counterparts: `pkg/apis/apps/v1/defaults.go`, `pkg/apis/apps/validation`, the registries of apps.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::pod::{images_and_names, validate_template};
use super::{SCALE, immutable, not_negative, status, template};
use crate::error::FieldError;
use crate::strategy::{Part, Rules};
use crate::table::{
    AGE, CONTAINERS, Columns, IMAGES, NAME, SELECTOR, age_of, labels_text, name_of, number, selector_text, text,
};
use crate::{meta, val};

/// Checks selector and template; `what` is the kind's name in messages.
fn selector_and_template(obj: &Value, what: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let selector = val::at(obj, "spec.selector");
    match selector {
        None => errors.push(FieldError::required("spec.selector", "")),
        Some(selector) => {
            errors.extend(meta::selector(Some(selector), "spec.selector"));
            let empty = val::map(selector, "matchLabels").is_none_or(serde_json::Map::is_empty)
                && val::list(selector, "matchExpressions").is_empty();
            let labels = val::map(obj, "spec.template.metadata.labels");
            if empty {
                let detail = format!("empty selector is invalid for {what}");
                errors.push(FieldError::invalid("spec.selector", selector.clone(), detail));
            } else if !meta::selects(selector, labels) {
                let shown = labels.cloned().map_or(Value::Null, Value::Object);
                errors.push(FieldError::invalid(
                    "spec.template.metadata.labels",
                    shown,
                    "`selector` does not match template `labels`",
                ));
            }
        }
    }
    errors.extend(template_always(obj));
    errors
}

fn template_always(obj: &Value) -> Vec<FieldError> {
    let Some(template) = val::at(obj, "spec.template") else {
        return vec![FieldError::required("spec.template", "")];
    };
    let mut errors = validate_template(template, "spec.template");
    let policy = val::text(template, "spec.restartPolicy");
    if !policy.is_empty() && policy != "Always" {
        errors.push(FieldError::not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    if val::at(template, "spec.activeDeadlineSeconds").is_some() {
        errors.push(FieldError::forbidden(
            "spec.template.spec.activeDeadlineSeconds",
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        ));
    }
    errors
}

/// The selector may not change.
fn selector_is_fixed(new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
    if part == Part::Main { immutable(new, old, &["spec.selector"]) } else { Vec::new() }
}

/// A count or percentage, and whether it is zero.
fn int_or_percent(obj: &Value, path: &str, errors: &mut Vec<FieldError>) -> Option<bool> {
    let value = val::at(obj, path)?;
    if let Some(n) = value.as_i64() {
        if n < 0 {
            errors.push(FieldError::invalid(path, n, "must be greater than or equal to 0"));
        }
        return Some(n == 0);
    }
    let percent = value.as_str()?;
    let digits = percent.strip_suffix('%').filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
    let Some(digits) = digits else {
        errors.push(FieldError::invalid(
            path,
            percent,
            "a valid percent string must be a numeric followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation \
             is '[0-9]+%')",
        ));
        return None;
    };
    if path.ends_with("maxUnavailable") && digits.parse::<u64>().is_ok_and(|n| n > 100) {
        errors.push(FieldError::invalid(path, percent, "must not be greater than 100%"));
    }
    Some(digits.bytes().all(|b| b == b'0'))
}

static DEPLOYMENT_RULES: Rules = Rules {
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "replicas", 1);
        val::default(spec, "revisionHistoryLimit", 10);
        val::default(spec, "progressDeadlineSeconds", 600);
        let strategy = val::child(spec, "strategy");
        val::default(strategy, "type", "RollingUpdate");
        if val::text(strategy, "type") == "RollingUpdate" {
            let rolling = val::child(strategy, "rollingUpdate");
            val::default(rolling, "maxUnavailable", "25%");
            val::default(rolling, "maxSurge", "25%");
        }
        template::template(spec);
    },
    validate: validate_deployment,
    validate_update: selector_is_fixed,
    ..Rules::SPEC
};

fn validate_deployment(obj: &Value) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = ["spec.replicas", "spec.minReadySeconds", "spec.revisionHistoryLimit"]
        .iter()
        .filter_map(|p| not_negative(obj, p))
        .collect();
    errors.extend(selector_and_template(obj, "deployment"));
    let kind = val::text(obj, "spec.strategy.type");
    let at = "spec.strategy.rollingUpdate";
    match kind {
        "Recreate" if val::at(obj, at).is_some() => {
            errors.push(FieldError::forbidden(at, "may not be specified when strategy `type` is 'Recreate'"));
        }
        "RollingUpdate" => {
            let unavailable = int_or_percent(obj, &format!("{at}.maxUnavailable"), &mut errors);
            let surge = int_or_percent(obj, &format!("{at}.maxSurge"), &mut errors);
            if unavailable == Some(true) && surge == Some(true) {
                let path = format!("{at}.maxUnavailable");
                let shown = val::at(obj, &path).cloned().unwrap_or(Value::Null);
                errors.push(FieldError::invalid(path, shown, "may not be 0 when `maxSurge` is 0"));
            }
        }
        "Recreate" => {}
        "" => errors.push(FieldError::required("spec.strategy", "")),
        other => errors.push(FieldError::not_supported("spec.strategy", other, &["Recreate", "RollingUpdate"])),
    }
    if let Some(deadline) = val::int(obj, "spec.progressDeadlineSeconds") {
        errors.extend(not_negative(obj, "spec.progressDeadlineSeconds"));
        if deadline <= val::int(obj, "spec.minReadySeconds").unwrap_or(0) {
            errors.push(FieldError::invalid(
                "spec.progressDeadlineSeconds",
                deadline,
                "must be greater than minReadySeconds",
            ));
        }
    }
    errors
}

fn count(obj: &Value, path: &str) -> i64 {
    val::int(obj, path).unwrap_or(0)
}

/// The three wide cells of a workload.
fn template_cells(obj: &Value) -> [Value; 3] {
    let (names, images) = images_and_names(val::at(obj, "spec.template.spec").unwrap_or(&Value::Null));
    [json!(names), json!(images), json!(selector_text(val::at(obj, "spec.selector")))]
}

static DEPLOYMENT_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Ready"), number("Up-to-date"), number("Available"), AGE, CONTAINERS, IMAGES, SELECTOR],
    cells: |obj, now| {
        let [names, images, selector] = template_cells(obj);
        vec![
            name_of(obj),
            json!(format!("{}/{}", count(obj, "status.readyReplicas"), count(obj, "spec.replicas"))),
            json!(count(obj, "status.updatedReplicas")),
            json!(count(obj, "status.availableReplicas")),
            age_of(obj, now),
            names,
            images,
            selector,
        ]
    },
};

kind!(DEPLOYMENTS: "apps" "apps" "v1" "Deployment", "deployments" "deployment", Namespaced "/registry/deployments/", apps::Deployment,
    DEPLOYMENT_RULES, DEPLOYMENT_COLUMNS, short_names: &["deploy"], categories: &["all"],
    subresources: &[SCALE, status("apps", "v1", "Deployment")]);

static REPLICA_SET_RULES: Rules = Rules {
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "replicas", 1);
        template::template(spec);
    },
    create: |obj| val::set(obj, "status", json!({"replicas": 0})),
    validate: |obj| {
        let mut errors: Vec<FieldError> =
            ["spec.replicas", "spec.minReadySeconds"].iter().filter_map(|p| not_negative(obj, p)).collect();
        errors.extend(selector_and_template(obj, "replicaset"));
        errors
    },
    validate_update: selector_is_fixed,
    selectable: &["status.replicas"],
    selectable_values: Some(|obj| vec![("status.replicas", count(obj, "status.replicas").to_string())]),
    ..Rules::SPEC
};

static REPLICA_SET_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Desired"), number("Current"), number("Ready"), AGE, CONTAINERS, IMAGES, SELECTOR],
    cells: |obj, now| {
        let [names, images, selector] = template_cells(obj);
        vec![
            name_of(obj),
            json!(count(obj, "spec.replicas")),
            json!(count(obj, "status.replicas")),
            json!(count(obj, "status.readyReplicas")),
            age_of(obj, now),
            names,
            images,
            selector,
        ]
    },
};

kind!(REPLICA_SETS: "apps" "apps" "v1" "ReplicaSet", "replicasets" "replicaset", Namespaced "/registry/replicasets/",
    apps::ReplicaSet, REPLICA_SET_RULES, REPLICA_SET_COLUMNS, short_names: &["rs"], categories: &["all"],
    subresources: &[SCALE, status("apps", "v1", "ReplicaSet")]);

static CONTROLLER_RULES: Rules = Rules {
    defaults: |obj| {
        let labels = val::at(obj, "spec.template.metadata.labels").cloned();
        if let Some(labels) = labels {
            if val::map(obj, "spec.selector").is_none_or(serde_json::Map::is_empty) {
                val::set(val::child(obj, "spec"), "selector", labels.clone());
            }
            if val::map(obj, "metadata.labels").is_none_or(serde_json::Map::is_empty) {
                val::set(val::child(obj, "metadata"), "labels", labels);
            }
        }
        let spec = val::child(obj, "spec");
        val::default(spec, "replicas", 1);
        template::template(spec);
    },
    create: |obj| val::set(obj, "status", json!({"replicas": 0})),
    validate: |obj| {
        let mut errors: Vec<FieldError> =
            ["spec.replicas", "spec.minReadySeconds"].iter().filter_map(|p| not_negative(obj, p)).collect();
        let selector = json!({"matchLabels": val::at(obj, "spec.selector")});
        if val::map(obj, "spec.selector").is_none_or(serde_json::Map::is_empty) {
            errors.push(FieldError::required("spec.selector", ""));
        } else if !meta::selects(&selector, val::map(obj, "spec.template.metadata.labels")) {
            errors.push(FieldError::invalid(
                "spec.template.metadata.labels",
                val::at(obj, "spec.template.metadata.labels").cloned().unwrap_or(Value::Null),
                "`selector` does not match template `labels`",
            ));
        }
        errors.extend(template_always(obj));
        errors
    },
    selectable: &["status.replicas"],
    selectable_values: Some(|obj| vec![("status.replicas", count(obj, "status.replicas").to_string())]),
    ..Rules::SPEC
};

static CONTROLLER_COLUMNS: Columns = Columns {
    columns: REPLICA_SET_COLUMNS.columns,
    cells: |obj, now| {
        let mut cells = (REPLICA_SET_COLUMNS.cells)(obj, now);
        if let Some(last) = cells.last_mut() {
            *last = json!(labels_text(val::map(obj, "spec.selector")));
        }
        cells
    },
};

kind!(REPLICATION_CONTROLLERS: "core" "" "v1" "ReplicationController", "replicationcontrollers" "replicationcontroller", Namespaced
    "/registry/controllers/", core::ReplicationController, CONTROLLER_RULES, CONTROLLER_COLUMNS, short_names: &["rc"],
    categories: &["all"], subresources: &[SCALE, status("", "v1", "ReplicationController")]);

/// Counts changes of a daemon set's template, for clients of the days before revisions.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(set: &Value) -> i64 {
    let annotations = val::at(set, "metadata.annotations");
    let text = annotations.and_then(|a| a.get(TEMPLATE_GENERATION)).and_then(Value::as_str);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(set: &mut Value, generation: i64) {
    let annotations = val::child(val::child(set, "metadata"), "annotations");
    val::set(annotations, TEMPLATE_GENERATION, generation.to_string());
}

static DAEMON_SET_RULES: Rules = Rules {
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "revisionHistoryLimit", 10);
        let strategy = val::child(spec, "updateStrategy");
        val::default(strategy, "type", "RollingUpdate");
        if val::text(strategy, "type") == "RollingUpdate" {
            let rolling = val::child(strategy, "rollingUpdate");
            val::default(rolling, "maxUnavailable", 1);
            val::default(rolling, "maxSurge", 0);
        }
        template::template(spec);
    },
    create: |obj| {
        let zero = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0});
        val::set(obj, "status", zero);
        let generation = template_generation(obj).max(1);
        set_template_generation(obj, generation);
    },
    update: |new, old, _| {
        let changed = !val::same(val::at(new, "spec.template"), val::at(old, "spec.template"));
        set_template_generation(new, template_generation(old) + i64::from(changed));
    },
    validate: |obj| {
        let mut errors: Vec<FieldError> =
            ["spec.minReadySeconds", "spec.revisionHistoryLimit"].iter().filter_map(|p| not_negative(obj, p)).collect();
        errors.extend(selector_and_template(obj, "daemonset"));
        errors.extend(super::one_of(obj, "spec.updateStrategy.type", &["OnDelete", "RollingUpdate"]));
        if val::text(obj, "spec.updateStrategy.type") == "RollingUpdate" {
            let at = "spec.updateStrategy.rollingUpdate";
            let unavailable = int_or_percent(obj, &format!("{at}.maxUnavailable"), &mut errors);
            let surge = int_or_percent(obj, &format!("{at}.maxSurge"), &mut errors);
            match (unavailable, surge) {
                (Some(true), Some(true)) => {
                    errors.push(FieldError::required(format!("{at}.maxUnavailable"), "cannot be 0 when maxSurge is 0"));
                }
                (Some(false), Some(false)) => {
                    let path = format!("{at}.maxSurge");
                    let shown = val::at(obj, &path).cloned().unwrap_or(Value::Null);
                    errors.push(FieldError::invalid(path, shown, "may not be set when maxUnavailable is non-zero"));
                }
                _ => {}
            }
        }
        errors
    },
    validate_update: selector_is_fixed,
    ..Rules::SPEC
};

static DAEMON_SET_COLUMNS: Columns = Columns {
    columns: &[
        NAME,
        number("Desired"),
        number("Current"),
        number("Ready"),
        number("Up-to-date"),
        number("Available"),
        text("Node Selector"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |obj, now| {
        let [names, images, selector] = template_cells(obj);
        vec![
            name_of(obj),
            json!(count(obj, "status.desiredNumberScheduled")),
            json!(count(obj, "status.currentNumberScheduled")),
            json!(count(obj, "status.numberReady")),
            json!(count(obj, "status.updatedNumberScheduled")),
            json!(count(obj, "status.numberAvailable")),
            json!(labels_text(val::map(obj, "spec.template.spec.nodeSelector"))),
            age_of(obj, now),
            names,
            images,
            selector,
        ]
    },
};

kind!(DAEMON_SETS: "apps" "apps" "v1" "DaemonSet", "daemonsets" "daemonset", Namespaced "/registry/daemonsets/", apps::DaemonSet,
    DAEMON_SET_RULES, DAEMON_SET_COLUMNS, short_names: &["ds"], categories: &["all"],
    subresources: &[status("apps", "v1", "DaemonSet")]);

static STATEFUL_SET_RULES: Rules = Rules {
    defaults: |obj| {
        let spec = val::child(obj, "spec");
        val::default(spec, "replicas", 1);
        val::default(spec, "revisionHistoryLimit", 10);
        val::default(spec, "podManagementPolicy", "OrderedReady");
        let strategy = val::child(spec, "updateStrategy");
        val::default(strategy, "type", "RollingUpdate");
        if val::text(strategy, "type") == "RollingUpdate" {
            val::default(val::child(strategy, "rollingUpdate"), "partition", 0);
        }
        let retention = val::child(spec, "persistentVolumeClaimRetentionPolicy");
        val::default(retention, "whenDeleted", "Retain");
        val::default(retention, "whenScaled", "Retain");
        for claim in val::list_mut(spec, "volumeClaimTemplates") {
            val::set(claim, "apiVersion", "v1");
            val::set(claim, "kind", "PersistentVolumeClaim");
            val::default(val::child(claim, "spec"), "volumeMode", "Filesystem");
            val::default(val::child(claim, "status"), "phase", "Pending");
        }
        template::template(spec);
    },
    create: |obj| val::set(obj, "status", json!({"replicas": 0, "availableReplicas": 0})),
    validate: |obj| {
        let mut errors: Vec<FieldError> =
            ["spec.replicas", "spec.minReadySeconds", "spec.revisionHistoryLimit", "spec.ordinals.start"]
                .iter()
                .filter_map(|p| not_negative(obj, p))
                .collect();
        errors.extend(selector_and_template(obj, "statefulset"));
        errors.extend(super::one_of(obj, "spec.updateStrategy.type", &["OnDelete", "RollingUpdate"]));
        let policy = val::text(obj, "spec.podManagementPolicy");
        if !matches!(policy, "OrderedReady" | "Parallel") {
            errors.push(FieldError::invalid(
                "spec.podManagementPolicy",
                policy,
                "must be 'OrderedReady' or 'Parallel'",
            ));
        }
        errors
    },
    validate_update: stateful_set_update,
    ..Rules::SPEC
};

/// Fields of a stateful set's spec that an update may change.
const STATEFUL_SET_MUTABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn stateful_set_update(new: &Value, old: &Value, part: Part) -> Vec<FieldError> {
    let fixed = |v: &Value| {
        let mut spec = v.get("spec").cloned().unwrap_or_else(|| json!({}));
        for key in STATEFUL_SET_MUTABLE {
            val::remove(&mut spec, key);
        }
        spec
    };
    if part != Part::Main || fixed(new) == fixed(old) {
        return Vec::new();
    }
    vec![FieldError::forbidden(
        "spec",
        "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
         'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
    )]
}

static STATEFUL_SET_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Ready"), AGE, CONTAINERS, IMAGES],
    cells: |obj, now| {
        let [names, images, _] = template_cells(obj);
        let ready = format!("{}/{}", count(obj, "status.readyReplicas"), count(obj, "spec.replicas"));
        vec![name_of(obj), json!(ready), age_of(obj, now), names, images]
    },
};

kind!(STATEFUL_SETS: "apps" "apps" "v1" "StatefulSet", "statefulsets" "statefulset", Namespaced "/registry/statefulsets/",
    apps::StatefulSet, STATEFUL_SET_RULES, STATEFUL_SET_COLUMNS, short_names: &["sts"], categories: &["all"],
    subresources: &[SCALE, status("apps", "v1", "StatefulSet")]);

static REVISION_RULES: Rules = Rules {
    validate: |obj| not_negative(obj, "revision").into_iter().collect(),
    validate_update: |new, old, _| {
        if val::same(new.get("data"), old.get("data")) {
            Vec::new()
        } else {
            vec![FieldError::invalid("data", Value::Null, "field is immutable")]
        }
    },
    ..Rules::PLAIN
};

static REVISION_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Controller"), number("Revision"), AGE],
    cells: |obj, now| {
        let owner = val::list(obj, "metadata.ownerReferences").iter().find(|o| val::flag(o, "controller"));
        let controller = owner.map_or_else(
            || "<none>".to_owned(),
            |o| {
                let group = val::text(o, "apiVersion").split_once('/').map_or("", |(group, _)| group);
                let kind = val::text(o, "kind").to_lowercase();
                let dot = if group.is_empty() { "" } else { "." };
                format!("{kind}{dot}{group}/{}", val::text(o, "name"))
            },
        );
        vec![name_of(obj), json!(controller), json!(count(obj, "revision")), age_of(obj, now)]
    },
};

kind!(REVISIONS: "apps" "apps" "v1" "ControllerRevision", "controllerrevisions" "controllerrevision", Namespaced
    "/registry/controllerrevisions/", apps::ControllerRevision, REVISION_RULES, REVISION_COLUMNS);

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        let mut obj = json!({"metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        }});
        DEPLOYMENTS.strategy.set_defaults(&mut obj);
        obj
    }

    #[test]
    fn deployment_defaults() {
        let obj = deployment();
        assert_eq!(obj["spec"]["replicas"], 1);
        assert_eq!(
            obj["spec"]["strategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
        );
        assert_eq!(obj["spec"]["template"]["spec"]["restartPolicy"], "Always");
        assert!(obj["spec"]["template"]["spec"].get("enableServiceLinks").is_none());
        assert!(validate_deployment(&obj).is_empty(), "{:?}", validate_deployment(&obj));
    }

    #[test]
    fn deployment_mistakes() {
        let mut obj = deployment();
        obj["spec"]["selector"]["matchLabels"]["app"] = json!("y");
        obj["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
        obj["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 0, "maxUnavailable": "0%"});
        obj["spec"]["replicas"] = json!(-1);
        let texts: Vec<String> = validate_deployment(&obj).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
            ]
        );
    }

    #[test]
    fn a_daemon_set_counts_changes_of_its_template() {
        let mut old = json!({"metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": []}}}});
        DAEMON_SETS.strategy.prepare_create(&mut old);
        assert_eq!(old["metadata"]["annotations"][TEMPLATE_GENERATION], "1");
        let mut new = old.clone();
        new["metadata"]["annotations"] = json!({"mine": "x"});
        DAEMON_SETS.strategy.prepare_update(&mut new, &old, Part::Main);
        assert_eq!(new["metadata"]["annotations"], json!({"mine": "x", TEMPLATE_GENERATION: "1"}));
        new["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
        DAEMON_SETS.strategy.prepare_update(&mut new, &old, Part::Main);
        assert_eq!(new["metadata"]["annotations"][TEMPLATE_GENERATION], "2");
    }

    #[test]
    fn selectors_do_not_change() {
        let old = deployment();
        let mut new = old.clone();
        new["spec"]["selector"]["matchLabels"] = json!({"app": "z"});
        let errors = selector_is_fixed(&new, &old, Part::Main);
        assert_eq!(
            errors[0].to_string(),
            "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"z\"}}: field is immutable"
        );
    }
}
