//! Where pods come from: the manifest folder and the API server.
//!
//! Each source publishes its whole set, newest wins; `None` means that it has not spoken yet, which is what keeps
//! clean-up of unknown pods from starting too early. Upstream counterpart: `pkg/kubelet/config`.

pub mod api;
pub mod file;
pub mod manifest;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

/// Pods by UID.
pub type PodSet = BTreeMap<String, Arc<Pod>>;
/// A source's set; `None` before it has spoken.
pub type Feed = watch::Receiver<Option<PodSet>>;

/// Both sources joined by UID: the API's pods without mirrors, and the static ones.
#[must_use]
pub fn merge(file: &PodSet, api: &PodSet) -> PodSet {
    let mut out: PodSet = api
        .iter()
        .filter(|(_, pod)| !crate::pod::is_mirror(pod))
        .map(|(uid, pod)| (uid.clone(), pod.clone()))
        .collect();
    out.extend(file.iter().map(|(uid, pod)| (uid.clone(), pod.clone())));
    out
}

/// The mirrors among the API's pods, by full name.
#[must_use]
pub fn mirrors(api: &PodSet) -> BTreeMap<String, Arc<Pod>> {
    api.values().filter(|pod| crate::pod::is_mirror(pod)).map(|pod| (crate::pod::full_name(pod), pod.clone())).collect()
}
