//! Which objects belong to an owner: adoption and release by selector and owner reference. Pure.
//!
//! Upstream counterpart: `pkg/controller/controller_ref_manager.go`.

use std::sync::Arc;

use kube::Resource;

use crate::meta::{controller_of, is_deleting};

/// What to do so that exactly the matching objects are owned.
#[derive(Debug)]
pub struct Claim<K> {
    /// Owned already and matching.
    pub owned: Vec<Arc<K>>,
    /// Matching orphans.
    pub adopt: Vec<Arc<K>>,
    /// Owned, matching no more.
    pub release: Vec<Arc<K>>,
}

/// Sorts the candidates (all objects of the owner's namespace) for the owner with this UID. `matches` is the owner's
/// selector, and whatever else makes an object one of its own.
pub fn claim<K: Resource>(
    owner_uid: &str,
    owner_deleting: bool,
    matches: impl Fn(&K) -> bool,
    candidates: impl IntoIterator<Item = Arc<K>>,
) -> Claim<K> {
    let mut claim = Claim { owned: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    for object in candidates {
        let matches = matches(object.as_ref());
        match controller_of(object.as_ref()) {
            Some(owner) if owner.uid != owner_uid => {}
            Some(_) if matches => claim.owned.push(object),
            Some(_) if !owner_deleting && !is_deleting(object.as_ref()) => claim.release.push(object),
            None if matches && !owner_deleting && !is_deleting(object.as_ref()) => claim.adopt.push(object),
            Some(_) | None => {}
        }
    }
    claim
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::labels;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
    use k8s_openapi::jiff::Timestamp;

    fn pod(name: &str, app: &str, owner: Option<&str>, deleting: bool) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
        pod.metadata.owner_references = owner.map(|uid| {
            vec![OwnerReference { uid: uid.to_owned(), controller: Some(true), ..OwnerReference::default() }]
        });
        pod.metadata.deletion_timestamp = deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        Arc::new(pod)
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|p| crate::meta::name_of(p.as_ref())).collect()
    }

    #[test]
    fn pods_are_owned_adopted_released_or_left_alone() {
        let selector = |pod: &Pod| labels(pod).get("app").is_some_and(|app| app == "x");
        let all = vec![
            pod("mine", "x", Some("me"), false),
            pod("mine-ending", "x", Some("me"), true),
            pod("relabelled", "y", Some("me"), false),
            pod("orphan", "x", None, false),
            pod("orphan-ending", "x", None, true),
            pod("other", "x", Some("you"), false),
            pod("stranger", "y", None, false),
        ];
        let claimed = claim("me", false, selector, all.clone());
        assert_eq!(names(&claimed.owned), ["mine", "mine-ending"]);
        assert_eq!(names(&claimed.adopt), ["orphan"]);
        assert_eq!(names(&claimed.release), ["relabelled"]);
        let ending = claim("me", true, selector, all);
        assert!(ending.adopt.is_empty() && ending.release.is_empty());
    }
}
