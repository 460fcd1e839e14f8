//! Names: under load over UDP, and of the members of a stateful set.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::Lab;
use keelson_tests::manifests;
use serde_json::Value;

/// Asks the name server of its own pod over UDP, many questions at a time, and tells how it went as JSON.
const ASKER: &str = r#"
import asyncio, json, os, random, struct, time

SERVER = next(line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver"))
SPACE = os.environ["SPACE"]
QUESTIONS, AT_ONCE, LIMIT, TRIES = 3000, 64, 2, 3
# Name, type, answer code, whether an address of the service is expected.
KINDS = [
    (f"web.{SPACE}.svc.cluster.local", 1, 0, os.environ["ADDRESS"]),
    ("kubernetes.default.svc.cluster.local", 1, 0, "10.96.0.1"),
    (f"_http._tcp.web.{SPACE}.svc.cluster.local", 33, 0, None),
    (f"nobody.{SPACE}.svc.cluster.local", 1, 3, None),
    (f"web.{SPACE}.svc.cluster.local", 28, 0, None),
]

def question(number, name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)

class Asker(asyncio.DatagramProtocol):
    def __init__(self):
        self.waiting = {}
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, source):
        future = self.waiting.pop(struct.unpack(">H", data[:2])[0], None)
        if future and not future.done():
            future.set_result(data)
    def error_received(self, error):
        pass

async def ask(asker, number, result):
    name, kind, code, address = KINDS[number % len(KINDS)]
    begun = time.monotonic()
    for attempt in range(TRIES):
        key = (number * TRIES + attempt) % 65536
        future = asyncio.get_running_loop().create_future()
        asker.waiting[key] = future
        asker.transport.sendto(question(key, name, kind))
        try:
            data = await asyncio.wait_for(future, LIMIT)
            break
        except asyncio.TimeoutError:
            result["repeated"] += 1
    else:
        result["lost"] += 1
        return
    result["times"].append(time.monotonic() - begun)
    found = struct.unpack(">HHHHHH", data[:12])
    right = found[1] & 15 == code
    if address:
        right = right and found[3] >= 1 and bytes(int(part) for part in address.split(".")) in data
    if kind == 33:
        right = right and found[3] >= 1
    if not right:
        result["wrong"].append([name, kind, found[1] & 15, found[3]])

async def main():
    loop = asyncio.get_running_loop()
    result = {"lost": 0, "repeated": 0, "wrong": [], "times": []}
    # Each socket has a port of its own, as each resolver of a program has.
    askers = [(await loop.create_datagram_endpoint(Asker, remote_addr=(SERVER, 53)))[1] for _ in range(AT_ONCE)]
    begun = time.monotonic()
    async def worker(index):
        for number in range(index, QUESTIONS, AT_ONCE):
            await ask(askers[index], number, result)
    await asyncio.gather(*(worker(index) for index in range(AT_ONCE)))
    seconds = time.monotonic() - begun
    times = sorted(result.pop("times"))
    result.update(
        answered=len(times), rate=round(len(times) / seconds), wrong=result["wrong"][:5],
        p50=round(1000 * times[len(times) // 2], 2), p99=round(1000 * times[len(times) * 99 // 100], 2))
    print(json.dumps(result))

asyncio.run(main())
"#;

fn indented(text: &str, by: usize) -> String {
    text.lines().fold(String::new(), |mut all, line| {
        // Writing to a String cannot fail.
        let _ = writeln!(all, "{}{line}", " ".repeat(by));
        all
    })
}

fn asker(node: &str, space: &str, address: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: asker-{node}
spec:
  restartPolicy: Never
  nodeSelector:
    kubernetes.io/hostname: {node}
  containers:
    - name: main
      image: python:3
      imagePullPolicy: IfNotPresent
      command: ["python3", "/program/asker.py"]
      env:
        - name: SPACE
          value: {space}
        - name: ADDRESS
          value: {address}
      volumeMounts:
        - name: program
          mountPath: /program
  volumes:
    - name: program
      configMap:
        name: asker
"#
    )
}

pub fn load(lab: &Lab) -> Result<()> {
    let space = lab.space("names")?;
    space.apply(&manifests::servers("web", 1, &[]))?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.rolled_out("web")?;
    let address = space.cluster_ip("web")?.to_string();
    let program = indented(ASKER.trim_start(), 4);
    space.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: asker\ndata:\n  asker.py: |\n{program}"
    ))?;
    for node in ["node-1", "node-2"] {
        space.apply(&asker(node, &space.name, &address))?;
    }
    for node in ["node-1", "node-2"] {
        let text = space.output(&format!("asker-{node}"))?;
        println!("    {node}: {}", text.trim());
        let result: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        ensure!(result["answered"] == 3000 && result["lost"] == 0, "{node}: questions were lost: {result}");
        ensure!(result["wrong"].as_array().is_some_and(Vec::is_empty), "{node}: wrong answers: {result}");
        // UDP may lose a datagram, but not many.
        ensure!(result["repeated"].as_u64() < Some(30), "{node}: {result}");
    }
    Ok(())
}

const MEMBERS: &str = r#"apiVersion: v1
kind: Service
metadata:
  name: members
spec:
  clusterIP: None
  selector:
    app: member
  ports:
    - name: http
      port: 8080
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: member
spec:
  serviceName: members
  replicas: 3
  selector:
    matchLabels:
      app: member
  template:
    metadata:
      labels:
        app: member
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: keelson.dev/test-server:latest
          imagePullPolicy: IfNotPresent
          command: ["sh", "-c"]
          args:
            - |
              /usr/bin/test-server &
              for other in 0 1 2; do
                until name=$(wget -q -O - http://member-$other.members:8080/hostname); do sleep 0.3; done
                echo "found $name"
              done
              echo "I am $(hostname -f)"
              wait
"#;

pub fn members(lab: &Lab) -> Result<()> {
    let space = lab.space("members")?;
    space.apply(MEMBERS)?;
    space.kubectl(&["rollout", "status", "statefulset/member", "--timeout=120s"])?;
    let pods = space.pods("app=member")?;
    let began = |name: &str| {
        let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name);
        let time = pod.and_then(|pod| pod["metadata"]["creationTimestamp"].as_str());
        time.map(ToOwned::to_owned).with_context(|| format!("there is no {name}"))
    };
    ensure!(began("member-0")? <= began("member-1")? && began("member-1")? <= began("member-2")?, "out of order");
    ensure!(super::nodes(&pods).len() == 2, "all members are on one node");
    for index in 0..3 {
        let name = format!("member-{index}");
        let mut log = String::new();
        lab.until(&format!("{name} finds all members"), 60, || {
            log = space.kubectl(&["logs", &name])?;
            Ok((0..3).all(|other| log.contains(&format!("found member-{other}"))) && log.contains("I am "))
        })
        .with_context(|| log.clone())?;
        let full = format!("I am {name}.members.{}.svc.cluster.local", space.name);
        ensure!(log.contains(&full), "{log}");
    }
    // A member that comes back is found under the same name, wherever it is now.
    let before = space.json(&["get", "pod", "member-1"])?["metadata"]["uid"].clone();
    space.kubectl(&["delete", "pod", "member-1", "--timeout=60s"])?;
    lab.until("it is back", 60, || {
        let pod = space.json(&["get", "pod", "member-1"])?;
        let ready = pod["status"]["containerStatuses"][0]["ready"] == true;
        Ok(pod["metadata"]["uid"] != before && ready)
    })?;
    let script =
        "for i in $(seq 1 30); do wget -q -O - http://member-1.members:8080/ && exit 0; sleep 0.3; done; exit 1";
    space.apply(&manifests::shell("caller", "Never", script))?;
    let report: Value = serde_json::from_str(&space.output("caller")?)?;
    let address = space.json(&["get", "pod", "member-1"])?["status"]["podIP"].clone();
    ensure!(
        report["podIP"] == address
            || report["local"]
                .as_str()
                .is_some_and(|local| address.as_str().is_some_and(|address| local.starts_with(address))),
        "{report}"
    );
    // Scaled down, the last one goes, and its name with it.
    space.kubectl(&["scale", "statefulset", "member", "--replicas=2"])?;
    lab.until("member-2 is gone", 60, || Ok(space.pods("app=member")?.len() == 2))?;
    let script = "for i in $(seq 1 30); do nslookup -type=a member-2.members.members.svc.cluster.local > /tmp/a 2>&1; grep -q NXDOMAIN /tmp/a && exit 0; sleep 0.3; done; cat /tmp/a; exit 1";
    space.apply(&manifests::shell("forgotten", "Never", script))?;
    space.output("forgotten").map(drop)
}
