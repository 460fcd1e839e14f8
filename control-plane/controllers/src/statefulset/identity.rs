//! Numbers, names and claims. Pure.
//!
//! Upstream counterpart: `stateful_set_utils.go`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::meta::{controller_reference, labels, name_of, uid_of};
use crate::pod_control::pod_from;
use crate::revisions::plan::REVISION_LABEL;

const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The number of the set's first pod.
pub fn first_ordinal(set: &StatefulSet) -> i32 {
    set.spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0)
}

/// How many pods the set wants.
pub fn wished(set: &StatefulSet) -> i32 {
    set.spec.replicas.unwrap_or(1).max(0)
}

/// The pod's number, if its name is one of this set's.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let digits = name_of(pod).strip_prefix(name_of(set))?.strip_prefix('-')?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The revision that the pod was made from.
pub fn revision(pod: &Pod) -> &str {
    labels(pod).get(REVISION_LABEL).map_or("", String::as_str)
}

fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", name_of(set))
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", name_of(template), name_of(set))
}

fn templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.volume_claim_templates.as_deref().unwrap_or_default()
}

/// What the pod's labels must say of its identity.
fn identity_labels(set: &StatefulSet, ordinal: i32) -> [(&'static str, String); 2] {
    [(POD_NAME_LABEL, pod_name(set, ordinal)), (POD_INDEX_LABEL, ordinal.to_string())]
}

/// The pod of a number, from the template of a revision.
pub fn pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let mut pod = pod_from(set, template);
    let name = pod_name(set, ordinal);
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(REVISION_LABEL.to_owned(), revision.to_owned());
    for (key, value) in identity_labels(set, ordinal) {
        labels.insert(key.to_owned(), value);
    }
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.service_name.clone().filter(|service| !service.is_empty());
    let claimed = templates(set).iter().map(|template| Volume {
        name: name_of(template).to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: None,
        }),
        ..Volume::default()
    });
    let mut volumes: Vec<Volume> = claimed.collect();
    let others = spec.volumes.take().unwrap_or_default();
    volumes.extend(others.into_iter().filter(|v| !templates(set).iter().any(|t| name_of(t) == v.name)));
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    pod
}

/// The pod with the labels of its identity, if one is missing (an adopted pod, or one of an older control plane).
pub fn corrected(set: &StatefulSet, pod: &Pod) -> Option<Pod> {
    let wanted = identity_labels(set, ordinal(set, pod)?);
    if wanted.iter().all(|(key, value)| labels(pod).get(*key) == Some(value)) {
        return None;
    }
    let mut pod = pod.clone();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.extend(wanted.map(|(key, value)| (key.to_owned(), value)));
    Some(pod)
}

/// The claims of the pod of a number.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let claim = |template: &PersistentVolumeClaim| {
        let mut labels = template.metadata.labels.clone().unwrap_or_default();
        labels.extend(set.spec.selector.match_labels.clone().unwrap_or_default());
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(claim_name(set, template, ordinal)),
                namespace: set.metadata.namespace.clone(),
                labels: Some(labels),
                annotations: template.metadata.annotations.clone(),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    };
    templates(set).iter().map(claim).collect()
}

/// The names of those claims.
pub fn claim_names(set: &StatefulSet, ordinal: i32) -> impl Iterator<Item = String> {
    templates(set).iter().map(move |template| claim_name(set, template, ordinal))
}

/// The owners of a pod's claim after the set's retention policy: the set, if claims go with it; the pod, if they go when
/// the set is made smaller and this pod is one of those that end. Owners set by others stay.
pub fn claim_owners(
    set: &StatefulSet,
    known: &[OwnerReference],
    pod: Option<&Arc<Pod>>,
    is_condemned: bool,
) -> Vec<OwnerReference> {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let deletes = |word: Option<&String>| word.is_some_and(|w| w == "Delete");
    let (with_set, with_scale) =
        (deletes(policy.and_then(|p| p.when_deleted.as_ref())), deletes(policy.and_then(|p| p.when_scaled.as_ref())));
    let of_ours = |reference: &OwnerReference| {
        reference.uid == uid_of(set) || (reference.kind == "Pod" && reference.name.starts_with(name_of(set)))
    };
    let mut owners: Vec<OwnerReference> = known.iter().filter(|reference| !of_ours(reference)).cloned().collect();
    if with_scale && is_condemned {
        owners.extend(pod.map(|pod| controller_reference(pod.as_ref())));
    } else if with_set {
        owners.push(controller_reference(set));
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(edit: impl FnOnce(&mut Value)) -> StatefulSet {
        let mut set = json!({"metadata": {"name": "web", "namespace": "n", "uid": "u"}, "spec": {"serviceName": "svc",
            "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"tier": "db"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}]}});
        edit(&mut set);
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn a_pod_has_its_name_labels_host_name_and_claims() {
        let set = set(|_| {});
        let pod = pod(&set, &set.spec.template, "web-abc", 3);
        assert_eq!((name_of(&pod), ordinal(&set, &pod), revision(&pod)), ("web-3", Some(3), "web-abc"));
        assert_eq!((labels(&pod)[POD_NAME_LABEL].as_str(), labels(&pod)[POD_INDEX_LABEL].as_str()), ("web-3", "3"));
        let spec = pod.spec.clone().unwrap();
        assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("web-3"), Some("svc")));
        let volumes = spec.volumes.unwrap();
        assert_eq!(volumes.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["data", "tmp"]);
        assert_eq!(volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name, "data-web-3");
        let claims = claims(&set, 3);
        assert_eq!((name_of(&claims[0]), labels(&claims[0])["tier"].as_str()), ("data-web-3", "db"));
        assert!(corrected(&set, &pod).is_none());
    }

    #[test]
    fn names_of_other_sets_are_no_numbers() {
        let set = set(|_| {});
        let named = |name: &str| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.to_owned());
            ordinal(&set, &pod)
        };
        assert_eq!([named("web-0"), named("web-12")], [Some(0), Some(12)]);
        for other in ["web-", "web-x", "web-1-2", "webby-1", "web", "web-+1", "web-99999999999"] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    #[test]
    fn claims_are_owned_as_the_policy_says() {
        let policy = |deleted: &str, scaled: &str| {
            set(|s| {
                s["spec"]["persistentVolumeClaimRetentionPolicy"] =
                    json!({"whenDeleted": deleted, "whenScaled": scaled});
            })
        };
        let mut pod = Pod::default();
        (pod.metadata.name, pod.metadata.uid) = (Some("web-1".to_owned()), Some("p".to_owned()));
        let pod = Arc::new(pod);
        let owners = |deleted: &str, scaled: &str, condemned: bool| {
            let other =
                OwnerReference { uid: "other".to_owned(), kind: "Backup".to_owned(), ..OwnerReference::default() };
            let before = [other, controller_reference(&set(|_| {}))];
            let owners = claim_owners(&policy(deleted, scaled), &before, Some(&pod), condemned);
            owners.into_iter().map(|o| o.uid).collect::<Vec<_>>().join(",")
        };
        assert_eq!(owners("Retain", "Retain", true), "other");
        assert_eq!(owners("Delete", "Retain", true), "other,u");
        assert_eq!(owners("Delete", "Delete", true), "other,p");
        assert_eq!(owners("Delete", "Delete", false), "other,u");
        assert_eq!(owners("Retain", "Delete", false), "other");
    }
}
