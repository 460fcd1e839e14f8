//! Configurations of admission webhooks: what they hold, and what one that cannot be called does.

use anyhow::{Result, ensure};
use http::Method;
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use serde_json::{Value, json};

use super::verbs::Kind;

tests![
    documents,
    mutating_conditions,
    validating_conditions,
    invalid_mutating_conditions,
    invalid_validating_conditions,
    fail_closed,
    configurations_are_left_alone,
];

const GROUP: &str = "admissionregistration.k8s.io/v1";
const SOON: u64 = 20;

pub fn all(kind: &str) -> String {
    format!("/apis/{GROUP}/{kind}webhookconfigurations")
}

/// A webhook that nobody serves, for these resources.
fn webhook(group: &str, resources: &[&str], operations: &[&str]) -> Value {
    json!({ "name": "nobody.example.com", "clientConfig": { "url": "https://127.0.0.1:1/nobody" }, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "timeoutSeconds": 5,
        "rules": [{ "apiGroups": [group], "apiVersions": ["v1"], "operations": operations, "resources": resources }] })
}

/// A configuration; removed with the handle.
pub struct Configured<'a> {
    lab: &'a Lab,
    pub url: String,
    made: Value,
}

impl<'a> Configured<'a> {
    pub fn make(lab: &'a Lab, kind: &str, name: &str, webhooks: &[Value]) -> Result<Self> {
        let all = all(kind);
        let made = lab.api()?.create(&all, &json!({ "metadata": { "name": name }, "webhooks": webhooks }))?;
        Ok(Self { lab, url: format!("{all}/{name}"), made })
    }
}

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        if let Ok(api) = self.lab.api() {
            let _ = api.delete(&self.url);
        }
    }
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should include webhook resources in discovery documents [Conformance]
fn documents(lab: &Lab) -> Result<()> {
    for (kind, plural) in [
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ] {
        Kind { api: GROUP, kind, plural, namespace: None, body: json!({}) }.discovered(lab)?;
    }
    let groups = lab.api()?.get("/apis")?;
    let versions = groups["groups"].as_array().into_iter().flatten();
    let versions = versions.flat_map(|group| group["versions"].as_array().cloned().unwrap_or_default());
    ensure!(versions.into_iter().any(|version| version["groupVersion"] == GROUP), "{groups}");
    Ok(())
}

fn conditions(lab: &Lab, kind: &str) -> Result<()> {
    let mut one = webhook("nobody.example.com", &["things"], &["CREATE"]);
    let first = json!([{ "name": "expression-1", "expression": "object.metadata.namespace == 'production'" }]);
    one["matchConditions"] = first.clone();
    let made = Configured::make(lab, kind, &format!("conditions-{kind}"), &[one])?;
    ensure!(made.made["webhooks"][0]["matchConditions"] == first, "{}", made.made);
    ensure!(lab.api()?.get(&made.url)?["webhooks"][0]["matchConditions"] == first);
    let second = json!([
        { "name": "expression-1", "expression": "object.metadata.namespace == 'production'" },
        { "name": "expression-2", "expression": "object.metadata.namespace == 'staging'" },
    ]);
    lab.wait("the configuration is replaced", SOON, || {
        let mut read = lab.api()?.get(&made.url)?;
        read["webhooks"][0]["matchConditions"] = second.clone();
        lab.api()?.replace(&made.url, &read).map(Some)
    })?;
    let read = lab.api()?.get(&made.url)?;
    ensure!(read["webhooks"][0]["matchConditions"] == second, "{read}");
    Ok(())
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to create and update mutating webhook configurations with match conditions [Conformance]
fn mutating_conditions(lab: &Lab) -> Result<()> {
    conditions(lab, "mutating")
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should be able to create and update validating webhook configurations with match conditions [Conformance]
fn validating_conditions(lab: &Lab) -> Result<()> {
    conditions(lab, "validating")
}

fn invalid(lab: &Lab, kind: &str) -> Result<()> {
    let mut one = webhook("nobody.example.com", &["things"], &["CREATE"]);
    one["matchConditions"] = json!([{ "name": "invalid-expression-1", "expression": "... [] bad expression" }]);
    let name = format!("invalid-{kind}");
    let body = json!({ "metadata": { "name": name }, "webhooks": [one] });
    let said = lab.api()?.refused(&Method::POST, &all(kind), Some(&body), 422)?;
    ensure!(said["message"].as_str().is_some_and(|text| text.contains("compilation failed")), "{said}");
    lab.api()?.absent(&format!("{}/{name}", all(kind)))
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should reject mutating webhook configurations with invalid match conditions [Conformance]
fn invalid_mutating_conditions(lab: &Lab) -> Result<()> {
    invalid(lab, "mutating")
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should reject validating webhook configurations with invalid match conditions [Conformance]
fn invalid_validating_conditions(lab: &Lab) -> Result<()> {
    invalid(lab, "validating")
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should unconditionally reject operations on fail closed webhook [Conformance]
fn fail_closed(lab: &Lab) -> Result<()> {
    let space = lab.quarter("fail-closed")?;
    let mut one = webhook("", &["configmaps"], &["CREATE"]);
    one["namespaceSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": space.name } });
    let _made = Configured::make(lab, "validating", "fail-closed", &[one])?;
    let map = json!({ "metadata": { "name": "foo" } });
    let url = space.url("configmaps?dryRun=All");
    lab.wait("the webhook is in force", SOON, || lab.api()?.refused(&Method::POST, &url, Some(&map), 500).map(Some))?;
    let said = lab.api()?.refused(&Method::POST, &space.url("configmaps"), Some(&map), 500)?;
    ensure!(said["reason"] == "InternalError", "{said}");
    ensure!(said["message"].as_str().is_some_and(|text| text.contains("failed calling webhook")), "{said}");
    lab.api()?.absent(&space.url("configmaps/foo"))
}

// [sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should not be able to mutate or prevent deletion of webhook configuration objects [Conformance]
fn configurations_are_left_alone(lab: &Lab) -> Result<()> {
    // A call of these would fail, and the request with it.
    let resources = ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
    let guard = webhook("admissionregistration.k8s.io", &resources, &["*"]);
    let _guards = [
        Configured::make(lab, "validating", "guard-validating", std::slice::from_ref(&guard))?,
        Configured::make(lab, "mutating", "guard-mutating", std::slice::from_ref(&guard))?,
    ];
    for kind in ["validating", "mutating"] {
        let one = webhook("nobody.example.com", &["things"], &["CREATE"]);
        let made = Configured::make(lab, kind, &format!("guarded-{kind}"), &[one])?;
        ensure!(made.made["metadata"].get("labels").is_none(), "{}", made.made);
        lab.api()?.patch(&made.url, Patch::Merge, &json!({ "metadata": { "labels": { "changed": "yes" } } }))?;
        lab.api()?.delete(&made.url)?;
        lab.api()?.absent(&made.url)?;
    }
    Ok(())
}
