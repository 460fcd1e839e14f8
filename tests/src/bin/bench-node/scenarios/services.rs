//! Starts in a namespace with thousands of Services, whose addresses every container gets as variables, and ends without the runtime's events.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::start;
use crate::NODE;
use crate::cluster::{Cluster, NAMESPACE};
use crate::figures::{Figures, percentile};

/// How many there are.
const SERVICES: usize = 5_000;
/// Creations that are under way at once.
const AT_ONCE: usize = 32;
/// Until agent and dataplane have them.
const SETTLE: Duration = Duration::from_secs(8);
/// The agent's configuration in its machine.
const CONFIG: &str = "/etc/keelson/node.yaml";

/// Runs the scenario with Services; they stay.
pub async fn run(cluster: &Cluster<'_>, rounds: usize, figures: &mut Figures) -> Result<()> {
    let before = start::rounds(cluster, "before", rounds).await?;
    let api: Api<Service> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let make = |number: usize| {
        let api = api.clone();
        async move {
            let service = serde_json::from_value(json!({"metadata": {"name": format!("s-{number}")},
                "spec": {"selector": {"app": "none"}, "ports": [{"port": 80}]}}))?;
            api.create(&PostParams::default(), &service).await.with_context(|| format!("service {number}"))?;
            anyhow::Ok(())
        }
    };
    stream::iter((0..SERVICES).map(make)).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    tokio::time::sleep(SETTLE).await;
    let with = start::rounds(cluster, "among", rounds).await?;
    start::share(cluster, &with, "agent_5000_services", figures)?;
    let median = |times: &start::Times| percentile(&times.start, 0.5).unwrap_or_default();
    figures.quantiles("start_5000_services", &with.start);
    figures.add("start_5000_services_ratio", median(&with).as_secs_f64() / median(&before).as_secs_f64());
    figures.note("start_5000_services: as start, in a namespace with 5,000 Services; the ratio is to starts right before they were made");
    Ok(())
}

/// Ends of containers while the agent lists everything instead of reading events.
pub async fn without_events(cluster: &Cluster<'_>, rounds: usize, figures: &mut Figures) -> Result<()> {
    let lab = cluster.lab;
    lab.node(NODE, &["sed", "-i", "s|^kind: NodeConfig$|&\\nruntimeEvents: false|", CONFIG])?;
    lab.service(NODE, "agent", "restart")?;
    tokio::time::sleep(SETTLE).await;
    let times = start::rounds(cluster, "listed", rounds).await?;
    figures.quantiles("exit_to_status_noevents", &times.exit);
    figures.note("exit_to_status_noevents: with runtimeEvents: false, where the runtime is listed every second");
    Ok(())
}
