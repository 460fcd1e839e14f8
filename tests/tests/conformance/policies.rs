//! Admission policies: what CEL expressions refuse and change.

use anyhow::{Result, ensure};
use http::Method;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::name_of;
use serde_json::{Value, json};

use super::verbs::Kind;

tests![validates, variables, mutates, annotates, mutating_policies, mutating_bindings];

const GROUP: &str = "admissionregistration.k8s.io/v1";
const DEPLOYMENTS: &str = "apps/v1/deployments";
const SOON: u64 = 20;

/// Objects of the cluster that go with the test.
struct Made<'a> {
    lab: &'a Lab,
    urls: Vec<String>,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // They must not touch other tests: each is bound to its own namespace by a label.
        if let Ok(api) = self.lab.api() {
            self.urls.iter().rev().for_each(|url| drop(api.delete(url)));
        }
    }
}

/// A policy and its binding, for deployments of this namespace alone. `kind` is `validating` or `mutating`.
fn bound<'a>(space: &Space<'a>, kind: &str, mut spec: Value, mut binding: Value) -> Result<Made<'a>> {
    let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": space.name } });
    spec["matchConstraints"] = json!({ "namespaceSelector": selector, "resourceRules": [{
        "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"] }] });
    let name = format!("{}.policy.example.com", space.name);
    binding["policyName"] = json!(name);
    binding["matchResources"] = json!({ "namespaceSelector": selector });
    let mut made = Made { lab: space.lab, urls: Vec::new() };
    for (plural, spec) in [("policies", &spec), ("policybindings", &binding)] {
        let all = format!("/apis/{GROUP}/{kind}admission{plural}");
        space.lab.api()?.create(&all, &json!({ "metadata": { "name": name }, "spec": spec }))?;
        made.urls.push(format!("{all}/{name}"));
    }
    Ok(made)
}

fn of_pods(name: &str, replicas: u32) -> Value {
    let spec = json!({ "containers": [{ "name": "main", "image": "busybox:1.28" }], "schedulerName": "nobody" });
    let template = json!({ "metadata": { "labels": { "app": name } }, "spec": spec });
    json!({ "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": template } })
}

/// Waits until a deployment of one replica is refused, then shows who is refused and who is not.
fn wants_more_than_one(space: &Space<'_>, message: &str) -> Result<()> {
    let marker = of_pods("marker", 1);
    let said = space.lab.wait("the policy is in force", SOON, || {
        let url = space.url(&format!("{DEPLOYMENTS}?dryRun=All"));
        space.lab.api()?.refused(&Method::POST, &url, Some(&marker), 422).map(Some)
    })?;
    ensure!(said["reason"] == "Invalid", "{said}");
    ensure!(said["message"].as_str().is_some_and(|text| text.contains(message)), "{said}");
    space.lab.api()?.refused(&Method::POST, &space.url(DEPLOYMENTS), Some(&marker), 422)?;
    let made = space.make(DEPLOYMENTS, &of_pods("replicated", 2))?;
    ensure!(name_of(&made) == "replicated");
    // It is about deployments alone.
    space.make("apps/v1/replicasets", &of_pods("non-replicated", 1)).map(drop)
}

// [sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should validate against a Deployment [Conformance]
fn validates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("policy-validates")?;
    let validation = json!({ "expression": "object.spec.replicas > 1",
        "messageExpression": "'wants replicas > 1, got ' + string(object.spec.replicas)" });
    let binding = json!({ "validationActions": ["Deny"] });
    let _made = bound(&space, "validating", json!({ "validations": [validation] }), binding)?;
    wants_more_than_one(&space, "wants replicas > 1, got 1")
}

// [sig-api-machinery] ValidatingAdmissionPolicy [Privileged:ClusterAdmin] should allow expressions to refer variables. [Conformance]
fn variables(lab: &Lab) -> Result<()> {
    let space = lab.quarter("policy-variables")?;
    let variables = json!([
        { "name": "replicas", "expression": "object.spec.replicas" },
        { "name": "oddReplicas", "expression": "variables.replicas % 2 == 1" },
    ]);
    let validations = json!([
        { "expression": "variables.replicas > 1" },
        { "expression": "variables.oddReplicas", "messageExpression": "'wants odd, got ' + string(variables.replicas)" },
    ]);
    let binding = json!({ "validationActions": ["Deny"] });
    let spec = json!({ "variables": variables, "validations": validations });
    let _made = bound(&space, "validating", spec, binding)?;
    let marker = of_pods("marker", 1);
    let refused = |object: &Value, message: &str| {
        let said = lab.api()?.refused(&Method::POST, &space.url(DEPLOYMENTS), Some(object), 422)?;
        ensure!(said["message"].as_str().is_some_and(|text| text.contains(message)), "{said}");
        Ok(said)
    };
    let url = space.url(&format!("{DEPLOYMENTS}?dryRun=All"));
    lab.wait("the policy is in force", SOON, || lab.api()?.refused(&Method::POST, &url, Some(&marker), 422).map(Some))?;
    refused(&marker, "failed expression: variables.replicas > 1")?;
    refused(&of_pods("even", 2), "wants odd, got 2")?;
    space.make(DEPLOYMENTS, &of_pods("odd", 3))?;
    space.make("apps/v1/replicasets", &of_pods("non-replicated", 1)).map(drop)
}

/// The first deployment that the policy has changed.
fn changed(space: &Space<'_>, changed: impl Fn(&Value) -> bool) -> Result<Value> {
    let object = of_pods("changed", 2);
    let url = space.url(&format!("{DEPLOYMENTS}?dryRun=All"));
    space.lab.until("the policy is in force", SOON, || Ok(changed(&space.lab.api()?.create(&url, &object)?)))?;
    let made = space.make(DEPLOYMENTS, &object)?;
    ensure!(changed(&made), "{made}");
    ensure!(changed(&space.read(&format!("{DEPLOYMENTS}/changed"))?), "it was not stored");
    Ok(made)
}

fn applying(expression: &str) -> Value {
    let mutation = json!({ "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": expression } });
    json!({ "reinvocationPolicy": "Never", "mutations": [mutation] })
}

const ANNOTATE: &str = "Object{metadata: Object.metadata{annotations: {\"mutated-by\": \"admission-policy\"}}}";

// [sig-api-machinery] MutatingAdmissionPolicy [Privileged:ClusterAdmin] should mutate a Deployment [Conformance]
fn mutates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("policy-mutates")?;
    let expression = format!("{}, spec: Object.spec{{replicas: 1}}}}", ANNOTATE.strip_suffix('}').unwrap_or_default());
    let _made = bound(&space, "mutating", applying(&expression), json!({}))?;
    let made = changed(&space, |object| object["spec"]["replicas"] == 1)?;
    ensure!(made["metadata"]["annotations"]["mutated-by"] == "admission-policy", "{made}");
    Ok(())
}

// [sig-api-machinery] MutatingAdmissionPolicy [Privileged:ClusterAdmin] should mutate a Deployment with annotations [Conformance]
fn annotates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("policy-annotates")?;
    let _made = bound(&space, "mutating", applying(ANNOTATE), json!({}))?;
    let wanted = |object: &Value| object["metadata"]["annotations"]["mutated-by"] == "admission-policy";
    let made = changed(&space, wanted)?;
    ensure!(made["spec"]["replicas"] == 2 && made["metadata"]["labels"]["app"] == "changed", "{made}");
    Ok(())
}

fn all_verbs(lab: &Lab, kind: &str, plural: &str, spec: &Value) -> Result<()> {
    let kind = Kind { api: GROUP, kind, plural, namespace: None, body: json!({ "spec": spec }) };
    kind.discovered(lab)?;
    kind.verbs(lab)
}

// [sig-api-machinery] MutatingAdmissionPolicy [Privileged:ClusterAdmin] should support MutatingAdmissionPolicy API operations [Conformance]
fn mutating_policies(lab: &Lab) -> Result<()> {
    let mut spec = applying(ANNOTATE);
    spec["matchConstraints"] = json!({ "resourceRules": [{ "apiGroups": ["nobody.example.com"], "apiVersions": ["v1"],
        "operations": ["CREATE"], "resources": ["things"] }] });
    all_verbs(lab, "MutatingAdmissionPolicy", "mutatingadmissionpolicies", &spec)
}

// [sig-api-machinery] MutatingAdmissionPolicy [Privileged:ClusterAdmin] should support MutatingAdmissionPolicyBinding API operations [Conformance]
fn mutating_bindings(lab: &Lab) -> Result<()> {
    let spec = json!({ "policyName": "nothing.example.com" });
    all_verbs(lab, "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", &spec)
}
