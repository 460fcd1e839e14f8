//! The webhook configurations of admissionregistration.k8s.io.
//!
//! Upstream counterpart: `pkg/apis/admissionregistration/{v1,validation}`.

use std::collections::HashSet;

use k8s_openapi::api::admissionregistration::v1 as admission;
use keelson_cel::match_conditions::{self, WEBHOOK_VARIABLES};
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::strategy::Rules;
use crate::table::{AGE, Columns, NAME, age_of, name_of, number};
use crate::{meta, names, val};

/// Review versions that the server speaks.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Side effects that a webhook may declare.
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
/// Longest wait for a webhook, in seconds.
const MAX_TIMEOUT: i64 = 30;

static WEBHOOK_RULES: Rules = Rules {
    generation: true,
    defaults: |obj| {
        let mutating = val::text(obj, "kind") == "MutatingWebhookConfiguration";
        for hook in val::list_mut(obj, "webhooks") {
            val::default(hook, "failurePolicy", "Fail");
            val::default(hook, "matchPolicy", "Equivalent");
            val::default(hook, "timeoutSeconds", 10);
            for key in ["namespaceSelector", "objectSelector"] {
                if hook.get(key).is_none() {
                    val::set(hook, key, json!({}));
                }
            }
            if mutating {
                val::default(hook, "reinvocationPolicy", "Never");
            }
            if let Some(service) = val::child_mut(val::child(hook, "clientConfig"), "service") {
                val::default(service, "port", 443);
            }
            for rule in val::list_mut(hook, "rules") {
                val::default(rule, "scope", "*");
            }
        }
    },
    validate: |obj| validate(obj),
    ..Rules::PLAIN
};

static WEBHOOK_COLUMNS: Columns = Columns {
    columns: &[NAME, number("Webhooks"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::list(obj, "webhooks").len()), age_of(obj, now)],
};

kind!(MUTATING_WEBHOOKS: "admissionregistration" "admissionregistration.k8s.io" "v1" "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations" "mutatingwebhookconfiguration", Cluster "/registry/mutatingwebhookconfigurations/",
    admission::MutatingWebhookConfiguration, WEBHOOK_RULES, WEBHOOK_COLUMNS, categories: &["api-extensions"]);
kind!(VALIDATING_WEBHOOKS: "admissionregistration" "admissionregistration.k8s.io" "v1" "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations" "validatingwebhookconfiguration", Cluster "/registry/validatingwebhookconfigurations/",
    admission::ValidatingWebhookConfiguration, WEBHOOK_RULES, WEBHOOK_COLUMNS, categories: &["api-extensions"]);

fn validate(obj: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (i, hook) in val::list(obj, "webhooks").iter().enumerate() {
        let at = format!("webhooks[{i}]");
        let name = val::text(hook, "name");
        errors.extend(fully_qualified(&format!("{at}.name"), name));
        if !seen.insert(name.to_owned()) {
            errors.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        errors.extend(one_webhook(hook, &at));
    }
    errors
}

fn fully_qualified(at: &str, name: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required(at, "")];
    }
    let faults = names::dns1123_subdomain(name);
    if faults.is_empty() && name.split('.').count() < 3 {
        return vec![FieldError::invalid(
            at,
            name,
            "should be a domain with at least three segments separated by dots",
        )];
    }
    faults.into_iter().map(|fault| FieldError::invalid(at, name, fault)).collect()
}

fn one_webhook(hook: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = review_versions(hook, at);
    for (i, rule) in val::list(hook, "rules").iter().enumerate() {
        errors.extend(rule_errors(rule, &format!("{at}.rules[{i}]")));
    }
    let choices: [(&str, &[&str]); 3] = [
        ("failurePolicy", &["Fail", "Ignore"]),
        ("matchPolicy", &["Equivalent", "Exact"]),
        ("reinvocationPolicy", &["IfNeeded", "Never"]),
    ];
    for (field, valid) in choices {
        let given = val::text(hook, field);
        if !given.is_empty() && !valid.contains(&given) {
            errors.push(FieldError::not_supported(format!("{at}.{field}"), given, valid));
        }
    }
    match val::text(hook, "sideEffects") {
        "" => {
            let why = format!("must specify one of {}", SIDE_EFFECTS.join(", "));
            errors.push(FieldError::required(format!("{at}.sideEffects"), why));
        }
        given if !SIDE_EFFECTS.contains(&given) => {
            errors.push(FieldError::not_supported(format!("{at}.sideEffects"), given, &SIDE_EFFECTS));
        }
        _ => {}
    }
    if let Some(seconds) = val::int(hook, "timeoutSeconds")
        && !(1..=MAX_TIMEOUT).contains(&seconds)
    {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{at}.timeoutSeconds"), seconds, why));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        errors.extend(meta::selector(hook.get(field), &format!("{at}.{field}")));
    }
    errors.extend(client_config(hook, &format!("{at}.clientConfig")));
    let conditions = hook.get("matchConditions").unwrap_or(&Value::Null);
    errors.extend(match_conditions::validate(conditions, &format!("{at}.matchConditions"), &WEBHOOK_VARIABLES));
    errors
}

fn review_versions(hook: &Value, at: &str) -> Vec<FieldError> {
    let field = format!("{at}.admissionReviewVersions");
    let versions: Vec<&str> = val::list(hook, "admissionReviewVersions").iter().filter_map(Value::as_str).collect();
    if versions.is_empty() {
        let why = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        return vec![FieldError::required(field, why)];
    }
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (i, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.push(FieldError::invalid(format!("{field}[{i}]"), *version, "duplicate version"));
        }
        for fault in names::dns1035_label(version) {
            errors.push(FieldError::invalid(format!("{field}[{i}]"), *version, fault));
        }
    }
    if errors.is_empty() && !versions.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(field, json!(versions), why));
    }
    errors
}

/// What is wrong with one rule of a webhook.
fn rule_errors(rule: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let list = |field: &str| val::list(rule, field).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let operations = list("operations");
    if operations.is_empty() {
        errors.push(FieldError::required(format!("{at}.operations"), ""));
    }
    if operations.len() > 1 && operations.contains(&"*") {
        let why = "if '*' is present, must not specify other operations";
        errors.push(FieldError::invalid(format!("{at}.operations"), json!(operations), why));
    }
    let valid = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (i, operation) in operations.iter().enumerate().filter(|(_, operation)| !valid.contains(operation)) {
        errors.push(FieldError::not_supported(format!("{at}.operations[{i}]"), *operation, &valid));
    }
    for (field, what) in [("apiGroups", "group"), ("apiVersions", "version")] {
        let given = list(field);
        if given.is_empty() {
            errors.push(FieldError::required(format!("{at}.{field}"), ""));
        }
        if given.len() > 1 && given.contains(&"*") {
            let why = format!("if '*' is present, must not specify other API {what}s");
            errors.push(FieldError::invalid(format!("{at}.{field}"), json!(given), why));
        }
        if field == "apiVersions" {
            for (i, _) in given.iter().enumerate().filter(|(_, version)| version.is_empty()) {
                errors.push(FieldError::required(format!("{at}.{field}[{i}]"), ""));
            }
        }
    }
    errors.extend(resources(&list("resources"), &format!("{at}.resources")));
    let scope = val::text(rule, "scope");
    if !scope.is_empty() && !["*", "Cluster", "Namespaced"].contains(&scope) {
        errors.push(FieldError::not_supported(format!("{at}.scope"), scope, &["*", "Cluster", "Namespaced"]));
    }
    errors
}

fn resources(given: &[&str], at: &str) -> Vec<FieldError> {
    if given.is_empty() {
        return vec![FieldError::required(at, "")];
    }
    let mut errors = Vec::new();
    for (i, resource) in given.iter().enumerate() {
        let invalid = |why: String| FieldError::invalid(format!("{at}[{i}]"), *resource, why);
        if resource.is_empty() {
            errors.push(FieldError::required(format!("{at}[{i}]"), ""));
        }
        if let Some((name, sub)) = resource.split_once('/') {
            let whole = |pattern: &str| given.contains(&pattern);
            if sub != "*" && whole(&format!("{name}/*")) {
                errors.push(invalid(format!("if '{name}/*' is present, must not specify {resource}")));
            } else if name != "*" && whole(&format!("*/{sub}")) {
                errors.push(invalid(format!("if '*/{sub}' is present, must not specify {resource}")));
            }
        }
    }
    if given.len() > 1 && given.contains(&"*/*") {
        let why = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(at, json!(given), why));
    } else if given.contains(&"*") && given.iter().any(|resource| *resource != "*" && !resource.contains('/')) {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(at, json!(given), why));
    }
    errors
}

fn client_config(hook: &Value, at: &str) -> Vec<FieldError> {
    let config = &hook["clientConfig"];
    let url = config.get("url").and_then(Value::as_str);
    match (url, config.get("service").filter(|service| service.is_object())) {
        (Some(url), None) => url_errors(url, &format!("{at}.url")),
        (None, Some(service)) => service_errors(service, &format!("{at}.service")),
        _ => vec![FieldError::required(at, "exactly one of url or service is required")],
    }
}

/// What is wrong with a webhook's URL.
pub(crate) fn url_errors(url: &str, at: &str) -> Vec<FieldError> {
    const FORM: &str = "; desired format: https://host[/path]";
    let invalid = |value: &str, why: &str| FieldError::invalid(at, value, format!("{why}{FORM}"));
    let Some((scheme, rest)) = url.split_once("://") else {
        return vec![FieldError::required(at, format!("url must be a valid URL{FORM}"))];
    };
    let mut errors = Vec::new();
    if scheme != "https" {
        errors.push(invalid(scheme, "'https' is the only allowed URL scheme"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or("");
    if authority.is_empty() {
        errors.push(invalid(authority, "host must be specified"));
    }
    if let Some((user, _)) = authority.rsplit_once('@') {
        errors.push(invalid(user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(invalid(fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(invalid(query, "query parameters are not permitted in the URL"));
    }
    errors
}

/// What is wrong with a reference to a webhook's Service.
pub(crate) fn service_errors(service: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in ["name", "namespace"] {
        if val::text(service, field).is_empty() {
            errors.push(FieldError::required(format!("{at}.{field}"), format!("service {field} is required")));
        }
    }
    let port = val::int(service, "port").unwrap_or(443);
    for fault in names::port_number(port) {
        errors.push(FieldError::invalid(format!("{at}.port"), port, format!("port is not valid: {fault}")));
    }
    let path = val::text(service, "path");
    if !path.is_empty() && !path.starts_with('/') {
        errors.push(FieldError::invalid(format!("{at}.path"), path, "must start with a '/'"));
    }
    for step in path.trim_matches('/').split('/').filter(|_| !path.is_empty() && path != "/") {
        if step.is_empty() {
            errors.push(FieldError::invalid(format!("{at}.path"), path, "segment[0] may not be empty"));
        }
        for fault in names::dns1123_subdomain(step).into_iter().filter(|_| !step.is_empty()) {
            errors.push(FieldError::invalid(format!("{at}.path"), path, format!("segment: {fault}")));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut hook = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://x/y"},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
        change(&mut hook);
        let object = json!({"kind": "ValidatingWebhookConfiguration", "webhooks": [hook]});
        validate(&object).iter().map(|error| format!("{}: {}", error.field, error.body())).collect()
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        assert_eq!(configuration(|_| {}), Vec::<String>::new());
        let one = |change: fn(&mut Value), wanted: &str| {
            let said = configuration(change);
            assert!(said.len() == 1 && said[0].contains(wanted), "{said:?} for {wanted}");
        };
        one(|hook| hook["name"] = json!("a.b"), "at least three segments");
        one(|hook| hook["sideEffects"] = json!("Some"), "webhooks[0].sideEffects: Unsupported value: \"Some\"");
        one(|hook| hook["admissionReviewVersions"] = json!(["v2"]), "must include at least one of v1, v1beta1");
        one(|hook| hook["timeoutSeconds"] = json!(31), "between 1 and 30 seconds");
        one(|hook| hook["clientConfig"]["url"] = json!("http://x"), "'https' is the only allowed URL scheme");
        one(|hook| hook["clientConfig"] = json!({}), "exactly one of url or service is required");
        one(|hook| hook["rules"][0]["operations"] = json!(["*", "CREATE"]), "must not specify other operations");
        one(|hook| hook["rules"][0]["resources"] = json!(["*", "pods"]), "without subresources");
        one(|hook| hook["rules"][0]["resources"] = json!(["pods/*", "pods/log"]), "if 'pods/*' is present");
        one(|hook| hook["failurePolicy"] = json!("Maybe"), "webhooks[0].failurePolicy");
    }
}
