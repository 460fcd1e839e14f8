//! Nodes that only pretend: they register, and their pods become ready at once and end when deleted. A pod with the label
//! `hollow` of value `succeed` or `fail` ends at once instead.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use kube_common::backoff::WatchBackoff;
use serde_json::json;

/// Makes a node, if it is not there, and reports it ready.
pub async fn register(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node =
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}))?;
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => other.map(drop)?,
    }
    let resources = json!({"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let now = Timestamp::now().to_string();
    let status = json!({"status": {"capacity": resources, "allocatable": resources, "conditions": [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// Renews the leases of the nodes again and again.
pub async fn renew(client: Client, names: Vec<String>, every: Duration) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    loop {
        for name in &names {
            let now = Timestamp::now();
            let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format!("{now:.6}")});
            let patch = Patch::Merge(json!({"spec": spec}));
            if leases.patch(name, &PatchParams::default(), &patch).await.is_err() {
                let lease = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}));
                if let Ok(lease) = lease {
                    let _ = leases.create(&PostParams::default(), &lease).await;
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Phase and exit code of a pod that ends at once.
fn end_of(labels: &std::collections::BTreeMap<String, String>) -> Option<(&'static str, i32)> {
    match labels.get("hollow").map(String::as_str) {
        Some("succeed") => Some(("Succeeded", 0)),
        Some("fail") => Some(("Failed", 1)),
        _ => None,
    }
}

async fn act(client: Client, pod: Pod, number: usize) {
    let (namespace, name) = (pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let result = if pod.metadata.deletion_timestamp.is_some() {
        pods.delete(&name, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await.map(drop)
    } else if let Some(end) = end_of(&pod.metadata.labels.clone().unwrap_or_default()) {
        if pod.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Pending") {
            return;
        }
        let now = Timestamp::now().to_string();
        let state = json!({"terminated": {"exitCode": end.1, "finishedAt": now}});
        let status = json!({"status": {"phase": end.0, "containerStatuses": [{"name": "c", "image": "x", "imageID": "x",
            "ready": false, "restartCount": 0, "state": state}]}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await.map(drop)
    } else if pod.status.as_ref().and_then(|s| s.pod_ip.as_ref()).is_none() {
        let now = Timestamp::now().to_string();
        let ip = format!("10.244.{}.{}", number / 250 % 250, number % 250 + 1);
        let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
        let running = |c: &Container| {
            json!({"name": c.name, "image": c.image, "imageID": "x", "containerID": format!("hollow://{}", c.name), "ready": true,
                "started": true, "restartCount": 0, "state": {"running": {"startedAt": now}}})
        };
        let containers: Vec<_> = containers.iter().map(running).collect();
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": now}], "containerStatuses": containers}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await.map(drop)
    } else {
        Ok(())
    };
    match result {
        Ok(()) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => eprintln!("{namespace}/{name}: {error}"),
    }
}

/// Runs the pods of all nodes, for ever.
pub async fn run_pods(client: Client) {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let pods: Api<Pod> = Api::all(client.clone());
    let mut stream = std::pin::pin!(watcher(pods, bound).backoff(WatchBackoff::default()).applied_objects());
    while let Some(next) = stream.next().await {
        let Ok(pod) = next else { continue };
        let known = numbers.len();
        let number = *numbers.entry(pod.metadata.uid.clone().unwrap_or_default()).or_insert(known);
        tokio::spawn(act(client.clone(), pod, number));
    }
}
