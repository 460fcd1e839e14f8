//! CustomResourceDefinitions as stored objects; what they define is in [`crate::custom`].
//!
//! Upstream counterparts: `apiextensions-apiserver/pkg/apis/apiextensions/v1/defaults.go` and
//! `pkg/registry/customresourcedefinition`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::status;
use crate::custom::definition;
use crate::resource::{Resource, Scope};
use crate::strategy::{Part, Rules};
use crate::table::CREATED_AT;
use crate::{custom, schema, val};

const GROUP: &str = "apiextensions.k8s.io";

fn set_defaults(obj: &mut Value) {
    let spec = val::child(obj, "spec");
    let names = val::child(spec, "names");
    let kind = val::text(names, "kind").to_owned();
    if !kind.is_empty() {
        val::default(names, "singular", kind.to_lowercase());
        val::default(names, "listKind", format!("{kind}List"));
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        val::set(spec, "conversion", json!({"strategy": "None"}));
    }
    let webhook = val::child_mut(spec, "conversion").and_then(|c| val::child_mut(c, "webhook"));
    let client = webhook.and_then(|w| val::child_mut(w, "clientConfig"));
    if let Some(service) = client.and_then(|c| val::child_mut(c, "service")) {
        val::default(service, "port", 443);
    }
}

/// Notes that objects may be stored in the storage version from now on.
fn note_storage(obj: &mut Value) {
    let storage = val::list(obj, "spec.versions").iter().find(|version| val::flag(version, "storage"));
    let Some(name) = storage.map(|version| val::text(version, "name").to_owned()) else { return };
    let status = val::child(obj, "status");
    let mut stored = val::list(status, "storedVersions").to_vec();
    if !stored.iter().any(|known| *known == name) {
        stored.push(json!(name));
        val::set(status, "storedVersions", stored);
    }
}

static RULES: Rules = Rules {
    unconditional_update: false,
    defaults: set_defaults,
    create: |obj| {
        let status = json!({"acceptedNames": {"plural": "", "kind": ""}, "conditions": [], "storedVersions": []});
        val::set(obj, "status", status);
        note_storage(obj);
    },
    update: |obj, _, part| {
        if part != Part::Status {
            note_storage(obj);
        }
    },
    validate: definition::validate,
    validate_update: |new, old, _| definition::validate_update(new, old),
    warnings: custom::unenforced,
    ..Rules::SPEC
};

pub(crate) static DEFINITIONS: Resource = Resource {
    group: GROUP,
    version: "v1",
    kind: "CustomResourceDefinition",
    list_kind: "CustomResourceDefinitionList",
    plural: "customresourcedefinitions",
    singular: "customresourcedefinition",
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    storage_prefix: "/registry/apiextensions.k8s.io/customresourcedefinitions/",
    subresources: &[status(GROUP, "v1", "CustomResourceDefinition")],
    schema: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    root: schema::root::<CustomResourceDefinition>(),
    strategy: &RULES,
    columns: &CREATED_AT,
    ..Resource::BASE
};
