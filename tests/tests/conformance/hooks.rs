//! postStart and preStop hooks: that they ran is asked of a server which they call.

use anyhow::{Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{idle, name_of, pod, server};
use serde_json::{Value, json};

tests![post_start_exec, post_start_http, pre_stop_exec, pre_stop_http, pre_stop_before_the_end];

/// Starts the server and gives its address.
fn listener(space: &Space<'_>) -> Result<String> {
    let pod = space.started(&pod("listener", server(&[])))?;
    Ok(pod["status"]["podIP"].as_str().unwrap_or_default().to_owned())
}

/// What the server was asked for.
fn heard(space: &Space<'_>) -> Result<String> {
    space.lab.api()?.text(&space.url("pods/listener:8080/proxy/seen"))
}

fn by_exec(address: &str, word: &str) -> Value {
    json!({ "exec": { "command": ["wget", "-q", "-O", "-", format!("http://{address}:8080/hook?{word}")] } })
}

fn by_http(address: &str, word: &str) -> Value {
    json!({ "httpGet": { "host": address, "port": 8080, "path": format!("/hook?{word}"),
        "httpHeaders": [{ "name": "X-Told", "value": word }] } })
}

fn hooked(name: &str, hook: &str, handler: Value) -> Value {
    let mut container = idle();
    container["lifecycle"] = json!({ hook: handler });
    let mut pod = pod(name, container);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(10);
    pod
}

/// With a postStart hook the server has heard of it once the pod is ready; with a preStop hook once the pod is gone, and not before.
fn called(lab: &Lab, name: &str, hook: &str, handler: fn(&str, &str) -> Value) -> Result<()> {
    let space = lab.quarter(name)?;
    let address = listener(&space)?;
    let pod = hooked("hooked", hook, handler(&address, name));
    space.started(&pod)?;
    let call = format!("GET /hook?{name}");
    if hook == "postStart" {
        ensure!(heard(&space)?.contains(&call), "the server did not hear {call:?}: {}", heard(&space)?);
        return Ok(());
    }
    ensure!(!heard(&space)?.contains(&call), "the hook ran before the pod was deleted: {}", heard(&space)?);
    space.remove(&format!("pods/{}", name_of(&pod)))?;
    space.gone("hooked")?;
    ensure!(heard(&space)?.contains(&call), "the server did not hear {call:?}: {}", heard(&space)?);
    Ok(())
}

// [sig-node] Container Lifecycle Hook when create a pod with lifecycle hook should execute poststart exec hook properly [NodeConformance] [Conformance]
fn post_start_exec(lab: &Lab) -> Result<()> {
    called(lab, "hook-start-exec", "postStart", by_exec)
}

// [sig-node] Container Lifecycle Hook when create a pod with lifecycle hook should execute poststart http hook properly [NodeConformance] [Conformance]
fn post_start_http(lab: &Lab) -> Result<()> {
    called(lab, "hook-start-http", "postStart", by_http)
}

// [sig-node] Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop exec hook properly [NodeConformance] [Conformance]
fn pre_stop_exec(lab: &Lab) -> Result<()> {
    called(lab, "hook-stop-exec", "preStop", by_exec)
}

// [sig-node] Container Lifecycle Hook when create a pod with lifecycle hook should execute prestop http hook properly [NodeConformance] [Conformance]
fn pre_stop_http(lab: &Lab) -> Result<()> {
    called(lab, "hook-stop-http", "preStop", by_http)
}

// [sig-node] PreStop should call prestop when killing a pod [Conformance]
fn pre_stop_before_the_end(lab: &Lab) -> Result<()> {
    let space = lab.quarter("hook-killing")?;
    let address = listener(&space)?;
    // A post, and then the word that the container has not been told to end yet.
    let post = format!("http://{address}:8080/write");
    let script =
        format!("wget -q -O - --post-data=called {post} && sleep 1 && wget -q -O - {post}?alive=$(cat /tmp/alive)");
    let main = "trap 'echo no > /tmp/alive; exit 0' TERM; echo yes > /tmp/alive; while true; do sleep 0.1; done";
    let container = json!({
        "command": ["sh", "-c", main],
        "lifecycle": { "preStop": { "exec": { "command": ["sh", "-c", script] } } },
    });
    let mut pod = pod("tester", container);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(20);
    space.started(&pod)?;
    space.remove("pods/tester")?;
    space.gone("tester")?;
    let heard = heard(&space)?;
    ensure!(heard.contains("POST /write") && heard.contains("GET /write?alive=yes"), "{heard}");
    Ok(())
}
