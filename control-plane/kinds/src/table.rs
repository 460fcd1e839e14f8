//! Table output and metadata-only output.
//!
//! Upstream counterpart: `pkg/printers/internalversion` and `apiserver/pkg/registry/rest/table.go`.

use serde_json::Value;

use crate::resource::Resource;

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
    let _ = (res, objects, list_meta, include, now, headers);
    Value::Null
}

/// `PartialObjectMetadata` of an object.
#[must_use]
pub fn partial(obj: &Value) -> Value {
    obj.clone()
}

/// `PartialObjectMetadataList`.
#[must_use]
pub fn partial_list(objects: &[&Value], list_meta: Value) -> Value {
    let _ = (objects, list_meta);
    Value::Null
}
