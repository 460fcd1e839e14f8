//! What all pods of the node may use together: the limits of `kubepods`.
//!
//! Upstream counterpart: `pkg/kubelet/cm/node_container_manager_linux.go`. The limit is capacity less reservations;
//! eviction thresholds are not taken off, so that evictions happen before the kernel kills.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Cgroups;
use super::resources::{PodResources, shares};
use crate::config::KubeletConfiguration;
use crate::events::Recorder;
use crate::node::facts::MachineFacts;
use crate::pod;

/// Entry of `enforceNodeAllocatable` that takes the reservations off.
pub const ENFORCE_PODS: &str = "pods";
/// Pause before limits that the kernel refused are tried again (upstream's): pods may use less by then.
const RETRY: Duration = Duration::from_secs(60);

/// The limits of all pods together. Without `pods` in `enforceNodeAllocatable` they are the whole machine, as
/// upstream: the kernel's default CPU weight would starve pods beside the system's services.
#[must_use]
pub fn limits(config: &KubeletConfiguration, facts: &MachineFacts, max_pids: Option<i64>) -> PodResources {
    let enforced = config.enforce_node_allocatable.iter().any(|entry| entry == ENFORCE_PODS);
    let reserved = |key: &str| -> i64 {
        [&config.system_reserved, &config.kube_reserved]
            .into_iter()
            .filter(|_| enforced)
            .filter_map(|map| map.get(key))
            .map(|text| pod::milli(&k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.clone())))
            .sum()
    };
    PodResources {
        cpu_shares: Some(shares(facts.cpus * 1000 - reserved("cpu"))),
        cpu_quota: None,
        memory: Some((facts.memory - reserved("memory") / 1000).max(0)).filter(|_| facts.memory > 0),
        pids: max_pids.map(|most| (most - reserved("pid") / 1000).max(0)),
    }
}

/// How many processes the machine can have.
#[must_use]
pub fn max_pids() -> Option<i64> {
    ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
        .min()
}

/// Sets the limits, and tries again as long as the kernel refuses them.
pub async fn enforce(cgroups: Cgroups, limits: PodResources, recorder: Arc<Recorder>, stop: CancellationToken) {
    if !cgroups.enabled() {
        return;
    }
    loop {
        match cgroups.limit_all(&limits) {
            Ok(()) => {
                info!(memory = limits.memory, cpu_shares = limits.cpu_shares, "limits of all pods set");
                recorder.node("Normal", "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods");
                return;
            }
            Err(error) => {
                warn!("cannot set the limits of all pods, trying again in {RETRY:?}: {error}");
                let text = format!("Failed to update Node Allocatable Limits {:?}: {error}", cgroups.all());
                recorder.node("Warning", "FailedNodeAllocatableEnforcement", &text);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Layout;
    use crate::config::kubelet::CgroupDriver;

    fn facts() -> MachineFacts {
        MachineFacts { cpus: 4, memory: 8 << 30, ..MachineFacts::default() }
    }

    fn reserving(enforce: &[&str]) -> KubeletConfiguration {
        serde_json::from_value(serde_json::json!({
            "systemReserved": {"cpu": "500m", "memory": "1Gi", "pid": "100"},
            "kubeReserved": {"cpu": "1500m", "memory": "1Gi"},
            "evictionHard": {"memory.available": "500Mi"},
            "enforceNodeAllocatable": enforce,
        }))
        .unwrap()
    }

    #[test]
    fn reservations_are_taken_off_and_eviction_thresholds_are_not() {
        let l = limits(&reserving(&[ENFORCE_PODS]), &facts(), Some(1000));
        assert_eq!((l.cpu_shares, l.memory, l.pids), (Some(2048), Some(6 << 30), Some(900)));
        assert_eq!(l.cpu_quota, None);
        let l = limits(&reserving(&[]), &facts(), None);
        assert_eq!((l.cpu_shares, l.memory, l.pids), (Some(4096), Some(8 << 30), None));
    }

    #[test]
    fn the_files_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let read = |path: &str| std::fs::read_to_string(dir.path().join(path)).unwrap();
        let l = limits(&reserving(&[ENFORCE_PODS]), &facts(), Some(1000));
        let mounts = ["cpu", "memory", "pids", "freezer"].map(|c| (c.to_owned(), dir.path().join(c)));
        for (_, mount) in &mounts {
            std::fs::create_dir_all(mount.join("lab")).unwrap();
        }
        let v1 = Cgroups::new(Layout::PerController(mounts.into()), "/lab", CgroupDriver::Cgroupfs, true);
        v1.limit_all(&l).unwrap();
        assert_eq!(read("memory/lab/kubepods/memory.limit_in_bytes"), (6u64 << 30).to_string());
        assert_eq!(read("cpu/lab/kubepods/cpu.shares"), "2048");
        assert_eq!(read("pids/lab/kubepods/pids.max"), "900");
        assert!(!dir.path().join("freezer/lab/kubepods").exists());
        std::fs::create_dir(dir.path().join("v2")).unwrap();
        let v2 = Cgroups::new(Layout::Unified(dir.path().join("v2")), "", CgroupDriver::Systemd, true);
        v2.limit_all(&l).unwrap();
        assert_eq!(read("v2/kubepods.slice/memory.max"), (6u64 << 30).to_string());
        assert_eq!(read("v2/kubepods.slice/pids.max"), "900");
        assert!(dir.path().join("v2/kubepods.slice/cpu.weight").exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("memory");
        // A directory in place of the file: every write fails until it is gone.
        let file = mount.join("kubepods/memory.limit_in_bytes");
        std::fs::create_dir_all(&file).unwrap();
        let layout = Layout::PerController(vec![("memory".into(), mount)]);
        let cgroups = Cgroups::new(layout, "", CgroupDriver::Cgroupfs, true);
        let (recorder, mut queue) = Recorder::new("n1", crate::flight::Flight::idle());
        let stop = CancellationToken::new();
        let task = tokio::spawn(enforce(cgroups, limits(&reserving(&[ENFORCE_PODS]), &facts(), None), recorder, stop));
        let first = format!("{:?}", queue.recv().await.unwrap());
        assert!(first.contains("FailedNodeAllocatableEnforcement") && first.contains("/kubepods"), "{first}");
        std::fs::remove_dir(&file).unwrap();
        let second = format!("{:?}", queue.recv().await.unwrap());
        assert!(second.contains("NodeAllocatableEnforced"), "{second}");
        task.await.unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), (6u64 << 30).to_string());
    }
}
