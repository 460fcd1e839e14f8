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
use kube_common::config::{self, ConfigError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{PodSet, Teller, keep_same, manifest, publish, refuse, seen};
use crate::adopt::statics::{self, Predecessors};
use crate::pod;

/// How long a burst of changes is gathered.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Known {
    stamp: Option<(SystemTime, u64)>,
    pods: Vec<Arc<Pod>>,
    /// Why its present content is not used.
    wrong: Option<String>,
}

/// The state of the folder.
pub struct Folder {
    path: PathBuf,
    node: String,
    files: BTreeMap<PathBuf, Known>,
    teller: Option<Teller>,
    predecessors: Predecessors,
}

impl Folder {
    /// A folder (or a single file) that has not been read yet.
    #[must_use]
    pub fn new(path: &Path, node: &str) -> Self {
        Self {
            path: path.to_owned(),
            node: node.to_owned(),
            files: BTreeMap::new(),
            teller: None,
            predecessors: Predecessors::default(),
        }
    }

    /// Tells of wrong files.
    #[must_use]
    pub fn telling(mut self, teller: Teller) -> Self {
        self.teller = Some(teller);
        self
    }

    /// Takes over static pods that another agent has started.
    #[must_use]
    pub fn inheriting(mut self, predecessors: Predecessors) -> Self {
        self.predecessors = predecessors;
        self
    }

    /// Reads what has changed; returns the pods of all files, or nothing when that cannot be known now.
    pub fn scan(&mut self) -> Option<PodSet> {
        let listed = match self.list() {
            Ok(listed) => listed,
            Err(error) => {
                warn!("{} cannot be listed ({error}); its pods stay as they are", self.path.display());
                return None;
            }
        };
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
            let outcome = Self::read(&path, &self.node, known, &mut self.predecessors);
            // One that could not be read is tried again with the next look.
            known.stamp = (!matches!(outcome, Err(ConfigError::Read { .. }))).then_some(stamp);
            let outcome = outcome.map_err(|error| error.to_string());
            let before = std::mem::replace(&mut known.wrong, outcome.err());
            if let Some(message) = known.wrong.as_ref().filter(|message| before.as_ref() != Some(message)) {
                refuse(self.teller.as_ref(), !known.pods.is_empty(), message);
            }
        }
        if let Some(teller) = &self.teller {
            teller.wrong(self.wrong());
        }
        self.predecessors.settle();
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
        Some(out)
    }

    /// The files there are. One that has just gone is not among them; an error that may pass is no reason to take its pods for gone.
    fn list(&self) -> std::io::Result<Vec<(PathBuf, (SystemTime, u64))>> {
        let present = |outcome: std::io::Result<std::fs::Metadata>| match outcome {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let stamp = |path: &Path| {
            let meta = present(std::fs::metadata(path))?.filter(std::fs::Metadata::is_file);
            std::io::Result::Ok(meta.map(|m| (m.modified().unwrap_or(SystemTime::UNIX_EPOCH), m.len())))
        };
        let Some(meta) = present(std::fs::metadata(&self.path))? else { return Ok(Vec::new()) };
        if meta.is_file() {
            return Ok(stamp(&self.path)?.map(|s| (self.path.clone(), s)).into_iter().collect());
        }
        let mut out = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                out.extend(stamp(&entry.path())?.map(|stamp| (entry.path(), stamp)));
            }
        }
        out.sort();
        Ok(out)
    }

    /// Takes a file's pods over; the error says why it cannot be used.
    fn read(path: &Path, node: &str, known: &mut Known, predecessors: &mut Predecessors) -> Result<(), ConfigError> {
        // Before the content: a change in between counts as one.
        let changed = statics::changed(path);
        let text = config::read_text(path)?;
        let mut found = manifest::parse(path, &text, node, &seen())?;
        for text in found.unknown {
            error!("{text} (ignored)");
        }
        for pod in &mut found.pods {
            if predecessors.claim(pod, changed) {
                info!(file = %path.display(), pod = %pod::display(pod), "this pod runs already and keeps its UID");
            }
        }
        known.pods = found.pods.into_iter().map(|p| keep_same(&known.pods, p)).collect();
        for pod in &known.pods {
            info!(file = %path.display(), pod = %pod::display(pod), "static pod");
        }
        Ok(())
    }

    /// Files that cannot be used, and why.
    pub fn mistakes(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files.iter().filter_map(|(path, known)| Some((path.as_path(), known.wrong.as_deref()?)))
    }

    /// How many files are wrong.
    #[must_use]
    pub fn wrong(&self) -> usize {
        self.mistakes().count()
    }
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
        if let Some(set) = folder.scan() {
            publish(set, &out);
        }
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
                                if let Some(set) = folder.scan() {
            publish(set, &out);
            }
                                if events.is_none() { break false }
                                continue;
                            }
                        }
            tokio::time::sleep(GATHER).await;
            if let Some(set) = folder.scan() {
                publish(set, &out);
            }
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
        assert_eq!(folder.scan().unwrap().len(), 2);
        std::fs::write(dir.path().join("a.yaml"), "apiVersion: v1\nkind: Pod\nspec: 5\n").unwrap();
        assert_eq!(folder.scan().unwrap().len(), 2);
        assert_eq!(folder.wrong(), 1);
        std::fs::write(dir.path().join("a.yaml"), manifest("a", "yy")).unwrap();
        let set = folder.scan().unwrap();
        assert!(set.values().any(|p| pod::main_containers(p)[0].image.as_deref() == Some("yy")));
        std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
        assert_eq!(folder.scan().unwrap().len(), 1);
    }

    #[test]
    fn an_unchanged_pod_stays_the_same_object() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, manifest("a", "x")).unwrap();
        let mut folder = Folder::new(dir.path(), "n");
        let first = folder.scan().unwrap().into_values().next().unwrap();
        std::fs::write(&file, manifest("a", "x") + "\n\n").unwrap();
        assert!(Arc::ptr_eq(&first, &folder.scan().unwrap().into_values().next().unwrap()));
        // A UID of the manifest's own stays the same over an edit.
        let own = |image: &str| manifest("a", image).replace("name: a}", "name: a, uid: fixed}");
        let mut image_of = |image: &str| {
            std::fs::write(&file, own(image)).unwrap();
            let pod = folder.scan().unwrap().into_values().next().unwrap();
            pod::main_containers(&pod)[0].image.clone().unwrap()
        };
        assert_eq!([image_of("one"), image_of("second")], ["one", "second"]);
    }
}
