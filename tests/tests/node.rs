//! What a node does with pods that die, that cannot start, and that no API server knows.

#[path = "node/explain.rs"]
mod explain;
#[path = "node/url.rs"]
mod url;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::suite::{self, Test};
use serde_json::Value;

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("a_killed_container_restarts_and_the_count_shows", killed_container),
        ("a_deleted_pod_of_a_deployment_is_replaced", deleted_pod),
        ("a_crash_loop_shows_growing_delays", crash_loop),
        ("a_missing_image_shows_image_pull_back_off", missing_image),
        ("a_static_manifest_starts_without_the_api_server", static_pod),
        ("static_pods_come_from_a_web_address_too", url::url),
        ("a_pod_ends_within_its_grace", grace),
        ("several_containers_share_a_network", several_containers),
        ("a_finished_pod_is_succeeded_or_failed", finished),
        ("the_agent_explains_its_pods_now_and_then", explain::explain),
        ("a_slow_step_is_told_in_the_pods_condition", explain::slow_steps),
        ("pods_are_gone_from_the_node_after_deletion", nothing_left),
    ];
    suite::main("node", 1, tests)
}

fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

fn killed_container(lab: &Lab) -> Result<()> {
    let space = lab.space("killed")?;
    space.apply(&manifests::shell("victim", "Always", "sleep 10000"))?;
    let pod = space.ready_pod("victim")?;
    let before = status(&pod)["containerID"].as_str().context("no container")?.to_owned();
    let id = before.trim_start_matches("containerd://");
    lab.node("node-1", &["ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", id])?;
    let pod = lab.wait("it runs again", 30, || {
        let pod = space.json(&["get", "pod", "victim"])?;
        let again = status(&pod)["restartCount"] == 1 && status(&pod)["state"]["running"].is_object();
        Ok(again.then_some(pod))
    })?;
    ensure!(status(&pod)["containerID"] != before.as_str());
    ensure!(status(&pod)["lastState"]["terminated"]["exitCode"] == 137, "{}", status(&pod)["lastState"]);
    let text = space.kubectl(&["get", "pod", "victim"])?;
    ensure!(text.contains("1 ("), "the count with its age is missing: {text}");
    Ok(())
}

fn deleted_pod(lab: &Lab) -> Result<()> {
    let space = lab.space("replaced")?;
    space.apply(&manifests::servers("web", 2, &[]))?;
    space.rolled_out("web")?;
    let pods = space.pods("app=web")?;
    let name = pods[0]["metadata"]["name"].as_str().context("no name")?.to_owned();
    space.kubectl(&["delete", "pod", &name])?;
    lab.until("there are two again, without it", 60, || {
        let pods = space.pods("app=web")?;
        let ready = pods.iter().filter(|pod| status(pod)["ready"] == true).count();
        Ok(ready == 2 && pods.len() == 2 && pods.iter().all(|pod| pod["metadata"]["name"] != name.as_str()))
    })
}

fn crash_loop(lab: &Lab) -> Result<()> {
    let space = lab.space("crash")?;
    space.apply(&manifests::shell("loop", "Always", "date +%s; exit 7"))?;
    // Upstream waits 10 s, 20 s, 40 s … and says so. The first restart is at once.
    let mut seen = Vec::new();
    lab.until("a second, longer delay", 90, || {
        let pod = space.json(&["get", "pod", "loop"])?;
        let waiting = &status(&pod)["state"]["waiting"];
        if waiting["reason"] == "CrashLoopBackOff" {
            let message = waiting["message"].as_str().unwrap_or_default().to_owned();
            let delay = message.split_whitespace().nth(1).unwrap_or_default().to_owned();
            if seen.last() != Some(&delay) {
                seen.push(delay);
            }
        }
        Ok(seen.len() >= 2)
    })?;
    ensure!(seen[..2] == ["10s", "20s"], "{seen:?}");
    let text = space.kubectl(&["get", "pod", "loop"])?;
    ensure!(text.contains("CrashLoopBackOff"), "{text}");
    let pod = space.json(&["get", "pod", "loop"])?;
    ensure!(status(&pod)["lastState"]["terminated"]["exitCode"] == 7 && status(&pod)["ready"] == false);
    ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]["phase"]);
    let events = space.kubectl(&["get", "events"])?;
    ensure!(events.contains("BackOff"), "{events}");
    Ok(())
}

fn missing_image(lab: &Lab) -> Result<()> {
    let space = lab.space("missing")?;
    space.kubectl(&["run", "web", "--image=nginx:1.161", "--restart=Always"])?;
    let mut reasons = Vec::new();
    lab.until("ImagePullBackOff", 90, || {
        let pod = space.json(&["get", "pod", "web"])?;
        let reason = status(&pod)["state"]["waiting"]["reason"].as_str().unwrap_or_default().to_owned();
        reasons.push(reason.clone());
        Ok(reason == "ImagePullBackOff")
    })
    .with_context(|| format!("{reasons:?}"))?;
    let events = space.kubectl(&["get", "events"])?;
    ensure!(events.contains("Failed") && events.contains("nginx:1.161"), "{events}");
    // With an image that exists it recovers by itself.
    space.kubectl(&["set", "image", "pod/web", "web=nginx:1.25"])?;
    space.ready_pod("web").map(drop)
}

const STATIC: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: fixed
  labels:
    app: fixed
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c", "echo static; sleep 10000"]
"#;

fn containers(lab: &Lab, name: &str) -> Result<usize> {
    let filter = format!("labels.\"io.kubernetes.pod.name\"=={name}");
    let text = lab.node("node-1", &["ctr", "-n", "k8s.io", "containers", "ls", "-q", &filter])?;
    Ok(text.lines().count())
}

fn static_pod(lab: &Lab) -> Result<()> {
    let manifest = "/etc/kubernetes/manifests/fixed.yaml";
    lab.service("control-plane", "control-plane", "stop")?;
    let started = (|| {
        lab.put("node-1", manifest, STATIC)?;
        lab.until("the container runs without an API server", 30, || {
            let tasks = lab.node("node-1", &["ctr", "-n", "k8s.io", "tasks", "ls"])?;
            Ok(containers(lab, "fixed-node-1")? == 2 && tasks.matches("RUNNING").count() >= 2)
        })
    })();
    lab.service("control-plane", "control-plane", "start")?;
    started?;
    lab.until("its mirror pod shows", 60, || {
        let pod = lab.json(&["get", "pod", "fixed-node-1"])?;
        Ok(pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string() && status(&pod)["ready"] == true)
    })?;
    ensure!(lab.kubectl(&["logs", "fixed-node-1"])? == "static\n");
    // A mistake in it leaves the pod alone, and is told with its place.
    let id = status(&lab.json(&["get", "pod", "fixed-node-1"])?)["containerID"].clone();
    lab.put("node-1", manifest, &STATIC.replace("containers:", "containers: 5\n  other:"))?;
    let path = "jsonpath={.items[?(@.reason==\"InvalidStaticPodManifest\")].message}";
    lab.until("the mistake is told", 30, || {
        let told = lab.kubectl(&["get", "events", "-A", "-o", path])?;
        Ok(told.contains("fixed.yaml:") && told.contains("the pod from its former content runs on"))
    })?;
    ensure!(status(&lab.json(&["get", "pod", "fixed-node-1"])?)["containerID"] == id, "the pod was touched");
    lab.remove("node-1", manifest)?;
    lab.until("it is gone with its manifest", 60, || {
        let list = lab.kubectl(&["get", "pods"])?;
        Ok(!list.contains("fixed-node-1") && containers(lab, "fixed-node-1")? == 0)
    })
}

fn grace(lab: &Lab) -> Result<()> {
    let space = lab.space("grace")?;
    let stubborn = manifests::shell("stubborn", "Always", "trap '' TERM; while true; do sleep 1; done")
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 3");
    space.apply(&stubborn)?;
    space.ready_pod("stubborn")?;
    let begun = std::time::Instant::now();
    space.kubectl(&["delete", "pod", "stubborn", "--timeout=60s"])?;
    let time = begun.elapsed();
    // Always less than the 30 s that a pod has by default.
    let limit = |seconds| lab.patience(Duration::from_secs(seconds)).min(Duration::from_secs(28));
    ensure!(time >= Duration::from_secs(3) && time < limit(12), "ended after {time:?}");
    let polite = manifests::shell("polite", "Always", "trap 'exit 0' TERM; while true; do sleep 0.1; done")
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 30");
    space.apply(&polite)?;
    space.ready_pod("polite")?;
    let begun = std::time::Instant::now();
    space.kubectl(&["delete", "pod", "polite", "--timeout=60s"])?;
    ensure!(begun.elapsed() < limit(10), "ended only after {:?}", begun.elapsed());
    Ok(())
}

fn several_containers(lab: &Lab) -> Result<()> {
    let space = lab.space("several")?;
    space.apply(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: pair
spec:
  restartPolicy: Never
  containers:
    - name: server
      image: keelson.dev/test-server:latest
      imagePullPolicy: IfNotPresent
    - name: client
      image: busybox:1.28
      command: ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do wget -q -O - http://127.0.0.1:8080/healthz && exit 0; sleep 0.5; done; exit 1"]
"#,
    )?;
    lab.until("the client has reached the server", 60, || {
        let pod = space.json(&["get", "pod", "pair"])?;
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ended = statuses.iter().find(|status| status["name"] == "client");
        Ok(ended.is_some_and(|status| status["state"]["terminated"]["exitCode"] == 0))
    })?;
    let text = space.kubectl(&["get", "pod", "pair"])?;
    ensure!(text.contains("1/2"), "{text}");
    ensure!(space.kubectl(&["logs", "pair", "-c", "client"])?.contains("ok"));
    Ok(())
}

fn finished(lab: &Lab) -> Result<()> {
    let space = lab.space("finished")?;
    space.apply(&manifests::shell("good", "Never", "echo done"))?;
    space.apply(&manifests::shell("bad", "Never", "echo broken > /dev/termination-log; exit 4"))?;
    ensure!(space.output("good")? == "done\n");
    let pod = lab.wait("the bad one has failed", 60, || {
        let pod = space.json(&["get", "pod", "bad"])?;
        Ok((pod["status"]["phase"] == "Failed").then_some(pod))
    })?;
    let ended = &status(&pod)["state"]["terminated"];
    ensure!(ended["exitCode"] == 4 && ended["reason"] == "Error" && ended["message"] == "broken\n", "{ended}");
    let text = space.kubectl(&["get", "pods"])?;
    ensure!(text.contains("Completed") && text.contains("Error"), "{text}");
    Ok(())
}

/// Containers, sandboxes, cgroups and folders of this namespace's pods on the node.
fn traces(lab: &Lab, space: &Space<'_>, uids: &[String]) -> Result<Vec<String>> {
    let filter = format!("labels.\"io.kubernetes.pod.namespace\"=={}", space.name);
    let text = lab.node("node-1", &["ctr", "-n", "k8s.io", "containers", "ls", "-q", &filter])?;
    let mut found: Vec<String> = text.lines().map(|line| format!("container {line}")).collect();
    for uid in uids {
        let script = format!("find /sys/fs/cgroup /var/lib/kubelet/pods /var/log/pods -name '*{uid}*' 2>/dev/null");
        found.extend(lab.node("node-1", &["sh", "-c", &format!("{script}; true")])?.lines().map(ToOwned::to_owned));
    }
    Ok(found)
}

fn nothing_left(lab: &Lab) -> Result<()> {
    let space = lab.space("traces")?;
    space.apply(&manifests::servers("web", 3, &[]))?;
    space.rolled_out("web")?;
    let pods = space.pods("app=web")?;
    let uids: Vec<String> =
        pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str().map(ToOwned::to_owned)).collect();
    ensure!(uids.len() == 3 && !traces(lab, &space, &uids)?.is_empty());
    space.kubectl(&["delete", "deployment", "web"])?;
    let mut left = Vec::new();
    lab.until("nothing is left on the node", 60, || {
        left = traces(lab, &space, &uids)?;
        Ok(left.is_empty())
    })
    .with_context(|| format!("{left:#?}"))
}
