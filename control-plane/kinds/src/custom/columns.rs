//! Table output of custom kinds.
//!
//! Upstream counterpart: `apiextensions-apiserver/pkg/registry/customresource/tableconvertor`.

use serde_json::{Value, json};

use super::jsonpath::JsonPath;
use super::number::go_float;
use crate::{table, time, val};

const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to \
     request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and \
     configuration definition. Cannot be updated. More info: \
     https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in \
     happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in \
     UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// The columns of one version of a custom kind.
#[derive(Clone, Debug)]
pub struct Table {
    definitions: Value,
    columns: Vec<(String, JsonPath)>,
}

impl Table {
    /// From `additionalPrinterColumns`; without any, the age is shown. What follows a path that cannot be read is not shown.
    pub(crate) fn new(columns: &[Value]) -> Self {
        let age = [json!({
            "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": AGE_DESCRIPTION,
        })];
        let columns = if columns.is_empty() { &age } else { columns };
        let mut definitions = vec![
            json!({"name": "Name", "type": "string", "format": "name", "description": NAME_DESCRIPTION, "priority": 0}),
        ];
        let mut paths = Vec::new();
        for column in columns {
            let path = val::text(column, "jsonPath");
            let Ok(parsed) = JsonPath::parse(path) else { break };
            let description = match val::text(column, "description") {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                given => given.to_owned(),
            };
            let kind = val::text(column, "type");
            definitions.push(json!({
                "name": val::text(column, "name"), "type": kind, "format": val::text(column, "format"),
                "description": description, "priority": val::int(column, "priority").unwrap_or(0),
            }));
            paths.push((kind.to_owned(), parsed));
        }
        Self { definitions: Value::Array(definitions), columns: paths }
    }

    /// The `columnDefinitions` of a table.
    pub(crate) fn definitions(&self) -> Value {
        self.definitions.clone()
    }

    /// One cell per column; null for what is not there.
    pub(crate) fn cells(&self, obj: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let mut out = vec![table::name_of(obj)];
        out.extend(self.columns.iter().map(|(kind, path)| {
            let found = path.find(obj).unwrap_or_default();
            found.first().map_or(Value::Null, |value| cell(kind, value, now))
        }));
        out
    }
}

fn cell(kind: &str, value: &Value, now: jiff::Timestamp) -> Value {
    match (kind, value) {
        ("string", value) => json!(text(value)),
        ("integer", Value::Number(n)) => n.as_i64().or_else(|| n.as_f64().map(whole)).map_or(Value::Null, |n| json!(n)),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) if text.is_empty() => json!(time::age("", now)),
        ("date", Value::String(text)) => match time::parse(text) {
            Some(then) => json!(time::human(time::between(then, now))),
            None => json!("<invalid>"),
        },
        _ => Value::Null,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a cell of integers shows the whole part, as Go's conversion does")]
fn whole(f: f64) -> i64 {
    f as i64
}

/// A value as Go prints it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => n.as_f64().map_or_else(String::new, go_float),
        Value::Null => "<no value>".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        "2026-01-02T03:04:05Z".parse().expect("time")
    }

    fn cells(columns: Value, obj: &Value) -> Vec<Value> {
        Table::new(columns.as_array().expect("list")).cells(obj, now())
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        let obj = json!({"metadata": {"name": "n"}, "s": "x", "i": 3, "f": 1.5, "b": true, "d": "2026-01-02T03:00:00Z", "l": [1], "e": ""});
        let of =
            |kind: &str, path: &str| cells(json!([{"name": "A", "type": kind, "jsonPath": path}]), &obj)[1].clone();
        assert_eq!(of("string", ".s"), "x");
        assert_eq!(of("string", ".i"), "3");
        assert_eq!(of("string", ".f"), "1.5");
        assert_eq!(of("string", ".b"), "true");
        assert_eq!(of("string", ".l"), "[1]");
        assert_eq!(of("integer", ".i"), 3);
        assert_eq!(of("integer", ".f"), 1);
        assert_eq!(of("integer", ".s"), Value::Null);
        assert_eq!(of("number", ".f"), 1.5);
        assert_eq!(of("boolean", ".b"), true);
        assert_eq!(of("boolean", ".s"), Value::Null);
        assert_eq!(of("date", ".d"), "4m5s");
        assert_eq!(of("date", ".s"), "<invalid>");
        assert_eq!(of("date", ".e"), "<unknown>");
        assert_eq!(of("string", ".missing"), Value::Null);
        assert_eq!(of("string", ".s[0]"), Value::Null);
    }

    #[test]
    fn without_columns_the_age_is_shown() {
        let table = Table::new(&[]);
        let names: Vec<&str> =
            table.definitions.as_array().expect("list").iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["Name", "Age"]);
        let obj = json!({"metadata": {"name": "n", "creationTimestamp": "2026-01-02T03:04:00Z"}});
        assert_eq!(table.cells(&obj, now()), [json!("n"), json!("5s")]);
    }

    #[test]
    fn definitions_say_where_they_come_from() {
        let table = Table::new(&[
            json!({"name": "A", "type": "string", "jsonPath": ".a", "priority": 1}),
            json!({"name": "B", "type": "string", "jsonPath": ".b["}),
        ]);
        let definitions = table.definitions();
        assert_eq!(definitions.as_array().map(Vec::len), Some(2), "a broken path ends the columns");
        assert_eq!(
            definitions[1],
            json!({"name": "A", "type": "string", "format": "", "priority": 1,
                "description": "Custom resource definition column (in JSONPath format): .a"})
        );
    }
}
