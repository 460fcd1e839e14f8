//! The agent is restarted while its pods run: how long until the node is heard of again, with no pod touched.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use keelson_tests::net::{self, From};
use kube::Api;
use kube::runtime::watcher;
use tokio::sync::mpsc;

use crate::NODE;
use crate::cluster::{Cluster, Pods};
use crate::figures::Figures;
use crate::process::Process;

/// Longest time until the node is heard of.
const LIMIT: Duration = Duration::from_secs(30);
/// For what the agent might still do to pods wrongly.
const AFTER: Duration = Duration::from_secs(4);
/// How often the health endpoint is asked, and with it the precision.
const LOOK: Duration = Duration::from_millis(5);
/// The agent's health endpoint, on the node's loopback.
const HEALTH: ([u8; 4], u16) = ([127, 0, 0, 1], 10248);

/// Runs the scenario with the pods that are there.
pub async fn run(cluster: &Cluster<'_>, figures: &mut Figures) -> Result<()> {
    let before = cluster.seen();
    ensure!(before.values().all(|pod| pod.ready.is_some() && pod.unready.is_none()), "pods were unready before");
    let old = Process::of(cluster.lab, NODE, "agent")?;
    let machine = cluster.lab.pid(NODE)?;
    let (sender, mut writes) = mpsc::channel(64);
    let mut watches = tokio::task::JoinSet::new();
    watches.spawn(note(Api::<Node>::all(cluster.client.clone()), sender.clone()));
    watches.spawn(note(Api::<Lease>::namespaced(cluster.client.clone(), "kube-node-lease"), sender));
    // Both watches begin with what is there already.
    tokio::time::sleep(Duration::from_secs(1)).await;
    while writes.try_recv().is_ok() {}

    let start = Instant::now();
    let health = tokio::task::spawn_blocking(move || healthy(old, machine));
    let mut order = cluster.lab.command();
    order.args(["service", NODE, "agent", "restart"]);
    let mut order = tokio::process::Command::from(order).stdout(std::process::Stdio::null()).spawn()?;
    let heard = async {
        loop {
            let at = writes.recv().await.context("the watches ended")?;
            // What the old one wrote with its last breath does not count.
            if !old.runs() {
                return anyhow::Ok(at);
            }
        }
    };
    let heard =
        tokio::time::timeout(LIMIT, heard).await.context("neither the node's status nor its lease was written")??;
    let healthy = health.await??;
    let done = tokio::time::timeout(LIMIT, order.wait()).await.context("`lab service` does not end")??;
    ensure!(done.success(), "`lab service` ended with {done}");
    figures.add("restart_to_status_s", (heard - start).as_secs_f64());
    figures.add("restart_to_healthz_s", (healthy - start).as_secs_f64());
    figures.note(format!("restart: from the order (old agent's end included), with {} pods, to the first write of the node's status or lease", before.len()));
    tokio::time::sleep(AFTER).await;
    untouched(&before, &cluster.seen())
}

fn untouched(before: &Pods, after: &Pods) -> Result<()> {
    for (name, old) in before {
        let new = after.get(name).with_context(|| format!("{name} is gone after the restart"))?;
        ensure!(new.unready.is_none(), "{name} became unready by the restart");
        ensure!(new.restarts == old.restarts, "{name} has {} restarts", new.restarts);
        ensure!(new.container == old.container, "{name} has another container: {} to {}", old.container, new.container);
    }
    Ok(())
}

/// When the new agent first says that it is well.
fn healthy(old: Process, machine: i32) -> Result<Instant> {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        let answer = net::get(From::Process(machine), HEALTH.into(), "/healthz");
        if !old.runs() && answer.is_ok_and(|(status, _)| status == 200) {
            return Ok(Instant::now());
        }
        std::thread::sleep(LOOK);
    }
    Err(anyhow!("no healthy agent within {} s", LIMIT.as_secs()))
}

/// Tells when an object was written.
async fn note<K>(api: Api<K>, sender: mpsc::Sender<Instant>)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut events = pin!(watcher(api, watcher::Config::default()));
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(_)) => {
                if sender.send(Instant::now()).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                eprintln!("bench node: a watch: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
