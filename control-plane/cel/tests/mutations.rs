//! MutatingAdmissionPolicies.

use std::sync::Arc;

use keelson_cel::policy::mutating::{self, MutatingPolicy, MutationOutcome, Patcher, Reinvocation};
use keelson_cel::policy::{Attributes, Binding, ParamKind, ParamLookup, ResourceKind};
use kube_common::selector::LabelSelector;
use serde_json::{Value, json};

struct NoParams;

impl ParamLookup for NoParams {
    fn is_namespaced(&self, _: &ParamKind) -> Option<bool> {
        None
    }
    fn get(&self, _: &ParamKind, _: Option<&str>, _: &str) -> Result<Option<Arc<Value>>, String> {
        Ok(None)
    }
    fn list(&self, _: &ParamKind, _: Option<&str>, _: &LabelSelector) -> Result<Vec<Arc<Value>>, String> {
        Ok(Vec::new())
    }
}

/// Merges maps, replaces everything else; knows `add` and `test` of JSON patch.
struct Simple;

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

impl Patcher for Simple {
    fn apply_configuration(&self, object: &Value, configuration: &Value) -> Result<Value, String> {
        let mut out = object.clone();
        merge(&mut out, configuration);
        Ok(out)
    }
    fn json_patch(&self, object: &Value, operations: &Value) -> Result<Option<Value>, String> {
        let mut out = object.clone();
        for operation in operations.as_array().unwrap() {
            let path = operation["path"].as_str().unwrap();
            if operation["op"] == "test" {
                if out.pointer(path) != operation.get("value") {
                    return Ok(None);
                }
                continue;
            }
            let (parent, key) = path.rsplit_once('/').unwrap();
            let parent = out.pointer_mut(parent).ok_or("no such path")?;
            parent[key.replace("~1", "/")] = operation["value"].clone();
        }
        Ok(Some(out))
    }
}

fn policy(name: &str, spec: Value) -> Value {
    let mut whole = json!({
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "*"}]},
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": whole})
}

fn apply(expression: &str) -> Value {
    json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}])
}

fn patch(expression: &str) -> Value {
    json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}])
}

fn run(policies: &[Value], object: &Value, reinvocation: &mut Reinvocation) -> MutationOutcome {
    let resource =
        ResourceKind { version: "v1".into(), resource: "pods".into(), kind: "Pod".into(), ..ResourceKind::default() };
    let attributes = Attributes {
        operation: "CREATE",
        resource: &resource,
        subresource: "",
        namespace: "default",
        name: "p",
        object: Some(object),
        old_object: None,
        namespace_object: None,
        user: &Value::Null,
        dry_run: false,
        options: &Value::Null,
        equivalents: &[],
    };
    let compiled: Vec<MutatingPolicy> = policies.iter().map(MutatingPolicy::compile).collect();
    let binding = |policy: &MutatingPolicy| {
        vec![Binding::read(&json!({"metadata": {"name": "b"}, "spec": {"policyName": policy.name()}}))]
    };
    let bindings: Vec<Vec<Binding>> = compiled.iter().map(binding).collect();
    let both: Vec<_> = compiled.iter().zip(&bindings).map(|(policy, bindings)| (policy, bindings.as_slice())).collect();
    mutating::evaluate(&both, &attributes, &NoParams, None, &Simple, reinvocation)
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1"}}, "spec": {"containers": [{"name": "c"}]}})
}

#[test]
fn configurations_and_patches_change_the_object() {
    let policies = [
        policy(
            "first",
            json!({
                "variables": [{"name": "side", "expression": "Object.spec.initContainers{name: 'mesh', args: ['proxy']}"}],
                "matchConditions": [{"name": "none", "expression": "!has(object.spec.initContainers)"}],
                "mutations": apply("Object{spec: Object.spec{initContainers: [variables.side], ?hostname: optional.none()}}"),
            }),
        ),
        policy(
            "second",
            json!({"mutations": patch(
                "[JSONPatch{op: 'test', path: '/spec/initContainers/0/name', value: 'mesh'}, \
                  JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x/y'), value: string(size(object.spec.initContainers))}]",
            )}),
        ),
        policy(
            "third",
            json!({"mutations": patch("[JSONPatch{op: 'test', path: '/kind', value: 'Node'}, JSONPatch{op: 'add', path: '/bad', value: 1}]")}),
        ),
    ];
    for policy in &policies {
        assert_eq!(mutating::validate(policy), []);
    }
    let outcome = run(&policies, &pod(), &mut Reinvocation::default());
    assert_eq!(outcome.denials, []);
    let mut expected = pod();
    expected["spec"]["initContainers"] = json!([{"name": "mesh", "args": ["proxy"]}]);
    expected["metadata"]["labels"]["x/y"] = json!("1");
    assert_eq!(outcome.object, Some(expected));
}

#[test]
fn errors_refuse_or_are_ignored() {
    let spec = json!({"mutations": patch("[JSONPatch{op: 'add', path: object.gone, value: 1}]")});
    let outcome = run(&[policy("p", spec.clone())], &pod(), &mut Reinvocation::default());
    let expression = "[JSONPatch{op: 'add', path: object.gone, value: 1}]";
    assert_eq!(
        outcome.denials[0].message,
        format!(
            "policy 'p' with binding 'b' denied request: expression '{expression}' resulted in error: no such key: gone"
        )
    );
    assert_eq!((outcome.denials[0].reason.as_str(), outcome.denials[0].code, outcome.object), ("Invalid", 403, None));
    let mut ignored = policy("p", spec);
    ignored["spec"]["failurePolicy"] = json!("Ignore");
    assert_eq!(run(&[ignored], &pod(), &mut Reinvocation::default()), MutationOutcome::default());
}

#[test]
fn policies_run_again_if_needed() {
    let count = "Object{spec: Object.spec{priority: size(object.metadata.labels)}}";
    let policies = [
        policy("count", json!({"reinvocationPolicy": "IfNeeded", "mutations": apply(count)})),
        policy("label", json!({"mutations": patch("[JSONPatch{op: 'add', path: '/metadata/labels/b', value: '2'}]")})),
    ];
    let mut reinvocation = Reinvocation::default();
    let first = run(&policies, &pod(), &mut reinvocation).object.unwrap();
    assert_eq!(first["spec"]["priority"], 1);
    assert!(reinvocation.second_pass(&first));
    let second = run(&policies, &first, &mut reinvocation).object.unwrap();
    assert_eq!(second["spec"]["priority"], 2);
    let mut settled = Reinvocation::default();
    let alone = run(&policies[..1], &pod(), &mut settled).object.unwrap();
    assert!(!settled.second_pass(&alone), "nothing changed after the policy ran");
}

#[test]
fn mutating_policies_are_checked() {
    let mut bad = policy(
        "p",
        json!({"mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{spec: Object.wrong{a: 1}}"}},
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "[1]"}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{nope: 1}]"}},
            {"patchType": "JSONPatch"},
            {"patchType": "Else"},
        ]}),
    );
    bad["spec"]["reinvocationPolicy"] = json!("Sometimes");
    let errors: Vec<String> = mutating::validate(&bad).iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 6, "{errors:#?}");
    assert!(
        errors[0]
            .contains("unexpected type name \"Object.wrong\", expected \"Object.spec\", which matches field name path")
    );
    assert_eq!(
        errors[1],
        "spec.mutations[1].applyConfiguration.expression: Invalid value: \"[1]\": must evaluate to Object but got list(dyn)"
    );
    assert!(errors[2].contains("undefined field 'nope'"), "{}", errors[2]);
    assert_eq!(errors[3], "spec.mutations[3].jsonPatch: Required value: must be specified when patchType is JSONPatch");
    assert_eq!(
        errors[4],
        "spec.mutations[4].patchType: Unsupported value: \"Else\": supported values: \"ApplyConfiguration\", \"JSONPatch\""
    );
    assert_eq!(
        errors[5],
        "spec.reinvocationPolicy: Unsupported value: \"Sometimes\": supported values: \"IfNeeded\", \"Never\""
    );
}
