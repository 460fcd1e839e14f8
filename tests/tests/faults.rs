//! A runtime that misbehaves: each call of it late, refused, held or torn, and its event streams cut. The agent lives on, touches
//! nothing that is well, and everything is as it shall be once the runtime is.
//!
//! `KEELSON_TEST_FULL=1`: each call by itself with each fault, instead of all calls together.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::faulty::{Fault, Faulty, Rule};
use keelson_tests::inventory::Inventory;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use keelson_tests::suite::{self, Test};
use serde_json::Value;

const NODE: &str = "node-1";
/// The runtime's socket on the node, and that of the proxy before it.
const SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/containerd/faulty.sock"];
/// Calls that the agent cannot do its work without.
const CALLS: [&str; 15] = [
    "Version",
    "Status",
    "ListPodSandbox",
    "PodSandboxStatus",
    "ListContainers",
    "ContainerStatus",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ImageStatus",
    "ExecSync",
];
/// How long a pod may take to come or go while calls fail.
const BAD_SECONDS: u64 = 60;
/// How long a held runtime is held.
const HELD: Duration = Duration::from_secs(6);

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("calls_that_are_refused", |lab| rounds(lab, "refused", Fault::Refused)),
        ("answers_that_are_torn", |lab| rounds(lab, "torn", Fault::Torn)),
        ("answers_that_are_late", |lab| rounds(lab, "late", Fault::Late(Duration::from_millis(700)))),
        ("a_container_that_hangs_delays_its_own_pod_alone", own_pod),
        ("event_streams_that_are_cut_again_and_again", streams),
        ("a_runtime_that_answers_nothing_for_a_while", silent),
    ];
    suite::main("faults", 1, tests)
}

fn full() -> bool {
    std::env::var_os("KEELSON_TEST_FULL").is_some()
}

/// The agent behind a proxy, and a pod that nothing may touch.
struct Scene<'a> {
    lab: &'a Lab,
    space: Space<'a>,
    proxy: Faulty,
    agent: Value,
    steady: String,
}

fn container(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap_or_default()
        .trim_start_matches("containerd://")
        .to_owned()
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or_default()
}

fn rule(call: &str, fault: Fault, times: usize) -> Rule {
    Rule { call: call.to_owned(), with: String::new(), fault, times }
}

impl<'a> Scene<'a> {
    fn new(lab: &'a Lab, name: &str) -> Result<Self> {
        let inside =
            |path: &str| -> Result<PathBuf> { Ok(PathBuf::from(format!("/proc/{}/root{path}", lab.pid(NODE)?))) };
        let proxy = Faulty::start(&inside(SOCKETS[1])?, &inside(SOCKETS[0])?)?;
        Self::endpoint(lab, SOCKETS[0], SOCKETS[1])?;
        lab.until("the node is Ready behind the proxy", 40, || {
            Ok(lab.kubectl(&["get", "node", NODE])?.contains(" Ready "))
        })?;
        let space = lab.space(name)?;
        space.apply(&manifests::shell("steady", "Always", "sleep 100000"))?;
        let steady = container(&space.ready_pod("steady")?);
        let agent = lab.service_status(NODE, "agent")?;
        Ok(Self { lab, space, proxy, agent, steady })
    }

    /// Sets the runtime's socket in the agent's configuration and starts it anew.
    fn endpoint(lab: &Lab, from: &str, to: &str) -> Result<()> {
        let file = lab.folder()?.join(NODE).join("etc/keelson/node.yaml");
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.contains(from), "{} does not name {from}", file.display());
        std::fs::write(&file, text.replace(from, to))?;
        lab.service(NODE, "agent", "restart")
    }

    /// A pod comes, is restarted by an end of its container, and goes.
    fn life(&self, name: &str) -> Result<()> {
        let probe = "      readinessProbe:\n        exec:\n          command: [\"true\"]\n        periodSeconds: 1\n        failureThreshold: 3\n";
        self.space.apply(&format!("{}{probe}", manifests::shell(name, "Always", "sleep 100000")))?;
        // A container whose start was refused may have taken its name with it: then the first that runs is the second.
        let pod = self.ready(name, 0..=1)?;
        let (id, before) = (container(&pod), restarts(&pod));
        self.lab.node(NODE, &["ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", &id])?;
        let pod = self.ready(name, before + 1..=before + 2)?;
        ensure!(
            container(&pod) != id
                && pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137,
            "{}",
            pod["status"]
        );
        self.space.kubectl(&["delete", "pod", name, &format!("--timeout={BAD_SECONDS}s")]).map(drop)
    }

    /// Waits until a pod is ready with one of these counts; a higher one is a needless restart.
    fn ready(&self, name: &str, counts: RangeInclusive<i64>) -> Result<Value> {
        self.lab.wait(&format!("{name} is ready, restarts {counts:?}"), BAD_SECONDS, || {
            let pod = self.space.json(&["get", "pod", name])?;
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(restarts(&pod) <= *counts.end(), "a needless restart: {status}");
            let ready = status["ready"] == true && counts.contains(&restarts(&pod));
            Ok(ready.then_some(pod))
        })
    }

    /// Without faults the node holds what its pods need and nothing else; the agent is the same process, and the steady container too.
    fn converged(&self) -> Result<()> {
        self.proxy.set(Vec::new());
        let mut faults = Vec::new();
        let settled = self.lab.until("the node holds exactly what its pods need", 75, || {
            let pods = self.lab.json(&["get", "pods", "-A"])?["items"].as_array().cloned().unwrap_or_default();
            let uids: BTreeSet<String> =
                pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str().map(ToOwned::to_owned)).collect();
            faults = Inventory::of(self.lab, NODE)?.faults(&uids);
            Ok(faults.is_empty())
        });
        settled.with_context(|| format!("{faults:#?}"))?;
        let steady = self.space.json(&["get", "pod", "steady"])?;
        ensure!(container(&steady) == self.steady, "the steady container was replaced: {}", steady["status"]);
        ensure!(steady["status"]["containerStatuses"][0]["ready"] == true, "{}", steady["status"]);
        let agent = self.lab.service_status(NODE, "agent")?;
        ensure!(agent["pid"] == self.agent["pid"], "the agent did not live through it: {agent}");
        self.lab.until("the node is Ready", 40, || Ok(self.lab.kubectl(&["get", "node", NODE])?.contains(" Ready ")))
    }

    /// The agent asks the runtime itself again.
    fn end(self) -> Result<()> {
        Self::endpoint(self.lab, SOCKETS[1], SOCKETS[0])?;
        self.lab.until("the node is Ready", 40, || Ok(self.lab.kubectl(&["get", "node", NODE])?.contains(" Ready ")))
    }
}

/// Runs a test behind a proxy, which is taken away whatever happens.
fn behind(lab: &Lab, name: &str, test: impl FnOnce(&Scene<'_>) -> Result<()>) -> Result<()> {
    let scene = Scene::new(lab, name)?;
    let outcome = test(&scene);
    let ended = scene.end();
    outcome?;
    ended
}

fn rounds(lab: &Lab, name: &str, fault: Fault) -> Result<()> {
    behind(lab, name, |scene| {
        let groups: Vec<Vec<&str>> = if full() { CALLS.map(|call| vec![call]).into() } else { vec![CALLS.into()] };
        for (number, group) in groups.iter().enumerate() {
            let begun = Instant::now();
            scene.proxy.set(group.iter().map(|call| rule(call, fault, if full() { 2 } else { 1 })).collect());
            let label = if full() { group[0] } else { "all calls" };
            scene.life(&format!("pod-{number}")).with_context(|| label.to_owned())?;
            scene.converged().with_context(|| label.to_owned())?;
            println!("\n    {label}: a pod's life took {:.1?}", begun.elapsed());
        }
        Ok(())
    })
}

fn own_pod(lab: &Lab) -> Result<()> {
    behind(lab, "hanging", |scene| {
        scene.space.apply(&manifests::shell("hung", "Always", "sleep 100000"))?;
        let hung = scene.space.ready_pod("hung")?;
        let (id, uid) = (container(&hung), hung["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        // Everything that names the container or asks for its pod.
        let held = |with: &str| Rule { call: "*".into(), with: with.to_owned(), fault: Fault::Held, times: usize::MAX };
        scene.proxy.set(vec![held(&id), held(&uid)]);
        scene.space.kubectl(&["delete", "pod", "hung", "--wait=false"])?;
        let begun = Instant::now();
        scene.life("other")?;
        let took = begun.elapsed();
        ensure!(took < Duration::from_secs(20), "another pod's life took {took:?}");
        ensure!(scene.space.kubectl(&["get", "pod", "hung"])?.contains("Terminating"));
        ensure!(lab.kubectl(&["get", "node", NODE])?.contains(" Ready "), "the node is not Ready");
        println!("\n    another pod's life meanwhile took {took:.1?}");
        scene.proxy.set(Vec::new());
        lab.until("the hanging pod goes", 60, || Ok(scene.space.pods("app=hung")?.is_empty()))?;
        scene.converged()
    })
}

fn streams(lab: &Lab) -> Result<()> {
    behind(lab, "streams", |scene| {
        // Streams that open and end, then none at all.
        let none = ["Subscribe", "GetContainerEvents"].map(|call| rule(call, Fault::Refused, usize::MAX));
        for (name, faults) in [("cut", Vec::new()), ("none", none.to_vec())] {
            scene.space.apply(&manifests::shell(name, "Always", "sleep 100000"))?;
            let id = container(&scene.space.ready_pod(name)?);
            scene.proxy.set(faults);
            for _ in 0..8 {
                scene.proxy.cut();
                std::thread::sleep(Duration::from_millis(150));
            }
            let begun = Instant::now();
            lab.node(NODE, &["ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", &id])?;
            lab.until("the end is noticed", 5, || {
                let status = scene.space.json(&["get", "pod", name])?["status"]["containerStatuses"][0].clone();
                Ok(status["restartCount"] == 1 || status["state"]["terminated"].is_object())
            })?;
            println!("\n    noticed {:.1?} after the end", begun.elapsed());
            scene.ready(name, 1..=1)?;
        }
        scene.converged()
    })
}

fn silent(lab: &Lab) -> Result<()> {
    behind(lab, "silent", |scene| {
        scene.proxy.set(vec![rule("*", Fault::Held, usize::MAX)]);
        scene.proxy.cut();
        let begun = Instant::now();
        scene.space.apply(&manifests::shell("waiting", "Always", "sleep 100000"))?;
        while begun.elapsed() < HELD {
            let from = From::Process(lab.pid(NODE)?);
            let health = net::request(from, (Ipv4Addr::LOCALHOST, 10248).into(), "GET", "/healthz")?;
            ensure!(health.0 == 200, "the agent is not healthy: {health:?}");
            std::thread::sleep(Duration::from_secs(1));
        }
        let steady = scene.space.json(&["get", "pod", "steady"])?;
        ensure!(
            steady["status"]["containerStatuses"][0]["ready"] == true,
            "a running pod suffers: {}",
            steady["status"]
        );
        scene.proxy.set(Vec::new());
        scene.space.ready_pod("waiting")?;
        scene.converged()
    })
}
