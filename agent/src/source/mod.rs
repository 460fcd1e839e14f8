//! Where pods come from: the manifest folder, a URL with manifests, and the API server.
//!
//! Each source publishes its whole set, newest wins; `None` means that it has not spoken yet, which is what keeps
//! clean-up of unknown pods from starting too early. Upstream counterpart: `pkg/kubelet/config`.

pub mod api;
pub mod file;
pub mod manifest;
pub mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tracing::error;

use crate::clock;
use crate::events::Recorder;
use crate::metrics::Metrics;
use crate::pod;

/// Pods by UID.
pub type PodSet = BTreeMap<String, Arc<Pod>>;
/// A source's set; `None` before it has spoken.
pub type Feed = watch::Receiver<Option<PodSet>>;

/// Tells of static pod manifests that cannot be used, once per content: log, event of the node, metric.
#[derive(Clone)]
pub struct Teller {
    recorder: Arc<Recorder>,
    metrics: Metrics,
    source: &'static str,
}

impl Teller {
    /// For one source, as it is named in `kubernetes.io/config.source`.
    #[must_use]
    pub fn new(recorder: Arc<Recorder>, metrics: Metrics, source: &'static str) -> Self {
        Self { recorder, metrics, source }
    }

    fn wrong(&self, count: usize) {
        self.metrics.invalid_manifests(self.source, count);
    }

    fn refused(&self, text: &str) {
        self.recorder.node("Warning", "InvalidStaticPodManifest", text);
    }
}

/// Says that a manifest is not used; `kept`: what came from there before goes on.
fn refuse(teller: Option<&Teller>, kept: bool, message: &str) {
    let kept = if kept { " (the pod from its former content runs on)" } else { "" };
    let text = format!("static pod manifest not used{kept}: {message}");
    error!("{text}");
    if let Some(teller) = teller {
        teller.refused(&text);
    }
}

/// Now, as the annotation `kubernetes.io/config.seen` has it.
fn seen() -> String {
    jiff::Timestamp::from_nanosecond(i128::from(clock::now())).map(|t| t.to_string()).unwrap_or_default()
}

/// A pod that has not changed stays the same object, with the time it was first seen.
fn keep_same(old: &[Arc<Pod>], new: Pod) -> Arc<Pod> {
    let content = |pod: &Pod| {
        let mut pod = pod.clone();
        if let Some(annotations) = &mut pod.metadata.annotations {
            annotations.remove(pod::CONFIG_SEEN);
        }
        pod
    };
    // A manifest may name its UID itself: the same UID is not yet the same pod.
    let same = |o: &&Arc<Pod>| pod::uid(o) == pod::uid(&new) && content(o) == content(&new);
    old.iter().find(same).cloned().unwrap_or_else(|| Arc::new(new))
}

/// Hands a source's set out, unless it is what was handed out before.
fn publish(set: PodSet, out: &watch::Sender<Option<PodSet>>) {
    out.send_if_modified(|old| {
        // By object: an edit may keep the UID.
        let same = old.as_ref().is_some_and(|old| {
            old.len() == set.len() && set.iter().all(|(uid, pod)| old.get(uid).is_some_and(|o| Arc::ptr_eq(o, pod)))
        });
        if !same {
            *old = Some(set);
        }
        !same
    });
}

/// All static pods, and whether each of their sources has spoken.
#[must_use]
pub fn statics(feeds: &[Feed]) -> (PodSet, bool) {
    let mut out = PodSet::new();
    let mut complete = true;
    for feed in feeds {
        match &*feed.borrow() {
            Some(set) => out.extend(set.iter().map(|(uid, pod)| (uid.clone(), pod.clone()))),
            None => complete = false,
        }
    }
    (out, complete)
}

/// All pods by UID: the API's without mirrors, and the static ones.
#[must_use]
pub fn merge(statics: &PodSet, api: &PodSet) -> PodSet {
    let mut out: PodSet =
        api.iter().filter(|(_, pod)| !pod::is_mirror(pod)).map(|(uid, pod)| (uid.clone(), pod.clone())).collect();
    out.extend(statics.iter().map(|(uid, pod)| (uid.clone(), pod.clone())));
    out
}

/// The mirrors among the API's pods, by full name.
#[must_use]
pub fn mirrors(api: &PodSet) -> BTreeMap<String, Arc<Pod>> {
    api.values().filter(|pod| pod::is_mirror(pod)).map(|pod| (pod::full_name(pod), pod.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_that_keeps_the_uid_is_handed_out_and_the_same_set_is_not() {
        let (out, mut feed) = watch::channel(None);
        let set = |pod: &Arc<Pod>| PodSet::from([("u".to_owned(), pod.clone())]);
        let (one, two) = (Arc::new(Pod::default()), Arc::new(Pod::default()));
        publish(set(&one), &out);
        assert!(feed.has_changed().unwrap());
        feed.mark_unchanged();
        publish(set(&one), &out);
        assert!(!feed.has_changed().unwrap());
        publish(set(&two), &out);
        assert!(feed.has_changed().unwrap());
    }

    #[test]
    fn clean_up_waits_for_every_source() {
        let (one, two) = (watch::channel(Some(PodSet::new())).1, watch::channel(None).1);
        assert!(statics(&[]).1 && statics(std::slice::from_ref(&one)).1 && !statics(&[one, two]).1);
    }
}
