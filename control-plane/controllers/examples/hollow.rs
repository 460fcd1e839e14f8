//! Nodes that only pretend, for trying controllers and scheduler with many nodes and without containers.
//!
//! `cargo run --example hollow -- KUBECONFIG NODES`

#[path = "../tests/support/hollow.rs"]
mod hollow;

use std::time::Duration;

use anyhow::Context;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    kube_common::tls::install_ring();
    let mut args = std::env::args().skip(1);
    let usage = "usage: hollow KUBECONFIG NODES";
    let (path, count): (String, usize) = (args.next().context(usage)?, args.next().context(usage)?.parse()?);
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("read {path}"))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let names: Vec<String> = (0..count).map(|i| format!("hollow-{i}")).collect();
    for name in &names {
        hollow::register(&client, name).await?;
    }
    println!("{count} nodes registered");
    tokio::spawn(hollow::renew(client.clone(), names, Duration::from_secs(10)));
    hollow::run_pods(client).await;
    Ok(())
}
