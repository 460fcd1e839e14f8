//! Pod templates: are two the same, what is the hash of one, what does its ReplicaSet look like. Pure.
//!
//! Upstream counterpart: `FindNewReplicaSet`, `EqualIgnoreHash`, `ComputeHash`. The hash has upstream's form but not its
//! value: that is made from a dump of Go structures. A set that upstream made is found by its template.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::Value;

use crate::meta::{controller_reference, created, name_of};

/// The label that tells the pods of one template from those of the next.
pub const HASH_LABEL: &str = "pod-template-hash";
/// Upstream's letters for hashes: no vowels, so that no words appear.
const SAFE_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The template as JSON without the hash label, without what only says "nothing".
fn canonical(template: &PodTemplateSpec) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH_LABEL);
    }
    let mut value = serde_json::to_value(&template).unwrap_or_default();
    prune(&mut value);
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("creationTimestamp");
        meta.retain(|_, v| !v.as_object().is_some_and(serde_json::Map::is_empty));
    }
    value
}

/// Drops nulls and empty lists; empty objects may mean something (`emptyDir: {}`).
fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn same(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    a == b || canonical(a) == canonical(b)
}

/// The template's hash; `collisions` changes it when another set has the name already.
pub fn hash(template: &PodTemplateSpec, collisions: i32) -> String {
    let text = canonical(template).to_string();
    let salt = (collisions > 0).then(|| collisions.to_le_bytes());
    let bytes = text.bytes().chain(salt.into_iter().flatten());
    let hash = bytes.fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let digits = hash.to_string();
    digits.bytes().map(|d| char::from(SAFE_LETTERS[usize::from(d) % SAFE_LETTERS.len()])).collect()
}

/// The position of the set that has the deployment's template: the oldest if there are several.
pub fn find_new(deployment: &Deployment, sets: &[ReplicaSet]) -> Option<usize> {
    let wanted = &deployment.spec.template;
    let matching = sets.iter().enumerate().filter(|(_, set)| {
        let template = set.spec.template.as_ref();
        template.is_some_and(|t| same(t, wanted))
    });
    matching
        .min_by(|(_, a), (_, b)| created(*a).cmp(&created(*b)).then_with(|| name_of(*a).cmp(name_of(*b))))
        .map(|(position, _)| position)
}

/// A set of this template is one of ours made earlier, not a stranger with the same name.
pub fn is_ours(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let owner = crate::meta::controller_of(set);
    owner.is_some_and(|o| o.uid == crate::meta::uid_of(deployment))
        && find_new(deployment, std::slice::from_ref(set)).is_some()
}

/// The set for the deployment's template, without replicas and annotations.
pub fn new_set(deployment: &Deployment, collisions: i32) -> ReplicaSet {
    let spec = &deployment.spec;
    let hash = hash(&spec.template, collisions);
    let with_hash = |labels: Option<&BTreeMap<String, String>>| {
        let mut labels = labels.cloned().unwrap_or_default();
        labels.insert(HASH_LABEL.to_owned(), hash.clone());
        Some(labels)
    };
    let mut template = spec.template.clone();
    let meta = template.metadata.get_or_insert_default();
    meta.labels = with_hash(meta.labels.as_ref());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", name_of(deployment))),
            namespace: deployment.metadata.namespace.clone(),
            labels: meta.labels.clone(),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector: LabelSelector {
                match_labels: with_hash(spec.selector.match_labels.as_ref()),
                match_expressions: spec.selector.match_expressions.clone(),
            },
            template: Some(template),
        },
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(json!({
            "metadata": {"labels": {"app": "x"}},
            "spec": {"containers": [{"name": "c", "image": image}]}
        }))
        .unwrap()
    }

    #[test]
    fn the_hash_has_upstreams_form_and_depends_on_the_template_only() {
        let one = hash(&template("a"), 0);
        assert!((1..=10).contains(&one.len()) && one.bytes().all(|b| SAFE_LETTERS.contains(&b)));
        let mut labelled = template("a");
        labelled.metadata.as_mut().unwrap().labels.as_mut().unwrap().insert(HASH_LABEL.to_owned(), "q".to_owned());
        assert_eq!(one, hash(&labelled, 0));
        assert_ne!(one, hash(&template("b"), 0));
        assert_ne!(one, hash(&template("a"), 1));
    }

    #[test]
    fn nothing_and_empty_are_the_same_template() {
        let mut empty = template("a");
        empty.spec.as_mut().unwrap().tolerations = Some(vec![]);
        empty.metadata.as_mut().unwrap().annotations = Some(BTreeMap::new());
        assert!(same(&template("a"), &empty));
        assert!(!same(&template("a"), &template("b")));
    }
}
