//! In-flight limits: so many requests at once, the rest is told to come back.
//!
//! Upstream counterpart: `--max-requests-inflight` and `--max-mutating-requests-inflight`, with their defaults. Long-running requests
//! (watch, followed logs) and administrators do not count; connections to back ends have a limit of their own.

use std::sync::Arc;

use keelson_kinds::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Upstream's default for reading requests.
const MAX_READS: usize = 400;
/// Upstream's default for writing requests.
const MAX_WRITES: usize = 200;
/// Connections to back ends (exec, attach, port-forward, proxy) at once; each takes two descriptors.
const MAX_CONNECTS: usize = 4000;
/// What `Retry-After` says.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The two limits.
#[derive(Debug, Clone)]
pub struct InFlight {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    connects: Arc<Semaphore>,
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
        let limit = |places| Arc::new(Semaphore::new(places));
        Self { reads: limit(reads), writes: limit(writes), connects: limit(MAX_CONNECTS) }
    }

    /// A place for one request.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn enter(&self, writes: bool) -> Result<OwnedSemaphorePermit, ApiError> {
        take(if writes { &self.writes } else { &self.reads })
    }

    /// A place for one connection to a back end.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn connect(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        take(&self.connects)
    }
}

fn take(limit: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(limit)
        .try_acquire_owned()
        .map_err(|_| ApiError::too_many_requests("Too many requests, please try again later.", RETRY_AFTER_SECONDS))
}
