//! Which lists, maps and structs have parts with owners of their own: the table `list_types.txt`, read once.
//!
//! The same facts feed ownership (server-side apply) and the `x-kubernetes-list-*` and `x-kubernetes-map-type` extensions of the
//! OpenAPI documents, so that clients that merge by themselves do it as the server does. Invariant: every line of the table is
//! understood and names something that exists (tested).

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::merge_keys::Merge;

const TABLE: &str = include_str!("list_types.txt");
/// What the table leaves out of each definition.
const PREFIX: &str = "io.k8s.";
/// Stands for the struct itself.
const WHOLE: &str = "*";

/// How a field is divided among owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Division {
    /// Lists are one value, maps and structs not, unless the struct says so.
    #[default]
    Default,
    /// A list whose items are told apart by their value.
    Set,
    /// A list whose items are told apart by these fields.
    Keyed(Vec<&'static str>),
    /// A map that is one value.
    Atomic,
    /// A struct that is not one value here.
    Granular,
}

/// What the table says of a field.
#[derive(Debug, Default)]
pub(crate) struct FieldType {
    pub(crate) division: Division,
    /// Value as a key of a list, where it is left out.
    pub(crate) default: Option<Value>,
    /// Whether Go has it in every object.
    pub(crate) always: bool,
}

/// A field of which the table says nothing.
pub(crate) static PLAIN: FieldType = FieldType { division: Division::Default, default: None, always: false };

/// By definition, then by field.
type Table = HashMap<&'static str, HashMap<&'static str, FieldType>>;

fn table() -> &'static Table {
    static PARSED: OnceLock<Table> = OnceLock::new();
    PARSED.get_or_init(|| {
        let mut table = Table::new();
        for words in lines() {
            let [definition, field, what, rest @ ..] = words.as_slice() else { continue };
            let entry = table.entry(*definition).or_default().entry(*field).or_default();
            match *what {
                "map" => entry.division = Division::Keyed(rest.to_vec()),
                "set" => entry.division = Division::Set,
                "atomic" => entry.division = Division::Atomic,
                "granular" => entry.division = Division::Granular,
                "always" => entry.always = true,
                "default" => entry.default = rest.first().map(|text| Value::from(*text)),
                _ => {}
            }
        }
        table
    })
}

fn lines() -> impl Iterator<Item = Vec<&'static str>> {
    TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace().collect())
}

/// What is known of a field of a definition.
pub(crate) fn of(definition: &str, field: &str) -> &'static FieldType {
    let fields = definition.strip_prefix(PREFIX).and_then(|short| table().get(short));
    fields.and_then(|fields| fields.get(field)).unwrap_or(&PLAIN)
}

/// Whether a struct is one value.
pub(crate) fn is_atomic(definition: &str) -> bool {
    of(definition, WHOLE).division == Division::Atomic
}

/// Adds the extensions to the schema of a definition.
pub(crate) fn mark(name: &str, definition: &mut Value, merge: impl Fn(&str) -> Merge) {
    if is_atomic(name) {
        definition["x-kubernetes-map-type"] = Value::from("atomic");
    }
    let Some(Value::Object(properties)) = definition.get_mut("properties") else { return };
    for (field, schema) in properties {
        let known = of(name, field);
        match &known.division {
            Division::Keyed(keys) => {
                schema["x-kubernetes-list-type"] = Value::from("map");
                schema["x-kubernetes-list-map-keys"] = Value::from(keys.clone());
            }
            Division::Set => schema["x-kubernetes-list-type"] = Value::from("set"),
            Division::Atomic => schema["x-kubernetes-map-type"] = Value::from("atomic"),
            Division::Granular => schema["x-kubernetes-map-type"] = Value::from("granular"),
            // Without a list type, clients would go by the patch strategy.
            Division::Default if matches!(merge(field), Merge::Key(_) | Merge::KeyRetain(_) | Merge::Primitive) => {
                schema["x-kubernetes-list-type"] = Value::from("atomic");
            }
            Division::Default => {}
        }
        if let Some(default) = &known.default {
            schema["default"] = default.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Shape, schemas};

    #[test]
    fn every_line_is_understood() {
        for words in lines() {
            let understood = match words.as_slice() {
                [_, WHOLE, "atomic"] | [_, _, "set" | "atomic" | "granular" | "always"] | [_, _, "default", _] => true,
                [_, _, "map", keys @ ..] => !keys.is_empty(),
                _ => false,
            };
            assert!(understood, "{words:?}");
        }
        assert!(table().len() > 100);
    }

    #[test]
    fn every_line_about_a_served_type_fits_it() {
        let schemas = schemas();
        let mut served = 0;
        let all = table()
            .iter()
            .flat_map(|(definition, fields)| fields.iter().map(move |(field, known)| (definition, field, known)));
        for (definition, field, known) in all {
            let Some(found) = schemas.get(&format!("{PREFIX}{definition}")) else { continue };
            served += 1;
            if *field == WHOLE {
                continue;
            }
            let shape = &found.field(field).unwrap_or_else(|| panic!("{definition} has no {field}")).shape;
            match &known.division {
                Division::Set => assert!(matches!(shape, Shape::List(_)), "{definition} {field}"),
                Division::Keyed(keys) => {
                    let Shape::List(item) = shape else { panic!("{definition} {field} is no list") };
                    let Shape::Ref(item) = **item else { panic!("{definition} {field} is no list of structs") };
                    for key in keys {
                        assert!(schemas.at(item).field(key).is_some(), "{definition} {field} by {key}");
                    }
                }
                Division::Atomic => assert!(matches!(shape, Shape::Map(_)), "{definition} {field}"),
                Division::Granular => assert!(matches!(shape, Shape::Ref(_)), "{definition} {field}"),
                Division::Default => {}
            }
            if known.always {
                assert!(matches!(shape, Shape::Ref(_)), "{definition} {field}");
            }
        }
        assert!(served > 90, "{served}");
    }

    #[test]
    fn every_patch_merge_key_is_a_list_type_or_an_exception() {
        let schemas = schemas();
        let mut exceptions = Vec::new();
        for s in schemas.all() {
            for field in &s.fields {
                match (field.merge.key(), &of(&s.name, &field.name).division) {
                    (None, _) => {}
                    (Some(key), Division::Keyed(keys)) => {
                        assert!(keys.contains(&key), "{} {} is merged by {key}", s.name, field.name);
                    }
                    _ => exceptions.push(format!("{} {}", s.short_name(), field.name)),
                }
            }
        }
        exceptions.sort();
        // Lists that a strategic merge divides and server-side apply does not.
        assert_eq!(exceptions, ["JobStatus conditions", "PodStatus hostIPs"]);
    }
}
