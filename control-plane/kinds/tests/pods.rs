//! Wrong pods are refused with upstream's words, odd but good ones are not: the tables of `cases`, through the rules of the API server.

mod cases;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use keelson_kinds::decode::{self, FieldValidation, Format};
use keelson_kinds::{ApiError, Resource, WriteContext, lookup, write};
use serde_json::{Value, json};

fn resource(group: &str, plural: &str) -> &'static Resource {
    lookup(group, "v1", plural).expect("the kind is served")
}

/// What the API server would make of an object: decoding, defaults, validation.
fn create(res: &Resource, object: &Value) -> Result<Value, ApiError> {
    let bytes = serde_json::to_vec(object).expect("JSON");
    let mut decoded = decode::body(res, None, &bytes, Format::Json, FieldValidation::Strict)?.object;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    let ctx = WriteContext { now: jiff::Timestamp::UNIX_EPOCH, uid: "u", suffix: "bcdfg", namespace: &namespace };
    write::create(res, &mut decoded, &ctx)?;
    Ok(decoded)
}

fn said(error: &ApiError) -> Vec<String> {
    let mut all: Vec<String> = error.causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    all.sort();
    all
}

#[test]
fn wrong_pods_are_refused_in_upstreams_words() {
    let pods = resource("", "pods");
    let mut failures = Vec::new();
    for case in cases::wrong() {
        let mut wanted = case.says.clone();
        wanted.sort();
        match create(pods, &case.pod) {
            Ok(_) => failures.push(format!("{} is accepted", case.shown)),
            Err(error) if error.code != 422 || said(&error) != wanted || wanted.is_empty() => {
                failures.push(format!("{}\n  says   {:?}\n  wanted {wanted:?}", case.shown, said(&error)));
            }
            Err(_) => {}
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn templates_are_judged_alike() {
    let (templates, deployments) = (resource("", "podtemplates"), resource("apps", "deployments"));
    for case in cases::wrong().into_iter().filter(|case| case.is_template) {
        let (meta, spec) = (&case.pod["metadata"], &case.pod["spec"]);
        let template =
            json!({"metadata": {"labels": meta["labels"], "annotations": meta["annotations"]}, "spec": spec});
        let wanted: BTreeSet<String> =
            case.says.iter().map(|said| said.strip_prefix("spec").unwrap_or(said).to_owned()).collect();
        let object = json!({"metadata": {"name": "t"}, "template": template});
        let error = create(templates, &object).expect_err(&case.shown);
        let found: BTreeSet<String> =
            said(&error).iter().map(|said| said.strip_prefix("template.spec").unwrap_or(said).to_owned()).collect();
        assert_eq!(found, wanted, "{}", case.shown);
        let object =
            json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
        let error = create(deployments, &object).expect_err(&case.shown);
        for wanted in &wanted {
            assert!(said(&error).contains(&format!("spec.template.spec{wanted}")), "{}: {error}", case.shown);
        }
    }
}

#[test]
fn values_of_the_wrong_type_are_400() {
    for case in cases::undecodable() {
        let error = create(resource("", "pods"), &case.pod).expect_err(&case.shown);
        assert_eq!(error.code, 400, "{}: {error}", case.shown);
        assert!(case.says.iter().all(|part| error.message.contains(part)), "{}: {error}", case.shown);
    }
}

#[test]
fn odd_but_good_pods_are_taken() {
    let pods = resource("", "pods");
    for case in cases::valid() {
        let once = create(pods, &case.pod).unwrap_or_else(|error| panic!("{} is refused: {error}", case.shown));
        // What was stored can be read and stored again.
        let mut again = once.clone();
        for key in ["uid", "creationTimestamp"] {
            again["metadata"].as_object_mut().expect("a map").remove(key);
        }
        let twice = create(pods, &again).unwrap_or_else(|error| panic!("{} is refused again: {error}", case.shown));
        assert_eq!(once["spec"], twice["spec"], "{}", case.shown);
    }
}

/// Nothing in the rules takes the square of a list's length.
#[test]
fn huge_pods_are_judged_quickly() {
    for (what, pod) in cases::huge() {
        let begun = Instant::now();
        create(resource("", "pods"), &pod).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}: {:?}", begun.elapsed());
    }
    let mut wrong = cases::huge().remove(0).1;
    for container in wrong["spec"]["containers"].as_array_mut().expect("a list") {
        container["name"] = json!("same");
    }
    assert_eq!(create(resource("", "pods"), &wrong).expect_err("duplicates").causes.len(), 999);
}
