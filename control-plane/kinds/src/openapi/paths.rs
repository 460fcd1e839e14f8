//! The `paths` of a document: operations with what clients look for, without prose.

use serde_json::{Map, Value, json};

use super::reference;
use crate::decode::definition_name;
use crate::resource::{Resource, Verb};

const JSON: &str = "application/json";
const PATCH_TYPES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];

/// A kind that an operation is about.
struct About<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    /// Definition, if it is in the document.
    schema: Option<String>,
    /// Whether a strategic merge patch is known there: custom kinds have no merge keys.
    strategic: bool,
}

pub(super) fn of(list: &[&Resource]) -> Value {
    let mut paths = Map::new();
    for res in list {
        let root = if res.group.is_empty() {
            format!("/api/{}", res.version)
        } else {
            format!("/apis/{}/{}", res.group, res.version)
        };
        let about = About {
            group: res.group,
            version: res.version,
            kind: res.kind,
            schema: Some(res.schema.to_owned()),
            strategic: res.strategy.custom().is_none(),
        };
        let collection = if res.namespaced() {
            format!("{root}/namespaces/{{namespace}}/{}", res.plural)
        } else {
            format!("{root}/{}", res.plural)
        };
        if res.namespaced() && res.allows(Verb::List) {
            paths.insert(format!("{root}/{}", res.plural), item(&about, &[Verb::List], false, false));
        }
        paths.insert(collection.clone(), item(&about, collection_verbs(res.verbs), res.namespaced(), false));
        if !res.stored() {
            continue;
        }
        paths.insert(format!("{collection}/{{name}}"), item(&about, res.verbs, res.namespaced(), true));
        for sub in res.subresources {
            let schema = if sub.kind == res.kind {
                Some(res.schema.to_owned())
            } else {
                crate::kinds::extra_root(sub.kind).map(|_| definition_name(sub.group, sub.version, sub.kind))
            };
            let about =
                About { group: sub.group, version: sub.version, kind: sub.kind, schema, strategic: about.strategic };
            let path = format!("{collection}/{{name}}/{}", sub.name);
            paths.insert(path, item(&about, sub.verbs, res.namespaced(), true));
        }
    }
    Value::Object(paths)
}

fn collection_verbs(verbs: &[Verb]) -> &'static [Verb] {
    if verbs.contains(&Verb::List) { &[Verb::List, Verb::Create, Verb::DeleteCollection] } else { &[Verb::Create] }
}

fn item(about: &About<'_>, verbs: &[Verb], namespaced: bool, named: bool) -> Value {
    let mut out = Map::new();
    for verb in verbs {
        let method = match verb {
            Verb::Get | Verb::List => "get",
            Verb::Create => "post",
            Verb::Update => "put",
            Verb::Patch => "patch",
            Verb::Delete | Verb::DeleteCollection => "delete",
            Verb::Watch => continue,
        };
        // Collections and single objects share some methods: only one of each fits a path.
        let single = matches!(verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete);
        let subresource_create = named && *verb == Verb::Create && !verbs.contains(&Verb::List);
        if single == named || subresource_create {
            out.insert(method.to_owned(), operation(about, *verb));
        }
    }
    let mut parameters = vec![query("pretty", "string")];
    for (name, wanted) in [("namespace", namespaced), ("name", named)] {
        if wanted {
            parameters.push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}}));
        }
    }
    out.insert("parameters".to_owned(), Value::Array(parameters));
    Value::Object(out)
}

fn query(name: &str, kind: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn operation(about: &About<'_>, verb: Verb) -> Value {
    let schema = about.schema.as_deref().map_or_else(|| json!({"type": "object"}), |s| json!({"$ref": reference(s)}));
    let (action, parameters): (&str, &[(&str, &str)]) = match verb {
        Verb::Get => ("get", &[]),
        Verb::List | Verb::Watch => ("list", LIST),
        Verb::Create => ("post", WRITE),
        Verb::Update => ("put", WRITE),
        Verb::Patch => ("patch", PATCH),
        Verb::Delete => ("delete", DELETE),
        Verb::DeleteCollection => ("deletecollection", DELETE),
    };
    let answer = if verb == Verb::List {
        about.schema.as_deref().map_or_else(|| schema.clone(), |s| json!({"$ref": reference(&format!("{s}List"))}))
    } else {
        schema.clone()
    };
    let mut out = json!({
        "parameters": parameters.iter().map(|(name, kind)| query(name, kind)).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": {JSON: {"schema": answer}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": about.group, "version": about.version, "kind": about.kind},
    });
    match verb {
        Verb::Create | Verb::Update => {
            out["requestBody"] = json!({"required": true, "content": {JSON: {"schema": schema}}});
        }
        Verb::Patch => {
            let types = PATCH_TYPES.iter().filter(|media| about.strategic || !media.contains("strategic"));
            let content: Map<String, Value> =
                types.map(|t| ((*t).to_owned(), json!({"schema": {"type": "object"}}))).collect();
            out["requestBody"] = json!({"required": true, "content": content});
        }
        _ => {}
    }
    out
}

const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const PATCH: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const LIST: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
