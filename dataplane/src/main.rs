//! `dataplane`: the service proxy of a node.
//!
//! Exit codes: 0 after SIGTERM or a finished command, 1 a failure at run time, 2 a mistake on the
//! command line or in the configuration, 3 the kernel lacks a feature (each is named), 4 `diff` found
//! that something differs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use keelson_dataplane::config::{self, Config};
use keelson_dataplane::run::{RunError, node_name, run_watched};
use keelson_dataplane::trace::{End, Question, trace};
use keelson_dataplane::wanted::{self, Wanted};
use keelson_dataplane::{status, sysctl};
use kube_common::notify::{self, Progress};

const EXIT_FAILURE: u8 = 1;
const EXIT_CONFIG: u8 = 2;
const EXIT_FEATURES: u8 = 3;
const EXIT_DIFFERS: u8 = 4;
/// `diff` and `trace` wait no longer for an API server.
const API_PATIENCE: Duration = Duration::from_secs(15);
/// A loop that has not turned for so long gives no more signs of life. A full sync of 10,000 Services takes under a second, on a
/// slow machine some.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// The service proxy of a node: Services to nftables.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1).
    #[arg(long, value_name = "FILE", global = true)]
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
    /// Compare what the API server's objects want with what is programmed (needs --config).
    Diff,
    /// Say step by step what happens to a packet, and why.
    Trace {
        /// The sender, as ADDRESS[:PORT]; this node when left out.
        #[arg(long, value_name = "ADDRESS")]
        from: Option<End>,
        /// The destination, as ADDRESS:PORT[/PROTOCOL]; TCP when no protocol is given.
        #[arg(long, value_name = "ADDRESS:PORT")]
        to: End,
        /// The interface by which it comes in; found by the route to the sender when left out.
        #[arg(long = "in", value_name = "INTERFACE")]
        interface: Option<String>,
    },
    /// Delete our tables, and nothing else.
    Cleanup,
}

fn main() -> ExitCode {
    let args = Args::parse();
    kube_common::logging::init(args.v);
    let command = match args.command {
        Some(Command::Status) => status::status().map_err(Into::into),
        Some(Command::Cleanup) => status::cleanup().map_err(Into::into),
        Some(Command::Diff) => return diff(args.config.as_deref()),
        Some(Command::Trace { from, to, interface }) => {
            let wanted = wanted(args.config.as_deref());
            let wanted = wanted.as_ref().map_err(|failure| failure.why.clone());
            trace(&Question { from, to, interface }, wanted).map_err(Into::into)
        }
        None => return serve(args.config.as_deref()),
    };
    finish(command.map(|text: String| (text, ExitCode::SUCCESS)))
}

fn finish(outcome: anyhow::Result<(String, ExitCode)>) -> ExitCode {
    match outcome {
        Ok((text, code)) => {
            print!("{text}");
            code
        }
        Err(error) => {
            eprintln!("dataplane: {error:#}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

fn diff(config: Option<&Path>) -> ExitCode {
    match wanted(config) {
        Ok(wanted) => finish(
            status::diff(&wanted)
                .map_err(Into::into)
                .map(|(text, differs)| (text, if differs { ExitCode::from(EXIT_DIFFERS) } else { ExitCode::SUCCESS })),
        ),
        Err(failure) => {
            eprintln!("dataplane: {}", failure.why);
            failure.code
        }
    }
}

/// Why it is not known what is wanted.
struct NotKnown {
    why: String,
    code: ExitCode,
}

/// What the API server's objects want, for the commands that compare.
fn wanted(path: Option<&Path>) -> Result<Wanted, NotKnown> {
    let Some(path) = path else {
        let why = "no --config FILE was given, which says where the API server is".to_owned();
        return Err(NotKnown { why, code: ExitCode::from(EXIT_CONFIG) });
    };
    let config =
        config::load(path).map_err(|error| NotKnown { why: error.to_string(), code: ExitCode::from(EXIT_CONFIG) })?;
    kube_common::tls::install_ring();
    let ask = async {
        let client = client(&config).await?;
        let name = node_name(&config)?;
        let asking = wanted::wanted(&config, client, &name);
        tokio::time::timeout(API_PATIENCE, asking)
            .await
            .with_context(|| format!("the API server has not answered for {} s", API_PATIENCE.as_secs()))?
            .map_err(anyhow::Error::from)
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(ask))
        .map_err(|error| NotKnown { why: format!("{error:#}"), code: ExitCode::from(EXIT_FAILURE) })
}

fn serve(path: Option<&Path>) -> ExitCode {
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
