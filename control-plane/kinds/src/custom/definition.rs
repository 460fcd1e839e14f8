//! Validation of CustomResourceDefinitions.
//!
//! Field paths are those of upstream's internal version: what all versions say alike is said once, at `spec.validation`,
//! `spec.subresources`, `spec.additionalPrinterColumns` and `spec.selectableFields`. Upstream counterparts:
//! `apiextensions-apiserver/pkg/apis/apiextensions/validation` and the conversions of `v1`.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::pattern::Patterns;
use super::status::established;
use super::structural::{Structural, Unsupported};
use super::{defaults, invariants, keywords};
use crate::error::FieldError;
use crate::{kinds, names, val};

/// Types of printer columns.
const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
/// Formats of printer columns.
const COLUMN_FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Most selectable fields of a version, as upstream.
const MAX_SELECTABLE: usize = 8;
/// Longest deprecation warning, as upstream.
const MAX_WARNING: usize = 256;
/// The annotation that lets a definition take a group of Kubernetes.
const APPROVED: &str = "api-approved.kubernetes.io";
/// Fields of a root schema beside a status subresource, by upstream's names, and by those of JSON.
const AT_ROOT: &[(&str, &str)] = &[
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XValidations", "x-kubernetes-validations"),
];

/// Validates a definition, beyond its metadata.
#[must_use]
pub fn validate(crd: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (name, group) = (val::text(crd, "metadata.name"), val::text(crd, "spec.group"));
    if !name.is_empty() && name != format!("{}.{group}", val::text(crd, "spec.names.plural")) {
        errors.push(FieldError::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    spec(crd, &mut errors);
    if let Some(accepted) = val::at(crd, "status.acceptedNames") {
        names_at(accepted, "status.acceptedNames", &mut errors);
    }
    errors.extend(stored_versions(crd));
    if val::flag(crd, "spec.preserveUnknownFields") {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    errors.extend(approval(crd));
    errors
}

/// Validates what may not change.
#[must_use]
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut paths = if established(old) { vec!["spec.scope", "spec.names.kind"] } else { Vec::new() };
    paths.extend(["spec.group", "spec.names.plural"]);
    kinds::immutable(new, old, &paths)
}

/// What a definition asks for that is stored, but not done by this server.
#[must_use]
pub fn unenforced(crd: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if val::text(crd, "spec.conversion.strategy") == "Webhook" {
        out.push(
            "spec.conversion.strategy: Webhook is stored, but this server converts by changing the apiVersion only"
                .to_owned(),
        );
    }
    out
}

fn spec(crd: &Value, errors: &mut Vec<FieldError>) {
    let group = val::text(crd, "spec.group");
    let found = names::dns1123_subdomain(group);
    if super::version::is_built_in(group, val::text(crd, "spec.names.plural")) {
        errors.push(FieldError::forbidden("spec.names.plural", "this is a kind of the server's own"));
    }
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !found.is_empty() {
        errors.push(FieldError::invalid("spec.group", group, found.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
    }
    match val::text(crd, "spec.scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    versions(crd, errors);
    for key in ["plural", "singular", "kind", "listKind"] {
        if val::text(crd, &format!("spec.names.{key}")).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{key}"), ""));
        }
    }
    if let Some(names) = val::at(crd, "spec.names") {
        names_at(names, "spec.names", errors);
    }
    if let Some(conversion) = val::at(crd, "spec.conversion") {
        self::conversion(conversion, errors);
    }
}

fn versions(crd: &Value, errors: &mut Vec<FieldError>) {
    let list = val::list(crd, "spec.versions");
    let whole = || Value::Array(list.to_vec());
    let mut seen = HashSet::new();
    let mut unique = true;
    for (i, version) in list.iter().enumerate() {
        if val::at(version, "schema.openAPIV3Schema").is_none() {
            let at = format!("spec.versions[{i}].schema.openAPIV3Schema");
            errors.push(FieldError::required(at, "schemas are required"));
        }
        let name = val::text(version, "name");
        unique &= seen.insert(name);
        let found = names::dns1035_label(name);
        if !found.is_empty() {
            errors.push(FieldError::invalid(format!("spec.versions[{i}].name"), name, found.join(",")));
        }
        for why in deprecation(version) {
            let given = val::text(version, "deprecationWarning");
            errors.push(FieldError::invalid(format!("spec.versions[{i}].deprecationWarning"), given, why));
        }
    }
    if !unique {
        errors.push(FieldError::invalid("spec.versions", whole(), "must contain unique version names"));
    }
    if list.iter().filter(|version| val::flag(version, "storage")).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", whole(), detail));
    }
    let status = |version: &Value| val::at(version, "subresources.status").is_some();
    let any_status = list.iter().any(status);
    each(list, "schema", "validation", |version, path| {
        let alike = path == "spec.validation";
        let status = if alike { any_status } else { status(version) };
        errors.extend(
            val::at(version, "schema.openAPIV3Schema")
                .into_iter()
                .flat_map(|s| schema(s, status, &format!("{path}.openAPIV3Schema"))),
        );
    });
    each(list, "subresources", "subresources", |version, path| errors.extend(subresources(version, path)));
    each(list, "additionalPrinterColumns", "additionalPrinterColumns", |version, path| {
        for (i, column) in val::list(version, "additionalPrinterColumns").iter().enumerate() {
            errors.extend(self::column(column, &format!("{path}[{i}]")));
        }
    });
    each(list, "selectableFields", "selectableFields", |version, path| errors.extend(selectable(version, path)));
}

/// Runs on the versions that say something at `key`, once if all say the same.
fn each(list: &[Value], key: &str, together: &str, mut run: impl FnMut(&Value, &str)) {
    let Some(first) = list.first() else { return };
    if list.iter().all(|version| version.get(key) == first.get(key)) {
        if first.get(key).is_some() {
            run(first, &format!("spec.{together}"));
        }
        return;
    }
    for (i, version) in list.iter().enumerate().filter(|(_, version)| version.get(key).is_some()) {
        run(version, &format!("spec.versions[{i}].{key}"));
    }
}

fn deprecation(version: &Value) -> Vec<String> {
    let Some(text) = version.get("deprecationWarning").and_then(Value::as_str) else { return Vec::new() };
    if !val::flag(version, "deprecated") {
        return vec!["can only be set for deprecated versions".to_owned()];
    }
    let mut out = Vec::new();
    if text.len() > MAX_WARNING {
        out.push(format!("must be <= {MAX_WARNING} characters long"));
    }
    if text.is_empty() {
        out.push("must not be an empty string".to_owned());
    }
    if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        out.push(format!("must only contain printable UTF-8 characters; non-printable character found at index {at}"));
    }
    out
}

/// Checks one schema that messages call `path`.
fn schema(schema: &Value, status: bool, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let parsed = Structural::parse(schema, &mut Patterns::default());
    if parsed == Err(Unsupported::TooDeep) {
        return vec![FieldError::invalid(path, "", Unsupported::TooDeep.to_string())];
    }
    if status {
        at_root(schema, path, &mut errors);
    }
    if val::flag(schema, "nullable") {
        errors.push(FieldError::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
    }
    let mut init = None;
    match parsed {
        Err(why) => init = Some(FieldError::invalid(path, "", why.to_string())),
        Ok(structural) => {
            let found = invariants::check(&structural, path);
            let found = if found.is_empty() { defaults::check(&structural, path) } else { found };
            errors.extend(found);
        }
    }
    errors.extend(keywords::check(schema, path));
    errors.extend(keelson_cel::rules::validate(schema, path));
    if errors.is_empty() {
        errors.extend(init);
    }
    errors
}

/// The status is validated apart, so the root may say nothing that would be lost.
fn at_root(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = val::text(schema, "type");
    if !kind.is_empty() && kind != "object" {
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(format!("{path}.type"), kind, detail));
    }
    let given = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(s) => !s.is_empty(),
        _ => true,
    };
    let allowed = |key: &str| AT_ROOT.iter().any(|(_, name)| *name == key);
    let wrong = schema.as_object().into_iter().flatten().any(|(key, value)| given(value) && !allowed(key));
    if wrong {
        let names: Vec<&str> = AT_ROOT.iter().map(|(name, _)| *name).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        errors.push(FieldError::invalid(path, schema.clone(), detail));
    }
}

fn subresources(version: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(scale) = val::at(version, "subresources.scale") else { return errors };
    for (key, required, below, detail) in [
        ("specReplicasPath", true, &[".spec."][..], "should be a json path under .spec"),
        ("statusReplicasPath", true, &[".status."], "should be a json path under .status"),
        ("labelSelectorPath", false, &[".spec.", ".status."], "should be a json path under either .spec or .status"),
    ] {
        let (at, given) = (format!("{path}.scale.{key}"), val::text(scale, key));
        if given.is_empty() {
            errors.extend(required.then(|| FieldError::required(at, "")));
        } else if let Some(error) = simple_path(given, &at) {
            errors.push(error);
        } else if !below.iter().any(|prefix| given.starts_with(prefix)) {
            errors.push(FieldError::invalid(at, given, detail));
        }
    }
    errors
}

fn simple_path(path: &str, at: &str) -> Option<FieldError> {
    (!path.starts_with('.')).then(|| FieldError::invalid(at, path, "must be a simple json path starting with ."))
}

fn column(column: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if val::text(column, "name").is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let (kind, at) = (val::text(column, "type"), format!("{path}.type"));
    if kind.is_empty() {
        errors.push(FieldError::required(at, format!("must be one of {COLUMN_TYPES}")));
    } else if !COLUMN_TYPES.split(',').any(|known| known == kind) {
        errors.push(FieldError::invalid(at, kind, format!("must be one of {COLUMN_TYPES}")));
    }
    let format = val::text(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(format!("{path}.format"), format, detail));
    }
    let (given, at) = (val::text(column, "jsonPath"), format!("{path}.JSONPath"));
    if given.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else {
        errors.extend(simple_path(given, &at));
    }
    errors
}

fn selectable(version: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(schema) = val::at(version, "schema.openAPIV3Schema") else { return errors };
    let Ok(schema) = Structural::parse(schema, &mut Patterns::default()) else { return errors };
    let mut seen = HashSet::new();
    for (i, field) in val::list(version, "selectableFields").iter().enumerate() {
        let (given, at) = (val::text(field, "jsonPath"), format!("{path}[{i}].jsonPath"));
        if given.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let found = match field_at(&schema, given) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(at, given, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if given.starts_with(".metadata.") || given == ".metadata" {
            errors.push(FieldError::invalid(at.as_str(), given, "must not point to fields in metadata"));
        }
        if !matches!(found.kind.as_str(), "string" | "boolean" | "integer") {
            errors.push(FieldError::invalid(
                at.as_str(),
                given,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ));
        }
        if !seen.insert(given) {
            errors.push(FieldError::duplicate(at, given));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(FieldError::too_many(path, seen.len(), MAX_SELECTABLE));
    }
    errors
}

/// The schema at a path of dots and names.
fn field_at<'a>(schema: &'a Structural, path: &str) -> Result<&'a Structural, String> {
    if path.contains(['[', ']']) {
        return Err("array notation is not allowed".to_owned());
    }
    let Some(rest) = path.strip_prefix('.') else {
        return Err(format!("expected [ or . but got: {}", path.split('.').next().unwrap_or("")));
    };
    if rest.ends_with('.') || rest.is_empty() {
        return Err("unexpected end of JSON path".to_owned());
    }
    rest.split('.').try_fold(schema, |schema, name| {
        let found = if schema.properties.is_empty() { schema.additional_schema() } else { schema.properties.get(name) };
        found.ok_or_else(|| "does not refer to a valid field".to_owned())
    })
}

fn names_at(found: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for key in ["plural", "singular", "kind", "listKind"] {
        let text = val::text(found, key);
        let mixed = key.ends_with("ind");
        let wrong = names::dns1035_label(&if mixed { text.to_lowercase() } else { text.to_owned() });
        if !text.is_empty() && !wrong.is_empty() {
            let start = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            errors.push(FieldError::invalid(format!("{path}.{key}"), text, format!("{start}{}", wrong.join(","))));
        }
    }
    let lists = |key: &str, errors: &mut Vec<FieldError>| {
        for (i, text) in val::list(found, key).iter().filter_map(Value::as_str).enumerate() {
            let wrong = names::dns1035_label(text);
            if !wrong.is_empty() {
                errors.push(FieldError::invalid(format!("{path}.{key}[{i}]"), text, wrong.join(",")));
            }
        }
    };
    lists("shortNames", errors);
    let (kind, list_kind) = (val::text(found, "kind"), val::text(found, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(format!("{path}.listKind"), list_kind, detail));
    }
    lists("categories", errors);
}

fn stored_versions(crd: &Value) -> Vec<FieldError> {
    const AT: &str = "status.storedVersions";
    let stored = val::list(crd, AT);
    if stored.is_empty() {
        return vec![FieldError::invalid(AT, json!([]), "must have at least one stored version")];
    }
    let mut errors = Vec::new();
    let versions = val::list(crd, "spec.versions");
    for version in versions.iter().filter(|version| val::flag(version, "storage")) {
        let name = val::text(version, "name");
        if !stored.iter().any(|known| known == name) {
            let detail = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(AT, stored.to_vec(), detail));
        }
    }
    for (i, name) in stored.iter().filter_map(Value::as_str).enumerate() {
        if !versions.iter().any(|version| val::text(version, "name") == name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage \
                 migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{AT}[{i}]"), name, detail));
        }
    }
    errors
}

fn approval(crd: &Value) -> Option<FieldError> {
    let group = val::text(crd, "spec.group");
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")));
    if !protected {
        return None;
    }
    let at = format!("metadata.annotations[{APPROVED}]");
    let given =
        val::map(crd, "metadata.annotations").and_then(|map| map.get(APPROVED)).and_then(Value::as_str).unwrap_or("");
    let start = format!("protected groups must have approval annotation {APPROVED:?}");
    let link = "see https://github.com/kubernetes/enhancements/pull/1111";
    if given.is_empty() {
        return Some(FieldError::required(at, format!("{start}, {link}")));
    }
    let url = given
        .split_once("://")
        .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/'));
    (!url && !given.starts_with("unapproved")).then(|| {
        let detail = format!("{start} with either a URL or a reason starting with \"unapproved\", {link}");
        FieldError::invalid(at, given, detail)
    })
}

fn conversion(conversion: &Value, errors: &mut Vec<FieldError>) {
    const AT: &str = "spec.conversion";
    let client = val::at(conversion, "webhook.clientConfig");
    let reviews = val::list(conversion, "webhook.conversionReviewVersions");
    match val::text(conversion, "strategy") {
        "" => errors.push(FieldError::required(format!("{AT}.strategy"), "")),
        "Webhook" => {
            errors.extend(webhook(client, &format!("{AT}.webhookClientConfig")));
            errors.extend(review_versions(reviews, &format!("{AT}.conversionReviewVersions")));
            return;
        }
        "None" => {}
        other => errors.push(FieldError::not_supported(format!("{AT}.strategy"), other, &["None", "Webhook"])),
    }
    for (given, key) in [(client.is_some(), "webhookClientConfig"), (!reviews.is_empty(), "conversionReviewVersions")] {
        if given {
            let detail = "should not be set when strategy is not set to Webhook";
            errors.push(FieldError::forbidden(format!("{AT}.{key}"), detail));
        }
    }
}

fn review_versions(versions: &[Value], at: &str) -> Vec<FieldError> {
    if versions.is_empty() {
        return vec![FieldError::required(at, "")];
    }
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (i, version) in versions.iter().filter_map(Value::as_str).enumerate() {
        if seen.insert(version) {
            let wrong = names::dns1035_label(version);
            errors.extend(wrong.into_iter().map(|why| FieldError::invalid(format!("{at}[{i}]"), version, why)));
        } else {
            errors.push(FieldError::invalid(format!("{at}[{i}]"), version, "duplicate version"));
        }
    }
    if !seen.contains("v1") && !seen.contains("v1beta1") {
        errors.push(FieldError::invalid(at, versions.to_vec(), "must include at least one of v1, v1beta1"));
    }
    errors
}

fn webhook(client: Option<&Value>, at: &str) -> Vec<FieldError> {
    let Some(client) = client else {
        return vec![FieldError::required(at, "required when strategy is set to Webhook")];
    };
    match (client.get("url").and_then(Value::as_str), val::at(client, "service")) {
        (Some(url), None) => webhook_url(url, &format!("{at}.url")),
        (None, Some(service)) => webhook_service(service, &format!("{at}.service")),
        _ => vec![FieldError::required(at, "exactly one of url or service is required")],
    }
}

fn webhook_url(url: &str, at: &str) -> Vec<FieldError> {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut errors = Vec::new();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or("") };
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if scheme != "https" {
        errors.push(FieldError::invalid(at, scheme, format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if host.is_empty() {
        errors.push(FieldError::invalid(at, host, format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(FieldError::invalid(at, user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(FieldError::invalid(at, fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(FieldError::invalid(at, query, "query parameters are not permitted in the URL"));
    }
    errors
}

fn webhook_service(service: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in ["name", "namespace"] {
        if val::text(service, key).is_empty() {
            errors.push(FieldError::required(format!("{at}.{key}"), ""));
        }
    }
    let port = val::int(service, "port").unwrap_or(443);
    let wrong = names::port_number(port);
    if !wrong.is_empty() {
        let detail = format!("port is not valid: {}", wrong.join(", "));
        errors.push(FieldError::invalid(format!("{at}.port"), port, detail));
    }
    let (path, at) = (val::text(service, "path"), format!("{at}.path"));
    if path.is_empty() || path == "/" {
        return errors;
    }
    if path == "//" {
        errors.push(FieldError::invalid(at, path, "segment[0] may not be empty"));
        return errors;
    }
    if !path.starts_with('/') {
        errors.push(FieldError::invalid(at.as_str(), path, "must start with a '/'"));
    }
    let inner = path.get(1..).unwrap_or("");
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    for (i, step) in inner.split('/').enumerate() {
        if step.is_empty() {
            errors.push(FieldError::invalid(at.as_str(), path, format!("segment[{i}] may not be empty")));
            continue;
        }
        for why in names::dns1123_subdomain(step) {
            errors.push(FieldError::invalid(at.as_str(), path, format!("segment[{i}]: {why}")));
        }
    }
    errors
}
