//! Tests of strategic merge patches, by example and by property.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::strategic_merge;

const POD: &str = "io.k8s.api.core.v1.Pod";
const SERVICE: &str = "io.k8s.api.core.v1.Service";
const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";

fn merged(definition: &str, current: &Value, patch: Value) -> Value {
    strategic_merge(definition, current, patch).expect("applies")
}

#[test]
fn containers_merge_by_name() {
    let current =
        json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2", "args": ["x"]}]}});
    let patch = json!({"spec": {"containers": [{"name": "b", "image": "3"}, {"name": "c", "image": "4"}]}});
    assert_eq!(
        merged(POD, &current, patch),
        json!({"spec": {"containers": [
            {"name": "a", "image": "1"}, {"name": "b", "image": "3", "args": ["x"]}, {"name": "c", "image": "4"}]}})
    );
}

#[test]
fn templates_merge_as_pods() {
    let current = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}}});
    let patch = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "a", "env": [{"name": "Y", "value": "2"}], "ports": [{"containerPort": 80, "name": "web"}]}]}}}});
    assert_eq!(
        merged(DEPLOYMENT, &current, patch)["spec"]["template"]["spec"]["containers"][0],
        // Y is only the patch's and comes first: upstream puts an element whose place is not known before those of the server.
        json!({"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}],
            "ports": [{"containerPort": 80, "name": "web", "protocol": "TCP"}]})
    );
}

#[test]
fn atomic_lists_and_nulls() {
    let current = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {
        "tolerations": [{"key": "a"}], "containers": [{"name": "a", "args": ["1", "2"]}]}});
    let patch = json!({"metadata": {"labels": {"a": null}}, "spec": {
        "tolerations": [{"key": "b"}], "containers": [{"name": "a", "args": ["3"]}]}});
    assert_eq!(
        merged(POD, &current, patch),
        json!({"metadata": {"labels": {"b": "2"}}, "spec": {
            "tolerations": [{"key": "b"}], "containers": [{"name": "a", "args": ["3"]}]}})
    );
}

#[test]
fn directives_in_lists() {
    let current = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
    let delete = json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}});
    assert_eq!(merged(POD, &current, delete), json!({"spec": {"containers": [{"name": "b"}]}}));
    let replace = json!({"spec": {"containers": [{"name": "c"}, {"$patch": "replace"}]}});
    assert_eq!(merged(POD, &current, replace), json!({"spec": {"containers": [{"name": "c"}]}}));
    let unknown = json!({"spec": {"containers": [{"name": "a", "$patch": "explode"}]}});
    assert_eq!(strategic_merge(POD, &current, unknown).expect_err("unknown").code, 400);
    let keyless = json!({"spec": {"containers": [{"image": "x"}]}});
    assert_eq!(strategic_merge(POD, &current, keyless).expect_err("no key").code, 422);
}

#[test]
fn directives_in_maps() {
    let current = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let retain = json!({"spec": {"strategy": {"type": "Recreate", "$retainKeys": ["type"]}}});
    assert_eq!(merged(DEPLOYMENT, &current, retain), json!({"spec": {"strategy": {"type": "Recreate"}}}));
    let replace = json!({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}});
    assert_eq!(merged(DEPLOYMENT, &current, replace), json!({"spec": {"strategy": {"type": "Recreate"}}}));
    let bad = json!({"spec": {"strategy": {"type": "Recreate", "$retainKeys": ["rollingUpdate"]}}});
    assert_eq!(strategic_merge(DEPLOYMENT, &current, bad).expect_err("not retained").code, 400);
}

#[test]
fn volumes_change_their_source() {
    let current = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}});
    let patch = json!({"spec": {
        "$setElementOrder/volumes": [{"name": "v"}, {"name": "w"}],
        "volumes": [{"$retainKeys": ["name", "configMap"], "name": "v", "configMap": {"name": "c"}}]}});
    assert_eq!(
        merged(POD, &current, patch),
        json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "w", "emptyDir": {}}]}})
    );
}

#[test]
fn element_order_is_set() {
    let current = json!({"spec": {"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}});
    let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}});
    assert_eq!(
        merged(POD, &current, patch),
        json!({"spec": {"containers": [{"name": "server"}, {"name": "b"}, {"name": "a"}]}})
    );
    let contradiction = json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "z", "image": "i"}]}});
    assert_eq!(strategic_merge(POD, &current, contradiction).expect_err("not in order").code, 400);
}

#[test]
fn primitives_merge() {
    let current = json!({"metadata": {"finalizers": ["a", "b"]}});
    let add = json!({"metadata": {"$setElementOrder/finalizers": ["a", "b", "c"], "finalizers": ["c"]}});
    assert_eq!(merged(POD, &current, add), json!({"metadata": {"finalizers": ["a", "b", "c"]}}));
    let remove =
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}});
    assert_eq!(merged(POD, &current, remove), json!({"metadata": {"finalizers": ["b"]}}));
}

#[test]
fn service_ports_merge_by_port() {
    let current = json!({"spec": {"ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]}});
    let patch = json!({"spec": {"ports": [{"port": 80, "name": "web"}, {"port": 443}]}});
    assert_eq!(
        merged(SERVICE, &current, patch)["spec"]["ports"],
        json!([{"port": 80, "name": "web", "nodePort": 30080, "protocol": "TCP"}, {"port": 443}])
    );
}

#[test]
fn added_values_lose_their_directives() {
    let patch = json!({"spec": {"containers": [
        {"name": "a", "$patch": "delete"}, {"name": "b", "image": null, "$setElementOrder/env": [], "env": []}]}});
    assert_eq!(merged(POD, &json!({}), patch), json!({"spec": {"containers": [{"name": "b", "env": []}]}}));
}

#[test]
fn merge_keys_belong_to_real_fields() {
    let table = crate::schema::schemas();
    for (definition, field, merge) in crate::merge_keys::table() {
        let Some(owner) = table.get(definition) else { continue };
        let field = owner.field(field).unwrap_or_else(|| panic!("{definition}.{field} does not exist"));
        if let (Some(key), crate::schema::Shape::List(inner)) = (merge.key(), &field.shape) {
            let crate::schema::Shape::Ref(i) = **inner else { panic!("{definition}: not a list of structs") };
            assert!(table.at(i).field(key).is_some(), "{definition}.{}: no {key}", field.name);
        }
    }
}

/// What kubectl would send to turn `old` into `new`: nulls for what went, deletions in keyed lists, and the new order.
fn diff(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let mut patch = serde_json::Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before) if before == value => {}
            Some(Value::Array(before)) if key == "containers" => {
                let after = value.as_array().expect("list");
                let order: Vec<Value> = after.iter().map(|c| json!({"name": c["name"]})).collect();
                let mut items = Vec::new();
                for gone in before.iter().filter(|b| !after.iter().any(|a| a["name"] == b["name"])) {
                    items.push(json!({"name": gone["name"], "$patch": "delete"}));
                }
                for item in after {
                    let twin = before.iter().find(|b| b["name"] == item["name"]);
                    let mut change = twin.map_or_else(|| item.clone(), |b| diff(b, item));
                    change["name"] = item["name"].clone();
                    items.push(change);
                }
                patch.insert("$setElementOrder/containers".to_owned(), Value::Array(order));
                patch.insert(key.clone(), Value::Array(items));
            }
            Some(before) => {
                patch.insert(key.clone(), diff(before, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

fn containers() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::btree_map(
        "[a-e]",
        ("[x-z]{1,2}", prop::option::of("[p-q]"), prop::collection::vec("[m-n]", 0..3)),
        0..5,
    )
    .prop_map(|map| {
        map.into_iter()
            .map(|(name, (image, dir, args))| {
                let mut c = json!({"name": name, "image": image, "args": args});
                if let Some(dir) = dir {
                    c["workingDir"] = json!(dir);
                }
                c
            })
            .collect::<Vec<_>>()
    })
    .prop_shuffle()
}

fn pod() -> impl Strategy<Value = Value> {
    (containers(), prop::collection::btree_map("[a-c]", "[1-3]", 0..3), prop::collection::vec("[t-v]", 0..3)).prop_map(
        |(containers, labels, tolerations)| {
            let tolerations: Vec<Value> = tolerations.into_iter().map(|key| json!({"key": key})).collect();
            json!({"metadata": {"labels": labels}, "spec": {"containers": containers, "tolerations": tolerations}})
        },
    )
}

proptest! {
    #[test]
    fn a_computed_patch_gives_the_second_object(old in pod(), new in pod()) {
        prop_assert_eq!(merged(POD, &old, diff(&old, &new)), new);
    }

    #[test]
    fn an_empty_patch_changes_nothing(old in pod()) {
        prop_assert_eq!(merged(POD, &old, json!({})), old);
    }

    #[test]
    fn a_patch_applied_twice_is_applied_once(old in pod(), new in pod()) {
        let patch = diff(&old, &new);
        let once = merged(POD, &old, patch.clone());
        prop_assert_eq!(merged(POD, &once, patch), once);
    }

    #[test]
    fn no_patch_panics_or_leaves_directives(patch in any_patch(3)) {
        let current = json!({"metadata": {"finalizers": ["a"]}, "spec": {"containers": [{"name": "a"}], "volumes": [{"name": "v"}]}});
        if patch.is_object() && let Ok(out) = strategic_merge(POD, &current, patch) {
            prop_assert!(!out.to_string().contains("$patch"), "{out}");
        }
    }
}

fn any_patch(depth: u32) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!("delete")),
        Just(json!("replace")),
        Just(json!("a")),
        Just(json!(1)),
    ];
    leaf.prop_recursive(depth, 24, 4, |inner| {
        let key = prop::sample::select(vec![
            "metadata",
            "spec",
            "containers",
            "volumes",
            "name",
            "finalizers",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$deleteFromPrimitiveList/finalizers",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|m| m
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
    .boxed()
}
