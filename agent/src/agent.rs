//! Puts the agent together and runs it: runtime, cache, sources, workers, node status, servers.
//!
//! Order of a start: configuration, folders, health port; the runtime's first answer and first full list; then
//! sources and workers; then the API. Static pods need none of the API. Upstream counterpart: `Kubelet.Run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube_common::notify;
use kube_common::scheduling::resources::Resources;
use kube_common::serve::{Endpoints, HealthServer, ListenError};
use kube_common::tasks::Tasks;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admission::{Ledger, NodeFacts};
use crate::adopt::statics::Predecessors;
use crate::cgroup::{self, Cgroups, Layout};
use crate::config::{Config, NetworkMode};
use crate::create::NodeSettings;
use crate::events::{self, Recorder};
use crate::flight::Flight;
use crate::images::Images;
use crate::manager::{Manager, View};
use crate::materials::Materials;
use crate::metrics::{Metrics, Population};
use crate::node::facts::MachineFacts;
use crate::node::{self, Readiness, report};
use crate::pleg::Pleg;
use crate::probe::ExecSlots;
use crate::runtime::cri::{CriRuntime, socket_path};
use crate::runtime::events::EventStreams;
use crate::runtime::{Filter, Runtime, RuntimeVersion, identity};
use crate::source::{Feed, Teller, api, file, url};
use crate::status::manager::Statuses;
use crate::sync::{Policy, backoff};
use crate::worker::NodeContext;
use crate::{mirror, network};

/// Events of the runtime that may wait.
const HINT_QUEUE: usize = 1024;
/// First pause while the runtime cannot be reached (upstream's sync loop starts with 100 ms).
const RUNTIME_RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const RUNTIME_RETRY_MAX: Duration = Duration::from_secs(3);
/// How long a stop waits for tasks that are inside a call.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// The loop is stuck when it has not turned for this long although something was to be done.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A folder cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A port is taken.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}: {message}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// cgroup v1 is an error by configuration.
    #[error("this host has cgroup v1 and failCgroupV1 is true: boot with cgroup v2 or set failCgroupV1: false")]
    CgroupV1,
}

fn folders(config: &Config) -> Result<(), StartError> {
    let root = &config.node.root_dir;
    let mut list: Vec<PathBuf> =
        ["pods", "plugins", "plugins_registry", "pod-resources", "checkpoints", "device-plugins"]
            .iter()
            .map(|d| root.join(d))
            .collect();
    list.extend([config.cert_dir(), config.kubelet.pod_logs_dir.clone(), identity::CONTAINER_LOGS_ROOT.into()]);
    for path in list {
        std::fs::create_dir_all(&path).map_err(|source| StartError::Folder { path, source })?;
    }
    Ok(())
}

/// Lowers the agent's own OOM score, so that pods go first; a warning where that is not allowed.
fn protect_self(score: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        warn!("cannot set the agent's own oom_score_adj to {score} ({error}); going on without");
    }
}

/// The API server's client configuration.
///
/// # Errors
/// When the kubeconfig cannot be read or used.
pub async fn client_config(config: &Config) -> Result<Option<kube::Config>, StartError> {
    let Some(path) = &config.node.kubeconfig else { return Ok(None) };
    let fail = |message: String| StartError::Kubeconfig { path: path.clone(), message };
    let kubeconfig = kube::config::Kubeconfig::read_from(path).map_err(|e| fail(e.to_string()))?;
    let options = kube::config::KubeConfigOptions::default();
    let out = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| fail(e.to_string()))?;
    Ok(Some(out))
}

/// The first answer of the runtime; waits as long as it takes.
async fn runtime_version(runtime: &dyn Runtime, stop: &CancellationToken) -> Option<RuntimeVersion> {
    let mut pause = RUNTIME_RETRY_MIN;
    let mut told = false;
    loop {
        match runtime.version().await {
            Ok(version) => return Some(version),
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    warn!("waiting for the container runtime: {error}");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(RUNTIME_RETRY_MAX);
    }
}

/// What the HTTPS server and an embedded dataplane get to see.
#[derive(Clone)]
pub struct Handles {
    /// Configuration.
    pub config: Arc<Config>,
    /// Node name.
    pub node_name: String,
    /// The API server's client, if there is one.
    pub client: Option<kube::Client>,
    /// The node's pods.
    pub view: watch::Receiver<View>,
    /// Their statuses.
    pub statuses: Arc<Statuses>,
    /// What the runtime holds.
    pub pleg: Arc<Pleg>,
    /// The runtime itself.
    pub runtime: Arc<dyn Runtime>,
    /// Addresses of the node.
    pub addresses: Vec<String>,
    /// What happened to the pods.
    pub flight: Arc<Flight>,
    /// The node object once registered.
    pub node: watch::Receiver<Option<Arc<k8s_openapi::api::core::v1::Node>>>,
    /// Health and metrics.
    pub endpoints: Endpoints,
}

/// Makes the node's [`Materials`] from what the agent knows before it has pods.
pub type MaterialsFactory = Box<dyn FnOnce(&MaterialsInputs) -> Arc<dyn Materials> + Send>;

/// What [`MaterialsFactory`] gets.
pub struct MaterialsInputs {
    /// Configuration.
    pub config: Arc<Config>,
    /// The API server's client, if there is one.
    pub client: Option<kube::Client>,
    /// Addresses of the node.
    pub addresses: Vec<String>,
    /// What pods may use in all.
    pub allocatable: node::status::Resources,
    /// Events.
    pub recorder: Arc<Recorder>,
    /// Ends with the agent.
    pub stop: CancellationToken,
}

/// Starts what needs the running agent: the HTTPS server, an embedded dataplane.
pub type Extension = Box<dyn FnOnce(Handles, &Tasks, CancellationToken) + Send>;

/// Runs the agent until `stop`. No container is touched by the stop.
///
/// # Errors
/// What prevents a start; afterwards nothing does.
pub async fn run(
    config: Config,
    materials: MaterialsFactory,
    extensions: Vec<Extension>,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let config = Arc::new(config);
    let name = config.node_name();
    for field in &config.unused {
        warn!("KubeletConfiguration.{field} is set and not used yet");
    }
    folders(&config)?;
    protect_self(config.kubelet.oom_score_adj);
    let layout = Layout::detect();
    if layout.is_v1() && config.kubelet.fail_cgroup_v1 {
        return Err(StartError::CgroupV1);
    }
    let client_config = client_config(&config).await?;
    // Without a client the API's pods would be nobody's, and would be ended.
    let client = client_config.clone().map(kube_common::client::client).transpose().map_err(|error| {
        let path = config.node.kubeconfig.clone().unwrap_or_default();
        StartError::Kubeconfig { path, message: error.to_string() }
    })?;
    let tasks = Tasks::new();
    let endpoints = Endpoints::new();
    if config.kubelet.healthz_port != 0 {
        let address = SocketAddr::new(config.kubelet.healthz_bind_address, config.kubelet.healthz_port);
        let server = HealthServer::bind(address, endpoints.clone()).await?;
        tasks.spawn("health", server.run(stop.clone()));
    }
    info!(node = name, version = node::status::KUBELET_VERSION, "agent starts");
    let metrics = Metrics::default();
    metrics.register(&endpoints, &name);
    let cri = CriRuntime::new(&config.kubelet.container_runtime_endpoint, metrics.clone());
    let (starting, execs) = (cri.starting(), cri.execs());
    let runtime: Arc<dyn Runtime> = Arc::new(cri);
    let Some(version) = runtime_version(runtime.as_ref(), &stop).await else { return Ok(()) };
    info!(runtime = version.name, version = version.version, "container runtime answers");
    let pleg = Pleg::new(runtime.clone(), metrics.clone());
    let predecessors = first_list(&runtime, &pleg, &stop).await.kept_in(&config.node.root_dir);
    notify::send(notify::READY);
    let (hint_tx, hint_rx) = mpsc::channel(HINT_QUEUE);
    let streams = EventStreams {
        socket: socket_path(&config.kubelet.container_runtime_endpoint),
        containerd: version.name == "containerd",
        hints: hint_tx,
        execs,
        metrics: metrics.clone(),
    };
    if config.node.runtime_events {
        tasks.spawn("runtime-events", streams.read(stop.clone()));
    } else {
        info!("the runtime's events are not read (runtimeEvents: false)");
    }
    tasks.spawn("pleg", pleg.clone().run(hint_rx, stop.clone()));
    let (flight, recording) = Flight::new(&config.node.root_dir, stop.clone());
    tasks.spawn("flight-recorder", recording);
    let (recorder, queue) = Recorder::new(&name, flight.clone());
    tasks.spawn("events", events::send(queue, client.clone(), name.clone(), stop.clone()));
    if layout.is_v1() {
        let text = "cgroup v1 is in maintenance mode upstream; everything works, moving to cgroup v2 is advised";
        recorder.node("Warning", "CgroupV1", text);
    }
    recorder.node("Normal", "Starting", "Starting kubelet.");
    let facts = MachineFacts::read();
    let addresses = report::addresses(config.node.node_ip);
    let disk = node::facts::disk(&config.node.root_dir).map_or(0, |(size, _)| size);
    let (_, allocatable) = node::status::resources(&config, &facts, disk);
    let object = watch::Sender::new(None);
    let place = NodeFacts {
        name: name.clone(),
        allocatable: Resources::read(Some(&allocatable)),
        labels: node::status::labels(&config, &name, &facts),
        taints: Vec::new(),
    };
    let materials = materials(&MaterialsInputs {
        config: config.clone(),
        client: client.clone(),
        addresses: addresses.clone(),
        allocatable,
        recorder: recorder.clone(),
        stop: stop.clone(),
    });
    let first = node::ask(runtime.as_ref(), &Readiness::default()).await;
    let network_state = watch::Sender::new(first.network.clone());
    let readiness = watch::Sender::new(first);
    let statuses = Arc::new(Statuses::default());
    let context = Arc::new(NodeContext {
        images: Images::new(runtime.clone(), recorder.clone(), config.kubelet.parallel_pulls()),
        exec_slots: ExecSlots::default(),
        runtime: runtime.clone(),
        pleg: pleg.clone(),
        recorder: recorder.clone(),
        flight: flight.clone(),
        metrics,
        statuses: statuses.clone(),
        materials,
        cgroups: Cgroups::new(
            layout.clone(),
            &config.kubelet.cgroup_root,
            config.kubelet.cgroup_driver,
            config.kubelet.cgroups_per_qos,
        ),
        ledger: Ledger::new(place, object.subscribe()),
        drain: config.node.drain.settings(),
        settings: settings(&config, &facts, layout.is_v1()),
        policy: policy(&config),
        network: network_state.subscribe(),
        host_ips: watch::Sender::new(addresses.clone()).subscribe(),
        sync_period: config.kubelet.sync_frequency.0,
        started: Instant::now(),
    });
    let limits = cgroup::node::limits(&config.kubelet, &facts, cgroup::node::max_pids());
    let enforcing = cgroup::node::enforce(context.cgroups.clone(), limits, recorder.clone(), stop.clone());
    tasks.spawn("node-allocatable", enforcing);
    let poke = Arc::new(Notify::new());
    let ready_rx = readiness.subscribe();
    let trouble = watch::Sender::new(None);
    tasks.spawn(
        "runtime-health",
        node::watch_health(runtime.clone(), readiness, network_state, trouble.subscribe(), poke.clone(), stop.clone()),
    );

    let statics = start_static_sources(&config, &name, predecessors, &context, &tasks, &stop);
    let api_feed = client.clone().map(|client| {
        let (tx, rx) = watch::channel(None);
        tasks.spawn("api-source", api::run(client, name.clone(), tx, stop.clone()));
        rx
    });
    let stale = context.ledger.stale();
    let (manager, ended) = Manager::new(context, statics, api_feed);
    let view = manager.view();
    Population { pleg: pleg.clone(), view: view.clone() }.register(&endpoints);
    health_checks(&endpoints, &manager, &pleg, &stop);
    let ranges = watch::Sender::new(own_ranges(&config));
    if config.node.network.mode == NetworkMode::Managed {
        let managed = network::Managed {
            config: config.clone(),
            name: name.clone(),
            client: client.clone(),
            addresses: addresses.iter().filter_map(|a| a.parse().ok()).collect(),
            ranges: ranges.subscribe(),
            trouble,
            poke,
            readiness: ready_rx.clone(),
            starting,
            recorder: recorder.clone(),
        };
        tasks.spawn("network", managed.run(stop.clone()));
    }
    let handles = Handles {
        config: config.clone(),
        node_name: name.clone(),
        client: client.clone(),
        view: view.clone(),
        statuses: statuses.clone(),
        pleg: pleg.clone(),
        runtime: runtime.clone(),
        addresses: addresses.clone(),
        flight,
        node: object.subscribe(),
        endpoints,
    };
    for extension in extensions {
        extension(handles.clone(), &tasks, stop.clone());
    }
    if let (Some(client), Some(client_config)) = (client, client_config) {
        let uid = watch::Sender::new(None);
        tasks.spawn("status", statuses.run(client.clone(), stop.clone()));
        tasks.spawn("mirror-pods", mirror::run(client.clone(), name.clone(), uid.subscribe(), view, stop.clone()));
        let reporter = report::Reporter {
            config,
            name,
            facts,
            addresses,
            runtime,
            version,
            pleg,
            readiness: ready_rx,
            uid,
            ranges,
            stale,
            object,
        };
        tasks.spawn("node-status", reporter.run(client, client_config, stop.clone()));
    }
    tasks.spawn("pod-workers", manager.run(ended, stop.clone()));
    stop.cancelled().await;
    notify::send(notify::STOPPING);
    // What is not done by then the next agent finds in the runtime, as after a kill.
    if let Err(late) = tasks.ended(STOP_LIMIT).await {
        warn!("leaving without waiting longer for: {}", late.join(", "));
    }
    info!("agent stopped; containers run on");
    Ok(())
}

/// What runs already; the static pods among it.
async fn first_list(runtime: &Arc<dyn Runtime>, pleg: &Arc<Pleg>, stop: &CancellationToken) -> Predecessors {
    loop {
        let listed = async {
            pleg.relist().await?;
            runtime.list_sandboxes(Filter::default()).await
        };
        match listed.await {
            Ok(sandboxes) => {
                info!(pods = pleg.all().len(), "found in the runtime");
                return Predecessors::of(&sandboxes);
            }
            Err(error) => warn!("cannot list what runs already: {error}"),
        }
        tokio::select! {
            () = stop.cancelled() => return Predecessors::default(),
            () = tokio::time::sleep(RUNTIME_RETRY_MIN * 5) => {}
        }
    }
}

/// The sources of static pods that the configuration names.
fn start_static_sources(
    config: &Config,
    name: &str,
    predecessors: Predecessors,
    node: &NodeContext,
    tasks: &Tasks,
    stop: &CancellationToken,
) -> Vec<Feed> {
    let kubelet = &config.kubelet;
    let teller = |source| Teller::new(node.recorder.clone(), node.metrics.clone(), source);
    let mut feeds = Vec::new();
    if let Some(path) = &kubelet.static_pod_path {
        let folder = file::Folder::new(path, name).telling(teller("file")).inheriting(predecessors);
        let (tx, rx) = watch::channel(None);
        tasks.spawn("file-source", file::run(folder, kubelet.file_check_frequency.0, tx, stop.clone()));
        feeds.push(rx);
    }
    if !kubelet.static_pod_url.is_empty() {
        let remote =
            url::Remote::new(&kubelet.static_pod_url, &kubelet.static_pod_url_header, name, Some(teller("http")));
        let (tx, rx) = watch::channel(None);
        tasks.spawn("url-source", url::run(remote, kubelet.http_check_frequency.0, tx, stop.clone()));
        feeds.push(rx);
    }
    feeds
}

fn settings(config: &Config, facts: &MachineFacts, cgroup_v1: bool) -> NodeSettings {
    NodeSettings {
        logs_root: config.kubelet.pod_logs_dir.clone(),
        links_root: identity::CONTAINER_LOGS_ROOT.into(),
        root_dir: config.node.root_dir.clone(),
        cpu_quota: config.kubelet.cpu_cfs_quota,
        cpu_period: config.kubelet.cpu_cfs_quota_period.0,
        memory_capacity: facts.memory,
        seccomp_default: config.kubelet.seccomp_default,
        cgroup_v1,
        pids_limit: config.kubelet.pod_pids_limit,
        allowed_unsafe_sysctls: config.kubelet.allowed_unsafe_sysctls.clone(),
    }
}

/// Settings of decisions.
pub(crate) fn policy(config: &Config) -> Policy {
    let longest = config.kubelet.crash_loop_back_off.max_container_restart_period.map(|d| d.0);
    Policy { backoff: backoff::Limits { initial: backoff::INITIAL, maximum: longest.unwrap_or(backoff::MAXIMUM) } }
}

fn watchdog(manager: &Manager, stop: &CancellationToken) {
    let progress = manager.progress();
    let healthy = move || progress.idle() < STUCK_AFTER;
    tokio::spawn(notify::watchdog(healthy, stop.clone()));
}

fn health_checks(endpoints: &Endpoints, manager: &Manager, pleg: &Arc<Pleg>, stop: &CancellationToken) {
    let progress = manager.progress();
    endpoints.add_live_check("syncloop", move || {
        let age = progress.idle();
        if age > STUCK_AFTER { Err(format!("the loop has not turned for {age:?}")) } else { Ok(()) }
    });
    let pleg = pleg.clone();
    watchdog(manager, stop);
    endpoints.add_live_check("pleg", move || {
        let age = pleg.relist_age();
        if age > crate::pleg::UNHEALTHY_AFTER {
            Err(format!("no full list of the runtime for {age:?}"))
        } else {
            Ok(())
        }
    });
}

/// Ranges of a node without an API server; with one it is asked.
fn own_ranges(config: &Config) -> Option<Vec<ipnet::IpNet>> {
    let list = config.kubelet.pod_cidr.iter().flat_map(|list| list.split(','));
    config.node.kubeconfig.is_none().then(|| list.filter_map(|c| c.parse().ok()).collect())
}
