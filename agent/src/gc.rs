//! Collection of dead containers, dead sandboxes, and what ended pods left on disk.
//!
//! One dead instance of each container is kept for `logs --previous`; nothing of a pod that is gone. Upstream
//! counterpart: `kuberuntime_gc.go`.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::orphans;
use crate::runtime::{ContainerState, PodRecord, SandboxState};
use crate::worker::{NodeContext, remove_container};

/// Dead instances of one container that are kept.
const KEEP_DEAD: usize = 1;

/// What to remove of a pod that lives: container and sandbox identifiers.
#[must_use]
pub fn plan(record: &PodRecord) -> (Vec<String>, Vec<String>) {
    let mut containers = Vec::new();
    let names: BTreeSet<&str> = record.containers.iter().map(|c| c.name.as_str()).collect();
    for name in names {
        // The newest comes first; one that was made and not started yet is about to run.
        let instances = record.containers.iter().filter(|c| c.name == name).enumerate();
        let dead = instances.filter(|(place, c)| match c.state {
            ContainerState::Exited => true,
            ContainerState::Created => *place > 0,
            ContainerState::Running | ContainerState::Unknown => false,
        });
        containers.extend(dead.skip(KEEP_DEAD).map(|(_, c)| c.id.clone()));
    }
    let sandboxes = record
        .sandboxes
        .iter()
        .skip(1)
        .filter(|s| s.state == SandboxState::NotReady)
        .filter(|s| record.containers.iter().all(|c| c.sandbox_id != s.id || containers.contains(&c.id)))
        .map(|s| s.id.clone())
        .collect();
    (containers, sandboxes)
}

/// The pods that have a worker.
pub type Known = Arc<Mutex<BTreeSet<String>>>;

/// Collects the dead of living pods.
pub async fn containers(node: &Arc<NodeContext>, known: &Known) {
    for record in node.pleg.all().into_iter().filter(|r| known.lock().contains(&r.uid)) {
        let (containers, sandboxes) = plan(&record);
        for container in record.containers.iter().filter(|c| containers.contains(&c.id)) {
            remove_container(node, &record, container).await;
        }
        for id in &sandboxes {
            if let Err(error) = node.runtime.remove_sandbox(id).await
                && !error.is_not_found()
            {
                warn!(sandbox = id, "cannot remove a dead sandbox: {error}");
            }
        }
        if !containers.is_empty() || !sandboxes.is_empty() {
            let _ = node.pleg.refresh(&record.uid).await;
        }
        orphans::end(node, &record).await;
    }
}

/// Takes down volumes, cgroups and logs of pods nobody knows any more. Only after every source has spoken.
///
/// What is there is listed before it is asked who lives: a pod that starts meanwhile is in neither list.
pub async fn leftovers(node: &Arc<NodeContext>, known: &Known) {
    let on_disk = node.materials.on_disk().await;
    let cgroups = node.cgroups.clone();
    let in_cgroups = tokio::task::spawn_blocking(move || cgroups.pods()).await.unwrap_or_default();
    let logs: Vec<_> = std::fs::read_dir(&node.settings.logs_root).into_iter().flatten().flatten().collect();
    let mut live = known.lock().clone();
    live.extend(node.pleg.all().iter().map(|r| r.uid.clone()));
    for uid in on_disk.into_iter().filter(|uid| !live.contains(uid)) {
        match node.materials.teardown(&uid, true).await {
            Ok(()) => info!(uid, "removed what an ended pod left on disk"),
            Err(error) => warn!(uid, "cannot remove what an ended pod left on disk: {error}"),
        }
    }
    let cgroups = node.cgroups.clone();
    let ended: Vec<String> = in_cgroups.into_iter().filter(|uid| !live.contains(uid)).collect();
    let removal = tokio::task::spawn_blocking(move || {
        for uid in ended {
            if let Err(error) = cgroups.remove(&uid) {
                warn!(uid, "cannot remove an ended pod's cgroup: {error}");
            }
        }
    });
    let _ = removal.await;
    for entry in logs {
        let name = entry.file_name().to_string_lossy().into_owned();
        // <namespace>_<name>_<uid>
        let Some(uid) = name.splitn(3, '_').nth(2) else { continue };
        if !live.contains(uid) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    dangling_links(node);
}

fn dangling_links(node: &NodeContext) {
    let Ok(entries) = std::fs::read_dir(&node.settings.links_root) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let ours = std::fs::read_link(&path).is_ok_and(|to| to.starts_with(&node.settings.logs_root));
        if ours && !path.exists() {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{ContainerRecord, Sandbox};

    #[test]
    fn one_dead_instance_is_kept() {
        let container = |id: &str, state, sandbox: &str| ContainerRecord {
            id: id.into(),
            name: "m".into(),
            sandbox_id: sandbox.into(),
            state,
            ..ContainerRecord::default()
        };
        let sandbox = |id: &str, state| Sandbox {
            id: id.into(),
            attempt: 0,
            state,
            created_at: 0,
            ips: vec![],
            host_network: false,
        };
        let record = PodRecord {
            sandboxes: vec![sandbox("s2", SandboxState::Ready), sandbox("s1", SandboxState::NotReady)],
            containers: vec![
                container("c4", ContainerState::Running, "s2"),
                container("c3", ContainerState::Exited, "s2"),
                container("c2", ContainerState::Exited, "s2"),
                container("c1", ContainerState::Exited, "s1"),
            ],
            ..PodRecord::default()
        };
        assert_eq!(plan(&record), (vec!["c2".into(), "c1".into()], vec!["s1".into()]));
        // A start may take longer than the pause between two collections: what is about to run is not the dead instance that is kept,
        // and the one before it is what `lastState` tells.
        let starting = PodRecord {
            containers: vec![
                container("c3", ContainerState::Created, "s2"),
                container("c2", ContainerState::Exited, "s2"),
                container("c1", ContainerState::Exited, "s2"),
            ],
            ..record
        };
        assert_eq!(plan(&starting).0, ["c1"]);
    }
}
