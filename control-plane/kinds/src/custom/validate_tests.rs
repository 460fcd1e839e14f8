//! Tests of validation by a schema: upstream's messages, alternatives, ratcheting, and random schemas and values.

use proptest::prelude::*;
use serde_json::json;

use super::super::default::default;
use super::super::prune::prune;
use super::super::structural::parsed;
use super::*;

fn errors(schema: Value, value: Value) -> Vec<String> {
    let target = Target { value: &value, old: None, prefix: "" };
    validate(&parsed(&schema), &target).iter().map(ToString::to_string).collect()
}

fn field(schema: Value, value: Value) -> Vec<String> {
    errors(
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": schema}}}}),
        json!({"spec": {"x": value}}),
    )
}

fn only(schema: Value, value: Value, message: &str) {
    assert_eq!(field(schema.clone(), value.clone()), [message], "{schema} {value}");
}

fn fits(schema: Value, value: Value) {
    assert_eq!(field(schema.clone(), value.clone()), Vec::<String>::new(), "{schema} {value}");
}

#[test]
fn types_are_named_as_upstream_does() {
    only(
        json!({"type": "integer"}),
        json!("string"),
        "spec.x: Invalid value: \"string\": spec.x in body must be of type integer: \"string\"",
    );
    only(
        json!({"type": "string"}),
        json!(1),
        "spec.x: Invalid value: \"integer\": spec.x in body must be of type string: \"integer\"",
    );
    only(
        json!({"type": "string"}),
        json!(null),
        "spec.x: Invalid value: \"null\": spec.x in body must be of type string: \"null\"",
    );
    only(
        json!({"type": "integer"}),
        json!(1.5),
        "spec.x: Invalid value: \"number\": spec.x in body must be of type integer: \"number\"",
    );
    only(
        json!({"type": "array", "items": {"type": "string"}}),
        json!({}),
        "spec.x: Invalid value: \"object\": spec.x in body must be of type array: \"object\"",
    );
    only(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        "spec.x: Invalid value: \"boolean\": spec.x in body must be of type integer,string: \"boolean\"",
    );
    fits(json!({"type": "string", "nullable": true}), json!(null));
    fits(json!({"type": "integer"}), json!(2.0));
    fits(json!({"type": "number"}), json!(2));
    fits(json!({"x-kubernetes-int-or-string": true}), json!("80%"));
    fits(json!({"x-kubernetes-preserve-unknown-fields": true}), json!([{"a": 1}]));
    assert_eq!(
        validate(
            &parsed(&json!({"type": "object", "properties": {"a": {"type": "string"}}})),
            &Target { value: &json!({"a": 1}), old: None, prefix: "" }
        )[0]
        .kind,
        CauseKind::TypeInvalid
    );
}

#[test]
fn numbers_are_limited() {
    only(
        json!({"type": "integer", "minimum": 1}),
        json!(0),
        "spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1",
    );
    only(
        json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
        json!(1),
        "spec.x: Invalid value: 1: spec.x in body should be greater than 1",
    );
    only(
        json!({"type": "number", "maximum": 1.5}),
        json!(1.75),
        "spec.x: Invalid value: 1.75: spec.x in body should be less than or equal to 1.5",
    );
    only(
        json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
        json!(3),
        "spec.x: Invalid value: 3: spec.x in body should be less than 3",
    );
    only(
        json!({"type": "integer", "multipleOf": 5}),
        json!(7),
        "spec.x: Invalid value: 7: spec.x in body should be a multiple of 5",
    );
    only(
        json!({"type": "integer", "format": "int32"}),
        json!(3_000_000_000_i64),
        "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.x",
    );
    fits(json!({"type": "integer", "format": "int64"}), json!(3_000_000_000_i64));
    fits(json!({"type": "integer", "minimum": 1, "maximum": 3, "multipleOf": 2}), json!(2));
}

#[test]
fn strings_are_limited() {
    only(json!({"type": "string", "maxLength": 2}), json!("abc"), "spec.x: Too long: may not be more than 2 bytes");
    fits(json!({"type": "string", "maxLength": 2}), json!("éé"));
    only(
        json!({"type": "string", "minLength": 1}),
        json!(""),
        "spec.x: Invalid value: \"\": spec.x in body should be at least 1 chars long",
    );
    only(
        json!({"type": "string", "pattern": "^a$"}),
        json!("b"),
        "spec.x: Invalid value: \"b\": spec.x in body should match '^a$'",
    );
    only(
        json!({"type": "string", "format": "ipv4"}),
        json!("x"),
        "spec.x: Invalid value: \"x\": spec.x in body must be of type ipv4: \"x\"",
    );
    only(
        json!({"type": "string", "enum": ["a", "b"]}),
        json!("c"),
        "spec.x: Unsupported value: \"c\": supported values: \"a\", \"b\"",
    );
    only(
        json!({"type": "integer", "enum": [1, 2]}),
        json!(3),
        "spec.x: Unsupported value: 3: supported values: \"1\", \"2\"",
    );
    fits(json!({"type": "integer", "enum": [1, 2]}), json!(2.0));
    fits(json!({"type": "string", "format": "no-such-format"}), json!("x"));
    fits(json!({"type": "string", "format": "date-time"}), json!("2026-01-02T03:04:05Z"));
}

#[test]
fn lists_and_maps_are_limited() {
    let list = json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}});
    only(list.clone(), json!([]), "spec.x: Invalid value: 0: spec.x in body should have at least 1 items");
    only(list.clone(), json!([{"a": "1"}, {"a": "2"}, {"a": "3"}]), "spec.x: Too many: 3: must have at most 2 items");
    only(list.clone(), json!([{"a": "1"}, {}]), "spec.x[1].a: Required value");
    only(
        list,
        json!([{"a": 1}]),
        "spec.x[0].a: Invalid value: \"integer\": spec.x[0].a in body must be of type string: \"integer\"",
    );
    only(
        json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
        json!(["a", "a"]),
        "spec.x: Invalid value: \"\": spec.x in body shouldn't contain duplicates",
    );
    let map =
        json!({"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"type": "integer"}});
    only(map.clone(), json!({}), "spec.x: Invalid value: 0: spec.x in body should have at least 1 properties");
    only(map.clone(), json!({"a": 1, "b": 2}), "spec.x: Too many: 2: must have at most 1 item");
    only(
        map,
        json!({"a": "b"}),
        "spec.x.a: Invalid value: \"string\": spec.x.a in body must be of type integer: \"string\"",
    );
    only(
        json!({"type": "object", "additionalProperties": false}),
        json!({"a": 1}),
        "spec.x: Invalid value: \"a\": spec.x.a in body is a forbidden property",
    );
    assert_eq!(errors(json!({"type": "object", "required": ["spec"]}), json!({})), ["spec: Required value"]);
}

#[test]
fn alternatives_name_the_closest() {
    let base = |more: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
        schema.as_object_mut().expect("map").extend(more.as_object().expect("map").clone());
        schema
    };
    let either = json!([{"required": ["a"]}, {"required": ["b"]}]);
    fits(base(json!({"anyOf": either})), json!({"a": "1", "b": "2"}));
    assert_eq!(
        field(base(json!({"anyOf": either})), json!({})),
        [
            "<nil>: Invalid value: \"\": \"spec.x\" must validate at least one schema (anyOf)",
            "spec.x.a: Required value"
        ]
    );
    fits(base(json!({"oneOf": either})), json!({"a": "1"}));
    only(
        base(json!({"oneOf": either})),
        json!({"a": "1", "b": "2"}),
        "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
    );
    assert_eq!(
        field(base(json!({"oneOf": either})), json!({}))[0],
        "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found none valid"
    );
    assert_eq!(
        field(base(json!({"allOf": either})), json!({"a": "1"})),
        ["spec.x.b: Required value", "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf)"]
    );
    assert_eq!(
        field(base(json!({"allOf": either})), json!({}))[2],
        "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf). None validated"
    );
    only(
        base(json!({"not": {"required": ["a"]}})),
        json!({"a": "1"}),
        "<nil>: Invalid value: \"\": \"spec.x\" must not validate the schema (not)",
    );
    fits(base(json!({"not": {"required": ["a"]}})), json!({"b": "1"}));
    let port = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+$"});
    fits(port.clone(), json!(1));
    only(port, json!("x"), "spec.x: Invalid value: \"x\": spec.x in body should match '^[0-9]+$'");
}

#[test]
fn a_part_is_named_below_its_prefix() {
    let schema = parsed(&json!({"type": "object", "required": ["b"], "properties": {"a": {"type": "integer"}}}));
    let found: Vec<String> = validate(&schema, &Target { value: &json!({"a": "x"}), old: None, prefix: "status" })
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        [
            "status.a: Invalid value: \"string\": a in body must be of type integer: \"string\"",
            "status.b: Required value"
        ]
    );
    let found = validate(&schema, &Target { value: &json!(1), old: None, prefix: "status" });
    assert_eq!(
        found[0].to_string(),
        "status: Invalid value: \"integer\":  in body must be of type object: \"integer\""
    );
}

fn update(old: Value, new: Value) -> Vec<String> {
    let schema = parsed(
        &json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["needed"], "properties": {
            "n": {"type": "integer", "minimum": 10}, "needed": {"type": "string"}, "m": {"type": "integer"},
            "atomic": {"type": "array", "items": {"type": "integer", "minimum": 10}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer", "minimum": 10}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "required": ["z"]},
            "alt": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "allOf": [{"properties": {"a": {"pattern": "^x"}}}]},
        }}}}),
    );
    validate(&schema, &Target { value: &json!({"spec": new}), old: Some(&json!({"spec": old})), prefix: "" })
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn what_was_wrong_before_is_tolerated() {
    assert!(update(json!({"n": 1, "needed": "a"}), json!({"n": 1, "needed": "b"})).is_empty());
    assert_eq!(
        update(json!({"n": 1, "needed": "a"}), json!({"n": 2, "needed": "a"})),
        ["spec.n: Invalid value: 2: spec.n in body should be greater than or equal to 10"]
    );
    // A field that is missing is an error of what holds it, which must not have changed at all.
    assert!(update(json!({"m": 1}), json!({"m": 1})).is_empty());
    assert_eq!(update(json!({"m": 1}), json!({"m": 2})), ["spec.needed: Required value"]);
}

#[test]
fn items_are_found_again_by_their_keys() {
    let with = |key: &str, value: Value| json!({"needed": "a", key: value});
    assert!(
        update(
            with("map", json!([{"k": "a", "v": 1}, {"k": "b", "v": 20}])),
            with("map", json!([{"k": "b", "v": 30}, {"k": "a", "v": 1}]))
        )
        .is_empty()
    );
    assert_eq!(
        update(with("map", json!([{"k": "a", "v": 1}])), with("map", json!([{"k": "b", "v": 1}]))),
        ["spec.map[0].v: Invalid value: 1: spec.map[0].v in body should be greater than or equal to 10"]
    );
    assert!(update(with("atomic", json!([1])), with("atomic", json!([1]))).is_empty());
    assert_eq!(
        update(with("atomic", json!([1])), with("atomic", json!([1, 20]))),
        ["spec.atomic[0]: Invalid value: 1: spec.atomic[0] in body should be greater than or equal to 10"]
    );
    // Unknown fields are not compared.
    assert_eq!(update(with("free", json!({"a": 1})), with("free", json!({"a": 1}))), ["spec.free.z: Required value"]);
    assert!(update(with("alt", json!({"a": "y", "b": 1})), with("alt", json!({"a": "y", "b": 2}))).is_empty());
    assert!(!update(with("alt", json!({"a": "y", "b": 1})), with("alt", json!({"a": "z", "b": 1}))).is_empty());
}

#[test]
fn errors_are_bounded() {
    let schema = json!({"type": "array", "items": {"type": "string"}});
    let many: Value = (0..100_000).collect();
    assert!(field(schema, many).len() <= MAX_ERRORS + 1);
}

#[test]
fn depth_is_no_danger() {
    let nest = |wrap: fn(Value) -> Value, leaf: Value, levels: usize| (0..levels).fold(leaf, |inner, _| wrap(inner));
    // As deep as JSON text may be.
    let value = nest(|inner| json!({ "a": inner }), json!(1), 125);
    let schemas = [
        nest(|inner| json!({"type": "object", "properties": {"a": inner}}), json!({"type": "string"}), 60),
        nest(
            |inner| json!({"type": "object", "additionalProperties": inner}),
            json!({"x-kubernetes-preserve-unknown-fields": true}),
            60,
        ),
        nest(|inner| json!({"type": "object", "not": {"allOf": [inner]}}), json!({"type": "string"}), 30),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    ];
    for schema in schemas {
        let parsed = parsed(&schema);
        let mut obj = value.clone();
        default(&mut obj, &parsed);
        let _ = validate(&parsed, &Target { value: &obj, old: Some(&value), prefix: "" });
        let _ = super::super::embedded::coerce("", &mut obj, &parsed);
        let _ = (super::super::lists::validate("", &obj, &parsed), super::super::embedded::validate("", &obj, &parsed));
        let _ = (super::super::invariants::check(&parsed, "s"), super::super::keywords::check(&schema, "s"));
        prune(&mut obj, &parsed, true);
        assert_eq!(obj == value, parsed.preserve_unknown || parsed.additional.is_some(), "{schema}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-20_i64..20).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|map| map.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

/// Schemas that need not be structural: validation must bear them all.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = (
        prop::sample::select(vec!["", "string", "integer", "number", "boolean", "object", "array"]),
        prop::sample::select(vec!["", "int32", "date", "uuid", "float", "email"]),
        any::<bool>(),
        -3_i64..3,
        prop::option::of(any_value()),
        any::<bool>(),
    )
        .prop_map(|(kind, format, flag, limit, default, extension)| {
            json!({
                "type": kind, "format": format, "nullable": flag, "minimum": limit, "multipleOf": limit, "maxLength": limit, "minItems": limit,
                "pattern": "^[ab]*$", "required": ["a"], "default": default, "x-kubernetes-preserve-unknown-fields": extension.then_some(true),
                "x-kubernetes-int-or-string": flag && extension, "x-kubernetes-list-type": if flag { "map" } else { "set" },
                "x-kubernetes-list-map-keys": ["a"], "enum": if flag { json!([1, "a"]) } else { json!([]) },
            })
        });
    leaf.prop_recursive(4, 24, 4, |inner| {
        (inner.clone(), inner.clone(), inner.clone(), inner, 0..7_u8).prop_map(|(mut out, a, b, c, how)| {
            match how {
                0 => out["items"] = a,
                1 => out["additionalProperties"] = a,
                2 => out["properties"] = json!({"a": a, "b": b, "metadata": c}),
                3 => out["allOf"] = json!([a, b]),
                4 => out["anyOf"] = json!([a, b, c]),
                5 => out["oneOf"] = json!([a, b]),
                _ => out["not"] = a,
            }
            out
        })
    })
}

proptest! {
    #[test]
    fn nothing_panics(schema in any_schema(), value in any_value(), old in any_value()) {
        let schema = parsed(&schema);
        let _ = validate(&schema, &Target { value: &value, old: Some(&old), prefix: "" });
        let _ = super::super::lists::validate("", &value, &schema);
        let _ = super::super::embedded::validate("", &value, &schema);
        let _ = super::super::invariants::check(&schema, "s");
        let _ = super::super::defaults::check(&schema, "s");
    }

    #[test]
    fn keywords_do_not_panic(schema in any_schema(), value in any_value()) {
        let _ = super::super::keywords::check(&schema, "s");
        let _ = super::super::keywords::check(&value, "s");
        let _ = Structural::parse(&value, &mut super::super::pattern::Patterns::default());
    }

    #[test]
    fn pruning_twice_is_pruning_once(schema in any_schema(), value in any_value(), root in any::<bool>()) {
        let schema = parsed(&schema);
        let mut once = value;
        prune(&mut once, &schema, root);
        let mut twice = once.clone();
        prop_assert_eq!(prune(&mut twice, &schema, root), Vec::<String>::new());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn defaulting_twice_is_defaulting_once(schema in any_schema(), value in any_value()) {
        let schema = parsed(&schema);
        let mut once = value;
        default(&mut once, &schema);
        let mut twice = once.clone();
        default(&mut twice, &schema);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn what_is_right_stays_right(schema in any_schema(), value in any_value(), old in any_value()) {
        let schema = parsed(&schema);
        let fresh = validate(&schema, &Target { value: &value, old: None, prefix: "" });
        for old in [&old, &value] {
            let updated = validate(&schema, &Target { value: &value, old: Some(old), prefix: "" });
            prop_assert!(!fresh.is_empty() || updated.is_empty(), "{:?}", updated);
        }
    }
}
