//! Appliers and updaters on one object, as upstream's tests of `merge` and of the field manager document them.

use keelson_managed_fields::managers::{ANCIENT_CHANGES, BEFORE_FIRST_APPLY, MAX_UPDATE_MANAGERS};
use keelson_managed_fields::*;
use serde_json::{Value, json};

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "n": {"type": "integer"},
            "s": {"type": "string"},
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "atomic": {"type": "array", "items": {"type": "string"}},
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                "type": "object", "properties": {
                    "name": {"type": "string"},
                    "v": {"type": "integer"},
                    "w": {"type": "integer"},
                }}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "deep": {"type": "object", "properties": {"in": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}}},
        }},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }})
}

const START: i64 = 1_800_000_000;

struct State {
    schema: Value,
    live: Option<Value>,
    clock: i64,
}

impl State {
    fn new() -> Self {
        Self { schema: schema(), live: None, clock: START }
    }

    fn with(spec: Value) -> Self {
        let mut state = Self::new();
        state.live = Some(object(spec));
        state.live.as_mut().expect("live")["metadata"]["uid"] = json!("u");
        state
    }

    fn try_apply(&mut self, manager: &str, config: &Value, force: bool) -> Result<(), ApplyError> {
        self.clock += 1;
        let now = jiff::Timestamp::from_second(self.clock).expect("time");
        let request = Request { manager, api_version: "v1", subresource: "", now, force };
        let versions = OneType(JsonSchema::object(&self.schema));
        let ignored = Set::of_fields(&[&["status"]]);
        let mut new = applied(&versions, self.live.as_ref(), config, &request, &ignored)?;
        new["metadata"]["uid"] = json!("u");
        self.live = Some(new);
        Ok(())
    }

    fn apply(&mut self, manager: &str, spec: Value) {
        self.try_apply(manager, &object(spec), false).expect("no conflict");
    }

    fn force(&mut self, manager: &str, spec: Value) {
        self.try_apply(manager, &object(spec), true).expect("forced");
    }

    fn conflicts(&mut self, manager: &str, spec: Value) -> Vec<(String, String)> {
        match self.try_apply(manager, &object(spec), false) {
            Err(ApplyError::Conflicts(conflicts)) => {
                conflicts.0.iter().map(|c| (c.manager.manager.clone(), c.field())).collect()
            }
            other => panic!("expected conflicts, got {other:?}"),
        }
    }

    fn update_object(&mut self, manager: &str, mut new: Value, subresource: &str) {
        self.clock += 1;
        let now = jiff::Timestamp::from_second(self.clock).expect("time");
        let request = Request { manager, api_version: "v1", subresource, now, force: false };
        let versions = OneType(JsonSchema::object(&self.schema));
        let ignored = Set::of_fields(&[&[if subresource == "status" { "spec" } else { "status" }]]);
        updated(&versions, self.live.as_ref(), &mut new, &request, &ignored).expect("update");
        new["metadata"]["uid"] = json!("u");
        self.live = Some(new);
    }

    fn update(&mut self, manager: &str, spec: Value) {
        let mut new = self.live.clone().unwrap_or_else(|| object(json!({})));
        new["spec"] = spec;
        self.update_object(manager, new, "");
    }

    fn spec(&self) -> &Value {
        &self.live.as_ref().expect("live")["spec"]
    }

    fn entries(&self) -> Vec<&Value> {
        self.live.as_ref().expect("live")["metadata"]["managedFields"].as_array().into_iter().flatten().collect()
    }

    fn owned(&self, manager: &str) -> Vec<String> {
        let mut out: Vec<_> = self
            .entries()
            .into_iter()
            .filter(|e| e["manager"] == manager)
            .flat_map(|e| Set::from_value(&e["fieldsV1"]).expect("set").paths())
            .map(|path| path.to_string())
            .collect();
        out.sort();
        out
    }

    fn time(&self, manager: &str) -> &str {
        let entries = self.entries();
        entries.iter().find(|e| e["manager"] == manager).and_then(|e| e["time"].as_str()).expect("time")
    }
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x", "namespace": "ns"}, "spec": spec})
}

#[test]
fn the_first_apply_creates_and_owns_what_it_names() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "list": [{"name": "x", "v": 1}]}));
    assert_eq!(s.spec(), &json!({"n": 1, "list": [{"name": "x", "v": 1}]}));
    assert_eq!(
        s.owned("a"),
        [".spec.list[name=\"x\"]", ".spec.list[name=\"x\"].name", ".spec.list[name=\"x\"].v", ".spec.n"]
    );
    let entry = s.entries()[0];
    assert_eq!(
        (&entry["operation"], &entry["apiVersion"], &entry["fieldsType"]),
        (&json!("Apply"), &json!("v1"), &json!("FieldsV1"))
    );
    assert_eq!(entry["time"], "2027-01-15T08:00:01Z");
    assert!(entry.get("subresource").is_none());
}

#[test]
fn a_second_applier_conflicts_over_what_it_would_change() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "s": "x", "list": [{"name": "x", "v": 1}]}));
    let conflicts = s.conflicts("b", json!({"n": 2, "s": "x", "list": [{"name": "x", "v": 2}]}));
    assert_eq!(conflicts, [("a".into(), ".spec.n".into()), ("a".into(), ".spec.list[name=\"x\"].v".into())]);
    assert_eq!(s.spec()["n"], 1);
}

#[test]
fn conflicts_are_told_in_upstreams_words() {
    let mut s = State::new();
    s.update("kubectl-client-side-apply", json!({"n": 1, "s": "x"}));
    let one = s.try_apply("b", &object(json!({"n": 2})), false).expect_err("conflict");
    assert_eq!(
        one.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .spec.n"
    );
    assert_eq!(one.code(), 409);
    s.apply("a", json!({"n": 1}));
    let many = s.try_apply("b", &object(json!({"n": 2, "s": "y"})), false).expect_err("conflict");
    assert_eq!(
        many.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.n\nconflicts with \"kubectl-client-side-apply\" using v1:\n- .spec.n\n- .spec.s"
    );
}

#[test]
fn the_same_value_is_shared() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1}));
    s.apply("b", json!({"n": 1}));
    assert_eq!((s.owned("a"), s.owned("b")), (vec![".spec.n".into()], vec![".spec.n".into()]));
    s.apply("a", json!({"s": "x"}));
    assert_eq!(s.spec(), &json!({"n": 1, "s": "x"}), "b still has it");
    s.apply("b", json!({"s": "x"}));
    assert_eq!(s.spec(), &json!({"s": "x"}), "nobody has it any more");
}

#[test]
fn force_takes_over() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "s": "x"}));
    s.force("b", json!({"n": 2}));
    assert_eq!(s.spec(), &json!({"n": 2, "s": "x"}));
    assert_eq!((s.owned("a"), s.owned("b")), (vec![".spec.s".into()], vec![".spec.n".into()]));
    assert_eq!(s.conflicts("a", json!({"n": 1, "s": "x"})), [("b".into(), ".spec.n".into())]);
}

#[test]
fn an_update_steals_from_appliers() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "s": "x"}));
    s.update("u", json!({"n": 2, "s": "x"}));
    assert_eq!((s.owned("a"), s.owned("u")), (vec![".spec.s".into()], vec![".spec.n".into()]));
    assert_eq!(s.conflicts("a", json!({"n": 1, "s": "x"})), [("u".into(), ".spec.n".into())]);
    s.apply("a", json!({"n": 2, "s": "x"}));
    assert_eq!(s.owned("a"), [".spec.n", ".spec.s"]);
    assert_eq!(s.owned("u"), [".spec.n"]);
}

#[test]
fn an_applier_that_lost_a_field_does_not_remove_it() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "s": "x"}));
    s.update("u", json!({"n": 2, "s": "x"}));
    s.apply("a", json!({"s": "x"}));
    assert_eq!(s.spec(), &json!({"n": 2, "s": "x"}));
}

#[test]
fn what_an_update_removes_is_nobodys() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "list": [{"name": "x", "v": 1}]}));
    let applied = s.time("a").to_owned();
    s.update("u", json!({"n": 1}));
    assert_eq!((s.owned("a"), s.owned("u")), (vec![".spec.n".into()], vec![]));
    assert_eq!(s.time("a"), applied);
    s.apply("a", json!({"n": 1, "list": [{"name": "x", "v": 2}]}));
    assert_eq!(s.spec()["list"], json!([{"name": "x", "v": 2}]), "no conflict over what is not there");
}

#[test]
fn what_is_no_longer_applied_goes() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "map": {"a": "1", "b": "2"}, "set": ["x", "y"], "deep": {"in": {"x": 1}}}));
    s.apply("a", json!({"map": {"b": "2"}, "set": ["y"]}));
    assert_eq!(s.spec(), &json!({"map": {"b": "2"}, "set": ["y"]}));
    s.apply("a", json!({"n": 1}));
    assert_eq!(s.spec(), &json!({"n": 1}), "the last item takes its list and map with it");
}

#[test]
fn what_others_added_stays() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "list": [{"name": "x", "v": 1}], "deep": {"in": {"x": 1}}}));
    s.update(
        "u",
        json!({"n": 1, "list": [{"name": "x", "v": 1, "w": 9}, {"name": "y"}], "deep": {"in": {"x": 1, "y": 2}}}),
    );
    s.apply("a", json!({"n": 1}));
    assert_eq!(
        s.spec(),
        &json!({"n": 1, "list": [{"name": "y"}], "deep": {"in": {"y": 2}}}),
        "an item goes as a whole"
    );
}

#[test]
fn an_item_that_two_applied_stays_until_both_left() {
    let mut s = State::new();
    s.apply("a", json!({"list": [{"name": "x", "v": 1}]}));
    s.apply("b", json!({"list": [{"name": "x", "w": 2}]}));
    s.apply("a", json!({}));
    assert_eq!(s.spec(), &json!({"list": [{"name": "x", "w": 2}]}));
    s.apply("b", json!({}));
    assert_eq!(s.spec(), &json!({}));
}

#[test]
fn an_item_goes_with_all_that_only_its_applier_had() {
    let mut s = State::new();
    s.apply("a", json!({"list": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]}));
    s.apply("b", json!({"list": [{"name": "z", "v": 3}]}));
    s.apply("a", json!({"list": [{"name": "y", "v": 2}]}));
    assert_eq!(s.spec(), &json!({"list": [{"name": "y", "v": 2}, {"name": "z", "v": 3}]}));
}

#[test]
fn items_keep_the_order_of_the_last_applier() {
    let mut s = State::new();
    s.apply("a", json!({"list": [{"name": "a"}, {"name": "b"}]}));
    s.apply("b", json!({"list": [{"name": "c"}, {"name": "a"}]}));
    let names = |s: &State| -> String {
        s.spec()["list"].as_array().expect("list").iter().filter_map(|i| i["name"].as_str()).collect()
    };
    assert_eq!(names(&s), "cab");
    s.apply("a", json!({"list": [{"name": "b"}, {"name": "a"}]}));
    assert_eq!(names(&s), "cba");
}

#[test]
fn atomic_lists_conflict_as_one() {
    let mut s = State::new();
    s.apply("a", json!({"atomic": ["x"]}));
    assert_eq!(s.conflicts("b", json!({"atomic": ["x", "y"]})), [("a".into(), ".spec.atomic".into())]);
    s.force("b", json!({"atomic": ["x", "y"]}));
    assert_eq!(s.spec()["atomic"], json!(["x", "y"]));
    assert!(s.owned("a").is_empty());
}

#[test]
fn sets_are_merged_and_left_item_by_item() {
    let mut s = State::new();
    s.apply("a", json!({"set": ["x", "y"]}));
    s.apply("b", json!({"set": ["y", "z"]}));
    assert_eq!(s.spec()["set"], json!(["x", "y", "z"]));
    s.apply("a", json!({"set": []}));
    assert_eq!(s.spec()["set"], json!(["y", "z"]));
    let twice = s.try_apply("a", &object(json!({"set": ["q", "q"]})), false).expect_err("twice");
    assert_eq!(
        twice.to_string(),
        "failed to create typed patch object (ns/x; /v1, Kind=Thing): .spec.set: duplicate entries for key [=\"q\"]"
    );
}

#[test]
fn what_nobody_managed_is_before_first_apply() {
    let mut s = State::with(json!({"n": 1, "s": "x"}));
    let conflict = s.try_apply("a", &object(json!({"n": 2})), false).expect_err("conflict");
    assert_eq!(
        conflict.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .spec.n"
    );
    s.apply("a", json!({"n": 1}));
    assert_eq!(s.owned("a"), [".spec.n"]);
    assert_eq!(s.owned(BEFORE_FIRST_APPLY), [".spec", ".spec.n", ".spec.s"]);
    s.apply("a", json!({}));
    assert_eq!(s.spec()["n"], 1, "it was there before");
}

#[test]
fn an_object_without_managers_gets_none_by_an_update() {
    let mut s = State::with(json!({"n": 1}));
    s.update("u", json!({"n": 2}));
    assert!(s.entries().is_empty());
}

#[test]
fn a_create_is_managed_by_who_creates_and_by_nobody_else() {
    let mut s = State::new();
    s.update("u", json!({"n": 1, "map": {"a": "b"}}));
    assert_eq!(s.owned("u"), [".spec", ".spec.map", ".spec.map.a", ".spec.n"]);
    let names: Vec<_> = s.entries().iter().map(|e| e["operation"].as_str().expect("operation")).collect();
    assert_eq!(names, ["Update"]);
}

#[test]
fn metadata_that_is_the_servers_is_managed_by_nobody() {
    let mut s = State::new();
    let mut config = object(json!({}));
    config["metadata"]["labels"] = json!({"a": "b"});
    config["metadata"]["finalizers"] = json!(["f/f"]);
    config["metadata"]["resourceVersion"] = json!("5");
    s.try_apply("a", &config, false).expect("apply");
    assert_eq!(s.owned("a"), [".metadata.finalizers[=\"f/f\"]", ".metadata.labels.a", ".spec"]);
}

#[test]
fn applying_twice_changes_nothing() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1}));
    let before = s.live.clone();
    s.apply("a", json!({"n": 1}));
    assert_eq!(s.live, before);
}

#[test]
fn an_update_without_a_change_changes_nothing() {
    let mut s = State::new();
    s.update("u", json!({"n": 1}));
    let before = s.live.clone();
    s.update("v", json!({"n": 1}));
    assert_eq!(s.live, before);
}

#[test]
fn times_change_with_the_fields() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1, "s": "x"}));
    let first = s.time("a").to_owned();
    s.update("u", json!({"n": 2, "s": "x"}));
    assert_eq!(s.time("a"), first, "losing a field is no act");
    let second = s.time("u").to_owned();
    s.apply("a", json!({"n": 2, "s": "x"}));
    assert!(s.time("a") > second.as_str(), "owning it again is one");
    assert_eq!(s.time("u"), second);
}

#[test]
fn each_subresource_has_its_own_entry() {
    let mut s = State::new();
    s.update("u", json!({"n": 1}));
    let mut new = s.live.clone().expect("live");
    new["status"] = json!({"phase": "Running"});
    s.update_object("u", new, "status");
    let entries = s.entries();
    let seen: Vec<_> = entries.iter().map(|e| e.get("subresource").and_then(Value::as_str).unwrap_or("-")).collect();
    assert_eq!(seen, ["-", "status"]);
    assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {".": {}, "f:phase": {}}}));
}

#[test]
fn ignored_fields_are_not_owned() {
    let mut s = State::new();
    let mut config = object(json!({"n": 1}));
    config["status"] = json!({"phase": "Running"});
    s.try_apply("a", &config, false).expect("apply");
    assert_eq!(s.owned("a"), [".spec.n"]);
}

#[test]
fn clients_may_forget_managers() {
    for reset in [json!([]), json!([{}])] {
        let mut s = State::new();
        s.apply("a", json!({"n": 1}));
        let mut new = s.live.clone().expect("live");
        new["metadata"]["managedFields"] = reset;
        s.update_object("u", new, "");
        assert!(s.entries().is_empty());
    }
}

#[test]
fn clients_may_not_forget_managers_by_a_subresource() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1}));
    let mut new = s.live.clone().expect("live");
    new["metadata"]["managedFields"] = json!([]);
    new["status"] = json!({"phase": "Running"});
    s.update_object("u", new, "status");
    assert_eq!(s.owned("a"), [".spec.n"]);
}

#[test]
fn a_list_that_cannot_be_read_or_is_missing_is_the_live_one() {
    let bad = json!([{"manager": "a", "operation": "Nope"}]);
    for list in [
        None,
        Some(json!(null)),
        Some(bad),
        Some(json!("x")),
        Some(json!([{"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"zz": {}}}])),
    ] {
        let mut s = State::new();
        s.apply("a", json!({"n": 1}));
        let mut new = s.live.clone().expect("live");
        match list {
            Some(list) => new["metadata"]["managedFields"] = list,
            None => drop(new["metadata"].as_object_mut().expect("metadata").remove("managedFields")),
        }
        new["spec"]["s"] = json!("y");
        s.update_object("u", new, "");
        assert_eq!((s.owned("a"), s.owned("u")), (vec![".spec.n".into()], vec![".spec.s".into()]));
    }
}

#[test]
fn clients_may_write_the_list_themselves() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1}));
    let mut new = s.live.clone().expect("live");
    new["metadata"]["managedFields"][0]["manager"] = json!("renamed");
    s.update_object("u", new, "");
    assert_eq!((s.owned("a"), s.owned("renamed")), (vec![], vec![".spec.n".into()]));
}

#[test]
fn a_configuration_has_no_managers() {
    let mut s = State::new();
    let mut config = object(json!({}));
    config["metadata"]["managedFields"] = json!([]);
    let error = s.try_apply("a", &config, false).expect_err("refused");
    assert_eq!((error.to_string().as_str(), error.code()), ("metadata.managedFields must be nil", 400));
}

#[test]
fn a_configuration_has_only_declared_fields() {
    let error = State::new().try_apply("a", &object(json!({"nope": 1})), false).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object (ns/x; /v1, Kind=Thing): .spec.nope: field not declared in schema"
    );
}

#[test]
fn stored_managers_that_cannot_be_read_stop_an_apply() {
    let mut s = State::with(json!({}));
    s.live.as_mut().expect("live")["metadata"]["managedFields"] = json!([{"operation": "Apply"}]);
    let error = s.try_apply("a", &object(json!({})), false).expect_err("refused");
    assert_eq!(error.to_string(), "failed to decode managed fields: apiVersion must not be empty");
}

#[test]
fn a_failed_update_keeps_the_managers() {
    let mut s = State::new();
    s.apply("a", json!({"n": 1}));
    let versions = OneType(JsonSchema::object(&s.schema));
    let mut new = object(json!({"nope": 1}));
    let request =
        Request { manager: "u", api_version: "v1", subresource: "", now: jiff::Timestamp::UNIX_EPOCH, force: false };
    assert!(updated(&versions, s.live.as_ref(), &mut new, &request, &Set::new()).is_err());
    assert_eq!(new["metadata"]["managedFields"], s.live.as_ref().expect("live")["metadata"]["managedFields"]);
}

#[test]
fn many_updaters_become_ancient() {
    let mut s = State::new();
    for i in 0..20 {
        let mut map = s.live.as_ref().map_or_else(|| json!({}), |live| live["spec"]["map"].clone());
        map[format!("k{i}")] = json!("v");
        s.update(&format!("u{i:02}"), json!({ "map": map }));
    }
    assert_eq!(s.entries().len(), MAX_UPDATE_MANAGERS);
    assert_eq!(s.entries()[0]["manager"], ANCIENT_CHANGES);
    assert!(s.owned(ANCIENT_CHANGES).contains(&".spec.map.k10".to_owned()));
    assert_eq!(s.owned("u19"), [".spec.map.k19"]);
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let mut s = State::new();
    let mut first = object(json!({"n": 1, "s": "x"}));
    let text = first.to_string();
    first["metadata"]["annotations"] = json!({ LAST_APPLIED: text });
    s.update_object("kubectl-client-side-apply", first.clone(), "");

    assert_eq!(s.conflicts("other", json!({"n": 2})), [("kubectl-client-side-apply".into(), ".spec.n".into())]);
    s.apply("kubectl", json!({"n": 2, "s": "x"}));
    assert_eq!(s.spec()["n"], 2);
    let annotation = &s.live.as_ref().expect("live")["metadata"]["annotations"][LAST_APPLIED];
    assert_eq!(annotation, &json!(format!("{}\n", object(json!({"n": 2, "s": "x"})))));

    s.update("someone", json!({"n": 3, "s": "x"}));
    assert_eq!(s.conflicts("kubectl", json!({"n": 4, "s": "x"})), [("someone".into(), ".spec.n".into())]);
}

#[test]
fn versions_have_fields_of_their_own() {
    struct Renamed;
    impl<'a> Versions<'a> for Renamed {
        type Type = Deduced;
        fn type_of(&self, api_version: &str) -> Option<Deduced> {
            ["v1", "v2"].contains(&api_version).then_some(Deduced)
        }
        fn convert(&self, object: &Value, api_version: &str) -> Result<Value, ConvertError> {
            let mut out = object.clone();
            let (from, to) = if api_version == "v1" { ("new", "old") } else { ("old", "new") };
            if let Some(v) = out["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
                out["spec"][to] = v;
            }
            out["apiVersion"] = json!(api_version);
            Ok(out)
        }
    }
    let at = |api_version, manager| Request {
        manager,
        api_version,
        subresource: "",
        now: jiff::Timestamp::UNIX_EPOCH,
        force: false,
    };
    let config = |version: &str, spec: Value| json!({"apiVersion": version, "kind": "T", "metadata": {"name": "x"}, "spec": spec});
    let live = applied(&Renamed, None, &config("v1", json!({"old": 1, "also": 1})), &at("v1", "a"), &Set::new())
        .expect("first");
    let live = Renamed.convert(&live, "v2").expect("convert");

    let error = applied(&Renamed, Some(&live), &config("v2", json!({"new": 2})), &at("v2", "b"), &Set::new())
        .expect_err("conflict");
    let ApplyError::Conflicts(conflicts) = error else { panic!("conflicts") };
    assert_eq!(conflicts.0[0].field(), ".spec.old", "in the version of the one who has it");

    let live =
        applied(&Renamed, Some(&live), &config("v2", json!({"also": 1})), &at("v2", "a"), &Set::new()).expect("second");
    assert_eq!(live["spec"], json!({"also": 1}), "what was applied as old is gone as new");

    let mut stale = live.clone();
    stale["metadata"]["managedFields"][0]["apiVersion"] = json!("v0");
    let live =
        applied(&Renamed, Some(&stale), &config("v2", json!({"also": 2})), &at("v2", "b"), &Set::new()).expect("third");
    assert_eq!(live["metadata"]["managedFields"].as_array().map(Vec::len), Some(1), "v0 is served no more");
}

#[test]
fn without_a_schema_maps_are_merged_and_lists_replaced() {
    let types = OneType(Deduced);
    let at = |manager| Request {
        manager,
        api_version: "v1",
        subresource: "",
        now: jiff::Timestamp::UNIX_EPOCH,
        force: false,
    };
    let config = |data: Value| json!({"apiVersion": "v1", "kind": "T", "metadata": {"name": "x"}, "data": data});
    let live = applied(&types, None, &config(json!({"a": {"x": 1}, "l": [1]})), &at("a"), &Set::new()).expect("a");
    let live = applied(&types, Some(&live), &config(json!({"a": {"y": 2}})), &at("b"), &Set::new()).expect("b");
    assert_eq!(live["data"], json!({"a": {"x": 1, "y": 2}, "l": [1]}));
    let error = applied(&types, Some(&live), &config(json!({"l": [2]})), &at("b"), &Set::new()).expect_err("conflict");
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"a\": .data.l");
    let live = applied(&types, Some(&live), &config(json!({"a": {"x": 1}})), &at("a"), &Set::new()).expect("a");
    assert_eq!(live["data"], json!({"a": {"x": 1, "y": 2}}));
}
