//! The tasks of a program by name, so that a stop that takes too long says who is late.
//!
//! A stop waits for all of them, up to a limit; after that the program leaves and logs the names, instead of hiding
//! a task that does not see the cancellation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

/// Named tasks; cheap to clone, one set.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    running: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

/// Takes its task off the list, also when the task panics or is dropped.
struct Listed {
    name: &'static str,
    running: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
    }
}

impl Tasks {
    /// No task yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task under a name; several may share one.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        *self.running.lock().entry(name).or_default() += 1;
        let listed = Listed { name, running: self.running.clone() };
        self.tracker.spawn(async move {
            let _listed = listed;
            task.await;
        });
    }

    /// The names of the tasks that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<&'static str> {
        self.running.lock().keys().copied().collect()
    }

    /// Waits until every task has ended, at most `limit`.
    ///
    /// # Errors
    /// The names of those that have not.
    pub async fn ended(&self, limit: Duration) -> Result<(), Vec<&'static str>> {
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait()).await.map_err(|_| self.running())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn names_those_that_are_late() {
        let tasks = Tasks::new();
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("quick", async {});
        tasks.spawn("late", async move {
            let _ = told.await;
        });
        assert_eq!(tasks.ended(Duration::from_secs(1)).await, Err(vec!["late"]));
        tell.send(()).unwrap();
        assert_eq!(tasks.ended(Duration::from_secs(1)).await, Ok(()));
        assert!(tasks.running().is_empty());
    }

    #[tokio::test]
    async fn a_task_that_panics_is_not_late() {
        let tasks = Tasks::new();
        tasks.spawn("breaks", async { panic!("on purpose") });
        assert_eq!(tasks.ended(Duration::from_secs(5)).await, Ok(()));
    }
}
