//! Assembles an API server from a data folder, and stops it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keelson_kinds::{ApiError, lookup, resources};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::auth::User;
use crate::auth::rbac::Rbac;
use crate::bootstrap;
use crate::cache::Hub;
use crate::http::ApiService;
use crate::http::limits::InFlight;
use crate::http::metrics::Metrics;
use crate::kubelet::{ClientCertificateError, KubeletClient};
use crate::pki::{Pair, Pki, PkiError, ServingNames, token::TokenKeys};
use crate::server::{Config, Server};
use crate::services::{self, Allocator};
use crate::store::{EtcdConfig, EtcdStore, Revision, SqliteStore, Store, StoreError};

/// Upstream's `--etcd-compaction-interval`: history older than this is forgotten.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

/// Why the API server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Client certificate for agents.
    #[error(transparent)]
    Kubelet(#[from] ClientCertificateError),
    /// Objects every cluster has.
    #[error("cannot make the objects every cluster has: {0}")]
    Bootstrap(ApiError),
    /// The data folder.
    #[error("cannot create the data folder {path}: {source}")]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Names and addresses of the serving certificate.
#[must_use]
pub fn serving_names(config: &Config, bind: IpAddr) -> ServingNames {
    let allocator = Allocator::new(config.service_cidr, config.node_ports);
    let mut addresses = vec![
        config.advertise_address,
        allocator.first_address(),
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    if !bind.is_unspecified() {
        addresses.push(bind);
    }
    addresses.sort();
    addresses.dedup();
    let mut dns: Vec<String> = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        .into_iter()
        .map(str::to_owned)
        .collect();
    dns.push(format!("kubernetes.default.svc.{}", config.cluster_domain));
    if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        let host = host.trim();
        if !host.is_empty() && !dns.iter().any(|name| name == host) {
            dns.push(host.to_owned());
        }
    }
    ServingNames { dns, addresses }
}

/// The file of the `SQLite` store in a data folder.
pub const STORE_FILE: &str = "store.db";

/// Makes the data folder, for its owner only.
///
/// # Errors
/// [`StartError::DataDir`].
pub fn make_data_dir(data_dir: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data_dir)
        .map_err(|source| StartError::DataDir { path: data_dir.to_owned(), source })
}

/// Opens the store of a data folder, making the folder.
///
/// # Errors
/// [`StartError`].
pub fn open_store(data_dir: &Path) -> Result<Arc<dyn Store>, StartError> {
    make_data_dir(data_dir)?;
    Ok(Arc::new(SqliteStore::open(&data_dir.join(STORE_FILE))?))
}

/// Opens a store at etcd; the data folder, which is made, is for certificates then.
///
/// # Errors
/// [`StartError`].
pub fn open_etcd(data_dir: &Path, config: &EtcdConfig) -> Result<Arc<dyn Store>, StartError> {
    make_data_dir(data_dir)?;
    let file = data_dir.join(STORE_FILE);
    if file.exists() {
        tracing::warn!(file = %file.display(), "the objects in this file are not used: etcd was asked for");
    }
    Ok(Arc::new(EtcdStore::open(config)?))
}

/// Starts a server over a store: caches, allocators, the objects every cluster has, compaction.
///
/// # Errors
/// [`StartError`].
pub async fn start(
    config: Config,
    store: Arc<dyn Store>,
    tokens: TokenKeys,
    kubelet: Option<&Pair>,
    shutdown: CancellationToken,
) -> Result<Arc<Server>, StartError> {
    let caches = shutdown.clone();
    start_with_caches(config, store, tokens, kubelet, shutdown, caches).await
}

/// As [`start`], with caches that go on until `caches` is cancelled: parts of the same program may write while they end.
///
/// # Errors
/// [`StartError`].
pub async fn start_with_caches(
    config: Config,
    store: Arc<dyn Store>,
    tokens: TokenKeys,
    kubelet: Option<&Pair>,
    shutdown: CancellationToken,
    caches: CancellationToken,
) -> Result<Arc<Server>, StartError> {
    let hub = Hub::start(Arc::clone(&store), resources(), caches).await?;
    services::repair_claims(store.as_ref(), &hub).await?;
    let rbac = Rbac::new(Arc::clone(&hub));
    if !rbac.available() {
        tracing::warn!("the RBAC kinds are not served: only system:masters and nodes may do anything");
    }
    let in_flight = InFlight::default();
    let metrics = Metrics::new(&in_flight);
    if let Some(audit) = &config.audit {
        let lost = audit.lost();
        let help = "Audit events that could not be written";
        metrics.endpoints.register(|registry| registry.register("apiserver_audit_error", help, lost));
    }
    let server = Arc::new(Server {
        allocator: filled_allocator(&config, &hub),
        config,
        store: Arc::clone(&store),
        newest: crate::store::Shared::default(),
        rbac,
        hub,
        tokens,
        others: bootstrap::servers::Others::default(),
        metrics,
        in_flight,
        registry: keelson_kinds::custom::Registry::new(),
        webhooks: crate::admission::webhooks::Configurations::default(),
        policies: crate::admission::policies::Policies::default(),
        quotas: crate::quota::Quotas::default(),
        kubelet: kubelet.map(KubeletClient::new).transpose()?,
        shutdown: shutdown.clone(),
    });
    // Before the endpoints are made: those of the others stay.
    bootstrap::servers::join(&server).await?;
    bootstrap::run(&server).await.map_err(StartError::Bootstrap)?;
    let keeper = crate::custom::Keeper::start(Arc::clone(&server)).await;
    tokio::spawn(keeper.run(shutdown.clone()));
    tokio::spawn(services::follow(Arc::clone(&server), shutdown.clone()));
    tokio::spawn(bootstrap::keep_kubernetes_service(Arc::clone(&server)));
    tokio::spawn(bootstrap::servers::keep(Arc::clone(&server), shutdown.clone()));
    tokio::spawn(crate::quota::keep(Arc::clone(&server), shutdown.clone()));
    tokio::spawn(crate::events::expire(Arc::clone(&server), shutdown.clone()));
    tokio::spawn(compact(store, shutdown));
    Ok(server)
}

fn filled_allocator(config: &Config, hub: &Arc<Hub>) -> Allocator {
    let allocator = Allocator::new(config.service_cidr, config.node_ports);
    if let Some(res) = lookup("", "v1", "services")
        && services::is_service(res)
        && let Some(cache) = hub.cache(res)
    {
        for service in cache.objects(None) {
            allocator.settle(&format!("{}/{}", service.namespace, service.name), Some(&service.value()));
        }
    }
    allocator
}

/// Forgets history that is older than one interval; does nothing while nothing is written.
async fn compact(store: Arc<dyn Store>, shutdown: CancellationToken) {
    let mut before: Revision = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(COMPACTION_INTERVAL) => {}
            () = shutdown.cancelled() => return,
        }
        let now = match store.revision().await {
            Ok(now) => now,
            Err(StoreError::Closed) => return,
            Err(_) => continue,
        };
        if before > 0 && now > before {
            if let Err(error) = store.compact(before).await {
                tracing::warn!(%error, "compaction failed");
            } else {
                tracing::debug!(revision = before, "compacted");
            }
        }
        before = now;
    }
}

/// A client within this process, without TLS, as an internal user.
#[must_use]
pub fn client(server: &Arc<Server>, user: &str) -> Client {
    Client::new(ApiService::internal(Arc::clone(server), User::internal(user)), "default")
}

/// Opens or makes the PKI of a data folder.
///
/// # Errors
/// [`PkiError`].
pub fn open_pki(data_dir: &Path, config: &Config, bind: IpAddr) -> Result<Pki, PkiError> {
    Pki::open(data_dir, &serving_names(config, bind))
}
