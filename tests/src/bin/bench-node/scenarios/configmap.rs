//! A ConfigMap that changes under a running pod: from the change to the new content in the pod's file.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{Cluster, NAMESPACE};
use crate::figures::Figures;

const NAME: &str = "settings";
const ROUNDS: usize = 10;
/// Upstream's own bound is a sync period and a cache's age; one that is not there by then is not coming.
const LIMIT: Duration = Duration::from_secs(30);
/// How often the file is looked at, and with it the precision.
const LOOK: Duration = Duration::from_millis(1);

/// Runs the scenario.
pub async fn run(cluster: &Cluster<'_>, figures: &mut Figures) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let map = serde_json::from_value(json!({"metadata": {"name": NAME}, "data": {"value": "first"}}))?;
    maps.create(&PostParams::default(), &map).await?;
    cluster.create("reader", &[("config", json!({"configMap": {"name": NAME}}))]).await?;
    let seen = cluster.until("reader", "not ready", |pod| pod.ready.is_some()).await?;
    // The file as the container sees it.
    let file = format!("/proc/{}/root/config/value", cluster.process(&seen)?);
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let value = format!("change {round}");
        let start = Instant::now();
        let patch = Patch::Merge(json!({"data": {"value": value}}));
        maps.patch(NAME, &PatchParams::default(), &patch).await?;
        // While it is being swapped there may be no file.
        while std::fs::read_to_string(&file).unwrap_or_default() != value {
            if start.elapsed() > LIMIT {
                bail!("{file} does not hold {value:?} after {} s", LIMIT.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        times.push(start.elapsed());
    }
    figures.quantiles("configmap_update", &times);
    Ok(())
}
