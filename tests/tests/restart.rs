//! Programs that end, politely or not, and come back: the same containers run, connections live, objects are kept.

#[path = "restart/adopt.rs"]
mod adopt;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use keelson_tests::suite::{self, Test};

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("the_agent_is_restarted", |lab| survives(lab, "agent-term", "node-1", "agent", "restart")),
        ("the_agent_is_killed", |lab| survives(lab, "agent-kill", "node-1", "agent", "kill")),
        ("the_dataplane_is_restarted", |lab| survives(lab, "plane-term", "node-1", "dataplane", "restart")),
        ("the_dataplane_is_killed", |lab| survives(lab, "plane-kill", "node-1", "dataplane", "kill")),
        ("the_control_plane_is_restarted", |lab| {
            survives(lab, "api-term", "control-plane", "control-plane", "restart")
        }),
        ("the_control_plane_is_killed", |lab| survives(lab, "api-kill", "control-plane", "control-plane", "kill")),
        ("containerd_is_restarted", |lab| survives(lab, "cri-term", "node-1", "containerd", "restart")),
        ("containerd_is_killed", |lab| survives(lab, "cri-kill", "node-1", "containerd", "kill")),
        ("the_agent_can_host_the_dataplane", embedded),
        ("a_kubelets_pods_are_adopted_without_a_restart", adopt::kubelets_pods),
        ("the_agents_metrics_tell_what_it_did", metrics),
        ("what_was_written_is_there_after_kills", writes),
        ("status_says_which_service_ended_and_why", status),
    ];
    suite::main("restart", 1, tests)
}

/// The tasks of the node's containers: id to pid. The same before and after means that none was touched.
fn tasks(lab: &Lab) -> Result<BTreeMap<String, String>> {
    let text = lab.node("node-1", &["ctr", "-n", "k8s.io", "tasks", "ls"])?;
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>());
    Ok(rows.filter(|row| row.len() == 3 && row[2] == "RUNNING").map(|row| (row[0].clone(), row[1].clone())).collect())
}

/// Those of before run as the same processes; others may have come.
fn untouched(lab: &Lab, before: &BTreeMap<String, String>) -> Result<()> {
    let after = tasks(lab)?;
    for (id, pid) in before {
        ensure!(after.get(id) == Some(pid), "container {id} was touched: {before:?} {after:?}");
    }
    Ok(())
}

/// Name and UID of everything that matters.
fn objects(lab: &Lab) -> Result<Vec<String>> {
    let kinds = "namespaces,nodes,pods,services,deployments,replicasets,configmaps,secrets,serviceaccounts";
    let path = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.uid}{\"\\n\"}{end}";
    let text = lab.kubectl(&["get", kinds, "-A", "-o", path])?;
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    lines.sort();
    Ok(lines)
}

fn echo(stream: &mut TcpStream, text: &str) -> Result<()> {
    stream.write_all(text.as_bytes())?;
    let mut buffer = vec![0; text.len()];
    stream.read_exact(&mut buffer).with_context(|| format!("waiting for the echo of {text:?}"))?;
    ensure!(buffer == text.as_bytes());
    Ok(())
}

fn echo_servers<'a>(lab: &'a Lab, name: &str) -> Result<Space<'a>> {
    let space = lab.space(name)?;
    space.apply(&manifests::servers("web", 2, &["--http=8080", "--tcp-echo=7000"]))?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.apply(&manifests::service("echo", "web", "ClusterIP").replace("targetPort: http", "targetPort: 7000"))?;
    space.rolled_out("web")?;
    space.endpoints("web", 2)?;
    space.endpoints("echo", 2)?;
    Ok(space)
}

fn survives(lab: &Lab, name: &str, machine: &str, service: &str, action: &str) -> Result<()> {
    let space = echo_servers(lab, name)?;
    let from = From::Process(lab.pid("node-1")?);
    let web = (space.cluster_ip("web")?, 80).into();
    let to = (space.cluster_ip("echo")?, 80).into();
    lab.wait("the service answers", 15, || net::answering(from, web).map(Some))?;
    let mut open = lab.wait("the echo connects", 15, || net::connect(from, to).map(Some))?;
    echo(&mut open, "before")?;
    let (tasks_before, objects_before) = (tasks(lab)?, objects(lab)?);
    ensure!(tasks_before.len() >= 4, "{tasks_before:?}");
    let pid = lab.service_status(machine, service)?["pid"].as_i64();
    lab.service(machine, service, action)?;
    lab.until("the service runs again", 30, || {
        let now = lab.service_status(machine, service)?;
        Ok(now["state"] == "running" && now["pid"].as_i64() != pid)
    })?;
    echo(&mut open, "during")?;
    // The cluster works: a new pod comes up and is reached through the service that was there before.
    lab.wait("the API server answers", 30, || lab.kubectl(&["get", "--raw", "/readyz"]).map(Some))?;
    lab.wait("a new pod comes up", 60, || {
        let _ = space.kubectl(&["scale", "deployment", "web", "--replicas=3"])?;
        space.rolled_out("web").map(Some)
    })?;
    space.endpoints("web", 3)?;
    lab.until("all three answer", 30, || {
        let seen: std::collections::BTreeSet<String> =
            (0..30).map(|_| net::answering(from, web)).collect::<Result<_>>()?;
        Ok(seen.len() == 3)
    })?;
    echo(&mut open, "after")?;
    untouched(lab, &tasks_before)?;
    let objects_after = objects(lab)?;
    for line in &objects_before {
        ensure!(objects_after.contains(line), "lost: {line}");
    }
    let pods = space.pods("app=web")?;
    let restarts: i64 =
        pods.iter().filter_map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_i64()).sum();
    ensure!(restarts == 0, "{restarts} restarts are counted");
    Ok(())
}

/// Rewrites the agent's configuration and starts it anew.
fn reconfigure(lab: &Lab, from: &str, to: &str) -> Result<()> {
    lab.node("node-1", &["sed", "-i", &format!("s|^{from}$|{to}|"), "/etc/keelson/node.yaml"])?;
    lab.service("node-1", "agent", "restart")
}

/// How many pods Services have let go of in time, since the agent started.
fn drained(lab: &Lab) -> Result<f64> {
    let text = lab.kubectl(&["get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"])?;
    let agreed = "keelson_agent_drains_total{outcome=\"agreed\"} ";
    text.lines().find_map(|line| line.strip_prefix(agreed)).map_or(Ok(0.0), |count| Ok(count.parse()?))
}

fn embedded(lab: &Lab) -> Result<()> {
    let space = echo_servers(lab, "embedded")?;
    let node = From::Process(lab.pid("node-1")?);
    let to = (space.cluster_ip("echo")?, 80).into();
    let mut open = lab.wait("the echo connects", 15, || net::connect(node, to).map(Some))?;
    echo(&mut open, "before")?;
    let tasks_before = tasks(lab)?;
    lab.service("node-1", "dataplane", "stop")?;
    let (alone, hosted) = ("dataplane: none", "dataplane: embedded\\ndataplaneConfig: /etc/keelson/proxy.yaml");
    reconfigure(lab, alone, hosted)?;
    let outcome = (|| {
        let health = "127.0.0.1:10256".parse()?;
        lab.until("the hosted dataplane is healthy", 20, || Ok(net::get(node, health, "/healthz")?.0 == 200))?;
        echo(&mut open, "hosted")?;
        space.apply(&manifests::service("late", "web", "ClusterIP"))?;
        let late = (space.cluster_ip("late")?, 80).into();
        lab.wait("a service made later answers", 15, || net::answering(node, late).map(Some))?;
        // The agent says that it hosts one: its readiness has a check of that name.
        let (status, text) = net::get(node, "127.0.0.1:10248".parse()?, "/readyz?verbose")?;
        ensure!(status == 200 && text.contains("[+]dataplane ok"), "{status} {text}");
        ensure!(lab.service_status("node-1", "dataplane")?["state"] != "running");
        // A pod that ends is let go of by the hosted one as by the other.
        let before = drained(lab)?;
        space.kubectl(&["scale", "deployment", "web", "--replicas=3"])?;
        space.rolled_out("web")?;
        space.endpoints("web", 3)?;
        // The newest goes: of ages alike, upstream's order takes any.
        let newest = space.kubectl(&["get", "pods", "--sort-by=.metadata.creationTimestamp", "-o", "name"])?;
        let newest = newest.lines().last().context("no pods")?;
        space.kubectl(&["annotate", newest, "controller.kubernetes.io/pod-deletion-cost=-1"])?;
        space.kubectl(&["scale", "deployment", "web", "--replicas=2"])?;
        lab.until("the hosted dataplane has let go of a pod", 20, || Ok(drained(lab)? > before))
    })();
    // Back to what the other tests expect, whatever came of it.
    lab.node("node-1", &["sed", "-i", "/^dataplaneConfig:/d", "/etc/keelson/node.yaml"])?;
    reconfigure(lab, "dataplane: embedded", alone)?;
    lab.service("node-1", "dataplane", "start")?;
    outcome?;
    lab.until("the dataplane runs by itself again", 20, || {
        Ok(lab.service_status("node-1", "dataplane")?["state"] == "running")
    })?;
    echo(&mut open, "after")?;
    untouched(lab, &tasks_before)
}

fn metrics(lab: &Lab) -> Result<()> {
    let space = lab.space("metrics")?;
    space.apply(&manifests::shell("counted", "Always", "sleep 10000"))?;
    space.ready_pod("counted")?;
    let text = lab.kubectl(&["get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"])?;
    let value = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|l| l.strip_prefix(name)).with_context(|| format!("no {name} in {text}"))?;
        Ok(line.trim().parse()?)
    };
    ensure!(value("kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}")? >= 1.0);
    ensure!(value("kubelet_started_containers_total{container_type=\"container\"}")? >= 1.0);
    ensure!(value("kubelet_running_containers{container_state=\"running\"}")? >= 1.0);
    ensure!(value("kubelet_pod_start_duration_seconds_count")? >= 1.0);
    ensure!(value("process_resident_memory_bytes")? > 1e6);
    Ok(())
}

fn writes(lab: &Lab) -> Result<()> {
    let space = lab.space("writes")?;
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        for number in 0..5 {
            let name = format!("note-{round}-{number}");
            space.kubectl(&["create", "configmap", &name, "--from-literal=a=b"])?;
            acknowledged.push(name);
        }
        lab.service("control-plane", "control-plane", "kill")?;
        lab.wait("the API server is back", 30, || lab.kubectl(&["get", "--raw", "/readyz"]).map(Some))?;
    }
    let text = space.kubectl(&["get", "configmaps", "-o", "name"])?;
    for name in acknowledged {
        ensure!(text.contains(&format!("configmap/{name}\n")), "{name} was lost: {text}");
    }
    Ok(())
}

fn status(lab: &Lab) -> Result<()> {
    lab.service("node-1", "dataplane", "kill")?;
    let text = lab.wait("the status tells the end", 10, || {
        let output = lab.command().arg("status").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.contains("SIGKILL").then_some(text))
    })?;
    ensure!(text.lines().any(|line| line.contains("dataplane") && line.contains("was ended by SIGKILL")), "{text}");
    lab.until("it runs again", 20, || Ok(lab.service_status("node-1", "dataplane")?["state"] == "running"))
}
