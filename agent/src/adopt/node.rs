//! What of a node, not of a pod, stands in the way of taking it over: a kubelet that still runs, another cgroup driver, state of managers that this
//! agent does not have.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::cgroup::{Cgroups, Layout};
use crate::config::Config;
use crate::config::kubelet::CgroupDriver;
use crate::runtime::PodRecord;

/// State files of kubelet's managers: file, and what the agent has not.
const STATES: [(&str, &str); 3] = [
    ("cpu_manager_state", "exclusive processors (cpuManagerPolicy static)"),
    ("memory_manager_state", "reserved memory of NUMA nodes (memoryManagerPolicy Static)"),
    ("dra_manager_state", "devices of resource claims"),
];
/// Devices that plugins have given to containers.
const DEVICES: &str = "device-plugins/kubelet_internal_checkpoint";

/// Everything that was found, one sentence each with what to do.
#[must_use]
pub fn findings(config: &Config, records: &[Arc<PodRecord>], processes: &Path) -> Vec<String> {
    let mut out: Vec<String> = kubelets(processes)
        .into_iter()
        .map(|pid| {
            format!(
                "a kubelet runs (process {pid}): two agents on one node end each other's pods. Before the agent starts: systemctl disable --now kubelet"
            )
        })
        .collect();
    if config.node.kubeconfig.is_none() {
        out.push(
            "no kubeconfig is configured: an agent that is started like this ends every pod that no manifest names"
                .into(),
        );
    }
    out.extend(driver(config, records));
    out.extend(folders(config, records));
    out.extend(managers(&config.node.root_dir));
    out.extend(config.unused.iter().map(|field| format!("{field} is set, and this agent does not do it yet")));
    out
}

fn kubelets(processes: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(processes).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter(|entry| std::fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == "kubelet"))
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// Pods whose cgroups another driver has named.
fn driver(config: &Config, records: &[Arc<PodRecord>]) -> Option<String> {
    let kubelet = &config.kubelet;
    let pods = |driver| -> BTreeSet<String> {
        let cgroups = Cgroups::new(Layout::detect(), &kubelet.cgroup_root, driver, kubelet.cgroups_per_qos);
        cgroups.pods().into_iter().collect()
    };
    let (other, name) = match kubelet.cgroup_driver {
        CgroupDriver::Cgroupfs => (CgroupDriver::Systemd, "systemd"),
        CgroupDriver::Systemd => (CgroupDriver::Cgroupfs, "cgroupfs"),
    };
    let (own, other) = (pods(kubelet.cgroup_driver), pods(other));
    let live = records.iter().filter(|record| record.any_live());
    let count = live.filter(|record| !own.contains(&record.uid) && other.contains(&record.uid)).count();
    (count > 0).then(|| {
        format!(
            "cgroups of {count} pods were named by the driver {name}: set cgroupDriver: {name}, or what is started again of these pods lies outside their \
             cgroups (the container runtime must use the same driver)"
        )
    })
}

/// Pods whose folders or logs are elsewhere.
fn folders(config: &Config, records: &[Arc<PodRecord>]) -> Vec<String> {
    let root = config.node.root_dir.join("pods");
    let live = || records.iter().filter(|record| record.any_live());
    let missing = live().filter(|record| !root.join(&record.uid).is_dir()).count();
    let mut out = Vec::new();
    if missing > 0 {
        let root = root.display();
        out.push(format!("{missing} pods have no folder in {root}: set rootDir to kubelet's --root-dir, or their volumes are not found"));
    }
    let logs = &config.kubelet.pod_logs_dir;
    let elsewhere = live()
        .flat_map(|record| &record.containers)
        .filter(|c| !c.log_path.is_empty() && !Path::new(&c.log_path).starts_with(logs))
        .count();
    if elsewhere > 0 {
        let logs = logs.display();
        out.push(format!("{elsewhere} containers log outside {logs}: set podLogsDir as the kubelet has it"));
    }
    out
}

fn managers(root: &Path) -> Vec<String> {
    let read = |file: &str| -> Option<Value> { serde_json::from_slice(&std::fs::read(root.join(file)).ok()?).ok() };
    let used = |value: &Value| {
        ["entries", "claimInfoStateList"].iter().any(|key| match &value[key] {
            Value::Object(map) => !map.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => false,
        })
    };
    let told = |file: &str, what: &str| {
        format!(
            "{} gives containers {what}: they keep it while they run, and nothing is given again",
            root.join(file).display()
        )
    };
    let mut out: Vec<String> = STATES
        .iter()
        .filter(|(file, _)| read(file).is_some_and(|state| used(&state)))
        .map(|(file, what)| told(file, what))
        .collect();
    let devices = read(DEVICES)
        .is_some_and(|state| state["Data"]["PodDeviceEntries"].as_array().is_some_and(|entries| !entries.is_empty()));
    if devices {
        out.push(told(DEVICES, "devices of plugins"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_kubelet_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, comm) in [("12", "kubelet\n"), ("7", "kubelet-helper\n"), ("3", "kubelet\n"), ("self", "kubelet\n")] {
            std::fs::create_dir(folder.path().join(pid)).unwrap();
            std::fs::write(folder.path().join(pid).join("comm"), comm).unwrap();
        }
        assert_eq!(kubelets(folder.path()), [3, 12]);
    }

    /// Files in the forms that kubelet writes.
    #[test]
    fn state_of_managers_is_told_only_where_something_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("cpu_manager_state", r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
        put("memory_manager_state", r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#);
        put(DEVICES, r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":2562205715}"#);
        assert_eq!(managers(folder.path()), Vec::<String>::new());
        put(
            "cpu_manager_state",
            r#"{"policyName":"static","defaultCpuSet":"0,3","entries":{"0ff2":{"main":"1-2"}},"checksum":1}"#,
        );
        put(
            DEVICES,
            r#"{"Data":{"PodDeviceEntries":[{"PodUID":"0ff2","ContainerName":"main","ResourceName":"x/y","DeviceIDs":{"-1":["d"]},"AllocResp":""}],"RegisteredDevices":{"x/y":["d"]}},"Checksum":1}"#,
        );
        let told = managers(folder.path());
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("cpu_manager_state gives containers exclusive processors"), "{told:?}");
        assert!(told[1].contains("devices of plugins"), "{told:?}");
    }
}
