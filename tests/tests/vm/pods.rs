//! Pods on real machines: limits, network, logs.

use anyhow::{Result, bail, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::manifests;
use serde_json::Value;

use super::{ASK, NODES, pinned, pod, rolled_out, shell};

/// Limits and requests as the kernel shows them, for the pod and its container, on cgroup v2.
pub fn limits(lab: &Lab) -> Result<()> {
    let space = lab.space("limits")?;
    for node in NODES {
        let name = format!("limited-{node}");
        let resources = "          resources:\n            requests: {cpu: 100m, memory: 32Mi}\n            limits: {cpu: 250m, memory: 64Mi}\n          ports:";
        space.apply(&pinned(&name, node).replace("          ports:", resources))?;
    }
    for node in NODES {
        let name = format!("limited-{node}");
        rolled_out(&space, &name)?;
        let pod = pod(&space, &name)?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
        let id = id.trim_start_matches("containerd://");
        let folder = format!("/sys/fs/cgroup/kubepods/burstable/pod{uid}");
        let read = |path: &str| shell(lab, node, &format!("cat {folder}/{path}"));
        for part in ["", id] {
            let at = |file: &str| if part.is_empty() { file.to_owned() } else { format!("{part}/{file}") };
            ensure!(read(&at("cpu.max"))? == "25000 100000\n", "{node} {part}: {}", read(&at("cpu.max"))?);
            ensure!(read(&at("memory.max"))? == format!("{}\n", 64 << 20), "{node} {part}");
            // 102 shares are a weight of 4 by runc's old formula and of 17 by the one that keeps proportions.
            let weight: u64 = read(&at("cpu.weight"))?.trim().parse()?;
            ensure!([4, 17].contains(&weight), "{node} {part}: cpu.weight {weight}");
        }
        let processes = read(&format!("{id}/cgroup.procs"))?;
        ensure!(!processes.trim().is_empty(), "{node}: nothing runs in the container's cgroup");
        // All pods together: what the node has, less what is reserved for others.
        let total: u64 = shell(lab, node, "cat /sys/fs/cgroup/kubepods/memory.max")?.trim().parse()?;
        let capacity = lab.kubectl(&["get", "node", node, "-o", "jsonpath={.status.capacity.memory}"])?;
        let capacity: u64 = capacity.trim_end_matches("Ki").parse::<u64>()? << 10;
        ensure!(total <= capacity && total > capacity / 2, "{node} has {capacity}, its pods may use {total}");
    }
    Ok(())
}

/// Pods of both nodes reach each other by host-gw routes, and Services work from nodes and pods, by nftables.
pub fn network(lab: &Lab) -> Result<()> {
    let space = lab.space("network")?;
    for node in NODES {
        space.apply(&pinned(&format!("web-{node}"), node))?;
        space.apply(&manifests::service(&format!("web-{node}"), &format!("web-{node}"), "NodePort"))?;
    }
    let client = manifests::shell("client", "Never", "sleep 3600").replace("spec:\n", "spec:\n  nodeName: node-1\n");
    space.apply(&client)?;
    let mut servers = Vec::new();
    for node in NODES {
        let app = format!("web-{node}");
        rolled_out(&space, &app)?;
        space.endpoints(&app, 1)?;
        let (tables, routes) = (shell(lab, node, "nft list tables")?, shell(lab, node, "ip route show proto 107")?);
        ensure!(tables.contains("keelson-dataplane"), "{tables}");
        ensure!(routes.contains("via 10.90."), "{node} has no host-gw route: {routes}");
        let (server, service) = (pod(&space, &app)?, space.json(&["get", "service", &app])?);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        servers.push(Server {
            name: text(&server["metadata"]["name"]),
            pod: text(&server["status"]["podIP"]),
            service: text(&service["spec"]["clusterIP"]),
            node_port: service["spec"]["ports"][0]["nodePort"].to_string(),
        });
    }
    // Each guest asks for itself.
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = NODES.iter().map(|node| scope.spawn(|| reaches_all(lab, node, &servers))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("it panicked"))).collect()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    // From a pod of one node to one of the other, by Service address.
    space.kubectl(&["wait", "--for=condition=Ready", "pod/client", "--timeout=180s"])?;
    let Server { name, service, .. } = &servers[1];
    let script = format!("printf 'GET /hostname HTTP/1.0\\r\\n\\r\\n' | nc {service} 80 | tail -n 1");
    lab.until("a pod reaches a Service whose pod is on the other node", 60, || {
        Ok(space.kubectl(&["exec", "client", "--", "sh", "-c", &script])?.trim() == *name)
    })
}

/// A server's pod and the ways to it.
struct Server {
    name: String,
    pod: String,
    service: String,
    node_port: String,
}

/// A node reaches every server by its pod's address, by its Service's and by the node's own port.
fn reaches_all(lab: &Lab, from: &str, servers: &[Server]) -> Result<()> {
    let own = node_address(lab, from)?;
    for Server { name, pod, service, node_port } in servers {
        for (address, port) in [(pod, "8080"), (service, "80"), (&own, node_port.as_str())] {
            lab.until(&format!("{from} reaches {name} by {address}:{port}"), 60, || {
                Ok(shell(lab, from, &format!("{ASK} ask {address} {port} /hostname"))?.trim() == name)
            })?;
        }
    }
    Ok(())
}

fn node_address(lab: &Lab, node: &str) -> Result<String> {
    let path = r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address}"#;
    lab.kubectl(&["get", "node", node, "-o", path])
}

/// Logs and commands reach pods through the agents of both nodes.
pub fn logs(lab: &Lab) -> Result<()> {
    let space = lab.space("logs")?;
    for node in NODES {
        let manifest = manifests::shell(&format!("talk-{node}"), "Never", "echo spoken; sleep 3600");
        space.apply(&manifest.replace("spec:\n", &format!("spec:\n  nodeName: {node}\n")))?;
    }
    for node in NODES {
        let name = format!("talk-{node}");
        space.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"])?;
        lab.until("the log is there", 60, || Ok(space.kubectl(&["logs", &name])? == "spoken\n"))?;
        let kernel = space.kubectl(&["exec", &name, "--", "uname", "-r"])?;
        ensure!(kernel == shell(lab, node, "uname -r")?, "{kernel}");
    }
    Ok(())
}
