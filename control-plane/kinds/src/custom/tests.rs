//! Custom kinds from their definition to their objects, as a server uses them.

use serde_json::{Value, json};

use super::*;
use crate::decode::{self, FieldValidation};
use crate::resource::Resource;
use crate::strategy::Part;
use crate::{WriteContext, lookup, val, write};

fn now() -> jiff::Timestamp {
    "2026-01-02T03:04:05Z".parse().expect("time")
}

fn context(namespace: &str) -> WriteContext<'_> {
    WriteContext { now: now(), uid: "u", suffix: "abcde", namespace }
}

fn definitions() -> &'static Resource {
    lookup("apiextensions.k8s.io", "v1", "customresourcedefinitions").expect("definitions")
}

/// A definition as people send it.
fn foo(schema: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.company.com"},
        "spec": {
            "group": "company.com", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo", "shortNames": ["fo"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector"}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "additionalPrinterColumns": [{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]}],
        },
    })
}

fn schema() -> Value {
    json!({"type": "object", "description": "Foo is a thing.", "required": ["spec"], "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
            "color": {"type": "string", "enum": ["red", "green"], "description": "Color of the thing."},
            "port": {"x-kubernetes-int-or-string": true},
            "maybe": {"type": "string", "nullable": true},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}},
    }})
}

fn sent(crd: &Value) -> Result<Value, String> {
    let decoded = decode::object(definitions(), None, crd.clone(), FieldValidation::Strict).map_err(|e| e.message)?;
    let mut object = decoded.object;
    write::create(definitions(), &mut object, &context("")).map_err(|e| e.message)?;
    Ok(object)
}

fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let mut crd = foo(schema());
    change(&mut crd);
    let message = sent(&crd).expect_err("refused");
    message.replace("CustomResourceDefinition.apiextensions.k8s.io \"foos.company.com\" is invalid: ", "")
}

fn accepted(crd: &Value) -> Value {
    let mut crd = sent(crd).expect("accepted");
    crd["status"] = status(&crd, [], now());
    crd
}

fn served() -> (Registry, &'static Resource) {
    let registry = Registry::new();
    let list = registry.register(&accepted(&foo(schema()))).expect("compiles");
    (registry, list[0])
}

fn object(res: &Resource, value: Value) -> Result<decode::Decoded, String> {
    decode::object(res, None, value, FieldValidation::Strict).map_err(|e| e.message)
}

fn created(res: &Resource, spec: Value) -> Result<Value, String> {
    let value = json!({"apiVersion": "company.com/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": spec});
    let mut decoded = object(res, value)?.object;
    write::create(res, &mut decoded, &context("ns")).map_err(|e| e.message)?;
    Ok(decoded)
}

#[test]
fn definitions_get_defaults_and_a_status() {
    let crd = sent(&foo(schema())).expect("accepted");
    assert_eq!(crd["spec"]["names"]["singular"], "foo");
    assert_eq!(crd["spec"]["names"]["listKind"], "FooList");
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(
        crd["status"],
        json!({"acceptedNames": {"plural": "", "kind": ""}, "conditions": [], "storedVersions": ["v1"]})
    );
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    assert_eq!(spec["replicas"]["default"], 1, "values of any type are kept");
    assert_eq!(val::text(&crd, "metadata.uid"), "u");
}

#[test]
fn definitions_are_refused_in_upstreams_words() {
    assert_eq!(
        refusal(|crd| crd["metadata"]["name"] = json!("foo.company.com")),
        "CustomResourceDefinition.apiextensions.k8s.io \"foo.company.com\" is invalid: metadata.name: Invalid value: \"foo.company.com\": \
         must be spec.names.plural+\".\"+spec.group"
    );
    assert_eq!(refusal(|crd| drop(val::remove(&mut crd["spec"], "scope"))), "spec.scope: Required value");
    assert_eq!(
        refusal(|crd| crd["spec"]["scope"] = json!("Galaxy")),
        "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\""
    );
    assert_eq!(
        refusal(|crd| drop(val::remove(&mut crd["spec"]["versions"][0], "schema"))),
        "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"
    );
    assert!(
        refusal(|crd| crd["spec"]["versions"][0]["storage"] = json!(false))
            .contains("must have exactly one version marked as storage version")
    );
    assert!(
        refusal(|crd| {
            let again = crd["spec"]["versions"][0].clone();
            crd["spec"]["versions"].as_array_mut().expect("list").push(again);
        })
        .contains("must contain unique version names")
    );
    assert_eq!(
        refusal(|crd| crd["spec"]["versions"][0]["name"] = json!("1")).split(": a DNS-1035").next(),
        Some("spec.versions[0].name: Invalid value: \"1\"")
    );
    assert_eq!(
        refusal(|crd| crd["spec"]["names"]["listKind"] = json!("Foo")),
        "spec.names.listKind: Invalid value: \"Foo\": kind and listKind may not be the same"
    );
    assert_eq!(
        refusal(|crd| crd["spec"]["preserveUnknownFields"] = json!(true)),
        "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
         spec.versions[*].schema instead"
    );
    assert_eq!(
        refusal(|crd| crd["spec"]["group"] = json!("company")).split(", ").last(),
        Some("spec.group: Invalid value: \"company\": should be a domain with at least one dot]")
    );
}

#[test]
fn schemas_are_refused_at_the_place_that_all_versions_share() {
    let mut broken = schema();
    broken["properties"]["spec"]["properties"]["x"] = json!({});
    let place = "openAPIV3Schema.properties[spec].properties[x].type: Required value: must not be empty for specified object fields";
    assert_eq!(
        sent(&foo(broken.clone())).expect_err("refused").split(" is invalid: ").nth(1),
        Some(format!("spec.validation.{place}").as_str())
    );
    let mut crd = foo(schema());
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second["schema"]["openAPIV3Schema"] = broken;
    crd["spec"]["versions"].as_array_mut().expect("list").push(second);
    assert_eq!(
        sent(&crd).expect_err("refused").split(" is invalid: ").nth(1),
        Some(format!("spec.versions[1].schema.{place}").as_str())
    );
}

#[test]
fn subresources_columns_and_fields_are_checked() {
    let version = |key: &'static str, value: Value| refusal(move |crd| crd["spec"]["versions"][0][key] = value);
    assert_eq!(
        version("subresources", json!({"scale": {"specReplicasPath": "spec", "statusReplicasPath": ".spec.x"}})),
        "[spec.subresources.scale.specReplicasPath: Invalid value: \"spec\": must be a simple json path starting with ., \
         spec.subresources.scale.statusReplicasPath: Invalid value: \".spec.x\": should be a json path under .status]"
    );
    assert_eq!(
        version("additionalPrinterColumns", json!([{"name": "", "type": "x", "format": "y", "jsonPath": "a"}])),
        "[spec.additionalPrinterColumns[0].name: Required value, spec.additionalPrinterColumns[0].type: Invalid value: \"x\": must be one \
         of boolean,date,integer,number,string, spec.additionalPrinterColumns[0].format: Invalid value: \"y\": must be one of \
         byte,date,date-time,double,float,int32,int64,password, spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"a\": must be a \
         simple json path starting with .]"
    );
    assert_eq!(
        version(
            "selectableFields",
            json!([{"jsonPath": ".spec.nope"}, {"jsonPath": ".spec.tags"}, {"jsonPath": ".spec.color"}, {"jsonPath": ".spec.color"}])
        ),
        "[spec.selectableFields[0].jsonPath: Invalid value: \".spec.nope\": is an invalid path: does not refer to a valid field, \
         spec.selectableFields[1].jsonPath: Invalid value: \".spec.tags\": must point to a field of type string, boolean or integer. Enum \
         string fields and strings with formats are allowed., spec.selectableFields[3].jsonPath: Duplicate value: \".spec.color\"]"
    );
    assert_eq!(
        version("deprecationWarning", json!("x")),
        "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions"
    );
    assert!(version("schema", json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-map-type": "atomic"}})).contains(
        "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems \
         MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are \
         allowed at the root of the schema if the status subresource is enabled"
    ));
}

#[test]
fn a_whole_object_is_never_null() {
    let mut root = schema();
    root["nullable"] = json!(true);
    let message = refusal(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = root);
    assert!(
        message.contains("spec.validation.openAPIV3Schema.nullable: Forbidden: nullable cannot be true at the root"),
        "{message}"
    );
    assert!(
        message.contains("fields are allowed at the root of the schema if the status subresource is enabled"),
        "{message}"
    );
}

#[test]
fn conversions_are_checked() {
    let with = |conversion: Value| refusal(move |crd| crd["spec"]["conversion"] = conversion);
    assert_eq!(
        with(json!({"strategy": "Webhook"})),
        "[spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook, \
         spec.conversion.conversionReviewVersions: Required value]"
    );
    assert_eq!(
        with(
            json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v2", "v2"], "clientConfig": {"url": "http://u@/#f"}}})
        ),
        "[spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: \
         https://host[/path], spec.conversion.webhookClientConfig.url: Invalid value: \"\": host must be specified; desired format: \
         https://host[/path], spec.conversion.webhookClientConfig.url: Invalid value: \"u\": user information is not permitted in the URL, \
         spec.conversion.webhookClientConfig.url: Invalid value: \"f\": fragments are not permitted in the URL, \
         spec.conversion.conversionReviewVersions[1]: Invalid value: \"v2\": duplicate version, \
         spec.conversion.conversionReviewVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of v1, v1beta1]"
    );
    assert_eq!(
        with(json!({"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {}}})),
        "[spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook, \
         spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook]"
    );
    let mut good = foo(schema());
    good["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "a", "namespace": "b", "path": "/x/"}}}});
    assert_eq!(sent(&good).expect("accepted")["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"], 443);
}

#[test]
fn groups_of_kubernetes_need_approval() {
    let with = |annotations: Value| {
        let mut crd = foo(schema());
        crd["metadata"] = json!({"name": "foos.x.k8s.io", "annotations": annotations});
        crd["spec"]["group"] = json!("x.k8s.io");
        sent(&crd)
    };
    assert!(with(json!({})).expect_err("refused").ends_with(
        "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \
         \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
    ));
    assert!(with(json!({"api-approved.kubernetes.io": "x"})).is_err());
    for good in ["unapproved, for now", "https://github.com/kubernetes/kubernetes/pull/1"] {
        assert!(with(json!({"api-approved.kubernetes.io": good})).is_ok(), "{good}");
    }
}

#[test]
fn what_defines_the_storage_is_immutable() {
    let old = accepted(&foo(schema()));
    let change = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        write::update(definitions(), &mut new, &old, Part::Main, &context("")).map(|_| new).map_err(|e| e.message)
    };
    for (path, value) in [("scope", json!("Cluster")), ("group", json!("other.com"))] {
        let message = change(&|crd| crd["spec"][path] = value.clone()).expect_err("immutable");
        assert!(message.contains(&format!("spec.{path}: Invalid value: {value}: field is immutable")), "{message}");
    }
    assert!(
        change(&|crd| crd["spec"]["names"]["kind"] = json!("Bar")).expect_err("immutable").contains("spec.names.kind")
    );
    let moved = change(&|crd| {
        let mut second = crd["spec"]["versions"][0].clone();
        second["name"] = json!("v2");
        crd["spec"]["versions"][0]["storage"] = json!(false);
        crd["spec"]["versions"].as_array_mut().expect("list").push(second);
    })
    .expect("a new storage version");
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    assert_eq!(moved["metadata"]["generation"], 2);
    let message = change(&|crd| crd["spec"]["versions"][0]["name"] = json!("v2")).expect_err("v1 is stored");
    assert!(
        message.contains(
            "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage"
        ),
        "{message}"
    );
}

#[test]
fn hostile_schemas_are_refused() {
    let deep =
        (0..70).fold(json!({"type": "string"}), |inner, _| json!({"type": "object", "properties": {"a": inner}}));
    assert!(sent(&foo(deep)).expect_err("deep").contains("OpenAPIV3Schema is nested deeper than 64 levels"));
    let recursive = json!({"type": "object", "properties": {"spec": {"$ref": "#"}}});
    assert!(sent(&foo(recursive)).expect_err("recursive").contains("$ref: Forbidden: $ref is not supported"));
    let huge =
        json!({"type": "object", "properties": {"spec": {"type": "string", "pattern": "((a{1000}){1000}){1000}"}}});
    assert!(sent(&foo(huge)).expect_err("huge").contains("expression is too large"));
    // Unknown keywords inside of items are dropped, as upstream drops them, and wrong types are refused.
    let mut crd = foo(schema());
    let tags = |crd: &mut Value, items: Value| {
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tags"]["items"] =
            items;
    };
    tags(&mut crd, json!({"type": "string", "nope": 1}));
    assert!(!sent(&crd).expect("accepted").to_string().contains("nope"));
    tags(&mut crd, json!({"type": 1}));
    assert!(sent(&crd).expect_err("refused").contains("cannot unmarshal number into Go struct field JSONSchemaProps"));
}

#[test]
fn what_is_not_done_is_said() {
    let mut crd = foo(schema());
    assert_eq!(unenforced(&crd), Vec::<String>::new());
    crd["spec"]["conversion"] = json!({"strategy": "Webhook"});
    let said = unenforced(&crd);
    assert!(said[0].starts_with("spec.conversion.strategy: Webhook is stored"));
}

#[test]
fn names_are_taken_first_come_first_served() {
    let first = accepted(&foo(schema()));
    assert_eq!(
        first["status"]["conditions"],
        json!([
            {"type": "NamesAccepted", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": "NoConflicts",
                "message": "no conflicts found"},
            {"type": "Established", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted"},
        ])
    );
    assert_eq!(
        first["status"]["acceptedNames"],
        json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["fo"], "categories": ["all"]})
    );
    assert_eq!(first["status"]["storedVersions"], json!(["v1"]));
    let other = |names: Value| {
        let mut crd = foo(schema());
        crd["metadata"]["name"] = json!("bars.company.com");
        crd["spec"]["names"] = names;
        let mut crd = sent(&crd).expect("accepted");
        crd["status"] = status(&crd, [&first], now());
        crd
    };
    for (names, reason, message) in [
        (json!({"plural": "bars", "singular": "foo", "kind": "Bar"}), "SingularConflict", "\"foo\" is already in use"),
        (
            json!({"plural": "bars", "kind": "Bar", "shortNames": ["fo", "ba"]}),
            "ShortNamesConflict",
            "\"fo\" is already in use",
        ),
        (
            json!({"plural": "bars", "singular": "bar", "kind": "Foo", "listKind": "BarList"}),
            "KindConflict",
            "\"Foo\" is already in use",
        ),
        (
            json!({"plural": "bars", "kind": "Bar", "listKind": "FooList"}),
            "ListKindConflict",
            "\"FooList\" is already in use",
        ),
    ] {
        let crd = other(names);
        let conditions = &crd["status"]["conditions"];
        assert_eq!((&conditions[0]["reason"], &conditions[0]["message"]), (&json!(reason), &json!(message)));
        assert_eq!((&conditions[1]["status"], &conditions[1]["reason"]), (&json!("False"), &json!("NotAccepted")));
        assert_eq!(conditions[1]["message"], "not all names are accepted");
        assert!(!established(&crd) && Registry::new().register(&crd).expect("compiles").is_empty());
    }
    assert!(established(&other(json!({"plural": "bars", "kind": "Bar"}))));
    // Once established stays established, and conditions keep their time.
    let later: jiff::Timestamp = "2027-01-01T00:00:00Z".parse().expect("time");
    assert_eq!(status(&first, [], later), first["status"]);
}

#[test]
fn deletion_waits_for_the_objects() {
    let mut crd = accepted(&foo(schema()));
    begin_deletion(&mut crd, now());
    assert_eq!(crd["metadata"]["finalizers"], json!([CLEANUP_FINALIZER]));
    let condition = |crd: &Value| crd["status"]["conditions"][2].clone();
    assert_eq!(
        (&condition(&crd)["status"], &condition(&crd)["reason"]),
        (&json!("True"), &json!("InstanceDeletionPending"))
    );
    terminating(&mut crd, &Terminating::InProgress, now());
    assert_eq!(condition(&crd)["message"], "CustomResource deletion is in progress");
    terminating(&mut crd, &Terminating::Completed, now());
    assert_eq!((&condition(&crd)["status"], &crd["metadata"]["finalizers"]), (&json!("False"), &json!([])));
}

mod objects;
