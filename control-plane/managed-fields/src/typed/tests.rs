//! What upstream's tests of `typed` document.

use serde_json::{Value, json};

use super::*;
use crate::fieldpath::Path;
use crate::schema::{Deduced, JsonSchema};

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "atomic": {"type": "array", "items": {"type": "string"}},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "properties": {
                "name": {"type": "string"},
                "v": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            }}},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"], "items": {
            "type": "object", "properties": {
                "port": {"type": "integer"},
                "protocol": {"type": "string", "default": "TCP"},
                "name": {"type": "string"},
            }}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        "struct": {"type": "object", "properties": {"a": {"type": "string"}, "in": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
        "either": {"x-kubernetes-int-or-string": true},
    }})
}

fn set(paths: &str) -> String {
    let mut lines: Vec<&str> = paths.split_whitespace().collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn shown(set: &Set) -> String {
    let mut lines: Vec<_> = set.paths().iter().map(Path::to_string).collect();
    lines.sort();
    lines.join("\n")
}

fn fields(v: &Value) -> String {
    let schema = schema();
    shown(&to_field_set(v, JsonSchema::node(&schema)).expect("fields"))
}

fn merged(live: &Value, config: &Value) -> Value {
    let schema = schema();
    merge(live, config, JsonSchema::node(&schema)).expect("merge")
}

fn differences(old: &Value, new: &Value) -> [String; 3] {
    let schema = schema();
    let c = compare(old, new, JsonSchema::node(&schema)).expect("compare");
    [shown(&c.added), shown(&c.modified), shown(&c.removed)]
}

fn errors(v: &Value) -> String {
    let schema = schema();
    validate(v, JsonSchema::node(&schema), Duplicates::Refused).expect_err("invalid").to_string()
}

#[test]
fn leaves_items_and_entries_are_fields_and_structs_are_not() {
    let v = json!({"n": 1, "set": ["x"], "atomic": ["y"], "list": [{"name": "a", "v": 1}], "ports": [{"port": 80}],
        "map": {"k": "v"}, "whole": {"a": "1"}, "struct": {"in": {"x": 1}}, "either": "80%"});
    assert_eq!(
        fields(&v),
        set(r#".n .set[="x"] .atomic .list[name="a"] .list[name="a"].name .list[name="a"].v
            .ports[port=80,protocol="TCP"] .ports[port=80,protocol="TCP"].port .map.k .whole .struct.in.x .either"#)
    );
}

#[test]
fn what_is_empty_is_a_field() {
    assert_eq!(fields(&json!({"map": {}, "struct": {}, "n": null, "list": null})), set(".map .struct .n .list"));
    assert_eq!(fields(&json!({"list": []})), "");
}

#[test]
fn duplicates_are_owned_by_the_item_alone() {
    let v = json!({"list": [{"name": "a", "v": 1}, {"name": "b"}, {"name": "a", "v": 2}]});
    assert_eq!(fields(&v), set(r#".list[name="a"] .list[name="b"] .list[name="b"].name"#));
}

#[test]
fn without_a_schema_lists_are_leaves() {
    let v = json!({"a": {"b": [{"c": 1}], "d": {}}, "e": null});
    assert_eq!(shown(&to_field_set(&v, Deduced).expect("fields")), set(".a .a.b .a.d .e"));
}

#[test]
fn differences_are_by_field() {
    let [added, modified, removed] = differences(
        &json!({"n": 1, "s": "x", "set": ["a", "b"], "atomic": ["a"], "map": {"k": "1", "l": "2"}}),
        &json!({"n": 2, "b": true, "set": ["b", "c"], "atomic": ["b"], "map": {"k": "2"}}),
    );
    assert_eq!(added, set(r#".b .set[="c"]"#));
    assert_eq!(modified, set(".n .atomic .map.k"));
    assert_eq!(removed, set(r#".s .set[="a"] .map.l"#));
}

#[test]
fn what_comes_or_goes_does_so_with_its_parents() {
    let v = json!({"list": [{"name": "a", "v": 1}]});
    let all = set(r#".list .list[name="a"] .list[name="a"].name .list[name="a"].v"#);
    assert_eq!(differences(&json!({}), &v), [all.clone(), String::new(), String::new()]);
    assert_eq!(differences(&v, &json!({})), [String::new(), String::new(), all]);
}

#[test]
fn order_of_items_is_no_difference_but_in_atomic_lists() {
    let [_, modified, _] = differences(
        &json!({"set": ["a", "b"], "atomic": ["a", "b"]}),
        &json!({"set": ["b", "a"], "atomic": ["b", "a"]}),
    );
    assert_eq!(modified, ".atomic");
}

#[test]
fn numbers_of_the_same_size_are_the_same() {
    assert_eq!(differences(&json!({"n": 1}), &json!({"n": 1.0})), [""; 3].map(str::to_owned));
}

#[test]
fn a_node_may_become_something_else() {
    let c = compare(&json!({"a": 1}), &json!({"a": {"b": 1}}), Deduced).expect("compare");
    assert_eq!([shown(&c.added), shown(&c.modified), shown(&c.removed)], [".a.b", ".a", ""].map(str::to_owned));
}

#[test]
fn duplicates_come_and_go_as_one() {
    let one = json!({"list": [{"name": "a", "v": 1}]});
    let two = json!({"list": [{"name": "a", "v": 1}, {"name": "a", "v": 2}]});
    let other = json!({"list": [{"name": "a", "v": 1}, {"name": "a", "v": 3}]});
    let item = set(r#".list[name="a"]"#);
    let below = set(r#".list[name="a"].name .list[name="a"].v .list[name="a"]"#);
    assert_eq!(differences(&one, &two), [item.clone(), String::new(), below.clone()]);
    assert_eq!(differences(&two, &one), [below, String::new(), item.clone()]);
    assert_eq!(differences(&two, &other), [String::new(), item, String::new()]);
    assert_eq!(differences(&two, &two), [""; 3].map(str::to_owned));
}

#[test]
fn a_merge_keeps_what_it_does_not_name() {
    assert_eq!(
        merged(
            &json!({"n": 1, "s": "x", "map": {"a": "1"}, "whole": {"a": "1"}, "atomic": ["a"]}),
            &json!({"n": 2, "map": {"b": "2"}, "whole": {"b": "2"}, "atomic": ["b"]}),
        ),
        json!({"n": 2, "s": "x", "map": {"a": "1", "b": "2"}, "whole": {"b": "2"}, "atomic": ["b"]})
    );
}

#[test]
fn items_are_ordered_as_the_configuration_has_them() {
    let order = |live: &str, config: &str| -> String {
        let list = |text: &str| json!({"set": text.chars().map(String::from).collect::<Vec<_>>()});
        let out = merged(&list(live), &list(config));
        out["set"].as_array().expect("set").iter().filter_map(Value::as_str).collect()
    };
    for (live, config, expected) in [
        ("abc", "cba", "cba"),
        ("abc", "b", "abc"),
        ("abc", "cx", "abcx"),
        ("abc", "xa", "xabc"),
        ("aXb", "ba", "Xba"),
        ("abcd", "dxa", "bcdxa"),
        ("", "ab", "ab"),
        ("ab", "", "ab"),
        ("aYb", "axb", "aYxb"),
    ] {
        assert_eq!(order(live, config), expected, "{live} and {config}");
    }
}

#[test]
fn items_are_merged_by_all_their_keys() {
    assert_eq!(
        merged(
            &json!({"ports": [{"port": 53, "protocol": "UDP", "name": "u"}, {"port": 53, "protocol": "TCP", "name": "t"}]}),
            &json!({"ports": [{"port": 53, "name": "new"}]}),
        ),
        json!({"ports": [{"port": 53, "protocol": "UDP", "name": "u"}, {"port": 53, "protocol": "TCP", "name": "new"}]})
    );
}

#[test]
fn stored_duplicates_stay_until_they_are_applied() {
    let live = json!({"list": [{"name": "a", "v": 1}, {"name": "b"}, {"name": "a", "v": 2}]});
    assert_eq!(merged(&live, &json!({"list": [{"name": "b", "v": 3}]}))["list"].as_array().map(Vec::len), Some(3));
    assert_eq!(merged(&live, &json!({"list": [{"name": "a"}]})), json!({"list": [{"name": "a"}, {"name": "b"}]}));
}

#[test]
fn empty_and_null_are_kept_apart() {
    assert_eq!(merged(&json!({}), &json!({"map": {}, "list": []})), json!({"map": {}, "list": []}));
    assert_eq!(merged(&json!({"list": []}), &json!({"list": null})), json!({"list": null}));
    assert_eq!(merged(&json!({"map": {"a": "1"}}), &json!({"map": null})), json!({"map": {"a": "1"}}));
}

#[test]
fn removal_leaves_null_where_nothing_is_left() {
    let schema = schema();
    let t = JsonSchema::node(&schema);
    let v =
        json!({"n": 1, "set": ["a", "b"], "map": {"k": "v"}, "struct": {"a": "1", "in": {"x": 1}}, "atomic": ["a"]});
    let mut gone: Set =
        [&["n"][..], &["map", "k"], &["struct", "in", "x"], &["atomic", "0"]].into_iter().map(Path::fields).collect();
    gone.insert(&[PathElement::field("set"), PathElement::value(&json!("a"))]);
    assert_eq!(
        remove_items(&v, &gone, t),
        json!({"set": ["b"], "map": null, "struct": {"a": "1", "in": null}, "atomic": null})
    );
    assert_eq!(prune_items(&v, &gone, t), json!({"set": ["b"], "struct": {"a": "1"}}));
}

#[test]
fn extraction_takes_only_what_is_named() {
    let schema = schema();
    let t = JsonSchema::node(&schema);
    let v =
        json!({"n": 1, "s": "x", "list": [{"name": "a", "v": 1}, {"name": "b", "v": 2}], "map": {"k": "v", "l": "w"}});
    let mut wanted: Set = [&["n"][..], &["map", "k"]].into_iter().map(Path::fields).collect();
    wanted.insert(&[PathElement::field("list"), PathElement::key([("name", json!("b"))]), PathElement::field("v")]);
    assert_eq!(extract_items(&v, &wanted, t, false), json!({"n": 1, "list": [{"v": 2}], "map": {"k": "v"}}));
    assert_eq!(
        extract_items(&v, &wanted, t, true),
        json!({"n": 1, "list": [{"name": "b", "v": 2}], "map": {"k": "v"}})
    );
}

#[test]
fn a_key_may_be_left_out_if_another_is_there() {
    let schema = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
        "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}});
    let v = json!([{"a": "1"}, {"a": "1", "b": "2"}]);
    assert!(validate(&v, JsonSchema::node(&schema), Duplicates::Refused).is_ok());
    let set = to_field_set(&v, JsonSchema::node(&schema)).expect("fields");
    assert_eq!(
        shown(&set),
        set_lines(&["[a=\"1\"]", "[a=\"1\"].a", "[a=\"1\",b=\"2\"]", "[a=\"1\",b=\"2\"].a", "[a=\"1\",b=\"2\"].b"])
    );
}

fn set_lines(lines: &[&str]) -> String {
    set(&lines.join(" "))
}

#[test]
fn mistakes_are_named_with_their_paths() {
    assert_eq!(errors(&json!({"struct": {"zz": 1}})), ".struct.zz: field not declared in schema");
    assert_eq!(
        errors(&json!({"list": [{"name": "a"}, {"name": "a"}]})),
        ".list: duplicate entries for key [name=\"a\"]"
    );
    assert_eq!(errors(&json!({"set": ["a", "a"]})), ".set: duplicate entries for key [=\"a\"]");
    assert_eq!(
        errors(&json!({"list": [{"v": 1}]})),
        ".list: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)"
    );
    assert_eq!(errors(&json!({"n": "x"})), ".n: expected numeric (int or float), got string");
    assert_eq!(errors(&json!({"s": 1})), ".s: expected string, got &value.valueUnstructured{Value:1}");
    assert_eq!(errors(&json!({"map": "x"})), ".map: expected map, got &{x}");
    assert_eq!(errors(&json!({"list": {"a": 1}})), ".list: expected list, got &{map[a:1]}");
    assert_eq!(
        errors(&json!({"list": [{"name": "a", "v": "x"}]})),
        ".list[name=\"a\"].v: expected numeric (int or float), got string"
    );
    assert_eq!(
        errors(&json!({"n": "x", "b": 1})),
        "errors:\n  .b: expected boolean, got &{1}\n  .n: expected numeric (int or float), got string"
    );
}

#[test]
fn stored_duplicates_are_valid() {
    let schema = schema();
    assert!(validate(&json!({"set": ["a", "a"]}), JsonSchema::node(&schema), Duplicates::Allowed).is_ok());
}

#[test]
fn sets_are_carried_over_to_what_became_one_value() {
    let schema = schema();
    let t = JsonSchema::node(&schema);
    let old = Set::parse(
        r#"{"f:n":{},"f:whole":{".":{},"f:a":{}},"f:atomic":{"v:\"x\"":{}},"f:gone":{"f:x":{}},"f:list":{"k:{\"name\":\"a\"}":{".":{},"f:v":{}}}}"#,
    )
    .expect("set");
    assert_eq!(
        reconcile(&old, t).serialise(),
        r#"{"f:atomic":{},"f:gone":{"f:x":{}},"f:list":{"k:{\"name\":\"a\"}":{".":{},"f:v":{}}},"f:n":{},"f:whole":{}}"#
    );
    let new = Set::parse(r#"{"f:atomic":{},"f:map":{},"f:whole":{}}"#).expect("set");
    assert_eq!(reconcile(&new, t), new);
    let deduced = Set::parse(r#"{"f:a":{"f:b":{}}}"#).expect("set");
    assert_eq!(reconcile(&deduced, Deduced), deduced);
}

#[test]
fn named_fields_are_those_above_members() {
    let schema = schema();
    let set =
        Set::parse(r#"{"f:map":{"f:k":{}},"f:list":{"k:{\"name\":\"a\"}":{"f:v":{}}},"f:struct":{"f:in":{"f:x":{}}}}"#)
            .expect("set");
    assert_eq!(
        with_named_fields(&set, Some(JsonSchema::node(&schema))).serialise(),
        r#"{"f:list":{".":{},"k:{\"name\":\"a\"}":{"f:v":{}}},"f:map":{".":{},"f:k":{}},"f:struct":{".":{},"f:in":{".":{},"f:x":{}}}}"#
    );
}
