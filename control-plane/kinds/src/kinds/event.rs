//! Events: stored as core events, shown as core and as events.k8s.io objects.
//!
//! Upstream counterparts: `pkg/apis/events/v1/conversion.go`, `pkg/registry/core/event`.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::resource::Resource;
use crate::strategy::Rules;
use crate::table::{Column, Columns, text, wide};
use crate::{time, val};

/// (core field, events.k8s.io field) of what the two versions call differently.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Turns an event of either version into the version of `res`.
pub(crate) fn convert(res: &Resource, obj: &mut Value) {
    if res.kind != "Event" || val::text(obj, "apiVersion") == res.api_version() {
        return;
    }
    for (core, new) in RENAMED {
        let (from, to) = if res.group.is_empty() { (new, core) } else { (core, new) };
        if let Some(value) = val::remove(obj, from) {
            val::set(obj, to, value);
        }
    }
    val::set(obj, "apiVersion", res.api_version());
}

const SELECTABLE: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

fn core_values(obj: &Value) -> Vec<(&'static str, String)> {
    let component = |obj: &Value| {
        let component = val::text(obj, "source.component");
        if component.is_empty() { val::text(obj, "reportingComponent") } else { component }.to_owned()
    };
    SELECTABLE
        .iter()
        .map(|path| (*path, if *path == "source" { component(obj) } else { val::text(obj, path).to_owned() }))
        .collect()
}

const NEW_SELECTABLE: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

static CORE_RULES: Rules = Rules {
    create_on_update: true,
    defaults: |obj| {
        val::child(obj, "involvedObject");
        val::child(obj, "source");
    },
    validate: |obj| check(obj, &CORE_NAMES),
    selectable: SELECTABLE,
    selectable_values: Some(core_values),
    ..Rules::PLAIN
};

static NEW_RULES: Rules = Rules {
    create_on_update: true,
    validate: |obj| {
        let mut errors = check(obj, &NEW_NAMES);
        if val::text(obj, "eventTime").is_empty() && val::text(obj, "deprecatedFirstTimestamp").is_empty() {
            errors.push(FieldError::required("eventTime", ""));
        }
        errors
    },
    selectable: NEW_SELECTABLE,
    ..Rules::PLAIN
};

/// Upstream's limits of an event's texts.
const SHORT_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// What the fields are called in one of the two versions.
struct Names {
    about: &'static str,
    controller: &'static str,
    note: &'static str,
}

const CORE_NAMES: Names = Names { about: "involvedObject", controller: "reportingComponent", note: "message" };
const NEW_NAMES: Names = Names { about: "regarding", controller: "reportingController", note: "note" };

/// An event lives in the namespace of what it is about; cluster-scoped things are reported in `default`, and by new-style events (those
/// with an eventTime) in `kube-system` as well. New-style events say who reports what.
fn check(obj: &Value, fields: &Names) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let namespace = val::text(obj, "metadata.namespace");
    let field = format!("{}.namespace", fields.about);
    let about = val::text(obj, &field);
    let new_style = !val::text(obj, "eventTime").is_empty();
    let fits = match (about, new_style) {
        ("", false) => matches!(namespace, "" | "default"),
        ("", true) => matches!(namespace, "default" | "kube-system"),
        (about, false) => about == namespace,
        (_, true) => true,
    };
    if !fits {
        errors.push(FieldError::invalid(field, about, "does not match event.namespace"));
    }
    if !new_style {
        return errors;
    }
    for (key, max, required) in [
        (fields.controller, usize::MAX, true),
        ("reportingInstance", SHORT_MAX, true),
        ("action", SHORT_MAX, true),
        ("reason", SHORT_MAX, true),
        (fields.note, NOTE_MAX, false),
    ] {
        let text = val::text(obj, key);
        if text.is_empty() && required {
            errors.push(FieldError::required(key, ""));
        } else if text.len() > max {
            errors.push(FieldError::invalid(key, "", format!("can have at most {max} characters")));
        }
    }
    let controller = val::text(obj, fields.controller);
    if !controller.is_empty() {
        let bad = crate::names::qualified_name(controller);
        errors.extend(bad.into_iter().map(|m| FieldError::invalid(fields.controller, controller, m)));
    }
    errors
}

static COLUMNS: Columns = Columns {
    columns: &[
        text("Last Seen"),
        text("Type"),
        text("Reason"),
        text("Object"),
        wide("Subobject"),
        wide("Source"),
        text("Message"),
        wide("First Seen"),
        wide("Count"),
        Column { name: "Name", kind: "string", format: "name", priority: 1 },
    ],
    cells,
};

/// The first of several fields that is not empty; fields of both versions are named.
fn first<'a>(obj: &'a Value, paths: &[&str]) -> &'a str {
    paths.iter().map(|p| val::text(obj, p)).find(|t| !t.is_empty()).unwrap_or("")
}

fn cells(obj: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let age = |then: &str| time::age(then, now);
    let first_seen = first(obj, &["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"]);
    let mut last_seen = first(obj, &["lastTimestamp", "deprecatedLastTimestamp"]);
    if last_seen.is_empty() {
        last_seen = first_seen;
    }
    let series = val::at(obj, "series");
    let count = series
        .and_then(|s| val::int(s, "count"))
        .or_else(|| val::int(obj, "count"))
        .or_else(|| val::int(obj, "deprecatedCount"))
        .filter(|n| *n != 0)
        .unwrap_or(1);
    if let Some(observed) = series.map(|s| val::text(s, "lastObservedTime")).filter(|t| !t.is_empty()) {
        last_seen = observed;
    }
    let about = val::at(obj, "involvedObject").or_else(|| val::at(obj, "regarding")).unwrap_or(&Value::Null);
    let (kind, name) = (val::text(about, "kind").to_lowercase(), val::text(about, "name"));
    let object = if kind.is_empty() { name.to_owned() } else { format!("{kind}/{name}") };
    vec![
        json!(age(last_seen)),
        json!(val::text(obj, "type")),
        json!(val::text(obj, "reason")),
        json!(object),
        json!(val::text(about, "fieldPath")),
        json!(source(obj)),
        json!(first(obj, &["message", "note"]).trim()),
        json!(age(first_seen)),
        json!(count.to_string()),
        crate::table::name_of(obj),
    ]
}

fn source(obj: &Value) -> String {
    let component =
        first(obj, &["source.component", "deprecatedSource.component", "reportingComponent", "reportingController"]);
    let host = first(obj, &["source.host", "deprecatedSource.host", "reportingInstance"]);
    if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") }
}

kind!(EVENTS: "core" "" "v1" "Event", "events" "event", Namespaced "/registry/events/", core::Event, CORE_RULES, COLUMNS,
    short_names: &["ev"]);

kind!(NEW_EVENTS: "events" "events.k8s.io" "v1" "Event", "events" "event", Namespaced "/registry/events/", events::Event, NEW_RULES,
    COLUMNS, short_names: &["ev"], storage_version: false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_views_show_the_same_event() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "message": "m", "reason": "r", "count": 2,
            "involvedObject": {"kind": "Pod", "name": "x"}, "source": {"component": "c"},
        });
        let mut new = core.clone();
        convert(&NEW_EVENTS, &mut new);
        assert_eq!(new["note"], "m");
        assert_eq!(new["regarding"]["name"], "x");
        assert_eq!(new["apiVersion"], "events.k8s.io/v1");
        let now = "2026-01-02T03:04:05Z".parse().expect("time");
        assert_eq!(cells(&core, now), cells(&new, now));
        convert(&EVENTS, &mut new);
        assert_eq!(new, core);
    }
}
