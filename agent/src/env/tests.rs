//! Tests of the environment builder.

use super::*;
use crate::volumes::objects::ObjectKind;

fn pod(container: serde_json::Value) -> (Pod, Container) {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [container]}
    }))
    .unwrap();
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    (pod, container)
}

fn missing(kind: ObjectKind, name: &str) -> ReadError {
    ReadError::NotFound { kind, name: name.into() }
}

fn objects() -> EnvObjects {
    let mut objects = EnvObjects::default();
    objects.config_maps.insert(
        "cm".into(),
        Ok(Arc::new(ConfigMapData {
            data: BTreeMap::from([("A".into(), "1".into()), ("B".into(), "2".into())]),
            ..ConfigMapData::default()
        })),
    );
    objects.config_maps.insert("none".into(), Err(missing(ObjectKind::ConfigMap, "none")));
    objects.secrets.insert(
        "sec".into(),
        Ok(Arc::new(SecretData {
            data: BTreeMap::from([("P".into(), b"s3".to_vec().into())]),
            ..SecretData::default()
        })),
    );
    objects
}

fn run(container: serde_json::Value) -> Result<Vec<(String, String)>, EnvError> {
    let (pod, container) = pod(container);
    let facts = NodeFacts { pod_ips: vec!["10.0.0.2".into()], ..NodeFacts::default() };
    let services = [("SVC_HOST".to_owned(), "10.96.0.1".to_owned())];
    build(&pod, &container, &facts, &objects(), &services)
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn order_precedence_and_expansion() {
    let got = run(serde_json::json!({"name": "c",
    "envFrom": [{"configMapRef": {"name": "cm"}}, {"prefix": "S_", "secretRef": {"name": "sec"}},
        {"configMapRef": {"name": "none", "optional": true}}],
    "env": [
        {"name": "B", "value": "over-$(A)"},
        {"name": "LATER", "value": "$(Z)"},
        {"name": "Z", "value": "z"},
        {"name": "URL", "value": "http://$(SVC_HOST):$(B)$$(B)"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "A"}}},
        {"name": "SK", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "P"}}},
        {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "nope", "optional": true}}},
        {"name": "GONE2", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": true}}},
        {"name": "EMPTY"},
    ]}))
    .unwrap();
    let want = pairs(&[
        ("A", "1"),
        ("B", "over-1"),
        ("S_P", "s3"),
        ("LATER", "$(Z)"),
        ("Z", "z"),
        ("URL", "http://10.96.0.1:over-1$(B)"),
        ("IP", "10.0.0.2"),
        ("KEY", "1"),
        ("SK", "s3"),
        ("EMPTY", ""),
        ("SVC_HOST", "10.96.0.1"),
    ]);
    assert_eq!(got, want);
}

#[test]
fn a_declared_variable_hides_the_service_variable() {
    let got = run(serde_json::json!({"name": "c", "env": [{"name": "SVC_HOST", "value": "mine"}]}));
    assert_eq!(got.unwrap(), pairs(&[("SVC_HOST", "mine")]));
}

#[test]
fn errors_read_as_upstream() {
    let env = |source: serde_json::Value| {
        run(serde_json::json!({"name": "c", "env": [{"name": "X", "valueFrom": source}]})).unwrap_err().to_string()
    };
    assert_eq!(
        env(serde_json::json!({"configMapKeyRef": {"name": "none", "key": "k"}})),
        "configmap \"none\" not found"
    );
    assert_eq!(
        env(serde_json::json!({"configMapKeyRef": {"name": "cm", "key": "k"}})),
        "couldn't find key k in ConfigMap shop/cm"
    );
    assert_eq!(
        env(serde_json::json!({"secretKeyRef": {"name": "sec", "key": "k"}})),
        "couldn't find key k in Secret shop/sec"
    );
    let nul = run(serde_json::json!({"name": "c", "env": [{"name": "X", "value": "a\u{0}b"}]}));
    assert!(matches!(nul, Err(EnvError::Nul { .. })));
}

#[test]
fn commands_are_expanded_from_the_final_environment() {
    let (_, container) = pod(serde_json::json!({"name": "c",
        "command": ["sh", "-c", "echo $(A) $$(A) $(NOPE)"], "args": ["$(A)"]}));
    let (command, args) = expand_command(&container, &pairs(&[("A", "1")]));
    assert_eq!(command, ["sh", "-c", "echo 1 $(A) $(NOPE)"]);
    assert_eq!(args, ["1"]);
}

#[test]
fn secrets_that_are_no_text_are_refused_without_their_value() {
    let (pod, container) = pod(serde_json::json!({"name": "c", "envFrom": [{"secretRef": {"name": "bin"}}]}));
    let mut objects = EnvObjects::default();
    let data = BTreeMap::from([("K".into(), vec![b'a', 0xff].into())]);
    objects.secrets.insert("bin".into(), Ok(Arc::new(SecretData { data, ..SecretData::default() })));
    let error = build(&pod, &container, &NodeFacts::default(), &objects, &[]).unwrap_err().to_string();
    assert!(error.contains("key K of Secret bin"), "{error}");
}
