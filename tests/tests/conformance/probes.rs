//! Probes: how often they asked is told by who was asked, so that "is not restarted" means something.

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{first, holds, pod, server, shell};
use serde_json::{Value, json};

tests![
    counts_only_grow,
    never_ready,
    ready_after_the_delay,
    http_fails,
    http_passes,
    exec_fails,
    exec_passes,
    tcp_passes,
    grpc_fails,
    grpc_passes,
];

/// Probes that must have passed before a container counts as left alone.
const ENOUGH: usize = 5;

fn alive(container: Value, probe: Value) -> Value {
    let mut container = container;
    container["livenessProbe"] = probe;
    // Not before the container listens: one failure is enough here.
    container["livenessProbe"]["initialDelaySeconds"] = json!(2);
    container["livenessProbe"]["periodSeconds"] = json!(1);
    container["livenessProbe"]["failureThreshold"] = json!(1);
    container["livenessProbe"]["timeoutSeconds"] = json!(5);
    let mut pod = pod("probed", container);
    pod["spec"]["restartPolicy"] = json!("Always");
    pod
}

fn restarts(pod: &Value) -> u64 {
    first(pod)["restartCount"].as_u64().unwrap_or(0)
}

fn left_alone(space: &Space<'_>) -> Result<()> {
    let pod = space.read("pods/probed")?;
    ensure!(restarts(&pod) == 0 && holds(&pod, "Ready"), "{}", first(&pod));
    Ok(())
}

/// Requests that the server in the pod has seen.
fn asked(space: &Space<'_>, line: &str) -> Result<usize> {
    let seen = space.lab.api()?.text(&space.url("pods/probed:8080/proxy/seen"))?;
    Ok(seen.matches(line).count())
}

// [sig-node] Probing container should *not* be restarted with a /healthz http liveness probe [NodeConformance] [Conformance]
fn http_passes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-http")?;
    space.started(&alive(server(&[]), json!({ "httpGet": { "path": "/healthz", "port": 8080 } })))?;
    lab.until("it was asked often", 30, || Ok(asked(&space, "GET /healthz")? >= ENOUGH))?;
    left_alone(&space)
}

// [sig-node] Probing container should be restarted with a /healthz http liveness probe [NodeConformance] [Conformance]
fn http_fails(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-http-fails")?;
    space.started(&alive(server(&[]), json!({ "httpGet": { "path": "/readyz", "port": 8080 } })))?;
    lab.until("it was asked", 30, || Ok(asked(&space, "GET /readyz")? >= 2))?;
    left_alone(&space)?;
    // From now on the server answers with an error; a new one does not.
    let fail = space.url("pods/probed:8080/proxy/readyz?ok=false");
    lab.api()?.ask(&http::Method::POST, &fail, "text/plain", None)?;
    let pod = space.pod_until("probed", "is restarted once", |pod| restarts(pod) == 1 && holds(pod, "Ready"))?;
    ensure!(first(&pod)["lastState"]["terminated"].is_object(), "{}", first(&pod));
    let told = space.told("probed")?;
    ensure!(told.contains("Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 503"), "{told}");
    ensure!(told.contains("Killing: Container main failed liveness probe, will be restarted"), "{told}");
    Ok(())
}

/// Says `probed` in the pod's log each time it is run and passes.
fn by_exec() -> Value {
    json!({ "exec": { "command": ["sh", "-c", "cat /tmp/health && echo probed > /proc/1/fd/1"] } })
}

// [sig-node] Probing container should *not* be restarted with a exec "cat /tmp/health" liveness probe [NodeConformance] [Conformance]
fn exec_passes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-exec")?;
    space.started(&alive(shell("echo ok > /tmp/health; sleep 100000"), by_exec()))?;
    lab.until("it was asked often", 60, || Ok(space.log("probed", "")?.matches("probed").count() >= ENOUGH))?;
    left_alone(&space)
}

// [sig-node] Probing container should be restarted with a exec "cat /tmp/health" liveness probe [NodeConformance] [Conformance]
fn exec_fails(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-exec-fails")?;
    let script = "trap 'exit 0' TERM; echo ok > /tmp/health; sleep 4 & wait; rm -f /tmp/health; sleep 100000 & wait";
    space.started(&alive(shell(script), by_exec()))?;
    lab.until("it was asked", 30, || Ok(space.log("probed", "")?.contains("probed")))?;
    space.pod_until("probed", "is restarted once", |pod| restarts(pod) == 1)?;
    let told = space.told("probed")?;
    ensure!(told.contains("Unhealthy: Liveness probe failed: cat: can't open '/tmp/health'"), "{told}");
    Ok(())
}

// [sig-node] Probing container should *not* be restarted with a tcp:8080 liveness probe [NodeConformance] [Conformance]
fn tcp_passes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-tcp")?;
    // Its port is open, and answers over HTTP are errors.
    space.started(&alive(server(&["--unready"]), json!({ "tcpSocket": { "port": 8080 } })))?;
    let script = "wget -q -O - http://127.0.0.1:8080/readyz 2>&1; true";
    let said = lab.api()?.exec(&space.name, "probed", "main", &["sh", "-c", script])?;
    ensure!(said.contains("503"), "{said}");
    // A connection without a request is a probe's; those of this test all have one.
    lab.until("it was asked often", 30, || {
        let seen = lab.api()?.text(&space.url("pods/probed:8080/proxy/seen"))?;
        Ok(seen.matches("CLOSED").count() >= ENOUGH)
    })?;
    left_alone(&space)
}

// [sig-node] Probing container should *not* be restarted with a GRPC liveness probe [NodeConformance] [Conformance]
fn grpc_passes(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-grpc")?;
    space.started(&alive(server(&["--grpc=5000"]), json!({ "grpc": { "port": 5000 } })))?;
    lab.until("it was asked often", 30, || Ok(asked(&space, "GRPC /grpc.health.v1.Health/Check")? >= ENOUGH))?;
    left_alone(&space)
}

// [sig-node] Probing container should be restarted with a GRPC liveness probe [NodeConformance] [Conformance]
fn grpc_fails(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-grpc-fails")?;
    // Nobody listens on this port.
    space.make("pods", &alive(server(&["--grpc=5000"]), json!({ "grpc": { "port": 2333 } })))?;
    space.pod_until("probed", "is restarted", |pod| restarts(pod) >= 1)?;
    let told = space.told("probed")?;
    ensure!(told.contains("Unhealthy: Liveness probe failed"), "{told}");
    Ok(())
}

// [sig-node] Probing container should have monotonically increasing restart count [NodeConformance] [Conformance]
fn counts_only_grow(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-counts")?;
    let probe = json!({ "exec": { "command": ["false"] } });
    let script = "trap 'exit 0' TERM; sleep 100000 & wait";
    let made = alive(shell(script), probe);
    let watch = lab.api()?.watch(&space.url("pods"), "")?;
    space.make("pods", &made)?;
    let mut seen = vec![0];
    // With the delays of a crash loop between them (10, 20, 40 s), which is why this test is the first to begin.
    watch.until("MODIFIED", 220, |pod| {
        let count = restarts(pod);
        if seen.last() != Some(&count) {
            seen.push(count);
        }
        count >= 5
    })?;
    ensure!(seen == [0, 1, 2, 3, 4, 5], "{seen:?}");
    Ok(())
}

fn ready_probe(container: Value, probe: Value) -> Value {
    let mut container = container;
    container["readinessProbe"] = probe;
    container["readinessProbe"]["periodSeconds"] = json!(1);
    let mut pod = pod("probed", container);
    pod["spec"]["restartPolicy"] = json!("Always");
    pod
}

fn time(value: &Value) -> Result<Timestamp> {
    let text = value.as_str().with_context(|| format!("no time: {value}"))?;
    Ok(text.parse()?)
}

// [sig-node] Probing container with readiness probe should not be ready before initial delay and never restart [NodeConformance] [Conformance]
fn ready_after_the_delay(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-delay")?;
    let probe = json!({ "httpGet": { "path": "/healthz", "port": 8080 }, "initialDelaySeconds": 6 });
    let watch = lab.api()?.watch(&space.url("pods"), "")?;
    space.make("pods", &ready_probe(server(&[]), probe))?;
    let pod = watch.until("MODIFIED", 60, |pod| holds(pod, "Ready"))?;
    let started = time(&first(&pod)["state"]["running"]["startedAt"])?;
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("no Ready")?;
    let took = time(&ready["lastTransitionTime"])?.duration_since(started).as_secs();
    // Both times are cut to seconds.
    ensure!((5..20).contains(&took), "ready {took} s after the start");
    ensure!(restarts(&space.read("pods/probed")?) == 0);
    Ok(())
}

// [sig-node] Probing container with readiness probe that fails should never be ready and never restart [NodeConformance] [Conformance]
fn never_ready(lab: &Lab) -> Result<()> {
    let space = lab.quarter("probe-never")?;
    let script = "echo asked > /proc/1/fd/1; exit 1";
    let probe = json!({ "exec": { "command": ["sh", "-c", script] } });
    let watch = lab.api()?.watch(&space.url("pods"), "")?;
    space.make("pods", &ready_probe(shell("sleep 100000"), probe))?;
    lab.until("it was asked often", 60, || Ok(space.log("probed", "")?.matches("asked").count() >= ENOUGH))?;
    space.merge("pods/probed", &json!({ "metadata": { "labels": { "enough": "yes" } } }))?;
    let mut was_ready = false;
    let pod = watch.until("MODIFIED", 30, |pod| {
        was_ready |= holds(pod, "Ready");
        pod["metadata"]["labels"]["enough"] == "yes"
    })?;
    ensure!(!was_ready && first(&pod)["ready"] == false && restarts(&pod) == 0, "{}", pod["status"]);
    Ok(())
}
