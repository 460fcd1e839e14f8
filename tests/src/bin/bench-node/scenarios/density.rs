//! What the agent weighs and uses with no pod, ten, fifty, and (when asked for) as many as a node takes.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::NODE;
use crate::cluster::Cluster;
use crate::figures::Figures;
use crate::process::Process;

/// Pods of the sizes.
const SMALL: usize = 10;
const MIDDLE: usize = 50;
/// The limit of a node, and what is added to [`SMALL`] at once to get there.
const FULL: usize = 110;
/// Until the work of starting is over.
const SETTLE: Duration = Duration::from_secs(4);
/// Long enough for several rounds of everything that the agent does by the clock.
const IDLE: Duration = Duration::from_secs(30);

/// The programs of a lab in which nothing has happened yet.
pub async fn fresh(cluster: &Cluster<'_>, figures: &mut Figures) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    for (machine, service) in [(NODE, "agent"), (NODE, "dataplane"), ("control-plane", "control-plane")] {
        let rss = Process::of(cluster.lab, machine, service)?.rss_mib()?;
        figures.add(format!("idle_rss_mib_{}", service.replace('-', "_")), rss);
        if service == "agent" {
            figures.add("rss_mib_0", rss);
        }
    }
    Ok(())
}

/// Runs the scenario; the pods of the largest size stay.
pub async fn run(cluster: &Cluster<'_>, full: bool, figures: &mut Figures) -> Result<()> {
    let agent = Process::of(cluster.lab, NODE, "agent")?;
    grow(cluster, 0, SMALL).await?;
    rss(agent, SMALL, figures).await?;
    grow(cluster, SMALL, MIDDLE).await?;
    rss(agent, MIDDLE, figures).await?;
    cpu(agent, MIDDLE, figures).await?;
    if full {
        cluster.clear().await?;
        grow(cluster, 0, SMALL).await?;
        tokio::time::sleep(SETTLE).await;
        let took = grow(cluster, SMALL, FULL).await?;
        figures.add("plus_100_s", took.as_secs_f64());
        rss(agent, FULL, figures).await?;
        cpu(agent, FULL, figures).await?;
    }
    Ok(())
}

async fn grow(cluster: &Cluster<'_>, from: usize, to: usize) -> Result<Duration> {
    let names: Vec<String> = (from..to).map(|number| format!("many-{number}")).collect();
    cluster.create_all(&names).await
}

async fn rss(agent: Process, pods: usize, figures: &mut Figures) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    figures.add(format!("rss_mib_{pods}"), agent.rss_mib()?);
    Ok(())
}

async fn cpu(agent: Process, pods: usize, figures: &mut Figures) -> Result<()> {
    let (start, before) = (Instant::now(), agent.cpu_seconds()?);
    tokio::time::sleep(IDLE).await;
    let used = agent.cpu_seconds()? - before;
    figures.add(format!("cpu_core_{pods}"), used / start.elapsed().as_secs_f64());
    Ok(())
}
