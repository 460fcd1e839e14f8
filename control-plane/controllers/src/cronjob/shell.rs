//! The CronJob controller: reads caches, asks the pure parts, acts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;

use super::plan::{Input, Plan, plan, started};
use crate::adopt::{child_changed, ignore_gone};
use crate::engine::events::Level;
use crate::engine::{Caches, Events, Key, Kind, Outcome, Queue, Reconcile, ReconcileError};
use crate::job::conditions::end;
use crate::meta::{controller_of, name_of, namespace_of, uid_of};

const COMPONENT: &str = "cronjob-controller";
/// A little after the time, so that the clock has surely passed it (upstream's `nextScheduleDelta`).
const MARGIN: Duration = Duration::from_millis(100);

/// The controller.
pub struct CronJobs {
    caches: Arc<Caches>,
    crons: Kind<CronJob>,
    jobs: Kind<Job>,
    events: Events,
}

impl CronJobs {
    /// The controller over these caches.
    pub fn new(caches: &Arc<Caches>, events: Events) -> Self {
        Self {
            crons: Kind::new(caches.client.clone(), Arc::clone(&caches.cron_jobs)),
            jobs: Kind::new(caches.client.clone(), Arc::clone(&caches.jobs)),
            caches: Arc::clone(caches),
            events,
        }
    }

    /// Makes changes of cron jobs and their jobs fill `queue`.
    pub fn listen(&self, queue: &Arc<Queue<Key>>) {
        let target = Arc::clone(queue);
        self.caches.cron_jobs.on_change(move |change| target.add(Key::of(change.object().as_ref())));
        let (target, caches) = (Arc::clone(queue), Arc::clone(&self.caches));
        self.caches.jobs.on_change(move |change| {
            child_changed(&caches.cron_jobs, |key| target.add(key), change, |_| None);
        });
    }

    fn jobs_of(&self, cron: &CronJob) -> Vec<Arc<Job>> {
        let mut jobs = self.caches.jobs.in_namespace(namespace_of(cron));
        jobs.retain(|job| controller_of(job.as_ref()).is_some_and(|owner| owner.uid == uid_of(cron)));
        jobs
    }

    async fn delete(&self, cron: &CronJob, job: &Job) -> Result<(), ReconcileError> {
        match self.jobs.delete(job, DeleteParams::background()).await {
            Ok(()) => {
                let message = format!("Deleted job {}", name_of(job));
                self.events.about(cron, COMPONENT, Level::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) => {
                let message = format!("Deleted job: {}", error.server_message());
                self.events.about(cron, COMPONENT, Level::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// Starts the job of a time and notes it; one that was started before is only noted.
    async fn start(
        &self,
        cron: &CronJob,
        (job, at): &(Job, Timestamp),
        status: CronJobStatus,
    ) -> Result<CronJobStatus, ReconcileError> {
        match self.jobs.create(job).await {
            Ok(made) => {
                let message = format!("Created job {}", name_of(&made));
                self.events.about(cron, COMPONENT, Level::Normal, "SuccessfulCreate", message);
                Ok(started(status, &made, *at))
            }
            Err(error) if error.is_namespace_terminating() => Ok(status),
            Err(error) if error.is_already_exists() => {
                let live = self.jobs.get_live(&Key::of(job)).await?;
                let mine = live.filter(|live| controller_of(live).is_some_and(|owner| owner.uid == uid_of(cron)));
                Ok(match mine {
                    Some(live) if end(&live).is_none() => started(status, &live, *at),
                    Some(_) => CronJobStatus {
                        last_schedule_time: started(status.clone(), job, *at).last_schedule_time,
                        ..status
                    },
                    None => status,
                })
            }
            Err(error) => {
                let message = format!("Error creating job: {}", error.server_message());
                self.events.about(cron, COMPONENT, Level::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    async fn act(&self, cron: &CronJob, plan: Plan) -> Result<(), ReconcileError> {
        for (level, reason, message) in plan.events {
            self.events.about(cron, COMPONENT, level, reason, message);
        }
        for job in plan.replace.iter().chain(&plan.forget) {
            self.delete(cron, job).await?;
        }
        let status = match &plan.start {
            None => plan.status,
            Some(start) => self.start(cron, start, plan.status).await?,
        };
        let mut reported = cron.clone();
        reported.status = Some(status);
        ignore_gone(self.crons.update_status(cron, &reported).await)?;
        Ok(())
    }
}

impl Reconcile for CronJobs {
    type Key = Key;
    const NAME: &'static str = COMPONENT;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, ReconcileError> {
        let Some(cron) = self.caches.cron_jobs.by_key(key) else {
            return Ok(Outcome::Done);
        };
        let plan = plan(&Input { cron: &cron, jobs: &self.jobs_of(&cron), now: Timestamp::now() });
        let again = plan.again;
        self.act(&cron, plan).await?;
        Ok(Outcome::after(again.map(|wait| wait + MARGIN)))
    }
}
