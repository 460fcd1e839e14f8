//! The UIDs of static pods that another agent has started.
//!
//! A kubelet's UID of a static pod is a hash over a dump of its own data type: no other program can compute it, nor another release of
//! kubelet, which for that reason restarts static pods at an upgrade. But the sandbox says when its manifest was read. A file that has not
//! changed since holds what that pod was made from: the pod it gives is the same one, and takes its UID over.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::pod;
use crate::runtime::{SandboxItem, SandboxState};

/// A static pod in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Predecessor {
    uid: String,
    source: String,
    /// When its manifest was read, nanoseconds since the epoch, and as the annotation has it.
    seen: i64,
    text: String,
    created_at: i64,
}

/// Static pods that the runtime held when the agent started, by full name.
#[derive(Clone, Debug, Default)]
pub struct Predecessors {
    pods: BTreeMap<String, Predecessor>,
    /// UIDs as this agent computes them, and what they are in the runtime.
    taken: BTreeMap<String, Predecessor>,
}

fn nanoseconds(time: &str) -> Option<i64> {
    i64::try_from(time.parse::<Timestamp>().ok()?.as_nanosecond()).ok()
}

/// When a file was last changed in any way: a copy or a move may keep the time of its content, but not this one.
#[must_use]
pub fn changed(path: &Path) -> Option<i64> {
    let meta = std::fs::metadata(path).ok()?;
    Some(meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec()))
}

impl Predecessors {
    /// From a list of all sandboxes.
    #[must_use]
    pub fn of(sandboxes: &[SandboxItem]) -> Self {
        let mut pods: BTreeMap<String, Predecessor> = BTreeMap::new();
        for item in sandboxes.iter().filter(|item| item.state == SandboxState::Ready) {
            let Some(origin) = &item.origin else { continue };
            let Some(seen) = nanoseconds(&origin.seen) else { continue };
            let name = format!("{}_{}", item.pod.name, item.pod.namespace);
            if pods.get(&name).is_none_or(|other| other.created_at < item.created_at) {
                pods.insert(
                    name,
                    Predecessor {
                        uid: item.pod.uid.clone(),
                        source: origin.source.clone(),
                        seen,
                        text: origin.seen.clone(),
                        created_at: item.created_at,
                    },
                );
            }
        }
        Self { pods, taken: BTreeMap::new() }
    }

    /// Makes a manifest's pod the one that runs, if it is the same; `changed`: when the manifest was. Says so when it does for the first time.
    pub fn claim(&mut self, pod: &mut Pod, changed: Option<i64>) -> bool {
        let own = pod::uid(pod).to_owned();
        let mut first = false;
        if !self.taken.contains_key(&own) {
            let source = pod::annotation(pod, pod::CONFIG_SOURCE).unwrap_or_default();
            let same = |p: &&Predecessor| p.uid != own && p.source == source && changed.is_some_and(|at| at <= p.seen);
            let Some(predecessor) = self.pods.get(&pod::full_name(pod)).filter(same) else { return false };
            self.taken.insert(own.clone(), predecessor.clone());
            first = true;
        }
        if let Some(predecessor) = self.taken.get(&own) {
            pod.metadata.uid = Some(predecessor.uid.clone());
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(pod::CONFIG_HASH.into(), predecessor.uid.clone());
            annotations.insert(pod::CONFIG_SEEN.into(), predecessor.text.clone());
        }
        first
    }

    /// Whether a static pod of this full name runs under another UID, and when its manifest had been read.
    #[must_use]
    pub fn other(&self, pod: &Pod) -> Option<(&str, &str)> {
        let predecessor = self.pods.get(&pod::full_name(pod)).filter(|p| p.uid != pod::uid(pod))?;
        Some((&predecessor.uid, &predecessor.text))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::{PodKey, StaticOrigin};

    const SEEN: &str = "2026-01-31T12:00:00.123456789Z";

    fn sandbox(uid: &str, source: &str, created_at: i64) -> SandboxItem {
        SandboxItem {
            pod: PodKey { uid: uid.into(), name: "etcd-cp".into(), namespace: "kube-system".into() },
            id: format!("id-{uid}"),
            attempt: 0,
            state: SandboxState::Ready,
            created_at,
            origin: Some(StaticOrigin { source: source.into(), seen: SEEN.into() }),
        }
    }

    fn pod(uid: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "etcd-cp", "namespace": "kube-system", "uid": uid,
            "annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid}}}))
        .unwrap()
    }

    fn claim(sandboxes: &[SandboxItem], changed: Option<i64>) -> (bool, String) {
        let mut pod = pod("ours");
        let first = Predecessors::of(sandboxes).claim(&mut pod, changed);
        assert_eq!(pod::annotation(&pod, pod::CONFIG_HASH), Some(pod::uid(&pod)));
        (first, pod::uid(&pod).to_owned())
    }

    #[test]
    fn an_unchanged_manifest_gives_the_pod_that_runs() {
        let seen = nanoseconds(SEEN).unwrap();
        let theirs = [sandbox("theirs", "file", 5)];
        assert_eq!(claim(&theirs, Some(seen)), (true, "theirs".to_owned()));
        for (sandboxes, changed) in [
            (&theirs[..], Some(seen + 1)),
            (&theirs[..], None),
            (&[sandbox("theirs", "http", 5)][..], Some(seen)),
            (&[sandbox("ours", "file", 5)][..], Some(seen)),
            (&[SandboxItem { origin: None, ..sandbox("theirs", "file", 5) }][..], Some(seen)),
            (&[SandboxItem { state: SandboxState::NotReady, ..sandbox("theirs", "file", 5) }][..], Some(seen)),
            (&[][..], Some(seen)),
        ] {
            assert_eq!(claim(sandboxes, changed), (false, "ours".to_owned()), "{sandboxes:?} {changed:?}");
        }
    }

    #[test]
    fn the_newest_sandbox_counts_and_a_touched_file_stays_the_same_pod() {
        let seen = nanoseconds(SEEN).unwrap();
        let mut known =
            Predecessors::of(&[sandbox("old", "file", 5), sandbox("new", "file", 6), sandbox("older", "file", 4)]);
        let mut first = pod("ours");
        assert!(known.claim(&mut first, Some(seen)));
        assert_eq!(pod::uid(&first), "new");
        assert_eq!(pod::annotation(&first, pod::CONFIG_SEEN), Some(SEEN));
        // Read again, later, with the same content.
        let mut again = pod("ours");
        assert!(!known.claim(&mut again, Some(seen + 1_000)));
        assert_eq!(pod::uid(&again), "new");
        // Another content is another pod.
        let mut edited = pod("edited");
        assert!(!known.claim(&mut edited, Some(seen + 1_000)));
        assert_eq!(pod::uid(&edited), "edited");
        assert_eq!(known.other(&edited), Some(("new", SEEN)));
    }
}
