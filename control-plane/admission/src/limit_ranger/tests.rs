use proptest::prelude::*;
use serde_json::json;

use super::*;
use keelson_kinds::FieldError;
use keelson_kinds::kinds::limit_range::{default, validate};

fn range(items: Value) -> Value {
    json!({"metadata": {"name": "limits"}, "spec": {"limits": items}})
}

fn message(range_items: Value, resource: &str, object: Value) -> String {
    check([&range(range_items)], resource, &object).err().map(|error| error.to_string()).unwrap_or_default()
}

fn pod_of(resources: Value) -> Value {
    json!({"spec": {"containers": [{"name": "a", "resources": resources}]}})
}

#[test]
fn bounds_of_containers_in_upstreams_words() {
    for (item, resources, want) in [
        (
            json!({"min": {"cpu": "100m"}}),
            json!({"requests": {"cpu": "50m"}}),
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (json!({"min": {"cpu": "100m"}}), json!({"requests": {"cpu": "100m"}}), ""),
        (
            json!({"min": {"cpu": "100m"}}),
            json!({"requests": {"cpu": "0.1"}, "limits": {"cpu": "99m"}}),
            "minimum cpu usage per Container is 100m, but limit is 99m",
        ),
        (
            json!({"min": {"memory": "1Gi"}}),
            json!({}),
            "minimum memory usage per Container is 1Gi.  No request is specified",
        ),
        (
            json!({"max": {"memory": "1Gi"}}),
            json!({"requests": {"memory": "1"}}),
            "maximum memory usage per Container is 1Gi.  No limit is specified",
        ),
        (
            json!({"max": {"memory": "1Gi"}}),
            json!({"limits": {"memory": "1025Mi"}}),
            "maximum memory usage per Container is 1Gi, but limit is 1025Mi",
        ),
        (json!({"max": {"memory": "1Gi"}}), json!({"limits": {"memory": "1024Mi"}}), ""),
        (
            json!({"max": {"cpu": "1"}}),
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1001m"}}),
            "maximum cpu usage per Container is 1, but request is 1001m",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"limits": {"cpu": "1"}}),
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"requests": {"cpu": "1"}}),
            "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"requests": {"cpu": "300m"}, "limits": {"cpu": "1"}}),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.333333",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "1500m"}}),
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}),
            "",
        ),
        (
            json!({"min": {"cpu": "1"}, "max": {"memory": "1"}}),
            json!({"requests": {"cpu": "0"}}),
            "[minimum cpu usage per Container is 1, but request is 0, maximum memory usage per Container is 1.  No limit is specified]",
        ),
    ] {
        let mut item = item;
        item["type"] = json!("Container");
        assert_eq!(message(json!([item]), "pods", pod_of(resources.clone())), want, "{resources}");
    }
}

#[test]
fn equal_texts_are_said_once_and_init_containers_count() {
    let container = json!({"resources": {"requests": {"cpu": "1m"}}});
    let pod = json!({"spec": {"containers": [container, container], "initContainers": [container]}});
    let item = json!([{"type": "Container", "min": {"cpu": "2m"}}]);
    assert_eq!(message(item.clone(), "pods", pod), "minimum cpu usage per Container is 2m, but request is 1m");
    let pod = json!({"spec": {"containers": [], "initContainers": [container]}});
    assert_eq!(message(item, "pods", pod), "minimum cpu usage per Container is 2m, but request is 1m");
}

#[test]
fn bounds_of_pods_are_over_what_runs_together() {
    let with = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    let mut sidecar = with("2");
    sidecar["restartPolicy"] = json!("Always");
    let pod = json!({"spec": {"overhead": {"cpu": "9"}, "containers": [with("1"), with("1")], "initContainers": [sidecar, with("3")]}});
    let item = |most: &str| json!([{"type": "Pod", "max": {"cpu": most}}]);
    assert_eq!(message(item("5"), "pods", pod.clone()), "");
    assert_eq!(message(item("4"), "pods", pod.clone()), "maximum cpu usage per Pod is 4, but limit is 5");
    let mut whole = pod;
    whole["spec"]["resources"] = json!({"limits": {"cpu": "7"}, "requests": {"cpu": "6"}});
    assert_eq!(message(item("5"), "pods", whole.clone()), "maximum cpu usage per Pod is 5, but limit is 7");
    let ratio = json!([{"type": "Pod", "maxLimitRequestRatio": {"cpu": "1"}}]);
    let want = "cpu max limit to request ratio per Pod is 1, but provided ratio is 1.166667";
    assert_eq!(message(ratio, "pods", whole), want);
}

#[test]
fn bounds_of_claims_are_on_requests() {
    let claim = |storage: &str| json!({"spec": {"resources": {"requests": {"storage": storage}}}});
    let item = json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]);
    for (object, want) in [
        (claim("1Gi"), ""),
        (claim("2Gi"), ""),
        (claim("1Mi"), "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"),
        (claim("3Gi"), "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        (
            json!({}),
            "[minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified, maximum storage usage per PersistentVolumeClaim is 2Gi.  No request is specified]",
        ),
    ] {
        assert_eq!(message(item.clone(), "persistentvolumeclaims", object.clone()), want, "{object}");
        assert_eq!(message(item.clone(), "pods", object), "");
    }
}

#[test]
fn the_first_limit_range_that_does_not_fit_is_named() {
    let narrow =
        json!({"metadata": {"name": "narrow"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}});
    let wide = range(json!([{"type": "Container", "max": {"cpu": "3"}}]));
    let pod = pod_of(json!({"limits": {"cpu": "2"}}));
    let error = check([&wide, &narrow], "pods", &pod).unwrap_err();
    assert_eq!((error.limit_range.as_str(), error.violations.len()), ("narrow", 1));
    assert_eq!(check([], "pods", &pod), Ok(()));
}

#[test]
fn defaults_fill_what_is_missing_and_say_so() {
    let defaults = range(json!([
        {"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m", "memory": "1Gi"}},
        {"type": "Pod", "default": {"cpu": "9"}},
    ]));
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [
            {"name": "all"},
            {"name": "some", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "5Gi"}}},
            {"name": "none", "resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}}},
        ],
        "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"memory": "1"}}}],
    }});
    apply_defaults([&defaults], &mut pod);
    let spec = &pod["spec"];
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}})
    );
    // The memory request will follow the limit that was given.
    assert_eq!(
        spec["containers"][1]["resources"],
        json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "5Gi"}})
    );
    assert_eq!(spec["initContainers"][0]["resources"]["limits"]["cpu"], "2");
    assert_eq!(
        pod["metadata"]["annotations"][ANNOTATION],
        "LimitRanger plugin set: cpu, memory request for container all; cpu, memory limit for container all; \
         cpu limit for container some; cpu limit for init container init"
    );
}

#[test]
fn a_second_limit_range_fills_the_rest_and_nothing_to_fill_is_not_said() {
    let one = |cpu: &str, name: &str| range(json!([{"type": "Container", "default": {name: cpu}}]));
    let mut pod = pod_of(json!({}));
    apply_defaults([&one("1", "cpu"), &one("2", "cpu"), &one("3", "memory")], &mut pod);
    assert_eq!(pod["spec"]["containers"][0]["resources"], json!({"limits": {"cpu": "1", "memory": "3"}}));
    assert_eq!(pod["metadata"]["annotations"][ANNOTATION], "LimitRanger plugin set: memory limit for container a");
    let mut pod = pod_of(json!({}));
    let before = pod.clone();
    apply_defaults([&range(json!([{"type": "Container"}]))], &mut pod);
    assert_eq!(pod, before);
}

#[test]
fn pods_are_looked_at_when_created_or_resized_claims_always() {
    let object = json!({});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let create = Change::Create(&object);
    let update = Change::Update { new: &object, old: &object };
    let late = Change::Update { new: &object, old: &deleted };
    for (resource, subresource, change, want) in [
        ("pods", "", create, true),
        ("pods", "", update, false),
        ("pods", "resize", update, true),
        ("pods", "resize", late, false),
        ("pods", "status", update, false),
        ("pods", "ephemeralcontainers", update, false),
        ("persistentvolumeclaims", "", create, true),
        ("persistentvolumeclaims", "", update, true),
        ("persistentvolumeclaims", "", late, false),
        ("persistentvolumeclaims", "status", update, false),
        ("services", "", create, false),
    ] {
        assert_eq!(applies("", resource, subresource, change), want, "{resource} {subresource}");
    }
    assert!(!applies("apps", "pods", "", create));
}

#[test]
fn a_limit_range_fills_its_own_gaps() {
    let mut object = range(json!([
        {"type": "Container", "max": {"cpu": "4"}, "min": {"cpu": "1", "memory": "1Gi"}},
        {"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "4"}},
        {"type": "Container", "min": {}},
        {"type": "Pod", "max": {"cpu": "4"}},
    ]));
    default(&mut object);
    assert_eq!(
        object["spec"]["limits"],
        json!([
            {"type": "Container", "max": {"cpu": "4"}, "min": {"cpu": "1", "memory": "1Gi"}, "default": {"cpu": "4"}, "defaultRequest": {"cpu": "4", "memory": "1Gi"}},
            {"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}},
            {"type": "Container", "min": {}},
            {"type": "Pod", "max": {"cpu": "4"}},
        ])
    );
}

#[test]
fn a_limit_range_is_validated_with_paths() {
    for (items, want) in [
        (
            json!([{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}]),
            vec![],
        ),
        (json!([{"type": "Pod"}, {"type": "Pod"}]), vec![r#"spec.limits[1].type: Duplicate value: "Pod""#]),
        (
            json!([{"type": "Node"}]),
            vec![r#"spec.limits[0].type: Invalid value: "Node": must be a standard limit type or fully qualified"#],
        ),
        (json!([{"type": "example.com/Node"}]), vec![]),
        (
            json!([{"type": "Container", "max": {"tea": "1"}}]),
            vec![
                r#"spec.limits[0].max[tea]: Invalid value: "tea": must be a standard resource type or fully qualified"#,
                r#"spec.limits[0].max[tea]: Invalid value: "tea": must be a standard resource for containers"#,
            ],
        ),
        (
            json!([{"type": "Container", "max": {"pods": "1"}}]),
            vec![r#"spec.limits[0].max[pods]: Invalid value: "pods": must be a standard resource for containers"#],
        ),
        (
            json!([{"type": "Pod", "max": {"requests.example.com/a": "1"}}]),
            vec![
                r#"spec.limits[0].max[requests.example.com/a]: Invalid value: "requests.example.com/a": doesn't follow extended resource name standard"#,
            ],
        ),
        (
            json!([{"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "3", "tea": "1"}}]),
            vec![
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
            ],
        ),
        (
            json!([{"type": "PersistentVolumeClaim"}]),
            vec![
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            ],
        ),
        (json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1"}}]), vec![]),
        (
            json!([{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}]),
            vec![r#"spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1"#],
        ),
        (
            json!([{"type": "Container", "min": {"cpu": "3"}, "max": {"cpu": "4"}, "default": {"cpu": "5"}, "defaultRequest": {"cpu": "2"}}]),
            vec![
                r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "2": min value 3 is greater than default request value 2"#,
                r#"spec.limits[0].default[cpu]: Invalid value: "4": default value 5 is greater than max value 4"#,
            ],
        ),
        (
            json!([{"type": "Container", "max": {"cpu": "4"}, "min": {"cpu": "2"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "5"}}]),
            vec![
                r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "5": default request value 5 is greater than max value 4"#,
                r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "5": default request value 5 is greater than default limit value 1"#,
                r#"spec.limits[0].default[cpu]: Invalid value: "2": min value 2 is greater than default value 1"#,
            ],
        ),
        (
            json!([{"type": "Pod", "maxLimitRequestRatio": {"cpu": "900m"}}]),
            vec![r#"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "900m": ratio 900m is less than 1"#],
        ),
        (
            json!([{"type": "Pod", "min": {"cpu": "3"}, "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "2"}}]),
            vec![
                r#"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "2": ratio 2 is greater than max/min = 1.333333"#,
            ],
        ),
        (
            json!([{"type": "Container", "default": {"example.com/gpu": "2"}, "defaultRequest": {"example.com/gpu": "1"}}]),
            vec![
                r#"spec.limits[0].defaultRequest[example.com/gpu]: Invalid value: "1": default value 2 must equal to defaultRequest value 1 in example.com/gpu"#,
            ],
        ),
    ] {
        let found: Vec<String> = validate(&range(items.clone())).iter().map(FieldError::to_string).collect();
        assert_eq!(found, want, "{items}");
    }
}

proptest! {
    #[test]
    fn what_default_fills_in_is_within_the_bounds(min in 1i64..1000, more in 0i64..1000, own in prop::option::of(0i64..2000)) {
        let mut object = range(json!([{"type": "Container", "min": {"cpu": format!("{min}m")}, "max": {"cpu": format!("{}m", min + more)}}]));
        default(&mut object);
        prop_assert_eq!(validate(&object), vec![]);
        let mut pod = pod_of(own.map_or(json!({}), |own| json!({"requests": {"cpu": format!("{own}m")}})));
        apply_defaults([&object], &mut pod);
        let fits = check([&object], "pods", &pod).is_ok();
        prop_assert_eq!(fits, own.is_none_or(|own| own >= min && own <= min + more));
    }
}
