//! How many commands of probes may be starting at once.
//!
//! Starting a process in a container costs tens of milliseconds of processor time: hundreds of probes that fall together would take the node
//! (upstream k/k 82440). The rest waits its turn, which also spreads the probes: each one's next attempt is counted from its last. The
//! time limit of a probe begins when its command does.

use std::future::Future;
use std::time::Duration;

use tokio::sync::Semaphore;

/// A command that runs on gives its place up after this time: the expensive part is over, and one that hangs holds nobody up.
const STARTING: Duration = Duration::from_millis(200);
/// Bounds of the number of places, and how many each processor gives.
const LEAST: usize = 4;
const MOST: usize = 16;
const PER_PROCESSOR: usize = 2;

/// The places.
#[derive(Debug)]
pub struct ExecSlots(Semaphore);

impl Default for ExecSlots {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new((processors * PER_PROCESSOR).clamp(LEAST, MOST)))
    }
}

impl ExecSlots {
    /// How many there are while none is taken.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.available_permits()
    }

    /// Waits for a place and does the work.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let place = self.0.acquire().await;
        tokio::pin!(work);
        if let Ok(done) = tokio::time::timeout(STARTING, &mut work).await {
            return done;
        }
        drop(place);
        work.await
    }
}
