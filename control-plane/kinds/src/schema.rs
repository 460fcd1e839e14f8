//! The shapes of all served types, compact, taken once from the `schemars` schemas of `k8s-openapi`.
//!
//! One table for all types: a field is a name, a [`Shape`] and how a strategic merge treats it. Descriptions are not kept (they are
//! generated again for an OpenAPI document), so that the table stays small. Invariant: every [`Shape::Ref`] points into the table.

use std::collections::HashMap;
use std::sync::OnceLock;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use crate::list_types::{self, FieldType};
use crate::merge_keys::{self, Merge};

/// Adds a type and all it refers to to a generator.
pub type Root = fn(&mut SchemaGenerator) -> Schema;

/// The [`Root`] of a type.
#[must_use]
pub const fn root<T: JsonSchema>() -> Root {
    SchemaGenerator::subschema_for::<T>
}

/// What a value must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Anything.
    Any,
    /// Any object.
    AnyObject,
    String,
    /// Base64 text.
    Bytes,
    Time,
    MicroTime,
    Bool,
    Int32,
    Int64,
    Number,
    Quantity,
    IntOrString,
    List(Box<Shape>),
    Map(Box<Shape>),
    /// A struct, a list of it, or anything else: the places of a JSON schema that may hold a schema.
    Either(Box<Shape>),
    Ref(usize),
}

/// One field of a struct.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    pub(crate) shape: Shape,
    pub(crate) required: bool,
    pub(crate) merge: Merge,
    /// How it is divided among owners.
    pub(crate) ownership: &'static FieldType,
}

/// One struct.
#[derive(Debug)]
pub(crate) struct Struct {
    /// Definition name, `io.k8s.api.core.v1.Pod`.
    pub(crate) name: Box<str>,
    /// Sorted by name.
    pub(crate) fields: Vec<Field>,
    /// Whether it has one owner.
    pub(crate) atomic: bool,
}

impl Struct {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| (*f.name).cmp(name)).ok().map(|i| &self.fields[i])
    }

    /// `Container`.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// All structs.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    structs: Vec<Struct>,
    /// The [`Shape::Ref`] of each.
    shapes: Vec<Shape>,
    by_name: HashMap<Box<str>, usize>,
}

/// The type of a schema inside a custom resource definition.
const JSON_SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
/// What the names of the types start with that hold such a schema or something simpler.
pub(crate) const SCHEMA_OR: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOr";
/// The type of any value in such a schema.
pub(crate) const ANY_JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";

const REF_PREFIX: &str = "#/components/schemas/";

/// A generator that writes references as OpenAPI v3 does.
pub(crate) fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::openapi3();
    settings.transforms.clear();
    SchemaGenerator::new(settings)
}

/// The definition a `$ref` names.
pub(crate) fn ref_name(value: &Value) -> Option<&str> {
    value.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REF_PREFIX))
}

/// The table, built on first use.
pub(crate) fn schemas() -> &'static Schemas {
    static TABLE: OnceLock<Schemas> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Schemas::default();
        // One generator per kind keeps the peak low: descriptions are megabytes.
        for root in crate::kinds::roots() {
            let mut gen_ = generator();
            root(&mut gen_);
            table.add_all(&gen_.take_definitions(false));
        }
        table
    })
}

impl Schemas {
    fn slot(&mut self, name: &str) -> usize {
        if let Some(&i) = self.by_name.get(name) {
            return i;
        }
        let i = self.structs.len();
        self.structs.push(Struct { name: name.into(), fields: Vec::new(), atomic: list_types::is_atomic(name) });
        self.shapes.push(Shape::Ref(i));
        self.by_name.insert(name.into(), i);
        i
    }

    fn add_all(&mut self, definitions: &serde_json::Map<String, Value>) {
        for (name, schema) in definitions {
            let known = self.by_name.get(name.as_str()).is_some_and(|&i| !self.structs[i].fields.is_empty());
            if known || special(name).is_some() {
                continue;
            }
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else { continue };
            let required: Vec<&str> = schema
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let mut fields: Vec<Field> = properties
                .iter()
                .map(|(field, value)| Field {
                    name: field.as_str().into(),
                    shape: self.shape(value, definitions),
                    required: required.contains(&field.as_str()),
                    merge: merge_keys::of(name, field),
                    ownership: list_types::of(name, field),
                })
                .collect();
            fields.sort_by(|a, b| a.name.cmp(&b.name));
            let slot = self.slot(name);
            self.structs[slot].fields = fields;
        }
    }

    fn shape(&mut self, schema: &Value, definitions: &serde_json::Map<String, Value>) -> Shape {
        if let Some(name) = ref_name(schema) {
            if let Some(shape) = special(name) {
                return shape;
            }
            let Some(target) = definitions.get(name) else { return Shape::Any };
            if name.starts_with(SCHEMA_OR) {
                return Shape::Either(Box::new(Shape::Ref(self.slot(JSON_SCHEMA))));
            }
            if target.get("properties").is_none() {
                // Named types that are not structs: plain objects, or empty structs such as SleepAction's siblings.
                return match target.get("type").and_then(Value::as_str) {
                    Some("object") if target.get("additionalProperties").is_none() => Shape::AnyObject,
                    _ => self.shape(&target.clone(), definitions),
                };
            }
            return Shape::Ref(self.slot(name));
        }
        let format = schema.get("format").and_then(Value::as_str).unwrap_or("");
        match (schema.get("type").and_then(Value::as_str), format) {
            (Some("string"), "byte") => Shape::Bytes,
            (Some("string"), _) => Shape::String,
            (Some("boolean"), _) => Shape::Bool,
            (Some("integer"), "int64") => Shape::Int64,
            (Some("integer"), _) => Shape::Int32,
            (Some("number"), _) => Shape::Number,
            (Some("array"), _) => {
                Shape::List(Box::new(schema.get("items").map_or(Shape::Any, |items| self.shape(items, definitions))))
            }
            (Some("object"), _) => match schema.get("additionalProperties") {
                Some(inner @ Value::Object(_)) => Shape::Map(Box::new(self.shape(inner, definitions))),
                _ => Shape::AnyObject,
            },
            _ => Shape::Any,
        }
    }

    /// The struct called `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&Struct> {
        self.by_name.get(name).map(|&i| &self.structs[i])
    }

    /// The shape of the struct called `name`.
    pub(crate) fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.by_name.get(name).map(|&i| &self.shapes[i])
    }

    /// All structs.
    #[cfg(test)]
    pub(crate) fn all(&self) -> &[Struct] {
        &self.structs
    }

    /// The struct of a [`Shape::Ref`].
    pub(crate) fn at(&self, index: usize) -> &Struct {
        &self.structs[index]
    }

    /// How a Go error message calls a shape.
    pub(crate) fn go_type(&self, shape: &Shape) -> String {
        match shape {
            Shape::Any | Shape::AnyObject => "map[string]interface {}".to_owned(),
            Shape::String => "string".to_owned(),
            Shape::Bytes => "[]uint8".to_owned(),
            Shape::Time => "v1.Time".to_owned(),
            Shape::MicroTime => "v1.MicroTime".to_owned(),
            Shape::Bool => "bool".to_owned(),
            Shape::Int32 => "int32".to_owned(),
            Shape::Int64 => "int64".to_owned(),
            Shape::Number => "float64".to_owned(),
            Shape::Quantity => "resource.Quantity".to_owned(),
            Shape::IntOrString => "intstr.IntOrString".to_owned(),
            Shape::List(inner) => format!("[]{}", self.go_type(inner)),
            Shape::Map(inner) => format!("map[string]{}", self.go_type(inner)),
            Shape::Either(inner) => self.go_type(inner),
            Shape::Ref(i) => {
                let mut parts = self.structs[*i].name.rsplit('.');
                let (kind, version) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
                format!("{version}.{kind}")
            }
        }
    }
}

/// Types that are one value although they have a name.
fn special(name: &str) -> Option<Shape> {
    if name == ANY_JSON {
        return Some(Shape::Any);
    }
    let short = name.strip_prefix("io.k8s.apimachinery.pkg.")?;
    Some(match short {
        "api.resource.Quantity" => Shape::Quantity,
        "util.intstr.IntOrString" => Shape::IntOrString,
        "apis.meta.v1.Time" => Shape::Time,
        "apis.meta.v1.MicroTime" => Shape::MicroTime,
        "apis.meta.v1.FieldsV1" | "runtime.RawExtension" => Shape::AnyObject,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_known_to_the_last_field() {
        let table = schemas();
        let pod = table.get("io.k8s.api.core.v1.Pod").expect("pod");
        let Shape::Ref(spec) = pod.field("spec").expect("spec").shape else { panic!("spec is a struct") };
        let spec = table.at(spec);
        assert_eq!(spec.short_name(), "PodSpec");
        assert_eq!(table.go_type(&spec.field("containers").expect("containers").shape), "[]v1.Container");
        assert!(spec.field("containers").expect("containers").required);
        assert_eq!(spec.field("overhead").expect("overhead").shape, Shape::Map(Box::new(Shape::Quantity)));
        assert!(spec.field("nope").is_none());
    }

    #[test]
    fn every_reference_has_fields() {
        let table = schemas();
        for s in &table.structs {
            assert!(!s.fields.is_empty(), "{} has no fields", s.name);
        }
        assert!(table.structs.len() > 300);
    }
}
