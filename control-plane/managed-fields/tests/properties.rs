//! Laws of sets, and of applying.

use keelson_managed_fields::managers::BEFORE_FIRST_APPLY;
use keelson_managed_fields::typed::{Duplicates, compare, merge, to_field_set, validate};
use keelson_managed_fields::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

fn element() -> impl Strategy<Value = PathElement> {
    prop_oneof![
        4 => "[a-c]|[<\"\\\\é\n]".prop_map(|name| PathElement::field(&name)),
        1 => (0..4_i64, "[xy&]").prop_map(|(port, name)| PathElement::key([("port", json!(port)), ("name", json!(name))])),
        1 => prop_oneof![any::<i32>().prop_map(Value::from), any::<bool>().prop_map(Value::from), "[a-c\u{2028}]".prop_map(Value::from),
            (-32..32_i32).prop_map(|n| Value::from(f64::from(n) / 4.0))].prop_map(|v| PathElement::value(&v)),
        1 => (0..3_i64).prop_map(PathElement::Index),
    ]
}

fn set() -> impl Strategy<Value = Set> {
    vec(vec(element(), 1..4).prop_map(Path), 0..12).prop_map(|paths| paths.into_iter().collect())
}

fn schema() -> Value {
    let leaf = json!({"type": "integer"});
    json!({"type": "object", "properties": {
        "n": leaf, "m": leaf,
        "map": {"type": "object", "additionalProperties": leaf},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "properties": {"name": {"type": "string"}, "v": leaf, "w": leaf}}},
        "in": {"type": "object", "properties": {"x": leaf, "y": leaf}},
        "atomic": {"type": "array", "items": leaf},
    }})
}

fn some<T: std::fmt::Debug + 'static>(
    name: &'static str,
    v: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<(String, Value)>>
where
    Value: From<T>,
{
    proptest::option::of(v.prop_map(move |v| (name.to_owned(), Value::from(v)))).boxed()
}

/// Objects of the schema, without empty parts and duplicates.
fn body() -> impl Strategy<Value = Value> {
    let small = || 0..3_i64;
    let map = |keys: &'static str| btree_map(keys, small(), 1..3).prop_map(|m| json!(m));
    let item = (some("v", small()), some("w", small()))
        .prop_map(|(v, w)| v.into_iter().chain(w).collect::<serde_json::Map<_, _>>());
    let list = btree_map("[a-d]", item, 1..4).prop_shuffled_items();
    let set = btree_map("[a-d]", Just(()), 1..4)
        .prop_map(|m| m.into_keys().collect::<Vec<_>>())
        .prop_shuffle()
        .prop_map(|v| json!(v));
    vec![
        some("n", small()),
        some("m", small()),
        some("map", map("[a-c]")),
        some("in", map("[xy]")),
        some("set", set),
        some("list", list),
        some("atomic", vec(small(), 1..3).prop_map(|v| json!(v))),
    ]
    .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect()))
}

trait Shuffled {
    fn prop_shuffled_items(self) -> BoxedStrategy<Value>;
}

impl<S: Strategy<Value = std::collections::BTreeMap<String, serde_json::Map<String, Value>>> + 'static> Shuffled for S {
    fn prop_shuffled_items(self) -> BoxedStrategy<Value> {
        self.prop_map(|items| {
            let named = |(name, mut item): (String, serde_json::Map<String, Value>)| {
                item.insert("name".to_owned(), json!(name));
                Value::Object(item)
            };
            items.into_iter().map(named).collect::<Vec<_>>()
        })
        .prop_shuffle()
        .prop_map(Value::Array)
        .boxed()
    }
}

fn object(mut body: Value) -> Value {
    body["apiVersion"] = json!("v1");
    body["kind"] = json!("T");
    body["metadata"] = json!({"name": "x"});
    body
}

/// A step: who, what, and whether by an apply.
fn steps() -> impl Strategy<Value = Vec<(usize, Value, bool)>> {
    vec((0..3_usize, body(), any::<bool>()), 1..8)
}

fn request(manager: &str, force: bool) -> Request<'_> {
    Request { manager, api_version: "v1", subresource: "", now: jiff::Timestamp::UNIX_EPOCH, force }
}

const MANAGERS: [&str; 3] = ["a", "b", "c"];

fn run(schema: &Value, steps: Vec<(usize, Value, bool)>) -> Value {
    let types = OneType(JsonSchema::object(schema));
    let mut live: Option<Value> = None;
    for (who, body, apply) in steps {
        let request = request(MANAGERS[who], true);
        let mut new = if apply {
            applied(&types, live.as_ref(), &object(body), &request, &Set::new()).expect("forced")
        } else {
            let mut new = object(body);
            updated(&types, live.as_ref(), &mut new, &request, &Set::new()).expect("update");
            new
        };
        new["metadata"]["uid"] = json!("u");
        live = Some(new);
    }
    live.expect("one step")
}

fn entries(object: &Value) -> Managers {
    Managers::decode(object["metadata"].get("managedFields")).expect("managers")
}

fn fields(object: &Value, schema: &Value) -> Set {
    let mut object = object.clone();
    object["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    to_field_set(&object, JsonSchema::object(schema)).expect("fields")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sets_obey_their_algebra(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.len(), a.paths().len());
        prop_assert!(a.recursive_difference(&b).difference(&a.difference(&b)).is_empty());
        for path in a.union(&b).paths() {
            prop_assert_eq!(a.union(&b).has(&path.0), true);
            prop_assert_eq!(a.intersection(&b).has(&path.0), a.has(&path.0) && b.has(&path.0));
            prop_assert_eq!(a.difference(&b).has(&path.0), a.has(&path.0) && !b.has(&path.0));
            let covered = (1..=path.0.len()).any(|n| b.has(&path.0[..n]));
            prop_assert_eq!(a.recursive_difference(&b).has(&path.0), a.has(&path.0) && !covered);
        }
        for path in a.leaves().paths() {
            prop_assert!(a.has(&path.0));
        }
    }

    #[test]
    fn sets_are_read_as_they_were_written(a in set()) {
        let text = a.serialise();
        let again = Set::parse(&text).expect("own text");
        prop_assert_eq!(again.serialise(), text);
        prop_assert_eq!(&again, &a);
        prop_assert_eq!(&Set::from_value(&a.to_value()).expect("own value"), &a);
    }

    #[test]
    fn hostile_text_is_refused_or_read(text in "([{}\\[\\]:,\"]|\"[fkvix]?:?[^\"\\\\]{0,6}\"|[fkvi]:|\\\\|\\PC){0,40}") {
        if let Ok(set) = Set::parse(&text) {
            prop_assert_eq!(Set::parse(&set.serialise()).expect("own text"), set);
        }
        if let Ok(Some(element)) = PathElement::parse(&text) {
            prop_assert_eq!(PathElement::parse(&element.serialise()).expect("own text"), Some(element));
        }
    }

    #[test]
    fn hostile_entries_never_panic(name in "[fkvix]:[^\\PC]{0,3}\\PC{0,12}", key in "k:\\{\\PC{0,12}\\}") {
        for name in [name, key] {
            let list = json!([{"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {name: {}}}]);
            if let Ok(managers) = Managers::decode(Some(&list)) {
                let again = managers.encode().expect("one entry");
                prop_assert_eq!(Managers::decode(Some(&again)).expect("own list"), managers);
            }
        }
    }

    #[test]
    fn a_comparison_tells_all(old in body(), new in body()) {
        let schema = schema();
        let t = JsonSchema::node(&schema);
        let c = compare(&old, &new, t).expect("compare");
        let (before, after) = (to_field_set(&old, t).expect("old"), to_field_set(&new, t).expect("new"));
        prop_assert!(after.difference(&before).difference(&c.added).is_empty());
        prop_assert!(before.difference(&after).difference(&c.removed).is_empty());
        prop_assert!(c.modified.difference(&before.intersection(&after)).is_empty());
        prop_assert!(c.added.intersection(&before).is_empty() && c.removed.intersection(&after).is_empty());
        prop_assert!(compare(&new, &new, t).expect("compare").is_same());
    }

    #[test]
    fn a_merge_loses_nothing_and_takes_all(live in body(), config in body()) {
        let schema = schema();
        let t = JsonSchema::node(&schema);
        let merged = merge(&live, &config, t).expect("merge");
        prop_assert!(validate(&merged, t, Duplicates::Refused).is_ok());
        let all = to_field_set(&live, t).expect("live").union(&to_field_set(&config, t).expect("config"));
        prop_assert_eq!(to_field_set(&merged, t).expect("merged"), all);
        let c = compare(&merged, &config, t).expect("compare");
        prop_assert!(c.added.is_empty() && c.modified.is_empty());
        prop_assert_eq!(merge(&merged, &config, t).expect("again"), merged);
    }

    #[test]
    fn applying_twice_is_applying_once(before in steps(), config in body()) {
        let schema = schema();
        let types = OneType(JsonSchema::object(&schema));
        let live = run(&schema, before);
        let config = object(config);
        let once = applied(&types, Some(&live), &config, &request("a", true), &Set::new()).expect("once");
        let twice = applied(&types, Some(&once), &config, &request("a", false), &Set::new()).expect("no conflict with oneself");
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn an_apply_does_what_it_says_and_nothing_to_others(before in steps(), config in body()) {
        let schema = schema();
        let types = OneType(JsonSchema::object(&schema));
        let live = run(&schema, before);
        let config = object(config);
        let forced = applied(&types, Some(&live), &config, &request("a", true), &Set::new()).expect("forced");
        let present = fields(&forced, &schema);
        prop_assert!(fields(&config, &schema).difference(&present).is_empty(), "all that is applied is there");
        for (id, entry) in entries(&live).entries {
            if id.manager != "a" && id.operation == Operation::Apply {
                prop_assert!(entry.set.difference(&present).is_empty(), "what another applied stays");
            }
        }
        for (id, entry) in entries(&forced).entries {
            prop_assert!(!entry.set.is_empty(), "{:?} owns nothing", id);
        }
        match applied(&types, Some(&live), &config, &request("a", false), &Set::new()) {
            Ok(new) => prop_assert_eq!(new, forced),
            Err(ApplyError::Conflicts(conflicts)) => {
                let held = entries(&live).entries;
                for conflict in &conflicts.0 {
                    let before = conflict.manager.manager == BEFORE_FIRST_APPLY && held.is_empty();
                    prop_assert!(before || held[&conflict.manager].set.has(&conflict.path.0));
                    prop_assert!(conflict.manager.manager != "a" || conflict.manager.operation == Operation::Update);
                }
                prop_assert!(!conflicts.0.is_empty());
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn appliers_own_only_what_is_there(steps in steps()) {
        let schema = schema();
        let live = run(&schema, steps);
        let present = fields(&live, &schema);
        for (id, entry) in entries(&live).entries {
            // Structs that came to be as a whole are no fields by themselves.
            let structs = Set::of_fields(&[&["map"], &["in"], &["set"], &["list"]]);
            prop_assert!(entry.set.difference(&present).difference(&structs).is_empty(), "{:?}: {}", id, entry.set.serialise());
        }
    }
}
