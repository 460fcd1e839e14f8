//! Reboots, power cuts, frozen machines.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use serde_json::Value;

use super::{NODES, pinned, pod, ready, rolled_out, servers_on_both, service_answers, shell};

/// How long a guest may take from its firmware to Ready, translated, on two cores that others use too.
const BACK_SECONDS: u64 = 420;
/// How long a node is frozen.
const FROZEN: Duration = Duration::from_secs(120);

/// Which boot of a machine this is.
fn boot(lab: &Lab, machine: &str) -> Result<String> {
    shell(lab, machine, "cat /proc/sys/kernel/random/boot_id")
}

/// Addresses that are handed out on a node, and those of the pods that the API shows on it.
fn addresses(lab: &Lab, node: &str) -> Result<(Vec<String>, Vec<String>)> {
    let files = "cd /var/lib/cni/networks/* && ls | grep '^[0-9]' || true";
    let mut held: Vec<String> = shell(lab, node, files)?.lines().map(ToOwned::to_owned).collect();
    let list = lab.json(&["get", "pods", "-A", "--field-selector", &format!("spec.nodeName={node}")])?;
    let mut shown: Vec<String> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|pod| pod["spec"]["hostNetwork"] != true)
        .filter_map(|pod| pod["status"]["podIP"].as_str().map(ToOwned::to_owned))
        .collect();
    held.sort();
    shown.sort();
    Ok((held, shown))
}

fn no_leak(lab: &Lab, node: &str) -> Result<()> {
    lab.until(&format!("{node} holds the addresses of its pods and no other"), 120, || {
        let (held, shown) = addresses(lab, node)?;
        ensure!(held == shown, "held: {held:?}; shown: {shown:?}");
        Ok(true)
    })
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default()
}

/// Waits until a pod runs again after its machine went: started once more, and ready.
fn back(lab: &Lab, space: &Space<'_>, app: &str, before: &Value) -> Result<()> {
    lab.until(&format!("{app} is back"), BACK_SECONDS, || {
        let now = pod(space, app)?;
        let ready = now["status"]["containerStatuses"][0]["ready"] == true;
        Ok(now["metadata"]["uid"] == before["metadata"]["uid"] && restarts(&now) > restarts(before) && ready)
    })
}

/// `systemctl reboot` of both nodes: the same pods come back and nothing of the boot before is left.
pub fn reboot(lab: &Lab) -> Result<()> {
    let space = lab.space("reboot")?;
    servers_on_both(&space)?;
    let mut before = Vec::new();
    for node in NODES {
        let app = format!("web-{node}");
        rolled_out(&space, &app)?;
        before.push((node, app.clone(), pod(&space, &app)?, boot(lab, node)?));
    }
    // Both at once: each guest has a processor, and waits for the other's would only add up.
    let begun = Instant::now();
    for node in NODES {
        shell(lab, node, "systemd-run --quiet --on-active=1 --timer-property=AccuracySec=100ms systemctl reboot")?;
    }
    for (node, _, _, old_boot) in &before {
        lab.until(&format!("{node} has booted"), BACK_SECONDS, || Ok(boot(lab, node)? != *old_boot))?;
        println!("\n  {node}: answers {:.1} s after the order to reboot", begun.elapsed().as_secs_f64());
    }
    for (node, app, pod, _) in &before {
        back(lab, &space, app, pod)?;
        println!("\n  {node}: its pod is ready after {:.1} s", begun.elapsed().as_secs_f64());
    }
    for (node, app, pod, _) in &before {
        lab.until(&format!("{node} is Ready"), 60, || Ok(ready(lab, node)? == "True"))?;
        no_leak(lab, node)?;
        service_answers(&space, node, pod, app)?;
    }
    Ok(())
}

/// QEMU of the control plane and of a node is killed while objects are written: every acknowledged one is there, and pods come back.
pub fn power_cut(lab: &Lab) -> Result<()> {
    let space = lab.space("power")?;
    space.apply(&pinned("web", "node-1"))?;
    rolled_out(&space, "web")?;
    let before = pod(&space, "web")?;
    let mut written = Vec::new();
    let end = Instant::now() + Duration::from_secs(6);
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        let name = format!("mark-{number}");
        space.kubectl(&["create", "configmap", &name, &format!("--from-literal=number={number}")])?;
        written.push(name);
    }
    for machine in ["control-plane", "node-1"] {
        lab.lab(&["stop", machine])?;
    }
    let begun = Instant::now();
    for machine in ["control-plane", "node-1"] {
        lab.lab(&["start", machine])?;
    }
    lab.until("the API server answers", BACK_SECONDS, || {
        lab.kubectl(&["get", "--raw", "/readyz"]).map(|said| said == "ok")
    })?;
    let list = space.kubectl(&["get", "configmaps", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let found: Vec<&str> = list.split_whitespace().collect();
    let lost: Vec<&String> = written.iter().filter(|name| !found.contains(&name.as_str())).collect();
    ensure!(lost.is_empty(), "of {} acknowledged writes these are lost: {lost:?}", written.len());
    back(lab, &space, "web", &before)?;
    println!(
        "\n  {} writes kept; the pod is ready {:.1} s after the power came back",
        written.len(),
        begun.elapsed().as_secs_f64()
    );
    let check = "journalctl -q -b --no-pager -g 'EXT4-fs error' || true";
    ensure!(shell(lab, "control-plane", check)?.trim().is_empty(), "the disk is damaged");
    no_leak(lab, "node-1")
}

/// A node that is frozen for two minutes: NotReady, its pods move, and when it goes on it is Ready and nothing of them is left.
pub fn frozen(lab: &Lab) -> Result<()> {
    let space = lab.space("frozen")?;
    let servers = manifests::servers("web", 2, &["--http=8080"]);
    let spread = "      nodeSelector: {kubernetes.io/hostname: node-2}\n      containers:";
    // Both begin on the node that will freeze and may then go anywhere.
    space.apply(&servers.replace("      containers:", spread))?;
    rolled_out(&space, "web")?;
    let before = space.pods("app=web")?;
    ensure!(before.len() == 2 && before.iter().all(|pod| pod["spec"]["nodeName"] == "node-2"));
    lab.lab(&["pause", "node-2"])?;
    let begun = Instant::now();
    // The selector goes while the node cannot hear of it: new pods have to come up on the other.
    let outcome = moved(lab, &space);
    while outcome.is_ok() && begun.elapsed() < FROZEN {
        std::thread::sleep(Duration::from_secs(1));
    }
    lab.lab(&["resume", "node-2"])?;
    outcome?;
    let resumed = Instant::now();
    lab.until("node-2 is Ready again", 180, || Ok(ready(lab, "node-2")? == "True"))?;
    println!("\n  Ready {:.1} s after it went on", resumed.elapsed().as_secs_f64());
    lab.until("the old pods are gone", 180, || {
        let pods = space.pods("app=web")?;
        Ok(pods.len() == 2 && pods.iter().all(|pod| pod["spec"]["nodeName"] == "node-1"))
    })?;
    lab.until("nothing of them is left on node-2", 180, || {
        let uids: Vec<&str> = before.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        let folders = shell(
            lab,
            "node-2",
            "ls /var/lib/kubelet/pods; ls /sys/fs/cgroup/kubepods/* -d; ctr -n k8s.io containers ls",
        )?;
        Ok(uids.iter().all(|uid| !folders.contains(uid)))
    })?;
    no_leak(lab, "node-2")
}

fn moved(lab: &Lab, space: &Space<'_>) -> Result<()> {
    let begun = Instant::now();
    lab.until("node-2 is not Ready", 110, || Ok(ready(lab, "node-2")? != "True"))?;
    println!("\n  not Ready {:.1} s after it froze", begun.elapsed().as_secs_f64());
    let patch = r#"[{"op": "remove", "path": "/spec/template/spec/nodeSelector"}]"#;
    space.kubectl(&["patch", "deployment", "web", "--type=json", "-p", patch])?;
    lab.until("two pods run on node-1", 180, || {
        let pods = space.pods("app=web")?;
        let here = pods.iter().filter(|pod| pod["spec"]["nodeName"] == "node-1" && running(pod));
        Ok(here.count() == 2)
    })
    .context("while node-2 is frozen")?;
    println!("\n  its pods run on the other node after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn running(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["ready"] == true
}
