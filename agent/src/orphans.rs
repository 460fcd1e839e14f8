//! What a runtime that was killed left running within a pod that lives: a sandbox of which it knows nothing any more.
//!
//! containerd that dies in the middle of a creation can come back without the sandbox that its shim has made by then. CRI does not list it, so
//! nobody would ever end it. It is found by its cgroup within the pod's, and is ended only when the pod has another sandbox that is ready:
//! while a sandbox is being made, CRI does not list it either. Upstream has no counterpart; there such a sandbox stays until its pod ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracing::warn;

use crate::runtime::{PodRecord, SandboxState};
use crate::worker::NodeContext;

/// The IDs among `found` that the runtime does not know although the pod is whole.
fn lost(record: &PodRecord, found: &BTreeSet<String>) -> Vec<String> {
    let sandboxes = record.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    let known = sandboxes.chain(record.containers.iter().map(|container| container.id.as_str())).collect();
    let whole = record.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready);
    lost_among(whole, &known, found)
}

fn lost_among(whole: bool, known: &BTreeSet<&str>, found: &BTreeSet<String>) -> Vec<String> {
    found.iter().filter(|id| whole && !known.contains(id.as_str())).cloned().collect()
}

/// Ends what the runtime has lost of a pod.
pub async fn end(node: &Arc<NodeContext>, record: &PodRecord) {
    let (cgroups, uid) = (node.cgroups.clone(), record.uid.clone());
    let Ok(found) = tokio::task::spawn_blocking(move || cgroups.containers(&uid)).await else { return };
    if lost(record, &found).is_empty() {
        return;
    }
    // The record may be older than what was found.
    let Ok(record) = node.pleg.refresh(&record.uid).await else { return };
    for id in lost(&record, &found) {
        warn!(pod = record.uid, id, "ending a sandbox that the runtime does not know any more");
        let (cgroups, uid) = (node.cgroups.clone(), record.uid.clone());
        let work = tokio::task::spawn_blocking(move || {
            if let Err(error) = cgroups.remove_container(&uid, &id) {
                warn!(uid, id, "cannot end a lost sandbox: {error}");
            }
            for pid in shims(&id) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let _ = work.await;
    }
}

/// The shim of a container: nobody asks it to end when its runtime does not know it.
fn shims(id: &str) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    let ours = |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| is_shim_of(&line, id));
    pids.filter(ours).map(Pid::from_raw).collect()
}

fn is_shim_of(command_line: &[u8], id: &str) -> bool {
    let arguments: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    let program = arguments.first().and_then(|path| path.rsplit(|byte| *byte == b'/').next()).unwrap_or_default();
    program.starts_with(b"containerd-shim") && arguments.windows(2).any(|pair| pair == [b"-id", id.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_pod_has_lost_ones() {
        let found = BTreeSet::from(["s1".to_owned(), "s2".to_owned(), "c".to_owned()]);
        let known = BTreeSet::from(["s2", "c"]);
        assert_eq!(lost_among(true, &known, &found), ["s1"]);
        // One may be under way.
        assert!(lost_among(false, &known, &found).is_empty());
        assert!(lost_among(true, &BTreeSet::from(["s1", "s2", "c"]), &found).is_empty());
    }

    #[test]
    fn a_shim_is_known_by_its_program_and_id() {
        let line = b"/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0abc\0-address\0x\0";
        assert!(is_shim_of(line, "abc"));
        assert!(!is_shim_of(line, "ab"));
        assert!(!is_shim_of(b"/bin/sh\0-id\0abc\0", "abc"));
        assert!(!is_shim_of(b"", "abc"));
    }
}
