//! Pods that end under load: Services let go of them before they get their signal.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use keelson_tests::lab::{Lab, Space};
use keelson_tests::load::{self, Load, Report, Use};
use keelson_tests::manifests;
use keelson_tests::net::{self, From};
use serde_json::Value;

use super::{client, text};

/// New connections, or requests, a second, from both nodes together.
const RATE: u32 = 500;
/// Rolling updates until one without the drain has failed a request. Each ends three pods, and hardly ever all of them between two requests.
const TRIES: usize = 5;
/// Longest wait of a drain (the agent's `drain::decide::LIMIT`).
const LIMIT: Duration = Duration::from_secs(2);
const NODES: [&str; 2] = ["node-1", "node-2"];
const CONFIG: &str = "/etc/keelson/node.yaml";

/// Three servers that end in this manner, on both nodes: 30 s of grace, and no hook.
fn servers<'a>(lab: &'a Lab, name: &str, on_term: &str) -> Result<(Space<'a>, SocketAddr)> {
    let space = lab.space(name)?;
    let probe = "          readinessProbe:\n            httpGet:\n              path: /readyz\n              port: 8080\n            periodSeconds: 1\n          env:\n";
    let manifest = manifests::servers("web", 3, &[&format!("--on-term={on_term}")])
        .replace("          env:\n", probe)
        .replace("terminationGracePeriodSeconds: 5", "terminationGracePeriodSeconds: 30");
    space.apply(&manifest)?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.rolled_out("web")?;
    space.endpoints("web", 3)?;
    let pods = space.pods("app=web")?;
    let nodes: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    ensure!(nodes.len() == 2, "all three are on {nodes:?}");
    let to = (space.cluster_ip("web")?, 80).into();
    Ok((space, to))
}

fn uids(space: &Space<'_>) -> Result<BTreeSet<String>> {
    space.pods("app=web")?.iter().map(|pod| text(pod, "/metadata/uid")).collect()
}

/// A rolling update under load from a pod on each node; over when the last of the old pods is gone.
fn update_under_load(space: &Space<'_>, to: SocketAddr, usage: Use) -> Result<Report> {
    let lab = space.lab;
    let mut loads = Vec::new();
    for node in NODES {
        let (from, _) = client(space, &format!("client-{node}"), node)?;
        lab.wait("the service answers", 20, || net::get(from, to, "/hostname").map(Some))?;
        loads.push(Load { from, to, rate: RATE / 2, threads: 16, usage });
    }
    let before = uids(space)?;
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| load::run(&loads, &stop));
        let updated = (|| {
            std::thread::sleep(Duration::from_secs(1));
            space.kubectl(&["rollout", "restart", "deployment/web"])?;
            space.rolled_out("web")?;
            lab.until("the old pods are gone", 60, || Ok(uids(space)?.is_disjoint(&before)))?;
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let report = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
        updated.and(report)
    })?;
    let rate = report.made as f64 / begun.elapsed().as_secs_f64();
    println!(
        "\n    {usage:?}: {} requests, {rate:.0} a second, on {} connections, {} failed {:?}, the slowest took {:?}",
        report.made,
        report.connections,
        report.failed(),
        report.failures,
        report.slowest
    );
    // A load that was not there fails nothing.
    ensure!(rate > 0.4 * f64::from(RATE), "only {rate} requests a second were made");
    Ok(report)
}

fn none_failed(report: &Report) -> Result<()> {
    ensure!(report.failed() == 0, "{} of {} failed: {:#?}", report.failed(), report.made, report.first);
    Ok(())
}

/// How many pods of both nodes Services have let go of in time.
fn drained(lab: &Lab) -> Result<f64> {
    let agreed = "keelson_agent_drains_total{outcome=\"agreed\"} ";
    NODES.iter().try_fold(0.0, |sum, node| {
        let text = lab.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")])?;
        let count = text.lines().find_map(|line| line.strip_prefix(agreed));
        Ok(sum + count.map_or(Ok(0.0), str::parse::<f64>)?)
    })
}

pub(super) fn rolling_update(lab: &Lab) -> Result<()> {
    let (space, to) = servers(lab, "drain", "immediate")?;
    let before = drained(lab)?;
    none_failed(&update_under_load(&space, to, Use::Once)?)?;
    let count = drained(lab)? - before;
    ensure!(count >= 1.0, "no pod was drained in time: what went well went well by chance");
    Ok(())
}

pub(super) fn kept_connections(lab: &Lab) -> Result<()> {
    let (space, to) = servers(lab, "drain-kept", "last-answer")?;
    let report = update_under_load(&space, to, Use::Kept)?;
    none_failed(&report)?;
    ensure!(report.connections < report.made / 10, "{} connections: they were not kept", report.connections);
    Ok(())
}

/// Switches the drain of both nodes off, or back to what it is by itself.
fn switch(lab: &Lab, on: bool) -> Result<()> {
    let expression = if on { "/^drain:/d" } else { "$a drain: {mode: never}" };
    for node in NODES {
        lab.node(node, &["sed", "-i", expression, CONFIG])?;
        let pid = lab.service_status(node, "agent")?["pid"].clone();
        lab.service(node, "agent", "restart")?;
        lab.until("the agent runs again", 30, || {
            let status = lab.service_status(node, "agent")?;
            Ok(status["state"] == "running" && status["pid"] != pid)
        })?;
    }
    Ok(())
}

pub(super) fn without(lab: &Lab) -> Result<()> {
    let (space, to) = servers(lab, "drain-off", "immediate")?;
    let outcome = (|| {
        switch(lab, false)?;
        for _ in 0..TRIES {
            if update_under_load(&space, to, Use::Once)?.failed() > 0 {
                return Ok(());
            }
        }
        anyhow::bail!("{TRIES} updates failed nothing: the tests beside this one show nothing either")
    })();
    switch(lab, true)?;
    outcome
}

/// The content of the file with the start of a pod's wait, once it is there.
fn start_of(lab: &Lab, uid: &str) -> Result<String> {
    lab.node(NODES[0], &["cat", &format!("/var/lib/kubelet/pods/{uid}/drain.json")])
}

/// What has to happen within two seconds may take a busy machine longer: a wait that begins anew does so each time.
pub(super) fn killed(lab: &Lab) -> Result<()> {
    let mut outcome = Ok(());
    for round in 0..TRIES {
        outcome = killed_once(lab, &format!("drain-kill-{round}"));
        match &outcome {
            Ok(()) => return Ok(()),
            Err(error) => println!("\n    round {round}: {error:#}"),
        }
    }
    outcome
}

fn killed_once(lab: &Lab, space: &str) -> Result<()> {
    let space = lab.space(space)?;
    let (name, address) = super::server(&space, "web", NODES[0])?;
    space.apply(&manifests::service("web", "web", "ClusterIP"))?;
    space.endpoints("web", 1)?;
    let uid = text(&space.json(&["get", "pod", &name])?, "/metadata/uid")?;
    let pid = lab.service_status(NODES[0], "dataplane")?["pid"].as_i64().context("no dataplane")?.to_string();
    // A dataplane that hangs makes the wait as long as it can be.
    lab.node(NODES[0], &["kill", "-STOP", &pid])?;
    let outcome = wait_across_a_kill(&space, &name, &uid, (address, 8080).into());
    lab.node(NODES[0], &["kill", "-CONT", &pid])?;
    outcome?;
    space.rolled_out("web")?;
    space.endpoints("web", 1)
}

fn wait_across_a_kill(space: &Space<'_>, name: &str, uid: &str, pod: SocketAddr) -> Result<()> {
    let lab = space.lab;
    let node = From::Process(lab.pid(NODES[0])?);
    space.kubectl(&["delete", "pod", name, "--wait=false", "--grace-period=30"])?;
    let before = lab.wait("the start of the wait is on disk", 5, || start_of(lab, uid).map(Some))?;
    let since = serde_json::from_str::<Value>(&before)?["sinceNs"].as_i64().context("no start")?;
    let explain = ["/opt/keelson/bin/agent", "explain", name, "-n", &space.name, "--uid", uid, "-o", "json"];
    let seen: Value = serde_json::from_str(&lab.node(NODES[0], &explain)?)?;
    let waits = &seen["waits"][0];
    ensure!(waits["on"] == "Services to let go of it" && waits["sinceNs"] == since, "{seen:#}");
    lab.service(NODES[0], "agent", "kill")?;
    let killed = Instant::now();
    ensure!(net::connect(node, pod).is_ok(), "its server is gone before it could be: the machine is too slow for this");
    let health: SocketAddr = "127.0.0.1:10248".parse()?;
    let (mut down, mut back, mut again) = (false, None, None);
    // The file goes with the pod.
    while net::connect(node, pod).is_ok() {
        // A killed process does not end at once.
        let up = net::connect(node, health).is_ok();
        down |= !up;
        if down && up {
            back.get_or_insert_with(Instant::now);
        }
        again = start_of(lab, uid).ok().or(again);
        ensure!(killed.elapsed() < Duration::from_secs(20), "it never got its signal");
        std::thread::sleep(Duration::from_millis(10));
    }
    let back = back.context("it got its signal without an agent")?;
    ensure!(again.as_ref() == Some(&before), "the start was {before} and then {again:?}");
    let waited = back.elapsed();
    println!("\n    signal {waited:?} after the next agent came, {:?} after the kill", killed.elapsed());
    ensure!(waited < LIMIT, "the next agent let it wait {waited:?}: the wait began anew");
    Ok(())
}
