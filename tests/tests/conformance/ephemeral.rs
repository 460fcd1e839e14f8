//! Ephemeral containers join a running pod.

use anyhow::{Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{idle, pod};
use serde_json::{Value, json};

tests![starts, another_one];

fn add(space: &Space<'_>, name: &str) -> Result<Value> {
    let url = space.url("pods/host/ephemeralcontainers");
    let container = json!({ "name": name, "image": "busybox:1.28", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", format!("echo this is {name}; sleep 100000")] });
    space.lab.api()?.patch(&url, Patch::Strategic, &json!({ "spec": { "ephemeralContainers": [container] } }))
}

fn runs(space: &Space<'_>, name: &str) -> Result<()> {
    space.pod_until("host", &format!("has {name} running"), |pod| {
        let all = pod["status"]["ephemeralContainerStatuses"].as_array().cloned().unwrap_or_default();
        all.iter().any(|status| status["name"] == name && status["state"]["running"].is_object())
    })?;
    let mut said = String::new();
    space.lab.until(&format!("{name} has spoken"), 30, || {
        said = space.log("host", name)?;
        Ok(said == format!("this is {name}\n"))
    })
}

/// Names of the ephemeral containers; a strategic merge puts what is new in front.
fn names(space: &Space<'_>) -> Result<Vec<String>> {
    let pod = space.read("pods/host")?;
    let all = pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = all.iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    Ok(names)
}

// [sig-node] Ephemeral Containers [NodeConformance] will start an ephemeral container in an existing pod [Conformance]
fn starts(lab: &Lab) -> Result<()> {
    let space = lab.quarter("ephemeral-one")?;
    let before = space.started(&pod("host", idle()))?;
    add(&space, "debugger")?;
    runs(&space, "debugger")?;
    let after = space.read("pods/host")?;
    let id = "/status/containerStatuses/0/containerID";
    ensure!(before.pointer(id).is_some() && before.pointer(id) == after.pointer(id), "the main container is another");
    Ok(())
}

// [sig-node] Ephemeral Containers [NodeConformance] should update the ephemeral containers in an existing pod [Conformance]
fn another_one(lab: &Lab) -> Result<()> {
    let space = lab.quarter("ephemeral-two")?;
    space.started(&pod("host", idle()))?;
    add(&space, "first")?;
    runs(&space, "first")?;
    ensure!(names(&space)? == ["first"], "{:?}", names(&space)?);
    add(&space, "second")?;
    runs(&space, "second")?;
    ensure!(names(&space)? == ["first", "second"], "{:?}", names(&space)?);
    Ok(())
}
