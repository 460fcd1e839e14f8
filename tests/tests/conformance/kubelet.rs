//! What the agent does for containers: logs, ends, `/etc/hosts`, read-only roots.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{first, idle, pod, pod_of, shell};
use serde_json::json;

tests![logs, failing_has_a_reason, failing_can_be_deleted, read_only_root, host_aliases, managed_hosts];

/// The first line of a file that the agent manages.
const MANAGED: &str = "# Kubernetes-managed hosts file.\n";

// [sig-node] Kubelet when scheduling a busybox command in a pod should print the output to logs [NodeConformance] [Conformance]
fn logs(lab: &Lab) -> Result<()> {
    let space = lab.quarter("busybox-logs")?;
    let said = space.says(&pod("talks", shell("echo 'Hello World'; echo 'Hello errors' >&2")))?;
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    ensure!(lines == ["Hello World", "Hello errors"], "{said}");
    Ok(())
}

/// A pod whose command always fails, restarted for ever.
fn failing<'a>(lab: &'a Lab, name: &str) -> Result<Space<'a>> {
    let space = lab.quarter(name)?;
    let mut pod = pod("failing", json!({ "command": ["/bin/false"] }));
    pod["spec"]["restartPolicy"] = json!("Always");
    space.make("pods", &pod)?;
    Ok(space)
}

// [sig-node] Kubelet when scheduling a busybox command that always fails in a pod should have an terminated reason [NodeConformance] [Conformance]
fn failing_has_a_reason(lab: &Lab) -> Result<()> {
    let space = failing(lab, "busybox-reason")?;
    let pod = space.pod_until("failing", "has ended", |pod| {
        let status = first(pod);
        status["state"]["terminated"].is_object() || status["lastState"]["terminated"].is_object()
    })?;
    ensure!(pod["status"]["containerStatuses"].as_array().is_some_and(|all| all.len() == 1), "{}", pod["status"]);
    let states = [&first(&pod)["state"]["terminated"], &first(&pod)["lastState"]["terminated"]];
    let ended = states.into_iter().find(|state| state.is_object()).context("no end")?;
    ensure!(ended["reason"] == "Error" && ended["exitCode"] == 1, "{ended}");
    Ok(())
}

// [sig-node] Kubelet when scheduling a busybox command that always fails in a pod should be possible to delete [NodeConformance] [Conformance]
fn failing_can_be_deleted(lab: &Lab) -> Result<()> {
    let space = failing(lab, "busybox-delete")?;
    space.pod_until("failing", "has failed", |pod| first(pod)["lastState"]["terminated"].is_object())?;
    space.remove("pods/failing")?;
    space.gone("failing")
}

// [sig-node] Kubelet when scheduling a read only busybox container should not write to root filesystem [LinuxOnly] [NodeConformance] [Conformance]
fn read_only_root(lab: &Lab) -> Result<()> {
    let space = lab.quarter("busybox-root")?;
    let mut container = shell("echo test > /file && echo written; cat /file; true");
    container["securityContext"] = json!({ "readOnlyRootFilesystem": true });
    let said = space.says(&pod("locked", container))?;
    ensure!(said.contains("Read-only file system") && !said.contains("written"), "{said}");
    ensure!(said.contains("No such file or directory"), "{said}");
    Ok(())
}

// [sig-node] Kubelet when scheduling an agnhost Pod with hostAliases should write entries to /etc/hosts [NodeConformance] [Conformance]
fn host_aliases(lab: &Lab) -> Result<()> {
    let space = lab.quarter("host-aliases")?;
    let mut pod = pod("aliases", json!({ "command": ["cat", "/etc/hosts"] }));
    pod["spec"]["hostAliases"] = json!([{ "ip": "123.45.67.89", "hostnames": ["foo", "bar"] }]);
    let said = space.says(&pod)?;
    ensure!(said.starts_with(MANAGED), "{said}");
    ensure!(said.lines().any(|line| line == "123.45.67.89\tfoo\tbar"), "{said}");
    Ok(())
}

// [sig-node] KubeletManagedEtcHosts should test kubelet managed /etc/hosts file [NodeConformance] [Conformance]
fn managed_hosts(lab: &Lab) -> Result<()> {
    let space = lab.quarter("managed-hosts")?;
    let mut own = idle();
    own["volumeMounts"] = json!([{ "name": "hosts", "mountPath": "/etc/hosts" }]);
    let mut pod = pod_of("pod-network", json!([idle(), idle(), own]));
    pod["spec"]["volumes"] = json!([{ "name": "hosts", "hostPath": { "path": "/etc/hosts", "type": "File" } }]);
    space.started(&pod)?;
    let mut host = pod_of("host-network", json!([idle(), idle()]));
    host["spec"]["hostNetwork"] = json!(true);
    space.started(&host)?;
    let read = |pod: &str, container: &str| lab.api()?.exec(&space.name, pod, container, &["cat", "/etc/hosts"]);
    for container in ["main", "main-1"] {
        let hosts = read("pod-network", container)?;
        ensure!(hosts.starts_with(MANAGED), "{container}: {hosts}");
    }
    // The container's own mount stays: what it sees is the node's file.
    let nodes = lab.node("node-1", &["cat", "/etc/hosts"])?;
    let hosts = read("pod-network", "main-2")?;
    ensure!(hosts == nodes && !hosts.contains(MANAGED), "{hosts}");
    for container in ["main", "main-1"] {
        let hosts = read("host-network", container)?;
        ensure!(!hosts.contains(MANAGED) && hosts.contains(nodes.trim()), "{container}: {hosts}");
    }
    Ok(())
}
