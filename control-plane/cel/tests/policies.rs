//! Match conditions, ValidatingAdmissionPolicies (the documented examples among them) and CRD rules.

use std::sync::Arc;

use keelson_cel::match_conditions::{self, FailurePolicy, MatchConditions, Matched, WEBHOOK_VARIABLES};
use keelson_cel::policy::validating::{self, Outcome, ValidatingPolicy};
use keelson_cel::policy::{Attributes, Binding, ParamKind, ParamLookup, ResourceKind};
use keelson_cel::rules::{self, RuleSet};
use keelson_cel::{Budget, MATCH_CONDITIONS_BUDGET, Variables};
use kube_common::selector::LabelSelector;
use serde_json::{Value, json};

fn shown<T: ToString>(errors: &[T]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn match_conditions_decide() {
    let object = json!({"metadata": {"name": "x"}, "n": 1});
    let variables = Variables::new().json("object", Some(&object)).json("request", Some(&object));
    let conditions = |texts: &[&str]| {
        let list: Vec<Value> =
            texts.iter().enumerate().map(|(at, text)| json!({"name": format!("c{at}"), "expression": text})).collect();
        MatchConditions::compile(&Value::from(list), &WEBHOOK_VARIABLES)
    };
    let evaluate = |texts: &[&str], failure| {
        conditions(texts).evaluate(&variables, failure, &mut Budget::new(MATCH_CONDITIONS_BUDGET))
    };
    let (fail, ignore) = (FailurePolicy::Fail, FailurePolicy::Ignore);
    assert_eq!(evaluate(&[], fail), Matched::Yes);
    assert_eq!(evaluate(&["object.n == 1", "true"], fail), Matched::Yes);
    assert_eq!(evaluate(&["object.gone == 1", "object.n == 2"], fail), Matched::No(Some("c1".into())));
    let refused = "expression 'object.gone == 1' resulted in error: no such key: gone";
    assert_eq!(evaluate(&["object.gone == 1", "true"], fail), Matched::Refused(refused.into()));
    assert_eq!(evaluate(&["object.gone == 1", "true"], ignore), Matched::No(None));
    let both = format!("[{refused}, expression '1 / (object.n - 1) == 1' resulted in error: division by zero]");
    assert_eq!(evaluate(&["object.gone == 1", "1 / (object.n - 1) == 1"], fail), Matched::Refused(both));
}

#[test]
fn match_conditions_are_checked() {
    let list = json!([
        {"name": "a", "expression": "true"},
        {"name": "a", "expression": "nope == 1"},
        {"name": "bad name", "expression": " "},
        {"name": "", "expression": "'text'"},
    ]);
    let errors = match_conditions::validate(&list, "webhooks[0].matchConditions", &WEBHOOK_VARIABLES);
    assert_eq!(
        shown(&errors),
        [
            "webhooks[0].matchConditions[1].expression: Invalid value: \"nope == 1\": compilation failed: ERROR: <input>:1:1: \
             undeclared reference to 'nope' (in container '')\n | nope == 1\n | ^",
            "webhooks[0].matchConditions[1].name: Duplicate value: \"a\"",
            "webhooks[0].matchConditions[2].expression: Required value",
            "webhooks[0].matchConditions[2].name: Invalid value: \"bad name\": name part must consist of alphanumeric characters, \
             '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
             regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            "webhooks[0].matchConditions[3].expression: Invalid value: \"'text'\": must evaluate to bool but got string",
            "webhooks[0].matchConditions[3].name: Required value",
        ]
    );
}

struct Replicas;

impl ParamLookup for Replicas {
    fn is_namespaced(&self, kind: &ParamKind) -> Option<bool> {
        (kind.kind == "ReplicaLimit").then_some(true)
    }
    fn get(&self, kind: &ParamKind, namespace: Option<&str>, name: &str) -> Result<Option<Arc<Value>>, String> {
        let limit = json!({"apiVersion": kind.api_version, "kind": kind.kind, "maxReplicas": 3});
        Ok((namespace == Some("default") && name == "limit").then(|| Arc::new(limit)))
    }
    fn list(&self, _: &ParamKind, _: Option<&str>, selector: &LabelSelector) -> Result<Vec<Arc<Value>>, String> {
        let labels = json!({"env": "test"});
        let found = selector.matches(&labels.as_object());
        Ok(if found {
            vec![Arc::new(json!({"maxReplicas": 10})), Arc::new(json!({"maxReplicas": 4}))]
        } else {
            Vec::new()
        })
    }
}

fn deployments() -> ResourceKind {
    ResourceKind {
        group: "apps".into(),
        version: "v1".into(),
        resource: "deployments".into(),
        kind: "Deployment".into(),
    }
}

fn policy(spec: Value) -> Value {
    let mut spec = spec;
    spec["matchConstraints"] = json!({
        "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
        "resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"], "scope": "*"}],
    });
    if spec["failurePolicy"].is_null() {
        spec["failurePolicy"] = json!("Fail");
    }
    json!({"metadata": {"name": "p"}, "spec": spec})
}

fn binding(extra: Value) -> Value {
    let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"metadata": {"name": "b"}, "spec": spec})
}

fn run(policy: &Value, binding: &Value, object: &Value) -> Outcome {
    let (user, options, resource) = (json!({"username": "jane", "groups": ["dev"]}), Value::Null, deployments());
    let namespace = json!({"metadata": {"name": "default", "labels": {"environment": "test"}}});
    let attributes = Attributes {
        operation: "CREATE",
        resource: &resource,
        subresource: "",
        namespace: "default",
        name: "web",
        object: Some(object),
        old_object: None,
        namespace_object: Some(&namespace),
        user: &user,
        dry_run: false,
        options: &options,
        equivalents: &[],
    };
    let policy = ValidatingPolicy::compile(policy);
    validating::evaluate(&[(&policy, &[Binding::read(binding)])], &attributes, &Replicas, None)
}

fn messages(outcome: &Outcome) -> Vec<&str> {
    outcome.denials.iter().map(|denial| denial.message.as_str()).collect()
}

fn deployment(replicas: i64) -> Value {
    json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"replicas": replicas}})
}

#[test]
fn the_documented_policy_denies() {
    let policy = policy(json!({"validations": [{"expression": "object.spec.replicas <= 5"}]}));
    assert_eq!(validating::validate(&policy), []);
    let outcome = run(&policy, &binding(json!({})), &deployment(6));
    assert_eq!(
        messages(&outcome),
        ["ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: object.spec.replicas <= 5"]
    );
    assert_eq!((outcome.denials[0].reason.as_str(), outcome.denials[0].code), ("Invalid", 422));
    assert_eq!(run(&policy, &binding(json!({})), &deployment(5)), Outcome::default());
}

#[test]
fn parameters_variables_and_messages() {
    let policy = policy(json!({
        "paramKind": {"apiVersion": "rules.example.com/v1", "kind": "ReplicaLimit"},
        "variables": [
            {"name": "broken", "expression": "object.nothing.here"},
            {"name": "limit", "expression": "params.maxReplicas"},
            {"name": "over", "expression": "object.spec.replicas - variables.limit"},
        ],
        "validations": [{
            "expression": "variables.over <= 0",
            "messageExpression": "'object.spec.replicas must be no greater than ' + string(params.maxReplicas)",
            "reason": "Forbidden",
        }],
    }));
    assert_eq!(validating::validate(&policy), []);
    let named = binding(json!({"paramRef": {"name": "limit", "parameterNotFoundAction": "Deny"}}));
    let outcome = run(&policy, &named, &deployment(4));
    let expected =
        "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: object.spec.replicas must be no greater than 3";
    assert_eq!(messages(&outcome), [expected]);
    assert_eq!((outcome.denials[0].reason.as_str(), outcome.denials[0].code), ("Forbidden", 403));
    let selected =
        binding(json!({"paramRef": {"selector": {"matchLabels": {"env": "test"}}, "parameterNotFoundAction": "Deny"}}));
    assert_eq!(messages(&run(&policy, &selected, &deployment(5))), [expected.replace('3', "4")]);
    let missing = binding(json!({"paramRef": {"name": "gone", "parameterNotFoundAction": "Deny"}}));
    assert_eq!(
        messages(&run(&policy, &missing, &deployment(1))),
        [
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed to configure binding: no params found for policy \
          binding with `Deny` parameterNotFoundAction"
        ]
    );
    let allowed = binding(json!({"paramRef": {"name": "gone", "parameterNotFoundAction": "Allow"}}));
    assert_eq!(run(&policy, &allowed, &deployment(9)), Outcome::default());
}

#[test]
fn actions_and_audit_annotations() {
    let policy = policy(json!({
        "validations": [{"expression": "object.spec.replicas > 50", "message": "too few"}],
        "auditAnnotations": [
            {"key": "high", "valueExpression": "'Deployment spec.replicas set to ' + string(object.spec.replicas)"},
            {"key": "none", "valueExpression": "object.spec.replicas > 100 ? 'x' : null"},
        ],
    }));
    assert_eq!(validating::validate(&policy), []);
    let outcome = run(&policy, &binding(json!({"validationActions": ["Warn", "Audit"]})), &deployment(2));
    assert_eq!(outcome.denials, []);
    assert_eq!(outcome.warnings, ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': too few"]);
    let failure = &outcome.audit_annotations["validation.policy.admission.k8s.io/validation_failure"];
    assert_eq!(
        serde_json::from_str::<Value>(failure).unwrap(),
        json!([{"message": "too few", "policy": "p", "binding": "b", "expressionIndex": 0, "validationActions": ["Warn", "Audit"]}])
    );
    assert_eq!(outcome.audit_annotations["p/high"], "Deployment spec.replicas set to 2");
    assert_eq!(outcome.audit_annotations.len(), 2);
}

#[test]
fn errors_follow_the_failure_policy() {
    let spec = |failure: &str| {
        policy(
            json!({"failurePolicy": failure, "validations": [{"expression": "object.spec.gone == 1"}, {"expression": "false", "message": "no"}]}),
        )
    };
    let refused = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";
    assert_eq!(
        messages(&run(&spec("Fail"), &binding(json!({})), &deployment(1))),
        [
            format!("{refused}expression 'object.spec.gone == 1' resulted in error: no such key: gone"),
            format!("{refused}no")
        ]
    );
    assert_eq!(messages(&run(&spec("Ignore"), &binding(json!({})), &deployment(1))), [format!("{refused}no")]);
    let chained: Vec<Value> = (0..200)
        .map(|n| json!({"name": format!("v{n}"), "expression": if n == 0 { "object.nothing".into() } else { format!("variables.v{}", n - 1) }}))
        .collect();
    let outcome = run(
        &policy(json!({"variables": chained, "validations": [{"expression": "variables.v2 == 1"}]})),
        &binding(json!({})),
        &deployment(1),
    );
    assert_eq!(
        messages(&outcome),
        [format!(
            "{refused}expression 'variables.v2 == 1' resulted in error: composited variable \"v2\" fails to evaluate: composited \
             variable \"v1\" fails to evaluate: composited variable \"v0\" fails to evaluate: no such key: nothing"
        )]
    );
}

#[test]
fn chains_of_variables_end() {
    let judge = |variables: Vec<Value>, expression: &str| {
        let policy =
            policy(json!({"variables": variables, "validations": [{"expression": expression, "message": "no"}]}));
        run(&policy, &binding(json!({})), &deployment(1))
    };
    let chain = |step: &dyn Fn(usize) -> String| {
        let first = json!({"name": "v0", "expression": "object.metadata.name"});
        let rest = (1..200).map(|n| json!({"name": format!("v{n}"), "expression": step(n - 1)}));
        std::iter::once(first).chain(rest).collect::<Vec<_>>()
    };
    let deep =
        chain(&|n| format!("((((((((((variables.v{n} + '') + '') + '') + '') + '') + '') + '') + '') + '') + '')"));
    assert_eq!(judge(deep, "variables.v199 == 'web'"), Outcome::default());
    let doubled = judge(chain(&|n| format!("variables.v{n} + variables.v{n}")), "variables.v199 == 'web'");
    let expected = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: expression 'variables.v199 == 'web'' resulted in \
                    error: operation cancelled: actual cost limit exceeded";
    assert_eq!(messages(&doubled), [expected]);
}

#[test]
fn only_what_matches_is_judged() {
    let never = || policy(json!({"validations": [{"expression": "false", "message": "no"}]}));
    let count = |policy: &Value, binding: &Value| run(policy, binding, &deployment(1)).denials.len();
    assert_eq!(count(&never(), &binding(json!({}))), 1);
    for (pointer, value, expected) in [
        ("/spec/matchConstraints/namespaceSelector", json!({"matchLabels": {"environment": "test"}}), 1),
        ("/spec/matchConstraints/namespaceSelector", json!({"matchLabels": {"environment": "prod"}}), 0),
        ("/spec/matchConstraints/objectSelector", json!({"matchLabels": {"app": "web"}}), 1),
        ("/spec/matchConstraints/objectSelector", json!({"matchLabels": {"app": "db"}}), 0),
        ("/spec/matchConstraints/resourceRules/0/operations", json!(["DELETE"]), 0),
        ("/spec/matchConstraints/resourceRules/0/operations", json!(["*"]), 1),
        ("/spec/matchConstraints/resourceRules/0/resources", json!(["*/*"]), 1),
        ("/spec/matchConstraints/resourceRules/0/resources", json!(["deployments/scale"]), 0),
        ("/spec/matchConstraints/resourceRules/0/apiGroups", json!(["*"]), 1),
        ("/spec/matchConstraints/resourceRules/0/apiVersions", json!(["v2"]), 0),
        ("/spec/matchConstraints/resourceRules/0/scope", json!("Cluster"), 0),
        ("/spec/matchConstraints/resourceRules/0/scope", json!("Namespaced"), 1),
        ("/spec/matchConditions", json!([{"name": "m", "expression": "request.userInfo.username == 'joe'"}]), 0),
        ("/spec/matchConditions", json!([{"name": "m", "expression": "'dev' in request.userInfo.groups"}]), 1),
    ] {
        let mut policy = never();
        match policy.pointer_mut(pointer) {
            Some(at) => *at = value.clone(),
            None => policy["spec"]["matchConditions"] = value.clone(),
        }
        assert_eq!(count(&policy, &binding(json!({}))), expected, "{pointer} {value}");
    }
    let mut excluded = never();
    let rule = excluded["spec"]["matchConstraints"]["resourceRules"][0].clone();
    excluded["spec"]["matchConstraints"]["excludeResourceRules"] = json!([rule]);
    assert_eq!(count(&excluded, &binding(json!({}))), 0);
    let mut named = never();
    named["spec"]["matchConstraints"]["resourceRules"][0]["resourceNames"] = json!(["other"]);
    assert_eq!(count(&named, &binding(json!({}))), 0);
    let narrow = binding(json!({"matchResources": {"namespaceSelector": {"matchLabels": {"environment": "prod"}}}}));
    assert_eq!(count(&never(), &narrow), 0);
}

#[test]
fn policies_and_bindings_are_checked() {
    let mut bad = policy(json!({
        "failurePolicy": "Maybe",
        "variables": [{"name": "in", "expression": "1"}, {"name": "ok", "expression": "variables.later"}, {"name": "later", "expression": "2"}],
        "validations": [
            {"expression": "variables.later == 2 && variables.nope"},
            {"expression": "", "messageExpression": "1", "message": "a\nb", "reason": "Nope"},
        ],
        "auditAnnotations": [{"key": "k", "valueExpression": "1"}, {"key": "k", "valueExpression": "'a'"}],
    }));
    bad["spec"]["matchConstraints"]["resourceRules"] = json!([]);
    bad["spec"]["matchConstraints"]["matchPolicy"] = Value::Null;
    assert_eq!(
        shown(&validating::validate(&bad)),
        [
            "spec.failurePolicy: Unsupported value: \"Maybe\": supported values: \"Fail\", \"Ignore\"",
            "spec.matchConstraints.matchPolicy: Required value",
            "spec.matchConstraints.resourceRules: Required value",
            "spec.variables[0].name: Invalid value: \"in\": name is not a valid CEL identifier",
            "spec.variables[1].expression: Invalid value: \"variables.later\": compilation failed: ERROR: <input>:1:10: undefined \
             field 'later'\n | variables.later\n | .........^",
            "spec.validations[0].expression: Invalid value: \"variables.later == 2 && variables.nope\": compilation failed: ERROR: \
             <input>:1:34: undefined field 'nope'\n | variables.later == 2 && variables.nope\n | .................................^",
            "spec.validations[1].expression: Required value: expression is not specified",
            "spec.validations[1].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
            "spec.validations[1].message: Invalid value: \"a\\nb\": message must not contain line breaks",
            "spec.validations[1].reason: Unsupported value: \"Nope\": supported values: \"Forbidden\", \"Invalid\", \
             \"RequestEntityTooLarge\"",
            "spec.auditAnnotations[0].valueExpression: Invalid value: \"1\": must evaluate to one of [string null_type] but got int",
            "spec.auditAnnotations[1].key: Duplicate value: \"k\"",
        ]
    );
    let bad = json!({"spec": {"policyName": "", "validationActions": ["Deny", "Warn"], "paramRef": {"name": "a", "selector": {}}}});
    assert_eq!(
        shown(&validating::validate_binding(&bad)),
        [
            "spec.policyName: Required value",
            "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            "spec.paramRef.parameterNotFoundAction: Required value",
            "spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn (repeating the same \
             validation failure information in the API response and headers serves no purpose)",
        ]
    );
    assert_eq!(validating::validate_binding(&binding(json!({}))), []);
}

fn crd_schema() -> Value {
    json!({
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.spec.min <= self.spec.max"},
            {"rule": "!has(self.spec.until) || self.spec.until > timestamp('2020-01-01T00:00:00Z')", "message": "too old"},
        ],
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "min": {"type": "integer"},
                    "max": {"type": "integer", "x-kubernetes-validations": [
                        {"rule": "self == oldSelf", "messageExpression": "'was ' + string(oldSelf)", "reason": "FieldValueForbidden"},
                    ]},
                    "ratio": {"type": "number", "x-kubernetes-validations": [{"rule": "self < 2.0"}]},
                    "until": {"type": "string", "format": "date-time"},
                    "a.b": {"type": "string"},
                    "set": {"type": "object", "x-kubernetes-validations": [
                        {"rule": "self.value == 'a'", "fieldPath": ".value"},
                        {"rule": "oldSelf.hasValue() || self.value != 'b'", "optionalOldSelf": true, "message": "not b at first"},
                    ], "properties": {"value": {"type": "string"}}},
                    "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                        "type": "object",
                        "x-kubernetes-validations": [{"rule": "self.port >= oldSelf.port", "message": "may only grow"}],
                        "properties": {"name": {"type": "string"}, "port": {"type": "integer"}},
                    }},
                },
                "x-kubernetes-validations": [{"rule": "!has(self.a__dot__b) || self.a__dot__b == 'x'"}],
            },
        },
    })
}

#[test]
fn crd_rules_refuse() {
    let rules = RuleSet::compile(Arc::new(crd_schema())).unwrap();
    assert!(RuleSet::compile(Arc::new(json!({"type": "object"}))).is_none());
    assert_eq!(rules::validate(&crd_schema(), "s"), []);
    let create = |spec: Value| shown(&rules.evaluate(&json!({"spec": spec}), None).errors);
    assert_eq!(create(json!({"min": 1, "max": 2, "ratio": 1, "a.b": "x", "until": "2024-01-01T00:00:00Z"})), [""; 0]);
    assert_eq!(
        create(json!({"min": 3, "max": 2})),
        ["<nil>: Invalid value: \"object\": failed rule: self.spec.min <= self.spec.max"]
    );
    assert_eq!(
        create(json!({"max": 2})),
        ["<nil>: Invalid value: \"object\": no such key: min evaluating rule: self.spec.min <= self.spec.max"]
    );
    assert_eq!(
        create(json!({"min": 1, "max": 2, "until": "2019-01-01T00:00:00Z"})),
        ["<nil>: Invalid value: \"object\": too old"]
    );
    assert_eq!(
        create(json!({"min": 1, "max": 2, "ratio": 2})),
        ["spec.ratio: Invalid value: \"number\": failed rule: self < 2.0"]
    );
    assert_eq!(
        create(json!({"min": 1, "max": 2, "a.b": "y"})),
        ["spec: Invalid value: \"object\": failed rule: !has(self.a__dot__b) || self.a__dot__b == 'x'"]
    );
    assert_eq!(
        create(json!({"min": 1, "max": 2, "set": {"value": "b"}})),
        [
            "spec.set.value: Invalid value: \"object\": failed rule: self.value == 'a'",
            "spec.set: Invalid value: \"object\": not b at first",
        ]
    );
}

#[test]
fn crd_transition_rules_and_ratcheting() {
    let rules = RuleSet::compile(Arc::new(crd_schema())).unwrap();
    let update = |old: Value, new: Value| rules.evaluate(&json!({"spec": new}), Some(&json!({"spec": old})));
    let outcome = update(json!({"min": 1, "max": 5}), json!({"min": 1, "max": 6}));
    assert_eq!(shown(&outcome.errors), ["spec.max: Forbidden: was 5"]);
    let ports =
        |a: i64, b: i64| json!({"min": 1, "max": 1, "ports": [{"name": "a", "port": a}, {"name": "b", "port": b}]});
    let turned = json!({"min": 1, "max": 1, "ports": [{"name": "b", "port": 7}, {"name": "a", "port": 1}, {"name": "c", "port": 0}]});
    assert_eq!(
        shown(&update(ports(1, 8), turned.clone()).errors),
        ["spec.ports[0]: Invalid value: \"object\": may only grow"]
    );
    assert_eq!(update(ports(1, 7), turned).errors, []);
    let old = json!({"min": 1, "max": 1, "set": {"value": "c"}});
    let mut new = old.clone();
    new["ratio"] = json!(1);
    let outcome = update(old, new);
    assert_eq!(outcome.errors, []);
    assert_eq!(outcome.warnings, ["spec.set.value: Invalid value: \"object\": failed rule: self.value == 'a'"]);
}

#[test]
fn crd_rules_are_checked() {
    let schema = json!({"type": "object", "properties": {
        "list": {"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}},
        "text": {"type": "string", "x-kubernetes-validations": [
            {"rule": "self"},
            {"rule": " "},
            {"rule": "self ==\n'a'"},
            {"rule": "self == 'a'", "reason": "Nope", "fieldPath": ".x", "messageExpression": "1"},
        ]},
    }});
    let errors = rules::validate(&schema, "s");
    assert_eq!(
        shown(&errors),
        [
            "s.properties[list].items.x-kubernetes-validations[0].rule: Invalid value: \"self >= oldSelf\": oldSelf cannot be used on \
             the uncorrelatable portion of the schema within s.properties[list]",
            "s.properties[text].x-kubernetes-validations[0].rule: Invalid value: {\"rule\":\"self\"}: cel expression must evaluate to a bool",
            "s.properties[text].x-kubernetes-validations[1].rule: Required value: rule is not specified",
            "s.properties[text].x-kubernetes-validations[2].message: Required value: message must be specified if rule contains line breaks",
            "s.properties[text].x-kubernetes-validations[3].reason: Unsupported value: \"Nope\": supported values: \
             \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
            "s.properties[text].x-kubernetes-validations[3].fieldPath: Invalid value: \".x\": fieldPath must be a valid path: does not \
             refer to a valid field",
            "s.properties[text].x-kubernetes-validations[3].messageExpression: Invalid value: {\"fieldPath\":\".x\",\
             \"messageExpression\":\"1\",\"reason\":\"Nope\",\"rule\":\"self == 'a'\"}: messageExpression must evaluate to a string",
        ]
    );
}
