//! Deletes jobs some time after their end, if they say when.
//!
//! Upstream counterpart: `pkg/controller/ttlafterfinished`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PropagationPolicy};
use tracing::info;

use crate::engine::index::Change;
use crate::engine::{Caches, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::job::conditions::end;
use crate::meta::is_deleting;

/// The controller.
pub struct TtlAfterFinished {
    caches: Arc<Caches>,
    jobs: Kind<Job>,
}

impl TtlAfterFinished {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>) -> Self {
        Self { jobs: Kind::new(caches.client.clone(), Arc::clone(&caches.jobs)), caches: Arc::clone(caches) }
    }

    /// Makes jobs that have ended fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.jobs.on_change(move |change| {
            let job = change.object();
            if !matches!(change, Change::Deleted(_)) && left(job, Timestamp::now()).is_some() {
                target.add(Key::of(job.as_ref()));
            }
        });
    }
}

/// How long the job may still stay; `None` if it may stay for ever.
fn left(job: &Job, now: Timestamp) -> Option<Duration> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished.filter(|_| !is_deleting(job))?;
    let ended = end(job)?.last_transition_time.as_ref()?.0;
    let passed = Duration::try_from(now.duration_since(ended)).unwrap_or_default();
    Some(crate::meta::seconds(Some(ttl)).saturating_sub(passed))
}

impl Reconcile for TtlAfterFinished {
    type Key = Key;
    const NAME: &'static str = "ttl-after-finished-controller";

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        match self.caches.jobs.by_key(key).and_then(|job| left(&job, Timestamp::now())) {
            None => return Ok(Outcome::Done),
            Some(wait) if !wait.is_zero() => return Ok(Outcome::After(wait)),
            Some(_) => {}
        }
        // The time may have been made longer a moment ago: the server knows.
        let Some(job) = self.jobs.get_live(key).await? else { return Ok(Outcome::Done) };
        match left(&job, Timestamp::now()) {
            Some(wait) if wait.is_zero() => {
                info!(job = %key, "deleting a job whose time after its end is over");
                let propagation_policy = Some(PropagationPolicy::Foreground);
                self.jobs.delete(&job, DeleteParams { propagation_policy, ..DeleteParams::default() }).await?;
                Ok(Outcome::Done)
            }
            later => Ok(Outcome::after(later)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn only_ended_jobs_that_say_so_go() {
        let job = |ttl: Value, ended: &str| -> Job {
            serde_json::from_value(
                json!({"spec": {"template": {}, "ttlSecondsAfterFinished": ttl}, "status": {"conditions": [
                {"type": ended, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
            )
            .unwrap()
        };
        let now = "2026-01-01T00:00:40Z".parse().unwrap();
        assert_eq!(left(&job(json!(100), "Complete"), now), Some(Duration::from_secs(60)));
        assert_eq!(left(&job(json!(0), "Failed"), now), Some(Duration::ZERO));
        assert_eq!(left(&job(json!(100), "FailureTarget"), now), None);
        assert_eq!(left(&job(Value::Null, "Complete"), now), None);
    }
}
