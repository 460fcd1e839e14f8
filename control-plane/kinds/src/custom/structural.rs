//! Structural schemas: what an OpenAPI v3 schema of a definition says about values, read once.
//!
//! One type serves for the schema itself and for what stands under `allOf`, `anyOf`, `oneOf` and `not`; [`super::invariants`] checks
//! that the latter say nothing about structure. Upstream counterpart: `apiextensions-apiserver/pkg/apiserver/schema`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pattern::{Pattern, Patterns};
use crate::val;

/// Deepest nesting of a schema. JSON text that nests deeper than 128 is not parsed at all, and a schema takes two levels for each field.
pub(crate) const MAX_DEPTH: usize = 64;

/// What values at one place must look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Structural {
    /// `object`, `array`, `string` …; empty if not given.
    pub(crate) kind: String,
    pub(crate) has_title: bool,
    pub(crate) has_description: bool,
    pub(crate) has_external_docs: bool,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) items: Option<Box<Self>>,
    pub(crate) properties: BTreeMap<String, Self>,
    pub(crate) additional: Option<Additional>,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list_type: Option<String>,
    pub(crate) list_keys: Vec<String>,
    pub(crate) map_type: Option<String>,
    /// Number of `x-kubernetes-validations`.
    pub(crate) rules: usize,
    pub(crate) values: Values,
}

/// `additionalProperties`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Additional {
    Any(bool),
    Schema(Box<Structural>),
}

/// What restricts values without saying how they are built.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Values {
    pub(crate) format: String,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) unique_items: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) enumeration: Vec<Value>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Structural>,
    pub(crate) any_of: Vec<Structural>,
    pub(crate) one_of: Vec<Structural>,
    pub(crate) not: Option<Box<Structural>>,
}

/// What a structural schema cannot be made of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsupported {
    #[error("OpenAPIV3Schema '{0}' is not supported")]
    Keyword(&'static str),
    #[error("OpenAPIV3Schema 'items' must be a schema, but is an array")]
    ItemsArray,
    #[error("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")]
    PreserveFalse,
    #[error("OpenAPIV3Schema is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

impl Structural {
    /// Reads a schema. Values of a wrong type count as absent: decoding has refused them before.
    pub(crate) fn parse(schema: &Value, patterns: &mut Patterns) -> Result<Self, Unsupported> {
        Self::read(schema, patterns, 0)
    }

    fn read(schema: &Value, patterns: &mut Patterns, depth: usize) -> Result<Self, Unsupported> {
        if depth > MAX_DEPTH {
            return Err(Unsupported::TooDeep);
        }
        unsupported(schema)?;
        let mut inner = |value: &Value| Self::read(value, patterns, depth + 1);
        let items = match schema.get("items") {
            Some(Value::Array(list)) if !list.is_empty() => return Err(Unsupported::ItemsArray),
            Some(value @ Value::Object(_)) => Some(Box::new(inner(value)?)),
            _ => None,
        };
        let properties = val::entries(schema, "properties")
            .map(|(name, value)| Ok((name.clone(), inner(value)?)))
            .collect::<Result<_, Unsupported>>()?;
        let additional = match schema.get("additionalProperties") {
            Some(Value::Bool(any)) => Some(Additional::Any(*any)),
            Some(value @ Value::Object(_)) => Some(Additional::Schema(Box::new(inner(value)?))),
            _ => None,
        };
        let text = |key: &str| schema.get(key).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned);
        Ok(Self {
            kind: text("type").unwrap_or_default(),
            has_title: text("title").is_some(),
            has_description: text("description").is_some(),
            has_external_docs: schema.get("externalDocs").is_some_and(Value::is_object),
            nullable: val::flag(schema, "nullable"),
            default: schema.get("default").filter(|value| !value.is_null()).cloned(),
            items,
            properties,
            additional,
            preserve_unknown: val::flag(schema, "x-kubernetes-preserve-unknown-fields"),
            embedded: val::flag(schema, "x-kubernetes-embedded-resource"),
            int_or_string: val::flag(schema, "x-kubernetes-int-or-string"),
            list_type: text("x-kubernetes-list-type"),
            list_keys: strings(schema, "x-kubernetes-list-map-keys"),
            map_type: text("x-kubernetes-map-type"),
            rules: val::list(schema, "x-kubernetes-validations").len(),
            values: Values::read(schema, patterns, depth)?,
        })
    }

    /// The schema of a field, whether it is named or not.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or_else(|| self.additional_schema())
    }

    /// The schema of fields that are not named.
    pub(crate) fn additional_schema(&self) -> Option<&Self> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            Some(Additional::Any(_)) | None => None,
        }
    }
}

impl Values {
    fn read(schema: &Value, patterns: &mut Patterns, depth: usize) -> Result<Self, Unsupported> {
        let number = |key: &str| schema.get(key).and_then(Value::as_f64);
        let int = |key: &str| schema.get(key).and_then(Value::as_i64);
        let pattern =
            schema.get("pattern").and_then(Value::as_str).filter(|s| !s.is_empty()).map(|s| patterns.compile(s));
        let mut inner = |key: &str| -> Result<Vec<Structural>, Unsupported> {
            val::list(schema, key).iter().map(|value| Structural::read(value, patterns, depth + 1)).collect()
        };
        let (all_of, any_of, one_of) = (inner("allOf")?, inner("anyOf")?, inner("oneOf")?);
        let not = schema.get("not").filter(|value| value.is_object());
        let not = not.map(|value| Structural::read(value, patterns, depth + 1)).transpose()?.map(Box::new);
        Ok(Self {
            format: schema.get("format").and_then(Value::as_str).unwrap_or("").to_owned(),
            maximum: number("maximum"),
            exclusive_maximum: val::flag(schema, "exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: val::flag(schema, "exclusiveMinimum"),
            max_length: int("maxLength"),
            min_length: int("minLength"),
            pattern,
            max_items: int("maxItems"),
            min_items: int("minItems"),
            unique_items: val::flag(schema, "uniqueItems"),
            multiple_of: number("multipleOf"),
            enumeration: val::list(schema, "enum").to_vec(),
            max_properties: int("maxProperties"),
            min_properties: int("minProperties"),
            required: strings(schema, "required"),
            all_of,
            any_of,
            one_of,
            not,
        })
    }
}

fn strings(schema: &Value, key: &str) -> Vec<String> {
    schema
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

fn unsupported(schema: &Value) -> Result<(), Unsupported> {
    let filled = |key: &str| match schema.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(s)) => !s.is_empty(),
        Some(Value::Object(map)) => key == "additionalItems" || !map.is_empty(),
        Some(_) => true,
    };
    for (key, name) in [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ] {
        if filled(key) {
            return Err(Unsupported::Keyword(name));
        }
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        return Err(Unsupported::PreserveFalse);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) fn parsed(schema: &Value) -> Structural {
    Structural::parse(schema, &mut Patterns::default()).unwrap_or_else(|why| panic!("{schema}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_is_read() {
        let schema = parsed(&json!({
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "^x"}}},
            "additionalProperties": {"type": "integer", "minimum": 1},
            "x-kubernetes-validations": [{"rule": "true"}],
            "anyOf": [{"required": ["a"]}],
        }));
        assert_eq!(schema.field("a").and_then(|a| a.items.as_ref()).map(|i| i.kind.as_str()), Some("string"));
        assert_eq!(schema.field("b").and_then(|b| b.values.minimum), Some(1.0));
        assert_eq!((schema.rules, schema.values.any_of[0].values.required.as_slice()), (1, &["a".to_owned()][..]));
    }

    #[test]
    fn what_is_not_structural_is_refused() {
        let refusal =
            |schema: Value| Structural::parse(&schema, &mut Patterns::default()).expect_err("refused").to_string();
        assert_eq!(refusal(json!({"$ref": "#/definitions/x"})), "OpenAPIV3Schema '$ref' is not supported");
        assert_eq!(refusal(json!({"properties": {"a": {"$ref": "#"}}})), "OpenAPIV3Schema '$ref' is not supported");
        assert_eq!(
            refusal(json!({"allOf": [{"definitions": {"a": {}}}]})),
            "OpenAPIV3Schema 'definitions' is not supported"
        );
        assert_eq!(refusal(json!({"items": [{}]})), "OpenAPIV3Schema 'items' must be a schema, but is an array");
        let deep = |wrap: fn(Value) -> Value| (0..100).fold(json!({"type": "string"}), |inner, _| wrap(inner));
        for wrap in [
            (|inner| json!({"type": "array", "items": inner})) as fn(Value) -> Value,
            |inner| json!({"type": "object", "properties": {"a": inner}}),
            |inner| json!({"not": inner}),
        ] {
            assert_eq!(refusal(deep(wrap)), "OpenAPIV3Schema is nested deeper than 64 levels");
        }
    }
}
