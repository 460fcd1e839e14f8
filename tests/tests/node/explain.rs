//! `agent explain` and `agent pods`: what a node says of itself.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use serde_json::Value;

const AGENT: &str = "/opt/keelson/bin/agent";

fn ask(space: &Space<'_>, pod: &str, more: &[&str]) -> Result<String> {
    let mut command = vec![AGENT, "explain", pod, "-n", &space.name];
    command.extend(more);
    space.lab.node("node-1", &command)
}

fn explained(space: &Space<'_>, pod: &str, more: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&ask(space, pod, &[&["-o", "json"], more].concat())?)?)
}

fn texts<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| if key.is_empty() { item } else { &item[key] }.as_str())
        .collect()
}

/// The steps of a start add up, and what they took is there; a crash loop says when it goes on; the past is as it was.
pub fn explain(lab: &Lab) -> Result<()> {
    let space = lab.space("explain")?;
    space.apply(&manifests::shell("fine", "Always", "sleep 10000"))?;
    space.apply(&manifests::shell("loop", "Always", "exit 7"))?;
    space.ready_pod("fine")?;
    let fine = explained(&space, "fine", &[])?;
    ensure!(texts(&fine["wants"], "") == ["nothing to do: it is as it shall be"], "{fine:#}");
    ensure!(fine["source"] == "api" && fine["waits"].as_array().is_some_and(Vec::is_empty), "{fine:#}");
    ensure!(texts(&fine["sees"], "").iter().any(|line| line.starts_with("container main: running since")), "{fine:#}");
    let steps = texts(&fine["timeline"], "step");
    let expected = [
        "admission",
        "volumes",
        "sandbox",
        "network (CNI)",
        "image of main",
        "create of main",
        "start of main",
        "ready",
    ];
    for step in expected {
        ensure!(steps.contains(&step), "{step} is not in {steps:?}");
    }
    let took = |step: &str| {
        let found = fine["timeline"].as_array().into_iter().flatten().find(|past| past["step"] == step);
        found.and_then(|past| past["tookNs"].as_u64()).context("no time")
    };
    ensure!(took("network (CNI)")? > 1_000_000 && took("network (CNI)")? < took("sandbox")?, "{fine:#}");

    let again = lab.wait("the crash loop waits", 60, || {
        let seen = explained(&space, "loop", &[])?;
        let waits = texts(&seen["waits"], "on").iter().any(|wait| wait.contains("start container main again at"));
        Ok(waits.then_some(seen))
    })?;
    ensure!(texts(&again["errors"], "text").iter().any(|error| error.starts_with("BackOff: ")), "{again:#}");

    let before = fine["atNs"].as_i64().context("no time")?;
    space.kubectl(&["delete", "pod", "fine", "--timeout=60s"])?;
    lab.until("it is gone", 20, || Ok(explained(&space, "fine", &[])?["gone"] == true))?;
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(before.unsigned_abs());
    let ago = format!("{}ms", at.elapsed()?.as_millis());
    let past = explained(&space, "fine", &["--at", &ago])?;
    ensure!(past["gone"] == false && past["sees"] == fine["sees"], "then: {fine:#}\nnow: {past:#}");

    // A restart forgets nothing; without an agent its files answer.
    lab.service("node-1", "agent", "stop")?;
    let stopped = ask(&space, "fine", &["--at", &ago]);
    lab.service("node-1", "agent", "start")?;
    ensure!(stopped?.contains("container main: running since"));
    lab.until("the agent answers again", 30, || Ok(lab.node("node-1", &[AGENT, "pods"])?.contains("loop")))?;
    let table = lab.node("node-1", &[AGENT, "pods"])?;
    ensure!(table.starts_with("NAMESPACE") && table.contains(&space.name), "{table}");
    let unknown = ask(&space, "nobody", &[]).err().context("nobody is known")?;
    ensure!(format!("{unknown:#}").contains("knows nothing of a pod"), "{unknown:#}");
    Ok(())
}

/// What a slow start or end waits for is in the pod's condition.
pub fn slow_steps(lab: &Lab) -> Result<()> {
    let space = lab.space("slow")?;
    let stubborn = manifests::shell("stubborn", "Always", "trap '' TERM; while true; do sleep 1; done");
    space.apply(&stubborn.replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 16"))?;
    let hook = "      lifecycle:\n        postStart:\n          exec:\n            command: [sleep, '14']\n";
    space.apply(&format!("{}{hook}", manifests::shell("late", "Always", "sleep 10000")))?;
    space.ready_pod("stubborn")?;
    space.kubectl(&["delete", "pod", "stubborn", "--wait=false"])?;
    for (pod, step) in
        [("stubborn", "waiting for stop of main since 2"), ("late", "waiting for postStart hook of main since 2")]
    {
        lab.until(&format!("{pod} tells what it waits for"), 30, || {
            let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].message}"#;
            Ok(space.kubectl(&["get", "pod", pod, "-o", path])?.contains(step))
        })?;
    }
    let pod = space.ready_pod("late")?;
    lab.until("it tells it no more", 20, || {
        Ok(!space.json(&["get", "pod", "late"])?["status"].to_string().contains("waiting for"))
    })?;
    ensure!(pod["status"]["phase"] == "Running");
    Ok(())
}
