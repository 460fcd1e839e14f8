//! Runs the scheduler and all controllers against the API server of a kubeconfig: for trying them on their own.
//!
//! `cargo run --example controllers -- KUBECONFIG`

use anyhow::Context;
use keelson_controllers::{Config, run_all};
use kube::config::{KubeConfigOptions, Kubeconfig};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    kube_common::logging::init(1);
    kube_common::tls::install_ring();
    let path = std::env::args().nth(1).context("usage: controllers KUBECONFIG")?;
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("read {path}"))?;
    let options = KubeConfigOptions::default();
    let client = kube::Client::try_from(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)?;
    let config = Config {
        cluster_cidrs: vec!["10.244.0.0/16".parse()?],
        service_cidrs: vec!["10.96.0.0/16".parse()?],
        root_ca_pem: "example".to_owned(),
        ..Config::default()
    };
    run_all(client, config, kube_common::shutdown::on_signals()?).await?;
    Ok(())
}
