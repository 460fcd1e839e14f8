//! Init containers: one after the other, all before the others, and what becomes of the pod when one fails.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::objects::{first, holds, idle, pod, pod_of, shell};
use serde_json::{Value, json};

tests![failing_again_and_again, failing_once, before_an_endless_pod, before_a_pod_that_ends];

/// Two init containers in front of `pod`.
fn with_inits(mut pod: Value, restart: &str, scripts: [&str; 2]) -> Value {
    let inits = pod_of("none", json!([shell(scripts[0]), shell(scripts[1])]));
    pod["spec"]["initContainers"] = inits["spec"]["containers"].clone();
    for (at, init) in pod["spec"]["initContainers"].as_array_mut().into_iter().flatten().enumerate() {
        init["name"] = json!(format!("init{}", at + 1));
    }
    pod["spec"]["restartPolicy"] = json!(restart);
    pod
}

fn inits(pod: &Value) -> Result<Vec<Value>> {
    let all = pod["status"]["initContainerStatuses"].as_array().cloned();
    all.filter(|all| all.len() == 2).with_context(|| format!("two init containers were expected: {}", pod["status"]))
}

/// Both have ended well, the second after the first, and the main container began after both.
fn in_order(pod: &Value, began: &Value) -> Result<()> {
    ensure!(holds(pod, "Initialized"), "{}", pod["status"]["conditions"]);
    let mut before = String::new();
    for init in inits(pod)? {
        let ended = &init["state"]["terminated"];
        ensure!(init["ready"] == true && ended["exitCode"] == 0 && ended["reason"] == "Completed", "{init}");
        let (from, to) = (ended["startedAt"].as_str().unwrap_or(""), ended["finishedAt"].as_str().unwrap_or(""));
        ensure!(before.as_str() <= from && from <= to && !to.is_empty(), "{before} {init}");
        to.clone_into(&mut before);
    }
    ensure!(began.as_str().is_some_and(|began| before.as_str() <= began), "{began} is before {before}");
    Ok(())
}

// [sig-node] InitContainer [NodeConformance] should invoke init containers on a RestartAlways pod [Conformance]
fn before_an_endless_pod(lab: &Lab) -> Result<()> {
    let space = lab.quarter("init-always")?;
    let pod = space.started(&with_inits(pod("endless", idle()), "Always", ["true", "true"]))?;
    ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
    in_order(&pod, &first(&pod)["state"]["running"]["startedAt"])
}

// [sig-node] InitContainer [NodeConformance] should invoke init containers on a RestartNever pod [Conformance]
fn before_a_pod_that_ends(lab: &Lab) -> Result<()> {
    let space = lab.quarter("init-never")?;
    space.make("pods", &with_inits(pod("once", shell("true")), "Never", ["true", "true"]))?;
    let pod = space.ended("once")?;
    ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
    let ended = &first(&pod)["state"]["terminated"];
    ensure!(ended["exitCode"] == 0 && first(&pod)["restartCount"] == 0, "{ended}");
    in_order(&pod, &ended["startedAt"])
}

// [sig-node] InitContainer [NodeConformance] should not start app containers and fail the pod if init containers fail on a RestartNever pod [Conformance]
fn failing_once(lab: &Lab) -> Result<()> {
    let space = lab.quarter("init-fails")?;
    space.make("pods", &with_inits(pod("failing", shell("true")), "Never", ["true", "exit 3"]))?;
    let pod = space.ended("failing")?;
    ensure!(pod["status"]["phase"] == "Failed" && !holds(&pod, "Initialized"), "{}", pod["status"]);
    let all = inits(&pod)?;
    ensure!(all[0]["state"]["terminated"]["exitCode"] == 0, "{}", all[0]);
    ensure!(all[1]["state"]["terminated"]["exitCode"] == 3 && all[1]["restartCount"] == 0, "{}", all[1]);
    let main = first(&pod);
    ensure!(main["state"]["waiting"]["reason"] == "PodInitializing" && main["started"] != true, "{main}");
    ensure!(main.get("containerID").is_none_or(|id| id == ""), "the main container was made: {main}");
    Ok(())
}

// [sig-node] InitContainer [NodeConformance] should not start app containers if init containers fail on a RestartAlways pod [Conformance]
fn failing_again_and_again(lab: &Lab) -> Result<()> {
    let space = lab.quarter("init-loop")?;
    space.make("pods", &with_inits(pod("looping", idle()), "Always", ["exit 1", "true"]))?;
    // "A few occurrences": three, with the usual delays between them.
    let pod = space.pod_until("looping", "has failed three times", |pod| {
        pod["status"]["initContainerStatuses"][0]["restartCount"].as_u64().unwrap_or(0) >= 3
    })?;
    ensure!(pod["status"]["phase"] == "Pending" && !holds(&pod, "Initialized"), "{}", pod["status"]);
    let all = inits(&pod)?;
    ensure!(all[1]["state"]["waiting"]["reason"] == "PodInitializing" && all[1]["restartCount"] == 0, "{}", all[1]);
    let main = first(&pod);
    ensure!(main["state"]["waiting"]["reason"] == "PodInitializing" && main["restartCount"] == 0, "{main}");
    Ok(())
}
