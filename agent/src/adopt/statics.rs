//! The UIDs of static pods that another agent has started.
//!
//! A kubelet's UID of a static pod is a hash over a dump of its own data type: no other program can compute it, nor another release of
//! kubelet, which for that reason restarts static pods at an upgrade. But the sandbox says when its manifest was read. A file that has not
//! changed since holds what that pod was made from: the pod it gives is the same one, and takes its UID over. That is decided once, when the
//! manifests are read for the first time, and kept on disk: a later change of the file's mode is no change of the pod.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::pod;
use crate::runtime::{SandboxItem, SandboxState};

/// Where taken UIDs are kept, in the state directory.
const FILE: &str = "static-pod-uids.json";

/// A static pod in the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// Where these are kept.
    file: Option<PathBuf>,
}

fn nanoseconds(time: &str) -> Option<i64> {
    i64::try_from(time.parse::<Timestamp>().ok()?.as_nanosecond()).ok()
}

/// When a file, or a link on the way to it, was last changed in any way: a copy or a move may keep the time of its content, but not this one.
#[must_use]
pub fn changed(path: &Path) -> Option<i64> {
    let time = |meta: Metadata| meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec());
    let links = path.ancestors().filter_map(|at| std::fs::symlink_metadata(at).ok()).filter(Metadata::is_symlink);
    let newest = links.map(time).max();
    Some(time(std::fs::metadata(path).ok()?).max(newest.unwrap_or(i64::MIN)))
}

impl Predecessors {
    /// From a list of all sandboxes.
    #[must_use]
    pub fn of(sandboxes: &[SandboxItem]) -> Self {
        let mut pods: BTreeMap<String, Predecessor> = BTreeMap::new();
        for item in sandboxes.iter().filter(|item| item.state == SandboxState::Ready) {
            let Some(origin) = &item.origin else { continue };
            let Some(seen) = nanoseconds(&origin.seen) else { continue };
            let name = pod::full_name_of(&item.pod.name, &item.pod.namespace);
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
        Self { pods, ..Self::default() }
    }

    /// With what was taken before, and where that is kept from now on.
    #[must_use]
    pub fn kept_in(mut self, root_dir: &Path) -> Self {
        let file = root_dir.join(FILE);
        if let Ok(bytes) = std::fs::read(&file) {
            match serde_json::from_slice::<BTreeMap<String, Predecessor>>(&bytes) {
                // Those that the runtime does not hold any more are over.
                Ok(taken) => {
                    self.taken =
                        taken.into_iter().filter(|(_, p)| self.pods.values().any(|o| o.uid == p.uid)).collect();
                }
                Err(error) => warn!("{} cannot be used ({error}); static pods are compared anew", file.display()),
            }
        }
        self.file = Some(file);
        self
    }

    /// The manifests have been read: what changes from now on is another pod.
    pub fn settle(&mut self) {
        self.pods.clear();
    }

    fn keep(&self) {
        let Some(file) = &self.file else { return };
        let fresh = file.with_extension("new");
        let written = serde_json::to_vec_pretty(&self.taken)
            .map_err(std::io::Error::other)
            .and_then(|bytes| std::fs::write(&fresh, bytes))
            .and_then(|()| std::fs::rename(&fresh, file));
        if let Err(error) = written {
            warn!("cannot keep the UIDs of adopted static pods in {} ({error})", file.display());
        }
    }

    /// Makes a manifest's pod the one that runs, if it is the same; `changed`: when the manifest was. Says so when it does for the first time.
    pub fn claim(&mut self, pod: &mut Pod, changed: Option<i64>) -> bool {
        let own = pod::uid(pod).to_owned();
        let mut first = false;
        if !self.taken.contains_key(&own) {
            let source = pod::annotation(pod, pod::CONFIG_SOURCE).unwrap_or_default();
            let same = |p: &&Predecessor| p.uid != own && p.source == source && changed.is_some_and(|at| at <= p.seen);
            let name = pod::full_name(pod);
            if self.pods.get(&name).filter(same).is_none() {
                return false;
            }
            // Once: a second file with this name is another pod.
            let Some(predecessor) = self.pods.remove(&name) else { return false };
            self.taken.insert(own.clone(), predecessor);
            self.keep();
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
    }

    #[test]
    fn what_was_taken_stays_over_a_restart_and_a_change_of_the_files_mode() {
        let folder = tempfile::tempdir().unwrap();
        let seen = nanoseconds(SEEN).unwrap();
        let theirs = [sandbox("theirs", "file", 5)];
        let uid = |sandboxes: &[SandboxItem], own: &str, changed| {
            let mut pod = pod(own);
            Predecessors::of(sandboxes).kept_in(folder.path()).claim(&mut pod, changed);
            pod::uid(&pod).to_owned()
        };
        assert_eq!(uid(&theirs, "ours", Some(seen)), "theirs");
        assert_eq!(uid(&theirs, "ours", Some(seen + 9)), "theirs");
        assert_eq!(uid(&theirs, "edited", Some(seen + 9)), "edited");
        // When it is gone it is over.
        assert_eq!(uid(&[], "ours", Some(seen)), "ours");
    }

    #[test]
    fn a_link_that_was_turned_counts_as_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("one"), "1").unwrap();
        std::fs::write(at("two"), "2").unwrap();
        let before = changed(&at("two")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::os::unix::fs::symlink(at("two"), at("link")).unwrap();
        assert!(changed(&at("link")).unwrap() > before);
        assert_eq!(changed(&at("two")), Some(before));
    }

    #[test]
    fn a_pod_is_taken_once_and_only_at_first() {
        let seen = nanoseconds(SEEN).unwrap();
        let mut known = Predecessors::of(&[sandbox("theirs", "file", 5)]);
        assert_eq!(known.other(&pod("edited")), Some(("theirs", SEEN)));
        assert!(known.claim(&mut pod("ours"), Some(seen)));
        assert!(!known.claim(&mut pod("twin"), Some(seen)));
        let mut later = Predecessors::of(&[sandbox("theirs", "file", 5)]);
        later.settle();
        assert!(!later.claim(&mut pod("ours"), Some(seen)));
    }
}
