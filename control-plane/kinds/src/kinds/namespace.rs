//! Namespaces.
//!
//! Upstream counterpart: `pkg/registry/core/namespace`. A namespace goes away in two steps: a delete marks it Terminating, and the
//! namespace controller empties it and then clears `spec.finalizers` through the `finalize` subresource.

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::status;
use crate::resource::{Subresource, Verb};
use crate::strategy::{Part, Rules};
use crate::table::{AGE, Columns, NAME, age_of, name_of, text};
use crate::{names, val};

/// The label that carries a namespace's name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

static RULES: Rules = Rules {
    status: true,
    name: names::dns1123_label,
    defaults: |obj| {
        let name = val::text(obj, "metadata.name").to_owned();
        if !name.is_empty() {
            val::set(val::child(val::child(obj, "metadata"), "labels"), NAME_LABEL, name);
        }
    },
    create: |obj| {
        // The name may have been generated since defaults were set.
        let name = val::text(obj, "metadata.name").to_owned();
        val::set(val::child(val::child(obj, "metadata"), "labels"), NAME_LABEL, name);
        let spec = val::child(obj, "spec");
        let mut finalizers = val::list(spec, "finalizers").to_vec();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push(json!("kubernetes"));
        }
        val::set(spec, "finalizers", finalizers);
        val::set(obj, "status", json!({"phase": "Active"}));
    },
    update: |new, old, part| {
        if part == Part::Other("finalize") {
            val::carry(new, old, "status");
        } else {
            val::carry(new, old, "spec");
        }
    },
    selectable: &["status.phase"],
    ..Rules::PLAIN
};

static COLUMNS: Columns = Columns {
    columns: &[NAME, text("Status"), AGE],
    cells: |obj, now| vec![name_of(obj), json!(val::text(obj, "status.phase")), age_of(obj, now)],
};

kind!(NAMESPACES: "core" "" "v1" "Namespace", "namespaces" "namespace", Cluster "/registry/namespaces/", core::Namespace, RULES,
COLUMNS, short_names: &["ns"],
verbs: &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch],
subresources: &[
    Subresource { name: "finalize", group: "", version: "v1", kind: "Namespace", verbs: &[Verb::Update] },
    status("", "v1", "Namespace"),
]);

/// An empty namespace object, for those that the server makes itself.
#[must_use]
pub fn new(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}
