//! Table output and metadata-only output.
//!
//! Upstream counterpart: `pkg/printers/internalversion` and `apiserver/pkg/registry/rest/table.go`. The cells of each kind are beside
//! its rules in [`crate::kinds`].

use serde_json::{Value, json};

use crate::resource::Resource;
use crate::{time, val};

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Header.
    pub name: &'static str,
    /// `string`, `integer` …
    pub kind: &'static str,
    /// `name` or empty.
    pub format: &'static str,
    /// 0 always, 1 only with `-o wide`.
    pub priority: i32,
}

/// Columns of a kind and how its cells are computed.
pub struct Columns {
    /// The columns.
    pub columns: &'static [Column],
    /// One cell per column.
    pub cells: fn(&Value, jiff::Timestamp) -> Vec<Value>,
}

/// The column of names.
pub(crate) const NAME: Column = Column { name: "Name", kind: "string", format: "name", priority: 0 };
/// The column of ages.
pub(crate) const AGE: Column = text("Age");

/// A column of text.
pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", priority: 0 }
}

/// A column of text for `-o wide`.
pub(crate) const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", priority: 1 }
}

/// A column of integers.
pub(crate) const fn number(name: &'static str) -> Column {
    Column { name, kind: "integer", format: "", priority: 0 }
}

/// Container names of a pod template.
pub(crate) const CONTAINERS: Column = wide("Containers");
/// Images of a pod template.
pub(crate) const IMAGES: Column = wide("Images");
/// Selector of a workload.
pub(crate) const SELECTOR: Column = wide("Selector");

/// What kinds without columns of their own show.
pub(crate) static CREATED_AT: Columns = Columns {
    columns: &[NAME, Column { name: "Created At", kind: "date", format: "", priority: 0 }],
    cells: |obj, _| vec![name_of(obj), json!(val::text(obj, "metadata.creationTimestamp"))],
};

/// The name cell.
pub(crate) fn name_of(obj: &Value) -> Value {
    json!(val::text(obj, "metadata.name"))
}

/// The age cell.
pub(crate) fn age_of(obj: &Value, now: jiff::Timestamp) -> Value {
    json!(time::age(val::text(obj, "metadata.creationTimestamp"), now))
}

/// A string cell from a dotted path, `none` if there is nothing.
pub(crate) fn text_or(obj: &Value, path: &str, none: &str) -> Value {
    let text = val::text(obj, path);
    json!(if text.is_empty() { none } else { text })
}

/// A label selector object as `a=b,c in (d,e)`, `<none>` when empty.
pub(crate) fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return "<none>".to_owned() };
    let mut parts: Vec<String> =
        val::entries(selector, "matchLabels").map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
    for requirement in val::list(selector, "matchExpressions") {
        let key = val::text(requirement, "key");
        let mut values: Vec<&str> = val::list(requirement, "values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        parts.push(match val::text(requirement, "operator") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    parts.sort_unstable();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(",") }
}

/// A plain label map as `a=b,c=d`, `<none>` when empty.
pub(crate) fn labels_text(map: Option<&serde_json::Map<String, Value>>) -> String {
    let parts: Vec<String> =
        map.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(",") }
}

/// The last line of a cell is not shown: upstream cuts a cell at its first line break and marks it.
fn one_line(cell: Value) -> Value {
    match cell {
        Value::String(s) if s.contains(['\n', '\r', '\u{c}']) => {
            let first = s.split(['\n', '\r', '\u{c}']).next().unwrap_or("");
            json!(format!("{first}..."))
        }
        other => other,
    }
}

/// The `includeObject` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// No object.
    None,
    /// Metadata only; the default.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Parses the query parameter.
    ///
    /// # Errors
    /// 400 for anything but `None`, `Metadata`, `Object` and nothing.
    pub fn parse(text: &str) -> Result<Self, crate::ApiError> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(crate::ApiError::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

/// A `Table` of `objects`; `list_meta` is the list's metadata (resourceVersion, continue, remainingItemCount), or the object's for a
/// single get. With `headers` false (later events of a watch) the column definitions are left out.
#[must_use]
pub fn render(
    res: &Resource,
    objects: &[&Value],
    list_meta: Value,
    include: IncludeObject,
    now: jiff::Timestamp,
    headers: bool,
) -> Value {
    let custom = res.strategy.custom();
    let definitions: Value = if !headers {
        Value::Null
    } else if let Some(version) = &custom {
        version.columns().definitions()
    } else {
        res.columns
            .columns
            .iter()
            .map(|c| {
                json!({
                    "name": c.name, "type": c.kind, "format": c.format, "priority": c.priority,
                    "description": description(c.name),
                })
            })
            .collect()
    };
    let cells = |obj: &Value| match &custom {
        Some(version) => version.columns().cells(obj, now),
        None => (res.columns.cells)(obj, now).into_iter().map(one_line).collect(),
    };
    let rows: Vec<Value> = objects.iter().map(|obj| row(res, obj, include, cells(obj))).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn description(column: &str) -> &'static str {
    match column {
        "Name" => "Name must be unique within a namespace.",
        "Age" | "Created At" => "Time since the object was created.",
        _ => "",
    }
}

fn row(res: &Resource, obj: &Value, include: IncludeObject, cells: Vec<Value>) -> Value {
    let mut row = json!({ "cells": cells });
    // A pod that ended is shown by its phase in a condition, which kubectl uses to tell it apart.
    if res.kind == "Pod" && res.group.is_empty() {
        let phase = val::text(obj, "status.phase");
        if matches!(phase, "Succeeded" | "Failed") {
            row["conditions"] = json!([{
                "type": "Completed", "status": "True", "reason": phase,
                "message": if phase == "Succeeded" { "The pod has completed successfully." } else { "The pod failed." },
            }]);
        }
    }
    match include {
        IncludeObject::None => {}
        IncludeObject::Metadata => row["object"] = partial(obj),
        IncludeObject::Object => row["object"] = obj.clone(),
    }
    row
}

/// `PartialObjectMetadata` of an object.
#[must_use]
pub fn partial(obj: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// `PartialObjectMetadataList`.
#[must_use]
pub fn partial_list(objects: &[&Value], list_meta: Value) -> Value {
    let items: Vec<Value> = objects.iter().map(|obj| partial(obj)).collect();
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "items": items,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_read_as_upstreams() {
        let selector = json!({
            "matchLabels": {"b": "1", "a": "2"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["y", "x"]},
                {"key": "d", "operator": "DoesNotExist"},
            ],
        });
        assert_eq!(selector_text(Some(&selector)), "!d,a=2,b=1,c in (x,y)");
        assert_eq!(selector_text(None), "<none>");
        assert_eq!(selector_text(Some(&json!({}))), "<none>");
    }

    #[test]
    fn every_kind_has_a_cell_per_column() {
        let now = "2026-01-02T03:04:05Z".parse().expect("time");
        for res in crate::resources() {
            for obj in [
                json!({}),
                json!({"metadata": {"name": "x"}, "spec": {}, "status": {}}),
                json!([1]),
                json!({"spec": 3}),
            ] {
                assert_eq!((res.columns.cells)(&obj, now).len(), res.columns.columns.len(), "{res:?}");
            }
        }
    }

    #[test]
    fn multi_line_cells_are_cut() {
        assert_eq!(one_line(json!("a\nb")), json!("a..."));
    }
}
