//! How the built-in types are divided among owners: the types of [`keelson_managed_fields`] over the table of schemas.
//!
//! Upstream counterpart: `kube-openapi/pkg/schemaconv`, and the Go types, whose zero values are what an object is before it is created.

use keelson_managed_fields::schema::{Forms, Key, List, Relation, Scalar};
use keelson_managed_fields::{ConvertError, Type, Versions};
use serde_json::{Map, Value};

use crate::list_types::{self, Division, FieldType};
use crate::resource::{Resource, resources};
use crate::schema::{self, Shape, Struct};

/// A node of a built-in type.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    shape: &'static Shape,
    known: &'static FieldType,
}

static ANY: Shape = Shape::Any;

impl Node {
    const fn plain(shape: &'static Shape) -> Self {
        Self { shape, known: &list_types::PLAIN }
    }

    fn fields(self) -> Option<&'static Struct> {
        match self.shape {
            Shape::Ref(index) => Some(schema::schemas().at(*index)),
            _ => None,
        }
    }
}

impl Type<'static> for Node {
    fn forms(self) -> Forms {
        match self.shape {
            Shape::Any | Shape::Either(_) => Forms::ANY,
            Shape::AnyObject | Shape::Map(_) | Shape::Ref(_) => Forms::MAP,
            Shape::List(_) => Forms::LIST,
            Shape::String | Shape::Bytes => Forms::scalar(Scalar::String),
            Shape::Bool => Forms::scalar(Scalar::Boolean),
            Shape::Int32 | Shape::Int64 | Shape::Number => Forms::scalar(Scalar::Numeric),
            Shape::Time | Shape::MicroTime | Shape::Quantity | Shape::IntOrString => Forms::scalar(Scalar::Untyped),
        }
    }

    fn list(self) -> List<'static, Self> {
        let item = match self.shape {
            Shape::List(item) => Self::plain(item),
            _ => Self::plain(&ANY),
        };
        let relation = match &self.known.division {
            Division::Set => Relation::Set,
            Division::Keyed(keys) => Relation::Keyed(
                keys.iter()
                    .map(|name| Key {
                        name,
                        default: item.fields().and_then(|s| s.field(name)).and_then(|f| f.ownership.default.as_ref()),
                    })
                    .collect(),
            ),
            Division::Default | Division::Atomic | Division::Granular => Relation::Atomic,
        };
        List { item, relation }
    }

    fn is_atomic_map(self) -> bool {
        match self.known.division {
            Division::Atomic => true,
            Division::Granular => false,
            _ => self.fields().is_some_and(|s| s.atomic),
        }
    }

    fn field(self, name: &str) -> Option<Self> {
        let field = self.fields()?.field(name)?;
        Some(Self { shape: &field.shape, known: field.ownership })
    }

    fn has_fields(self) -> bool {
        self.fields().is_some()
    }

    fn entry(self) -> Option<Self> {
        match self.shape {
            Shape::Map(inner) => Some(Self::plain(inner)),
            Shape::Any | Shape::Either(_) | Shape::AnyObject => Some(Self::plain(&ANY)),
            _ => None,
        }
    }

    fn is_deduced(self) -> bool {
        // Upstream's schema leaves out the type of what is one thing or another.
        matches!(self.shape, Shape::Any | Shape::Either(_))
    }
}

/// The type of a definition, `io.k8s.api.core.v1.Pod`.
fn definition(name: &str) -> Option<Node> {
    schema::schemas().shape_of(name).map(Node::plain)
}

/// The type of the objects of a resource, or of those of one of its subresources (`Scale`, `Binding` …) by their kind.
#[must_use]
pub fn type_of(res: &Resource, kind: &str) -> Option<Node> {
    if kind == res.kind {
        return definition(res.schema);
    }
    let sub = res.subresources.iter().find(|sub| sub.kind == kind)?;
    let package = match sub.group {
        "" => "core",
        group => group.split('.').next().unwrap_or(group),
    };
    definition(&format!("io.k8s.api.{package}.{}.{kind}", sub.version))
}

/// The versions of the objects of a resource: those of all resources that share its storage.
#[derive(Clone, Copy, Debug)]
pub struct Kind(pub &'static Resource);

impl Kind {
    fn in_version(self, api_version: &str) -> Option<&'static Resource> {
        if self.0.api_version() == api_version {
            return Some(self.0);
        }
        resources()
            .iter()
            .copied()
            .find(|r| r.storage_prefix == self.0.storage_prefix && r.api_version() == api_version)
    }
}

impl Versions<'static> for Kind {
    type Type = Node;

    fn type_of(&self, api_version: &str) -> Option<Node> {
        self.in_version(api_version).and_then(|res| definition(res.schema))
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, ConvertError> {
        let Some(res) = self.in_version(api_version) else {
            return Err(ConvertError {
                api_version: api_version.to_owned(),
                message: format!("{} is not served in it", self.0.kind),
            });
        };
        let mut out = object.clone();
        crate::kinds::convert(res, &mut out);
        Ok(out)
    }

    fn empty(&self) -> Value {
        let Some(root) = definition(self.0.schema).and_then(Node::fields) else { return Value::Object(Map::new()) };
        let mut out = empty(root);
        for part in ["metadata", "spec", "status"] {
            if let Some(Shape::Ref(index)) = root.field(part).map(|field| &field.shape) {
                out.insert(part.to_owned(), Value::Object(empty(schema::schemas().at(*index))));
            }
        }
        Value::Object(out)
    }
}

/// The fields that a struct always has in Go: required ones, and structs that are no pointers. Null stands for the rest's empty values.
fn empty(of: &Struct) -> Map<String, Value> {
    let mut out = Map::new();
    for field in of.fields.iter().filter(|field| field.required || field.ownership.always) {
        let v = match &field.shape {
            Shape::Ref(index) => match schema::schemas().at(*index) {
                inner if inner.atomic => Value::Null,
                inner => Value::Object(empty(inner)),
            },
            _ => Value::Null,
        };
        out.insert(field.name.to_string(), v);
    }
    out
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
