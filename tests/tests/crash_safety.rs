//! kill -9 of each program, ten times at random moments, while everything changes: afterwards the same containers run, nothing is
//! doubled, nothing is lost and nothing is left behind.
//!
//! `KEELSON_TEST_SEED` repeats the moments of an earlier run, which printed its seed. `KEELSON_TEST_AWAY` is how many seconds the
//! API server is away in the last test. `KEELSON_TEST_FULL=1`: agents 50 times; containerd 6 times, 20 s apart, under 60 pods (with
//! `KEELSON_TEST_LIMIT=900`, for that takes minutes).

#[path = "crash_safety/storm.rs"]
mod storm;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use keelson_tests::inventory::Inventory;
use keelson_tests::lab::{Lab, Space};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use keelson_tests::suite::{self, Test};
use serde_json::Value;
use storm::{Random, Requests};

const NODES: [&str; 2] = ["node-1", "node-2"];
/// How a program is killed, and under what.
#[derive(Clone, Copy)]
struct Plan {
    /// How often.
    kills: usize,
    /// Shortest and longest pause between a restart and the next kill, in milliseconds.
    pause: (u64, u64),
    /// Servers that nothing may touch.
    steady: u32,
}

impl Plan {
    /// Pauses from before it has looked around to long after.
    const USUAL: Self = Self { kills: 10, pause: (100, 2_500), steady: 4 };

    fn of(program: &str) -> Self {
        match (std::env::var_os("KEELSON_TEST_FULL").is_some(), program) {
            (true, "agent") => Self { kills: 50, ..Self::USUAL },
            (true, "containerd") => Self { kills: 6, pause: (20_000, 20_001), steady: 60 },
            _ => Self::USUAL,
        }
    }
}

/// How long a killed program may take to run again.
const RESTART_SECONDS: u64 = 15;
/// How long the cluster may take to settle after the last kill.
const SETTLE_SECONDS: u64 = 75;
/// Default of `KEELSON_TEST_AWAY`.
const AWAY_SECONDS: u64 = 20;

fn main() -> ExitCode {
    let tests: &[Test] = &[
        ("the_agents_killed_at_random", |lab| survives(lab, "agent", &NODES)),
        ("the_dataplanes_killed_at_random", |lab| survives(lab, "dataplane", &NODES)),
        ("the_control_plane_killed_at_random", |lab| survives(lab, "control-plane", &["control-plane"])),
        ("containerd_killed_at_random", |lab| survives(lab, "containerd", &NODES)),
        ("pods_go_on_and_restart_while_the_api_server_is_away", api_server_away),
    ];
    suite::main("crash", 2, tests)
}

fn seed() -> u64 {
    let given = std::env::var("KEELSON_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs()))
}

/// Container IDs and restarts of the pods with a label, by pod.
fn identities(space: &Space<'_>, selector: &str) -> Result<BTreeMap<String, (String, i64)>> {
    let mut found = BTreeMap::new();
    for pod in space.pods(selector)? {
        let status = &pod["status"]["containerStatuses"][0];
        let id = status["containerID"].as_str().context("no container")?.trim_start_matches("containerd://").to_owned();
        let name = pod["metadata"]["name"].as_str().context("no name")?.to_owned();
        found.insert(name, (id, status["restartCount"].as_i64().context("no count")?));
    }
    Ok(found)
}

/// Servers that nothing may touch, behind two Services.
fn steady<'a>(lab: &'a Lab, name: &str, count: u32) -> Result<Space<'a>> {
    let space = lab.space(name)?;
    space.apply(&manifests::servers("steady", count, &["--http=8080", "--tcp-echo=7000"]))?;
    space.apply(&manifests::service("steady", "steady", "NodePort"))?;
    space.apply(&manifests::service("echo", "steady", "ClusterIP").replace("targetPort: http", "targetPort: 7000"))?;
    space.rolled_out("steady")?;
    let count = usize::try_from(count)?;
    space.endpoints("steady", count)?;
    space.endpoints("echo", count)?;
    Ok(space)
}

/// What the storm left.
struct Outcome {
    deployments: BTreeMap<String, u32>,
    acknowledged: Vec<(String, u64)>,
    watched: Vec<String>,
    requests: Vec<(&'static str, Requests)>,
}

fn survives(lab: &Lab, program: &str, machines: &[&str]) -> Result<()> {
    let seed = seed();
    // A start that is under way when containerd dies has failed, and the next one is a restart.
    let strict = program != "containerd";
    println!("\n    KEELSON_TEST_SEED={seed}");
    let plan = Plan::of(program);
    let space = steady(lab, &format!("storm-{program}"), plan.steady)?;
    let before = identities(&space, "app=steady")?;
    let outcome = storm(lab, &space, program, machines, plan, Random(seed))?;
    let begun = Instant::now();
    lab.wait("the API server answers", 30, || lab.kubectl(&["get", "--raw", "/readyz"]).map(Some))?;
    for (deployment, replicas) in &outcome.deployments {
        space.kubectl(&["rollout", "status", &format!("deployment/{deployment}"), "--timeout=75s"])?;
        let ready = space.kubectl(&["get", "deployment", deployment, "-o", "jsonpath={.status.readyReplicas}"])?;
        ensure!(ready == replicas.to_string(), "{deployment} has {ready} of {replicas}");
    }
    settled(lab, strict)?;
    println!("    settled {:.1?} after the last kill", begun.elapsed());
    for (name, requests) in &outcome.requests {
        println!("    {name}: {} answered, {} failed", requests.answered, requests.failures.len());
        ensure!(requests.failures.is_empty(), "{name}: {:#?}", &requests.failures[..requests.failures.len().min(10)]);
        ensure!(requests.answered > 50, "{name}: only {} requests", requests.answered);
    }
    let after = identities(&space, "app=steady")?;
    ensure!(after == before, "containers were replaced or restarted: {before:#?} {after:#?}");
    kept(&space, &outcome)?;
    // With the churn gone, everything of it is gone.
    space.kubectl(&["delete", "deployment", "--all", "--timeout=60s"])?;
    settled(lab, true)
}

fn storm(
    lab: &Lab,
    space: &Space<'_>,
    program: &str,
    machines: &[&str],
    plan: Plan,
    mut random: Random,
) -> Result<Outcome> {
    let stop = AtomicBool::new(false);
    let node = From::Process(lab.pid("node-1")?);
    let inside = (space.cluster_ip("steady")?, 80).into();
    let port: u16 =
        space.kubectl(&["get", "service", "steady", "-o", "jsonpath={.spec.ports[0].nodePort}"])?.parse()?;
    let outside = (lab.address("node-2")?, port).into();
    let echo = (space.cluster_ip("echo")?, 80).into();
    for (from, to) in [(node, inside), (From::Host, outside)] {
        lab.wait("the service answers", 15, || net::answering(from, to).map(Some))?;
    }
    let kept = lab.wait("the echo connects", 15, || net::connect(node, echo).map(Some))?;
    let (api, churning) = (Random(random.below(u64::MAX)), &stop);
    std::thread::scope(|scope| {
        let fresh = scope.spawn(|| storm::new_connections(node, inside, &stop));
        let door = scope.spawn(|| storm::new_connections(From::Host, outside, &stop));
        let kept = scope.spawn(|| storm::kept_connection(kept, &stop));
        let objects = scope.spawn(|| objects(lab, &space.name, api, churning));
        let killed = kills(lab, program, machines, plan, &mut random);
        // A watch hears of the last writes.
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        let lost = || anyhow::anyhow!("a thread of the storm panicked");
        let requests = [("new connections in the cluster", fresh), ("new connections from outside", door)]
            .into_iter()
            .chain([("a kept connection", kept)])
            .map(|(name, thread)| Ok((name, thread.join().map_err(|_| lost())?)))
            .collect::<Result<Vec<_>>>()?;
        let (deployments, acknowledged, watched) = objects.join().map_err(|_| lost())??;
        killed?;
        Ok(Outcome { deployments, acknowledged, watched, requests })
    })
}

type Objects = (BTreeMap<String, u32>, Vec<(String, u64)>, Vec<String>);

/// The API server's part of the storm: churn, writes, and a watch on the writes that goes on a little longer than they.
fn objects(lab: &Lab, space: &str, random: Random, stop: &AtomicBool) -> Result<Objects> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watching = AtomicBool::new(false);
    runtime.block_on(async {
        let client = lab.client().await?;
        let list = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client.clone(), space);
        let from = list.list(&kube::api::ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        let work = async {
            let work = tokio::try_join!(
                storm::churn(client.clone(), space, random, stop),
                storm::writes(client.clone(), space, stop)
            );
            tokio::time::sleep(Duration::from_secs(3)).await;
            watching.store(true, Ordering::Relaxed);
            work
        };
        let (work, watched) = tokio::join!(work, storm::watch(client.clone(), space, from, &watching));
        let (deployments, acknowledged) = work?;
        anyhow::Ok((deployments, acknowledged, watched?))
    })
}

/// Kills the program on one of the machines, again and again, at moments that the seed chooses.
fn kills(lab: &Lab, program: &str, machines: &[&str], plan: Plan, random: &mut Random) -> Result<()> {
    let mut slowest = Duration::ZERO;
    let (shortest, longest) = plan.pause;
    for number in 0..plan.kills {
        let machine = machines[usize::try_from(random.below(machines.len() as u64))?];
        std::thread::sleep(Duration::from_millis(shortest + random.below(longest - shortest)));
        let pid = lab.service_status(machine, program)?["pid"].as_i64();
        lab.service(machine, program, "kill").with_context(|| format!("kill {number}"))?;
        let begun = Instant::now();
        // At once, as systemd would with RestartSec=0: the lab itself waits longer after each end.
        lab.until(&format!("{program} runs again on {machine}"), RESTART_SECONDS, || {
            lab.service(machine, program, "start")?;
            let now = lab.service_status(machine, program)?;
            Ok(now["state"] == "running" && now["pid"].as_i64() != pid)
        })?;
        slowest = slowest.max(begun.elapsed());
    }
    println!("    {} kills of {program}, started again within {slowest:.1?}", plan.kills);
    Ok(())
}

/// Waits until both nodes hold what their pods need, and nothing else; `strict`: and no container was started again.
fn settled(lab: &Lab, strict: bool) -> Result<()> {
    let mut faults = Vec::new();
    let result = lab.until("the nodes hold exactly what the pods need", SETTLE_SECONDS, || {
        let pods = lab.json(&["get", "pods", "-A"])?["items"].as_array().cloned().unwrap_or_default();
        faults = Vec::new();
        for node in NODES {
            let uids: BTreeSet<String> = pods
                .iter()
                .filter(|pod| pod["spec"]["nodeName"] == node)
                .filter_map(|pod| pod["metadata"]["uid"].as_str().map(ToOwned::to_owned))
                .collect();
            faults.extend(Inventory::of(lab, node)?.faults(&uids));
        }
        faults.extend(pods.iter().filter_map(|pod| unsettled(pod, strict)));
        Ok(faults.is_empty())
    });
    result.with_context(|| format!("{faults:#?}"))
}

/// A pod that is on its way, or that was started again.
fn unsettled(pod: &Value, strict: bool) -> Option<String> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return Some(format!("{name} is being deleted"));
    }
    let status = &pod["status"]["containerStatuses"][0];
    // A start that was under way when the agent died is cancelled in the runtime, as with upstream: that container never ran.
    let never_ran = status["restartCount"] == 1 && status["lastState"]["terminated"]["reason"] == "StartError";
    let again = strict && status["restartCount"] != 0 && !never_ran;
    (status["ready"] != true || again).then(|| format!("{name}: {status}"))
}

/// Every acknowledged write is there and was told to the watcher, once.
fn kept(space: &Space<'_>, outcome: &Outcome) -> Result<()> {
    let text =
        space.kubectl(&["get", "configmaps", "-o", "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}"])?;
    let there: BTreeSet<&str> = text.lines().collect();
    let watched: BTreeSet<&str> = outcome.watched.iter().map(String::as_str).collect();
    println!("    {} writes were acknowledged, {} watched", outcome.acknowledged.len(), outcome.watched.len());
    ensure!(outcome.acknowledged.len() > 30, "only {} writes", outcome.acknowledged.len());
    for (name, revision) in &outcome.acknowledged {
        ensure!(there.contains(name.as_str()), "{name} was acknowledged with revision {revision} and is lost");
        ensure!(watched.contains(name.as_str()), "{name} (revision {revision}) was not told to the watcher");
    }
    ensure!(watched.len() == outcome.watched.len(), "the watcher was told something twice: {:?}", outcome.watched);
    for name in watched {
        ensure!(there.contains(name), "{name} was told to the watcher and is not there");
    }
    Ok(())
}

fn api_server_away(lab: &Lab) -> Result<()> {
    let away = std::env::var("KEELSON_TEST_AWAY").ok().and_then(|text| text.parse().ok()).unwrap_or(AWAY_SECONDS);
    let space = steady(lab, "away", Plan::USUAL.steady)?;
    // Lives about a second, then is restarted: by the node alone.
    space.apply(&manifests::shell("restless", "Always", "sleep 1; exit 1"))?;
    let more = "      livenessProbe:\n        exec:\n          command: [\"test\", \"!\", \"-e\", \"/tmp/sick\"]\n        periodSeconds: 1\n        failureThreshold: 1\n";
    space.apply(&format!("{}{more}", manifests::shell("probed", "Always", "sleep 8; touch /tmp/sick; sleep 1000")))?;
    lab.until("both run", 60, || {
        Ok(space.pods("app in (restless,probed)")?.iter().all(|pod| pod["status"]["phase"] == "Running"))
    })?;
    let before = identities(&space, "app=steady")?;
    let count = |name: &str| -> Result<i64> {
        Ok(identities(&space, &format!("app={name}"))?.values().map(|(_, count)| *count).sum())
    };
    let counts = || -> Result<(i64, i64)> { Ok((count("restless")?, count("probed")?)) };
    let first = counts()?;
    let node = From::Process(lab.pid("node-1")?);
    let to = (space.cluster_ip("steady")?, 80).into();
    lab.wait("the service answers", 15, || net::answering(node, to).map(Some))?;
    lab.service("control-plane", "control-plane", "stop")?;
    let begun = Instant::now();
    let mut failures = Vec::new();
    while begun.elapsed() < Duration::from_secs(away) {
        if let Err(error) = net::answering(node, to) {
            failures.push(format!("after {:.1?}: {error:#}", begun.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    lab.service("control-plane", "control-plane", "start")?;
    lab.wait("the API server answers", 30, || lab.kubectl(&["get", "--raw", "/readyz"]).map(Some))?;
    ensure!(failures.is_empty(), "requests failed: {failures:#?}");
    lab.until("the restarts meanwhile are told", 30, || {
        let (restless, probed) = counts()?;
        Ok(restless > first.0 && probed > first.1)
    })?;
    println!("    away {away} s: restarts went from {first:?} to {:?}", counts()?);
    ensure!(identities(&space, "app=steady")? == before, "steady containers were touched");
    lab.until("the nodes are ready", 60, || {
        let text = lab.kubectl(&["get", "nodes"])?;
        Ok(text.matches(" Ready ").count() == 2)
    })?;
    // Nothing was evicted meanwhile, and new work is done.
    space.kubectl(&["scale", "deployment", "steady", "--replicas=5"])?;
    space.rolled_out("steady")?;
    let now = identities(&space, "app=steady")?;
    ensure!(before.iter().all(|(name, identity)| now.get(name) == Some(identity)), "{before:?} {now:?}");
    space.kubectl(&["delete", "pod", "restless", "probed", "--timeout=60s"])?;
    settled(lab, true)
}
