//! `dataplane`: the service proxy of a node.
//!
//! Exit codes: 0 after SIGTERM or a finished command, 1 a failure at run time, 2 a mistake on the
//! command line or in the configuration, 3 the kernel lacks a feature (each is named).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use keelson_dataplane::config::{self, Config};
use keelson_dataplane::run::{RunError, run_watched};
use keelson_dataplane::{status, sysctl};
use kube_common::notify::{self, Progress};

const EXIT_FAILURE: u8 = 1;
const EXIT_CONFIG: u8 = 2;
const EXIT_FEATURES: u8 = 3;
/// A loop that has not turned for so long gives no more signs of life. A full sync of 10,000 Services takes under a second, on a
/// slow machine some.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// The service proxy of a node: Services to nftables.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log more: 0 is quiet, 2 is for everyday use, 4 tells every sync.
    #[arg(short, long, default_value_t = 2)]
    v: u8,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Print what is programmed in the kernel.
    Status,
    /// Delete our tables, and nothing else.
    Cleanup,
}

fn main() -> ExitCode {
    let args = Args::parse();
    kube_common::logging::init(args.v);
    let command = match args.command {
        Some(Command::Status) => status::status(),
        Some(Command::Cleanup) => status::cleanup(),
        None => return serve(args.config.as_deref()),
    };
    match command {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("dataplane: {error}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn serve(path: Option<&std::path::Path>) -> ExitCode {
    let config = match path.map(config::load) {
        Some(Ok(config)) => config,
        None => config::default_config(),
        Some(Err(error)) => {
            eprintln!("{error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    match serve_with(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dataplane: {error:#}");
            let features = matches!(error.downcast_ref::<RunError>(), Some(RunError::MissingFeatures(_)));
            ExitCode::from(if features { EXIT_FEATURES } else { EXIT_FAILURE })
        }
    }
}

fn serve_with(config: Config) -> anyhow::Result<()> {
    kube_common::tls::install_ring();
    sysctl::oom_score(config.oom_score_adj);
    // The work is one loop and a few connections; two threads let health answers pass a sync.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let shutdown = kube_common::shutdown::on_signals().context("installing signal handlers")?;
        let client = client(&config).await?;
        let progress = Progress::default();
        let waiting = "waiting for the API server's Services and EndpointSlices";
        let telling = tokio::spawn(notify::report(progress.clone(), waiting, STUCK_AFTER, shutdown.clone()));
        let outcome = run_watched(config, client, progress, shutdown.clone()).await;
        // Also when it failed: the service manager then hears of the end at once.
        shutdown.cancel();
        let _ = telling.await;
        Ok(outcome?)
    })
}

async fn client(config: &Config) -> anyhow::Result<kube::Client> {
    let kube_config = match &config.kubeconfig {
        Some(path) => {
            let kubeconfig = kube::config::Kubeconfig::read_from(path)
                .with_context(|| format!("clientConnection.kubeconfig: reading {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
                .await
                .with_context(|| format!("clientConnection.kubeconfig: {}", path.display()))?
        }
        None => kube::Config::infer()
            .await
            .context("no clientConnection.kubeconfig in the configuration, and not inside a cluster")?,
    };
    kube_common::client::client(kube_config).context("making an API client")
}
