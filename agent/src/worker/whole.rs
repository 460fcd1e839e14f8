//! Calls of the runtime that are never cut short.
//!
//! A worker drops what it does when its pod has to end. A create or start that is dropped half-way is cancelled in the
//! runtime half-way, too, which leaves processes that nobody knows (`runc init`) in the pod's cgroup. So these calls run
//! in a task of their own: the caller may go, the call goes on, and the end of the pod waits for it.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::runtime::RuntimeError;

/// The calls of one worker; at most one is under way.
#[derive(Clone, Default)]
pub(super) struct Whole(Arc<Mutex<()>>);

impl Whole {
    /// Runs a call to its end, whether or not somebody waits for its result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, RuntimeError>> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let under_way = self.0.clone().lock_owned().await;
        let task = tokio::spawn(async move {
            let outcome = call.await;
            drop(under_way);
            outcome
        });
        match task.await {
            Ok(outcome) => outcome,
            // Nobody aborts it: it panicked, and that is the worker's panic.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Waits until no call is under way; true when there was one.
    pub(super) async fn idle(&self) -> bool {
        let busy = self.0.try_lock().is_err();
        drop(self.0.lock().await);
        busy
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_caller_is_gone_is_finished_and_waited_for() {
        let whole = Whole::default();
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        let call = whole.run(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            seen.store(true, Ordering::SeqCst);
            Ok(())
        });
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
        assert!(!done.load(Ordering::SeqCst));
        assert!(whole.idle().await);
        assert!(done.load(Ordering::SeqCst));
        assert!(!whole.idle().await);
    }
}
