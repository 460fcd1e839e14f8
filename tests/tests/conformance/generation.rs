//! `metadata.generation` of pods, and what the agent has seen of it.

use anyhow::{Result, ensure};
use keelson_tests::api::Patch;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::{holds, idle, pod};
use serde_json::{Value, json};

tests![five_hundred_updates, counts_updates, own_value_and_deletion];

/// Updates that one pod gets, its creation among them.
const UPDATES: u64 = 500;

fn generation(pod: &Value) -> u64 {
    pod["metadata"]["generation"].as_u64().unwrap_or(0)
}

fn observed(space: &Space<'_>, expected: u64) -> Result<Value> {
    space.pod_until("counted", &format!("is observed in generation {expected}"), |pod| {
        pod["status"]["observedGeneration"] == expected && generation(pod) == expected
    })
}

// [sig-node] Pods Extended (pod generation) Pod Generation pod generation should start at 1 and increment per update [MinimumKubeletVersion:1.34] [Conformance]
fn counts_updates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("generation")?;
    let made = space.make("pods", &pod("counted", idle()))?;
    ensure!(generation(&made) == 1, "a new pod has generation {}", generation(&made));
    space.pod_until("counted", "is ready", |pod| holds(pod, "Ready"))?;
    observed(&space, 1)?;
    // What is not the spec does not count.
    let pod = space.amend("pods/counted", &json!({ "metadata": { "labels": { "more": "yes" }, "generation": 7 } }))?;
    ensure!(generation(&pod) == 1, "a label counts: {}", generation(&pod));
    let pod = space.amend("pods/counted", &json!({ "metadata": { "annotations": { "more": "yes" } } }))?;
    ensure!(generation(&pod) == 1, "an annotation counts: {}", generation(&pod));
    let toleration = json!({ "key": "some", "operator": "Exists", "effect": "NoSchedule" });
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.push(toleration);
    let pod = space.merge("pods/counted", &json!({ "spec": { "tolerations": tolerations } }))?;
    ensure!(generation(&pod) == 2, "a toleration does not count: {}", generation(&pod));
    observed(&space, 2)?;
    let pod = space.merge("pods/counted", &json!({ "spec": { "activeDeadlineSeconds": 5000 } }))?;
    ensure!(generation(&pod) == 3, "a deadline does not count: {}", generation(&pod));
    // The same again is no update.
    let pod = space.merge("pods/counted", &json!({ "spec": { "activeDeadlineSeconds": 5000 } }))?;
    ensure!(generation(&pod) == 3, "an update that changes nothing counts: {}", generation(&pod));
    observed(&space, 3)?;
    let ephemeral = json!([{ "name": "look", "image": "busybox:1.28", "command": ["sleep", "1000"] }]);
    let url = space.url("pods/counted/ephemeralcontainers");
    lab.api()?.patch(&url, Patch::Strategic, &json!({ "spec": { "ephemeralContainers": ephemeral } }))?;
    let pod = observed(&space, 4)?;
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    ensure!(ready.is_some_and(|ready| ready["observedGeneration"].is_u64()), "{conditions:?}");
    Ok(())
}

// [sig-node] Pods Extended (pod generation) Pod Generation custom-set generation on new pods and graceful delete [Conformance]
fn own_value_and_deletion(lab: &Lab) -> Result<()> {
    let space = lab.quarter("generation-own")?;
    let mut mine = pod("counted", json!({ "command": ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"] }));
    mine["metadata"]["generation"] = json!(100);
    mine["spec"]["terminationGracePeriodSeconds"] = json!(4);
    let made = space.make("pods", &mine)?;
    ensure!(generation(&made) == 1, "a new pod has generation {}", generation(&made));
    space.pod_until("counted", "is ready", |pod| holds(pod, "Ready"))?;
    space.remove("pods/counted")?;
    let pod = space.read("pods/counted")?;
    ensure!(pod["metadata"]["deletionTimestamp"].is_string() && generation(&pod) == 2, "{}", pod["metadata"]);
    space.gone("counted")
}

// [sig-node] Pods Extended (pod generation) Pod Generation issue 500 podspec updates and verify generation and observedGeneration eventually converge [MinimumKubeletVersion:1.34] [Conformance]
fn five_hundred_updates(lab: &Lab) -> Result<()> {
    let space = lab.quarter("generation-many")?;
    space.started(&pod("counted", idle()))?;
    // A deadline may only be brought forward.
    for left in (1..UPDATES).rev() {
        let pod = space.merge("pods/counted", &json!({ "spec": { "activeDeadlineSeconds": 100_000 + left } }))?;
        ensure!(generation(&pod) == UPDATES + 1 - left, "generation {} with {left} updates left", generation(&pod));
    }
    observed(&space, UPDATES).map(drop)
}
