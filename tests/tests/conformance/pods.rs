//! Pods through the API: their life, their status, their streams.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::Lab;
use keelson_tests::objects::{first, holds, idle, name_of, pod, shell};
use serde_json::{Value, json};

tests![
    deadline,
    life,
    life_and_status,
    submitted_and_removed,
    updated,
    collection,
    host_ip,
    status_patch,
    quality_of_service,
    exec_by_websocket,
    logs_by_websocket,
];

/// Names of the pods that a selector finds.
fn found(space: &keelson_tests::lab::Space<'_>, selector: &str) -> Result<Vec<String>> {
    space.lab.api()?.names(&space.url(&format!("pods?labelSelector={selector}")))
}

// [sig-node] Pods should allow activeDeadlineSeconds to be updated [NodeConformance] [Conformance]
fn deadline(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-deadline")?;
    let mut pod = pod("limited", idle());
    pod["metadata"]["labels"]["time"] = json!("a1");
    let pod = space.started(&pod)?;
    ensure!(found(&space, "time=a1")? == ["limited"]);
    let begun = Instant::now();
    let mut pod = space.read(&format!("pods/{}", name_of(&pod)))?;
    pod["spec"]["activeDeadlineSeconds"] = json!(3);
    space.put("pods/limited", &pod)?;
    let pod = space.ended("limited")?;
    ensure!(
        pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "DeadlineExceeded",
        "{} after {:?}",
        pod["status"],
        begun.elapsed()
    );
    Ok(())
}

// [sig-node] Pods should be submitted and removed [NodeConformance] [Conformance]
fn submitted_and_removed(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-removed")?;
    let list = space.read("pods?labelSelector=time=b2")?;
    ensure!(list["items"] == json!([]), "{list}");
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let watch = lab.api()?.watch(&space.url("pods?labelSelector=time=b2"), version)?;
    let mut pod = pod("submitted", idle());
    pod["metadata"]["labels"]["time"] = json!("b2");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(2);
    space.make("pods", &pod)?;
    ensure!(found(&space, "time=b2")? == ["submitted"]);
    watch.until("ADDED", 20, |pod| name_of(pod) == "submitted")?;
    watch.until("MODIFIED", 60, |pod| pod["status"]["phase"] == "Running")?;
    space.remove("pods/submitted")?;
    let leaving = watch.until("MODIFIED", 20, |pod| pod["metadata"]["deletionTimestamp"].is_string())?;
    ensure!(leaving["metadata"]["deletionGracePeriodSeconds"] == 2, "{}", leaving["metadata"]);
    watch.until("DELETED", 60, |pod| pod["metadata"]["deletionTimestamp"].is_string())?;
    ensure!(found(&space, "time=b2")?.is_empty());
    Ok(())
}

// [sig-node] Pods should be updated [NodeConformance] [Conformance]
fn updated(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-updated")?;
    let mut pod = pod("updated", idle());
    pod["metadata"]["labels"]["time"] = json!("c3");
    space.started(&pod)?;
    ensure!(found(&space, "time=c3")? == ["updated"]);
    // Others write to a pod too: who is too late reads it again.
    lab.until("the label is replaced", 20, || {
        let mut pod = space.read("pods/updated")?;
        pod["metadata"]["labels"]["time"] = json!("later");
        space.put("pods/updated", &pod).map(|_| true)
    })?;
    ensure!(found(&space, "time=later")? == ["updated"] && found(&space, "time=c3")?.is_empty());
    Ok(())
}

// [sig-node] Pods should delete a collection of pods [Conformance]
fn collection(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-collection")?;
    for name in ["test-pod-1", "test-pod-2", "test-pod-3"] {
        let mut pod = pod(name, idle());
        pod["metadata"]["labels"]["type"] = json!("Testing");
        space.make("pods", &pod)?;
    }
    ensure!(found(&space, "type=Testing")? == ["test-pod-1", "test-pod-2", "test-pod-3"]);
    space.remove("pods?labelSelector=type=Testing")?;
    lab.until("all are gone", 60, || Ok(found(&space, "type=Testing")?.is_empty()))
}

// [sig-node] Pods should get a host IP [NodeConformance] [Conformance]
fn host_ip(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-host")?;
    let pod = space.started(&pod("host", idle()))?;
    let address = pod["status"]["hostIP"].as_str().context("no hostIP")?;
    ensure!(address.parse::<std::net::IpAddr>()? == lab.address("node-1")?, "{address}");
    Ok(())
}

// [sig-node] Pods should patch a pod status [Conformance]
fn status_patch(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-status")?;
    space.started(&pod("patched", idle()))?;
    let patch = json!({ "status": { "message": "Patched by a test", "reason": "Test" } });
    let pod = lab.api()?.patch(&space.url("pods/patched/status"), Patch::Strategic, &patch)?;
    ensure!(pod["status"]["message"] == "Patched by a test" && pod["status"]["reason"] == "Test", "{}", pod["status"]);
    ensure!(pod["status"]["phase"] == "Running" && first(&pod)["state"]["running"].is_object(), "{}", pod["status"]);
    Ok(())
}

// [sig-node] Pods should run through the lifecycle of Pods and PodStatus [Conformance]
fn life_and_status(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-life")?;
    let watch = lab.api()?.watch(&space.url("pods?labelSelector=test-pod-static=true"), "")?;
    let mut pod = pod("living", idle());
    pod["metadata"]["labels"]["test-pod-static"] = json!("true");
    space.make("pods", &pod)?;
    watch.until("MODIFIED", 60, |pod| holds(pod, "Ready"))?;
    let patch = json!({
        "metadata": { "labels": { "test-pod": "patched" } },
        "spec": { "containers": [{ "name": "main", "image": "busybox:1.36" }] },
    });
    space.amend("pods/living", &patch)?;
    let pod = space.read("pods/living")?;
    ensure!(pod["metadata"]["labels"]["test-pod"] == "patched", "{}", pod["metadata"]);
    ensure!(pod["spec"]["containers"][0]["image"] == "busybox:1.36", "{}", pod["spec"]);
    // The other image means another container, whatever the restart policy.
    watch.until("MODIFIED", 60, |pod| holds(pod, "Ready") && first(pod)["restartCount"] == 1)?;
    // The agent says what is true again, so the answer is looked at, and the watch.
    let replaced = lab.wait("the status is replaced", 20, || {
        let mut pod = space.read("pods/living/status")?;
        for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
            if condition["type"] == "Ready" {
                condition["status"] = json!("False");
            }
        }
        space.put("pods/living/status", &pod).map(Some)
    })?;
    ensure!(!holds(&replaced, "Ready") && holds(&replaced, "Initialized"), "{}", replaced["status"]);
    watch.until("MODIFIED", 20, |pod| !holds(pod, "Ready"))?;
    watch.until("MODIFIED", 60, |pod| holds(pod, "Ready"))?;
    space.remove("pods?labelSelector=test-pod-static=true")?;
    watch.until("DELETED", 60, |pod| name_of(pod) == "living").map(drop)
}

// A pod that ends by itself: Pending, Running, Succeeded, and never back.
fn life(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-phases")?;
    let watch = lab.api()?.watch(&space.url("pods"), "")?;
    space.make("pods", &pod("ending", shell("sleep 1")))?;
    let mut phases: Vec<Value> = Vec::new();
    watch.until("MODIFIED", 60, |pod| {
        let phase = &pod["status"]["phase"];
        if phases.last() != Some(phase) {
            phases.push(phase.clone());
        }
        phase == "Succeeded"
    })?;
    ensure!(phases == ["Pending", "Running", "Succeeded"], "{phases:?}");
    Ok(())
}

// [sig-node] Pods Extended Pods Set QOS Class should be set on Pods with matching resource requests and limits for memory and cpu [Conformance]
fn quality_of_service(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-qos")?;
    let mut container = idle();
    let all = json!({ "cpu": "100m", "memory": "100Mi" });
    container["resources"] = json!({ "requests": all, "limits": all });
    let made = space.make("pods", &pod("guaranteed", container))?;
    ensure!(made["status"]["qosClass"] == "Guaranteed", "{}", made["status"]);
    let pod = space.pod_until("guaranteed", "is ready", |pod| holds(pod, "Ready"))?;
    ensure!(pod["status"]["qosClass"] == "Guaranteed", "{}", pod["status"]);
    Ok(())
}

// [sig-node] Pods should support remote command execution over websockets [NodeConformance] [Conformance]
fn exec_by_websocket(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-exec")?;
    space.started(&pod("told", idle()))?;
    let query = "command=echo&command=remote%20execution%20test&stdout=true&stderr=true&container=main";
    for protocol in ["channel.k8s.io", "v4.channel.k8s.io"] {
        let messages = lab.api()?.messages(&space.url(&format!("pods/told/exec?{query}")), protocol)?;
        let mut output = Vec::new();
        for (binary, message) in &messages {
            ensure!(*binary, "a text message: {messages:?}");
            match message.as_slice() {
                [1, rest @ ..] => output.extend_from_slice(rest),
                // Channels open with an empty message; version 4 ends with a status on the third.
                [_] => {}
                [3, status @ ..] => ensure!(String::from_utf8_lossy(status).contains("Success"), "{messages:?}"),
                _ => anyhow::bail!("{protocol}: not on the output: {messages:?}"),
            }
        }
        ensure!(output == b"remote execution test\n", "{protocol}: {messages:?}");
    }
    Ok(())
}

// [sig-node] Pods should support retrieving logs from the container over websockets [NodeConformance] [Conformance]
fn logs_by_websocket(lab: &Lab) -> Result<()> {
    let space = lab.quarter("pod-logs")?;
    space.started(&pod("talks", shell("echo container is alive; sleep 100000")))?;
    lab.until("it has spoken", 20, || Ok(space.log("talks", "")? == "container is alive\n"))?;
    let path = space.url("pods/talks/log?container=main");
    let messages = lab.api()?.messages(&path, "binary.k8s.io")?;
    ensure!(messages.iter().all(|(binary, _)| *binary), "{messages:?}");
    let text: Vec<u8> = messages.into_iter().flat_map(|(_, message)| message).collect();
    ensure!(text == b"container is alive\n", "{:?}", String::from_utf8_lossy(&text));
    // The other representation: text, which a browser's script can read.
    let messages = lab.api()?.messages(&path, "base64.binary.k8s.io")?;
    ensure!(messages.iter().all(|(binary, _)| !binary), "{messages:?}");
    let text: Vec<u8> = messages.into_iter().flat_map(|(_, message)| message).collect();
    ensure!(text == b"Y29udGFpbmVyIGlzIGFsaXZlCg==", "{:?}", String::from_utf8_lossy(&text));
    Ok(())
}
