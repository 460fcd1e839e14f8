//! Probes and hooks.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use serde_json::Value;

use super::{contains, events, status};

/// A busybox pod with more fields for its container, indented as they must be.
fn probed(name: &str, script: &str, more: &str) -> String {
    format!("{}{more}", manifests::shell(name, "Always", script))
}

fn restarts(space: &Space<'_>, pod: &str) -> Result<i64> {
    let pod = space.json(&["get", "pod", pod])?;
    Ok(status(&pod)["restartCount"].as_i64().unwrap_or(0))
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub fn readiness(lab: &Lab) -> Result<()> {
    let space = lab.space("ready")?;
    // One copy is asked by HTTP, the other by TCP through a Service of both.
    let probe = "          readinessProbe:\n            httpGet:\n              path: /readyz\n              port: http\n            periodSeconds: 1\n            failureThreshold: 1\n          env:\n";
    space.apply(&manifests::servers("web", 2, &["--unready"]).replace("          env:\n", probe))?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    let from = From::Process(lab.pid("node-1")?);
    let pods = lab.wait("both run", 60, || {
        let pods = space.pods("app=web")?;
        let running = pods.iter().filter(|pod| status(pod)["state"]["running"].is_object()).count();
        Ok((running == 2).then_some(pods))
    })?;
    let addresses = pods
        .iter()
        .map(|pod| Ok(pod["status"]["podIP"].as_str().context("no address")?.parse::<Ipv4Addr>()?))
        .collect::<Result<Vec<_>>>()?;
    lab.until("the failure is told", 20, || {
        Ok(events(&space)?.contains("Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503"))
    })?;
    space.endpoints("web", 0)?;
    let pod = space.json(&["get", "pod", pods[0]["metadata"]["name"].as_str().context("no name")?])?;
    let ready = condition(&pod, "Ready").context("no condition Ready")?;
    ensure!(ready["status"] == "False" && ready["reason"] == "ContainersNotReady", "{ready}");
    ensure!(status(&pod)["started"] == true && status(&pod)["ready"] == false, "{}", status(&pod));
    let switch = |address: Ipv4Addr, ok: bool| {
        let path = format!("/readyz?ok={ok}");
        lab.wait("the server answers", 10, || net::request(from, (address, 8080).into(), "POST", &path).map(Some))
    };
    for address in &addresses {
        switch(*address, true)?;
    }
    space.endpoints("web", 2)?;
    let to = (space.cluster_ip("web")?, 80).into();
    for round in 0..3 {
        let begun = Instant::now();
        switch(addresses[0], false)?;
        space.endpoints("web", 1)?;
        let out = begun.elapsed();
        let begun = Instant::now();
        switch(addresses[0], true)?;
        space.endpoints("web", 2)?;
        println!("    round {round}: out after {out:.1?}, back after {:.1?}", begun.elapsed());
    }
    lab.until("both answer again", 15, || {
        let seen: std::collections::BTreeSet<String> =
            (0..20).map(|_| net::answering(from, to)).collect::<Result<_>>()?;
        Ok(seen.len() == 2)
    })?;
    let pods = space.pods("app=web")?;
    ensure!(pods.iter().all(|pod| status(pod)["restartCount"] == 0), "readiness restarted something");
    Ok(())
}

pub fn liveness(lab: &Lab) -> Result<()> {
    let space = lab.space("alive")?;
    let more = r#"      livenessProbe:
        exec:
          command: ["cat", "/tmp/healthy"]
        periodSeconds: 1
        failureThreshold: 2
"#;
    space.apply(&probed("sick", "touch /tmp/healthy; sleep 4; rm /tmp/healthy; sleep 600", more))?;
    let more = "      livenessProbe:\n        tcpSocket:\n          port: 7\n        periodSeconds: 1\n        failureThreshold: 1\n        initialDelaySeconds: 3\n";
    space.apply(&probed("deaf", "sleep 600", more))?;
    for pod in ["sick", "deaf"] {
        let found = lab.wait(&format!("{pod} is restarted"), 60, || {
            let pod = space.json(&["get", "pod", pod])?;
            Ok((status(&pod)["restartCount"] == 1).then_some(pod))
        })?;
        // Its shell has no handler for SIGTERM and is process 1: it goes with SIGKILL.
        let ended = &status(&found)["lastState"]["terminated"];
        ensure!(ended["exitCode"] == 137 && ended["reason"] == "Error", "{pod}: {ended}");
        let (begun, end) = (ended["startedAt"].as_str(), ended["finishedAt"].as_str());
        ensure!(begun.is_some() && end.is_some(), "{ended}");
    }
    contains(
        &events(&space)?,
        &[
            "Unhealthy: Liveness probe failed: cat: can't open '/tmp/healthy': No such file or directory",
            "Killing: Container main failed liveness probe, will be restarted",
            "Unhealthy: Liveness probe failed: dial tcp",
        ],
    )
}

/// gRPC's health protocol: readiness follows the server, a named service that is not known keeps failing, and restarts.
pub fn grpc(lab: &Lab) -> Result<()> {
    let space = lab.space("grpc")?;
    let readiness = "          readinessProbe:\n            grpc:\n              port: 9000\n            periodSeconds: 1\n            failureThreshold: 1\n";
    let liveness = "          livenessProbe:\n            grpc:\n              port: 9000\n              service: SERVICE\n            periodSeconds: 1\n            failureThreshold: 2\n          env:\n";
    let probes = format!("{readiness}{liveness}");
    for (name, service) in [("well", "alive"), ("lost", "nobody")] {
        let servers = manifests::servers(name, 1, &["--grpc=9000", "--unready"]);
        space.apply(&servers.replace("          env:\n", &probes.replace("SERVICE", service)))?;
    }
    let pod = lab.wait("the failure is told", 60, || {
        let told = events(&space)?;
        let expected = [
            "Unhealthy: Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
            "Unhealthy: Liveness probe failed: error: health rpc probe failed: ",
        ];
        Ok(expected.iter().all(|text| told.contains(text)).then_some(space.pods("app=well")?))
    })?;
    ensure!(status(&pod[0])["ready"] == false && status(&pod[0])["restartCount"] == 0, "{}", status(&pod[0]));
    let address: Ipv4Addr = pod[0]["status"]["podIP"].as_str().context("no address")?.parse()?;
    net::request(From::Process(lab.pid("node-1")?), (address, 8080).into(), "POST", "/readyz?ok=true")?;
    lab.until("it is ready", 20, || Ok(status(&space.pods("app=well")?[0])["ready"] == true))?;
    lab.until("the other one is restarted", 60, || {
        Ok(status(&space.pods("app=lost")?[0])["restartCount"].as_i64() >= Some(1))
    })?;
    ensure!(status(&space.pods("app=well")?[0])["restartCount"] == 0, "a healthy container was restarted");
    Ok(())
}

/// What others write into a status is read and kept: a gate's condition decides about Ready, a node's extended resource and foreign
/// condition outlive the agent's reports.
pub fn gates(lab: &Lab) -> Result<()> {
    let space = lab.space("gates")?;
    space.apply(
        &manifests::shell("gated", "Always", "sleep 600")
            .replace("spec:\n", "spec:\n  readinessGates: [{conditionType: example.com/gate}]\n"),
    )?;
    lab.until("the gate is told", 60, || {
        let pod = space.json(&["get", "pod", "gated"])?;
        let ready = condition(&pod, "Ready").context("no condition Ready")?.clone();
        Ok(status(&pod)["ready"] == true && ready["reason"] == "ReadinessGatesNotReady" && ready["status"] == "False")
    })?;
    for wanted in ["True", "False", "True"] {
        let patch = format!(r#"{{"status":{{"conditions":[{{"type":"example.com/gate","status":"{wanted}"}}]}}}}"#);
        space.kubectl(&["patch", "pod", "gated", "--subresource=status", "-p", &patch])?;
        lab.until(&format!("Ready is {wanted}"), 20, || {
            let pod = space.json(&["get", "pod", "gated"])?;
            let gate = condition(&pod, "example.com/gate").is_some_and(|gate| gate["status"] == wanted);
            ensure!(gate, "the gate's condition was changed: {}", pod["status"]["conditions"]);
            Ok(condition(&pod, "Ready").is_some_and(|ready| ready["status"] == wanted))
        })?;
    }
    let patch = r#"{"status":{"capacity":{"example.com/dongle":"4"},"conditions":[{"type":"KernelDeadlock","status":"False","reason":"Fine"}]}}"#;
    lab.kubectl(&["patch", "node", "node-1", "--subresource=status", "-p", patch])?;
    lab.until("the agent has made them allocatable", 30, || {
        Ok(lab.json(&["get", "node", "node-1"])?["status"]["allocatable"]["example.com/dongle"] == "4")
    })?;
    let node = lab.json(&["get", "node", "node-1"])?;
    let kept =
        node["status"]["conditions"].as_array().into_iter().flatten().any(|kind| kind["type"] == "KernelDeadlock");
    ensure!(kept, "the foreign condition is gone: {}", node["status"]["conditions"]);
    Ok(())
}

pub fn startup(lab: &Lab) -> Result<()> {
    let space = lab.space("startup")?;
    let more = r#"      startupProbe:
        exec:
          command: ["test", "-e", "/tmp/started"]
        periodSeconds: 1
        failureThreshold: 60
      livenessProbe:
        exec:
          command: ["test", "-e", "/tmp/started"]
        periodSeconds: 1
        failureThreshold: 1
      readinessProbe:
        exec:
          command: ["true"]
        periodSeconds: 1
"#;
    space.apply(&probed("slow", "sleep 5; touch /tmp/started; sleep 600", more))?;
    let (mut held, mut wrong) = (0, Vec::new());
    let pod = lab.wait("it has started", 60, || {
        let pod = space.json(&["get", "pod", "slow"])?;
        let now = status(&pod);
        if now["state"]["running"].is_object() && now["started"] == false {
            held += 1;
            if now["ready"] != false {
                wrong.push(format!("ready before it has started: {now}"));
            }
        }
        Ok((now["started"] == true && now["ready"] == true).then_some(pod))
    })?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    ensure!(held >= 2, "it was never seen waiting for its startup probe");
    ensure!(condition(&pod, "Ready").is_some_and(|ready| ready["status"] == "True"));
    ensure!(restarts(&space, "slow")? == 0, "liveness was not held back");
    Ok(())
}

pub fn startup_fails(lab: &Lab) -> Result<()> {
    let space = lab.space("never-up")?;
    let more = r#"      startupProbe:
        exec:
          command: ["false"]
        periodSeconds: 1
        failureThreshold: 2
"#;
    space.apply(&probed("never", "sleep 600", more))?;
    lab.until("it is restarted", 60, || Ok(restarts(&space, "never")? >= 1))?;
    contains(
        &events(&space)?,
        &["Unhealthy: Startup probe failed", "Killing: Container main failed startup probe, will be restarted"],
    )
}

/// Command lines of the node's processes that hold a word.
fn processes(lab: &Lab, word: &str) -> Result<usize> {
    let all = lab.node("node-1", &["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true"])?;
    Ok(all.matches(word).count())
}

pub fn hangs(lab: &Lab) -> Result<()> {
    let space = lab.space("hanging")?;
    // A child, one in a session of its own whose parent is gone, and the command itself.
    let more = r#"      readinessProbe:
        exec:
          command: ["sh", "-c", "sleep 12345 & (setsid sleep 12345 &); sleep 12345"]
        periodSeconds: 60
        timeoutSeconds: 2
        failureThreshold: 1
"#;
    space.apply(&probed("hang", "sleep 600", more))?;
    let more = r#"      readinessProbe:
        exec:
          command: ["sh", "-c", "yes out of order | head -c 300000; exit 1"]
        periodSeconds: 1
        timeoutSeconds: 5
        failureThreshold: 1
"#;
    space.apply(&probed("chatter", "sleep 600", more))?;
    // What a command that ends in time leaves running is the container's.
    let more = r#"      startupProbe:
        exec:
          command: ["sh", "-c", "setsid sleep 54321 >/dev/null 2>&1 & sleep 1"]
        periodSeconds: 1
        timeoutSeconds: 5
"#;
    space.apply(&probed("starter", "sleep 600", more))?;
    lab.until("the hanging command and its children run", 30, || Ok(processes(lab, "sleep 12345")? >= 3))?;
    lab.until("both are told", 60, || {
        let text = events(&space)?;
        Ok(text.contains("Readiness probe failed: command timed out") && text.contains("out of order"))
    })?;
    lab.until("nothing of the command is left", 3, || Ok(processes(lab, "sleep 12345")? == 0))?;
    let longest = events(&space)?.lines().map(str::len).max().unwrap_or(0);
    ensure!(longest < 11 * 1024, "an event of {longest} bytes");
    for pod in ["hang", "chatter"] {
        let pod = space.json(&["get", "pod", pod])?;
        ensure!(status(&pod)["ready"] == false && status(&pod)["restartCount"] == 0, "{}", status(&pod));
    }
    lab.until("the starter has started", 30, || {
        Ok(status(&space.json(&["get", "pod", "starter"])?)["started"] == true)
    })?;
    ensure!(processes(lab, "sleep 54321")? == 1, "what a probe had started is gone");
    let scopes = "find /sys/fs/cgroup -type d -path '*kubepods*' -name 'exec-*'";
    lab.until("no cgroup of a command is left", 10, || Ok(lab.node("node-1", &["sh", "-c", scopes])?.is_empty()))
}

/// A pod whose hooks leave marks in a folder of the node that the test reads.
fn hooked(folder: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: hooked
spec:
  terminationGracePeriodSeconds: 20
  volumes:
    - name: marks
      hostPath:
        path: {folder}
        type: DirectoryOrCreate
  containers:
    - name: main
      image: busybox:1.28
      command: ["sh", "-c", "trap 'echo term >> /marks/order; exit 0' TERM; while true; do sleep 0.1; done"]
      volumeMounts:
        - name: marks
          mountPath: /marks
      lifecycle:
        postStart:
          exec:
            command: ["sh", "-c", "echo post-start >> /marks/order"]
        preStop:
          exec:
            command: ["sh", "-c", "echo pre-stop >> /marks/order; sleep 2; echo pre-stop-done >> /marks/order"]
    - name: web
      image: keelson.dev/test-server:latest
      imagePullPolicy: IfNotPresent
      args: ["--on-term=ignore"]
      lifecycle:
        preStop:
          httpGet:
            path: /exit?code=0
            port: 8080
"#
    )
}

pub fn hooks(lab: &Lab) -> Result<()> {
    let space = lab.space("hooks")?;
    let marks = lab.folder()?.join("node-1/tmp/hooks/order");
    space.apply(&hooked("/tmp/hooks"))?;
    space.ready_pod("hooked")?;
    let read = || std::fs::read_to_string(&marks).context("the marks of the hooks");
    ensure!(read()? == "post-start\n", "{}", read()?);
    let begun = Instant::now();
    space.kubectl(&["delete", "pod", "hooked", "--timeout=60s"])?;
    // The web container ignores SIGTERM: that it ends before the grace is over is its HTTP hook's work.
    ensure!(begun.elapsed() < Duration::from_secs(15), "it took {:?}", begun.elapsed());
    ensure!(read()? == "post-start\npre-stop\npre-stop-done\nterm\n", "{}", read()?);
    Ok(())
}

pub fn failing_hook(lab: &Lab) -> Result<()> {
    let space = lab.space("bad-hook")?;
    let more = r#"      lifecycle:
        postStart:
          exec:
            command: ["sh", "-c", "echo no luck; exit 5"]
"#;
    space.apply(&probed("unlucky", "sleep 600", more))?;
    lab.until("it is killed and tried again", 60, || Ok(restarts(&space, "unlucky")? >= 1))?;
    contains(&events(&space)?, &["FailedPostStartHook", "PostStartHook failed"])
}
