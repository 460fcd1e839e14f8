//! Dynamic resource allocation: device classes, claims, their templates, and the slices in which drivers say what there is. Stored and
//! validated; nothing allocates yet.
//!
//! Upstream counterparts: `pkg/apis/resource/v1/defaults.go`, `pkg/apis/resource/validation`, `pkg/registry/resource`.

use k8s_openapi::api::resource::v1 as resource;
use serde_json::{Value, json};

use super::{immutable, status};
use crate::error::FieldError;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, text};
use crate::{names, val};

/// Most selectors of a class or a request, requests of a claim, and devices of a slice.
const SELECTORS: usize = 32;
const REQUESTS: usize = 32;
const DEVICES: usize = 128;
const MODES: &[&str] = &["All", "ExactCount"];

fn too_many(at: &str, list: &[Value], most: usize, errors: &mut Vec<FieldError>) {
    if list.len() > most {
        errors.push(FieldError::too_many(at, list.len(), most));
    }
}

fn selectors(v: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let all = val::list(v, "selectors");
    too_many(&format!("{at}.selectors"), all, SELECTORS, errors);
    for (i, selector) in all.iter().enumerate() {
        if val::text(selector, "cel.expression").is_empty() {
            let field = if val::at(selector, "cel").is_some() { "cel.expression" } else { "cel" };
            errors.push(FieldError::required(format!("{at}.selectors[{i}].{field}"), ""));
        }
    }
}

/// A name that must be there and of a form.
fn named(v: &Value, key: &str, at: &str, form: fn(&str) -> Vec<String>, errors: &mut Vec<FieldError>) {
    let value = val::text(v, key);
    let field = if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    if value.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else {
        errors.extend(form(value).into_iter().map(|message| FieldError::invalid(field.as_str(), value, message)));
    }
}

static CLASS_RULES: Rules = Rules {
    generation: true,
    validate: |obj| {
        let mut errors = Vec::new();
        if let Some(spec) = val::at(obj, "spec") {
            selectors(spec, "spec", &mut errors);
        }
        errors
    },
    ..Rules::PLAIN
};

static CLASS_COLUMNS: Columns =
    Columns { columns: &[NAME, AGE], cells: |obj, now| vec![name_of(obj), age_of(obj, now)] };

kind!(DEVICE_CLASSES: "resource" "resource.k8s.io" "v1" "DeviceClass", "deviceclasses" "deviceclass", Cluster
    "/registry/deviceclasses/", resource::DeviceClass, CLASS_RULES, CLASS_COLUMNS);

/// How many devices a request means when it does not say.
fn default_requests(spec: &mut Value) {
    let Some(devices) = val::child_mut(spec, "devices") else { return };
    for request in devices.get_mut("requests").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(exactly) = val::child_mut(request, "exactly") {
            default_count(exactly);
        }
        for one in request.get_mut("firstAvailable").and_then(Value::as_array_mut).into_iter().flatten() {
            default_count(one);
        }
    }
}

fn default_count(request: &mut Value) {
    val::default(request, "allocationMode", "ExactCount");
    if val::text(request, "allocationMode") == "ExactCount" {
        val::default(request, "count", 1);
    }
}

fn validate_claim(spec: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let all = val::list(spec, "devices.requests");
    too_many(&format!("{at}.devices.requests"), all, REQUESTS, &mut errors);
    let mut seen = Vec::new();
    for (i, request) in all.iter().enumerate() {
        let at = format!("{at}.devices.requests[{i}]");
        named(request, "name", &at, names::dns1123_label, &mut errors);
        let name = val::text(request, "name");
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        seen.push(name);
        match (val::at(request, "exactly"), val::list(request, "firstAvailable")) {
            (Some(exactly), []) => one_request(exactly, &format!("{at}.exactly"), &mut errors),
            (None, choices @ [_, ..]) => {
                for (j, choice) in choices.iter().enumerate() {
                    let at = format!("{at}.firstAvailable[{j}]");
                    named(choice, "name", &at, names::dns1123_label, &mut errors);
                    one_request(choice, &at, &mut errors);
                }
            }
            (None, []) => {
                errors.push(FieldError::required(at, "exactly one of `exactly` or `firstAvailable` is required"));
            }
            (Some(_), [..]) => errors.push(FieldError::invalid(
                at,
                Value::Null,
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            )),
        }
    }
    errors
}

fn one_request(request: &Value, at: &str, errors: &mut Vec<FieldError>) {
    named(request, "deviceClassName", at, names::dns1123_subdomain, errors);
    selectors(request, at, errors);
    let mode = val::text(request, "allocationMode");
    let count = val::int(request, "count").unwrap_or(0);
    match mode {
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(format!("{at}.count"), count, "must be greater than zero"));
        }
        "All" if count != 0 => errors.push(FieldError::invalid(
            format!("{at}.count"),
            count,
            "must not be specified when allocationMode is 'All'",
        )),
        "All" | "ExactCount" => {}
        other => errors.push(FieldError::not_supported(format!("{at}.allocationMode"), other, MODES)),
    }
}

static CLAIM_RULES: Rules = Rules {
    status: true,
    defaults: |obj| default_requests(val::child(obj, "spec")),
    validate: |obj| val::at(obj, "spec").map(|spec| validate_claim(spec, "spec")).unwrap_or_default(),
    validate_update: |new, old, _| immutable(new, old, &["spec"]),
    ..Rules::PLAIN
};

fn claim_state(obj: &Value) -> String {
    let mut states = Vec::new();
    if val::at(obj, "metadata.deletionTimestamp").is_some() {
        states.push("deleted");
    }
    if val::at(obj, "status.allocation").is_some() {
        states.push("allocated");
    } else if states.is_empty() {
        states.push("pending");
    }
    if !val::list(obj, "status.reservedFor").is_empty() {
        states.push("reserved");
    }
    states.join(",")
}

static CLAIM_COLUMNS: Columns = Columns {
    columns: &[NAME, text("State"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(claim_state(obj)), age_of(obj, now)],
};

kind!(CLAIMS: "resource" "resource.k8s.io" "v1" "ResourceClaim", "resourceclaims" "resourceclaim", Namespaced
    "/registry/resourceclaims/", resource::ResourceClaim, CLAIM_RULES, CLAIM_COLUMNS,
    subresources: &[status("resource.k8s.io", "v1", "ResourceClaim")]);

static TEMPLATE_RULES: Rules = Rules {
    defaults: |obj| default_requests(val::child(val::child(obj, "spec"), "spec")),
    validate: |obj| val::at(obj, "spec.spec").map(|spec| validate_claim(spec, "spec.spec")).unwrap_or_default(),
    validate_update: |new, old, _| immutable(new, old, &["spec"]),
    ..Rules::PLAIN
};

kind!(CLAIM_TEMPLATES: "resource" "resource.k8s.io" "v1" "ResourceClaimTemplate", "resourceclaimtemplates"
    "resourceclaimtemplate", Namespaced "/registry/resourceclaimtemplates/", resource::ResourceClaimTemplate,
    TEMPLATE_RULES, CLASS_COLUMNS);

static SLICE_RULES: Rules = Rules {
    generation: true,
    selectable: &["spec.driver", "spec.nodeName"],
    validate: validate_slice,
    validate_update: |new, old, _| immutable(new, old, &["spec.driver", "spec.pool.name", "spec.nodeName"]),
    ..Rules::PLAIN
};

/// Ways in which a slice says where its devices are.
const PLACES: [&str; 4] = ["allNodes", "nodeName", "nodeSelector", "perDeviceNodeSelection"];

fn validate_slice(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(spec) = val::at(obj, "spec") else { return vec![FieldError::required("spec", "")] };
    named(spec, "driver", "spec", names::dns1123_subdomain, &mut errors);
    let pool = val::at(spec, "pool").cloned().unwrap_or_default();
    named(&pool, "name", "spec.pool", |name| name.split('/').flat_map(names::dns1123_subdomain).collect(), &mut errors);
    if val::int(&pool, "resourceSliceCount").unwrap_or(0) <= 0 {
        let count = pool["resourceSliceCount"].clone();
        errors.push(FieldError::invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"));
    }
    if let Some(generation) = val::int(&pool, "generation").filter(|n| *n < 0) {
        let message = "must be greater than or equal to zero";
        errors.push(FieldError::invalid("spec.pool.generation", generation, message));
    }
    let given =
        |place: &&&str| spec.get(**place).is_some_and(|v| !matches!(v, Value::Null | Value::Bool(false)) && v != "");
    let places = PLACES.iter().filter(given).count();
    // A slice of counters alone has no devices that are anywhere.
    if places != 1 && (places > 1 || val::list(spec, "sharedCounters").is_empty()) {
        let message = format!("exactly one of `{}` is required", PLACES.join("`, `"));
        errors.push(if places == 0 {
            FieldError::required("spec", message)
        } else {
            FieldError::invalid("spec", Value::Null, message)
        });
    }
    let devices = val::list(spec, "devices");
    too_many("spec.devices", devices, DEVICES, &mut errors);
    let mut seen = Vec::new();
    for (i, device) in devices.iter().enumerate() {
        let at = format!("spec.devices[{i}]");
        named(device, "name", &at, names::dns1123_label, &mut errors);
        let name = val::text(device, "name");
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        seen.push(name);
    }
    errors
}

static SLICE_COLUMNS: Columns = Columns {
    columns: &[NAME, text("Node"), text("Driver"), text("Pool"), AGE],
    cells: |obj, now| {
        let shown = |path: &str| json!(val::text(obj, path));
        vec![name_of(obj), shown("spec.nodeName"), shown("spec.driver"), shown("spec.pool.name"), age_of(obj, now)]
    },
};

kind!(SLICES: "resource" "resource.k8s.io" "v1" "ResourceSlice", "resourceslices" "resourceslice", Cluster
    "/registry/resourceslices/", resource::ResourceSlice, SLICE_RULES, SLICE_COLUMNS);

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn claims_ask_for_one_device_by_default() {
        let mut claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "c"}},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c", "allocationMode": "All"}]},
        ]}}});
        (CLAIM_RULES.defaults)(&mut claim);
        assert_eq!(claim["spec"]["devices"]["requests"][0]["exactly"]["count"], 1);
        assert!(claim["spec"]["devices"]["requests"][1]["firstAvailable"][0].get("count").is_none());
        assert_eq!(texts(&(CLAIM_RULES.validate)(&claim)), Vec::<String>::new());
    }

    #[test]
    fn requests_name_their_class_and_one_way() {
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "a"},
            {"name": "a", "exactly": {"allocationMode": "ExactCount", "count": 0}},
        ]}}});
        assert_eq!(
            texts(&(CLAIM_RULES.validate)(&claim)),
            [
                "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                "spec.devices.requests[1].name: Duplicate value: \"a\"",
                "spec.devices.requests[1].exactly.deviceClassName: Required value",
                "spec.devices.requests[1].exactly.count: Invalid value: 0: must be greater than zero",
            ]
        );
    }

    #[test]
    fn slices_say_where_they_are() {
        let slice = |place: Value| {
            let mut slice =
                json!({"spec": {"driver": "d.example.com", "pool": {"name": "p/q", "resourceSliceCount": 1}}});
            for (key, value) in place.as_object().into_iter().flatten() {
                slice["spec"][key] = value.clone();
            }
            texts(&validate_slice(&slice))
        };
        assert_eq!(slice(json!({"nodeName": "n"})), Vec::<String>::new());
        assert_eq!(slice(json!({"allNodes": true})), Vec::<String>::new());
        assert_eq!(slice(json!({"allNodes": false})).len(), 1);
        assert_eq!(slice(json!({"allNodes": true, "nodeName": "n"})).len(), 1);
        assert_eq!(slice(json!({"nodeName": "n", "driver": "not good"})).len(), 1);
    }

    #[test]
    fn the_state_of_a_claim() {
        assert_eq!(claim_state(&json!({})), "pending");
        assert_eq!(claim_state(&json!({"status": {"allocation": {}, "reservedFor": [{}]}})), "allocated,reserved");
        assert_eq!(claim_state(&json!({"metadata": {"deletionTimestamp": "x"}})), "deleted");
    }
}
