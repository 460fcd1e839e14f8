//! In-flight limits: so many requests at once, the rest is told to come back.
//!
//! Upstream counterpart: `--max-requests-inflight` and `--max-mutating-requests-inflight`, with their defaults. Long-running requests
//! (watch, followed logs) and administrators do not count.

use std::sync::Arc;

use keelson_kinds::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Upstream's default for reading requests.
const MAX_READS: usize = 400;
/// Upstream's default for writing requests.
const MAX_WRITES: usize = 200;
/// What `Retry-After` says.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The two limits.
#[derive(Debug, Clone)]
pub struct InFlight {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
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
        Self { reads: Arc::new(Semaphore::new(reads)), writes: Arc::new(Semaphore::new(writes)) }
    }

    /// A place for one request.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn enter(&self, writes: bool) -> Result<OwnedSemaphorePermit, ApiError> {
        let limit = if writes { &self.writes } else { &self.reads };
        Arc::clone(limit)
            .try_acquire_owned()
            .map_err(|_| ApiError::too_many_requests("Too many requests, please try again later.", RETRY_AFTER_SECONDS))
    }
}
