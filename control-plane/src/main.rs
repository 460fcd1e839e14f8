//! Program `control-plane`: API server, scheduler, controllers and DNS in one process, or some of them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use keelson_control_plane::auth::tokens::StaticTokens;
use keelson_control_plane::events::DEFAULT_TTL;
use keelson_control_plane::http::tls::Listener;
use keelson_control_plane::pki::{self, Authority, Pki, Subject};
use keelson_control_plane::run;
use keelson_control_plane::server::Config;
use keelson_control_plane::store::{Store, backup};
use keelson_controllers as controllers;
use kube::Client;
use kube_common::duration::GoDuration;
use kube_common::notify::{self, Progress};
use tokio_util::sync::CancellationToken;

mod audit_flags;
mod dns;
mod eviction;
mod storage;

/// How often the store is read as a sign of life.
const BEAT: Duration = Duration::from_secs(2);
/// Without an answer of the store for so long the service manager gets no more signs of life. A commit on a slow disk takes
/// seconds at worst, a compaction of a large store a few more.
const STUCK_AFTER: Duration = Duration::from_secs(30);

#[derive(Parser)]
#[command(
    name = "control-plane",
    version,
    about = "A small Kubernetes control plane: API server, scheduler, controllers, DNS"
)]
struct Cli {
    /// More log lines; twice for all of them.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the control plane until SIGTERM.
    Serve(Box<Serve>),
    /// Issues a client certificate and writes a kubeconfig with it; works while no server runs.
    Kubeconfig(Kubeconfig),
    /// Copies the SQLite store to a file, also while the server runs. Certificates are not in it: copy DIR/pki beside.
    Backup(Backup),
    /// Brings a copy back into a data folder without a store.
    Restore(Restore),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Apiserver,
    Scheduler,
    Controllers,
    Dns,
}

#[derive(Args)]
struct Serve {
    /// Folder of the store and the certificates.
    #[arg(long, default_value = "/var/lib/keelson/control-plane")]
    data_dir: PathBuf,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Port to listen on.
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// Address that other machines and pods reach this server at; the bind address if that is one.
    #[arg(long)]
    advertise_address: Option<IpAddr>,
    /// Range of service addresses.
    #[arg(long, default_value = "10.96.0.0/16")]
    service_cluster_ip_range: IpNet,
    /// Ranges of pod addresses, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16")]
    cluster_cidr: Vec<IpNet>,
    /// First and last node port.
    #[arg(long, default_value = "30000-32767", value_parser = port_range)]
    service_node_port_range: (u16, u16),
    /// DNS domain of the cluster.
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    /// How long Events stay that nobody writes.
    #[arg(long, default_value_t = GoDuration(DEFAULT_TTL), value_parser = GoDuration::parse)]
    event_ttl: GoDuration,
    /// File of tokens that users show, a line each: TOKEN,USER,UID,"GROUP,GROUP". Read at the start.
    #[arg(long)]
    token_auth_file: Option<PathBuf>,
    #[command(flatten)]
    audit: audit_flags::Flags,
    /// Lets Services name externalIPs. Whoever may write Services can then take over traffic to any address (CVE-2020-8554).
    #[arg(long)]
    allow_service_external_ips: bool,
    #[command(flatten)]
    storage: storage::Flags,
    #[command(flatten)]
    dns: dns::Flags,
    #[command(flatten)]
    eviction: eviction::Flags,
    /// Parts to run; all if not given.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Kubeconfig of the API server to work with, when this process does not run one.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Lets scheduler and controllers work in one process only, the others stand by; on where there can be others: with etcd, and without
    /// an API server in this process.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: Option<bool>,
}

#[derive(Args)]
struct Kubeconfig {
    /// Folder of the certificates.
    #[arg(long, default_value = "/var/lib/keelson/control-plane")]
    data_dir: PathBuf,
    /// User name (the certificate's CN), for instance system:node:NAME.
    #[arg(long)]
    user: String,
    /// Groups (the certificate's O), for instance system:nodes.
    #[arg(long)]
    group: Vec<String>,
    /// URL of the API server, for instance https://10.0.0.1:6443.
    #[arg(long)]
    server: String,
    /// File to write, with mode 0600.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Args)]
struct Backup {
    /// Folder of the store.
    #[arg(long, default_value = "/var/lib/keelson/control-plane")]
    data_dir: PathBuf,
    /// File to make, with mode 0600.
    #[arg(long)]
    to: PathBuf,
}

#[derive(Args)]
struct Restore {
    /// Folder that gets the store.
    #[arg(long, default_value = "/var/lib/keelson/control-plane")]
    data_dir: PathBuf,
    /// What `backup` made.
    #[arg(long)]
    from: PathBuf,
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').ok_or("expected FIRST-LAST, for instance 30000-32767")?;
    let number = |s: &str| s.trim().parse::<u16>().map_err(|e| format!("{s}: {e}"));
    match (number(first)?, number(last)?) {
        (0, _) => Err("port 0 cannot be used".to_owned()),
        (first, last) if first > last => Err(format!("{first} is larger than {last}")),
        range => Ok(range),
    }
}

fn main() -> ExitCode {
    match run_command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with all causes; a backtrace would say nothing to an operator.
            eprintln!("control-plane: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command() -> anyhow::Result<()> {
    let cli = Cli::parse();
    kube_common::logging::init(cli.verbose);
    kube_common::tls::install_ring();
    raise_file_limit();
    match cli.command {
        Command::Kubeconfig(args) => issue(&args),
        Command::Backup(args) => {
            let revision = backup::backup(&args.data_dir.join(run::STORE_FILE), &args.to)?;
            println!("{} holds the store at revision {revision}", args.to.display());
            Ok(())
        }
        Command::Restore(args) => {
            run::make_data_dir(&args.data_dir)?;
            let revision = backup::restore(&args.from, &args.data_dir.join(run::STORE_FILE))?;
            println!("the store in {} goes on at revision {revision}", args.data_dir.display());
            Ok(())
        }
        Command::Serve(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(serve(*args))
        }
    }
}

/// Takes as many open files as this process may have, as Go's runtime does for upstream's server: each connection is one.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is: many connections may be refused");
    }
}

fn issue(args: &Kubeconfig) -> anyhow::Result<()> {
    let folder = args.data_dir.join("pki");
    if !folder.join("ca.key").exists() {
        bail!(
            "{} has no certificate authority yet: start the control plane once, or check --data-dir",
            folder.display()
        );
    }
    let authority = Authority::open(&folder)?;
    let pair = authority.client(&Subject { user: args.user.clone(), groups: args.group.clone() })?;
    let text = pki::kubeconfig(&args.server, authority.cert_pem(), &args.user, &pair);
    pki::write_private(&args.out, text.as_bytes())?;
    Ok(())
}

async fn serve(args: Serve) -> anyhow::Result<()> {
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    let dns_config = if wanted(Part::Dns) { dns::config(&args)? } else { None };
    let shutdown = kube_common::shutdown::on_signals()?;
    let mut tasks = tokio::task::JoinSet::new();
    let mut pages = None;
    let mut store = None;
    let mut audit = None;
    let (scheduler_client, controllers_client, dns_client, root_ca) = if wanted(Part::Apiserver) {
        if args.kubeconfig.is_some() {
            bail!("--kubeconfig is for a process without an API server: drop it, or leave apiserver out of --only");
        }
        let (server, listener, ca) = api_server(&args, &shutdown).await?;
        let client = |user| run::client(&server, user);
        let clients =
            (client("system:kube-scheduler"), client("system:kube-controller-manager"), client("system:kube-dns"));
        pages = Some(server.metrics.endpoints.clone());
        store = Some(Arc::clone(&server.store));
        audit.clone_from(&server.config.audit);
        tasks.spawn({
            let shutdown = shutdown.clone();
            async move {
                listener.serve(server, shutdown).await;
                Ok(())
            }
        });
        (clients.0, clients.1, clients.2, ca)
    } else {
        args.storage.check_unused()?;
        let (client, ca) = remote_client(args.kubeconfig.as_deref()).await?;
        (client.clone(), client.clone(), client, ca)
    };
    let mut config = controllers::Config {
        cluster_cidrs: args.cluster_cidr.clone(),
        service_cidrs: vec![args.service_cluster_ip_range],
        cluster_domain: args.cluster_domain.clone(),
        root_ca_pem: root_ca,
        ..controllers::Config::default()
    };
    args.eviction.apply(&mut config);
    let elect = args.leader_elect.unwrap_or_else(|| store.as_ref().is_none_or(|store| store.shared()));
    let identity = elect.then(identity);
    if wanted(Part::Controllers) {
        let running = work("kube-controller-manager", identity.clone(), controllers_client, shutdown.clone(), {
            let config = config.clone();
            move |client, stop| controllers::run_controllers(client, config.clone(), stop)
        });
        tasks.spawn(async move { running.await.context("the controllers ended") });
    }
    if wanted(Part::Scheduler) {
        let running = work("kube-scheduler", identity, scheduler_client, shutdown.clone(), move |client, stop| {
            controllers::run_scheduler(client, config.clone(), stop)
        });
        tasks.spawn(async move { running.await.context("the scheduler ended") });
    }
    if let Some(config) = dns_config {
        let server = keelson_dns::Dns::bind(config, pages.as_ref()).await?;
        let shutdown = shutdown.clone();
        tasks.spawn(async move { server.run(dns_client, shutdown).await.map_err(anyhow::Error::from) });
    }
    let progress = Progress::default();
    // A store elsewhere may be away for long: caches go on being read, and a new start would lose them.
    tokio::spawn(beat(store.filter(|store| !store.shared()), progress.clone()));
    let telling = tokio::spawn(notify::report(progress.clone(), "starting", STUCK_AFTER, shutdown.clone()));
    progress.set_ready();
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(|e| anyhow!("a part died: {e}")).and_then(|result| result);
        if let Err(error) = &ended {
            tracing::error!("{error:#}");
        }
        if !shutdown.is_cancelled() {
            // One part less is no control plane: stop, so that a supervisor sees it and starts again.
            shutdown.cancel();
            outcome = ended.and(Err(anyhow!("a part ended by itself")));
        }
    }
    let _ = telling.await;
    if let Some(audit) = audit {
        audit.flush().await;
    }
    tracing::info!("stopped");
    outcome
}

/// Works, or with an identity works whenever that one leads.
async fn work<F>(
    name: &'static str,
    identity: Option<String>,
    client: Client,
    shutdown: CancellationToken,
    run: impl Fn(Client, CancellationToken) -> F,
) -> Result<(), controllers::RunError>
where
    F: Future<Output = Result<(), controllers::RunError>>,
{
    match identity {
        Some(identity) => controllers::lead(client, controllers::Election { name, identity }, shutdown, run).await,
        None => run(client, shutdown).await,
    }
}

/// Upstream's form: the machine's name, and something that no other process has.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// Signs of life: the runtime still runs tasks, and the store, if there is one, answers.
async fn beat(store: Option<Arc<dyn Store>>, progress: Progress) {
    let mut ticks = tokio::time::interval(BEAT);
    loop {
        ticks.tick().await;
        let alive = match &store {
            // No such key is needed: the answer is the sign.
            Some(store) => store.get("/").await.is_ok(),
            None => true,
        };
        if alive {
            progress.turn();
        }
    }
}

fn advertise_address(args: &Serve) -> anyhow::Result<IpAddr> {
    match args.advertise_address {
        Some(address) if address.is_unspecified() => {
            bail!("--advertise-address {address} is no address others can reach")
        }
        Some(address) => Ok(address),
        None if args.bind_address.is_unspecified() => {
            bail!("--advertise-address is needed when --bind-address is {}", args.bind_address)
        }
        None => Ok(args.bind_address),
    }
}

async fn api_server(
    args: &Serve,
    shutdown: &CancellationToken,
) -> anyhow::Result<(Arc<keelson_control_plane::server::Server>, Listener, String)> {
    let started = std::time::Instant::now();
    let config = Config {
        advertise_address: advertise_address(args)?,
        secure_port: args.secure_port,
        service_cidr: args.service_cluster_ip_range,
        node_ports: args.service_node_port_range,
        cluster_domain: args.cluster_domain.clone(),
        event_ttl: args.event_ttl.0,
        static_tokens: args.token_auth_file.as_deref().map(StaticTokens::read).transpose()?.unwrap_or_default(),
        audit: args.audit.open()?,
        allow_external_ips: args.allow_service_external_ips,
        toleration_seconds: args.eviction.toleration_seconds(),
    };
    let store = args.storage.open(&args.data_dir)?;
    let pki = run::open_pki(&args.data_dir, &config, args.bind_address)?;
    let listener = Listener::bind(SocketAddr::new(args.bind_address, args.secure_port), &pki).await?;
    write_admin_kubeconfig(&args.data_dir, &config, &pki)?;
    let ca = pki.authority.cert_pem().to_owned();
    let kubelet_client = pki.kubelet_client.clone();
    // The caches end with the process: scheduler and controllers give back their lead after the end was asked for.
    let caches = CancellationToken::new();
    let server =
        run::start_with_caches(config, store, pki.tokens, Some(&kubelet_client), shutdown.clone(), caches).await?;
    tracing::info!(
        address = %listener.local_addr()?,
        kubeconfig = %args.data_dir.join("admin.kubeconfig").display(),
        revision = server.hub.revision(),
        elapsed_ms = started.elapsed().as_millis(),
        "API server ready"
    );
    Ok((server, listener, ca))
}

fn write_admin_kubeconfig(data_dir: &Path, config: &Config, pki: &Pki) -> anyhow::Result<()> {
    let server = format!("https://{}", SocketAddr::new(config.advertise_address, config.secure_port));
    let text = pki::kubeconfig(&server, pki.authority.cert_pem(), "kubernetes-admin", &pki.admin);
    pki::write_private(&data_dir.join("admin.kubeconfig"), text.as_bytes())?;
    Ok(())
}

async fn remote_client(path: Option<&Path>) -> anyhow::Result<(Client, String)> {
    let path = path.context("--kubeconfig is needed when this process runs no API server")?;
    let kubeconfig = kube::config::Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
    let ca = config.root_cert.iter().flatten().map(|der| pem(der)).collect();
    Ok((kube_common::client::client(config)?, ca))
}

fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        out.extend(line.iter().map(|b| char::from(*b)));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}
