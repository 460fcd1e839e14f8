//! Tests of create, update and delete across kinds.

use serde_json::{Value, json};

use super::*;
use crate::decode::{self, FieldValidation};
use crate::deletion::{self, DeleteOptions, Deletion};
use crate::lookup;

fn res(group: &str, plural: &str) -> &'static Resource {
    lookup(group, "v1", plural).expect("resource")
}

fn ctx<'a>(namespace: &'a str) -> WriteContext<'a> {
    WriteContext { now: "2026-01-02T03:04:05Z".parse().expect("time"), uid: "uid-1", suffix: "x7k2z", namespace }
}

fn decoded(res: &Resource, value: Value) -> Value {
    decode::object(res, None, value, FieldValidation::Strict).expect("decodes").object
}

fn created(res: &Resource, value: Value) -> Value {
    let mut obj = decoded(res, value);
    let namespace = if res.namespaced() { "ns" } else { "" };
    create(res, &mut obj, &ctx(namespace)).expect("created");
    obj
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "nginx:1.14.2"}]}})
}

fn causes(error: &ApiError) -> Vec<String> {
    error.causes.iter().map(|c| format!("{} {}: {}", c.reason, c.field, c.message)).collect()
}

#[test]
fn a_new_pod_gets_what_the_server_knows() {
    let pods = res("", "pods");
    let mut value = pod();
    value["metadata"] =
        json!({"generateName": "p-", "managedFields": [{"manager": "x"}], "generation": 9, "uid": "mine"});
    value["status"] = json!({"phase": "Running"});
    let pod = created(pods, value);
    assert_eq!(
        pod["metadata"],
        json!({"name": "p-x7k2z", "generateName": "p-", "namespace": "ns", "uid": "uid-1", "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z", "managedFields": [{"manager": "x"}]}),
        "what the server noted of managers stays, what is the server's alone does not"
    );
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(selectable(pods, &pod)[1], ("metadata.namespace".into(), "ns".to_owned()));
    assert!(selectable(pods, &pod).contains(&("status.phase".into(), "Pending".to_owned())));
    assert!(check_selectable(pods, "spec.nodeName").is_ok());
    assert_eq!(
        check_selectable(pods, "spec.image").expect_err("unknown").message,
        "field label not supported: spec.image"
    );
}

#[test]
fn invalid_objects_name_every_field() {
    let pods = res("", "pods");
    let mut obj = decoded(
        pods,
        json!({"metadata": {"name": "Bad_Name", "labels": {"a b": "c"}}, "spec": {
        "restartPolicy": "Sometimes",
        "volumes": [{"name": "v"}],
        "containers": [
            {"name": "c", "ports": [{"containerPort": 70000}], "volumeMounts": [{"name": "w", "mountPath": "/x"}]},
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
             "livenessProbe": {"successThreshold": 2, "exec": {"command": ["x"]}}},
        ]}}),
    );
    let error = create(pods, &mut obj, &ctx("ns")).expect_err("invalid");
    assert_eq!(error.code, 422);
    assert!(error.message.starts_with(
        "Pod \"Bad_Name\" is invalid: [metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must"
    ));
    let causes = causes(&error);
    for wanted in [
        "FieldValueInvalid metadata.labels: Invalid value: \"a b\": name part must consist of",
        "FieldValueInvalid spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        "FieldValueRequired spec.containers[0].image: Required value",
        "FieldValueNotFound spec.containers[0].volumeMounts[0].name: Not found: \"w\"",
        "FieldValueDuplicate spec.containers[1].name: Duplicate value: \"c\"",
        "FieldValueInvalid spec.containers[1].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        "FieldValueInvalid spec.containers[1].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        "FieldValueNotSupported spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
    ] {
        assert!(causes.iter().any(|c| c.starts_with(wanted)), "{wanted}\nnot in {causes:#?}");
    }
    let status = error.to_status();
    assert_eq!(status["details"]["kind"], "Pod");
    assert_eq!(status["reason"], "Invalid");
}

#[test]
fn annotations_have_a_limit() {
    let maps = res("", "configmaps");
    let mut obj = decoded(maps, json!({"metadata": {"name": "m", "annotations": {"a": "x".repeat(5 << 20)}}}));
    let error = create(maps, &mut obj, &ctx("ns")).expect_err("too long");
    assert_eq!(
        error.message,
        "ConfigMap \"m\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes"
    );
}

#[test]
fn namespaces_and_names_must_fit_the_url() {
    let maps = res("", "configmaps");
    let mut obj = decoded(maps, json!({"metadata": {"name": "m", "namespace": "other"}}));
    assert_eq!(create(maps, &mut obj, &ctx("ns")).expect_err("namespace").code, 400);
    let old = created(maps, json!({"metadata": {"name": "m"}}));
    let mut new = decoded(maps, json!({"metadata": {"name": "n"}}));
    assert_eq!(
        update(maps, &mut new, &old, Part::Main, &ctx("ns")).expect_err("name").message,
        "the name of the object (n) does not match the name on the URL (m)"
    );
    let mut new = decoded(maps, json!({"metadata": {"name": "m", "uid": "another"}}));
    assert_eq!(update(maps, &mut new, &old, Part::Main, &ctx("ns")).expect_err("uid").code, 409);
    let mut nodes = decoded(res("", "nodes"), json!({"metadata": {"name": "n", "namespace": "ns"}}));
    assert_eq!(create(res("", "nodes"), &mut nodes, &ctx("")).expect_err("namespaced").code, 422);
}

#[test]
fn main_and_status_are_written_apart() {
    let deployments = res("apps", "deployments");
    let value = json!({"metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let old = created(deployments, value);
    let mut new = old.clone();
    new["spec"]["replicas"] = json!(3);
    new["status"] = json!({"replicas": 9});
    update(deployments, &mut new, &old, Part::Main, &ctx("ns")).expect("updated");
    assert_eq!(new["metadata"]["generation"], 2);
    assert!(new.get("status").is_none());
    let mut status = new.clone();
    status["status"] = json!({"replicas": 3});
    status["spec"]["replicas"] = json!(7);
    update(deployments, &mut status, &new, Part::Status, &ctx("ns")).expect("updated");
    assert_eq!((&status["spec"]["replicas"], &status["status"]["replicas"]), (&json!(3), &json!(3)));
    assert_eq!(status["metadata"]["generation"], 2);
    let mut same = status.clone();
    update(deployments, &mut same, &status, Part::Main, &ctx("ns")).expect("updated");
    assert_eq!(same, status);
}

#[test]
fn pods_change_little() {
    let pods = res("", "pods");
    let old = created(pods, pod());
    let mut image = old.clone();
    image["spec"]["containers"][0]["image"] = json!("nginx:2");
    image["spec"]["tolerations"] = json!([{"key": "a", "operator": "Exists"}]);
    update(pods, &mut image, &old, Part::Main, &ctx("ns")).expect("image may change");
    let mut command = old.clone();
    command["spec"]["containers"][0]["command"] = json!(["x"]);
    let error = update(pods, &mut command, &old, Part::Main, &ctx("ns")).expect_err("command may not");
    assert!(error.message.starts_with(
        "Pod \"p\" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"
    ));
    let mut fewer = image.clone();
    fewer["spec"]["tolerations"] = json!([]);
    assert_eq!(update(pods, &mut fewer, &image, Part::Main, &ctx("ns")).expect_err("toleration").code, 422);
}

fn begin(res: &Resource, obj: &Value, options: &DeleteOptions) -> Deletion {
    deletion::begin(res, obj, options, "2026-01-02T03:05:00Z".parse().expect("time")).expect("allowed")
}

fn updated(deletion: Deletion) -> Value {
    match deletion {
        Deletion::Update(obj) => obj,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pods_go_with_grace() {
    let pods = res("", "pods");
    let mut running = created(pods, pod());
    assert!(matches!(begin(pods, &running, &DeleteOptions::default()), Deletion::Remove(_)), "never assigned");
    running["spec"]["nodeName"] = json!("n");
    let going = updated(begin(pods, &running, &DeleteOptions::default()));
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-01-02T03:05:30Z");
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(!deletion::is_finished(pods, &going));
    assert_eq!(begin(pods, &going, &DeleteOptions::default()), Deletion::Pending);
    let sooner = DeleteOptions { grace_period_seconds: Some(5), ..DeleteOptions::default() };
    let shorter = updated(begin(pods, &going, &sooner));
    assert_eq!(shorter["metadata"]["deletionTimestamp"], "2026-01-02T03:05:05Z");
    let longer = DeleteOptions { grace_period_seconds: Some(60), ..DeleteOptions::default() };
    assert_eq!(begin(pods, &going, &longer), Deletion::Pending);
    let force = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    assert!(matches!(begin(pods, &going, &force), Deletion::Remove(_)));
    assert!(matches!(begin(pods, &running, &force), Deletion::Remove(_)));
    running["status"]["phase"] = json!("Succeeded");
    assert!(matches!(begin(pods, &running, &DeleteOptions::default()), Deletion::Remove(_)), "has ended");
}

#[test]
fn finalizers_hold_objects() {
    let maps = res("", "configmaps");
    let held = created(maps, json!({"metadata": {"name": "m", "finalizers": ["example.com/x"]}}));
    let going = updated(begin(maps, &held, &DeleteOptions::default()));
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    let mut freed = going.clone();
    freed["metadata"]["finalizers"] = json!([]);
    update(maps, &mut freed, &going, Part::Main, &ctx("ns")).expect("freed");
    assert!(deletion::is_finished(maps, &freed));
    let mut more = going.clone();
    more["metadata"]["finalizers"] = json!(["example.com/x", "example.com/y"]);
    assert_eq!(update(maps, &mut more, &going, Part::Main, &ctx("ns")).expect_err("added").code, 422);
    let plain = created(maps, json!({"metadata": {"name": "m"}}));
    let foreground = DeleteOptions::from_json(&json!({"propagationPolicy": "Foreground"})).expect("options");
    assert_eq!(updated(begin(maps, &plain, &foreground))["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let orphan = DeleteOptions::from_json(&json!({"orphanDependents": true})).expect("options");
    assert_eq!(updated(begin(maps, &plain, &orphan))["metadata"]["finalizers"], json!(["orphan"]));
    let wrong = DeleteOptions { precondition_uid: Some("other".into()), ..DeleteOptions::default() };
    let error = deletion::begin(maps, &plain, &wrong, ctx("").now).expect_err("precondition");
    assert_eq!(error.code, 409);
    assert!(DeleteOptions::from_json(&json!({"propagationPolicy": "Later"})).is_err());
}

#[test]
fn namespaces_go_in_two_steps() {
    let namespaces = res("", "namespaces");
    let ns = created(namespaces, json!({"metadata": {"name": "x"}}));
    assert_eq!(ns["metadata"]["labels"]["kubernetes.io/metadata.name"], "x");
    assert_eq!((&ns["spec"]["finalizers"], &ns["status"]["phase"]), (&json!(["kubernetes"]), &json!("Active")));
    let going = updated(begin(namespaces, &ns, &DeleteOptions::default()));
    assert_eq!(going["status"]["phase"], "Terminating");
    assert!(!deletion::is_finished(namespaces, &going));
    let mut done = going.clone();
    done["spec"]["finalizers"] = json!([]);
    let mut main = done.clone();
    update(namespaces, &mut main, &going, Part::Main, &ctx("")).expect("ignored");
    assert!(!deletion::is_finished(namespaces, &main));
    update(namespaces, &mut done, &going, Part::Other("finalize"), &ctx("")).expect("finalized");
    assert!(deletion::is_finished(namespaces, &done));
}

#[test]
fn nodes_register_with_their_status() {
    let nodes = res("", "nodes");
    let node = created(nodes, json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": 2}}}));
    assert_eq!(node["status"], json!({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}));
}

#[test]
fn events_are_stored_once() {
    let (core, new) = (res("", "events"), lookup("events.k8s.io", "v1", "events").expect("events"));
    let event = created(
        new,
        json!({"metadata": {"name": "e"}, "regarding": {"namespace": "ns", "name": "p", "kind": "Pod"},
        "eventTime": "2026-01-02T03:04:05.123456Z", "note": "n", "action": "a", "reason": "r", "reportingController": "c",
        "reportingInstance": "c-1"}),
    );
    let mut stored = to_storage(new, event.clone());
    assert_eq!((&stored["apiVersion"], &stored["message"]), (&json!("v1"), &json!("n")));
    assert_eq!(stored["eventTime"], "2026-01-02T03:04:05.123456Z");
    assert_eq!(core.key("ns", "e"), new.key("ns", "e"));
    from_storage(new, &mut stored, 7);
    assert_eq!((&stored["note"], &stored["metadata"]["resourceVersion"]), (&json!("n"), &json!("7")));
}

#[test]
fn generated_names_keep_their_suffix() {
    assert_eq!(generate(&"a".repeat(80), 58, "12345").len(), 63);
    assert_eq!(generate("a-", 58, "12345"), "a-12345");
}

#[test]
fn what_was_accepted_before_a_rule_came_can_still_be_let_go() {
    let pods = res("", "pods");
    let mut old = created(pods, pod());
    old["spec"]["hostAliases"] = json!([{"ip": "192.0.2.1", "hostnames": ["Not_a_host!"]}]);
    old["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    update(pods, &mut new, &old, Part::Main, &ctx("ns")).expect("the finalizer goes");
    // A mistake that was not there is still one.
    let mut worse = old.clone();
    worse["metadata"]["labels"] = json!({"a b": "c"});
    let error = update(pods, &mut worse, &old, Part::Main, &ctx("ns")).expect_err("a wrong label");
    assert!(causes(&error).iter().all(|cause| cause.contains("metadata.labels")), "{:?}", causes(&error));
}

#[test]
fn subresources_of_a_pod_carry_no_metadata() {
    let pods = res("", "pods");
    let mut labelled = pod();
    labelled["metadata"]["labels"] = json!({"app": "web"});
    let old = created(pods, labelled);
    for part in ["ephemeralcontainers", "resize"] {
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"app": "other"});
        new["metadata"]["finalizers"] = json!(["example.com/hold"]);
        update(pods, &mut new, &old, Part::Other(part), &ctx("ns")).expect("updated");
        assert_eq!(new["metadata"]["labels"], old["metadata"]["labels"], "{part}");
        assert!(new["metadata"].get("finalizers").is_none(), "{part}");
    }
}
