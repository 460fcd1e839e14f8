//! Pods and pod templates.
//!
//! Upstream counterparts: `pkg/registry/core/pod`, `pkg/apis/core/validation`, `printPod`.

mod annotations;
mod check;
mod columns;
mod container;
mod env;
mod ephemeral;
mod mounts;
mod probe;
mod projected;
mod qos;
mod remote;
mod resources;
mod scheduling;
mod security;
mod sources;
mod spec;
mod update;
mod windows;

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

pub(crate) use self::container::images_and_names;
pub use self::qos::qos_class;
pub(crate) use self::spec::{Context, validate_new, validate_spec, validate_template};
use super::{status, template};
use crate::error::FieldError;
use crate::resource::{Subresource, Verb};
use crate::strategy::{Part, Rules};
use crate::table::{Columns, NAME, labels_text, name_of, text};
use crate::val;

const SELECTABLE: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];

static RULES: Rules = Rules {
    status: true,
    generation: true,
    graceful: true,
    defaults: |obj| {
        if let Some(spec) = val::child_mut(obj, "spec") {
            template::pod_spec(spec);
            template::pod_only(spec);
        }
    },
    create: prepare_create,
    update: prepare_update,
    validate,
    validate_create: validate_new,
    validate_update: |new, old, part| {
        let mut errors = annotations::validate_update(new, old);
        errors.extend(update::validate(new, old, part));
        errors
    },
    warnings,
    selectable: SELECTABLE,
    selectable_values: Some(selectable),
    ..Rules::PLAIN
};

fn selectable(obj: &Value) -> Vec<(&'static str, String)> {
    SELECTABLE
        .iter()
        .map(|path| {
            let value = if *path == "spec.hostNetwork" {
                val::flag(obj, path).to_string()
            } else {
                val::text(obj, path).to_owned()
            };
            (*path, value)
        })
        .collect()
}

fn prepare_create(obj: &mut Value) {
    let qos = qos_class(obj);
    let mut status = json!({"phase": "Pending", "qosClass": qos});
    if !val::list(obj, "spec.schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": null,
        }]);
    }
    val::set(obj, "status", status);
}

fn prepare_update(new: &mut Value, old: &Value, part: Part) {
    match part {
        Part::Status => {
            // The class is decided once; a kubelet that leaves it out does not take it away.
            let qos = val::text(old, "status.qosClass");
            if !qos.is_empty() {
                val::set(val::child(new, "status"), "qosClass", qos);
            }
        }
        Part::Other("ephemeralcontainers") => {
            let added = val::at(new, "spec.ephemeralContainers").cloned();
            replace_spec(new, old, "ephemeralContainers", added);
            val::carry(new, old, "status");
        }
        Part::Other("resize") => {
            val::carry(new, old, "status");
        }
        Part::Other(_) | Part::Main => {}
    }
}

fn replace_spec(new: &mut Value, old: &Value, key: &str, value: Option<Value>) {
    val::carry(new, old, "spec");
    if let Some(value) = value {
        val::set(val::child(new, "spec"), key, value);
    }
}

/// Every mistake of a pod that is not about its metadata.
pub(crate) fn validate(obj: &Value) -> Vec<FieldError> {
    let empty = json!({});
    let name = val::text(obj, "metadata.name");
    let mut errors = validate_spec(obj.get("spec").unwrap_or(&empty), "spec", Context::Pod { name });
    errors.extend(annotations::validate(obj, "metadata.annotations"));
    errors
}

/// What upstream warns of in `Warning` headers, for the mistakes that people make most.
fn warnings(obj: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (i, container) in val::list(obj, "spec.containers").iter().enumerate() {
        let mut seen = HashSet::new();
        for (j, env) in val::list(container, "env").iter().enumerate() {
            let name = val::text(env, "name");
            if !seen.insert(name) {
                out.push(format!("spec.containers[{i}].env[{j}]: hides previous definition of \"{name}\", which may be dropped when using apply"));
            }
        }
        let mut first: HashMap<_, usize> = HashMap::new();
        for (j, port) in val::list(container, "ports").iter().enumerate() {
            let same = (val::int(port, "containerPort"), val::text(port, "protocol"), val::int(port, "hostPort"));
            let first = *first.entry(same).or_insert(j);
            if first != j {
                out.push(format!(
                    "spec.containers[{i}].ports[{j}]: duplicate port definition with spec.containers[{i}].ports[{first}]"
                ));
            }
        }
    }
    out
}

const POD_UPDATES: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];

/// A subresource with core's own kind.
const fn sub(name: &'static str, group: &'static str, kind: &'static str, verbs: &'static [Verb]) -> Subresource {
    Subresource { name, group, version: "v1", kind, verbs }
}

kind!(PODS: "core" "" "v1" "Pod", "pods" "pod", Namespaced "/registry/pods/", core::Pod, RULES, columns::COLUMNS,
short_names: &["po"],
categories: &["all"],
subresources: &[
    sub("attach", "", "PodAttachOptions", &[Verb::Create, Verb::Get]),
    sub("binding", "", "Binding", &[Verb::Create]),
    sub("ephemeralcontainers", "", "Pod", POD_UPDATES),
    sub("eviction", "policy", "Eviction", &[Verb::Create]),
    sub("exec", "", "PodExecOptions", &[Verb::Create, Verb::Get]),
    sub("log", "", "Pod", &[Verb::Get]),
    sub("portforward", "", "PodPortForwardOptions", &[Verb::Create, Verb::Get]),
    sub("proxy", "", "PodProxyOptions", &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update]),
    sub("resize", "", "Pod", POD_UPDATES),
    status("", "v1", "Pod"),
]);

static TEMPLATE_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        template::template(obj);
    },
    validate: |obj| validate_template(obj.get("template").unwrap_or(&Value::Null), "template"),
    ..Rules::PLAIN
};

static TEMPLATE_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Containers"), text("Images"), text("Pod Labels")],
    cells: |obj, _| {
        let (names, images) = images_and_names(obj.get("template").and_then(|t| t.get("spec")).unwrap_or(&Value::Null));
        vec![name_of(obj), json!(names), json!(images), json!(labels_text(val::map(obj, "template.metadata.labels")))]
    },
};

kind!(POD_TEMPLATES: "core" "" "v1" "PodTemplate", "podtemplates" "podtemplate", Namespaced "/registry/podtemplates/",
    core::PodTemplate, TEMPLATE_RULES, TEMPLATE_COLUMNS);
