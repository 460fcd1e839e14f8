//! The guestbook: a web front end on three pods that writes to a redis leader and reads from its followers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use keelson_tests::suite::Skip;

use super::{doors, nodes};

/// Kubernetes' own example, kept beside this repository and not in it.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus/guestbook")
}

pub fn of_the_examples(lab: &Lab) -> Result<()> {
    let folder = examples();
    let all = folder.join("guestbook-all-in-one.yaml");
    if !all.is_file() {
        return Err(Skip(format!("{} is not there; a guestbook of our own is tested next", folder.display())).into());
    }
    let space = lab.space("guestbook")?;
    space.kubectl(&["apply", "-f", &all.display().to_string()])?;
    works(lab, &space, "first words")?;
    // The same application from its separate files: what was written is still there afterwards.
    let apart =
        ["redis-master-service", "redis-master-deployment", "redis-replica-service", "redis-replica-deployment"];
    for name in apart.iter().chain(&["frontend-service", "frontend-deployment", "redis-replica", "frontend"]) {
        space.kubectl(&["apply", "-f", &folder.join(format!("{name}.yaml")).display().to_string()])?;
    }
    for deployment in ["redis-master", "redis-replica", "frontend"] {
        space.rolled_out(deployment)?;
    }
    reads(lab, &space, "first words")?;
    works(lab, &space, "more words")
}

fn redis(name: &str, image: &str, replicas: u32, from: &str) -> String {
    part(name, image, replicas, 6379, from, "ClusterIP")
}

fn part(name: &str, image: &str, replicas: u32, port: u16, from: &str, kind: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  type: {kind}
  ports:
    - port: {port}
  selector:
    app: {name}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {replicas}
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
        - name: main
          image: {image}
          env:
            - name: GET_HOSTS_FROM
              value: {from}
          ports:
            - containerPort: {port}
---
"#
    )
}

// [sig-cli] Kubectl client Guestbook application should create and stop a working application [Conformance]
pub fn own(lab: &Lab) -> Result<()> {
    for from in ["dns", "env"] {
        let space = lab.space(&format!("book-{from}"))?;
        space.apply(&redis("redis-master", "redis:7", 1, from))?;
        // Variables of a Service are those that it had when the pod started.
        space.apply(&redis("redis-replica", "gcr.io/google_samples/gb-redisslave:v3", 2, from))?;
        space.apply(&part("frontend", "gcr.io/google-samples/gb-frontend:v4", 3, 80, from, "NodePort"))?;
        works(lab, &space, &format!("found by {from}"))?;
        space.kubectl(&["delete", "deployments,services", "--all"])?;
        lab.until("all of it has stopped", 60, || Ok(space.kubectl(&["get", "pods", "--no-headers"])?.is_empty()))?;
    }
    Ok(())
}

/// Waits until everything runs, then writes and reads from everywhere.
fn works(lab: &Lab, space: &Space<'_>, text: &str) -> Result<()> {
    for (deployment, count) in [("redis-master", 1), ("redis-replica", 2), ("frontend", 3)] {
        space.rolled_out(deployment)?;
        space.endpoints(deployment, count)?;
    }
    let pods = space.json(&["get", "pods"])?["items"].as_array().cloned().unwrap_or_default();
    ensure!(nodes(&pods).len() == 2, "all pods are on {:?}", nodes(&pods));
    let doors = doors(lab, space, "frontend")?;
    for door in &doors {
        let page = lab.wait("the page answers at every node", 30, || net::get(From::Host, *door, "/").map(Some))?;
        ensure!(page.0 == 200 && page.1.contains("<h1>Guestbook</h1>"), "{page:?}");
    }
    follow(lab, space)?;
    // Written at one node, read at the other.
    let value = text.replace(' ', "%20");
    let path = format!("/guestbook.php?cmd=set&key=messages&value=,{value}");
    let answer = net::get(From::Host, doors[0], &path)?;
    ensure!(answer.0 == 200 && answer.1.contains("\"message\": \"Updated\""), "{answer:?}");
    reads(lab, space, text)?;
    // And from a pod, by the Service's name.
    let script = "wget -q -O - 'http://frontend/guestbook.php?cmd=get&key=messages'";
    let name = format!("reader-{}", text.len());
    space.apply(&manifests::shell(&name, "Never", script))?;
    let answer = space.output(&name)?;
    ensure!(answer.contains(text), "{answer}");
    space.kubectl(&["delete", "pod", &name, "--wait=false"]).map(drop)
}

/// Every front end, through every node, reads from the followers what was written.
fn reads(lab: &Lab, space: &Space<'_>, text: &str) -> Result<()> {
    let doors = doors(lab, space, "frontend")?;
    lab.until("the followers have what was written", 15, || {
        for door in &doors {
            for _ in 0..6 {
                let (status, body) = net::get(From::Host, *door, "/guestbook.php?cmd=get&key=messages")?;
                ensure!(status == 200, "{status}: {body}");
                if !body.contains(text) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    })
}

/// Each replica follows the leader, and lets nobody write.
fn follow(lab: &Lab, space: &Space<'_>) -> Result<()> {
    let pods = space.json(&["get", "pods"])?["items"].as_array().cloned().unwrap_or_default();
    let mut followers = 0;
    for pod in pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        if !name.starts_with("redis-replica") || pod["metadata"]["deletionTimestamp"].is_string() {
            continue;
        }
        followers += 1;
        let address: Ipv4Addr = pod["status"]["podIP"].as_str().context("no address")?.parse()?;
        let from = From::Process(lab.pid(pod["spec"]["nodeName"].as_str().context("no node")?)?);
        let to = (address, 6379).into();
        lab.until(&format!("{name} follows the leader"), 30, || {
            let text = command(from, to, "INFO replication")?;
            Ok(text.contains("role:slave") && text.contains("master_link_status:up"))
        })?;
        let refused = command(from, to, "SET messages mine")?;
        ensure!(refused.starts_with("-READONLY"), "{name} lets me write: {refused}");
    }
    ensure!(followers == 2, "{followers} followers");
    Ok(())
}

/// An inline command of the redis protocol.
fn command(from: From, to: SocketAddr, text: &str) -> Result<String> {
    let mut stream = net::connect(from, to)?;
    stream.write_all(format!("{text}\r\nQUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
