//! The folder of static pod manifests: inotify for speed, a poll for certainty.
//!
//! A file that is wrong leaves the pods it gave before alone, is reported once per content, and never disturbs the
//! others. Upstream counterpart: `pkg/kubelet/config/file.go`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use k8s_openapi::api::core::v1::Pod;
use kube_common::config;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{PodSet, manifest};
use crate::clock;
use crate::events::Recorder;
use crate::metrics::Metrics;
use crate::pod;

/// How long a burst of changes is gathered.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Known {
    stamp: Option<(SystemTime, u64)>,
    pods: Vec<Arc<Pod>>,
    wrong: bool,
}

/// The state of the folder.
pub struct Folder {
    path: PathBuf,
    node: String,
    files: BTreeMap<PathBuf, Known>,
    told: Option<(Arc<Recorder>, Metrics)>,
}

impl Folder {
    /// A folder (or a single file) that has not been read yet.
    #[must_use]
    pub fn new(path: &Path, node: &str) -> Self {
        Self { path: path.to_owned(), node: node.to_owned(), files: BTreeMap::new(), told: None }
    }

    /// Tells of wrong files by events of the node and a metric.
    #[must_use]
    pub fn telling(mut self, recorder: Arc<Recorder>, metrics: Metrics) -> Self {
        self.told = Some((recorder, metrics));
        self
    }

    /// Reads what has changed; returns the pods of all files.
    pub fn scan(&mut self) -> PodSet {
        let listed = self.list();
        self.files.retain(|path, known| {
            let keep = listed.iter().any(|(p, _)| p == path);
            if !keep && !known.pods.is_empty() {
                info!(file = %path.display(), "manifest removed");
            }
            keep
        });
        for (path, stamp) in listed {
            let known = self.files.entry(path.clone()).or_default();
            if known.stamp == Some(stamp) {
                continue;
            }
            known.stamp = Some(stamp);
            let outcome = Self::read(&path, &self.node, known);
            known.wrong = outcome.is_err();
            if let (Err(message), Some(known)) = (outcome, self.files.get(&path)) {
                self.refuse(known, &message);
            }
        }
        if let Some((_, metrics)) = &self.told {
            metrics.invalid_manifests(self.wrong());
        }
        let mut out = PodSet::new();
        let mut names = BTreeMap::new();
        for (path, known) in &self.files {
            for pod in &known.pods {
                if let Some(other) = names.insert(pod::full_name(pod), path) {
                    warn!(
                        pod = pod::full_name(pod),
                        "{} and {} name the same pod; the first is taken",
                        other.display(),
                        path.display()
                    );
                    names.insert(pod::full_name(pod), other);
                    continue;
                }
                out.insert(pod::uid(pod).to_owned(), pod.clone());
            }
        }
        out
    }

    fn list(&self) -> Vec<(PathBuf, (SystemTime, u64))> {
        let stamp = |path: &Path| {
            let m = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
            Some((m.modified().unwrap_or(SystemTime::UNIX_EPOCH), m.len()))
        };
        if self.path.is_file() {
            return stamp(&self.path).map(|s| (self.path.clone(), s)).into_iter().collect();
        }
        let Ok(entries) = std::fs::read_dir(&self.path) else { return Vec::new() };
        let mut out: Vec<_> = entries
            .flatten()
            .filter(|e| !e.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|e| Some((e.path(), stamp(&e.path())?)))
            .collect();
        out.sort();
        out
    }

    /// Takes a file's pods over; the error says why it cannot be used.
    fn read(path: &Path, node: &str, known: &mut Known) -> Result<(), String> {
        let text = config::read_text(path).map_err(|e| e.to_string())?;
        let seen = jiff::Timestamp::from_nanosecond(i128::from(clock::now())).map(|t| t.to_string());
        let found = manifest::parse(path, &text, node, &seen.unwrap_or_default()).map_err(|e| e.to_string())?;
        for text in found.unknown {
            error!("{text} (ignored)");
        }
        known.pods = found.pods.into_iter().map(|p| keep_same(&known.pods, p)).collect();
        for pod in &known.pods {
            info!(file = %path.display(), pod = %pod::display(pod), "static pod");
        }
        Ok(())
    }

    fn refuse(&self, known: &Known, message: &str) {
        let kept = if known.pods.is_empty() { "" } else { " (the pod from its former content runs on)" };
        let text = format!("static pod manifest not used{kept}: {message}");
        error!("{text}");
        if let Some((recorder, _)) = &self.told {
            recorder.node("Warning", "InvalidStaticPodManifest", &text);
        }
    }

    /// How many files are wrong.
    #[must_use]
    pub fn wrong(&self) -> usize {
        self.files.values().filter(|k| k.wrong).count()
    }
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

/// Follows the folder until `stop`.
pub async fn run(mut folder: Folder, poll: Duration, out: watch::Sender<Option<PodSet>>, stop: CancellationToken) {
    let mut buffer = [0; 4096];
    loop {
        let mut events = watch_folder(&folder.path)
            .and_then(|inotify| inotify.into_event_stream(&mut buffer[..]))
            .inspect_err(|e| {
                if e.kind() != std::io::ErrorKind::NotFound {
                    warn!("no inotify on {} ({e}); it is read every {poll:?}", folder.path.display());
                }
            })
            .ok();
        publish(&mut folder, &out);
        let lost = loop {
            let changed = async {
                match &mut events {
                    Some(stream) => stream.next().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                open = changed => if !open { break true },
                () = tokio::time::sleep(poll) => {
                    // A folder made again has another inode: the watch has to be made again too.
                    publish(&mut folder, &out);
                    if events.is_none() { break false }
                    continue;
                }
            }
            tokio::time::sleep(GATHER).await;
            publish(&mut folder, &out);
            if !folder.path.exists() {
                break true;
            }
        };
        drop(events);
        if lost {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(poll.min(Duration::from_secs(1))) => {}
            }
        }
    }
}

fn publish(folder: &mut Folder, out: &watch::Sender<Option<PodSet>>) {
    let set = folder.scan();
    out.send_if_modified(|old| {
        let same = old.as_ref().is_some_and(|o| o.len() == set.len() && set.keys().all(|k| o.contains_key(k)));
        if !same {
            *old = Some(set);
        }
        !same
    });
}

fn watch_folder(path: &Path) -> std::io::Result<Inotify> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::CREATE
        | WatchMask::DELETE_SELF
        | WatchMask::ATTRIB;
    inotify.watches().add(path, mask)?;
    Ok(inotify)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: a, image: {image}}}]}}\n"
        )
    }

    #[test]
    fn a_wrong_file_disturbs_nobody() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.yaml"), manifest("a", "x")).unwrap();
        std::fs::write(dir.path().join("b.yaml"), manifest("b", "x")).unwrap();
        std::fs::write(dir.path().join(".hidden"), "{").unwrap();
        let mut folder = Folder::new(dir.path(), "n");
        assert_eq!(folder.scan().len(), 2);
        std::fs::write(dir.path().join("a.yaml"), "apiVersion: v1\nkind: Pod\nspec: 5\n").unwrap();
        assert_eq!(folder.scan().len(), 2);
        assert_eq!(folder.wrong(), 1);
        std::fs::write(dir.path().join("a.yaml"), manifest("a", "yy")).unwrap();
        let set = folder.scan();
        assert!(set.values().any(|p| pod::main_containers(p)[0].image.as_deref() == Some("yy")));
        std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
        assert_eq!(folder.scan().len(), 1);
    }

    #[test]
    fn an_unchanged_pod_stays_the_same_object() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, manifest("a", "x")).unwrap();
        let mut folder = Folder::new(dir.path(), "n");
        let first = folder.scan().into_values().next().unwrap();
        std::fs::write(&file, manifest("a", "x") + "\n\n").unwrap();
        assert!(Arc::ptr_eq(&first, &folder.scan().into_values().next().unwrap()));
        // A UID of the manifest's own stays the same over an edit.
        let own = |image: &str| manifest("a", image).replace("name: a}", "name: a, uid: fixed}");
        let mut image_of = |image: &str| {
            std::fs::write(&file, own(image)).unwrap();
            let pod = folder.scan().into_values().next().unwrap();
            pod::main_containers(&pod)[0].image.clone().unwrap()
        };
        assert_eq!([image_of("one"), image_of("second")], ["one", "second"]);
    }
}
