//! What makes a schema structural: every field and list is specified outside of value validation, which says nothing of structure.
//!
//! Upstream counterparts: `apiextensions-apiserver/pkg/apiserver/schema/validation.go` and `complete.go`.

use super::structural::{Additional, Structural, Values};
use crate::error::FieldError;

/// Where in a resource a schema stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks a whole schema that messages call `path`; errors are in the order of their texts, as upstream's.
pub(crate) fn check(schema: &Structural, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    structure(schema, Level::Root, path, &mut errors);
    complete_values(&schema.values, Some(schema), path, path, &mut errors);
    errors.sort_by_key(ToString::to_string);
    errors
}

fn structure(s: &Structural, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    if s.kind == "array" && s.items.is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(items) = &s.items {
        structure(items, Level::Item, &format!("{path}.items"), errors);
    }
    for (name, field) in &s.properties {
        structure(field, Level::Field, &format!("{path}.properties[{name}]"), errors);
    }
    if let Some(additional) = &s.additional {
        let at = format!("{path}.additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(at.as_str(), "must not be used at the root"));
        }
        if let Additional::Schema(schema) = additional {
            structure(schema, Level::Field, &at, errors);
        }
    }
    extensions(s, path, errors);
    let junctor = int_or_string(&s.values.any_of);
    let first = s.values.all_of.first().is_some_and(|first| int_or_string(&first.values.any_of));
    values(&s.values, junctor, first, path, errors);
    kinds(s, level, path, errors);
    metadata(s, level, path, errors);
}

/// Whether a list of alternatives is the one that may name types: an integer or a string.
fn int_or_string(any_of: &[Structural]) -> bool {
    let only = |kind: &str| Structural { kind: kind.to_owned(), ..Structural::default() };
    any_of.len() == 2 && any_of[0] == only("integer") && any_of[1] == only("string")
}

fn extensions(s: &Structural, path: &str, errors: &mut Vec<FieldError>) {
    const DETAIL: &str = "must be false if x-kubernetes-int-or-string is true";
    for (set, name) in
        [(s.preserve_unknown, "x-kubernetes-preserve-unknown-fields"), (s.embedded, "x-kubernetes-embedded-resource")]
    {
        if s.int_or_string && set {
            errors.push(FieldError::invalid(format!("{path}.{name}"), true, DETAIL));
        }
    }
}

fn kinds(s: &Structural, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    const EMBEDDED: &str = "must be object if x-kubernetes-embedded-resource is true";
    let at = format!("{path}.type");
    if s.embedded && s.kind != "object" {
        errors.push(if s.kind.is_empty() {
            FieldError::required(at.as_str(), EMBEDDED)
        } else {
            FieldError::invalid(at.as_str(), s.kind.as_str(), EMBEDDED)
        });
    } else if s.kind.is_empty() && !s.int_or_string && !s.preserve_unknown {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(at.as_str(), detail));
    }
    if s.embedded && s.additional.is_some() {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(format!("{path}.additionalProperties"), detail));
    }
    if level == Level::Root && !s.kind.is_empty() && s.kind != "object" {
        errors.push(FieldError::invalid(at, s.kind.as_str(), "must be object at the root"));
    }
    if s.embedded && !s.preserve_unknown && s.properties.is_empty() {
        errors.push(FieldError::required(
            format!("{path}.properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
}

fn metadata(s: &Structural, level: Level, path: &str, errors: &mut Vec<FieldError>) {
    let is_object = level == Level::Root || s.embedded;
    for name in ["kind", "apiVersion"] {
        if let Some(field) = s.properties.get(name).filter(|field| is_object && field.kind != "string") {
            let at = format!("{path}.properties[{name}].type");
            errors.push(FieldError::invalid(at, field.kind.as_str(), "must be string"));
        }
    }
    let Some(metadata) = s.properties.get("metadata") else { return };
    let at = format!("{path}.properties[metadata]");
    if is_object && metadata.kind != "object" {
        errors.push(FieldError::invalid(format!("{at}.type"), metadata.kind.as_str(), "must be object"));
    }
    if level == Level::Root {
        let mut rest = metadata.clone();
        if rest.properties.keys().all(|name| matches!(name.as_str(), "name" | "generateName")) {
            rest.properties.clear();
        }
        rest.kind.clear();
        rest.default = None;
        if rest != Structural::default() {
            let detail =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(at, detail));
        }
    }
}

fn values(v: &Values, skip_any_of: bool, skip_first: bool, path: &str, errors: &mut Vec<FieldError>) {
    if !skip_any_of {
        for (i, inner) in v.any_of.iter().enumerate() {
            nested(inner, false, &format!("{path}.anyOf[{i}]"), errors);
        }
    }
    for (i, inner) in v.all_of.iter().enumerate() {
        nested(inner, skip_first && i == 0, &format!("{path}.allOf[{i}]"), errors);
    }
    for (i, inner) in v.one_of.iter().enumerate() {
        nested(inner, false, &format!("{path}.oneOf[{i}]"), errors);
    }
    if let Some(inner) = &v.not {
        nested(inner, false, &format!("{path}.not"), errors);
    }
    if let Some(pattern) = &v.pattern
        && let Err(why) = &pattern.compiled
    {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(FieldError::invalid(format!("{path}.pattern"), pattern.source.as_str(), detail));
    }
}

fn nested(s: &Structural, skip_any_of: bool, path: &str, errors: &mut Vec<FieldError>) {
    values(&s.values, skip_any_of, false, path, errors);
    if let Some(items) = &s.items {
        nested(items, false, &format!("{path}.items"), errors);
    }
    for (name, field) in &s.properties {
        nested(field, false, &format!("{path}.properties[{name}]"), errors);
    }
    for (given, name, what) in [
        (!s.kind.is_empty(), "type", "empty"),
        (s.additional.is_some(), "additionalProperties", "undefined"),
        (s.default.is_some(), "default", "undefined"),
        (s.has_title, "title", "empty"),
        (s.has_description, "description", "empty"),
        (s.nullable, "nullable", "false"),
        (s.has_external_docs, "externalDocs", "undefined"),
        (s.preserve_unknown, "x-kubernetes-preserve-unknown-fields", "false"),
        (s.embedded, "x-kubernetes-embedded-resource", "false"),
        (s.int_or_string, "x-kubernetes-int-or-string", "false"),
        (!s.list_keys.is_empty(), "x-kubernetes-list-map-keys", "empty"),
        (s.list_type.is_some(), "x-kubernetes-list-type", "undefined"),
        (s.map_type.is_some(), "x-kubernetes-map-type", "undefined"),
        (s.rules > 0, "x-kubernetes-validations", "empty"),
    ] {
        if given {
            errors.push(FieldError::forbidden(format!("{path}.{name}"), format!("must be {what} to be structural")));
        }
    }
    if s.properties.contains_key("metadata") {
        let detail = "must not be specified in a nested context";
        errors.push(FieldError::forbidden(format!("{path}.properties[metadata]"), detail));
    }
}

/// Checks that what `v` speaks of is in `s`.
fn complete_values(v: &Values, s: Option<&Structural>, s_path: &str, v_path: &str, errors: &mut Vec<FieldError>) {
    let lists = [("allOf", &v.all_of), ("anyOf", &v.any_of), ("oneOf", &v.one_of)];
    if let Some(inner) = &v.not {
        complete(inner, s, s_path, &format!("{v_path}.not"), errors);
    }
    for (name, list) in lists {
        for (i, inner) in list.iter().enumerate() {
            complete(inner, s, s_path, &format!("{v_path}.{name}[{i}]"), errors);
        }
    }
}

fn complete(v: &Structural, s: Option<&Structural>, s_path: &str, v_path: &str, errors: &mut Vec<FieldError>) {
    let Some(s) = s else {
        errors.push(FieldError::required(s_path, format!("because it is defined in {v_path}")));
        return;
    };
    complete_values(&v.values, Some(s), s_path, v_path, errors);
    if let Some(items) = &v.items {
        complete(items, s.items.as_deref(), &format!("{s_path}.items"), &format!("{v_path}.items"), errors);
    }
    for (name, field) in &v.properties {
        let (s_path, v_path) = (format!("{s_path}.properties[{name}]"), format!("{v_path}.properties[{name}]"));
        complete(field, s.properties.get(name), &s_path, &v_path, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::super::structural::parsed;
    use super::*;
    use serde_json::{Value, json};

    fn errors(schema: &Value) -> Vec<String> {
        check(&parsed(schema), "s").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn types_are_required() {
        assert_eq!(errors(&json!({})), ["s.type: Required value: must not be empty at the root"]);
        assert_eq!(
            errors(&json!({"type": "string"})),
            ["s.type: Invalid value: \"string\": must be object at the root"]
        );
        let schema = json!({"type": "object", "properties": {
            "a": {}, "b": {"type": "array"}, "c": {"type": "array", "items": {}}, "d": {"x-kubernetes-preserve-unknown-fields": true},
            "e": {"x-kubernetes-int-or-string": true},
        }});
        assert_eq!(
            errors(&schema),
            [
                "s.properties[a].type: Required value: must not be empty for specified object fields",
                "s.properties[b].items: Required value: must be specified",
                "s.properties[c].items.type: Required value: must not be empty for specified array items",
            ]
        );
    }

    #[test]
    fn value_validation_says_nothing_of_structure() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{
            "type": "object", "description": "d", "title": "t", "default": {}, "nullable": true, "externalDocs": {},
            "additionalProperties": false, "x-kubernetes-embedded-resource": true, "x-kubernetes-list-type": "set",
            "x-kubernetes-validations": [{"rule": "true"}], "properties": {"metadata": {}, "a": {"minimum": 1}, "b": {}},
        }]});
        assert_eq!(
            errors(&schema),
            [
                "s.anyOf[0].additionalProperties: Forbidden: must be undefined to be structural",
                "s.anyOf[0].default: Forbidden: must be undefined to be structural",
                "s.anyOf[0].description: Forbidden: must be empty to be structural",
                "s.anyOf[0].externalDocs: Forbidden: must be undefined to be structural",
                "s.anyOf[0].nullable: Forbidden: must be false to be structural",
                "s.anyOf[0].properties[metadata]: Forbidden: must not be specified in a nested context",
                "s.anyOf[0].title: Forbidden: must be empty to be structural",
                "s.anyOf[0].type: Forbidden: must be empty to be structural",
                "s.anyOf[0].x-kubernetes-embedded-resource: Forbidden: must be false to be structural",
                "s.anyOf[0].x-kubernetes-list-type: Forbidden: must be undefined to be structural",
                "s.anyOf[0].x-kubernetes-validations: Forbidden: must be empty to be structural",
                "s.properties[b]: Required value: because it is defined in s.anyOf[0].properties[b]",
                "s.properties[metadata]: Required value: because it is defined in s.anyOf[0].properties[metadata]",
            ]
        );
    }

    #[test]
    fn integers_or_strings_may_name_their_types() {
        let any = json!([{"type": "integer"}, {"type": "string"}]);
        for field in [
            json!({"x-kubernetes-int-or-string": true, "anyOf": any}),
            json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": any}, {"pattern": "^a"}]}),
        ] {
            assert!(errors(&json!({"type": "object", "properties": {"a": field}})).is_empty());
        }
        let both = json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(
            errors(&json!({"type": "object", "properties": {"a": both}})),
            ["s.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if \
              x-kubernetes-int-or-string is true"]
        );
    }

    #[test]
    fn metadata_is_not_to_be_specified() {
        let with = |metadata: Value| errors(&json!({"type": "object", "properties": {"metadata": metadata}}));
        assert!(with(json!({"type": "object"})).is_empty());
        assert!(with(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}})).is_empty());
        assert_eq!(
            with(json!({"type": "object", "properties": {"labels": {"type": "object"}}})),
            [
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is \
              implicitly specified"
            ]
        );
        assert_eq!(
            with(json!({"type": "string"})),
            ["s.properties[metadata].type: Invalid value: \"string\": must be object"]
        );
        assert_eq!(
            errors(&json!({"type": "object", "properties": {"kind": {"type": "integer"}}})),
            ["s.properties[kind].type: Invalid value: \"integer\": must be string"]
        );
    }

    #[test]
    fn the_root_and_embedded_resources_have_rules_of_their_own() {
        assert_eq!(
            errors(&json!({"type": "object", "additionalProperties": true})),
            ["s.additionalProperties: Forbidden: must not be used at the root"]
        );
        let embedded = |more: Value| {
            let mut field = json!({"x-kubernetes-embedded-resource": true});
            field.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
            errors(&json!({"type": "object", "properties": {"a": field}}))
        };
        assert!(embedded(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})).is_empty());
        assert_eq!(
            embedded(json!({"type": "object", "additionalProperties": true})),
            [
                "s.properties[a].additionalProperties: Forbidden: must not be used if x-kubernetes-embedded-resource is set",
                "s.properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without \
                 x-kubernetes-preserve-unknown-fields",
            ]
        );
        assert_eq!(
            embedded(json!({"type": "string", "x-kubernetes-preserve-unknown-fields": true})),
            [
                "s.properties[a].type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true"
            ]
        );
    }

    #[test]
    fn patterns_must_compile() {
        let found = errors(&json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}));
        let start = "s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: ";
        assert!(found.len() == 1 && found[0].starts_with(start), "{found:?}");
    }
}
