//! The runtime's events by CRI: containerd 1.7 has `GetContainerEvents`, 1.6 has not.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;

use super::{ready, shell};

const CONFIG: &str = "/etc/containerd/config.toml";
/// Where containerd's tasks are, with the containers' files.
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// How many ends of pods are looked at, until one falls between two full lists of the runtime.
const TRIES: u32 = 6;

/// A sample of the agent's metrics, 0 while it is not there.
fn metric(lab: &Lab, node: &str, sample: &str) -> Result<u64> {
    let text = lab.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")])?;
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    Ok(line.map_or(Ok(0.0), str::parse::<f64>)? as u64)
}

fn open(lab: &Lab, node: &str, source: &str) -> Result<bool> {
    Ok(metric(lab, node, &format!("kubelet_runtime_event_stream_open{{source=\"{source}\"}}"))? == 1)
}

fn stopped(lab: &Lab, node: &str) -> Result<u64> {
    metric(lab, node, "kubelet_runtime_events_total{source=\"cri\",event=\"stopped\"}")
}

/// Runs a pod that ends with 7; waits until its status says so.
fn end_of_a_pod(space: &Space<'_>, node: &str, name: &str) -> Result<()> {
    let manifest = manifests::shell(name, "Never", "exit 7");
    space.apply(&manifest.replace("spec:\n", &format!("spec:\n  nodeName: {node}\n")))?;
    has_ended(space, name)
}

/// Waits until a pod's status tells its end with 7.
fn has_ended(space: &Space<'_>, name: &str) -> Result<()> {
    let ended = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    space.lab.until(&format!("{name} has ended"), 240, || Ok(space.kubectl(&["get", "pod", name, "-o", ended])? == "7"))
}

/// On containerd 1.7 the agent reads CRI's events beside containerd's own; 1.6 has only these.
pub fn events(lab: &Lab) -> Result<()> {
    let space = lab.space("cri-events")?;
    // The stream of CRI counts as open from its first event on.
    end_of_a_pod(&space, "node-2", "first")?;
    end_of_a_pod(&space, "node-1", "other")?;
    for node in super::NODES {
        // From its first event on, too, and pods are only just starting.
        lab.until(&format!("{node} reads containerd's events"), 180, || open(lab, node, "containerd"))?;
    }
    ensure!(!open(lab, "node-1", "cri")?, "containerd 1.6 has no events by CRI");
    lab.until("node-2 reads events by CRI", 60, || open(lab, "node-2", "cri"))?;
    // The first pod may have ended before the stream was there.
    end_of_a_pod(&space, "node-2", "second")?;
    lab.until("an end is told by CRI", 60, || Ok(stopped(lab, "node-2")? > 0))
}

/// With containerd's own service of events off, the end of a pod is in its status without a full list of the runtime in between.
pub fn events_alone(lab: &Lab) -> Result<()> {
    let space = lab.space("cri-events-alone")?;
    let without = format!(
        "sed -i '1a disabled_plugins = [\"io.containerd.grpc.v1.events\"]' {CONFIG} && systemctl restart containerd"
    );
    shell(lab, "node-2", &without)?;
    let outcome = by_cri_alone(lab, &space);
    shell(lab, "node-2", &format!("sed -i /^disabled_plugins/d {CONFIG} && systemctl restart containerd"))?;
    outcome?;
    // It too counts as open from its first event on: pods that go have some.
    space.kubectl(&["delete", "pods", "--all", "--wait=false"])?;
    lab.until("containerd's own events are back", 120, || open(lab, "node-2", "containerd"))?;
    lab.until("node-2 is Ready", 120, || Ok(ready(lab, "node-2")? == "True"))
}

fn by_cri_alone(lab: &Lab, space: &Space<'_>) -> Result<()> {
    let lists = || metric(lab, "node-2", "kubelet_pleg_relist_duration_seconds_count");
    for number in 0..TRIES {
        // The pod runs before the lists are counted, so that only its end is between the two looks.
        let name = format!("third-{number}");
        let manifest = manifests::shell(&name, "Never", "until [ -e /tmp/end ]; do sleep 0.1; done; exit 7");
        space.apply(&manifest.replace("spec:\n", "spec:\n  nodeName: node-2\n"))?;
        space.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"])?;
        lab.until("CRI's events are the only ones", 60, || {
            Ok(open(lab, "node-2", "cri")? && !open(lab, "node-2", "containerd")?)
        })?;
        let id = space.kubectl(&["get", "pod", &name, "-o", "jsonpath={.status.containerStatuses[0].containerID}"])?;
        let end = format!("{TASKS}/{}/rootfs/tmp/end", id.trim_start_matches("containerd://"));
        let (list, stopped_before) = (lists()?, stopped(lab, "node-2")?);
        // In the first minute of a stream everything is listed each five seconds: time enough for an end, if it comes right after a list.
        lab.until("a list has just been made", 70, || Ok(lists()? != list))?;
        let lists_before = lists()?;
        lab.node("node-2", &["touch", &end])?;
        has_ended(space, &name)?;
        let (lists_after, stopped_after) = (lists()?, stopped(lab, "node-2")?);
        ensure!(stopped_after > stopped_before, "{name} has ended, and CRI told no end");
        if lists_after == lists_before {
            println!("\n  the end of {name} was seen by CRI's event alone");
            return Ok(());
        }
    }
    None.with_context(|| format!("a full list of the runtime was made around the end of each of {TRIES} pods"))
}
