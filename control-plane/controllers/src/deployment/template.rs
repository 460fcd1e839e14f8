//! Which ReplicaSet has the deployment's template, and what a new one looks like. Pure.
//!
//! Upstream counterpart: `FindNewReplicaSet`, `getNewReplicaSet`. A set that upstream made is found by its template.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::meta::{controller_reference, created, name_of};

pub use crate::template::HASH_LABEL;
use crate::template::{hash, same};

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
