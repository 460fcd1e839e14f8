//! In-flight limits: so many requests at once, shared fairly by users; the rest waits a little, or is told to come back.
//!
//! Upstream counterparts: `--max-requests-inflight` and `--max-mutating-requests-inflight` with their defaults, and of priority and fairness
//! the levels `exempt` (administrators), `node-high` and `leader-election` (a pool of their own), and `global-default`. Long-running requests
//! (watch, followed logs) do not count; connections to back ends have a limit of their own.

use std::sync::Arc;

use keelson_kinds::ApiError;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Call;
use super::fair::{Fair, Place};
use crate::auth;

/// Upstream's default for reading requests.
const MAX_READS: usize = 400;
/// Upstream's default for writing requests.
const MAX_WRITES: usize = 200;
/// For what keeps nodes and leaders alive: it is small and quick, and nobody else's load may hold it up.
const MAX_VITAL: usize = 100;
/// Connections to back ends (exec, attach, port-forward, proxy) at once; each takes two descriptors.
const MAX_CONNECTS: usize = 4000;
/// What `Retry-After` says.
const RETRY_AFTER_SECONDS: u32 = 1;
/// Where nodes and leaders renew their leases.
const LEASES_OF_NODES: &str = "kube-node-lease";
const LEASES_OF_LEADERS: &str = "kube-system";

/// The limits.
#[derive(Debug, Clone)]
pub struct InFlight {
    reads: Fair,
    writes: Fair,
    vital: Fair,
    connects: Arc<Semaphore>,
    /// Places that are taken.
    pub taken: Family<KindLabels, Gauge>,
    /// Requests that wait for one.
    pub waiting: Family<KindLabels, Gauge>,
}

/// Which limit a gauge is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    request_kind: &'static str,
}

impl Default for InFlight {
    fn default() -> Self {
        Self::new(MAX_READS, MAX_WRITES)
    }
}

impl InFlight {
    /// Limits of one's own.
    #[must_use]
    pub fn new(reads: usize, writes: usize) -> Self {
        let (taken, waiting) = (Family::<KindLabels, Gauge>::default(), Family::<KindLabels, Gauge>::default());
        let pool = |request_kind, places| {
            let gauge = |family: &Family<_, Gauge>| family.get_or_create(&KindLabels { request_kind }).clone();
            Fair::new(places, gauge(&taken), gauge(&waiting))
        };
        Self {
            reads: pool("readOnly", reads),
            writes: pool("mutating", writes),
            vital: pool("vital", MAX_VITAL),
            connects: Arc::new(Semaphore::new(MAX_CONNECTS)),
            taken,
            waiting,
        }
    }

    /// A place for one request; none is needed by administrators.
    ///
    /// # Errors
    /// 429 when there is none.
    pub async fn enter(&self, call: &Call) -> Result<Option<Place>, ApiError> {
        if call.user.in_group(auth::MASTERS) {
            return Ok(None);
        }
        let pool = match call.verb {
            _ if is_vital(call) => &self.vital,
            "get" | "list" | "watch" => &self.reads,
            _ => &self.writes,
        };
        pool.enter(&call.user.name).await.map(Some).map_err(|_| too_many())
    }

    /// A place for one connection to a back end.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn connect(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.connects).try_acquire_owned().map_err(|_| too_many())
    }
}

fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", RETRY_AFTER_SECONDS)
}

/// Whether a request says that a node or a leader lives: of nodes their Node and its lease, of our control plane's and upstream's the lease of
/// the leader. A list is none, because it is not small.
fn is_vital(call: &Call) -> bool {
    if matches!(call.verb, "list" | "deletecollection") {
        return false;
    }
    let user = &call.user;
    let (group, kind, namespace) = (call.res.group, call.res.plural, call.namespace.as_str());
    match (group, kind, namespace) {
        ("coordination.k8s.io", "leases", LEASES_OF_NODES) | ("", "nodes", "") => auth::node::node_name(user).is_some(),
        ("coordination.k8s.io", "leases", LEASES_OF_LEADERS) => user.name.starts_with("system:kube-"),
        _ => false,
    }
}
