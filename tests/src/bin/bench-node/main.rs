//! `./dev bench node`: what one node costs and how quick it is, beside bare calls to the same container runtime.
//!
//! It makes a lab of its own with the programs beside it, measures, prints one table and, on request, writes one flat
//! JSON object, and takes the lab down whatever happens. A scenario that fails is told by name, its figures are left
//! out, and the others go on. There are no limits on results here: only on how long a step may take.

mod bare;
mod cluster;
mod figures;
mod process;
mod runtime_log;
mod scenarios;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use keelson_tests::lab::Lab;

use cluster::Cluster;
use figures::Figures;
use scenarios::{configmap, density, restart, services, start};

/// The lab, and by it the folder and the links that are made.
const LAB: &str = "bench-node";
/// The only node.
const NODE: &str = "node-1";
/// How often a pod is made; an odd one out among them is the 99th percentile.
const ROUNDS: usize = 30;
/// Longest time for everything. The default run takes five to six minutes on two cores.
const LIMIT: Duration = Duration::from_secs(1200);

/// What was asked for.
struct Options {
    json: Option<PathBuf>,
    full: bool,
    rounds: usize,
}

impl Options {
    fn parse() -> Result<Self> {
        let mut options = Self { json: None, full: false, rounds: ROUNDS };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--json" => options.json = Some(value()?.into()),
                "--full" => options.full = true,
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                _ => bail!("usage: bench-node [--json FILE] [--rounds N] [--full]   (--full: with 110 pods)"),
            }
        }
        ensure!(options.rounds > 0, "--rounds must be at least 1");
        Ok(options)
    }
}

fn main() -> Result<()> {
    let options = Options::parse()?;
    ensure!(nix::unistd::geteuid().is_root(), "bench-node makes a lab: run it as root");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(benchmark(options))
}

async fn benchmark(options: Options) -> Result<()> {
    kube_common::tls::install_ring();
    let stop = kube_common::shutdown::on_signals()?;
    // Its handle removes the lab when this function is left, by an error too.
    let mut lab = Lab::named(LAB)?;
    let mut figures = Figures::default();
    let outcome = tokio::select! {
        outcome = measure(&lab, &options, &mut figures) => outcome,
        () = stop.cancelled() => Err(anyhow!("stopped by a signal")),
        () = tokio::time::sleep(LIMIT) => Err(anyhow!("not done after {} s", LIMIT.as_secs())),
    };
    let report = if outcome.is_err() && !stop.is_cancelled() { lab.diagnose() } else { String::new() };
    eprintln!("bench node: taking the lab down …");
    lab.down()?;
    figures.print();
    if let Some(file) = &options.json {
        let text = format!("{:#}\n", figures.json());
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    outcome.map_err(|error| anyhow!("{error:#}\n{report}"))?;
    ensure!(!figures.failed(), "some figures are missing because a scenario failed: see above");
    Ok(())
}

async fn measure(lab: &Lab, options: &Options, figures: &mut Figures) -> Result<()> {
    eprintln!("bench node: making the lab {LAB} …");
    lab.lab(&["down"])?;
    lab.lab(&["up", "--no-sample", "--nodes", "1"])?;
    let cluster = Cluster::connect(lab).await?;
    process::sizes(lab, figures)?;

    eprintln!("bench node: idle memory …");
    let outcome = density::fresh(&cluster, figures).await;
    figures.settle("idle_rss_mib_*, rss_mib_0", outcome);

    eprintln!("bench node: {} pods one after the other, and as many by bare CRI calls …", options.rounds);
    let outcome = Box::pin(start::run(&cluster, options.rounds, figures)).await;
    figures.settle("start_*, cri_p50_ms, agent_share_p99_ms, exit_to_status_p99_ms", outcome);
    cluster.clear().await?;

    eprintln!("bench node: a ConfigMap that changes …");
    let outcome = configmap::run(&cluster, figures).await;
    figures.settle("configmap_update_*", outcome);
    cluster.clear().await?;

    eprintln!("bench node: memory and CPU with pods …");
    let outcome = density::run(&cluster, options.full, figures).await;
    figures.settle("rss_mib_*, cpu_core_*, plus_100_s", outcome);

    eprintln!("bench node: the agent is restarted …");
    let outcome = restart::run(&cluster, figures).await;
    figures.settle("restart_to_*", outcome);

    cluster.clear().await?;

    eprintln!("bench node: pods among 5,000 Services …");
    let outcome = Box::pin(services::run(&cluster, options.rounds, figures)).await;
    figures.settle("start_5000_services_*", outcome);

    eprintln!("bench node: without the runtime's events …");
    let outcome = Box::pin(services::without_events(&cluster, options.rounds, figures)).await;
    figures.settle("exit_to_status_noevents_*", outcome);

    figures.left_out("stats_pass_ms", "the agent serves no statistics yet");
    if !options.full {
        figures.left_out("plus_100_s, rss_mib_110, cpu_core_110", "only with --full");
    }
    Ok(())
}
