//! NoExecute taints on the node. These tests run alone: whatever does not tolerate the taint must leave.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{idle, name_of, pod};
use serde_json::{Value, json};

tests![evicts_after_the_tolerated_time, removing_it_cancels];

const NODE: &str = "/api/v1/nodes/node-1";
const KEY: &str = "keelson.dev/evict";

fn tolerating(name: &str, seconds: u64) -> Value {
    let mut pod = pod(name, idle());
    pod["metadata"]["labels"]["group"] = json!("taint-eviction");
    pod["spec"]["tolerations"] = json!([{ "key": KEY, "operator": "Equal", "value": "yes", "effect": "NoExecute",
        "tolerationSeconds": seconds }]);
    pod
}

/// Adds the taint, or takes it away, and keeps all others.
fn taint(lab: &Lab, present: bool) -> Result<()> {
    lab.until("the node's taints are changed", 20, || {
        let mut node = lab.api()?.get(NODE)?;
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.retain(|taint| taint["key"] != KEY);
        if present {
            taints.push(json!({ "key": KEY, "value": "yes", "effect": "NoExecute" }));
        }
        node["spec"]["taints"] = json!(taints);
        lab.api()?.replace(NODE, &node).map(|_| true)
    })
}

/// Runs with the taint on the node, and takes it away whatever happens.
fn tainted(lab: &Lab, test: impl FnOnce() -> Result<()>) -> Result<()> {
    taint(lab, true)?;
    let result = test();
    taint(lab, false).context("taking the taint away")?;
    result
}

fn leaving(space: &Space<'_>, name: &str) -> Result<bool> {
    let list = space.read("pods")?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    Ok(all.iter().find(|pod| name_of(pod) == name).is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null()))
}

// [sig-node] NoExecuteTaintManager Multiple Pods [Serial] evicts pods with minTolerationSeconds [Disruptive] [Conformance]
fn evicts_after_the_tolerated_time(lab: &Lab) -> Result<()> {
    let space = lab.quarter("taint-many")?;
    let times = [("soon", 2), ("later", 6), ("last", 3600)];
    for (name, seconds) in times {
        space.make("pods", &tolerating(name, seconds))?;
    }
    for (name, _) in times {
        space.pod_until(name, "runs", |pod| pod["status"]["phase"] == "Running")?;
    }
    tainted(lab, || {
        let begun = Instant::now();
        for (name, seconds) in &times[..2] {
            lab.until(&format!("{name} is evicted"), 30, || leaving(&space, name))?;
            let (took, due) = (begun.elapsed(), Duration::from_secs(*seconds));
            // The taint's time is cut to seconds.
            ensure!(
                took + Duration::from_millis(1100) >= due && took <= due + Duration::from_secs(6),
                "{name} was evicted after {took:?}, not after {due:?}"
            );
        }
        ensure!(!leaving(&space, "last")?, "who tolerates an hour has to go after seconds");
        Ok(())
    })
}

// [sig-node] NoExecuteTaintManager Single Pod [Serial] removing taint cancels eviction [Disruptive] [Conformance]
fn removing_it_cancels(lab: &Lab) -> Result<()> {
    let space = lab.quarter("taint-one")?;
    space.started(&tolerating("patient", 5))?;
    let begun = Instant::now();
    tainted(lab, || {
        std::thread::sleep(Duration::from_secs(1));
        ensure!(!leaving(&space, "patient")?, "it had to go at once");
        Ok(())
    })?;
    ensure!(begun.elapsed() < Duration::from_secs(4), "the taint was there too long: {:?}", begun.elapsed());
    while begun.elapsed() < Duration::from_secs(9) {
        ensure!(!leaving(&space, "patient")?, "it was evicted {:?} after the taint came", begun.elapsed());
        std::thread::sleep(Duration::from_millis(300));
    }
    Ok(())
}
