//! Tests of decoding: wrong types, unknown and duplicate fields, canonical forms, and upstream's round-trip corpus.

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{by_kind, lookup};

fn pods() -> &'static Resource {
    lookup("", "v1", "pods").expect("pods")
}

fn decode(text: &str, validation: FieldValidation) -> Result<Decoded, ApiError> {
    body(pods(), None, text.as_bytes(), Format::Json, validation)
}

fn message(text: &str) -> String {
    let error = decode(text, FieldValidation::Strict).expect_err("refused");
    assert_eq!(error.code, 400, "{text}");
    error.message
}

#[test]
fn wrong_types_name_the_field_as_go_does() {
    let prefix = "Pod in version \"v1\" cannot be handled as a Pod: ";
    for (text, why) in [
        (
            r#"{"spec":{"containers":"x"}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            r#"{"spec":{"containers":[{"env":[{"name":"a","value":1}]}]}}"#,
            "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
        ),
        (
            r#"{"spec":{"terminationGracePeriodSeconds":"5"}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":5000000000}]}]}}"#,
            "json: cannot unmarshal number 5000000000 into Go struct field ContainerPort.spec.containers.ports.containerPort of \
             type int32",
        ),
        (
            r#"{"metadata":{"labels":{"a":true}}}"#,
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (r#"{"metadata":{"creationTimestamp":"yesterday"}}"#, "parsing time \"yesterday\""),
        (r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1x"}}}]}}"#, "spec.containers[0].resources.limits: "),
        ("[]", "json: cannot unmarshal array into Go value of type v1.Pod"),
    ] {
        let message = message(text);
        assert!(message.starts_with(&format!("{prefix}{why}")), "{text}: {message}");
    }
}

#[test]
fn unknown_and_duplicate_fields() {
    let text = r#"{"spec":{"foo":1,"containers":[{"name":"a","name":"b","bar":2}]},"baz":{}}"#;
    assert_eq!(
        message(text),
        "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: duplicate field \"spec.containers[0].name\", \
         unknown field \"baz\", unknown field \"spec.foo\", unknown field \"spec.containers[0].bar\""
    );
    let warned = decode(text, FieldValidation::Warn).expect("accepted");
    assert_eq!(warned.warnings.len(), 4);
    assert_eq!(warned.object["spec"]["containers"][0]["name"], "b");
    assert!(warned.object.get("baz").is_none() && warned.object["spec"].get("foo").is_none());
    assert!(decode(text, FieldValidation::Ignore).expect("accepted").warnings.is_empty());
}

#[test]
fn kind_and_version_must_fit() {
    assert!(
        message(r#"{"kind":"Service","apiVersion":"v1"}"#)
            .starts_with("Service in version \"v1\" cannot be handled as a Pod")
    );
    assert_eq!(
        message(r#"{"kind":"Pod","apiVersion":"v2"}"#),
        "the API version in the data (v2) does not match the expected API version (v1)"
    );
    let filled = decode("{}", FieldValidation::Strict).expect("accepted").object;
    assert_eq!((&filled["kind"], &filled["apiVersion"]), (&json!("Pod"), &json!("v1")));
}

#[test]
fn values_get_their_canonical_form() {
    let text = r#"{"metadata":{"creationTimestamp":null,"labels":{},"annotations":{"a":null}},
        "spec":{"nodeName":"","tolerations":[],"containers":[
            {"name":"a","resources":{"limits":{"cpu":0.5,"memory":"1024Mi"},"requests":{"cpu":"1000m"}},
             "env":[{"name":"e","value":""}],"args":["",null]}],
            "securityContext":{}}}"#;
    let pod = decode(text, FieldValidation::Strict).expect("accepted").object;
    assert_eq!(pod["metadata"], json!({"annotations": {"a": ""}}));
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"], json!({"cpu": "500m", "memory": "1Gi"}));
    assert_eq!(container["resources"]["requests"]["cpu"], "1");
    assert_eq!(container["args"], json!(["", ""]));
    assert!(pod["spec"].get("nodeName").is_none() && pod["spec"].get("tolerations").is_none());
    assert_eq!(pod["spec"]["securityContext"], json!({}));
}

#[test]
fn yaml_bodies_and_subresources() {
    let yaml = b"kind: Pod\nspec:\n  containers:\n  - name: a\n";
    let pod = body(pods(), None, yaml, Format::Yaml, FieldValidation::Strict).expect("accepted").object;
    assert_eq!(pod["spec"]["containers"][0]["name"], "a");
    let binding = br#"{"target":{"name":"n"}}"#;
    let binding =
        body(pods(), Some("binding"), binding, Format::Json, FieldValidation::Strict).expect("accepted").object;
    assert_eq!((&binding["kind"], &binding["apiVersion"]), (&json!("Binding"), &json!("v1")));
    let eviction =
        body(pods(), Some("eviction"), b"{}", Format::Json, FieldValidation::Strict).expect("accepted").object;
    assert_eq!(eviction["apiVersion"], "policy/v1");
}

#[test]
fn media_types() {
    assert_eq!(Format::from_content_type(None).expect("json"), Format::Json);
    assert_eq!(Format::from_content_type(Some("application/yaml; charset=utf-8")).expect("yaml"), Format::Yaml);
    assert_eq!(Format::from_content_type(Some("application/cbor")).expect_err("cbor").code, 415);
    assert!(FieldValidation::parse("strict").is_err());
}

/// The corpus, through `KEELSON_SHARED` or beside the workspace.
fn corpus() -> Option<PathBuf> {
    let shared = std::env::var_os("KEELSON_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    Some(shared.join("corpus/api-roundtrip")).filter(|path| path.is_dir())
}

#[test]
fn the_round_trip_corpus_comes_back_unchanged() {
    let Some(folder) = corpus() else {
        println!(
            "SKIPPED the_round_trip_corpus_comes_back_unchanged: no corpus; set KEELSON_SHARED to the folder that holds it"
        );
        return;
    };
    let mut served = 0;
    let mut broken = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder").map(|e| e.expect("entry").path()) {
        let text = std::fs::read(&entry).expect("file");
        let value: Value = serde_json::from_slice(&text).expect("json");
        let (api_version, kind) = (val::text(&value, "apiVersion").to_owned(), val::text(&value, "kind").to_owned());
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let Some(res) = by_kind(group, version, &kind) else { continue };
        served += 1;
        let mut object = value.clone();
        match conform(&Target::of(res, None), &mut object) {
            Ok(complaints) if complaints.is_empty() && object == value => {}
            Ok(complaints) if complaints.is_empty() => {
                broken.push(format!("{kind}: {}", first_difference(&value, &object, "")));
            }
            Ok(complaints) => broken.push(format!("{kind}: {complaints:?}")),
            Err(why) => broken.push(format!("{kind}: {why}")),
        }
    }
    println!("{served} kinds of the corpus are served");
    assert!(served > 40, "{served}");
    assert!(broken.is_empty(), "{broken:#?}");
}

fn first_difference(a: &Value, b: &Value, path: &str) -> String {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().find(|(key, value)| y.get(*key) != Some(value)).map_or_else(String::new, |(key, value)| {
                first_difference(value, y.get(key).unwrap_or(&Value::Null), &format!("{path}.{key}"))
            })
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => x
            .iter()
            .zip(y)
            .enumerate()
            .find(|(_, (x, y))| x != y)
            .map_or_else(String::new, |(i, (x, y))| first_difference(x, y, &format!("{path}[{i}]"))),
        _ => format!("{path}: {a} became {b}"),
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9/:.-]{0,8}".prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "name",
        "labels",
        "containers",
        "ports",
        "env",
        "resources",
        "limits",
        "cpu",
        "volumes",
        "template",
        "selector",
        "matchLabels",
        "data",
        "rules",
        "subjects",
        "conditions",
        "type",
        "strategy",
        "rollingUpdate",
        "livenessProbe",
        "httpGet",
        "port",
        "tolerations",
        "affinity",
        "webhooks",
        "subsets",
        "endpoints",
        "addresses",
    ]);
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(keys.clone(), inner, 0..6).prop_map(|m| m
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is sent to whatever kind: no panic, and what is accepted is accepted again unchanged.
    #[test]
    fn decoding_is_total_and_idempotent(value in any_json()) {
        for res in crate::resources() {
            if let Ok(first) = object(res, None, value.clone(), FieldValidation::Ignore) {
                let again = object(res, None, first.object.clone(), FieldValidation::Strict);
                let again = again.map_err(|e| TestCaseError::fail(format!("{res:?}: {e}")))?;
                prop_assert_eq!(&again.object, &first.object, "{:?}", res);
                let context = crate::WriteContext {
                    now: "2026-01-02T03:04:05Z".parse().expect("time"), uid: "u", suffix: "bcdfg", namespace: "ns",
                };
                let mut created = first.object.clone();
                let _ = crate::write::create(res, &mut created, &context);
                let mut updated = first.object.clone();
                let _ = crate::write::update(res, &mut updated, &created, crate::strategy::Part::Main, &context);
                let _ = crate::write::update(res, &mut updated, &created, crate::strategy::Part::Status, &context);
                let _ = crate::write::selectable(res, &created);
                let _ = (res.columns.cells)(&created, context.now);
            }
        }
    }
}
