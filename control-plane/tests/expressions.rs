//! CEL where the API server evaluates it: admission policies, conditions of webhooks, rules of custom kinds.

mod common;

use common::{Api, config_map, deployment};
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn constraints(group: &str, resource: &str) -> Value {
    json!({"resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}]})
}

async fn validating(api: &Api, name: &str, spec: Value, binding: Value) {
    api.post(&format!("{GROUP}/validatingadmissionpolicies"), &json!({"metadata": {"name": name}, "spec": spec}))
        .await
        .expect(201);
    let mut bound = json!({"policyName": name, "validationActions": ["Deny"]});
    for (key, value) in binding.as_object().unwrap() {
        bound[key] = value.clone();
    }
    let binding = json!({"metadata": {"name": format!("{name}-binding")}, "spec": bound});
    api.post(&format!("{GROUP}/validatingadmissionpolicybindings"), &binding).await.expect(201);
}

#[tokio::test]
async fn a_validating_policy_refuses_in_upstreams_words() {
    let api = Api::start().await;
    let spec = json!({"matchConstraints": constraints("apps", "deployments"), "validations": [
        {"expression": "object.spec.replicas <= 5", "message": "too many"},
        {"expression": "!has(object.metadata.labels) || object.metadata.labels.?env.orValue('') != 'prod'",
            "messageExpression": "'not ' + object.metadata.name", "reason": "Forbidden"}]});
    validating(&api, "p", spec, json!({})).await;
    let mut large = deployment("d");
    large["spec"]["replicas"] = json!(6);
    let refused = api.post(DEPLOYMENTS, &large).await.expect(422);
    assert_eq!(
        refused["message"],
        "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-binding' denied request: too many"
    );
    assert_eq!(refused["reason"], "Invalid");
    api.post(DEPLOYMENTS, &deployment("d")).await.expect(201);
    let labels = json!({"metadata": {"labels": {"env": "prod"}}});
    let refused = api.patch(&format!("{DEPLOYMENTS}/d"), "merge-patch", &labels).await.expect(403);
    assert!(refused["message"].as_str().unwrap().ends_with("denied request: not d"), "{refused}");
    let warn = json!({"spec": {"validationActions": ["Warn"]}});
    api.patch(&format!("{GROUP}/validatingadmissionpolicybindings/p-binding"), "merge-patch", &warn).await.expect(200);
    let answer = api.patch(&format!("{DEPLOYMENTS}/d"), "merge-patch", &labels).await;
    assert_eq!(
        answer.headers["warning"],
        "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-binding': not d\""
    );
    answer.expect(200);
    api.delete(&format!("{GROUP}/validatingadmissionpolicies/p"), &json!({})).await.expect(200);
    api.post(DEPLOYMENTS, &{
        let mut other = large.clone();
        other["metadata"]["name"] = json!("e");
        other
    })
    .await
    .expect(201);
}

#[tokio::test]
async fn parameters_variables_namespaces_and_the_authorizer() {
    let api = Api::start().await;
    api.post(MAPS, &json!({"metadata": {"name": "limits"}, "data": {"most": "3"}})).await.expect(201);
    let spec = json!({"matchConstraints": constraints("apps", "deployments"), "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "most", "expression": "int(params.data.most)"}],
        "matchConditions": [{"name": "not-system", "expression": "!request.userInfo.username.startsWith('system:')"}],
        "validations": [{"expression": "object.spec.replicas <= variables.most"},
            {"expression": "namespaceObject.metadata.name == 'default'"},
            {"expression": "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()", "message": "who are you"}]});
    validating(
        &api,
        "p",
        spec,
        json!({"paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}}),
    )
    .await;
    let mut body = deployment("d");
    body["spec"]["replicas"] = json!(4);
    let refused = api.post(DEPLOYMENTS, &body).await.expect(422);
    assert!(
        refused["message"].as_str().unwrap().contains("failed expression: object.spec.replicas <= variables.most"),
        "{refused}"
    );
    api.patch(&format!("{MAPS}/limits"), "merge-patch", &json!({"data": {"most": "4"}})).await.expect(200);
    api.post(DEPLOYMENTS, &body).await.expect(201);
}

#[tokio::test]
async fn a_mutating_policy_changes_what_comes_in() {
    let api = Api::start().await;
    let policy = json!({"metadata": {"name": "m"}, "spec": {"matchConstraints": constraints("apps", "deployments"), "failurePolicy": "Fail",
        "reinvocationPolicy": "Never", "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{annotations: {'seen': 'yes'}}, spec: Object.spec{replicas: 3}}"}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'by': object.metadata.name}}]"}}]}});
    api.post(&format!("{GROUP}/mutatingadmissionpolicies"), &policy).await.expect(201);
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "m"}});
    api.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), &binding).await.expect(201);
    let made = api.post(DEPLOYMENTS, &deployment("d")).await.expect(201);
    assert_eq!(made["spec"]["replicas"], 3);
    assert_eq!(
        (&made["metadata"]["annotations"]["seen"], &made["metadata"]["labels"]["by"]),
        (&json!("yes"), &json!("d"))
    );
    api.post(MAPS, &config_map("a", "x")).await.expect(201);
}

#[tokio::test]
async fn expressions_that_do_not_compile_are_refused_with_their_field() {
    let api = Api::start().await;
    let policy = |expression: &str| json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": constraints("apps", "deployments"), "validations": [{"expression": expression}]}});
    let path = format!("{GROUP}/validatingadmissionpolicies");
    let refused = api.post(&path, &policy("object.spec.replicas <=")).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.validations[0].expression");
    let refused = api.post(&path, &policy("nothing.spec")).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("undeclared reference to 'nothing'"), "{refused}");
    let hook = |expression: &str| {
        json!({"metadata": {"name": "w"}, "webhooks": [{"name": "a.b.c", "clientConfig": {"url": "https://127.0.0.1:1/"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "matchConditions": [{"name": "c", "expression": expression}],
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]})
    };
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    let refused = api.post(&path, &hook("object.")).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "webhooks[0].matchConditions[0].expression");
    api.post(&path, &hook("object.metadata.name != 'skip'")).await.expect(201);
    api.post(MAPS, &config_map("skip", "x")).await.expect(201);
    api.post(MAPS, &config_map("other", "x")).await.expect(500);
}

#[tokio::test]
async fn rules_of_custom_kinds_judge_new_and_old() {
    let api = Api::start().await;
    let spec = json!({"type": "object", "properties": {"least": {"type": "integer"}, "most": {"type": "integer"}, "fixed": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.least <= self.most", "message": "least is more than most"},
            {"rule": "self.fixed == oldSelf.fixed", "message": "fixed stays", "fieldPath": ".fixed"}]});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let crd = json!({"metadata": {"name": "bars.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "bars", "kind": "Bar"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let mut wrong = crd.clone();
    wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
        json!([{"rule": "self.nope <"}]);
    api.post(crds, &wrong).await.expect(422);
    api.post(crds, &crd).await.expect(201);
    let bars = "/apis/example.com/v1/namespaces/default/bars";
    api.get_until(bars, 200, 500).await;
    let bar = |least: i64, most: i64, fixed: &str| json!({"apiVersion": "example.com/v1", "kind": "Bar", "metadata": {"name": "b"}, "spec": {"least": least, "most": most, "fixed": fixed}});
    let refused = api.post(bars, &bar(3, 2, "x")).await.expect(422);
    assert_eq!(
        refused["message"],
        "Bar.example.com \"b\" is invalid: spec: Invalid value: \"object\": least is more than most"
    );
    api.post(bars, &bar(1, 2, "x")).await.expect(201);
    let refused = api.patch(&format!("{bars}/b"), "merge-patch", &json!({"spec": {"fixed": "y"}})).await.expect(422);
    assert!(
        refused["message"].as_str().unwrap().contains("spec.fixed: Invalid value: \"object\": fixed stays"),
        "{refused}"
    );
    api.patch(&format!("{bars}/b"), "merge-patch", &json!({"spec": {"most": 9}})).await.expect(200);
}

#[tokio::test]
async fn policies_are_asked_about_connections_and_subresources() {
    let api = Api::start().await;
    api.account("default", "default").await;
    api.post("/api/v1/namespaces/default/pods", &common::pod("p")).await.expect(201);
    let rules = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT", "CREATE"], "resources": ["pods/exec", "pods/eviction"]}]});
    validating(
        &api,
        "p",
        json!({"matchConstraints": rules, "validations": [{"expression": "false", "message": "nobody"}]}),
        json!({}),
    )
    .await;
    let refused = api.get("/api/v1/namespaces/default/pods/p/exec?command=id&stdout=true").await.expect(422);
    assert!(refused["message"].as_str().unwrap().ends_with("denied request: nobody"), "{refused}");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    api.post("/api/v1/namespaces/default/pods/p/eviction", &eviction).await.expect(422);
}
