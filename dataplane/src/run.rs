//! The program's loop, also for use inside another process: watches -> engine -> kernel.
//!
//! Tasks: the watches, the monitor of foreign changes, the two servers, and the loop, which owns
//! the engine and lends it to a blocking thread for each sync. On shutdown the rules stay in the
//! kernel, as upstream has it: connections go on, and the next start adopts them.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use keelson_netfilter::conntrack::KernelConntrack;
use keelson_netfilter::nft::{Change, Family as NftFamily, KernelNft, Nft, NftError};
use kube_common::notify::Progress;
use kube_common::serve::{Endpoints, HealthServer, ListenError, PageAnswer};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::conntrack_fill::ConntrackFill;
use crate::drain::book::{Book, Request};
use crate::drain::server::{self, SocketError};
use crate::engine::Engine;
use crate::foreign::{self, KernelSource};
use crate::health::Health;
use crate::metrics::{Metrics, Policy};
use crate::model::decode;
use crate::model::types::Name;
use crate::nftables::probe::{Missing, probe};
use crate::node_health::{self, NodeHealth};
use crate::watch::{self, Input, Kind};

/// Inputs that may wait; a full channel slows the watches down.
const INPUTS: usize = 256;
/// A sync waits this long for more changes of the same burst…
const COALESCE: Duration = Duration::from_millis(3);
/// …but never longer than this after the first.
const COALESCE_MAX: Duration = Duration::from_millis(50);
/// Questions of the drain that may wait.
const QUESTIONS: usize = 64;
/// After a failed sync.
const RETRY: Duration = Duration::from_secs(1);
/// Foreign changes usually come several at a time.
const REPAIR_DELAY: Duration = Duration::from_millis(100);
/// The first sync waits no longer for the Node: a right to read it may be missing.
const NODE_PATIENCE: Duration = Duration::from_secs(10);
/// An idle loop turns this often, as a sign of life.
const BEAT: Duration = Duration::from_secs(2);
/// Triggers older than this are not worth a latency sample (a restart, a clock jump).
const MAX_TRIGGER_AGE_SECONDS: f64 = 3600.0;
/// By upstream's controller, on slices.
const LAST_CHANGE_TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Why the dataplane stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The socket of the drain cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// nf_tables cannot be spoken to.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The kernel lacks what the mode needs.
    #[error("this kernel lacks what mode nftables needs: {}", .0.iter().map(|m| format!("{}: {} ({})", m.feature, m.costs, m.answer)).collect::<Vec<_>>().join("; "))]
    MissingFeatures(Vec<Missing>),
    /// The name of this node is not known.
    #[error("reading this machine's host name: {0}; set hostnameOverride")]
    Hostname(std::io::Error),
    /// The engine's thread ended abnormally.
    #[error("the sync thread failed: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// Families this machine can do: IPv4, and IPv6 where the kernel has it.
fn families() -> Vec<NftFamily> {
    let mut families = vec![NftFamily::Ipv4];
    if std::path::Path::new("/proc/sys/net/ipv6").exists() {
        families.push(NftFamily::Ipv6);
    }
    families
}

/// The name of this node: as configured, else the machine's.
///
/// # Errors
/// [`RunError::Hostname`].
pub fn node_name(config: &Config) -> Result<String, RunError> {
    if let Some(name) = &config.hostname_override {
        return Ok(name.clone());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(RunError::Hostname)?;
    Ok(name.trim().to_lowercase())
}

/// The engine on this machine's kernel, after the feature probe, with the netlink ports it sends
/// from.
fn open_engine(config: &Config, node_name: &str) -> Result<(Engine, Vec<u32>), RunError> {
    let mut tables: Vec<(NftFamily, Box<dyn Nft>)> = Vec::new();
    let mut ports = Vec::new();
    for family in families() {
        let mut nft = KernelNft::open()?;
        let missing = probe(&mut nft, family)?;
        if !missing.is_empty() {
            if family == NftFamily::Ipv4 {
                return Err(RunError::MissingFeatures(missing));
            }
            tracing::warn!(?missing, "IPv6 Services are left out: the kernel lacks something");
            continue;
        }
        ports.push(nft.port());
        tables.push((family, Box::new(nft)));
    }
    let conntrack = match KernelConntrack::open() {
        Ok(conntrack) => Some(Box::new(conntrack) as Box<dyn keelson_netfilter::conntrack::Conntrack>),
        Err(error) => {
            tracing::warn!(%error, "stale UDP flows cannot be cleaned up");
            None
        }
    };
    Ok((Engine::new(node_name, config.settings.clone(), tables, conntrack), ports))
}

/// Runs until the token is cancelled. Programmed rules stay in the kernel.
///
/// # Errors
/// See [`RunError`].
pub async fn run(config: Config, client: kube::Client, shutdown: CancellationToken) -> Result<(), RunError> {
    run_watched(config, client, Progress::default(), shutdown).await
}

/// Like [`run`], and tells how far it is: ready after the first full sync, and each turn of the loop.
///
/// # Errors
/// See [`RunError`].
pub async fn run_watched(
    config: Config,
    client: kube::Client,
    progress: Progress,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let node_name = node_name(&config)?;
    let (engine, own_ports) = open_engine(&config, &node_name)?;
    crate::sysctl::apply(&config);
    // Twice the sync period, as upstream has it.
    let health = Health::new(config.sync_period * 2);
    let tasks = TaskTracker::new();
    let stop = shutdown.child_token();
    // A failure below ends what was begun: an embedded dataplane starts again in the same process.
    let _ends = stop.clone().drop_guard();
    let metrics = serve(&config, &health, &tasks, &stop).await?;
    let (sender, inputs) = mpsc::channel(INPUTS);
    let watch_cidrs = config.settings.service_cidrs.is_empty();
    let watches = watch::all(client, node_name.clone(), watch_cidrs, sender);
    tasks.spawn(stop.clone().run_until_cancelled_owned(watches));
    let (foreign_sender, foreign) = mpsc::channel(1);
    // Watching begins after the first sync: that one alone would overrun the announcements.
    let (first_sync, begin) = tokio::sync::oneshot::channel();
    let watch_table = async move {
        if begin.await.is_ok() {
            foreign::follow(move || KernelSource::open(&own_ports), foreign_sender).await;
        }
    };
    tasks.spawn(stop.clone().run_until_cancelled_owned(watch_table));
    let questions = serve_drain(&config, &tasks, &stop)?;
    tracing::info!(node = node_name, "dataplane started");
    let outcome = Loop {
        engine: Some(engine),
        node_health: NodeHealth::new(health.clone(), stop.child_token()),
        conntrack: ConntrackFill::default(),
        health,
        metrics,
        inputs,
        questions,
        book: Book::default(),
        foreign: Some(foreign),
        first_sync: Some(first_sync),
        begun: Instant::now(),
        tracking: Tracking::default(),
        progress,
    }
    .run(&stop)
    .await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    outcome
}

async fn serve(
    config: &Config,
    health: &Health,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Metrics, RunError> {
    let (health_pages, metric_pages) = (Endpoints::new(), Endpoints::new());
    let metrics = Metrics::register(&metric_pages);
    health.serve(&health_pages, &metrics);
    metric_pages.add_page("/proxyMode", || PageAnswer::text("nftables"));
    let configz = config.as_json.clone();
    metric_pages.add_page("/configz", move || PageAnswer::json(http::StatusCode::OK, configz.clone()));
    for (address, pages) in [(config.healthz, health_pages), (config.metrics, metric_pages)] {
        let Some(address) = address else { continue };
        match HealthServer::bind(address, pages).await {
            Ok(server) => {
                tasks.spawn(server.run(stop.clone()));
            }
            Err(error) if config.bind_hard_fail => return Err(error.into()),
            Err(error) => tracing::error!(%error, "going on without this port (bindAddressHardFail is false)"),
        }
    }
    Ok(metrics)
}

/// The drain's questions. Without its socket the dataplane still does the rest of its work.
fn serve_drain(
    config: &Config,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<mpsc::Receiver<Request>, SocketError> {
    let (sender, questions) = mpsc::channel(QUESTIONS);
    let Some(path) = &config.drain_socket else { return Ok(questions) };
    match server::bind(path) {
        Ok(listener) => {
            tasks.spawn(server::serve(listener, sender, stop.clone()));
        }
        Err(error) if config.bind_hard_fail => return Err(error),
        Err(error) => tracing::error!(%error, "pods of this node end without a drain (bindAddressHardFail is false)"),
    }
    Ok(questions)
}

/// The next foreign change; never, once the monitor is gone.
async fn next(foreign: &mut Option<mpsc::Receiver<Change>>) -> Change {
    if let Some(receiver) = foreign {
        if let Some(change) = receiver.recv().await {
            return change;
        }
        *foreign = None;
    }
    std::future::pending().await
}

#[derive(Default)]
struct Tracking {
    /// Names seen in a list that is under way.
    listing: BTreeMap<u8, HashSet<Name>>,
    listed: HashSet<Kind>,
    service_cidrs: BTreeMap<Name, Vec<IpNet>>,
    /// Change times of endpoints that are not programmed yet.
    triggers: Vec<jiff::Timestamp>,
}

/// The health check node ports that shall be open, with their numbers of endpoints, and on which addresses.
type HealthChecks = (BTreeMap<Name, (u16, usize)>, Vec<IpAddr>);

struct Loop {
    engine: Option<Engine>,
    node_health: NodeHealth,
    conntrack: ConntrackFill,
    health: Health,
    metrics: Metrics,
    inputs: mpsc::Receiver<Input>,
    questions: mpsc::Receiver<Request>,
    book: Book,
    foreign: Option<mpsc::Receiver<Change>>,
    first_sync: Option<tokio::sync::oneshot::Sender<()>>,
    begun: Instant,
    tracking: Tracking,
    progress: Progress,
}

impl Loop {
    async fn run(mut self, stop: &CancellationToken) -> Result<(), RunError> {
        let mut due: Option<Instant> = None;
        let mut first: Option<Instant> = None;
        // Somebody waits for the next sync.
        let mut urgent = false;
        let mut beat = tokio::time::interval(BEAT);
        loop {
            self.progress.turn();
            let deadline = due;
            let timer = async move {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                change = next(&mut self.foreign) => {
                    if self.is_foreign(change) {
                        let at = Instant::now() + REPAIR_DELAY;
                        due = Some(due.map_or(at, |d| d.min(at)));
                    }
                }
                Some(question) = self.questions.recv() => {
                    // Somebody waits for it: no coalescing.
                    if self.asked(question) {
                        due = Some(Instant::now());
                        urgent = true;
                    }
                }
                input = self.inputs.recv() => {
                    let Some(input) = input else { return Ok(()) };
                    if self.take(input) {
                        let now = Instant::now();
                        let latest = *first.get_or_insert(now) + COALESCE_MAX;
                        due = Some(if urgent { now } else { (now + COALESCE).min(latest) });
                        self.health.queued();
                        self.metrics.last_queued.set(unix_now());
                    }
                }
                _ = beat.tick() => {
                    self.look_at_conntrack();
                    self.try_health_ports_again().await;
                    // The patience with the Node may be at its end.
                    if self.first_sync.is_some() && self.ready() {
                        due.get_or_insert_with(Instant::now);
                    }
                    if self.expired() {
                        due = Some(Instant::now());
                    }
                }
                () = timer => {
                    (first, urgent) = (None, false);
                    let again = if self.ready() { self.sync().await? } else { None };
                    due = again.map(|pause| Instant::now() + pause);
                }
            }
        }
    }

    /// Takes note of a change by somebody else; `false` when announcements were lost, but nobody
    /// else changed anything.
    fn is_foreign(&mut self, change: Change) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        if change == Change::Lost && engine.alone_since_sync() {
            return false;
        }
        tracing::warn!(?change, "the table was changed by somebody else; it will be compared and repaired");
        self.metrics.foreign_changes.inc();
        engine.forget();
        // Until it is repaired, the node is as healthy as one that has not programmed a change.
        self.health.queued();
        true
    }

    /// Nothing is programmed before Services and slices have been listed once: half a picture
    /// would take down what is right.
    fn ready(&self) -> bool {
        let listed = |kinds: &[Kind]| kinds.iter().all(|k| self.tracking.listed.contains(k));
        // Without the Node its addresses, zone and pod ranges would be taken for none, and what an earlier run has programmed for them away.
        listed(&[Kind::Service, Kind::Slice]) && (listed(&[Kind::Node]) || self.begun.elapsed() > NODE_PATIENCE)
    }

    fn look_at_conntrack(&mut self) {
        if let Some(fill) = self.conntrack.look() {
            self.metrics.conntrack_entries.set(fill.entries as i64);
            self.metrics.conntrack_limit.set(fill.limit as i64);
        }
    }

    /// A port that was taken, or an address that was not ready, may be free by now; no change says so.
    async fn try_health_ports_again(&mut self) {
        if self.node_health.failed() == 0 {
            return;
        }
        let Some(checks) = self.engine.as_ref().map(|engine| self.health_checks(engine)) else { return };
        self.open_health_ports(checks).await;
    }

    async fn open_health_ports(&mut self, (wanted, addresses): HealthChecks) {
        self.node_health.sync(&wanted, &addresses).await;
        self.metrics.health_ports_failed.set(self.node_health.failed() as i64);
    }

    fn health_checks(&self, engine: &Engine) -> HealthChecks {
        let wanted = engine.model.health_checks();
        if wanted.is_empty() && self.node_health.is_idle() {
            return (wanted, Vec::new());
        }
        let addresses = node_health::addresses(&engine.settings().node_port_addresses, engine.model.node());
        (wanted, addresses)
    }

    /// Takes a question of the drain; whether a sync is needed for its answer.
    fn asked(&mut self, question: Request) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        self.metrics.drain_questions.inc();
        let again = self.book.take(question, &mut engine.model, self.first_sync.is_none(), std::time::Instant::now());
        self.metrics.drains.set(self.book.len() as i64);
        again
    }

    /// Ends drains that the slices never agreed to; whether a sync is needed for it.
    fn expired(&mut self) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        self.book.expire(&mut engine.model, std::time::Instant::now())
    }

    /// One sync off the asynchronous threads; after which pause another one is needed, if one is.
    async fn sync(&mut self) -> Result<Option<Duration>, RunError> {
        let Some(mut engine) = self.engine.take() else { return Ok(None) };
        let triggers = std::mem::take(&mut self.tracking.triggers);
        let (engine, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = engine.sync();
            (engine, outcome)
        })
        .await?;
        self.metrics.frontends.set(engine.frontends() as i64);
        let no_local = engine.no_local();
        for (traffic_policy, count) in [("internal", no_local.internal), ("external", no_local.external)] {
            self.metrics.no_local.get_or_create(&Policy { traffic_policy }).set(i64::from(count));
        }
        if outcome.is_ok() {
            let checks = self.health_checks(&engine);
            self.open_health_ports(checks).await;
        }
        let model = &mut self.engine.insert(engine).model;
        match outcome {
            Ok(report) => {
                let seconds = report.took.as_secs_f64();
                self.metrics.sync_seconds.observe(seconds);
                let by_kind =
                    if report.full { &self.metrics.sync_full_seconds } else { &self.metrics.sync_partial_seconds };
                by_kind.observe(seconds);
                self.metrics.elements.inc_by(report.stats.elements as u64);
                self.metrics.transactions.inc_by(report.stats.transactions as u64);
                self.metrics.conntrack_deleted.inc_by(report.conntrack_deleted as u64);
                let now = unix_now();
                self.metrics.last_sync.set(now);
                for trigger in triggers {
                    let age = now - trigger.as_millisecond() as f64 / 1000.0;
                    if (0.0..MAX_TRIGGER_AGE_SECONDS).contains(&age) {
                        self.metrics.network_programming_seconds.observe(age);
                    }
                }
                self.health.synced();
                self.progress.set_ready();
                if let Some(first) = self.first_sync.take() {
                    let _ = first.send(());
                }
                if report.full {
                    tracing::info!(?report, "full sync");
                } else {
                    tracing::debug!(?report, "sync");
                }
                let again = self.book.synced(model, std::time::Instant::now());
                self.metrics.drains.set(self.book.len() as i64);
                Ok(if again { Some(Duration::ZERO) } else { report.conntrack_pending.then_some(RETRY) })
            }
            Err(error) => {
                self.metrics.failures.inc();
                self.health.queued();
                self.tracking.triggers.extend(triggers);
                self.book.failed(model, &error.to_string());
                tracing::error!(%error, "sync failed; the table will be listed, compared and repaired");
                Ok(Some(RETRY))
            }
        }
    }

    /// Takes one input into the model; says whether a sync may be needed.
    fn take(&mut self, input: Input) -> bool {
        let Some(engine) = &mut self.engine else { return false };
        let tracking = &mut self.tracking;
        let model = &mut engine.model;
        match input {
            Input::Service(object) => {
                let name = decode::object_name(&object.metadata);
                tracking.seen(Kind::Service, &name);
                let record = decode::service(&object, &mut model.interner);
                model.set_service(&name, record);
                self.metrics.service_changes.inc();
            }
            Input::ServiceGone(object) => {
                model.set_service(&decode::object_name(&object.metadata), None);
                self.metrics.service_changes.inc();
            }
            Input::Slice(object) => {
                let name = decode::object_name(&object.metadata);
                tracking.seen(Kind::Slice, &name);
                tracking.trigger(&object.metadata);
                let node_name = model.node_name().to_owned();
                let record = decode::slice(&object, &node_name, &mut model.interner);
                let uids = record.as_ref().map(|record| decode::local_uids(&object, record));
                model.set_slice(&name, record);
                model.set_local_uids(&name, uids.unwrap_or_default());
                self.metrics.endpoint_changes.inc();
            }
            Input::SliceGone(object) => {
                model.set_slice(&decode::object_name(&object.metadata), None);
                self.metrics.endpoint_changes.inc();
            }
            Input::Node(object) => {
                let record = decode::node(&object, &mut model.interner);
                self.health.set_node_leaving(record.leaving);
                // The node's status is written every few seconds; hardly any of it matters here.
                if record == *model.node() {
                    return false;
                }
                model.set_node(record);
            }
            Input::ServiceCidr(object) => {
                let name = decode::object_name(&object.metadata);
                tracking.seen(Kind::ServiceCidr, &name);
                tracking.service_cidrs.insert(name, decode::service_cidr(&object));
                engine.set_service_cidrs(tracking.service_cidrs.values().flatten().copied().collect());
            }
            Input::ServiceCidrGone(object) => {
                tracking.service_cidrs.remove(&decode::object_name(&object.metadata));
                engine.set_service_cidrs(tracking.service_cidrs.values().flatten().copied().collect());
            }
            Input::Listing(kind) => {
                tracking.listing.insert(kind as u8, HashSet::new());
                return false;
            }
            Input::Listed(kind) => tracking.listed(kind, engine),
        }
        true
    }
}

impl Tracking {
    fn seen(&mut self, kind: Kind, name: &Name) {
        if let Some(names) = self.listing.get_mut(&(kind as u8)) {
            names.insert(name.clone());
        }
    }

    fn trigger(&mut self, meta: &kube::api::ObjectMeta) {
        let annotation = meta.annotations.as_ref().and_then(|a| a.get(LAST_CHANGE_TRIGGER));
        self.triggers.extend(annotation.and_then(|t| t.parse::<jiff::Timestamp>().ok()));
    }

    /// Objects that a complete list does not name are gone.
    fn listed(&mut self, kind: Kind, engine: &mut Engine) {
        self.listed.insert(kind);
        let Some(seen) = self.listing.remove(&(kind as u8)) else { return };
        let model = &mut engine.model;
        match kind {
            Kind::Service => {
                let gone: Vec<Name> = model.services().map(|(n, _)| n.clone()).filter(|n| !seen.contains(n)).collect();
                gone.iter().for_each(|name| model.set_service(name, None));
            }
            Kind::Slice => {
                let gone: Vec<Name> = model.slices().filter(|n| !seen.contains(*n)).cloned().collect();
                gone.iter().for_each(|name| model.set_slice(name, None));
            }
            Kind::ServiceCidr => {
                self.service_cidrs.retain(|name, _| seen.contains(name));
                engine.set_service_cidrs(self.service_cidrs.values().flatten().copied().collect());
            }
            Kind::Node => {}
        }
    }
}

fn unix_now() -> f64 {
    jiff::Timestamp::now().as_millisecond() as f64 / 1000.0
}
