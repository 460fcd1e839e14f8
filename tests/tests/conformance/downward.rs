//! What a pod is told of itself by variables.

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::objects::pod;
use kube_common::quantity::Quantity;
use serde_json::{Value, json};

tests![resources, defaults_from_allocatable, host_ip, host_ips, uid, name_namespace_address];

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } })
}

fn resource(name: &str, resource: &str) -> Value {
    json!({ "name": name, "valueFrom": { "resourceFieldRef": { "resource": resource } } })
}

/// Runs a pod with these variables: the pod as it ended, and what it saw.
fn told(space: &Space<'_>, env: Value, resources: Value) -> Result<(Value, Vec<String>)> {
    let said = space.says(&pod("told", json!({ "command": ["env"], "env": env, "resources": resources })))?;
    Ok((space.read("pods/told")?, said.lines().map(str::to_owned).collect()))
}

fn value<'a>(lines: &'a [String], name: &str) -> Result<&'a str> {
    let found = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    found.with_context(|| format!("no {name} in {lines:?}"))
}

fn all_resources() -> Value {
    json!([
        resource("CPU_LIMIT", "limits.cpu"),
        resource("MEMORY_LIMIT", "limits.memory"),
        resource("CPU_REQUEST", "requests.cpu"),
        resource("MEMORY_REQUEST", "requests.memory"),
    ])
}

// [sig-node] Downward API should provide container's limits.cpu/memory and requests.cpu/memory as env vars [NodeConformance] [Conformance]
fn resources(lab: &Lab) -> Result<()> {
    let space = lab.quarter("downward-resources")?;
    let resources =
        json!({ "requests": { "cpu": "250m", "memory": "32Mi" }, "limits": { "cpu": "1250m", "memory": "64Mi" } });
    let (_, lines) = told(&space, all_resources(), resources)?;
    // Whole units, rounded up, as the divisor "0" means.
    for (name, expected) in
        [("CPU_LIMIT", "2"), ("MEMORY_LIMIT", "67108864"), ("CPU_REQUEST", "1"), ("MEMORY_REQUEST", "33554432")]
    {
        ensure!(value(&lines, name)? == expected, "{name} is {}, not {expected}", value(&lines, name)?);
    }
    Ok(())
}

// [sig-node] Downward API should provide default limits.cpu/memory from node allocatable [NodeConformance] [Conformance]
fn defaults_from_allocatable(lab: &Lab) -> Result<()> {
    let space = lab.quarter("downward-defaults")?;
    let env = json!([resource("CPU_LIMIT", "limits.cpu"), resource("MEMORY_LIMIT", "limits.memory")]);
    let (pod, lines) = told(&space, env, json!({}))?;
    let node = lab.api()?.get(&format!("/api/v1/nodes/{}", pod["spec"]["nodeName"].as_str().unwrap_or_default()))?;
    let allocatable = |name: &str| -> Result<i64> {
        let text = node["status"]["allocatable"][name].as_str().with_context(|| format!("no {name}: {node}"))?;
        Ok(Quantity::parse(text)?.value())
    };
    ensure!(value(&lines, "CPU_LIMIT")?.parse::<i64>()? == allocatable("cpu")?, "{lines:?}");
    ensure!(value(&lines, "MEMORY_LIMIT")?.parse::<i64>()? == allocatable("memory")?, "{lines:?}");
    Ok(())
}

// [sig-node] Downward API should provide host IP as an env var [NodeConformance] [Conformance]
fn host_ip(lab: &Lab) -> Result<()> {
    let space = lab.quarter("downward-host")?;
    let (pod, lines) = told(&space, json!([field("HOST_IP", "status.hostIP")]), json!({}))?;
    let address = lab.address("node-1")?.to_string();
    ensure!(pod["status"]["hostIP"] == address.as_str(), "{}", pod["status"]);
    ensure!(value(&lines, "HOST_IP")? == address, "{lines:?}");
    Ok(())
}

// [sig-node] Downward API should provide hostIPs as an env var [NodeConformance] [Conformance]
fn host_ips(lab: &Lab) -> Result<()> {
    let space = lab.quarter("downward-hosts")?;
    let (pod, lines) = told(&space, json!([field("HOST_IPS", "status.hostIPs")]), json!({}))?;
    let all = pod["status"]["hostIPs"].as_array().cloned().unwrap_or_default();
    let all: Vec<&str> = all.iter().filter_map(|entry| entry["ip"].as_str()).collect();
    ensure!(all.contains(&lab.address("node-1")?.to_string().as_str()), "{}", pod["status"]);
    ensure!(value(&lines, "HOST_IPS")? == all.join(","), "{lines:?}");
    Ok(())
}

// [sig-node] Downward API should provide pod UID as env vars [NodeConformance] [Conformance]
fn uid(lab: &Lab) -> Result<()> {
    let space = lab.quarter("downward-uid")?;
    let (pod, lines) = told(&space, json!([field("POD_UID", "metadata.uid")]), json!({}))?;
    ensure!(pod["metadata"]["uid"] == value(&lines, "POD_UID")?, "{lines:?}");
    Ok(())
}

// [sig-node] Downward API should provide pod name, namespace and IP address as env vars [NodeConformance] [Conformance]
fn name_namespace_address(lab: &Lab) -> Result<()> {
    let space = lab.quarter("downward-names")?;
    let env = json!([
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_IP", "status.podIP"),
    ]);
    let (pod, lines) = told(&space, env, json!({}))?;
    ensure!(value(&lines, "POD_NAME")? == "told" && value(&lines, "POD_NAMESPACE")? == space.name, "{lines:?}");
    let address = value(&lines, "POD_IP")?;
    ensure!(address.parse::<std::net::IpAddr>().is_ok() && pod["status"]["podIP"] == address, "{lines:?}");
    Ok(())
}
