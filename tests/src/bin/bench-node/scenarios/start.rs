//! One pod after the other: creation to ready, and death of its container to a status that says so. Between any two,
//! the same pod by bare calls to the same runtime, so that the machine's mood is in both.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::NODE;
use crate::bare::Runtime;
use crate::cluster::Cluster;
use crate::figures::{Figures, percentile};
use crate::runtime_log;

/// First pods find cold caches.
const WARM_UP: usize = 3;
/// The runtime's last work on a pod is over by then.
const PAUSE: Duration = Duration::from_millis(150);

/// What was measured, a value for each pod.
#[derive(Default)]
pub struct Times {
    /// Creation asked for to ready seen.
    pub start: Vec<Duration>,
    /// Creation asked for to bound to the node seen: the API server's and the scheduler's.
    bind: Vec<Duration>,
    /// Bound seen to ready seen, with the pod's name.
    node: Vec<(String, Duration)>,
    /// Death of the container to a status that says so.
    pub exit: Vec<Duration>,
    bare: Vec<Duration>,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster<'_>, rounds: usize, figures: &mut Figures) -> Result<()> {
    let mut runtime = Runtime::connect(cluster.lab).await.context("connecting to the node's containerd")?;
    let mut times = Times::default();
    for round in 0..WARM_UP + rounds {
        if round == WARM_UP {
            times = Times::default();
        }
        pod(cluster, &format!("one-{round}"), &mut times).await?;
        tokio::time::sleep(PAUSE).await;
        let bare = Box::pin(runtime.round(&format!("bare-{round}"))).await.context("bare CRI calls")?;
        times.bare.push(bare);
        tokio::time::sleep(PAUSE).await;
    }
    figures.quantiles("start", &times.start);
    figures.quantiles("bind", &times.bind);
    figures.quantiles("cri", &times.bare);
    share(cluster, &times, "agent", figures)?;
    figures.quantiles("exit_to_status", &times.exit);
    Ok(())
}

/// Pods one after the other, without bare calls between them.
pub async fn rounds(cluster: &Cluster<'_>, prefix: &str, rounds: usize) -> Result<Times> {
    let mut times = Times::default();
    for round in 0..WARM_UP + rounds {
        if round == WARM_UP {
            times = Times::default();
        }
        pod(cluster, &format!("{prefix}-{round}"), &mut times).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(times)
}

async fn pod(cluster: &Cluster<'_>, name: &str, times: &mut Times) -> Result<()> {
    let asked = Instant::now();
    cluster.create(name, &[]).await?;
    let seen = cluster.until(name, "not ready", |pod| pod.ready.is_some()).await?;
    let (bound, ready) = (seen.bound.unwrap_or(asked), seen.ready.unwrap_or(asked));
    times.start.push(ready - asked);
    times.bind.push(bound - asked);
    times.node.push((name.to_owned(), ready - bound));

    let pid = cluster.process(&seen)?;
    tokio::time::sleep(PAUSE).await;
    ensure!(cluster.seen().get(name).is_some_and(|pod| pod.ended.is_none()), "{name} ended by itself");
    let killed = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGKILL).with_context(|| format!("killing pid {pid} of {name}"))?;
    let seen = cluster.until(name, "its end is not in its status", |pod| pod.ended.is_some()).await?;
    times.exit.push(seen.ended.unwrap_or(killed) - killed);
    cluster.remove(name).await
}

/// What is left of a start without the time inside the runtime's calls, as PREFIX_share and PREFIX_calls.
pub fn share(cluster: &Cluster<'_>, times: &Times, prefix: &str, figures: &mut Figures) -> Result<()> {
    let path = cluster.lab.folder()?.join(NODE).join("log/containerd.log");
    let log = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let calls = runtime_log::times(&String::from_utf8_lossy(&log));
    let inside: Vec<Duration> = times.node.iter().filter_map(|(name, _)| calls.get(name).copied()).collect();
    let own: Vec<Duration> = if inside.len() == times.node.len() {
        figures.note(format!("{prefix}_share: bound seen by a watch to ready seen by it, minus the pod's three calls as containerd's log times them"));
        times.node.iter().zip(&inside).map(|((_, total), inside)| total.saturating_sub(*inside)).collect()
    } else {
        figures.note(format!("{prefix}_share: bound seen to ready seen, minus the median of the bare calls, because containerd's log does not tell the calls' times"));
        let bare = percentile(&times.bare, 0.5).unwrap_or_default();
        times.node.iter().map(|(_, total)| total.saturating_sub(bare)).collect()
    };
    figures.quantiles(&format!("{prefix}_calls"), &inside);
    figures.quantiles(&format!("{prefix}_share"), &own);
    Ok(())
}
