//! Pod templates: are two the same, and what is the hash of one. Pure.
//!
//! Upstream counterpart: `EqualIgnoreHash`, `ComputeHash`. The hash has upstream's form but not its value: that is made
//! from a dump of Go structures.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// The label that tells the pods of one template of a Deployment from those of the next.
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
pub fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The two make the same pods.
pub fn same(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
