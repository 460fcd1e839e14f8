//! Ownership of built-in types, end to end.

use keelson_managed_fields::typed::to_field_set;
use keelson_managed_fields::{Path, Request, Set, applied, updated};
use serde_json::json;

use super::*;
use crate::resource::lookup;

fn request(manager: &str) -> Request<'_> {
    Request { manager, api_version: "apps/v1", subresource: "", now: jiff::Timestamp::UNIX_EPOCH, force: false }
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n", "labels": {"a": "b"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "containers": [{"name": "c", "image": "i", "resources": {}, "ports": [{"containerPort": 80}], "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
                    "nodeSelector": {"x": "y"},
                    "securityContext": {},
                    "tolerations": [{"key": "t"}],
                },
            },
        },
        "status": {},
    })
}

fn kind(group: &str, version: &str, plural: &str) -> Kind {
    Kind(lookup(group, version, plural).expect("resource"))
}

#[test]
fn a_created_deployment_is_owned_as_upstream_has_it() {
    let mut new = deployment();
    updated(
        &kind("apps", "v1", "deployments"),
        None,
        &mut new,
        &request("kubectl-create"),
        &Set::of_fields(&[&["status"]]),
    )
    .expect("managed");
    let entry = &new["metadata"]["managedFields"][0];
    assert_eq!(entry["manager"], "kubectl-create");
    let expected = Set::parse(
        r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:strategy":{"f:rollingUpdate":{".":{},"f:maxSurge":{}},"f:type":{}},"f:template":{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"E\"}":{".":{},"f:name":{},"f:valueFrom":{".":{},"f:secretKeyRef":{}}}},"f:image":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}},"f:resources":{}}},"f:nodeSelector":{},"f:securityContext":{},"f:tolerations":{}}}}}"#,
    )
    .expect("set");
    assert_eq!(Set::from_value(&entry["fieldsV1"]).expect("set").serialise(), expected.serialise());
}

#[test]
fn conflicts_name_the_container() {
    let versions = kind("apps", "v1", "deployments");
    let live = applied(&versions, None, &deployment(), &request("a"), &Set::new()).expect("created");
    let config = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "other"}]}}},
    });
    let error = applied(&versions, Some(&live), &config, &request("b"), &Set::new()).expect_err("conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.template.spec.containers[name=\"c\"].image"
    );
}

#[test]
fn fields_that_no_type_has_are_refused() {
    let mut config = deployment();
    config["spec"]["nope"] = json!(1);
    let error =
        applied(&kind("apps", "v1", "deployments"), None, &config, &request("a"), &Set::new()).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object (n/d; apps/v1, Kind=Deployment): .spec.nope: field not declared in schema"
    );
}

#[test]
fn every_kind_has_a_type_and_an_empty_object_of_it() {
    for res in resources() {
        let t = type_of(res, res.kind).unwrap_or_else(|| panic!("{} has no type", res.kind));
        let empty = Kind(res).empty();
        let fields = to_field_set(&empty, t).unwrap_or_else(|e| panic!("{}: {e}", res.kind));
        assert!(!fields.has(&Path::fields(&["spec", "replicas"]).0), "{}", res.kind);
    }
}

#[test]
fn subresources_have_types() {
    let deployments = lookup("apps", "v1", "deployments").expect("deployments");
    let scale = type_of(deployments, "Scale").expect("scale");
    assert!(scale.field("spec").and_then(|spec| spec.field("replicas")).is_some());
    assert!(type_of(deployments, "Nope").is_none());
}

#[test]
fn events_are_one_kind_in_two_versions() {
    let events = kind("", "v1", "events");
    assert!(events.type_of("events.k8s.io/v1").is_some_and(|t| t.field("regarding").is_some()));
    assert!(events.type_of("v1").is_some_and(|t| t.field("involvedObject").is_some()));
    assert!(events.type_of("events.k8s.io/v0").is_none());
    let converted = events
        .convert(&json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "x"}}), "events.k8s.io/v1");
    assert_eq!(converted.expect("converted")["regarding"]["name"], "x");
}

#[test]
fn a_claim_is_divided_although_references_are_not() {
    let volumes = kind("", "v1", "persistentvolumes");
    let t = volumes.type_of("v1").expect("type");
    let v = json!({"spec": {"claimRef": {"name": "x"}}});
    assert!(to_field_set(&v, t).expect("fields").has(&Path::fields(&["spec", "claimRef", "name"]).0));
}
